"""The end of a turn, and what it is to the turns below."""

from __future__ import annotations

from typing import Any

import fibers as fb
from fibers import Effect, Exit, Fiber

from ..open_turn import OpenTurn
from .registry import TurnRegistry
from .state import TurnState


def finish(state: TurnState, *, hard: bool, registry: TurnRegistry) -> None:
    """End a turn. A plain call, and can be repeated.

    Graceful: those below can see that their parent has ended, and go on. Hard: this turn and all
    below it are interrupted, critical or not. Each has a signal and a fiber of its own, so each is
    told, also one whose own parent has ended in between.
    """
    if not state.end(hard=hard):
        return
    state.cancel()
    for below in registry.below(state):
        if below.end(hard=True):
            below.cancel()


@fb.effect
async def wait_below(state: TurnState, registry: TurnRegistry) -> None:
    """Wait until no turn below runs any more, nor this one, if it is itself below another."""
    while fibers := [child.fiber for child in registry.tree_of(state) if child.fiber is not None]:
        await Fiber.await_all(fibers)


def bind(turn: OpenTurn, state: TurnState, registry: TurnRegistry) -> Effect[None]:
    """Have the turn's scope hold the reference to the turns below: where it ends as completed they
    go on and see that, where it ends otherwise they are interrupted.
    """

    def end(exit_: Exit[Any, Any]) -> None:
        completed = turn.end == "completed" or (turn.end is None and isinstance(exit_, fb.Success))
        finish(state, hard=not completed, registry=registry)

    return turn.scope.add_finalizer(end)
