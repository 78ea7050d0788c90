"""What can happen to a turn, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from fibers import Exit, interrupt_of
from streamengine.model import (
    AbortReason,
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

RESUMABLE: Final[frozenset[str | None]] = frozenset({"system", "startup"})
"""Reasons of an interrupt after which a turn goes on in the next process."""
CALLED_OFF: Final = "launch_canceled"
"""The kind of a runner's TurnError: its first stream was called off before it was told of."""
SUSPENDED: Final = "suspended"
"""The kind of a runner's TurnError: the process that ends has stopped it, it stays resumable."""
INVALID: Final = frozenset({"invalid_turn", "no_agent"})
"""Kinds of a runner's TurnError: what the turn was created with can't be run."""


def stop_reason_of(error: BaseException) -> AbortReason:
    """As what a runner that ended with ``error`` stops its stream: a shutdown leaves it to be taken
    up again.
    """
    interrupt = interrupt_of(error)
    match None if interrupt is None else interrupt.reason:
        case "system" | "startup" as reason:
            return reason
        case _:
            return "user"
