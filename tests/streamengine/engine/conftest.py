"""A runtime on virtual time, and desks in a directory of the test's own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

import fibers as fb
from fibers.testing import TestClock

from .kit import Desk, Wedged, make_desk, unhandled_failures

MakeDesk = Callable[..., Desk]


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
async def desk(rt: fb.Runtime, clock: TestClock, tmp_path: Path) -> AsyncIterator[MakeDesk]:
    """Makes an engine with the given answers; see make_desk for the options."""
    wedged: list[Wedged] = []

    def make(*answers: object, **options: object) -> Desk:
        wedged.extend(answer for answer in answers if isinstance(answer, Wedged))
        return make_desk(rt, clock, tmp_path, *answers, **options)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # passed on as they are

    yield make
    # A test that failed before it let them go must not hang as well.
    for provider in wedged:
        provider.let_go.set()


@pytest.fixture(autouse=True)
def nothing_unhandled() -> Iterator[None]:
    """No test of the engine leaves a failure that nobody handles."""
    with unhandled_failures() as seen:
        yield
    assert seen == []
