"""A runtime on virtual time, and a workspace in a directory of the test's own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import fibers as fb
from fibers.testing import TestClock
from tests.streamengine.engine.kit import unhandled_failures

from .kit import Bench


@pytest.fixture
def clock() -> TestClock:
    """Time that only moves when the test moves it."""
    return TestClock()


@pytest.fixture
async def rt(clock: TestClock) -> AsyncIterator[fb.Runtime]:
    """A runtime on the virtual clock, disposed after the test."""
    runtime = fb.Runtime(clock=clock)
    # From its first use on, the clock knows of the threads that work for this loop.
    await runtime.run(clock.adjust(0))
    yield runtime
    await runtime.dispose()


@pytest.fixture
async def bench(rt: fb.Runtime, clock: TestClock, tmp_path: Path) -> AsyncIterator[Bench]:
    """A workspace, and turns in it; its scope is closed after the test."""
    made = Bench(rt, clock, tmp_path)
    yield made
    # A test that failed before it let them go must not hang as well.
    made.let_go()
    await rt.run(made.scope.close())


@pytest.fixture(autouse=True)
def nothing_unhandled() -> Iterator[None]:
    """No test of the holds leaves a failure that nobody handles."""
    with unhandled_failures() as seen:
        yield
    assert seen == []
