"""EphemeralHistory: the conversation of a subturn, which is nobody else's and gone with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, final

from fibers import Effect
from streamengine import HistoryError, HistoryStore
from streamengine.history import UsageEntry, UsageSource
from streamengine.history.partial import Append, Update, decide_commit
from streamengine.history.results import AppendedUser, CommitResult, Loaded, RecoveryReport
from streamengine.history.rules import AnyRow, Rules, lies_behind, with_metadata
from streamengine.model import AssistantRow, MessagePart, Row, RowMetadata, Usage, UserRow
from streamengine.model.fold import fold_parts
from streamengine.model.note import WorkspaceNote

T = TypeVar("T")


@final
class _Conversation:
    def __init__(self, workspace_id: str) -> None:
        self.rules = Rules(workspace_id, workspace_id, workspace_id)
        self.rows: dict[int, Row] = {}
        self.reserved: dict[str, int] = {}
        self.partial: AssistantRow | None = None
        self.note = WorkspaceNote()
        self.usage: dict[str, UsageEntry] = {}
        self.last_sequence = -1

    def take_sequence(self) -> int:
        self.last_sequence += 1
        return self.last_sequence

    def ordered(self) -> list[Row]:
        return [self.rows[sequence] for sequence in sorted(self.rows)]


@final
class EphemeralHistory(HistoryStore):
    """Conversations in memory that keep their newest rows, so many each.

    Nothing is archived, and a mark as a boundary says nothing here: what is too old is dropped.
    """

    def __init__(self, *, rows: int) -> None:
        self._limit = rows
        self._conversations: dict[str, _Conversation] = {}

    def _in(self, workspace_id: str, job: Callable[[_Conversation], T]) -> Effect[T, HistoryError]:
        def do() -> Effect[T, HistoryError]:
            kept = self._conversations.setdefault(workspace_id, _Conversation(workspace_id))
            try:
                return Effect.succeed(job(kept))
            except HistoryError as error:
                return Effect.fail(error)

        return Effect.suspend(do)

    def _put(self, kept: _Conversation, row: AnyRow) -> AnyRow:
        kept.rows[kept.rules.sequence_of(row)] = row
        for sequence in sorted(kept.rows)[: -self._limit]:
            del kept.rows[sequence]
        return row

    # ---- rows

    def load(self, workspace_id: str) -> Effect[Loaded, HistoryError]:
        report = RecoveryReport(workspace_id, None)
        return self._in(workspace_id, lambda kept: Loaded(tuple(kept.ordered()), report))

    def read(
        self, workspace_id: str, *, from_boundary: bool = False
    ) -> Effect[list[Row], HistoryError]:
        return self._in(workspace_id, _Conversation.ordered)

    def tail(self, workspace_id: str, limit: int) -> Effect[list[Row], HistoryError]:
        return self._in(workspace_id, lambda kept: kept.ordered()[-limit:] if limit > 0 else [])

    def read_archive(self, workspace_id: str) -> Effect[list[Row], HistoryError]:
        return Effect.sync(lambda: list[Row]())

    def archive(self, workspace_id: str) -> Effect[int, HistoryError]:
        return Effect.succeed(0)

    def append_user(self, workspace_id: str, row: UserRow) -> Effect[AppendedUser, HistoryError]:
        def append(kept: _Conversation) -> AppendedUser:
            kept.rules.check_says_something(row)
            client = row.metadata.client_message_id
            for known in kept.rows.values():
                same = client is not None and known.metadata.client_message_id == client
                if isinstance(known, UserRow) and (same or known.id == row.id):
                    return AppendedUser(known, is_new=False)
            stored = with_metadata(kept.rules.checked(row), history_sequence=kept.take_sequence())
            return AppendedUser(self._put(kept, stored), is_new=True)

        return self._in(workspace_id, append)

    def finalize(self, workspace_id: str, row: AssistantRow) -> Effect[AssistantRow, HistoryError]:
        def finalize(kept: _Conversation) -> AssistantRow:
            kept.reserved.pop(row.id, None)
            return self._put(kept, with_metadata(kept.rules.checked(row), partial=None))

        return self._in(workspace_id, finalize)

    def update(self, workspace_id: str, row: AnyRow) -> Effect[AnyRow, HistoryError]:
        def update(kept: _Conversation) -> AnyRow:
            if kept.rules.sequence_of(row) not in kept.rows:
                raise kept.rules.not_found(row, row.metadata.history_sequence)
            return self._put(kept, row)

        return self._in(workspace_id, update)

    def truncate(self, workspace_id: str, after: int | None) -> Effect[int, HistoryError]:
        last = -1 if after is None else after

        def truncate(kept: _Conversation) -> int:
            cut = [sequence for sequence in kept.rows if sequence > last]
            for sequence in cut:
                del kept.rows[sequence]
            if kept.partial is not None and lies_behind(kept.partial, last):
                kept.partial = None
            return len(cut)

        return self._in(workspace_id, truncate)

    # ---- sequences

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

    # ---- the partial

    def write_partial(
        self, workspace_id: str, row: AssistantRow, *, durable: bool = False
    ) -> Effect[None, HistoryError]:
        def write(kept: _Conversation) -> None:
            kept.partial = with_metadata(row, partial=True)

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
        def append(kept: _Conversation) -> None:
            if kept.partial is None or kept.partial.id != message_id:
                raise kept.rules.no_partial(message_id)
            said = fold_parts((*kept.partial.parts, *parts))
            fields = {} if metadata is None else metadata.model_dump(exclude_unset=True)
            row = kept.partial.model_copy(update={"parts": said})
            kept.partial = with_metadata(row, **fields)

        return self._in(workspace_id, append)

    def read_partial(self, workspace_id: str) -> Effect[AssistantRow | None, HistoryError]:
        return self._in(workspace_id, lambda kept: kept.partial)

    def commit_partial(
        self, workspace_id: str, message_id: str | None = None
    ) -> Effect[CommitResult, HistoryError]:
        def commit(kept: _Conversation) -> CommitResult:
            partial = kept.partial
            if partial is None:
                return CommitResult("no-partial")
            if message_id not in (None, partial.id):
                return CommitResult("other-message")
            known = kept.rows.get(kept.rules.sequence_of(partial))
            match decide_commit(partial, [] if known is None else [known], None):
                case Append(row):
                    result = CommitResult("appended", self._put(kept, row))
                case Update(row):
                    result = CommitResult("updated", self._put(kept, row))
                case _:
                    result = CommitResult("dropped", drop_reason="nothing-said")
            kept.partial = None
            return result

        return self._in(workspace_id, commit)

    def delete_partial(
        self, workspace_id: str, message_id: str | None = None
    ) -> Effect[bool, HistoryError]:
        def delete(kept: _Conversation) -> bool:
            if kept.partial is None or message_id not in (None, kept.partial.id):
                return False
            kept.partial = None
            return True

        return self._in(workspace_id, delete)

    # ---- usage, and the note

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

    def update_note(
        self, workspace_id: str, change: Callable[[WorkspaceNote], WorkspaceNote]
    ) -> Effect[WorkspaceNote, HistoryError]:
        def update(kept: _Conversation) -> WorkspaceNote:
            kept.note = change(kept.note)
            return kept.note

        return self._in(workspace_id, update)

    def workspaces(self) -> Effect[list[str], HistoryError]:
        return Effect.sync(lambda: sorted(self._conversations))
