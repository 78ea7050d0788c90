"""Agent turns on the stream engine: handles that settle once, for a cause. And their host."""

from __future__ import annotations

from .handles.aftermath import DisposeWorkspace
from .handles.continuation import ContinuationPending, Continuations, TakesAnswers
from .handles.liveness import Retries
from .handles.offers import AnswersPermissions, Finishes, KeepsUnheard, SpawnsSubturns, Steers
from .handles.options import TurnOptions
from .handles.plain import OpenTurnFactory
from .handles.store import FileTurnStore, LoadedRecords, TurnStore
from .manager import TurnHandle, TurnManager
from .model.cause import Cause
from .model.errors import TurnError
from .model.record import TurnRecord
from .open_turn import BareTurn, MarksContinuation, OpenTurn, TurnEnd, TurnRunner

__all__ = [
    "AnswersPermissions",
    "BareTurn",
    "Cause",
    "ContinuationPending",
    "Continuations",
    "DisposeWorkspace",
    "FileTurnStore",
    "Finishes",
    "KeepsUnheard",
    "LoadedRecords",
    "MarksContinuation",
    "OpenTurn",
    "OpenTurnFactory",
    "Retries",
    "SpawnsSubturns",
    "Steers",
    "TakesAnswers",
    "TurnEnd",
    "TurnError",
    "TurnHandle",
    "TurnManager",
    "TurnOptions",
    "TurnRecord",
    "TurnRunner",
    "TurnStore",
]
