"""Runs other people's tests of asyncio with the task factory on every loop: CPython's own, on each
supported Python that is here, and anyio's.

    python -m tools.conformance [--python PATH ...] [--suite cpython|anyio] [--quick] [MODULE ...]

What is expected to fail stands in ``expected-<python>.toml``, with its reason. Ends with 1 where
something else fails, where more is expected to fail than a twentieth of what ran, and where nothing
ran. A test that fails with asyncio's own tasks too, on this machine, is told and not counted; so is
one that fails once and then passes three times.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.pythons import ROOT, SUPPORTED, candidates, version_of

MODULE_BOUND_SECONDS = 900
RUNS_AGAIN = 3
"""How often a test has to pass after a failure that nobody expected, to count as a stumble."""
EXPECTED_SHARE = 0.05
"""The largest part of the tests that run which may be expected to fail."""

CPYTHON = (
    "test_tasks",
    "test_taskgroups",
    "test_timeouts",
    "test_waitfor",
    "test_locks",
    "test_queues",
    "test_runners",
    "test_streams",
    "test_subprocess",
    "test_threads",
    "test_eager_task_factory",
    "test_futures",
    "test_futures2",
    "test_context",
    "test_pep492",
    "test_staggered",
    "test_base_events",
    "test_events",
)
SINCE = {"test_eager_task_factory": "3.12", "test_staggered": "3.13"}
"""Modules that older Pythons don't have."""

ANYIO = (
    "tests/test_taskgroups.py",
    "tests/test_synchronization.py",
    "tests/test_to_thread.py",
    "tests/test_from_thread.py",
    "tests/test_debugging.py",
    "tests/test_eventloop.py",
    "tests/test_lowlevel.py",
    "tests/test_futures.py",
    "tests/test_functools.py",
    "tests/test_signals.py",
    "tests/test_subprocesses.py",
    "tests/test_sockets.py",
    "tests/test_fileio.py",
    "tests/streams",
)
ANYIO_NEEDS = ("anyio", "psutil", "pytest", "pytest_mock", "trustme")
"""What an interpreter must have to run those."""
SLOW = frozenset(
    {
        "test_subprocess",
        "test_events",
        "tests/test_functools.py",
        "tests/test_subprocesses.py",
        "tests/test_sockets.py",
        "tests/test_fileio.py",
        "tests/streams",
    }
)
"""Left out by --quick."""


