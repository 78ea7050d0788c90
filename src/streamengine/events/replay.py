"""Telling again: the events of a live stream for who comes late, and how an ended one ended.

A cursor says how far a reader has come: in which message, and up to which of its timestamps, which
are strictly increasing. So what it has is what isn't later, and the rest is what it gets.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, cast, get_args

from ..model.errors import ErrorType
from ..model.events import (
    AutoRetryScheduledEvent,
    ErrorEvent,
    Event,
    ReasoningDeltaEvent,
    ReasoningEndEvent,
    StreamAbortEvent,
    StreamDeltaEvent,
    StreamEndEvent,
    StreamStartEvent,
    TerminalEvent,
    ToolCallEndEvent,
    ToolCallExecutionStartEvent,
    ToolCallStartEvent,
)
from ..model.ids import is_valid_id
from ..model.parts import MessagePart, ReasoningPart, TextPart, ToolPart
from ..model.request import AbortReason
from ..model.rows import AssistantRow
from ..model.snapshot import LiveSnapshot

_END: Final = "end"
_ERROR_TYPES: Final = frozenset[str](get_args(ErrorType))
_MAX_DIGITS: Final = 16


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far a reader has come in a message: ``a_1:1700000000000``, or ``a_1:end``."""

    message_id: str
    timestamp_ms: int | None
    """Milliseconds since the Unix epoch, of the last event that it has; None: it has the end."""

    def __str__(self) -> str:
        return f"{self.message_id}:{_END if self.timestamp_ms is None else self.timestamp_ms}"

    @classmethod
    def parse(cls, text: str) -> Cursor | None:
        """The cursor that a reader sent; None where it is none: it is told everything then."""
        message_id, colon, place = text.partition(":")
        if not colon or not is_valid_id(message_id):
            return None
        if place == _END:
            return cls(message_id, None)
        if not (place.isascii() and place.isdecimal()) or len(place) > _MAX_DIGITS:
            return None
        return cls(message_id, int(place))


def cursor_of(event: Event) -> Cursor | None:
    """Where a reader stands after an event. None: where it stood before. That is so for a start
    that is told again: it would lead a reader back.
    """
    if isinstance(event, TerminalEvent):
        return Cursor(event.message_id, None)
    if isinstance(event, StreamStartEvent):
        return None if event.replay else Cursor(event.message_id, 0)
    timestamp_ms = timestamp_of(event)
    return None if timestamp_ms is None else Cursor(event.message_id, timestamp_ms)


def timestamp_of(event: Event) -> int | None:
    """An event's place in its message, where it has one."""
    timestamp_ms: int | None = getattr(event, "timestamp_ms", None)
    return timestamp_ms


def replay(snapshot: LiveSnapshot | None, after_timestamp_ms: int | None = None) -> list[Event]:
    """The events of a live stream up to now, told again (``replay`` is true on each).

        events = replay(engine.snapshot("w1"), cursor.timestamp_ms)

    ``after_timestamp_ms``: only what is later, as a reader with that cursor has the rest. A tool
    call, its execution and its result each count by their own time; a result without one is told
    in a full replay only. A full replay also has the latest usage. The stream-start comes first in
    both. Nothing at all for a stream that doesn't run (W13).
    """
    if snapshot is None:
        return []
    told = _Teller(snapshot, after_timestamp_ms)
    events: list[Event] = [told.start(), *told.parts()]
    if after_timestamp_ms is None and snapshot.usage is not None:
        events.append(snapshot.usage.model_copy(update={"replay": True}))
    return events


def replayed_to_ms(snapshot: LiveSnapshot) -> int:
    """The timestamp up to which a reader has everything after the replay. A live event that isn't
    later is one that it has already: a tool's result is recorded, then written, then told (E20).

    From the message alone: a reader whose cursor is ahead of it would hear nothing any more.
    """
    return max((0, *_times(snapshot.parts)))


def _times(parts: tuple[MessagePart, ...]) -> Iterator[int]:
    for part in parts:
        if isinstance(part, TextPart | ReasoningPart):
            yield part.timestamp_ms or 0
        elif isinstance(part, ToolPart):
            yield part.timestamp_ms or 0
            yield part.execution_started_at_ms or 0
            yield part.completed_at_ms or 0


