"""The gate: every tool call of a turn passes here: it is run, skipped, or put in the background."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, TypedDict, final

from fibers import AbortSignal, Effect
from streamengine import Tool, ToolSpec, ToolUse
from streamengine.model.tool_output import failure

from ..events import ToolEndEvent, ToolSkippedEvent, ToolStartEvent, TurnEvents
from ..subturns import CURRENT_TURN, TurnState
from .background import Background, Jobs

SKIPPED_FOR_STEERING: Final = "queued user steering message"
SKIPPED_FOR_INTERRUPT: Final = "the user has interrupted: no further tools"


class _AboutCall(TypedDict):
    """What every event of a call says."""

    workspace_id: str
    turn_id: str
    tool_call_id: str
    tool_name: str


@final
class GatedTool(Tool):
    """A tool of a turn as its stream sees it.

    What is skipped has a result too, one that reads as an error: a call without one would spoil
    every later request (P22).
    """

    def __init__(self, tool: Tool, gate: Gate) -> None:
        self._tool = tool
        self._gate = gate

    @property
    def spec(self) -> ToolSpec:
        return self._tool.spec

    async def run(self, call: ToolUse, signal: AbortSignal) -> object:
        return await self._gate.run(self._tool, call, signal)


@final
class Gate:
    """Of one turn. ``skips``: why no call is begun any more, where that is so.

    Tools work on behalf of the root's workspace, also those of a subturn, whose conversation is
    nobody's folder; ``correlation`` is the root's.
    """

    def __init__(
        self,
        state: TurnState,
        *,
        events: TurnEvents,
        correlation: Mapping[str, Any],
        jobs: Jobs,
        skips: Callable[[], str | None],
    ) -> None:
        self._state = state
        self._events = events
        self._correlation = correlation
        self._jobs = jobs
        self._skips = skips

    def tools(self) -> tuple[Tool, ...]:
        """The tools of the turn's agent, as its streams get them."""
        agent = self._state.agent
        return () if agent is None else tuple(GatedTool(tool, self) for tool in agent.tools)

    async def run(self, tool: Tool, call: ToolUse, signal: AbortSignal) -> object:
        about = _AboutCall(
            workspace_id=self._state.session,
            turn_id=self._state.turn_id,
            tool_call_id=call.tool_call_id,
            tool_name=tool.spec.name,
        )
        reason = self._skips()
        if reason is not None:
            self._events.emit(ToolSkippedEvent(**about, reason=reason))
            return failure(reason)
        use = replace(call, workspace_id=self._state.session, correlation=self._correlation)
        self._events.emit(ToolStartEvent(**about))
        is_error = True
        try:
            if isinstance(tool, Background):
                work: Effect[object] = self._jobs.start(tool, use)
            else:
                work = Effect.promise(lambda: tool.run(use, signal))
            result = await work.provide_service(CURRENT_TURN, self._state)
            is_error = False
        finally:
            self._events.emit(ToolEndEvent(**about, is_error=is_error))
        return result
