"""Reports of others: conversations that a stop had made unusable."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import fibers as fb
from fibers import AbortSignal
from streamengine.model import Row, ToolPart
from tests.streamengine.engine.kit import WHOLE, WORKSPACE, Hand, calls, echo

from .conftest import MakeRoom
from .kit import Room
from .test_steering import Slow

pytestmark = pytest.mark.lifecycle

End = Callable[[Room], Awaitable[object]]


async def stopped(r: Room) -> None:
    await r.desk.stop("user")


async def shut_down(r: Room) -> None:
    await r.desk.stop("system")


async def closed(r: Room) -> None:
    await r.do(r.turns[0].close("died"))


def unanswered(rows: tuple[Row, ...]) -> list[str]:
    return [
        part.tool_call_id
        for row in rows
        for part in row.parts
        if isinstance(part, ToolPart) and not part.has_output
    ]


@pytest.mark.spec("R06", "R14")
@pytest.mark.parametrize("end", [stopped, shut_down, closed])
async def test_after_a_stop_inside_a_tool_the_next_turn_can_be_asked(
    room: MakeRoom, end: End
) -> None:
    slow = Slow()
    r = room(calls("echo", "slow"), WHOLE, tools=[echo(), slow.hand])
    await r.start()
    await end(r)
    await r.desk.idle()

    assert await r.whole("And now?") == "Hello there"

    given = r.request(1)
    calls_given = [p for row in given.history for p in row.parts if isinstance(p, ToolPart)]
    assert [part.tool_name for part in calls_given] == ["echo", "slow"]
    assert calls_given[1].output == {"success": False, "error": "aborted"}
    assert unanswered(given.history) == []


@pytest.mark.spec("R14")
@pytest.mark.parametrize("how", ["steering", "interrupt"])
async def test_calls_that_are_skipped_have_their_results(room: MakeRoom, how: str) -> None:
    slow = Slow()
    r = room(calls("slow", "echo"), WHOLE, tools=[slow.hand, echo()])
    await r.start()
    if how == "steering":
        await r.steer("Stop that")
    else:
        await r.do(r.loop.interrupt(r.turn_id))
    slow.go.set()
    await r.desk.idle()

    assert unanswered(r.request(1).history) == []
    assert len(r.outputs()) == 2


async def test_a_tool_that_swallows_its_cancellation_does_not_hold_up_a_hard_abort(
    room: MakeRoom,
) -> None:
    let_go = asyncio.Event()

    async def deaf(_given: dict[str, Any], _signal: AbortSignal) -> object:
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue
        return "too late"

    r = room(calls("deaf"), WHOLE, tools=[Hand("deaf", deaf)])
    await r.start()
    aborting = r.rt.run_fork(r.loop.hard_abort(WORKSPACE))
    await r.desk.pass_time(1)

    assert aborting.poll() == fb.Success(True)
    assert r.desk.disk.rows() == []
    let_go.set()
    await r.desk.pass_time(1)
    assert r.desk.disk.rows() == []