class _Teller:
    def __init__(self, snapshot: LiveSnapshot, after_ms: int | None) -> None:
        self._snapshot = snapshot
        self._after_ms = after_ms
        self._about: dict[str, Any] = {
            "workspace_id": snapshot.workspace_id,
            "message_id": snapshot.message_id,
            "correlation": snapshot.correlation,
            "prompt_id": snapshot.prompt_id,
            "replay": True,
        }
        self._calls: dict[str, ToolPart] = {}

    def start(self) -> StreamStartEvent:
        snapshot = self._snapshot
        return StreamStartEvent(
            model=snapshot.model,
            history_sequence=snapshot.history_sequence,
            start_time_ms=snapshot.start_time_ms,
            mode=snapshot.request.mode,
            agent_id=snapshot.request.agent_id,
            thinking_level=snapshot.request.thinking_level,
            **self._about,
        )

    def parts(self) -> Iterator[Event]:
        reasons = False
        for part in self._snapshot.parts:
            if isinstance(part, ReasoningPart):
                reasons = True
                # Without text and signature it only carries metadata, and had no event.
                if (part.text or part.signature is not None) and self._is_news(part.timestamp_ms):
                    yield self._reasoning(part)
                continue
            if reasons and self._is_news(getattr(part, "timestamp_ms", None)):
                yield ReasoningEndEvent(**self._about)
            reasons = False
            if isinstance(part, TextPart):
                if self._is_news(part.timestamp_ms):
                    yield StreamDeltaEvent(
                        delta=part.text, timestamp_ms=part.timestamp_ms or 0, **self._about
                    )
            elif isinstance(part, ToolPart):
                yield from self._tool(part)

    def _is_news(self, timestamp_ms: int | None) -> bool:
        return self._after_ms is None or (
            timestamp_ms is not None and timestamp_ms > self._after_ms
        )

    def _reasoning(self, part: ReasoningPart) -> ReasoningDeltaEvent:
        return ReasoningDeltaEvent(
            delta=part.text,
            timestamp_ms=part.timestamp_ms or 0,
            signature=part.signature,
            **self._about,
        )

    def _tool(self, part: ToolPart) -> Iterator[Event]:
        """What this record of a call adds to the one before."""
        before = self._calls.get(part.tool_call_id)
        self._calls[part.tool_call_id] = part
        about: dict[str, Any] = {
            **self._about,
            "tool_call_id": part.tool_call_id,
            "tool_name": part.tool_name,
        }
        # A result without a call (E21) had no start to tell of.
        if before is None and not _is_orphan(part) and self._is_news(part.timestamp_ms):
            yield ToolCallStartEvent(args=part.input, timestamp_ms=part.timestamp_ms or 0, **about)
        began_ms = part.execution_started_at_ms
        if (
            began_ms is not None
            and (before is None or before.execution_started_at_ms is None)
            and self._is_news(began_ms)
        ):
            yield ToolCallExecutionStartEvent(timestamp_ms=began_ms, **about)
        if part.has_output and not (before is not None and before.has_output):
            ended_ms = part.completed_at_ms
            if self._is_news(ended_ms):
                yield ToolCallEndEvent(
                    result=part.output,
                    timestamp_ms=ended_ms or part.timestamp_ms or 0,
                    provider_executed=part.provider_executed,
                    **about,
                )


def _is_orphan(part: ToolPart) -> bool:
    return part.has_output and part.input is None and part.timestamp_ms == part.completed_at_ms


def retold(scheduled: AutoRetryScheduledEvent, now_ms: int) -> AutoRetryScheduledEvent:
    """That a try is waited for, told again: its delay is what is left of it at ``now_ms``
    (milliseconds since the Unix epoch), never more than it was.
    """
    due_ms = scheduled.scheduled_at_ms + scheduled.delay_ms
    left_ms = min(max(due_ms - now_ms, 0), scheduled.delay_ms)
    return scheduled.model_copy(update={"replay": True, "delay_ms": left_ms})


def terminal_of(row: AssistantRow, workspace_id: str) -> TerminalEvent:
    """How the message of a stored row ended, for who missed it: with all that was said."""
    metadata = row.metadata
    about: dict[str, Any] = {
        "workspace_id": workspace_id,
        "message_id": row.id,
        "correlation": metadata.correlation,
        "replay": True,
        "parts": row.parts,
    }
    if metadata.error is not None:
        return ErrorEvent(
            error=metadata.error, error_type=_error_type(metadata.error_type), **about
        )
    if row.is_partial:
        return StreamAbortEvent(
            abort_reason=_abort_reason(metadata.abort_reason), metadata=metadata, **about
        )
    return StreamEndEvent(metadata=metadata, **about)


def _error_type(stored: str | None) -> ErrorType:
    # A newer version may have more of them.
    return cast("ErrorType", stored) if stored in _ERROR_TYPES else "unknown"


def _abort_reason(stored: str | None) -> AbortReason:
    # None: a crash, or an error whose partial was committed. No person asked for it.
    if stored == "user":
        return "user"
    return "startup" if stored == "startup" else "system"
