"""Evidence: what the rows of a workspace say about the end of a turn. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from streamengine.model import AssistantRow, MessagePart, Row, TextPart, UserRow, is_valid_id

from ..model.cause import is_normal_finish
from ..model.correlation import correlates
from ..model.record import TurnRecord


@dataclass(frozen=True, slots=True)
class Superseded:
    """A person wrote between the turn's prompt and the end."""

    message_id: str


@dataclass(frozen=True, slots=True)
class NotOurs:
    """The end says nothing about the turn."""

    is_stale: bool
    """It is of an answer from before the turn's prompt (T12)."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """The rows don't tell (T2)."""

    why: str


Judgement: TypeAlias = Superseded | NotOurs | Unreadable


def judge_uncorrelated(rows: Sequence[Row], record: TurnRecord, message_id: str) -> Judgement:
    """What the end of a stream that is not the turn's own says about it: at most that a person took
    over, strictly between the turn's anchor and that end (T5).
    """
    anchor = anchor_in(rows, record)
    if anchor is None:
        return Unreadable("the prompt of the turn is not in the history")
    end = next((at for at, row in enumerate(rows) if row.id == message_id), None)
    if end is None:
        return Unreadable(f"the row of {message_id} is not in the history")
    if end < anchor:
        return NotOurs(is_stale=True)
    for row in rows[anchor + 1 : end]:
        if is_manual(row):
            if not is_valid_id(row.id):
                return Unreadable("the row of the person has no usable id")
            return Superseded(row.id)
    return NotOurs(is_stale=False)


def anchor_in(rows: Sequence[Row], record: TurnRecord) -> int | None:
    """Where the prompt of the turn is: the first user's row that carries its correlation."""
    for at, row in enumerate(rows):
        if isinstance(row, UserRow) and _is_of(row, record):
            return at
    return None


def is_manual(row: Row) -> bool:
    """Whether a person wrote it. What a machine sends says so: by ``synthetic: true``, in the row's
    metadata or in its correlation, or by a correlation with a type.
    """
    if not isinstance(row, UserRow):
        return False
    extra = row.metadata.model_extra or {}
    correlation = row.metadata.correlation or {}
    return not (
        extra.get("synthetic") is True
        or correlation.get("synthetic") is True
        or correlation.get("type") is not None
    )


def final_in(rows: Sequence[Row], record: TurnRecord) -> AssistantRow | None:
    """The final answer of the turn: the last row of it, if that is a whole answer, and none that
    ended with more to come.
    """
    own = [row for row in rows if _is_of(row, record)]
    last = own[-1] if own else None
    if not isinstance(last, AssistantRow) or last.is_partial:
        return None
    if last.id in record.deferred_message_ids:
        return None
    return last if is_normal_finish(last.metadata.finish_reason) else None


def waits_for_retry(rows: Sequence[Row], record: TurnRecord) -> bool:
    """Whether a pending retry in the workspace would answer a question of this turn (T17)."""
    users = [row for row in rows if isinstance(row, UserRow)]
    return bool(users) and _is_of(users[-1], record)


def text_in(parts: Sequence[MessagePart]) -> str:
    """What was said, without thoughts and tools."""
    return "".join(part.text for part in parts if isinstance(part, TextPart))


def _is_of(row: Row, record: TurnRecord) -> bool:
    return correlates(record, record.workspace_id, row.metadata.correlation)
