"""Runs modules of CPython's own tests of asyncio with the task factory on every loop.

``run_cpython [--plain] MODULE [TEST ...]`` in the interpreter whose tests they are. Writes what
became of each test to the file that CONFORMANCE_RESULT names.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import traceback
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from tools.conformance import hosting

STANDS_FOR = {
    "test_tasks": {"CTask_CFuture_Tests", "CTask_PyFuture_Tests"},
    "test_eager_task_factory": {"CEagerTaskFactoryLoopTests", "EagerTests", "NonEagerTests"},
}
"""Classes that are parametrized by a task class, per module: these get ours. The other classes of
that kind are the same tests with asyncio's own task classes and their subclasses: left out."""


def is_parametrized(case: type[unittest.TestCase]) -> bool:
    """Whether the tests of a class make their tasks with ``self.Task``."""
    return getattr(case, "Task", None) is not None


class Outcomes(unittest.TestResult):
    """Each test once: passed, skipped, or failed with the end of its traceback."""

    def __init__(self) -> None:
        super().__init__()
        self.told: dict[str, tuple[str, str]] = {}

    def _tell(self, test: unittest.TestCase, what: str, why: str = "") -> None:
        self.told.setdefault(name_of(test), (what, why))

    def addSuccess(self, test: unittest.TestCase) -> None:
        self._tell(test, "passed")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self._tell(test, "skipped", reason)

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        self._tell(test, "failed", "".join(traceback.format_exception(*err)))

    addError = addFailure

    def addExpectedFailure(self, test: unittest.TestCase, err: Any) -> None:
        self._tell(test, "passed")

    def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:
        self._tell(test, "failed", "unexpected success")

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:
        if err is not None:
            self.addFailure(test, err)


def suite_of(name: str, *, plain: bool) -> unittest.TestSuite:
    """The tests of a module, the factory's task class in the place of asyncio's."""
    module = importlib.import_module(f"test.test_asyncio.{name}")
    suite = unittest.TestSuite()
    loader = unittest.TestLoader()
    things: list[Any] = list(vars(module).values())
    for case in things:
        if not (isinstance(case, type) and issubclass(case, unittest.TestCase)):
            continue
        if case.__module__ != module.__name__:
            continue
        if is_parametrized(case):
            if case.__name__ not in STANDS_FOR.get(name, ()):
                continue
            if not plain:
                cast("Any", case).Task = hosting.Task
        suite.addTests(loader.loadTestsFromTestCase(case))
    return suite


def main() -> None:
    args = sys.argv[1:]
    plain = "--plain" in args
    name, *only = [arg for arg in args if arg != "--plain"]
    hosting.hear_sigint()
    if not plain:
        hosting.install()
    started = time.perf_counter()
    outcomes = Outcomes()
    tests = [t for t in flat(suite_of(name, plain=plain)) if not only or name_of(t) in only]
    unittest.TestSuite(tests).run(outcomes)
    result = {
        "seconds": time.perf_counter() - started,
        "hosted": hosting.count(),
        "outcomes": outcomes.told,
    }
    Path(os.environ["CONFORMANCE_RESULT"]).write_text(json.dumps(result))


def flat(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    """The tests of a suite of suites."""
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from flat(test)
        else:
            yield test


def name_of(test: unittest.TestCase) -> str:
    """``test_tasks.Class.test_name``"""
    return test.id().removeprefix("test.test_asyncio.")


if __name__ == "__main__":
    main()
