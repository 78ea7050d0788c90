"""The two kinds of part: what a provider yields, and what a row of the history keeps.

A `ProviderPart` is a step of a stream (text begins, three more words, a tool was called). A
`MessagePart` is a piece of a message (text, reasoning, a tool call with its result, a file).
The pump turns the first into the second.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import (
    AliasChoices,
    Discriminator,
    Field,
    Tag,
    TypeAdapter,
    ValidationError,
    model_serializer,
)
from typing_extensions import TypeIs

from .base import CamelModel
from .usage import Usage

# ---- what a provider yields


class TextStart(CamelModel):
    type: Literal["text-start"] = "text-start"
    id: str | None = None


class TextDelta(CamelModel):
    """More text. Providers spell the field `text`, `delta` or `textDelta`; all three are read."""

    type: Literal["text-delta"] = "text-delta"
    text: str = Field(
        validation_alias=AliasChoices("text", "delta", "textDelta"), serialization_alias="text"
    )
    id: str | None = None


class TextEnd(CamelModel):
    """A block of text is over: one of the places where a soft stop takes effect."""

    type: Literal["text-end"] = "text-end"
    id: str | None = None


class ReasoningStart(CamelModel):
    type: Literal["reasoning-start"] = "reasoning-start"
    id: str | None = None
    provider_metadata: Mapping[str, Any] | None = None


class ReasoningDelta(CamelModel):
    """More reasoning. The text is empty when the delta only carries metadata (a signature)."""

    type: Literal["reasoning-delta"] = "reasoning-delta"
    text: str = Field(
        default="",
        validation_alias=AliasChoices("text", "delta", "textDelta"),
        serialization_alias="text",
    )
    id: str | None = None
    signature: str | None = None
    """The provider's seal on the block; also read from the entries of ``provider_metadata``."""
    provider_metadata: Mapping[str, Any] | None = None


class ReasoningEnd(CamelModel):
    type: Literal["reasoning-end"] = "reasoning-end"
    id: str | None = None
    provider_metadata: Mapping[str, Any] | None = None


class ToolCall(CamelModel):
    type: Literal["tool-call"] = "tool-call"
    tool_call_id: str
    tool_name: str
    input: Any = None
    provider_executed: bool | None = None


class ToolCallDelta(CamelModel):
    """A piece of a tool call's input while the model still writes it; shown, never stored."""

    type: Literal["tool-call-delta"] = "tool-call-delta"
    tool_call_id: str
    tool_name: str
    delta: Any = None


class ToolResult(CamelModel):
    type: Literal["tool-result"] = "tool-result"
    tool_call_id: str
    tool_name: str
    output: Any = None
    provider_executed: bool | None = None


class ToolError(CamelModel):
    type: Literal["tool-error"] = "tool-error"
    tool_call_id: str
    tool_name: str
    error: Any = None


class FilePart(CamelModel):
    """A file: a provider yields it as it stands in the row."""

    type: Literal["file"] = "file"
    media_type: str
    url: str
    filename: str | None = None
    timestamp_ms: int | None = Field(
        default=None, validation_alias="timestamp", serialization_alias="timestamp"
    )
    """Milliseconds since the Unix epoch; the engine stamps what a provider yields."""


class StartStep(CamelModel):
    type: Literal["start-step"] = "start-step"


class FinishStep(CamelModel):
    type: Literal["finish-step"] = "finish-step"
    finish_reason: str | None = None
    usage: Usage | None = None
    provider_metadata: Mapping[str, Any] | None = None


class ErrorPart(CamelModel):
    """The provider reports a failure inside the stream. `error` is whatever it sent."""

    type: Literal["error"] = "error"
    error: Any = None


class Finish(CamelModel):
    """The provider says that it is done."""

    type: Literal["finish"] = "finish"
    finish_reason: str
    raw_finish_reason: str | None = None

    @property
    def is_terminal(self) -> bool:
        """False for the finish that a client library makes up when the provider sent none.

        That one has the reason "other" and no raw reason. It proves nothing: the connection may
        have been cut, so the stream counts as truncated.
        """
        return not (self.finish_reason == "other" and self.raw_finish_reason is None)


ProviderPart = Annotated[
    TextStart
    | TextDelta
    | TextEnd
    | ReasoningStart
    | ReasoningDelta
    | ReasoningEnd
    | ToolCall
    | ToolCallDelta
    | ToolResult
    | ToolError
    | FilePart
    | StartStep
    | FinishStep
    | ErrorPart
    | Finish,
    Field(discriminator="type"),
]

_provider_part: TypeAdapter[ProviderPart] = TypeAdapter(ProviderPart)

_PROVIDER_PART_TYPES = frozenset(
    {
        "text-start",
        "text-delta",
        "text-end",
        "reasoning-start",
        "reasoning-delta",
        "reasoning-end",
        "tool-call",
        "tool-call-delta",
        "tool-result",
        "tool-error",
        "file",
        "start-step",
        "finish-step",
        "error",
        "finish",
    }
)


