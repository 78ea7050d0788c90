"""Houses: closed after the test, with nothing left in them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest

import fibers as fb
from fibers.app import AppScope
from fibers.testing import TestClock
from streamengine import EngineOptions, Tool
from tests.streamengine.engine.kit import Answer, make_desk
from turns import TurnOptions
from turns.loop import LoopConfig
from turns.turn import OpenTurns

from .kit import House, MakeHouse


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[MakeHouse]:
    """Makes a house on virtual time, closed after the test with nothing left in it."""
    clock = TestClock()
    rt = fb.Runtime(clock=clock)
    await rt.run(clock.adjust(0))
    made: list[House] = []

    def make(
        *answers: Answer,
        tools: Callable[[OpenTurns], Sequence[Tool]] = lambda _open: (),
        children: Sequence[Answer] = (),
        options: TurnOptions | None = None,
        config: LoopConfig | None = None,
    ) -> House:
        desk = make_desk(
            rt,
            clock,
            tmp_path,
            *answers,
            scope=AppScope(),
            options=EngineOptions(tool_concurrency=1),
        )
        made.append(
            House(desk, tmp_path, tools=tools, children=children, options=options, config=config)
        )
        return made[-1]

    yield make
    for each in made:
        closing = rt.run_fork(each.scope.close(reason="system"))
        await each.desk.pass_time(10)
        assert closing.poll() is not None
        assert each.is_free
        assert each.turns.describe() == {"running": [], "queued": []}
    await rt.dispose()
