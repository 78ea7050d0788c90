"""`make mutation`: would the tests notice a bug in the run loop, the scope or the regions?

Works on copies of the tree, never on the tree itself. Every mutant is tested with the tests that
run the changed statement, cheapest first; which those are comes from one run under coverage. A
seed fixes the order of the mutants, and after the given minutes no new one is begun: what was
tried by then is a sample.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import queue
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from tools.mutation import judged
from tools.mutation.mutants import Mutant, diff_of, mutants_of
from tools.mutation.worker import PYTEST_ARGUMENTS

ROOT: Final = Path(__file__).resolve().parents[2]
REPORT: Final = ROOT / "build" / "mutation.json"
ALLOWED_UNJUDGED: Final = 0.05

MODULES: Final = (
    "loop/bodies",
    "loop/ends",
    "loop/groups",
    "loop/interrupts",
    "loop/judging",
    "loop/marks",
    "loop/masks",
    "loop/observing",
    "loop/run_loop",
    "loop/state",
    "ops/region",
    "region",
    "scope",
)

# What they claim of the loop, scopes and regions. Left out: primitives, layers, schedules, the
# application, and tests that start processes.
TESTS: Final = (
    "tests/probes/test_at_cancellation.py",
    "tests/probes/test_at_loops.py",
    "tests/probes/test_at_tasks.py",
    "tests/probes/test_ex_exits_and_runners.py",
    "tests/probes/test_f*.py",
    "tests/probes/test_in_*.py",
    "tests/probes/test_pd_*.py",
    "tests/probes/test_pr_promises.py",
    "tests/probes/test_s[cou]_*.py",
    "tests/probes/test_task_factory*.py",
    "tests/probes/test_tr_timeout_and_race.py",
    "tests/probes/test_wi_landing.py",
    "tests/regressions/test_[deilorw]*.py",
)

_SLOW_TEST_SECONDS: Final = 0.5
"""Slower ones show depth and leaks. They are left out where enough others run the statement."""
_ENOUGH_TESTS: Final = 100
_FIRST_BATCH: Final = 60
_FILES_IN_FIRST_BATCH: Final = 3
_LEAST_SECONDS: Final = 20.0
_LEAST_SECONDS_A_TEST: Final = 5.0
_LOADED: Final = 5.0
"""How much slower than in the run under coverage a test may be before it counts as hanging."""


@dataclass(frozen=True)
class Reach:
    """What the run under coverage told: of each test its time, of each line its tests."""

    tests: list[str]
    seconds: list[float]
    lines: dict[str, dict[str, list[int]]]
    modules: list[str]

    def tests_for(self, mutant: Mutant) -> list[int]:
        """Those that run the changed statement; all where only an import does. Cheapest first."""
        lines = self.lines.get(mutant.file, {})
        first, last = mutant.lines
        at = [lines[str(line)] for line in range(first, last + 1) if str(line) in lines]
        found = {test for tests in at for test in tests}
        if at and not found:
            found = set(range(len(self.tests)))
        quick = [test for test in found if self.seconds[test] < _SLOW_TEST_SECONDS]
        chosen = quick if len(quick) >= _ENOUGH_TESTS else found
        return sorted(chosen, key=lambda test: (self.seconds[test], test))


@dataclass(frozen=True)
class Result:
    """What became of one mutant."""

    mutant: Mutant
    outcome: str
    by: str
    seconds: float


def batches(tests: list[str]) -> list[list[str]]:
    """A small batch from few files first: most mutants are gone after it."""
    files = Counter(test.partition("::")[0] for test in tests)
    few = {file for file, _ in files.most_common(_FILES_IN_FIRST_BATCH)}
    first = [test for test in tests if test.partition("::")[0] in few][:_FIRST_BATCH]
    rest = [test for test in tests if test not in set(first)]
    return [batch for batch in (first, rest) if batch]


def copy_tree(into: Path) -> None:
    """What tests need, with the times of the files."""
    for name in ("src", "tests", "tools", "docs", "examples", "pyproject.toml", "README.md"):
        if (ROOT / name).is_dir():
            skip = shutil.ignore_patterns("__pycache__", "*.so")
            shutil.copytree(ROOT / name, into / name, ignore=skip)
        elif (ROOT / name).exists():
            shutil.copy2(ROOT / name, into / name)


def environment(tree: Path) -> dict[str, str]:
    """For a process in a copy of the tree: the copy's packages, none of them compiled."""
    return {
        **os.environ,
        "FIBERS_PURE": "1",
        "PYTHONPATH": os.pathsep.join([str(tree / "src"), str(tree)]),
    }


