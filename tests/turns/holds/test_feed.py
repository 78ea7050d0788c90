"""What the engine says of a turn's streams, as the turn holds it."""

from __future__ import annotations

import pytest

from streamengine.model import ReasoningDelta
from tests.streamengine.engine.kit import FINISH, Line, calls, echo, make_desk, says, text, tokens
from turns.feed import follow

from .kit import Bench

pytestmark = pytest.mark.lifecycle


async def test_a_turn_holds_what_its_streams_say(bench: Bench) -> None:
    line = Line()
    d = make_desk(
        bench.rt,
        bench.clock,
        bench.directory / "history",
        calls("echo", "nothing"),
        line,
        scope=bench.scope,
        tools=[echo()],
    )
    turn = bench.open()
    await bench.run(follow(turn, d.engine.events))
    w = bench.workspace

    handle = await d.start(correlation={"turnId": "t1"})
    line.give(ReasoningDelta(text="hm"), text("Hel"), tokens(7), text("lo"))
    await bench.idle()

    shown = [(block.kind, block.text, block.is_streaming) for block in w.message.blocks]
    assert shown == [("reasoning", "hm", False), ("text", "Hello", True)]
    assert w.message.message_id == handle.message_id
    states = {r.tool_name: r.state for r in w.records._records.values()}
    assert states == {"echo": "completed", "nothing": "failed"}
    assert w.readings.tokens == 7
    line.give(FINISH)
    line.end()
    await d.done(handle)
    assert not w.message.is_streaming


@pytest.mark.spec("O1")
async def test_a_turn_that_ends_before_its_stream_holds_no_more_of_it(bench: Bench) -> None:
    line = Line()
    d = make_desk(bench.rt, bench.clock, bench.directory / "history", line, scope=bench.scope)
    turn = bench.open()
    await bench.run(follow(turn, d.engine.events))
    handle = await d.start(correlation={"turnId": "t1"})
    line.give(text("Hel"), tokens(7))
    await bench.idle()

    await bench.close(turn, "stalled")
    line.give(text("lo"), tokens(9))
    await bench.idle()

    assert [(b.text, b.is_streaming) for b in bench.workspace.message.blocks] == [("Hel", False)]
    assert await bench.held() == set()
    line.give(FINISH)
    line.end()
    await d.done(handle)


async def test_streams_of_others_are_none_of_the_turn_s(bench: Bench) -> None:
    d = make_desk(
        bench.rt,
        bench.clock,
        bench.directory / "history",
        says(text("x"), FINISH),
        scope=bench.scope,
    )
    turn = bench.open()
    await bench.run(follow(turn, d.engine.events))

    for correlation in (None, {"turnId": "t2"}, {"other": "t1"}):
        await d.whole(correlation=correlation)

    assert bench.workspace.message.message_id is None
