"""What the manager, the agent loop and the holds know of each other: an open turn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol, runtime_checkable

from fibers import Clock, Effect, Scope

from .model.errors import TurnError

TurnEnd = Literal[
    "completed", "interrupted", "stalled", "errored", "died", "torn-down", "suspended"
]
"""How a turn ends for what it holds. All but "completed" go through the one abort. "interrupted":
somebody stopped it, or took over. "torn-down": the process goes; the turn may go on in the next.
"""


class OpenTurn(Protocol):
    """One turn that runs. What it holds is a finalizer of its scope, and of nothing else."""

    @property
    def turn_id(self) -> str: ...

    @property
    def workspace_id(self) -> str: ...

    @property
    def scope(self) -> Scope: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def end(self) -> TurnEnd | None:
        """How it ended; None while it is open. The first end decides."""
        ...

    def close(self, end: TurnEnd) -> Effect[None]:
        """Release all that the turn holds. Can be repeated; whoever comes later waits for it."""
        ...


class BareTurn(OpenTurn):
    """What every open turn is: a name in a workspace, a scope, a clock, and one end."""

    def __init__(self, turn_id: str, workspace_id: str, clock: Clock, scope: Scope) -> None:
        """``scope``: its own."""
        self._turn_id = turn_id
        self._workspace_id = workspace_id
        self._clock = clock
        self._scope = scope
        self._end: TurnEnd | None = None

    @property
    def turn_id(self) -> str:
        return self._turn_id

    @property
    def workspace_id(self) -> str:
        return self._workspace_id

    @property
    def scope(self) -> Scope:
        return self._scope

    @property
    def clock(self) -> Clock:
        return self._clock

    @property
    def end(self) -> TurnEnd | None:
        return self._end

    def _decide(self, end: TurnEnd) -> TurnEnd:
        """The end that counts: the first one."""
        if self._end is None:
            self._end = end
        return self._end


@runtime_checkable
class MarksContinuation(Protocol):
    """An open turn that keeps on disk that it began by itself."""

    def mark_continuation(self) -> Effect[None, Exception]:
        """Nobody in person has begun this turn. Durable when it returns."""
        ...


class TurnRunner(Protocol):
    """What a running turn does, from its prompt to its last stream. Not how it is settled."""

    def run(
        self, turn: OpenTurn, prompt: str, correlation: Mapping[str, Any]
    ) -> Effect[None, TurnError]:
        """Every stream that it starts carries ``correlation``. It ends when nothing of the turn is
        left to do; a failure is an error of the turn, an interrupt a shutdown or a stop.
        """
        ...