def measure(tree: Path, files: list[str]) -> Reach:
    """One run of the tests under coverage; SystemExit where they don't pass unchanged."""
    out = tree / "reach.json"
    tests = sorted(str(p.relative_to(tree)) for pattern in TESTS for p in tree.glob(pattern))
    command = [sys.executable, "-m", "tools.mutation.reach", str(out), *files, "--", "-q", "-x"]
    done = subprocess.run(
        [*command, *PYTEST_ARGUMENTS, *tests],
        cwd=tree,
        env=environment(tree),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"the tests don't pass without a mutant:\n{done.stdout[-4000:]}")
    return Reach(**json.loads(out.read_text("utf-8")))


def all_mutants(files: list[str], processes: int) -> list[Mutant]:
    """Of every file, in the order of the files."""
    sources = [(ROOT / file).read_text("utf-8") for file in files]
    with concurrent.futures.ProcessPoolExecutor(processes) as pool:
        return [mutant for each in pool.map(mutants_of, files, sources) for mutant in each]


class Trial:
    """Mutants, in order, handed to the workers until none is left or time is up."""

    def __init__(self, mutants: Iterable[Mutant], reach: Reach, end: float) -> None:
        self._waiting: queue.SimpleQueue[Mutant] = queue.SimpleQueue()
        for mutant in mutants:
            self._waiting.put(mutant)
        self._reach = reach
        self._end = end
        self.results: list[Result] = []

    def work(self, tree: Path) -> None:
        """One worker's share; called in a thread."""
        modules = tree / "modules.json"
        modules.write_text(json.dumps(self._reach.modules), "utf-8")
        with subprocess.Popen(
            [sys.executable, "-m", "tools.mutation.worker", str(modules)],
            cwd=tree,
            env=environment(tree),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as worker:
            assert worker.stdin is not None
            assert worker.stdout is not None
            self._control(worker.stdin, worker.stdout)
            while time.monotonic() < self._end:
                try:
                    mutant = self._waiting.get_nowait()
                except queue.Empty:
                    break
                began = time.monotonic()
                said = self._ask(mutant, worker.stdin, worker.stdout)
                seconds = time.monotonic() - began
                self.results.append(Result(mutant, said["outcome"], said["by"], seconds))
                _progress(self.results)
            worker.stdin.close()

    def _control(self, orders: IO[str], answers: IO[str]) -> None:
        """No change at all has to survive every test; else a kill would say nothing."""
        file = f"src/fibers/{MODULES[0]}.py"
        source = (ROOT / file).read_text("utf-8")
        every = [t for t, seconds in enumerate(self._reach.seconds) if seconds < _SLOW_TEST_SECONDS]
        said = self._order(file, source, every, orders, answers)
        if said["outcome"] != "survived":
            raise RuntimeError(f"the tests don't pass in a worker without a mutant: {said}")

    def _ask(self, mutant: Mutant, orders: IO[str], answers: IO[str]) -> dict[str, str]:
        tests = self._reach.tests_for(mutant)
        if not tests:
            return {"outcome": "survived", "by": "no test runs it"}
        return self._order(mutant.file, mutant.source, tests, orders, answers)

    def _order(
        self, file: str, source: str, tests: list[int], orders: IO[str], answers: IO[str]
    ) -> dict[str, str]:
        expected = [self._reach.seconds[test] for test in tests]
        order: dict[str, Any] = {
            "file": file,
            "source": source,
            "batches": batches([self._reach.tests[test] for test in tests]),
            "seconds": max(_LEAST_SECONDS, _LOADED * sum(expected)),
            "seconds_a_test": max(_LEAST_SECONDS_A_TEST, _LOADED * max(expected)),
        }
        orders.write(json.dumps(order) + "\n")
        orders.flush()
        answer = answers.readline()
        if not answer:
            raise RuntimeError(f"a worker ended while it tested {file}")
        said: dict[str, str] = json.loads(answer)
        return said


def _progress(results: list[Result]) -> None:
    if len(results) % 50 == 0:
        survived = sum(result.outcome == "survived" for result in results)
        print(f"  {len(results)} tried, {survived} survived", flush=True)


def report(results: list[Result], mutants: list[Mutant], reasons: dict[judged.Key, str]) -> bool:
    """Print what came out; True where it is good enough."""
    counts = Counter(result.outcome for result in results)
    survivors = [result for result in results if result.outcome == "survived"]
    new = [result for result in survivors if result.mutant.key not in reasons]
    for result in sorted(new, key=lambda r: (r.mutant.file, r.mutant.lines)):
        source = (ROOT / result.mutant.file).read_text("utf-8")
        print(f"\nsurvived ({result.mutant.operator}) {result.by}")
        print(diff_of(source, result.mutant))
        print(judged.entry_for(result.mutant.key))
    gone = set(reasons) - {mutant.key for mutant in mutants}
    dead = {r.mutant.key for r in results if r.outcome != "survived"} & set(reasons)
    dead -= {result.mutant.key for result in survivors}
    for key in sorted(gone):
        print(f"\njudged, but there is no such mutant any more: {key}")
    for key in sorted(dead):
        print(f"\njudged, but a test notices it by now: {key}")
    share = len(new) / max(1, len(results))
    print(
        f"\n{len(results)} of {len(mutants)} mutants tried: {counts['killed']} killed, "
        f"{counts['timed out']} timed out, {len(survivors)} survived, of which "
        f"{len(survivors) - len(new)} judged; not judged {share:.1%} "
        f"(at most {ALLOWED_UNJUDGED:.0%})"
    )
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(
        json.dumps(
            [
                {"key": r.mutant.key, "outcome": r.outcome, "by": r.by, "seconds": r.seconds}
                for r in results
            ],
            indent=1,
        ),
        "utf-8",
    )
    return bool(results) and share <= ALLOWED_UNJUDGED and not gone


def main() -> int:
    """Exit status 0 where at most 5 % survived unjudged and every judged mutant still exists."""
    parser = argparse.ArgumentParser(prog="tools.mutation", description=__doc__)
    parser.add_argument("--minutes", type=float, default=25.0, help="begin none later (25)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="one a core")
    parser.add_argument("--seed", type=int, default=1, help="order of the mutants (1)")
    parser.add_argument("--only", default="", help="only mutants whose file and line hold this")
    options = parser.parse_args()
    reasons = judged.read(judged.FILE.read_text("utf-8"))
    files = [f"src/fibers/{name}.py" for name in MODULES]
    end = time.monotonic() + options.minutes * 60
    with tempfile.TemporaryDirectory(prefix="mutation-") as place:
        trees = [Path(place, f"tree-{n}") for n in range(options.workers)]
        for tree in trees:
            tree.mkdir()
            copy_tree(tree)
        mutants = all_mutants(files, options.workers)
        chosen = [m for m in mutants if options.only in f"{m.file}\n{m.within}\n{m.was}\n{m.now}"]
        random.Random(options.seed).shuffle(chosen)
        print(f"{len(mutants)} mutants; the tests run once without any", flush=True)
        trial = Trial(chosen, measure(trees[0], files), end)
        with concurrent.futures.ThreadPoolExecutor(len(trees)) as pool:
            for _ in pool.map(trial.work, trees):
                pass  # raises what a worker's thread raised
    return 0 if report(trial.results, mutants, reasons) else 1


if __name__ == "__main__":
    sys.exit(main())
