"""The plainest turn and runner: one stream, and nothing held but a scope."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, final

import fibers as fb
from fibers import Clock, Scope
from streamengine import SendError, StreamEngine, StreamHandle, StreamRequest

from ..model.errors import TurnError
from ..open_turn import BareTurn, OpenTurn, TurnEnd, TurnRunner
from .happenings import CALLED_OFF, SUSPENDED, stop_reason_of

OpenTurnFactory: TypeAlias = Callable[[str, str, Clock, Scope], OpenTurn]
"""Opens a turn: its id, its workspace, the clock, and the scope in which it lives."""


@final
class PlainTurn(BareTurn):
    """A turn that holds what was put into its scope."""

    def __init__(self, turn_id: str, workspace_id: str, clock: Clock, parent: Scope) -> None:
        super().__init__(turn_id, workspace_id, clock, parent.fork_scope())
        self._scope.name = f"turn {turn_id}"
        self._closed: fb.Deferred[None] = fb.Deferred()

    @fb.effect
    async def close(self, end: TurnEnd) -> None:
        if self._end is not None:
            await self._closed
            return
        self._decide(end)
        with fb.uninterruptible():
            await self._scope.close().exit()
            await self._closed.succeed(None)


@final
class PlainRunner(TurnRunner):
    """Runs a turn as one stream of the engine."""

    def __init__(self, engine: StreamEngine) -> None:
        self._engine = engine

    @fb.effect(raises=TurnError)
    async def run(self, turn: OpenTurn, prompt: str, correlation: Mapping[str, Any]) -> None:
        request = StreamRequest(text=prompt, correlation=correlation)
        try:
            handle = await self._engine.start_stream(turn.workspace_id, request)
        except SendError as error:
            raise TurnError("send", str(error)) from error
        completion = await self._waited_for(turn, handle)
        if completion.status == "failed":
            raise TurnError("stream", completion.error or "the stream failed")
        if completion.status == "aborted" and completion.abort_reason != "user":
            raise TurnError(SUSPENDED, f"stopped by the {completion.abort_reason}")
        if completion.status == "aborted":
            raise TurnError(CALLED_OFF, "stopped by a person before it began")

    async def _waited_for(self, turn: OpenTurn, handle: StreamHandle) -> Any:
        """Interrupted, it stops its stream, and waits for that."""
        try:
            return await handle.completion
        except BaseException as error:
            with fb.uninterruptible():
                await self._engine.stop_stream(
                    turn.workspace_id,
                    reason=stop_reason_of(error),
                    message_id=handle.message_id,
                )
            raise
