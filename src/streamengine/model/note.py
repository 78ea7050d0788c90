"""What is remembered of a workspace beside its rows: how its last answer ended, and opt-outs."""

from __future__ import annotations

from pydantic import Field

from .base import CamelModel
from .ids import MessageId
from .rows import HistorySequence


class LastEnd(CamelModel):
    """How the last answer ended that did not become a whole row.

    The rows alone don't tell: a committed partial carries no error (P8), and an answer that was
    stopped before its first word has no row at all. Plain strings, so that a note of a newer
    version stays readable.
    """

    message_id: MessageId
    after_sequence: HistorySequence | None = None
    """The sequence of the user row that was to be answered. The note counts only as long as no
    later user row is there."""
    abort_reason: str | None = None
    error_type: str | None = None
    asks_a_person: bool = False
    """True where it ended while it waited for a person's answer."""

    @property
    def is_known(self) -> bool:
        """False while all that is known is that the answer was begun, in the place of an earlier
        one: its own end comes to stand here, if the process lives to see it.
        """
        return self.asks_a_person or not (self.abort_reason is None and self.error_type is None)


class WorkspaceNote(CamelModel):
    """The note of a workspace. An empty one says nothing."""

    last_end: LastEnd | None = None
    auto_retry: bool = Field(default=True)
    """False: a person turned automatic retries off here."""

    def with_fields(self, **changes: object) -> WorkspaceNote:
        """The note with these fields changed; the rest of it stays."""
        return self.model_copy(update=changes)
