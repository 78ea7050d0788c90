"""What a stream said after its partial was begun: the lines of a log beside `partial.json`.

Rewriting the whole partial for every half second of a long answer would cost the square of its
length. So the partial is written once, and what comes later is added to a log. A log is of one
partial only, to the byte: its first line names the digest of that, and a log whose digest is
another one counts for nothing, whatever a crash left beside whatever.

A line is a JSON value: a string goes on with the text (or reasoning) before it, an object with a
`type` is a part, one with `metadata` changes the metadata. A string needs three bytes more than its
text, which is what keeps an answer of small pieces from costing a multiple of itself. Nothing is
lost by it: a text that goes on is stamped as its first piece (see fold_parts).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from pydantic import TypeAdapter
from typing_extensions import TypeIs

from ..model.fold import fold_parts
from ..model.parts import MessagePart, ReasoningPart, TextPart
from ..model.rows import AssistantRow, RowMetadata
from .lines import decoded, encoded

Tail = Literal["text", "reasoning"] | None
"""What a string goes on with at the end of a log."""

_DIGEST_BYTES: Final = 8

_message_part: TypeAdapter[MessagePart] = TypeAdapter(MessagePart)


@dataclass(frozen=True, slots=True)
class LogContent:
    """What a log says."""

    parts: tuple[MessagePart, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Changes to the partial's metadata, in the names of the JSON."""
    size_bytes: int = 0
    """Up to the end of the last whole line; 0 when it is no log of this partial."""
    tail: Tail = None
    unreadable_lines: int = 0


def digest_of(base: bytes) -> str:
    """What a log calls its partial by."""
    return hashlib.blake2b(base, digest_size=_DIGEST_BYTES).hexdigest()


def header(message_id: str, digest: str) -> bytes:
    """The first line of a log, with its newline."""
    return encoded({"messageId": message_id, "base": digest}) + b"\n"


def tail_of(parts: Iterable[MessagePart], tail: Tail = None) -> Tail:
    """What a string would go on with after these parts."""
    for part in parts:
        tail = _tail_after(part, tail)
    return tail


def encode(
    parts: Iterable[MessagePart], metadata: RowMetadata | None, tail: Tail
) -> tuple[bytes, Tail]:
    """The lines of these parts behind a log that ends with `tail`, and the tail after them.

    Raises ValueError when a part can't be JSON.
    """
    lines: list[bytes] = []
    for part in _folded(parts):
        if _goes_on(part, tail):
            if part.text:
                lines.append(encoded(part.text) + b"\n")
            continue
        lines.append(encoded(part.to_mapping()) + b"\n")
        tail = _tail_after(part, tail)
    if metadata is not None:
        lines.append(encoded({"metadata": metadata.to_mapping()}) + b"\n")
    return b"".join(lines), tail


def decode(data: bytes, digest: str, base: Sequence[MessagePart]) -> LogContent:
    """What a log says of the partial with this digest and these parts.

    A last line without its newline is one that was not written whole, and counts for nothing.
    """
    end = data.rfind(b"\n") + 1
    first, *lines = data[:end].split(b"\n")[:-1] or [b""]
    if not _is_header(first, digest):
        return LogContent()
    parts: list[MessagePart] = []
    metadata: dict[str, Any] = {}
    tail = tail_of(base)
    unreadable = 0
    for line in lines:
        try:
            value = decoded(line)
            if isinstance(value, str):
                part = _further(value, tail)
            elif _is_mapping(value) and _is_mapping(changes := value.get("metadata")):
                RowMetadata.model_validate(changes)  # one that this version can't read is no line
                metadata.update(changes)
                continue
            else:
                part = _message_part.validate_python(value)
        except (ValueError, RecursionError):
            unreadable += 1
            continue
        parts.append(part)
        tail = _tail_after(part, tail)
    return LogContent(tuple(parts), metadata, end, tail, unreadable)


def joined(base: AssistantRow, log: LogContent) -> AssistantRow:
    """The partial: its base and what was said since."""
    metadata = base.metadata
    if log.metadata:
        metadata = RowMetadata.model_validate({**metadata.to_mapping(), **log.metadata})
    parts = fold_parts((*base.parts, *log.parts)) if log.parts else base.parts
    return base.model_copy(update={"parts": parts, "metadata": metadata})


def _folded(parts: Iterable[MessagePart]) -> Iterator[MessagePart]:
    """The parts in as few pieces as can be read without what stands before them.

    Reasoning without text stays alone: where it follows a signed block it is a mark of that, and
    not the beginning of the next.
    """
    run: list[MessagePart] = []
    for part in parts:
        if isinstance(part, ReasoningPart) and not part.text:
            yield from fold_parts(run)
            yield part
            run = []
        else:
            run.append(part)
    yield from fold_parts(run)


def _goes_on(part: MessagePart, tail: Tail) -> TypeIs[TextPart | ReasoningPart]:
    """Whether the part is nothing but text for the one before it."""
    if part.model_extra:
        return False
    if isinstance(part, ReasoningPart):
        return tail == "reasoning" and part.signature is None and part.provider_metadata is None
    return tail == "text" and isinstance(part, TextPart)


def _further(text: str, tail: Tail) -> MessagePart:
    if tail is None:
        raise ValueError("there is nothing before it that it could go on with")
    return TextPart(text=text) if tail == "text" else ReasoningPart(text=text)


def _tail_after(part: MessagePart, tail: Tail) -> Tail:
    if isinstance(part, TextPart):
        return "text"
    if isinstance(part, ReasoningPart):
        if part.signature is not None:
            return None  # that block is complete: see fold_parts
        # Without text it may stand behind a signed block and belong to that.
        return "reasoning" if part.text or tail == "reasoning" else None
    return None


def _is_header(line: bytes, digest: str) -> bool:
    try:
        fields = decoded(line)
    except ValueError:
        return False
    return _is_mapping(fields) and fields.get("base") == digest


def _is_mapping(value: object) -> TypeIs[Mapping[str, Any]]:
    return isinstance(value, dict)  # of decoded JSON: its keys are text
