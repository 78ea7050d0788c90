"""A runtime on virtual time, and desks in a directory of the test's own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import pytest

import fibers as fb
from fibers import Scope
from fibers.testing import TestClock
from streamengine import EngineOptions, Tool
from streamengine.history.store import IoMode

from .kit import Answer, Desk, Wedged, make_desk, unhandled_failures


class MakeDesk(Protocol):
    """What the fixture `desk` is."""

    def __call__(
        self,
        *answers: Answer,
        scope: Scope | None = None,
        io: IoMode = "inline",
        tools: Sequence[Tool] = (),
        options: EngineOptions | None = None,
    ) -> Desk: ...


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

    def make(*answers: Answer, **options: Any) -> Desk:
        wedged.extend(answer for answer in answers if isinstance(answer, Wedged))
        return make_desk(rt, clock, tmp_path, *answers, **options)

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
