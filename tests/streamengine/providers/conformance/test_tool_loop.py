"""A tool that the engine runs, over real HTTP: what the second request says of the first step."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from fibers import AbortSignal
from streamengine.model import ToolSpec
from streamengine.tools import ToolUse

from .contestants import OWN_WIRE, over_http
from .hostile_server import Line
from .kit import Desk, a_desk

CALL = "call_1"
ARGUMENTS = {"place": "Bergen"}
PIECES = ['{"place": ', '"Bergen"}']
WEATHER = {"rain": True}
SPOKEN = ("It rains ", "in Bergen.")


class Weather:
    spec = ToolSpec(
        name="weather",
        description="The weather of a place.",
        parameters={"type": "object", "properties": {"place": {"type": "string"}}},
    )

    def __init__(self) -> None:
        self.asked: list[Mapping[str, Any]] = []

    async def run(self, call: ToolUse, signal: AbortSignal) -> object:
        self.asked.append(call.input)
        if not call.input:
            raise ValueError("which place?")
        return WEATHER


# What each API is told of the first step: the call, then its result, in its own form.


def _of_chat(body: Any) -> tuple[list[Any], Any, Any]:
    user, call, result = body["messages"][-3:]
    (called,) = call["tool_calls"]
    assert (user["role"], call["role"], result["role"]) == ("user", "assistant", "tool")
    assert called["id"] == result["tool_call_id"]
    function = called["function"]
    return body["tools"], (function["name"], json.loads(function["arguments"])), result["content"]


def _of_responses(body: Any) -> tuple[list[Any], Any, Any]:
    _user, call, result = body["input"][-3:]
    assert (call["type"], result["type"]) == ("function_call", "function_call_output")
    assert call["call_id"] == result["call_id"]
    return body["tools"], (call["name"], json.loads(call["arguments"])), result["output"]


def _of_anthropic(body: Any) -> tuple[list[Any], Any, Any]:
    _user, call, result = body["messages"][-3:]
    assert (call["role"], result["role"]) == ("assistant", "user")
    called, given = call["content"][-1], result["content"][0]
    assert (called["type"], given["type"]) == ("tool_use", "tool_result")
    assert called["id"] == given["tool_use_id"]
    return body["tools"], (called["name"], called["input"]), given["content"]


READ: dict[str, Callable[[Any], tuple[list[Any], Any, Any]]] = {
    "openai-chat": _of_chat,
    "openai-responses": _of_responses,
    "anthropic": _of_anthropic,
}


async def the_loop(
    name: str, state: Path, pieces: list[str], look: Callable[[Desk, Weather, list[Any]], Any]
) -> None:
    """A question, a call of the tool, the answer; then one more question."""
    async with over_http(name) as contestant:
        steps = [
            contestant.dialect.answer_calling(CALL, "weather", pieces),
            contestant.dialect.answer(*SPOKEN),
            contestant.dialect.answer("Still."),
        ]

        async def plan(line: Line) -> None:
            await line.head()
            await line.say(*steps.pop(0))

        contestant.server.plan = plan
        weather = Weather()
        async with a_desk(contestant.provider, state, tools=[weather]) as desk:
            for text in ("How is it in Bergen?", "And now?"):
                completion = await desk.completion(await desk.send(text))
                assert completion.status == "completed"
            await look(desk, weather, [asked.body for asked in contestant.server.asked])
            await contestant.nothing_left()


@pytest.mark.parametrize("name", OWN_WIRE)
@pytest.mark.spec("BT8", "E22")
async def test_the_second_step_is_asked_with_the_call_and_its_result(
    name: str, tmp_path: Path
) -> None:
    async def look(desk: Desk, weather: Weather, bodies: list[Any]) -> None:
        first, second, third = bodies
        tools, call, result = READ[name](second)
        assert weather.asked == [ARGUMENTS]
        assert tools == first["tools"] == third["tools"]
        assert call == ("weather", ARGUMENTS)
        assert json.loads(result) == WEATHER
        kinds = [event.type for event in desk.events[: _first_end(desk) + 1]]
        assert [kind for kind in kinds if kind != "tool-call-delta"] == [
            "stream-start",
            "tool-call-start",
            "usage-delta",
            "tool-call-execution-start",
            "tool-call-end",
            *("stream-delta",) * len(SPOKEN),
            "usage-delta",
            "stream-end",
        ]
        rows = await desk.rows()
        assert [row["role"] for row in rows] == ["user", "assistant"] * 2
        usage = rows[1]["metadata"]["usage"]
        assert usage["outputTokens"] == 2 * 3
        # Of the row the next question is told the same, and then how it went on.
        said = "input" if "input" in third else "messages"
        assert third[said][: len(second[said])] == second[said]
        assert "".join(SPOKEN) in json.dumps(third[said][len(second[said])])

    await the_loop(name, tmp_path, PIECES, look)


@pytest.mark.parametrize("name", OWN_WIRE)
async def test_a_tool_that_fails_is_told_in_words_and_the_answer_goes_on(
    name: str, tmp_path: Path
) -> None:
    async def look(_desk: Desk, weather: Weather, bodies: list[Any]) -> None:
        _tools, call, result = READ[name](bodies[1])
        assert weather.asked == [{}]
        assert call == ("weather", {})
        assert "which place?" in result

    await the_loop(name, tmp_path, [], look)


def _first_end(desk: Desk) -> int:
    return next(n for n, event in enumerate(desk.events) if event.type == "stream-end")
