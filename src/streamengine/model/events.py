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


class StreamStartEvent(_BaseEvent):
    type: Literal["stream-start"] = "stream-start"
    model: str | None = None
    history_sequence: HistorySequence
    start_time_ms: int = Field(validation_alias="startTime", serialization_alias="startTime")
    """Milliseconds since the Unix epoch."""


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


class ErrorEvent(_BaseEvent):
    """Terminal: the stream failed. `error` is text for a person."""

    type: Literal["error"] = "error"
    error: str
    error_type: ErrorType


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
    | ErrorEvent,
    Field(discriminator="type"),
]

TerminalEvent = StreamEndEvent | StreamAbortEvent | ErrorEvent

_event: TypeAdapter[Event] = TypeAdapter(Event)


def parse_event(fields: Mapping[str, Any]) -> Event:
    """The event that decoded JSON describes. Raises ValueError when it describes none."""
    return _event.validate_python(fields)
