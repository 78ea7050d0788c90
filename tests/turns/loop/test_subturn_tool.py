"""The tool by which a model starts a turn below its own."""

from __future__ import annotations

import pytest

import fibers as fb
from fibers import AbortSignal
from streamengine import Tool, ToolSpec, ToolUse
from tests.streamengine.engine.kit import FINISH, WHOLE, Line, calls, says, text
from turns.subturns import SubturnLimits
from turns.subturns.tool import SubturnTool

from .conftest import MakeRoom
from .kit import Room, fails

pytestmark = pytest.mark.lifecycle


class Later(Tool):
    """A subturn tool of a room that is made after its tools are."""

    def __init__(self) -> None:
        self.room: Room | None = None

    @property
    def spec(self) -> ToolSpec:
        return SubturnTool.spec

    async def run(self, call: ToolUse, signal: AbortSignal) -> object:
        room = self.room
        assert room is not None
        return await SubturnTool(lambda: room.loop.subturns, room.app_scope).run(call, signal)


ASKED = {"prompt": "Look it up", "agent": "helper"}


async def test_the_call_gives_the_childs_answer(room: MakeRoom) -> None:
    tool = Later()
    r = tool.room = room(calls("subturn", subturn=ASKED), WHOLE, children=[WHOLE], tools=[tool])

    await r.whole()

    assert r.outputs() == ["Hello there"]
    assert r.child_provider.calls[0].request.text == "Look it up"


async def test_a_call_that_names_no_agent_means_one_like_the_parents(room: MakeRoom) -> None:
    tool = Later()
    asked = {"prompt": "Look it up"}
    r = tool.room = room(calls("subturn", subturn=asked), WHOLE, children=[WHOLE], tools=[tool])

    await r.whole()

    assert r.outputs() == ["Hello there"]


async def test_a_child_that_fails_is_told_to_the_model(room: MakeRoom) -> None:
    tool = Later()
    r = tool.room = room(
        calls("subturn", subturn=ASKED), WHOLE, children=[fails("no key")], tools=[tool]
    )

    await r.whole()

    assert r.outputs()[0]["success"] is False
    assert "SubTurn failed: stream: no key" in r.outputs()[0]["error"]


async def test_an_input_that_is_no_request_is_told_to_the_model(room: MakeRoom) -> None:
    tool = Later()
    r = tool.room = room(calls("subturn", subturn={"prompt": 7}), WHOLE, tools=[tool])

    await r.whole()

    assert "invalid_subturn" in r.outputs()[0]["error"]


@pytest.mark.spec("U12")
async def test_in_the_background_the_turn_hears_the_result_as_a_message(room: MakeRoom) -> None:
    tool, line = Later(), Line()
    asked = {**ASKED, "background": True}
    r = tool.room = room(
        calls("subturn", subturn=asked), line, children=[says(text("Found"), FINISH)], tools=[tool]
    )
    fiber = await r.start()
    line.give(text("Meanwhile."), FINISH)
    line.end()
    await r.desk.idle()

    assert fiber.poll() == fb.Success(None)
    assert r.outputs()[0]["started"] is True
    assert r.content.endswith("[SubTurn Result] Found")


async def test_in_the_background_what_can_t_begin_is_told_to_the_model_at_once(
    room: MakeRoom,
) -> None:
    tool = Later()
    asked = {"prompt": "Look it up", "agent": "nobody", "background": True}
    r = tool.room = room(calls("subturn", subturn=asked), WHOLE, tools=[tool])

    await r.whole()

    assert r.outputs()[0]["success"] is False
    assert "there is no agent 'nobody'" in r.outputs()[0]["error"]


@pytest.mark.spec("U10", "U18")
async def test_in_the_background_what_finds_no_slot_is_told_as_a_message(room: MakeRoom) -> None:
    """It was told that it would hear of it."""
    tool, line = Later(), Line()
    asked = {**ASKED, "background": True}
    r = tool.room = room(
        calls("subturn", subturn=asked),
        calls("subturn", subturn=asked),
        line,
        children=[Line()],
        tools=[tool],
        limits=SubturnLimits(max_children=1),
    )
    fiber = await r.start()

    await r.desk.pass_time(30)
    line.give(text("Meanwhile."), FINISH)
    line.end()
    await r.desk.idle()

    assert fiber.poll() == fb.Success(None)
    assert [output["started"] for output in r.outputs()] == [True, True]
    assert "[SubTurn Result] SubTurn failed: concurrency_timeout: 1 subturns run" in r.content
