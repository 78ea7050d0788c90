"""Answering the last message again: nothing that was done is done twice."""

from __future__ import annotations

from typing import Any

import pytest

from fibers import Effect
from streamengine import SendError, StreamHandle, StreamRequest
from streamengine.model import ToolCall, ToolPart, UserRow, parse_row

from .conftest import MakeDesk
from .kit import FINISH, WHOLE, WORKSPACE, Desk, Line, echo, says, text

pytestmark = pytest.mark.lifecycle

CUT = says(text("half"))


def resuming(d: Desk, *args: Any, **options: Any) -> Effect[StreamHandle, SendError]:
    return d.engine.resume_stream(WORKSPACE, *args, **options)


async def resumed(d: Desk, *args: Any) -> str:
    return (await d.done(await d.rt.run(resuming(d, *args)))).status


async def test_a_setting_that_nobody_can_read_is_left_out(desk: MakeDesk) -> None:
    row = parse_row(
        {
            "role": "user",
            "id": "u1",
            "parts": [{"type": "text", "text": "Hi"}],
            "metadata": {"request": {"model": 3, "ofNewerVersion": True}},
        }
    )
    assert isinstance(row, UserRow)

    assert StreamRequest.from_row(row) == StreamRequest(text="Hi")


async def test_an_answer_that_was_stopped_before_its_first_word_can_be_resumed(
    desk: MakeDesk,
) -> None:
    d = desk(Line(), WHOLE)
    await d.start()
    await d.idle()
    await d.stop("system")

    assert await resumed(d) == "completed"
    assert d.disk.roles() == ["user", "assistant"]


async def test_a_tool_that_has_run_is_not_run_again(desk: MakeDesk) -> None:
    """The model gets its result; what it had begun to say after it, it says anew."""
    tool = echo()
    line = Line()
    d = desk(
        says(text("I look. "), ToolCall(tool_call_id="c", tool_name="echo"), FINISH),
        line,
        says(text("Found."), FINISH),
        tools=[tool],
    )
    handle = await d.start()
    line.give(text("Fou"))
    line.end()
    assert (await d.done(handle)).status == "failed"

    assert await resumed(d) == "completed"

    assert len(tool.uses) == 1
    so_far = d.provider.calls[-1].request.so_far
    assert [part.type for part in so_far] == ["text", "dynamic-tool"]
    assert isinstance(so_far[1], ToolPart)
    assert so_far[1].has_output
    assert [part["type"] for part in d.parts()] == ["text"]


async def test_the_steps_of_a_resumed_answer_see_what_was_said_before(desk: MakeDesk) -> None:
    call = ToolCall(tool_call_id="c", tool_name="echo")
    line = Line()
    line.end()
    d = desk(says(call, FINISH), line, says(call, FINISH), WHOLE, tools=[echo()])
    await d.whole()

    assert await resumed(d) == "completed"

    assert [len(c.request.so_far) for c in d.provider.calls] == [0, 1, 1, 2]


async def test_the_repeat_of_a_message_gets_the_answer_of_its_resumption(desk: MakeDesk) -> None:
    d = desk(CUT, WHOLE)
    await d.whole(client_message_id="c1")
    handle = await d.rt.run(resuming(d))
    await d.done(handle)

    again = await d.start(client_message_id="c1")

    assert again.message_id == handle.message_id


async def test_an_invalid_workspace_is_refused(desk: MakeDesk) -> None:
    d = desk(WHOLE)

    with pytest.raises(SendError) as caught:
        await d.rt.run(d.engine.resume_stream("../up"))

    assert caught.value.kind == "invalid_id"
