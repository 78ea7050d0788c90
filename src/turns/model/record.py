"""The record of a turn: what its handle is called, where it stands, and why it ended."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal

from pydantic import AwareDatetime, Field

from streamengine.model import MessageId, WorkspaceId
from streamengine.model.base import CamelModel

from .cause import Cause, evidence_of, parse_cause, reason_of, status_of
from .ids import HandleId, TurnId

TurnStatus = Literal["queued", "starting", "running", "completed", "interrupted", "error"]

AttentionPolicy = Literal["blocking_until_terminal", "notify_on_terminal"]
"""Whether its owner waits for the turn, or goes on and is told of its end."""

RECORD_VERSION: Final = 1

_TERMINAL: Final = frozenset({"completed", "interrupted", "error"})


class TurnRecord(CamelModel):
    """One turn. Frozen: each change is a new record, stored before anybody sees it.

    ``cause`` and ``evidence`` are plain, so that a record of a newer version stays readable.
    """

    kind: Literal["workspace_turn"] = "workspace_turn"
    version: int = RECORD_VERSION
    handle_id: HandleId
    owner_workspace_id: WorkspaceId
    workspace_id: WorkspaceId
    """Where it runs."""
    turn_id: TurnId
    status: TurnStatus = "queued"
    sequence: int | None = Field(default=None, ge=0)
    """Counts the turns as they were created: a clock may be set back. Older versions didn't."""
    created_at: AwareDatetime
    updated_at: AwareDatetime
    prompt: str | None = None
    """What it was asked; a queued turn begins with it, also after a restart."""
    created_workspace: bool = False
    disposable_workspace: bool = False
    workspace_disposed_at: AwareDatetime | None = None
    message_id: MessageId | None = None
    """The last stream of it that began."""
    final_message: str | None = None
    final_message_ref: MessageId | None = None
    deferred_message_ids: tuple[MessageId, ...] = ()
    """Streams of it that ended with more to come."""
    error: str | None = None
    """Why it did not complete, for a person."""
    cause: str | None = None
    evidence: Mapping[str, Any] | None = None
    attention_policy: AttentionPolicy = "blocking_until_terminal"
    terminal_attention_notified_at: AwareDatetime | None = None
    continues: HandleId | None = None
    """The turn that this one goes on with, begun by nobody in person."""
    follows: HandleId | None = None
    """The turn to which this one's prompt was said, after its last word."""
    ignored_ends: int = Field(default=0, ge=0)
    """Ends of other streams in its workspace that did not end it."""

    @property
    def is_terminal(self) -> bool:
        """Whether it has settled."""
        return self.status in _TERMINAL

    @property
    def is_started(self) -> bool:
        """Whether it has begun and not settled."""
        return self.status in ("starting", "running")

    @property
    def settled_for(self) -> Cause | None:
        """The cause with its evidence; None before it settled, and for one not known here."""
        return None if self.cause is None else parse_cause(self.cause, self.evidence or {})

    def changed(self, **fields: Any) -> TurnRecord:
        """The record with these fields changed, as of now; a clock that was set back takes it to no
        time before its last change.
        """
        return self.model_copy(update={**fields, "updated_at": max(now(), self.updated_at)})

    def settled(self, cause: Cause, final: FinalMessage | None) -> TurnRecord:
        """The record once it settled for ``cause``."""
        message = final or FinalMessage()
        return self.changed(
            status=status_of(cause),
            cause=cause.kind,
            evidence=evidence_of(cause),
            error=reason_of(cause),
            final_message=message.text,
            final_message_ref=message.message_id,
        )


class FinalMessage(CamelModel):
    """The answer with which a turn ended."""

    text: str | None = None
    message_id: MessageId | None = None


def now() -> datetime:
    """The time of a record's stamps."""
    return datetime.now(UTC)
