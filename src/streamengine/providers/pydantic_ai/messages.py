"""A dialogue as the messages of pydantic-ai."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from typing import Final

from pydantic_ai.messages import (
    BinaryContent,
    DocumentUrl,
    ImageUrl,
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
)

from .. import loose
from ..dialogue import Call, File, Piece, Reasoning, Result, Text, Utterance
from ..thoughts import Thought, thoughts_in

THOUGHTS: Final = "pydantic-ai"
"""The entry of a reasoning part's metadata that is for these models."""


def messages_of(dialogue: list[Utterance], system: str | None) -> list[ModelMessage]:
    """Requests and responses in turn; the system's words stand in the first."""
    messages: list[ModelMessage] = []
    for utterance in dialogue:
        if utterance.role == "user":
            messages.append(ModelRequest(parts=_request(utterance)))
            continue
        said = [part for piece in utterance.pieces for part in _response(piece)]
        if said:
            messages.append(ModelResponse(parts=said))
    if system and messages and isinstance(messages[0], ModelRequest):
        messages[0].parts = [SystemPromptPart(system), *messages[0].parts]
    return messages


def _request(utterance: Utterance) -> list[ModelRequestPart]:
    parts: list[ModelRequestPart] = []
    content: list[UserContent] = []
    for piece in utterance.pieces:
        match piece:
            case Result():
                parts.append(ToolReturnPart(piece.name, piece.text, piece.id))
            case Text():
                content.append(piece.text)
            case File():
                content.append(_file(piece))
            case _:
                pass
    if len(content) == 1 and isinstance(content[0], str):
        parts.append(UserPromptPart(content[0]))
    elif content:
        parts.append(UserPromptPart(content))
    return parts


def _file(file: File) -> UserContent:
    if file.data is not None:
        try:
            data = base64.b64decode(file.data, validate=True)
            return BinaryContent(data=data, media_type=file.media_type)
        except binascii.Error:
            return file.instead
    if file.is_image:
        return ImageUrl(file.url)
    return DocumentUrl(file.url) if file.media_type == "application/pdf" else file.instead


def _response(piece: Piece) -> Iterator[ModelResponsePart]:
    match piece:
        case Text():
            yield TextPart(piece.text)
        case Reasoning():
            yield from map(_thinking, thoughts_in(piece.parts, THOUGHTS))
        case Call():
            yield ToolCallPart(piece.name, dict(piece.arguments), piece.id)
        case _:
            pass


def _thinking(thought: Thought) -> ThinkingPart:
    details = dict(loose.fields(thought.mark.get("provider_details")))
    return ThinkingPart(
        thought.text,
        id=loose.word(thought.mark.get("id")),
        signature=loose.word(thought.mark.get("signature")),
        provider_name=loose.word(thought.mark.get("provider_name")),
        provider_details=details or None,
    )
