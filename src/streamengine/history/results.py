"""What the operations of a history give back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from ..model.errors import HistoryError
from ..model.rows import AssistantRow, Row, UserRow
from .partial import DropReason


class ReadRows(NamedTuple):
    """Rows by sequence, and how much was there that could not be read as a row."""

    rows: list[Row]
    unreadable_lines: int


@dataclass(frozen=True, slots=True)
class AppendedUser:
    """The user row that is in the history now, and whether this call put it there."""

    row: UserRow
    is_new: bool


@dataclass(frozen=True, slots=True)
class CommitResult:
    """What a commit did. `row` is what was written, if anything was."""

    outcome: Literal["no-partial", "other-message", "appended", "updated", "dropped"]
    row: AssistantRow | None = None
    drop_reason: DropReason | None = None


@dataclass(frozen=True, slots=True)
class PartialRead:
    """The partial, if there is a usable one, and, if something had to be moved away, a warning."""

    row: AssistantRow | None = None
    warning: str | None = None


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What a load found and did; nothing to tell after an orderly end."""

    workspace_id: str
    commit: CommitResult | None
    """What became of the partial; None when there was none, or it had to stay where it is."""
    swept_temps: tuple[str, ...] = ()
    """Names of files without a use any more that a crash had left."""
    warnings: tuple[str, ...] = ()
    """What had to be moved aside, in words."""
    problems: tuple[HistoryError, ...] = ()
    """Steps that failed. What they were about is untouched and is tried again at the next load."""
    removed_blank_rows: int = 0
    unreadable_lines: int = 0
    """Lines of `chat.jsonl` that are no rows; they stay in the file."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A workspace as it is after a load."""

    rows: tuple[Row, ...]
    report: RecoveryReport
