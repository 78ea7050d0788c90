"""What the modules of one agent loop share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fibers import Scope
from streamengine import HistoryStore, StreamEngine

from ..events import TurnEvents
from ..subturns import TurnRegistry
from .config import LoopConfig
from .steering import Steering

if TYPE_CHECKING:
    from .turn_run import TurnRun


@dataclass(slots=True)
class Context:
    """What of a conversation its model is no longer shown. Lives as long as the process."""

    omitted: frozenset[str] = field(default_factory=frozenset[str])


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopParts:
    """Of all turns of one loop."""

    engine: StreamEngine
    history: HistoryStore
    events: TurnEvents
    registry: TurnRegistry
    steering: Steering
    config: LoopConfig
    runs: dict[str, TurnRun] = field(default_factory=dict[str, "TurnRun"])
    """The turns that run, roots and children, by id."""
    contexts: dict[str, Context] = field(default_factory=dict[str, Context])

    def context_of(self, session: str) -> Context:
        return self.contexts.setdefault(session, Context())

    def leave(self, session: str) -> None:
        """No turn runs there: what says nothing is not kept for every session there ever was."""
        context = self.contexts.get(session)
        if context is not None and not context.omitted:
            del self.contexts[session]


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What one turn runs on."""

    engine: StreamEngine
    history: HistoryStore
    events: TurnEvents
    registry: TurnRegistry
    steering: Steering
    config: LoopConfig
    context: Context
    scope: Scope
    """Holds the background work of the turn."""
    correlation: Mapping[str, Any]
    """Of its streams."""
    tools_correlation: Mapping[str, Any]
    """Of the root: in whose name tools work."""
