"""What can happen to a turn, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from fibers import Exit
from streamengine.model import (
    AutoRetryAbandonedEvent,
    ErrorEvent,
    StreamAbortEvent,
    StreamEndEvent,
    StreamStartEvent,
)

from ..model.errors import TurnError

StreamEvent: TypeAlias = StreamStartEvent | StreamEndEvent | StreamAbortEvent | ErrorEvent


@dataclass(frozen=True, slots=True)
class RunnerEnded:
    """Who started the streams of a turn is done."""

    exit: Exit[None, TurnError]


@dataclass(frozen=True, slots=True)
class LookAgain:
    """Something that an end waited for has changed."""


Happening: TypeAlias = StreamEvent | AutoRetryAbandonedEvent | RunnerEnded | LookAgain

CALLED_OFF: Final = "launch_canceled"
"""The kind of a runner's TurnError: its first stream was called off before it was told of."""
SUSPENDED: Final = "suspended"
"""The kind of a runner's TurnError: the process that ends has stopped it, it stays resumable."""
INVALID: Final = frozenset({"invalid_turn", "no_agent"})
"""Kinds of a runner's TurnError: what the turn was created with can't be run."""