@dataclass(frozen=True, slots=True)
class UnknownPart:
    """Something a provider sent that is no ProviderPart; a stream goes on without it.

    `problem` is None for a type that this version doesn't know, else it says what is wrong with
    a part of a known type. `raw` is the part itself; it isn't shown by repr (it may be huge).
    """

    type: str
    raw: Mapping[str, Any] = field(repr=False)
    problem: str | None = None


def parse_provider_part(raw: Mapping[str, Any]) -> ProviderPart | UnknownPart:
    """What `raw` (decoded JSON, or a client library's own dict) says. Never raises."""
    kind = raw.get("type")
    if not isinstance(kind, str):
        return UnknownPart("", raw, "the part has no type")
    if kind not in _PROVIDER_PART_TYPES:
        return UnknownPart(kind, raw)
    try:
        return _provider_part.validate_python(raw)
    except ValidationError as error:
        return UnknownPart(kind, raw, _summary(error))


def _summary(error: ValidationError) -> str:
    """The complaint without the input: parts hold what people wrote, and this goes to a log."""
    return "; ".join(
        f"{'.'.join(str(step) for step in problem['loc'][1:]) or 'part'}: {problem['msg']}"
        for problem in error.errors(include_url=False, include_context=False, include_input=False)
    )


# ---- what a row keeps


class TextPart(CamelModel):
    type: Literal["text"] = "text"
    text: str
    timestamp_ms: int | None = Field(
        default=None, validation_alias="timestamp", serialization_alias="timestamp"
    )
    """Milliseconds since the Unix epoch; strictly increasing inside one stream."""


class ReasoningPart(CamelModel):
    type: Literal["reasoning"] = "reasoning"
    text: str
    timestamp_ms: int | None = Field(
        default=None, validation_alias="timestamp", serialization_alias="timestamp"
    )
    """Milliseconds since the Unix epoch; strictly increasing inside one stream."""
    signature: str | None = None
    provider_metadata: Mapping[str, Any] | None = None


ToolState = Literal["input-available", "output-available"]


class ToolPart(CamelModel):
    """A tool call, and its result once there is one."""

    type: Literal["dynamic-tool"] = "dynamic-tool"
    tool_call_id: str
    tool_name: str
    state: ToolState | str
    """A state that a newer version invented is read as it stands and counts as unfinished."""
    input: Any = None
    output: Any = None
    timestamp_ms: int | None = Field(
        default=None, validation_alias="timestamp", serialization_alias="timestamp"
    )
    """Milliseconds since the Unix epoch; strictly increasing inside one stream."""
    execution_started_at_ms: int | None = Field(
        default=None,
        validation_alias="executionStartedAt",
        serialization_alias="executionStartedAt",
    )
    """Milliseconds since the Unix epoch, on the clock of the timestamps."""
    completed_at_ms: int | None = Field(
        default=None, validation_alias="completedAt", serialization_alias="completedAt"
    )
    """Milliseconds since the Unix epoch, on the clock of the timestamps."""
    provider_executed: bool | None = None

    @property
    def has_output(self) -> bool:
        """Whether the call has its result (which may be null)."""
        return self.state == "output-available"


class RefusedPart(CamelModel):
    """A mark: what stands just before it is what a model said and then refused to stand by.

    It was told, so it is kept; no model gets to see it (see refused.py). Counted, as parts are put
    together in reading.
    """

    type: Literal["refused"] = "refused"
    model: str | None = None
    """Which model it was."""
    text_characters: int = 0
    reasoning_characters: int = 0
    tool_call_ids: tuple[str, ...] = ()
    timestamp_ms: int | None = Field(
        default=None, validation_alias="timestamp", serialization_alias="timestamp"
    )
    """Milliseconds since the Unix epoch; strictly increasing inside one stream."""


class UnknownMessagePart(CamelModel):
    """A part of a type that this version doesn't know: kept as it is, written back as it is."""

    type: str

    @model_serializer(mode="plain")
    def _as_it_is(self) -> dict[str, Any]:
        # Also its nulls, which are left out elsewhere: nobody here knows what they mean.
        return {"type": self.type, **(self.model_extra or {})}


_MESSAGE_PART_TYPES = frozenset({"text", "reasoning", "dynamic-tool", "file", "refused"})


def _message_part_tag(value: object) -> str:
    kind = value.get("type") if _is_mapping(value) else getattr(value, "type", None)
    return kind if isinstance(kind, str) and kind in _MESSAGE_PART_TYPES else "unknown"


def _is_mapping(value: object) -> TypeIs[Mapping[str, object]]:
    return isinstance(value, Mapping)


MessagePart = Annotated[
    Annotated[TextPart, Tag("text")]
    | Annotated[ReasoningPart, Tag("reasoning")]
    | Annotated[ToolPart, Tag("dynamic-tool")]
    | Annotated[FilePart, Tag("file")]
    | Annotated[RefusedPart, Tag("refused")]
    | Annotated[UnknownMessagePart, Tag("unknown")],
    Discriminator(_message_part_tag),
]
