"""What the manager, the agent loop and the holds know of each other: an open turn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol

from fibers import Clock, Effect, Scope

from .model.errors import TurnError

TurnEnd = Literal["completed", "stalled", "errored", "died", "torn-down", "suspended"]
"""How a turn ends for what it holds. All but "completed" go through the one abort."""


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


class TurnRunner(Protocol):
    """What a running turn does, from its prompt to its last stream. Not how it is settled."""

    def run(
        self, turn: OpenTurn, prompt: str, correlation: Mapping[str, Any]
    ) -> Effect[None, TurnError]:
        """Every stream that it starts carries ``correlation``. It ends when nothing of the turn is
        left to do; a failure is an error of the turn, an interrupt a shutdown or a stop.
        """
        ...
