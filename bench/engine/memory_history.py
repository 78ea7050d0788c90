"""MemoryHistory: a store without a disk, to tell the engine's cost from that of the files."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, final

from fibers import Effect
from streamengine import HistoryError, HistoryStore
from streamengine.history.results import AppendedUser, CommitResult, Loaded, RecoveryReport
from streamengine.history.rules import AnyRow, with_metadata
from streamengine.history.usage_log import UsageEntry, UsageSource
from streamengine.model import AssistantRow, MessagePart, Row, RowMetadata, Usage, UserRow
from streamengine.model.fold import fold_parts
from streamengine.model.note import WorkspaceNote

T = TypeVar("T")


@final
class _Conversation:
    def __init__(self) -> None:
        self.rows: dict[int, Row] = {}
        self.next_sequence = 0
        self.reserved: dict[str, int] = {}
        self.partial: AssistantRow | None = None
        self.added: list[MessagePart] = []
        self.note = WorkspaceNote()
        self.usage: dict[str, UsageEntry] = {}

    def take_sequence(self) -> int:
        self.next_sequence += 1
        return self.next_sequence - 1


@final
class MemoryHistory(HistoryStore):
    """Conversations in dictionaries; gone with the object. One archive and no boundary."""

    def __init__(self) -> None:
        self._conversations: dict[str, _Conversation] = {}

    def _in(self, workspace_id: str, job: Callable[[_Conversation], T]) -> Effect[T, HistoryError]:
        return Effect.sync(
            lambda: job(self._conversations.setdefault(workspace_id, _Conversation()))
        )

    def load(self, workspace_id: str) -> Effect[Loaded, HistoryError]:
        report = RecoveryReport(workspace_id, None)
        return self._in(workspace_id, lambda kept: Loaded(tuple(_rows(kept)), report))

    def read(
        self, workspace_id: str, *, from_boundary: bool = False
    ) -> Effect[list[Row], HistoryError]:
        return self._in(workspace_id, _rows)

    def tail(self, workspace_id: str, limit: int) -> Effect[list[Row], HistoryError]:
        return self._in(workspace_id, lambda kept: _rows(kept)[-limit:])

    def read_archive(self, workspace_id: str) -> Effect[list[Row], HistoryError]:
        return Effect.sync(lambda: list[Row]())

    def archive(self, workspace_id: str) -> Effect[int, HistoryError]:
        return Effect.succeed(0)

    def append_user(self, workspace_id: str, row: UserRow) -> Effect[AppendedUser, HistoryError]:
        def append(kept: _Conversation) -> AppendedUser:
            stored = with_metadata(row, history_sequence=kept.take_sequence())
            _put(kept, stored)
            return AppendedUser(stored, is_new=True)

        return self._in(workspace_id, append)

    def reserve(self, workspace_id: str, message_id: str) -> Effect[int, HistoryError]:
        def reserve(kept: _Conversation) -> int:
            if message_id not in kept.reserved:
                kept.reserved[message_id] = kept.take_sequence()
            return kept.reserved[message_id]

        return self._in(workspace_id, reserve)

    def release(self, workspace_id: str, message_id: str) -> Effect[None, HistoryError]:
        def release(kept: _Conversation) -> None:
            kept.reserved.pop(message_id, None)

        return self._in(workspace_id, release)

    def write_partial(
        self, workspace_id: str, row: AssistantRow, *, durable: bool = False
    ) -> Effect[None, HistoryError]:
        def write(kept: _Conversation) -> None:
            kept.partial, kept.added = row, []

        return self._in(workspace_id, write)

    def append_partial(
        self,
        workspace_id: str,
        message_id: str,
        parts: tuple[MessagePart, ...],
        *,
        metadata: RowMetadata | None = None,
        durable: bool = False,
    ) -> Effect[None, HistoryError]:
        return self._in(workspace_id, lambda kept: kept.added.extend(parts))

    def read_partial(self, workspace_id: str) -> Effect[AssistantRow | None, HistoryError]:
        return self._in(workspace_id, _partial)

    def commit_partial(
        self, workspace_id: str, message_id: str | None = None
    ) -> Effect[CommitResult, HistoryError]:
        def commit(kept: _Conversation) -> CommitResult:
            row = _partial(kept)
            kept.partial = None
            if row is None:
                return CommitResult("no-partial")
            _put(kept, row)
            return CommitResult("appended", row)

        return self._in(workspace_id, commit)

    def delete_partial(
        self, workspace_id: str, message_id: str | None = None
    ) -> Effect[bool, HistoryError]:
        def delete(kept: _Conversation) -> bool:
            there, kept.partial = kept.partial is not None, None
            return there

        return self._in(workspace_id, delete)

    def finalize(self, workspace_id: str, row: AssistantRow) -> Effect[AssistantRow, HistoryError]:
        def finalize(kept: _Conversation) -> AssistantRow:
            stored = with_metadata(row, partial=None)
            _put(kept, stored)
            return stored

        return self._in(workspace_id, finalize)

    def update(self, workspace_id: str, row: AnyRow) -> Effect[AnyRow, HistoryError]:
        def update(kept: _Conversation) -> AnyRow:
            _put(kept, row)
            return row

        return self._in(workspace_id, update)

    def record_usage(
        self,
        workspace_id: str,
        message_id: str,
        usage: Usage,
        *,
        model: str | None,
        source: UsageSource,
    ) -> Effect[bool, HistoryError]:
        entry = UsageEntry(message_id=message_id, usage=usage, model=model, source=source)
        return self._in(
            workspace_id, lambda kept: kept.usage.setdefault(message_id, entry) is entry
        )

    def read_usage(self, workspace_id: str) -> Effect[list[UsageEntry], HistoryError]:
        return self._in(workspace_id, lambda kept: list(kept.usage.values()))

    def read_note(self, workspace_id: str) -> Effect[WorkspaceNote, HistoryError]:
        return self._in(workspace_id, lambda kept: kept.note)

    def write_note(self, workspace_id: str, note: WorkspaceNote) -> Effect[None, HistoryError]:
        def write(kept: _Conversation) -> None:
            kept.note = note

        return self._in(workspace_id, write)

    def update_note(
        self, workspace_id: str, change: Callable[[WorkspaceNote], WorkspaceNote]
    ) -> Effect[WorkspaceNote, HistoryError]:
        def update(kept: _Conversation) -> WorkspaceNote:
            kept.note = change(kept.note)
            return kept.note

        return self._in(workspace_id, update)

    def workspaces(self) -> Effect[list[str], HistoryError]:
        return Effect.sync(lambda: sorted(self._conversations))


def _rows(kept: _Conversation) -> list[Row]:
    return [kept.rows[sequence] for sequence in sorted(kept.rows)]


def _put(kept: _Conversation, row: Row) -> None:
    sequence = row.metadata.history_sequence
    assert sequence is not None, "the engine stores nothing without a sequence"
    kept.rows[sequence] = row


def _partial(kept: _Conversation) -> AssistantRow | None:
    if kept.partial is None:
        return None
    parts = fold_parts((*kept.partial.parts, *kept.added))
    return kept.partial.model_copy(update={"parts": parts})
