"""The conversation as the model reads it: ChatML, cut to what fits, oldest first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from ...model.parts import TextPart
from ...model.request import StreamRequest
from ...model.rows import AssistantRow, Row
from .errors import LocalModelError
from .model import LanguageModel

BEGIN: Final = "<|im_start|>"
END: Final = "<|im_end|>"


@dataclass(frozen=True, slots=True)
class Message:
    role: Literal["system", "user", "assistant"]
    text: str


def messages_of(request: StreamRequest) -> list[Message]:
    """What was said, and last what is to be answered. An interrupted answer counts for as much as
    it said; rows without text are left out, and so is what a tool did.
    """
    said = [
        Message("assistant" if isinstance(row, AssistantRow) else "user", _text_of(row))
        for row in request.history
    ]
    return [*(message for message in said if message.text.strip()), Message("user", request.text)]


def _text_of(row: Row) -> str:
    return "".join(part.text for part in row.parts if isinstance(part, TextPart))


def prompt_tokens(
    model: LanguageModel, system: str, messages: Sequence[Message], limit_tokens: int
) -> list[int]:
    """The prompt for an answer to the last message, of at most ``limit_tokens``.

    The oldest messages are left out first, whole, and what is left begins with a user's. Raises
    LocalModelError ("context_exceeded") where even the last message alone is too long.
    """
    encode = _Encoder(model)
    head = encode.message(Message("system", system)) if system else []
    tail = [*encode.message(messages[-1]), *encode.opening("assistant")]
    room = limit_tokens - len(head) - len(tail)
    if room < 0:
        raise LocalModelError(
            "context_exceeded",
            f"the message is too long for the local model: it makes a prompt of "
            f"{limit_tokens - room} tokens, {limit_tokens} fit",
            "Send a shorter one.",
        )
    kept: list[list[int]] = []
    begins_with_user = 0
    # From the newest, so that a long history costs no more than what is kept of it.
    for message in reversed(messages[:-1]):
        tokens = encode.message(message)
        room -= len(tokens)
        if room < 0:
            break
        kept.append(tokens)
        if message.role == "user":
            begins_with_user = len(kept)
    middle = [token for tokens in reversed(kept[:begins_with_user]) for token in tokens]
    return [*head, *middle, *tail]


class _Encoder:
    """Markers are tokens of their own; what people wrote is always text, never a marker."""

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self._begin = model.marker(BEGIN)
        self._end = model.marker(END)
        self._newline = model.tokens_of("\n")

    def opening(self, role: str) -> list[int]:
        return [self._begin, *self._model.tokens_of(f"{role}\n")]

    def message(self, message: Message) -> list[int]:
        text = self._model.tokens_of(f"{message.role}\n{message.text}")
        return [self._begin, *text, self._end, *self._newline]
