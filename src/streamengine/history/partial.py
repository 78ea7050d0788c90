"""What becomes of a partial: pure decisions, no file touched.

A partial is the assistant row that a stream has said so far. What counts is what it says, never
into how many parts that is cut.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ..model.errors import HistoryErrorKind
from ..model.parts import (
    FilePart,
    MessagePart,
    ReasoningPart,
    RefusedPart,
    TextPart,
    ToolPart,
    UnknownMessagePart,
)
from ..model.rows import AssistantRow, Row

DropReason = Literal["row-is-final", "row-has-it-all", "before-boundary", "nothing-said"]


@dataclass(frozen=True, slots=True)
class Append:
    """Add this row under the sequence that was reserved for it."""

    row: AssistantRow


@dataclass(frozen=True, slots=True)
class Update:
    """Put this row in the place of the shorter partial row with its sequence."""

    row: AssistantRow


@dataclass(frozen=True, slots=True)
class Drop:
    """Write no row; the partial may go."""

    reason: DropReason


@dataclass(frozen=True, slots=True)
class Keep:
    """Nothing can be done with it without losing something: leave the partial where it is."""

    kind: HistoryErrorKind
    problem: str
    way_out: str


Decision = Append | Update | Drop | Keep


def is_commit_worthy(parts: Sequence[MessagePart]) -> bool:
    """Whether these parts may stand in the history.

    Blank text and tool calls without a result may not: a provider refuses later calls over them.
    A part of an unknown type counts, as nobody here can tell that it says nothing.
    """
    return any(_is_worthy(part) for part in parts)


def _is_worthy(part: MessagePart) -> bool:
    match part:
        case TextPart() | ReasoningPart():
            return not _is_blank(part.text)
        case ToolPart():
            return part.has_output
        case RefusedPart():
            return False
        case FilePart() | UnknownMessagePart():
            return True


def is_blank(parts: Sequence[MessagePart]) -> bool:
    """Whether these parts say nothing at all; an unfinished tool call does say something."""
    return all(
        isinstance(part, TextPart | ReasoningPart) and _is_blank(part.text) for part in parts
    )


def _is_blank(text: str) -> bool:
    return not text or text.isspace()


@dataclass(frozen=True, slots=True)
class Content:
    """What a message says: equal for two messages that differ only in how they are cut."""

    text: str
    reasoning: str
    tool_outputs: Mapping[str, str] = field(default_factory=dict[str, str])
    """Call id -> the output as JSON text."""
    others: tuple[str, ...] = ()
    """Files and parts of unknown types, each as JSON text, in order."""

    @property
    def size_characters(self) -> int:
        return sum(map(len, (self.text, self.reasoning, *self.tool_outputs.values(), *self.others)))


def content_of(parts: Sequence[MessagePart]) -> Content:
    """The content of a message. Raises ValueError for an output that can't be JSON."""
    text: list[str] = []
    reasoning: list[str] = []
    tool_outputs: dict[str, str] = {}
    others: list[str] = []
    for part in parts:
        match part:
            case TextPart():
                text.append(part.text)
            case ReasoningPart():
                reasoning.append(part.text)
            case ToolPart():
                if part.has_output:
                    tool_outputs[part.tool_call_id] = _canonical(part)
            case FilePart() | RefusedPart() | UnknownMessagePart():
                others.append(json.dumps(part.to_mapping(), sort_keys=True))
    return Content("".join(text), "".join(reasoning), tool_outputs, tuple(others))


def _canonical(part: ToolPart) -> str:
    return json.dumps(part.to_mapping().get("output"), sort_keys=True)


def says_more(new: Content, old: Content) -> bool:
    """Whether `new` may replace `old`: the longer one may.

    Of two that are equally long, also where they differ, the one that is there already stays.
    """
    return new.size_characters > old.size_characters


def committed(partial: AssistantRow) -> AssistantRow:
    """The row that a partial becomes: still marked partial, without the error that ended it."""
    metadata = partial.metadata.model_copy(
        update={"partial": True, "error": None, "error_type": None}
    )
    return partial.model_copy(update={"metadata": metadata})


def decide_commit(partial: AssistantRow, rows: Sequence[Row], boundary: int | None) -> Decision:
    """What to do with a partial.

    `rows` are those of the history (only the ones with the partial's sequence matter), `boundary`
    the sequence of the last row that seals what lies before it, None if there is none. Decided
    again after it was carried out, the answer is Drop: a commit can be repeated at will.
    """
    sequence = partial.metadata.history_sequence
    if sequence is None:
        return Keep(
            "no_sequence",
            f"the partial of message {partial.id} has no historySequence, so it has no place in "
            "the conversation",
            "Add one that no row has to its metadata, or move the file away.",
        )
    same_place = [row for row in rows if row.metadata.history_sequence == sequence]
    if any(row.id != partial.id or not isinstance(row, AssistantRow) for row in same_place):
        return Keep(
            "sequence_taken",
            f"the partial of message {partial.id} and another row both have sequence {sequence}",
            "Give one of them a sequence that no row has, or move the partial away.",
        )
    if not same_place:
        if boundary is not None and sequence < boundary:
            return Drop("before-boundary")
        return (
            Append(committed(partial)) if is_commit_worthy(partial.parts) else Drop("nothing-said")
        )
    if not all(row.is_partial for row in same_place):
        return Drop("row-is-final")
    if not is_commit_worthy(partial.parts):
        return Drop("nothing-said")
    if all(says_more(content_of(partial.parts), content_of(row.parts)) for row in same_place):
        return Update(committed(partial))
    return Drop("row-has-it-all")
