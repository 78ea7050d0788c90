"""What a row must be before it is stored, and what is said where it isn't. No store is touched."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from os import PathLike
from typing import TypeVar, final

from typing_extensions import TypeIs

from ..model.errors import HistoryError
from ..model.ids import check_id
from ..model.rows import MAX_HISTORY_SEQUENCE, AssistantRow, Row, UserRow
from .partial import is_blank, is_commit_worthy

AnyRow = TypeVar("AnyRow", UserRow, AssistantRow, UserRow | AssistantRow)

Place = str | PathLike[str]
"""Where a store keeps something, as a person finds it."""


def is_sequence(value: object) -> TypeIs[int]:
    """Whether this can be a history sequence: a whole number from 0, and no bool."""
    return type(value) is int and 0 <= value <= MAX_HISTORY_SEQUENCE


def lies_behind(row: Row, sequence: int) -> bool:
    """Whether the row's sequence is greater. One without a sequence lies nowhere (P10)."""
    own = row.metadata.history_sequence
    return own is not None and own > sequence


def is_before(row: Row, sequence: int) -> bool:
    """Whether the row's sequence is smaller. One without a sequence is nowhere (P10)."""
    own = row.metadata.history_sequence
    return own is not None and own < sequence


def with_metadata(row: AnyRow, **changes: object) -> AnyRow:
    """The row with these fields of its metadata changed."""
    return row.model_copy(update={"metadata": row.metadata.model_copy(update=changes)})


@final
@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of one workspace, whose rows are kept in one place and its partial in another."""

    workspace_id: str
    rows_at: Place
    partial_at: Place

    def checked(self, row: AnyRow) -> AnyRow:
        """The row, marked as this workspace's. Copies of models aren't validated, so look again.

        Raises HistoryError ("invalid_id", "invalid_row", "malformed_sequence").
        """
        self.check_message_id(row.id)
        if row.workspace_id not in (None, self.workspace_id):
            raise HistoryError(
                "invalid_row",
                self.rows_at,
                f"message {row.id} belongs to workspace {row.workspace_id}, not to "
                f"{self.workspace_id}",
                "Store it in its own workspace.",
            )
        sequence: object = row.metadata.history_sequence
        if sequence is not None and not is_sequence(sequence):
            raise HistoryError(
                "malformed_sequence",
                self.rows_at,
                f"message {row.id} has the historySequence {sequence!r}",
                f"It is a whole number from 0 to {MAX_HISTORY_SEQUENCE}; leave it out to get one.",
            )
        return row.model_copy(update={"workspace_id": self.workspace_id})

    def check_message_id(self, message_id: str) -> None:
        """Raises HistoryError ("invalid_id")."""
        try:
            check_id(message_id)
        except ValueError as error:
            raise HistoryError(
                "invalid_id", self.rows_at, f"message id {error}", "Make up another one."
            ) from error

    def check_says_something(self, row: Row) -> None:
        """A user's row needs words or a file; an answer may be an unfinished call (P11, P21).

        Raises HistoryError ("empty_row").
        """
        if isinstance(row, UserRow):
            if is_commit_worthy(row.parts):
                return
            raise HistoryError(
                "empty_row",
                self.rows_at,
                f"user message {row.id} says nothing",
                "Send some text or a file.",
            )
        if is_blank(row.parts):
            raise HistoryError(
                "empty_row",
                self.rows_at,
                f"the answer {row.id} says nothing, and a row without content makes providers "
                "refuse the conversation",
                "Store no row for it.",
            )

    def sequence_of(self, row: Row) -> int:
        """The sequence that this row must bring. Raises HistoryError ("no_sequence")."""
        sequence = row.metadata.history_sequence
        if sequence is None:
            raise HistoryError(
                "no_sequence",
                self.rows_at,
                f"message {row.id} has no historySequence",
                "Give the one that it was stored or reserved under.",
            )
        return sequence

    def next_sequence(self, taken: Iterable[int | None]) -> int:
        """One more than all of these (P13). Raises HistoryError ("malformed_sequence")."""
        sequence = 1 + max((n for n in taken if n is not None), default=-1)
        if sequence > MAX_HISTORY_SEQUENCE:
            raise HistoryError(
                "malformed_sequence",
                self.rows_at,
                f"the greatest possible sequence, {MAX_HISTORY_SEQUENCE}, is in use",
                "Look for the row that has it; it is most likely damaged.",
            )
        return sequence

    def check_not_overtaken(self, row: Row, kept_id: str | None, kept_sequence: int | None) -> None:
        """A partial takes the place of one that was left there, never that of a later message: an
        answer whose store hung must not put aside what runs now.

        Raises HistoryError ("stale_sequence").
        """
        if (
            kept_id not in (None, row.id)
            and kept_sequence is not None
            and is_before(row, kept_sequence)
        ):
            raise HistoryError(
                "stale_sequence",
                self.partial_at,
                f"the partial of message {row.id} comes late: that of the later message {kept_id} "
                "is kept there",
                "Conclude the message instead, which needs no partial.",
            )

    # ---- what is said

    def stale(self, row: Row, sequence: int, greatest: int) -> HistoryError:
        return HistoryError(
            "stale_sequence",
            self.rows_at,
            f"message {row.id} came with sequence {sequence}, but {greatest} is in use or "
            "reserved already",
            "Leave the sequence out, or reserve one.",
        )

    def sealed(self, row: Row, sequence: int) -> HistoryError:
        return HistoryError(
            "stale_sequence",
            self.rows_at,
            f"message {row.id} came with sequence {sequence}, which an archived row has",
            "What was archived is sealed: store nothing more of that message.",
        )

    def not_found(self, row: Row, sequence: int | None) -> HistoryError:
        return HistoryError(
            "not_found",
            self.rows_at,
            f"no row has the sequence {sequence} of message {row.id}",
            "Append the row instead; one that was archived is sealed.",
        )

    def no_partial(self, message_id: str) -> HistoryError:
        return HistoryError(
            "not_found",
            self.partial_at,
            f"there is no partial of message {message_id} that something could be added to",
            "Write the whole partial first.",
        )

    def sequence_taken(
        self, row: Row, sequence: int | None, role: str | None, message_id: str | None
    ) -> HistoryError:
        return HistoryError(
            "sequence_taken",
            self.rows_at,
            f"message {row.id} has sequence {sequence}, but so has "
            f"{role or 'a row'} {message_id or 'without an id'}",
            "Look at both; one of them needs a sequence that no row has.",
        )

    def not_json(self, place: Place, message_id: str, error: ValueError) -> HistoryError:
        return HistoryError(
            "invalid_row",
            place,
            f"message {message_id} can't be written as JSON ({error})",
            "Make the tool's input or output plain data.",
        )
