"""Which test runs which line, and how long each test takes.

A program of its own: `python -m tools.mutation.reach OUT FILES -- ARGUMENTS`, in a copy of the
tree. It runs pytest with ARGUMENTS once, under coverage, and writes JSON to OUT.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final

import coverage
import pytest

_RECURSION_LIMIT: Final = 5_000
"""On 3.11 each call that coverage traces counts twice, and some tests nest deep on purpose."""


class Contexts:
    """A pytest plugin: the coverage of each test is kept apart, under its node id."""

    def __init__(self, measured: coverage.Coverage) -> None:
        self._measured = measured
        self.seconds: dict[str, float] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Around setup, call and teardown of one test."""
        self._measured.switch_context(item.nodeid)
        done = yield
        self._measured.switch_context("")
        return done

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Called once for each phase of a test."""
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration


def main(arguments: list[str]) -> int:
    """Exit status of pytest."""
    split = arguments.index("--")
    out, files = arguments[0], arguments[1:split]
    measured = coverage.Coverage(data_file=None, include=files, config_file=False)
    plugin = Contexts(measured)
    sys.setrecursionlimit(_RECURSION_LIMIT)
    measured.start()
    status = int(pytest.main(arguments[split + 1 :], plugins=[plugin]))
    measured.stop()
    data = measured.get_data()
    tests = list(plugin.seconds)
    place = {test: at for at, test in enumerate(tests)}
    lines = {
        file: {
            line: [place[test] for test in by if test in place]
            for line, by in data.contexts_by_lineno(str(Path(file).resolve())).items()
        }
        for file in files
    }
    modules = [name for name in sys.modules if _can_be_preloaded(name)]
    Path(out).write_text(
        json.dumps(
            {
                "tests": tests,
                "seconds": list(plugin.seconds.values()),
                "lines": lines,
                "modules": modules,
            }
        ),
        "utf-8",
    )
    return status


def _can_be_preloaded(name: str) -> bool:
    """Whether a module may be there before the mutated one is."""
    of_ours = name.split(".")[0] in ("fibers", "streamengine", "turns", "tests", "tools")
    return not of_ours and not name.startswith(("__", "coverage"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
