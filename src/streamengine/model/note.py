"""What is remembered of a workspace beside its rows: how its last answer ended, and opt-outs."""

from __future__ import annotations

from pydantic import Field

from .base import CamelModel
from .ids import MessageId
from .rows import HistorySequence


class LastEnd(CamelModel):
    """How the last answer ended that did not become a whole row. With no reason, no error and no
    question: a further try of it was begun, and nothing is known of its end yet.

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


class WorkspaceNote(CamelModel):
    """The note of a workspace. An empty one says nothing."""

    last_end: LastEnd | None = None
    auto_retry: bool = Field(default=True)
    """False: a person turned automatic retries off here."""

    def with_fields(self, **changes: object) -> WorkspaceNote:
        """The note with these fields changed; the rest of it stays."""
        return self.model_copy(update=changes)

    def ended(self, end: LastEnd) -> WorkspaceNote:
        """The note with how an answer ended. One to a later question stays: what is told of this
        one comes late, from a store that hung.
        """
        known = self.last_end
        if known is not None and (known.after_sequence or 0) > (end.after_sequence or 0):
            return self
        return self.with_fields(last_end=end)

    def truncated(self, last: int) -> WorkspaceNote:
        """The note of a conversation whose rows behind the sequence ``last`` are gone: what it says
        of the answer to one of them would be taken for that to another with the same sequence.
        """
        end = self.last_end
        if end is None or end.after_sequence is None or end.after_sequence <= last:
            return self
        return self.with_fields(last_end=None)
