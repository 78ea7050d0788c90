"""Runs anyio's own tests, backend asyncio, with the task factory on every loop.

``run_anyio DIRECTORY [--plain] [TEST ...]`` in the directory of anyio's source distribution. Writes
what became of each test to the file that CONFORMANCE_RESULT names.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tools.conformance import hosting


class Outcomes:
    """A plugin: each test once, with the end of what it said."""

    def __init__(self) -> None:
        self.told: dict[str, tuple[str, str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """The worst of set-up, call and tear-down counts."""
        before = self.told.get(report.nodeid, ("", ""))[0]
        if report.failed and not hasattr(report, "wasxfail"):
            self.told[report.nodeid] = ("failed", str(report.longrepr))
        elif before != "failed" and report.skipped:
            self.told[report.nodeid] = ("skipped", str(report.longrepr))
        elif not before and report.when == "call":
            self.told[report.nodeid] = ("passed", "")

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Only what runs on asyncio, or on no backend; and no IPv6 where the machine has none."""
        without = ["trio"] if has_ipv6() else ["trio", "ipv6", "dualstack", "happy_eyeballs"]
        items[:] = [item for item in items if not any(word in item.name for word in without)]


def has_ipv6() -> bool:
    """Whether localhost has an IPv6 address that can be used."""
    try:
        found = socket.getaddrinfo("localhost", 0, socket.AF_INET6, socket.SOCK_STREAM)
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(found[0][4])
    except OSError:
        return False
    return True


def main() -> None:
    args = sys.argv[1:]
    plain = "--plain" in args
    tests = [a for a in args if a != "--plain"]
    hosting.hear_sigint()
    if not plain:
        hosting.install()
    outcomes = Outcomes()
    started = time.perf_counter()
    options = ["-q", "-p", "no:asyncio", "-p", "no:randomly", "-p", "no:cacheprovider"]
    options += ["-p", "no:fibers"]
    # What the factory needs is imported before pytest could rewrite its plugin.
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    pytest.main([*options, *(tests or ["tests"])], plugins=[outcomes])
    result: dict[str, Any] = {
        "seconds": time.perf_counter() - started,
        "hosted": hosting.count(),
        "outcomes": outcomes.told,
    }
    Path(os.environ["CONFORMANCE_RESULT"]).write_text(json.dumps(result))


if __name__ == "__main__":
    main()
