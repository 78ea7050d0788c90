"""Phases: where a stream stands, for those who draw a state and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from .model.events import StreamPhase

if TYPE_CHECKING:
    from .events.spine import EventSpine
    from .stream import Stream

TellPhase: TypeAlias = Callable[["Stream", StreamPhase], None]


def phases_told_on(events: EventSpine, *, wanted: bool) -> TellPhase:
    """What tells a phase on ``events``, if it is wanted. Each comes before the event that it goes
    with, so that nothing comes after a terminal event.
    """

    def tell(stream: Stream, phase: StreamPhase) -> None:
        events.emit(stream.lifecycle(phase))

    return tell if wanted else lambda _stream, _phase: None
