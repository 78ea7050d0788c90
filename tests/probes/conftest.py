"""Fixtures of the probes: a virtual clock, and a runtime that uses it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

import fibers as fb
from fibers.app.shutdown import dispose_bounded
from fibers.testing import TestClock


@pytest.fixture
def clock() -> TestClock:
    """Time that only moves when the test moves it."""
    return TestClock()


@pytest.fixture
async def rt(clock: TestClock) -> AsyncIterator[fb.Runtime]:
    """A runtime on the virtual clock, disposed after the test."""
    runtime = fb.Runtime(clock=clock)
    yield runtime
    # Bounded in real time: a test that failed may have left a fiber in a masked virtual sleep.
    assert await dispose_bounded(runtime), fb.dump()
