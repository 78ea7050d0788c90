"""What a manager of turns can be told beside its engine, its store and its scope."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fibers import Effect

from ..model.record import TurnRecord
from ..open_turn import TurnRunner
from .aftermath import DisposeWorkspace
from .continuation import Continuations
from .liveness import Retries
from .plain import OpenTurnFactory, PlainTurn


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnOptions:
    """Of all turns of a manager.

    retries = AutoRetry(engine, history)
    TurnOptions(retries=retries, recovery=retries.recover())
    """

    runner: TurnRunner | None = None
    """Runs the turns; None: each is one stream."""
    open_turn: OpenTurnFactory = PlainTurn
    """Opens what a turn holds, in a scope that ends with the turn."""
    continuations: Continuations | None = None
    """Where the runner says that more of a turn is to come."""
    retries: Retries | None = None
    """What tries failed answers again. A turn that waits for it is alive."""
    recovery: Effect[object, Any] | None = None
    """Run once, between the reading of the records and their reconciliation: what takes up again
    the answers that the last process left (I9, T16)."""
    dispose: DisposeWorkspace | None = None
    """Removes a disposable workspace; None: it stays."""
    on_attention: Callable[[TurnRecord], object] | None = None
    """Told once of each settled turn whose owner did not wait for it."""
