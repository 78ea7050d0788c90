"""Rooms: an agent loop on virtual time, closed after the test, with nothing left of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import pytest

import fibers as fb
from fibers.app import AppScope
from fibers.testing import TestClock
from streamengine import EngineOptions, Tool
from tests.streamengine.engine.kit import Answer, Wedged, make_desk, unhandled_failures

from .kit import Room


class MakeRoom(Protocol):
    """What the fixture `room` is; see Room for the options."""

    def __call__(
        self,
        *answers: Answer,
        children: Sequence[Answer] = (),
        tools: Sequence[Tool] = (),
        **options: Any,
    ) -> Room: ...


@pytest.fixture
def clock() -> TestClock:
    """Time that only moves when the test moves it."""
    return TestClock()


@pytest.fixture
async def rt(clock: TestClock) -> AsyncIterator[fb.Runtime]:
    """A runtime on the virtual clock, disposed after the test."""
    runtime = fb.Runtime(clock=clock)
    await runtime.run(clock.adjust(0))
    yield runtime
    await runtime.dispose()


@pytest.fixture
async def room(rt: fb.Runtime, clock: TestClock, tmp_path: Path) -> AsyncIterator[MakeRoom]:
    """Makes a loop whose model gives these answers. Tools run one after the other."""
    made: list[Room] = []
    wedged: list[Wedged] = []

    def make(
        *answers: Answer,
        children: Sequence[Answer] = (),
        tools: Sequence[Tool] = (),
        **options: Any,
    ) -> Room:
        scope = AppScope()
        wedged.extend(each for each in (*answers, *children) if isinstance(each, Wedged))
        desk = make_desk(
            rt, clock, tmp_path, *answers, scope=scope, options=EngineOptions(tool_concurrency=1)
        )
        made.append(Room(desk, scope, *children, tools=tools, **options))
        return made[-1]

    yield make
    for provider in wedged:
        provider.let_go.set()
    for each in made:
        closes = [turn.close("torn-down") for turn in each.turns]
        closes.append(each.app_scope.close(reason="system"))
        closing = [rt.run_fork(close) for close in closes]
        await each.desk.pass_time(10)  # a provider that hears nothing is given up then
        assert all(fiber.poll() is not None for fiber in closing)
        loop = each.loop
        assert (loop._roots, loop._parts.runs, loop._stops) == ({}, {}, set())
        assert loop.registry.children == ()
        assert each.desk.is_idle


@pytest.fixture(autouse=True)
def nothing_unhandled() -> Iterator[None]:
    """No test leaves a failure that nobody handles."""
    with unhandled_failures() as seen:
        yield
    assert seen == []
