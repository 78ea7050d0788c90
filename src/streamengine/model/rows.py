"""Rows: what `chat.jsonl` has one of a line, and what `partial.json` holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import Field, TypeAdapter

from .base import CamelModel
from .ids import MessageId, WorkspaceId
from .parts import MessagePart
from .usage import Usage

MAX_HISTORY_SEQUENCE: Final = 2**53 - 1
"""The largest sequence number: the largest whole number that every JSON reader keeps exact."""

HistorySequence = Annotated[int, Field(strict=True, ge=0, le=MAX_HISTORY_SEQUENCE)]
"""A row's place in its conversation. `True` and `3.0` are no sequence numbers."""


class RowMetadata(CamelModel):
    """What is known of a row besides what it says.

    Reasons and error types are plain strings here, not the literals that this version writes: a
    row must stay readable when a newer version has one more of them.
    """

    history_sequence: HistorySequence | None = None
    timestamp_ms: int | None = Field(
        default=None, validation_alias="timestamp", serialization_alias="timestamp"
    )
    """When the message began, in milliseconds since the Unix epoch."""
    partial: bool | None = None
    """True while the message isn't, and may never be, complete. Final rows don't carry it."""
    model: str | None = None
    client_message_id: str | None = None
    """The sender's own id of a user message: sent twice, it is stored once."""
    correlation: Mapping[str, Any] | None = None
    request: Mapping[str, Any] | None = None
    """What a user's message asked for besides its text, as fields of a StreamRequest: it can be
    asked again after a restart."""
    tools: tuple[str, ...] | None = None
    """Of a user's message: names of what the model could call to answer it. Tools are objects of a
    process: whoever goes on with the answer has to bring them."""
    missing_tools: tuple[str, ...] | None = None
    """Of an answer that was gone on with: which of the message's tools it had to do without."""
    error: str | None = None
    error_type: str | None = None
    finish_reason: str | None = None
    raw_finish_reason: str | None = None
    abort_reason: str | None = None
    duration_ms: int | None = None
    usage: Usage | None = None
    """Of the whole answer. What was used by an answer without a final row is kept beside the rows
    where no row of it carries this."""
    context_usage: Usage | None = None
    """Of the last step: how much of the model's context the conversation takes."""
    provider_metadata: Mapping[str, Any] | None = None
    step_limit: int | None = None
    """The answer ended because it had taken this many steps, the most it may."""
    compaction_boundary: bool | None = None
    """True on the row from which on the conversation counts; what lies before is sealed."""


class _BaseRow(CamelModel):
    id: MessageId
    parts: tuple[MessagePart, ...] = ()
    metadata: RowMetadata = Field(default_factory=RowMetadata)
    workspace_id: WorkspaceId | None = None

    @property
    def is_partial(self) -> bool:
        """Whether the row is an interrupted message, so that a longer version may replace it."""
        return self.metadata.partial is True


class UserRow(_BaseRow):
    role: Literal["user"] = "user"


class AssistantRow(_BaseRow):
    role: Literal["assistant"] = "assistant"


Row = Annotated[UserRow | AssistantRow, Field(discriminator="role")]

_row: TypeAdapter[Row] = TypeAdapter(Row)


def parse_row(fields: Mapping[str, Any]) -> Row:
    """The row that decoded JSON describes. Raises ValueError when it describes none."""
    return _row.validate_python(fields)
