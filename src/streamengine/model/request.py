"""What a stream is asked to do, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import ConfigDict, Field, ValidationError, model_validator

from .base import CamelModel
from .errors import ErrorType
from .parts import MessagePart, TextPart
from .rows import Row, UserRow
from .tools import ToolSpec

AbortReason = Literal["user", "startup", "system"]
"""Who stopped a stream: a person, a caller before it began, or the process that ends."""

CompletionStatus = Literal["completed", "failed", "aborted"]


class StreamRequest(CamelModel):
    """One message to answer. A field that doesn't exist is an error, not ignored."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    text: str
    client_message_id: Annotated[str, Field(min_length=1, max_length=255)] | None = None
    """The sender's own id of this message: sent twice, it is stored and answered once."""
    correlation: Mapping[str, Any] | None = None
    """Opaque to the engine; both rows carry it, and the metadata of stream-end and stream-abort."""
    model: str | None = None
    fallback_models: tuple[str, ...] = ()
    """Asked in this order where a model refuses to answer; none: those of the engine."""
    prompt_id: str | None = None
    """The caller's name of the prompt; every event of the answer carries it."""
    mode: str | None = None
    agent_id: str | None = None
    thinking_level: str | None = None
    system: str | None = None
    """Instructions that stand before the conversation."""
    temperature: float | None = None
    max_output_tokens: Annotated[int, Field(gt=0)] | None = None
    previous_response_id: str | None = None
    """The provider's own name of an earlier response that it shall go on from."""

    # What the engine fills in before the provider gets the request.
    history: tuple[Row, ...] = ()
    """The conversation so far, as the provider shall see it, without this message."""
    so_far: tuple[MessagePart, ...] = ()
    """What earlier steps of this same answer have said: it goes on from there. Every tool call in
    it has its result."""
    tools: tuple[ToolSpec, ...] = ()
    """What the model may call."""

    def settings(self) -> Mapping[str, Any] | None:
        """What it asks for besides the text, as the row of the message keeps it; None: nothing."""
        return (
            self.model_dump(
                mode="json", by_alias=True, include=set(_SETTINGS), exclude_defaults=True
            )
            or None
        )

    @classmethod
    def from_row(cls, row: UserRow) -> Self:
        """The request that the row's message was. A setting that this version doesn't know, or
        can't read, is left out.
        """
        known = {cls.model_fields[name].alias: name for name in _SETTINGS}
        fields: dict[str, Any] = {
            "text": "".join(part.text for part in row.parts if isinstance(part, TextPart)),
            "client_message_id": row.metadata.client_message_id,
            "correlation": row.metadata.correlation,
        }
        settings = {known[k]: v for k, v in (row.metadata.request or {}).items() if k in known}
        try:
            return cls.model_validate({**fields, **settings})
        except ValidationError:
            return cls.model_validate(fields)


_SETTINGS: Final = (
    "model",
    "fallback_models",
    "prompt_id",
    "mode",
    "agent_id",
    "thinking_level",
    "system",
    "temperature",
    "max_output_tokens",
)
"""Fields that a row keeps. Not the previous response: the provider may have forgotten it."""


class Completion(CamelModel):
    """How a stream ended.

    `abort_reason` is given exactly when the status is "aborted"; `error` and `error_type` only
    when it is "failed".
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    status: CompletionStatus
    abort_reason: AbortReason | None = None
    error: str | None = None
    error_type: ErrorType | None = None

    @model_validator(mode="after")
    def _fields_match_status(self) -> Self:
        if (self.status == "aborted") != (self.abort_reason is not None):
            raise ValueError("abort_reason is needed for 'aborted' and only there")
        if self.status != "failed" and (self.error is not None or self.error_type is not None):
            raise ValueError("error and error_type are only for 'failed'")
        return self
