"""Resumed: what an answer gets whose turn goes on after a restart, without the loop that began it.

Its tools were objects of a process that is gone, and so was all that its loop decided between the
calls. What needs no loop is given again; the rest is missing, and the row of the answer says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from streamengine import StartOptions, Steps, StreamRequest
from streamengine.history.partial import is_commit_worthy
from streamengine.model import Finish, MessagePart
from streamengine.model.refused import without_refused

from ..subturns import Agent
from ..subturns.tool import SubturnTool
from .config import LoopConfig
from .context import shown


def for_resumed(agent: Agent, config: LoopConfig) -> StartOptions:
    """The options of such an answer: the tools of its agent but for subturns, which are the loop's,
    and the bounds of a turn.
    """
    tools = tuple(tool for tool in agent.tools if not isinstance(tool, SubturnTool))
    limit_tokens = config.limit_tokens(agent.context_window_tokens)
    return StartOptions(tools=tools, steps=_Bounds(config, limit_tokens))


@final
class _Bounds(Steps):
    """Of one answer. Nobody steers it, so an end is an end."""

    def __init__(self, config: LoopConfig, limit_tokens: int | None) -> None:
        self._config = config
        self._limit_tokens = limit_tokens
        self._calls = 0

    def before_call(self, request: StreamRequest) -> StreamRequest:
        self._calls += 1
        return shown(request, omitted=(), limit_tokens=self._limit_tokens)

    def after_tools(self, said: Sequence[MessagePart]) -> str | None:
        return None if self._calls < self._config.max_iterations else self._config.tool_limit_text

    def at_end(self, finish: Finish | None, said: Sequence[MessagePart]) -> str:
        return "" if is_commit_worthy(without_refused(said)) else self._config.empty_text
