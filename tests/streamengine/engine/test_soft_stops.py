"""A soft stop: it waits for the end of a block, and then it is a stop like every other."""

from __future__ import annotations

import pytest

from fibers.app import AppScope
from streamengine.model import (
    ReasoningDelta,
    ReasoningEnd,
    StreamAbortEvent,
    ToolCall,
    ToolError,
    ToolResult,
)

from .conftest import MakeDesk
from .kit import FINISH, TEXT_END, Given, Line, echo, says, text, tokens

pytestmark = pytest.mark.lifecycle

BOUNDARIES: list[tuple[list[Given], Given]] = [
    ([text("a")], TEXT_END),
    ([ReasoningDelta(text="r"), text("a")], ReasoningEnd()),
    ([text("a")], tokens(1)),
    (
        [text("a"), ToolCall(tool_call_id="c", tool_name="t", provider_executed=True)],
        ToolResult(tool_call_id="c", tool_name="t", output=1),
    ),
    (
        [text("a"), ToolCall(tool_call_id="c", tool_name="t", provider_executed=True)],
        ToolError(tool_call_id="c", tool_name="t", error="no"),
    ),
]


@pytest.mark.spec("E9")
@pytest.mark.parametrize(
    ("before", "boundary"), BOUNDARIES, ids=[boundary.type for _, boundary in BOUNDARIES]
)
async def test_a_soft_stop_takes_effect_at_the_end_of_a_block(
    desk: MakeDesk, before: list[Given], boundary: Given
) -> None:
    """The part that ends the block is told; nothing of the next block is."""
    line = Line()
    d = desk(line)
    handle = await d.start()
    line.give(*before)
    await d.idle()
    await d.stop(soft=True)
    line.give(text("b"), text("c"))
    await d.idle()
    assert d.engine.is_streaming("w1")
    assert "b" in d.tape.said

    line.give(boundary, text("never"), FINISH)
    line.end()

    completion = await d.done(handle)
    assert (completion.status, completion.abort_reason) == ("aborted", "user")
    assert [e.type for e in d.tape.terminals] == ["stream-abort"]
    assert d.tape.said == "abc"
    assert d.is_idle


@pytest.mark.spec("E9")
@pytest.mark.parametrize(
    "part",
    [text("b"), ReasoningDelta(text="r"), ToolCall(tool_call_id="c", tool_name="t")],
    ids=lambda part: part.type,
)
async def test_a_soft_stop_does_not_cut_a_block(desk: MakeDesk, part: Given) -> None:
    line = Line()
    d = desk(line)
    await d.start()
    line.give(text("a"))
    await d.idle()
    await d.stop(soft=True)

    line.give(part)
    await d.idle()

    assert d.tape.terminals == []
    await d.stop()


@pytest.mark.spec("E9")
async def test_an_answer_that_ends_before_the_next_boundary_is_whole(desk: MakeDesk) -> None:
    line = Line()
    d = desk(line)
    handle = await d.start()
    line.give(text("a"))
    await d.idle()
    await d.stop(soft=True)

    line.give(FINISH)
    line.end()

    assert (await d.done(handle)).status == "completed"


@pytest.mark.spec("E9")
async def test_a_soft_stop_keeps_the_next_step_from_beginning(desk: MakeDesk) -> None:
    """The result of the tool that runs is a boundary: it is kept, the model isn't asked again."""
    line = Line()
    d = desk(line, says(text("never"), FINISH), tools=[echo()])
    handle = await d.start()
    line.give(ToolCall(tool_call_id="c", tool_name="echo", input={"x": 1}))
    await d.idle()
    await d.stop(soft=True)

    line.give(FINISH)
    line.end()

    assert (await d.done(handle)).status == "aborted"
    assert len(d.provider.calls) == 1
    assert d.parts()[0]["output"] == {"x": 1}


@pytest.mark.spec("E8", "E5")
async def test_a_close_before_the_boundary_decides_the_reason(desk: MakeDesk) -> None:
    """The soft one was asked for first, but nobody has begun it."""
    app = AppScope()
    line = Line()
    d = desk(line, scope=app)
    handle = await d.start()
    line.give(text("a"))
    await d.idle()
    await d.stop(soft=True, abandon_partial=True)

    await d.rt.run(app.close())

    assert (await d.done(handle)).abort_reason == "system"
    (abort,) = d.tape.terminals
    assert isinstance(abort, StreamAbortEvent)
    assert not abort.abandon_partial
    assert d.disk.answers() == ["a"]


@pytest.mark.spec("E9")
async def test_a_soft_stop_may_abandon_what_was_said(desk: MakeDesk) -> None:
    line = Line()
    d = desk(line)
    handle = await d.start()
    line.give(text("a"))
    await d.idle()
    await d.stop(soft=True, abandon_partial=True)

    line.give(TEXT_END)

    assert (await d.done(handle)).status == "aborted"
    assert d.disk.roles() == ["user"]
