"""Answers given before: a message that is sent again gets the handle of its first answer (BT1)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, final

from fibers import Effect

from .model.request import AbortReason, Completion, StreamRequest
from .model.rows import AssistantRow, Row, UserRow

REMEMBERED_ANSWERS: Final = 1024
"""How many client message ids are answered from memory; older ones from the history."""


@dataclass(frozen=True, slots=True)
class StreamHandle:
    """A started answer: which message it is, and how it ends."""

    message_id: str
    completion: Effect[Completion]


@final
class Answers:
    """The handles of one engine, by workspace and client message id."""

    def __init__(self) -> None:
        self._handles: dict[tuple[str, str], StreamHandle] = {}

    def known(self, workspace_id: str, request: StreamRequest) -> StreamHandle | None:
        """What this message was answered with; None for one without a client id."""
        if request.client_message_id is None:
            return None
        return self._handles.get((workspace_id, request.client_message_id))

    def remember(self, workspace_id: str, request: StreamRequest, handle: StreamHandle) -> None:
        """Answer a repeat of ``request`` with ``handle``."""
        if request.client_message_id is None:
            return
        self._handles[workspace_id, request.client_message_id] = handle
        while len(self._handles) > REMEMBERED_ANSWERS:
            del self._handles[next(iter(self._handles))]


def answer_in(rows: Iterable[Row], request: StreamRequest) -> StreamHandle | None:
    """The answer that this message got in an earlier run of the process."""
    if request.client_message_id is None:
        return None
    asked = False
    for row in rows:
        if isinstance(row, UserRow):
            if asked:
                return None
            asked = row.metadata.client_message_id == request.client_message_id
        elif asked:
            return StreamHandle(row.id, Effect.succeed(_completion_of(row)))
    return None


def _completion_of(row: AssistantRow) -> Completion:
    if not row.is_partial:
        return Completion(status="completed")
    reason = row.metadata.abort_reason
    known: AbortReason = (
        "user" if reason == "user" else "startup" if reason == "startup" else "system"
    )
    return Completion(status="aborted", abort_reason=known)
