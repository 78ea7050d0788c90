"""Events: what the engine tells its observers, in process and on the wire.

Every event names its workspace and its message. A registered stream has exactly one of the three
terminal events: stream-end, stream-abort, error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from .base import CamelModel
from .errors import ErrorType
from .ids import MessageId, WorkspaceId
from .parts import MessagePart
from .request import AbortReason
from .rows import HistorySequence, RowMetadata
from .usage import Usage


class _BaseEvent(CamelModel):
    workspace_id: WorkspaceId
    message_id: MessageId
    replay: bool | None = None
    """True on an event told again to somebody who came late; None when it happens now."""
    correlation: Mapping[str, Any] | None = None
    """What the request carried: whoever sent it recognizes its own events by it."""
    prompt_id: str | None = None
    """The request's name of its prompt."""


class StreamStartEvent(_BaseEvent):
    type: Literal["stream-start"] = "stream-start"
    model: str | None = None
    history_sequence: HistorySequence
    start_time_ms: int = Field(validation_alias="startTime", serialization_alias="startTime")
    """Milliseconds since the Unix epoch."""
    mode: str | None = None
    agent_id: str | None = None
    thinking_level: str | None = None


class StreamDeltaEvent(_BaseEvent):
    type: Literal["stream-delta"] = "stream-delta"
    delta: str
    timestamp_ms: int = Field(validation_alias="timestamp", serialization_alias="timestamp")
    """Milliseconds since the Unix epoch; the same as the timestamp of the part it becomes."""
    tokens: int | None = None


class ReasoningDeltaEvent(_BaseEvent):
    type: Literal["reasoning-delta"] = "reasoning-delta"
    delta: str
    timestamp_ms: int = Field(validation_alias="timestamp", serialization_alias="timestamp")
    """Milliseconds since the Unix epoch."""
    tokens: int | None = None
    signature: str | None = None


class ReasoningEndEvent(_BaseEvent):
    type: Literal["reasoning-end"] = "reasoning-end"


class ToolCallStartEvent(_BaseEvent):
    type: Literal["tool-call-start"] = "tool-call-start"
    tool_call_id: str
    tool_name: str
    args: Any = None
    timestamp_ms: int = Field(validation_alias="timestamp", serialization_alias="timestamp")
    """Milliseconds since the Unix epoch."""
    tokens: int | None = None
    execution_started_at_ms: int | None = Field(
        default=None,
        validation_alias="executionStartedAt",
        serialization_alias="executionStartedAt",
    )
    """Milliseconds since the Unix epoch, on the same strictly increasing clock as the parts."""
    parent_tool_call_id: str | None = None


class ToolCallExecutionStartEvent(_BaseEvent):
    type: Literal["tool-call-execution-start"] = "tool-call-execution-start"
    tool_call_id: str
    tool_name: str
    timestamp_ms: int = Field(validation_alias="timestamp", serialization_alias="timestamp")
    """Milliseconds since the Unix epoch."""


class ToolCallDeltaEvent(_BaseEvent):
    type: Literal["tool-call-delta"] = "tool-call-delta"
    tool_call_id: str
    tool_name: str
    delta: Any = None
    timestamp_ms: int = Field(validation_alias="timestamp", serialization_alias="timestamp")
    """Milliseconds since the Unix epoch."""
    tokens: int | None = None


class ToolCallEndEvent(_BaseEvent):
    type: Literal["tool-call-end"] = "tool-call-end"
    tool_call_id: str
    tool_name: str
    result: Any = None
    timestamp_ms: int = Field(validation_alias="timestamp", serialization_alias="timestamp")
    """Milliseconds since the Unix epoch."""
    provider_executed: bool | None = None


class UsageDeltaEvent(_BaseEvent):
    type: Literal["usage-delta"] = "usage-delta"
    usage: Usage
    """Of the step that just ended."""
    cumulative_usage: Usage
    """Of the stream so far, that step included."""
    provider_metadata: Mapping[str, Any] | None = None
    cumulative_provider_metadata: Mapping[str, Any] | None = None


class StreamEndEvent(_BaseEvent):
    """Terminal: the message is complete and its row is durable."""

    type: Literal["stream-end"] = "stream-end"
    metadata: RowMetadata
    parts: tuple[MessagePart, ...]


class StreamAbortEvent(_BaseEvent):
    """Terminal: the stream was stopped. What it had said is kept unless `abandon_partial`."""

    type: Literal["stream-abort"] = "stream-abort"
    abort_reason: AbortReason
    abandon_partial: bool = False
    metadata: RowMetadata | None = None
    parts: tuple[MessagePart, ...] | None = None
    """All that was said; only where it is told again from the history, for who missed some of it.
    """


class ErrorEvent(_BaseEvent):
    """Terminal: the stream failed. `error` is text for a person."""

    type: Literal["error"] = "error"
    error: str
    error_type: ErrorType
    parts: tuple[MessagePart, ...] | None = None
    """As in StreamAbortEvent."""


StreamPhase = Literal["idle", "preparing", "streaming", "completing", "interrupted", "failed"]


class StreamLifecycleEvent(_BaseEvent):
    """Where the stream of a workspace stands, for who only draws a state."""

    type: Literal["stream-lifecycle"] = "stream-lifecycle"
    phase: StreamPhase
    had_any_output: bool


class AutoRetryScheduledEvent(_BaseEvent):
    """A failed answer will be tried again. `message_id` is of the answer that failed."""

    type: Literal["auto-retry-scheduled"] = "auto-retry-scheduled"
    attempt: int
    """Counted from 1."""
    delay_ms: int
    """From then on; of an event that is told again what is left of it."""
    scheduled_at_ms: int = Field(validation_alias="scheduledAt", serialization_alias="scheduledAt")
    """Milliseconds since the Unix epoch."""


class AutoRetryStartingEvent(_BaseEvent):
    type: Literal["auto-retry-starting"] = "auto-retry-starting"
    attempt: int


class AutoRetryAbandonedEvent(_BaseEvent):
    """There will be no further try. `reason`: an error type, or who called it off."""

    type: Literal["auto-retry-abandoned"] = "auto-retry-abandoned"
    reason: str


Event = Annotated[
    StreamStartEvent
    | StreamDeltaEvent
    | ReasoningDeltaEvent
    | ReasoningEndEvent
    | ToolCallStartEvent
    | ToolCallExecutionStartEvent
    | ToolCallDeltaEvent
    | ToolCallEndEvent
    | UsageDeltaEvent
    | StreamEndEvent
    | StreamAbortEvent
    | ErrorEvent
    | StreamLifecycleEvent
    | AutoRetryScheduledEvent
    | AutoRetryStartingEvent
    | AutoRetryAbandonedEvent,
    Field(discriminator="type"),
]

TerminalEvent = StreamEndEvent | StreamAbortEvent | ErrorEvent

_event: TypeAdapter[Event] = TypeAdapter(Event)


def parse_event(fields: Mapping[str, Any]) -> Event:
    """The event that decoded JSON describes. Raises ValueError when it describes none."""
    return _event.validate_python(fields)