@dataclass
class Ran:
    """One module of one suite on one Python."""

    suite: str
    python: str
    module: str
    seconds: float = 0.0
    hosted: int = 0
    outcomes: dict[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    broken: str | None = None
    """Why there are no outcomes."""

    def count(self, what: str) -> int:
        """How many tests ended so."""
        return sum(1 for outcome, _ in self.outcomes.values() if outcome == what)


@dataclass(frozen=True)
class Interpreter:
    """A Python whose tests can be run."""

    path: str
    version: str


# ---------------------------------------------------------------------------- what is here


def find_interpreters(given: Sequence[str]) -> list[Interpreter]:
    """The given ones, else one of each supported version: pyenv's newest, else from the path."""
    found: dict[str, Interpreter] = {}
    for path in [str(Path(p).absolute()) for p in given] or candidates():
        version = version_of(path)
        if version is not None and version in SUPPORTED and (given or version not in found):
            found[path if given else version] = Interpreter(path, version)
    return sorted(found.values(), key=lambda i: SUPPORTED.index(i.version))


def has(python: Interpreter, *modules: str) -> bool:
    """Whether an interpreter has modules of its own."""
    code = (
        "import importlib.util as u, sys; sys.exit(any(not u.find_spec(m) for m in sys.argv[1:]))"
    )
    command = [python.path, "-c", code, *modules]
    return subprocess.run(command, capture_output=True, env=_clean()).returncode == 0


def _clean() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PYTEST"))}


def environment(python: Interpreter) -> dict[str, str]:
    """This tree; and where the interpreter has no packages of its own, the pure ones of this
    environment, which do for the factory and for CPython's tests.
    """
    paths = [str(ROOT / "src"), str(ROOT)]
    if not has(python, "returns", "typing_extensions"):
        spec = importlib.util.find_spec("returns")
        assert spec is not None
        assert spec.origin is not None
        paths.append(str(Path(spec.origin).parents[1]))
    return {**_clean(), "PYTHONPATH": os.pathsep.join(paths)}


def anyio_tests(into: Path) -> Path | str:
    """The directory of anyio's source distribution, of the locked version; or why there is none."""
    version = importlib.metadata.version("anyio")
    at = into / f"anyio-{version}"
    if (at / "tests").is_dir():
        return at
    into.mkdir(parents=True, exist_ok=True)
    args = ["download", "--quiet", "--no-deps", "--no-binary", "anyio", f"anyio=={version}"]
    command = [sys.executable, "-m", "pip", "--no-input", "--disable-pip-version-check", *args]
    done = subprocess.run([*command, "--dest", str(into)], capture_output=True, text=True)
    archives = list(into.glob(f"anyio-{version}.tar.gz"))
    if done.returncode != 0 or not archives:
        return f"its source distribution can't be had: {_last_line(done.stderr)}"
    with tarfile.open(archives[0]) as archive:
        archive.extractall(into, filter="data")
    return at if (at / "tests").is_dir() else "its source distribution has no tests"


# ---------------------------------------------------------------------------- running


def run_module(
    suite: str,
    python: Interpreter,
    module: str,
    *,
    home: Path | None = None,
    plain: bool = False,
    only: Sequence[str] = (),
) -> Ran:
    """Run a module in a process of its own. ``plain``: without the factory."""
    ran = Ran(suite, python.version, module)
    with tempfile.TemporaryDirectory() as temporary:
        result = Path(temporary) / "result.json"
        command = [python.path, "-m", f"tools.conformance.run_{suite}"]
        command += ["--plain"] if plain else []
        command += [module, *only] if suite == "cpython" else (list(only) or [module])
        try:
            done = subprocess.run(
                command,
                cwd=home or temporary,
                env={**environment(python), "CONFORMANCE_RESULT": str(result)},
                capture_output=True,
                text=True,
                errors="replace",
                timeout=MODULE_BOUND_SECONDS,
            )
        except subprocess.TimeoutExpired:
            ran.broken = f"it didn't end within {MODULE_BOUND_SECONDS} s"
            return ran
        if not result.exists():
            ran.broken = f"it ended with {done.returncode}: {_last_line(done.stderr)}"
            return ran
        told: dict[str, Any] = json.loads(result.read_text())
    ran.seconds = told["seconds"]
    ran.hosted = told["hosted"]
    ran.outcomes = {name: (what, why) for name, (what, why) in told["outcomes"].items()}
    return ran


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "it said nothing"


def failing(
    ran: Ran, python: Interpreter, tests: Iterable[str], home: Path | None, *, plain: bool = False
) -> set[str]:
    """Those of ``tests`` that fail when they run again, alone; ``plain``: without the factory."""
    names = sorted(tests)
    if not names:
        return set()
    again = run_module(ran.suite, python, ran.module, home=home, plain=plain, only=names)
    return {name for name in names if again.outcomes.get(name, ("failed", ""))[0] == "failed"}


# ---------------------------------------------------------------------------- judging


@dataclass(frozen=True)
class Expected:
    """Why a test may fail."""

    reason: str
    sometimes: bool = False
    """It passes now and then: no news."""


def expected_failures(python: str) -> dict[str, Expected]:
    """Test -> why it may fail."""
    path = Path(__file__).parent / f"expected-{python}.toml"
    table = tomllib.loads(path.read_text()) if path.exists() else {}
    return {
        test: Expected(entry["reason"], entry.get("sometimes", False))
        for entry in table.get("expected", ())
        for test in entry["tests"]
    }


@dataclass
class Judged:
    """The sum of it."""

    tests: int = 0
    expected: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    new: list[str] = field(default_factory=list[str])
    fixed: list[str] = field(default_factory=list[str])
    anyway: list[str] = field(default_factory=list[str])
    once: list[str] = field(default_factory=list[str])

    def take(self, ran: Ran, python: Interpreter, home: Path | None) -> None:
        """Count a module in, and print its line."""
        place = f"{ran.suite} on {ran.python}"
        if ran.broken is not None:
            self.new.append(f"{place}: {ran.module}: {ran.broken}")
            print(f"{ran.python:7}{ran.module:32} BROKEN: {ran.broken}", flush=True)
            return
        known = expected_failures(ran.python)
        failed = [name for name, (what, _) in ran.outcomes.items() if what == "failed"]
        surprising = {name for name in failed if name not in known}
        anyway = failing(ran, python, surprising, home, plain=True)
        surprising -= anyway
        lasting = set[str]()
        for _ in range(RUNS_AGAIN):
            lasting |= failing(ran, python, surprising - lasting, home)
        for name in failed:
            if name in known:
                self.expected.setdefault(known[name].reason, []).append(f"{place}: {name}")
            elif name in anyway:
                self.anyway.append(f"{place}: {name}")
            elif name not in lasting:
                self.once.append(f"{place}: {name}")
            else:
                self.new.append(f"{place}: {name}\n{ran.outcomes[name][1]}")
        for name, (what, _) in ran.outcomes.items():
            if name in known and what == "passed" and not known[name].sometimes:
                self.fixed.append(f"{place}: {name}")
        if not ran.hosted and ran.outcomes:
            self.new.append(f"{place}: {ran.module}: no task was hosted: nothing was shown")
        passed = ran.count("passed")
        self.tests += passed + len(failed)
        expected = sum(1 for name in failed if name in known)
        print(
            f"{ran.python:7}{ran.module:32}{passed:7}{len(failed) - expected:8}{expected:10}"
            f"{ran.count('skipped'):9}{ran.hosted:8}{ran.seconds:8.1f} s",
            flush=True,
        )

    def report(self) -> int:
        """Print what is to be said at the end; the exit code."""
        count = sum(len(tests) for tests in self.expected.values())
        print(f"\n{self.tests} tests ran, {count} failed as expected")
        for reason, tests in self.expected.items():
            print(f"  {len(tests)} because {reason}")
            for test in tests:
                print(f"      {test}")
        for title, tests in (
            ("pass although they are expected to fail: take them off the list", self.fixed),
            ("fail on this machine without the factory too", self.anyway),
            (f"failed once, and not in {RUNS_AGAIN} further runs: a busy machine?", self.once),
            ("FAIL", self.new),
        ):
            if tests:
                print(f"\n{len(tests)} {title}")
                for test in tests:
                    print("  " + test.replace("\n", "\n    "))
        if not self.tests:
            print("\n!!!! NOTHING RAN: nothing was shown")
            return 1
        if count > EXPECTED_SHARE * self.tests:
            print(f"\n!!!! more than {EXPECTED_SHARE:.0%} are expected to fail")
            return 1
        return 1 if self.new else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.conformance")
    parser.add_argument("--python", action="append", default=[], help="an interpreter to run in")
    parser.add_argument("--suite", choices=("cpython", "anyio"), action="append")
    parser.add_argument("--quick", action="store_true", help="without the slow modules")
    parser.add_argument("module", nargs="*", help="modules; all by default")
    given = parser.parse_args()
    suites = given.suite or ["cpython", "anyio"]
    pythons = find_interpreters(given.python)
    judged = Judged()
    for missing in sorted(set(SUPPORTED) - {p.version for p in pythons}):
        if not given.python:
            print(f"!!!! Python {missing} is not here: NOTHING was shown on it")
    print(f"python {'module':32} passed  failed  expected  skipped  hosted     time")
    for suite, modules in (("cpython", CPYTHON), ("anyio", ANYIO)):
        if suite not in suites:
            continue
        chosen = [m for m in given.module or modules if m in modules]
        chosen = [m for m in chosen if not (given.quick and m in SLOW)]
        home: Path | None = None
        if suite == "anyio":
            got = anyio_tests(ROOT / "build" / "conformance")
            if isinstance(got, str):
                print(f"!!!! anyio's tests did NOT run: {got}")
                continue
            home = got
        for python in pythons:
            if suite == "anyio" and not has(python, *ANYIO_NEEDS):
                print(
                    f"!!!! anyio's tests did NOT run on {python.version}: {python.path} lacks its"
                )
                print(f"!!!! packages (make dev VENV=.venv-{python.version} PYTHON={python.path})")
                continue
            if suite == "cpython" and not has(python, "test", "test.test_asyncio"):
                print(f"!!!! {python.path} has no test.test_asyncio: NOTHING was shown on it")
                print(f"!!!! (Debian's package is libpython{python.version}-testsuite)")
                continue
            for module in chosen:
                if SINCE.get(module, SUPPORTED[0]) <= python.version:
                    judged.take(run_module(suite, python, module, home=home), python, home)
    return judged.report()


if __name__ == "__main__":
    sys.exit(main())
