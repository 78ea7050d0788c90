"""One worker: a copy of the tree in which one mutant at a time is tested.

A program of its own, driven by lines of JSON: `python -m tools.mutation.worker MODULES`, in the
copy. It loads what every run needs but the project itself, and forks for each mutant: starting
Python and importing the test tools would take longer than most mutants live.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any, Final

import pytest

_MEMORY_BYTES: Final = 6 * 2**30
"""A mutant that allocates without end fails instead of taking the machine with it."""
_POLL_SECONDS: Final = 0.01
_SURVIVED: Final = 0
_KILLED: Final = 1


class Chosen:
    """A pytest plugin: runs the given tests only, in the given order, and tells which failed."""

    def __init__(self, tests: list[str], failed: Path) -> None:
        self._place = {test: at for at, test in enumerate(tests)}
        self._failed = failed

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Called once, with everything in the files asked for."""
        wanted = [item for item in items if item.nodeid in self._place]
        items[:] = sorted(wanted, key=lambda item: self._place[item.nodeid])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Called once for each phase of a test."""
        if report.failed:
            self._failed.write_text(report.nodeid, "utf-8")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Called once for each file."""
        if report.failed:
            self._failed.write_text(f"{report.nodeid} (import)", "utf-8")


def main(modules: str) -> int:
    """Serve until the input ends."""
    for name in json.loads(Path(modules).read_text("utf-8")):
        try:
            importlib.import_module(name)
        except ImportError:
            pass  # made at run time, or part of what is only there under coverage
    for line in sys.stdin:
        order = json.loads(line)
        print(json.dumps(_try(order)), flush=True)
    return 0


def _try(order: dict[str, Any]) -> dict[str, str]:
    """Put the mutant in place, run the batches of tests until one fails, put the file back."""
    file = Path(order["file"])
    original = file.read_bytes()
    times = file.stat()
    file.write_text(order["source"], "utf-8")
    try:
        for batch in order["batches"]:
            outcome = _run(batch, order["seconds"], order["seconds_a_test"])
            if outcome["outcome"] != "survived":
                return outcome
        return {"outcome": "survived", "by": ""}
    finally:
        file.write_bytes(original)
        # The compiled file beside it is told apart by this time.
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


def _run(tests: list[str], seconds: float, seconds_a_test: float) -> dict[str, str]:
    failed = Path(".failed")
    failed.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        _be_the_child(tests, failed, seconds_a_test)
    end = time.monotonic() + seconds
    status = None
    while status is None and time.monotonic() < end:
        ended, code = os.waitpid(child, os.WNOHANG)
        if ended:
            status = os.waitstatus_to_exitcode(code)
        else:
            time.sleep(_POLL_SECONDS)
    try:
        os.killpg(child, signal.SIGKILL)  # also what a test has started
    except ProcessLookupError:
        pass
    if status is None:
        os.waitpid(child, 0)
        return {"outcome": "timed out", "by": "all together"}
    if status == _SURVIVED:
        return {"outcome": "survived", "by": ""}
    if failed.exists():
        return {"outcome": "killed", "by": failed.read_text("utf-8")}
    # pytest-timeout leaves without a report; anything else did not get as far as a test.
    return {"outcome": "timed out" if status == _KILLED else "killed", "by": f"status {status}"}


def _be_the_child(tests: list[str], failed: Path, seconds_a_test: float) -> None:
    status = 70
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
        sys.dont_write_bytecode = True
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        files = sorted({test.partition("::")[0] for test in tests})
        arguments = ["-x", "-q", "-o", f"timeout={seconds_a_test}", *PYTEST_ARGUMENTS, *files]
        status = int(pytest.main(arguments, plugins=[Chosen(tests, failed)]))
    finally:
        os._exit(status)


PYTEST_ARGUMENTS: Final = (
    "--no-spec-claims",
    "--assert=plain",
    "-p",
    "no:randomly",
    "-p",
    "no:cacheprovider",
)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
