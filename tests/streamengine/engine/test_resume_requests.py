"""Answering the last message again: no second row of it, and nothing done twice."""

from __future__ import annotations

from typing import Any

import pytest

import fibers as fb
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


@pytest.mark.spec("P20")
async def test_a_failed_answer_is_tried_again_without_another_user_row(desk: MakeDesk) -> None:
    d = desk(CUT, CUT, CUT, WHOLE)
    await d.whole("Ask")

    assert [await resumed(d) for _ in range(3)] == ["failed", "failed", "completed"]

    assert d.disk.roles().count("user") == 1
    assert d.disk.answers()[-1] == "Hello there"
    assert [call.request.text for call in d.provider.calls] == ["Ask"] * 4
    assert all(call.request.history == () for call in d.provider.calls)


async def test_it_is_asked_as_it_was(desk: MakeDesk) -> None:
    """After a restart too: the row says how."""
    settings: dict[str, Any] = {
        "model": "m", "fallback_models": ["n"], "prompt_id": "p", "mode": "plan",
        "agent_id": "a", "thinking_level": "high", "system": "Be brief.", "temperature": 0.5,
        "max_output_tokens": 9,
    }  # fmt: skip
    d = desk(CUT, WHOLE)
    await d.whole(correlation={"job": 1}, client_message_id="c1", **settings)

    await resumed(d)

    first, second = (call.request for call in d.provider.calls)
    assert second == first
    assert second.prompt_id == "p"


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


async def test_another_request_keeps_the_text_of_the_row(desk: MakeDesk) -> None:
    d = desk(CUT, WHOLE)
    await d.whole("Ask", model="m")

    await resumed(d, StreamRequest(text="something else", model="other"))

    asked = d.provider.calls[-1].request
    assert (asked.text, asked.model) == ("Ask", "other")


async def test_an_answer_that_was_stopped_before_its_first_word_can_be_resumed(
    desk: MakeDesk,
) -> None:
    d = desk(Line(), WHOLE)
    await d.start()
    await d.idle()
    await d.stop("system")

    assert await resumed(d) == "completed"
    assert d.disk.roles() == ["user", "assistant"]


@pytest.mark.parametrize("when", ["nothing was asked", "it is answered", "it is being answered"])
async def test_there_may_be_nothing_to_resume(desk: MakeDesk, when: str) -> None:
    d = desk(Line() if when == "it is being answered" else WHOLE)
    if when == "it is answered":
        await d.whole()
    elif when == "it is being answered":
        await d.start()
        await d.idle()

    with pytest.raises(SendError) as caught:
        await d.rt.run(resuming(d))

    assert caught.value.kind == "nothing_to_resume"
    await d.stop()


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


async def test_two_resumptions_at_once_are_one_answer(desk: MakeDesk) -> None:
    d = desk(CUT, Line())
    await d.whole()

    fibers = [d.rt.run_fork(resuming(d)) for _ in range(2)]
    await d.idle()
    exits = [fiber.poll() for fiber in fibers]

    assert [isinstance(exit_, fb.Success) for exit_ in exits] == [True, False]
    await d.stop()


async def test_an_invalid_workspace_is_refused(desk: MakeDesk) -> None:
    d = desk(WHOLE)

    with pytest.raises(SendError) as caught:
        await d.rt.run(d.engine.resume_stream("../up"))

    assert caught.value.kind == "invalid_id"
