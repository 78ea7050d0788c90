"""Listening: which turn an event of the engine is about. A plain call; judged is later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from streamengine import Event
from streamengine.model import (
    AutoRetryAbandonedEvent,
    ErrorEvent,
    StreamAbortEvent,
    StreamEndEvent,
    StreamStartEvent,
)

from ..model.correlation import correlates, handle_named_by
from .book import Book
from .continuation import Continuations
from .happenings import Happening, StreamEvent
from .liveness import LiveTurn

_OF_STREAMS: Final = (StreamStartEvent, StreamEndEvent, StreamAbortEvent, ErrorEvent)


@final
class Listening:
    """Leads events to turns: by the handle that they name, else to the turn that runs in their
    workspace. ``tell`` takes what happened to a handle.
    """

    def __init__(
        self,
        book: Book,
        *,
        continuations: Continuations,
        active_in: Callable[[str], LiveTurn | None],
        tell: Callable[[str, Happening], None],
    ) -> None:
        self._book = book
        self._continuations = continuations
        self._active_in = active_in
        self._tell = tell

    def hear(self, event: Event) -> None:
        """One event of the engine."""
        if event.replay:
            return
        if isinstance(event, _OF_STREAMS):
            self._note_stream(event)
            named = handle_named_by(event.correlation)
            if named is not None:
                if self._book.find(named) is not None:
                    self._tell(named, event)
                return
        elif not isinstance(event, AutoRetryAbandonedEvent):
            return
        active = self._active_in(event.workspace_id)
        if active is not None:
            self._tell(active.handle_id, event)

    def _note_stream(self, event: StreamEvent) -> None:
        """Which streams of a turn run, and what its runner says of an end, is known at once: what
        is judged later looks at it.
        """
        active = self._active_in(event.workspace_id)
        record = None if active is None else self._book.find(active.handle_id)
        if active is None or record is None:
            return
        is_own = correlates(record, event.workspace_id, event.correlation)
        if isinstance(event, StreamStartEvent):
            if is_own:
                active.streams.add(event.message_id)
                active.last_begun = event.message_id
            return
        active.streams.discard(event.message_id)
        if is_own and self._continuations.is_pending(active.turn_id, event.message_id):
            active.goes_on_after.add(event.message_id)
        elif is_own and self._continuations.is_taken(active.turn_id, event.message_id):
            active.taken = event.message_id
