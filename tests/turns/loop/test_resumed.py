"""What an answer is resumed with whose turn goes on without its agent."""

from __future__ import annotations

from typing import Any

import pytest

from fibers import AbortSignal, Scope
from streamengine import StreamRequest, Tool, ToolSpec, ToolUse
from streamengine.model import Finish, TextPart, parse_row
from turns.loop import LoopConfig
from turns.loop.resumed import for_resumed
from turns.subturns import Agent, Subturns
from turns.subturns.tool import SubturnTool

FINISH = Finish(finish_reason="stop")


def subturn_tool() -> Tool:
    def none() -> Subturns:
        raise AssertionError("nothing is called here")

    return SubturnTool(none, Scope())


class Plain:
    spec = ToolSpec(name="plain")

    async def run(self, call: ToolUse, signal: AbortSignal) -> object:
        raise AssertionError("nothing is called here")


def steps(config: LoopConfig, **agent: Any) -> Any:
    return for_resumed(Agent(name="main", **agent), config).steps


def test_the_tools_that_need_no_agent_are_there() -> None:
    agent = Agent(name="main", tools=(Plain(), subturn_tool()))

    options = for_resumed(agent, LoopConfig())

    assert options.tools is not None
    assert [tool.spec.name for tool in options.tools] == ["plain"]


def test_old_rows_are_left_out_where_the_window_is_small() -> None:
    row = parse_row(
        {"role": "user", "id": "u1", "parts": [{"type": "text", "text": "word " * 100}]}
    )
    request = StreamRequest(text="Hi", history=(row,))

    given = steps(LoopConfig(), context_window_tokens=100).before_call(request)

    assert given.history == ()
    assert "1 earlier messages omitted" in given.system


def test_it_ends_at_the_bound_of_calls_with_a_word_on_why() -> None:
    config = LoopConfig(max_iterations=2)
    s = steps(config)
    request = StreamRequest(text="Hi")

    s.before_call(request)
    assert s.after_tools([]) is None
    s.before_call(request)

    assert s.after_tools([]) == config.tool_limit_text


@pytest.mark.parametrize(("said", "empty"), [("Done.", False), (" ", True)])
def test_a_model_that_had_nothing_to_say_is_given_a_word(said: str, empty: bool) -> None:
    config = LoopConfig()

    added = steps(config).at_end(FINISH, [TextPart(text=said)])

    assert added == (config.empty_text if empty else "")
