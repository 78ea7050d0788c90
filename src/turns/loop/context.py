"""The context of a call: what of the conversation a model is shown. No row is changed for it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

from streamengine import StreamRequest
from streamengine.model import MessagePart, ReasoningPart, Row, TextPart, ToolPart

CHARACTERS_PER_TOKEN: Final = 3
_FEW_ROWS: Final = 4

_TOO_LONG: Final = (
    "context_length_exceeded",
    "maximum context length",
    "context window",
    "too many tokens",
    "token limit",
    "prompt is too long",
)
_TOO_LATE: Final = ("timeout", "timed out", "deadline")


def is_context_error(error_type: str | None, text: str) -> bool:
    """Whether a call failed for its length. One that took too long didn't, whatever else its words
    are ("context deadline exceeded").
    """
    said = text.lower()
    if any(word in said for word in _TOO_LATE):
        return False
    return error_type == "context_exceeded" or any(phrase in said for phrase in _TOO_LONG)


# ---- forced: what was too long is made shorter, for the rest of the conversation


def to_omit(rows: Sequence[Row], *, protected: Collection[str] = ()) -> frozenset[str]:
    """The ids of the rows to leave out from now on: the older half of what lies between the first
    and the last row. None of ``protected``; and none at all of four rows or fewer.
    """
    if len(rows) <= _FEW_ROWS:
        return frozenset()
    middle = [row.id for row in rows[1:-1] if row.id not in protected]
    return frozenset(middle[: (len(middle) + 1) // 2])


# ---- soft: a call that would be too long is shortened


def shown(
    request: StreamRequest, *, omitted: Collection[str], limit_tokens: int | None
) -> StreamRequest:
    """``request`` without the rows ``omitted``, and without the oldest others that don't fit into
    the limit. One note in its instructions says how many are missing.
    """
    rows = [row for row in request.history if row.id not in omitted]
    if limit_tokens is not None:
        rest = limit_tokens - tokens_of(request.model_copy(update={"history": ()}))
        rows = rows[_first_that_fits(rows, rest) :]
    missing = len(request.history) - len(rows)
    if not missing:
        return request
    note = f"[Context truncated: {missing} earlier messages omitted to fit the model's window.]"
    system = f"{request.system}\n\n{note}" if request.system else note
    return request.model_copy(update={"history": tuple(rows), "system": system})


def _first_that_fits(rows: Sequence[Row], rest_tokens: int) -> int:
    for at in range(len(rows) - 1, -1, -1):
        rest_tokens -= _tokens(_characters(rows[at].parts))
        if rest_tokens < 0:
            return at + 1
    return 0


def tokens_of(request: StreamRequest) -> int:
    """How much of a model's window a call takes, roughly: three characters a token."""
    rows = sum(_tokens(_characters(row.parts)) for row in request.history)
    own = len(request.system or "") + len(request.text) + _characters(request.so_far)
    return rows + _tokens(own)


def _tokens(characters: int) -> int:
    return -(-characters // CHARACTERS_PER_TOKEN)


def _characters(parts: Iterable[MessagePart]) -> int:
    return sum(_length(part) for part in parts)


def _length(part: MessagePart) -> int:
    match part:
        case TextPart() | ReasoningPart():
            return len(part.text)
        case ToolPart():
            return len(part.tool_name) + len(str(part.input)) + len(str(part.output))
        case _:
            return 0
