"""MemoryHistory: the rules of the history without a disk, for what shall be gone with the process.

The conversation of a subturn, a test, a measurement of everything but the files. The counterpart of
files.py; nothing here waits, so one step is one call.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final, TypeVar, final

from fibers import Effect

from ..model.errors import HistoryError
from ..model.fold import fold_parts
from ..model.ids import check_id
from ..model.note import LastEnd, WorkspaceNote
from ..model.parts import MessagePart, TextPart
from ..model.rows import AssistantRow, Row, RowMetadata, UserRow, parse_row
from ..model.usage import Usage
from .partial import Append, Drop, Keep, Update, decide_commit
from .results import AppendedUser, CommitResult, Loaded, RecoveryReport
from .row_fields import merged
from .rules import AnyRow, Rules, lies_behind, with_metadata
from .store import HistoryStore
from .usage_log import UsageEntry, UsageSource

T = TypeVar("T")

_NO_SEQUENCE: Final = -1

_log = logging.getLogger("streamengine.history")


@final
class MemoryHistory(HistoryStore):
    """Conversations in memory, gone with this object.

        history = MemoryHistory(rows=50)

    ``rows``: how many a conversation keeps, the newest; None: all. What is dropped is neither
    archived nor remembered.
    """

    def __init__(self, *, rows: int | None = None) -> None:
        """Raises ValueError for fewer than one row."""
        if rows is not None and rows < 1:
            raise ValueError(f"rows must be at least 1, not {rows}; None keeps them all")
        self._most = rows
        self._conversations: dict[str, _Conversation] = {}

    def _in(self, workspace_id: str, job: Callable[[_Conversation], T]) -> Effect[T, HistoryError]:
        def do() -> Effect[T, HistoryError]:
            try:
                return Effect.succeed(job(self._conversation(workspace_id)))
            except HistoryError as error:
                return Effect.fail(error)

        return Effect.suspend(do)

    def _conversation(self, workspace_id: str) -> _Conversation:
        kept = self._conversations.get(workspace_id)
        if kept is None:
            try:
                check_id(workspace_id)
            except ValueError as error:
                raise HistoryError(
                    "invalid_id", "memory", f"workspace id {error}", "Use another id."
                ) from error
            kept = self._conversations[workspace_id] = _Conversation(workspace_id, self._most)
        return kept

    # ---- the protocol

    def load(self, workspace_id: str) -> Effect[Loaded, HistoryError]:
        return self._in(workspace_id, lambda kept: kept.load())

    def read(
        self, workspace_id: str, *, from_boundary: bool = False
    ) -> Effect[list[Row], HistoryError]:
        return self._in(workspace_id, lambda kept: kept.read(from_boundary=from_boundary))

    def tail(self, workspace_id: str, limit: int) -> Effect[list[Row], HistoryError]:
        return self._in(workspace_id, lambda kept: kept.read()[-limit:] if limit > 0 else [])

    def read_archive(self, workspace_id: str) -> Effect[list[Row], HistoryError]:
        return self._in(workspace_id, lambda kept: _ordered(kept.archived))

    def archive(self, workspace_id: str) -> Effect[int, HistoryError]:
        return self._in(workspace_id, lambda kept: kept.archive())

    def append_user(self, workspace_id: str, row: UserRow) -> Effect[AppendedUser, HistoryError]:
        return self._in(workspace_id, lambda kept: kept.append_user(row))

    def reserve(self, workspace_id: str, message_id: str) -> Effect[int, HistoryError]:
        return self._in(workspace_id, lambda kept: kept.reserve(message_id))

    def release(self, workspace_id: str, message_id: str) -> Effect[None, HistoryError]:
        return self._in(workspace_id, lambda kept: kept.release(message_id))

    def write_partial(
        self, workspace_id: str, row: AssistantRow, *, durable: bool = False
    ) -> Effect[None, HistoryError]:
        return self._in(workspace_id, lambda kept: kept.write_partial(row))

    def append_partial(
        self,
        workspace_id: str,
        message_id: str,
        parts: tuple[MessagePart, ...],
        *,
        metadata: RowMetadata | None = None,
        durable: bool = False,
    ) -> Effect[None, HistoryError]:
        return self._in(workspace_id, lambda kept: kept.append_partial(message_id, parts, metadata))

    def read_partial(self, workspace_id: str) -> Effect[AssistantRow | None, HistoryError]:
        return self._in(workspace_id, lambda kept: kept.read_partial())

    def commit_partial(
        self, workspace_id: str, message_id: str | None = None
    ) -> Effect[CommitResult, HistoryError]:
        return self._in(workspace_id, lambda kept: kept.commit_partial(message_id))

    def conclude(
        self, workspace_id: str, row: AssistantRow, end: LastEnd
    ) -> Effect[CommitResult, HistoryError]:
        return self._in(workspace_id, lambda kept: kept.conclude(row, end))

    def delete_partial(
        self, workspace_id: str, message_id: str | None = None
    ) -> Effect[bool, HistoryError]:
        return self._in(workspace_id, lambda kept: kept.delete_partial(message_id))

    def finalize(self, workspace_id: str, row: AssistantRow) -> Effect[AssistantRow, HistoryError]:
        return self._in(workspace_id, lambda kept: kept.finalize(row))

    def update(self, workspace_id: str, row: AnyRow) -> Effect[AnyRow, HistoryError]:
        return self._in(workspace_id, lambda kept: kept.update(row))

    def truncate(self, workspace_id: str, after: int | None) -> Effect[int, HistoryError]:
        return self._in(workspace_id, lambda kept: kept.truncate(after))

    def record_usage(
        self,
        workspace_id: str,
        message_id: str,
        usage: Usage,
        *,
        model: str | None,
        source: UsageSource,
    ) -> Effect[bool, HistoryError]:
        def record(kept: _Conversation) -> bool:
            kept.rules.check_message_id(message_id)
            entry = UsageEntry(message_id=message_id, usage=usage, model=model, source=source)
            return kept.record_usage(entry)

        return self._in(workspace_id, record)

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
        return Effect.sync(
            lambda: sorted(name for name, kept in self._conversations.items() if kept.has_content)
        )


@final
class _Conversation:
    """The rows of one workspace, its partial, and what is kept beside both."""

    def __init__(self, workspace_id: str, most: int | None) -> None:
        place = f"memory of {workspace_id}"
        self.rules = Rules(workspace_id, place, place)
        self.archived: dict[int, Row] = {}
        self.usage: dict[str, UsageEntry] = {}
        self.note = WorkspaceNote()
        self._workspace_id = workspace_id
        self._most = most
        self._rows: dict[int, Row] = {}
        self._reserved: dict[str, int] = {}
        self._partial: AssistantRow | None = None
        # What was said since: folded by who reads it, so that an addition costs its own size.
        self._added: list[MessagePart] = []
        # Of all rows that were ever here, also of those that were dropped.
        self._last_sequence = _NO_SEQUENCE

    @property
    def has_content(self) -> bool:
        return bool(
            self._rows
            or self.archived
            or self.usage
            or self._partial is not None
            or self.note != WorkspaceNote()
        )

    # ---- rows

    def load(self) -> Loaded:
        commit = None
        problems: list[HistoryError] = []
        if self._partial is not None and self._partial.id not in self._reserved:
            try:
                commit = self.commit_partial(None)
            except HistoryError as error:
                problems.append(error)
        report = RecoveryReport(self._workspace_id, commit, problems=tuple(problems))
        return Loaded(tuple(self.read()), report)

    def read(self, *, from_boundary: bool = False) -> list[Row]:
        rows = _ordered(self._rows)
        boundary = self._boundary if from_boundary else None
        if boundary is None:
            return rows
        return [row for row in rows if self.rules.sequence_of(row) >= boundary]

    def append_user(self, row: UserRow) -> AppendedUser:
        self.rules.check_says_something(row)
        row = self.rules.checked(row)
        known = self._known(row)
        if known is not None:
            return AppendedUser(known, is_new=False)
        return AppendedUser(self._append(row), is_new=True)

    def _known(self, row: UserRow) -> UserRow | None:
        users = [known for known in self._all_rows() if isinstance(known, UserRow)]
        client = row.metadata.client_message_id
        for known in users:  # its own id counts first
            if known.id == row.id:
                return known
        for known in users:
            if client is not None and known.metadata.client_message_id == client:
                return known
        return None

    def finalize(self, row: AssistantRow) -> AssistantRow:
        row = self._with_usage_once(with_metadata(self.rules.checked(row), partial=None))
        self.rules.check_says_something(row)
        known = self._rows.get(self.rules.sequence_of(row))
        stored = self._append(row) if known is None else self._replace(known, row)
        self._reserved.pop(row.id, None)
        return stored

    def update(self, row: AnyRow) -> AnyRow:
        row = self.rules.checked(row)
        self.rules.check_says_something(row)
        sequence = row.metadata.history_sequence
        known = None if sequence is None else self._rows.get(sequence)
        if known is None:
            raise self.rules.not_found(row, sequence)
        return self._replace(known, self._with_usage_once(row))

    def truncate(self, after: int | None) -> int:
        last = _NO_SEQUENCE if after is None else after
        partial = self.read_partial()
        if partial is not None and lies_behind(partial, last):
            self._keep_usage(partial)
            self._drop_partial()
        cut = [row for row in self._rows.values() if lies_behind(row, last)]
        for row in cut:
            self._keep_usage(row)
            del self._rows[self.rules.sequence_of(row)]
        if cut:
            self._last_sequence = max([last, *self._rows, *self.archived])
        self.note = self.note.truncated(last)
        return len(cut)

    def archive(self) -> int:
        boundary = self._boundary
        sealed = [] if boundary is None else [n for n in self._rows if n < boundary]
        for sequence in sealed:
            self.archived[sequence] = self._rows.pop(sequence)
        return len(sealed)

    @property
    def _boundary(self) -> int | None:
        """The sequence of the last row that seals what lies before it."""
        return max(
            (n for n, row in self._rows.items() if row.metadata.compaction_boundary is True),
            default=None,
        )

    def _all_rows(self) -> Iterable[Row]:
        yield from self._rows.values()
        yield from self.archived.values()

    def _append(self, row: AnyRow) -> AnyRow:
        sequence = row.metadata.history_sequence
        if sequence is None:
            sequence = self._next_sequence()
            row = with_metadata(row, history_sequence=sequence)
        elif sequence in self.archived:
            raise self.rules.sealed(row, sequence)
        elif not self._is_kept_for(row, sequence) and sequence <= self._greatest_sequence:
            raise self.rules.stale(row, sequence, self._greatest_sequence)
        self._check_json(row)
        self._rows[sequence] = row
        self._last_sequence = max(self._last_sequence, sequence)
        if self._most is not None:
            for dropped in sorted(self._rows)[: -self._most]:
                del self._rows[dropped]
        return row

    def _replace(self, known: Row, row: AnyRow) -> AnyRow:
        sequence = self.rules.sequence_of(known)
        if (known.id, known.role) != (row.id, row.role):
            raise self.rules.sequence_taken(row, sequence, known.role, known.id)
        self._check_json(row)
        stored = parse_row(merged(known.to_mapping(), row.to_mapping()))
        assert isinstance(stored, type(row)), "the role was compared above"
        self._rows[sequence] = stored
        return stored

    def _check_json(self, row: Row) -> None:
        """What a disk could not keep is refused here too."""
        try:
            row.to_json()
        except ValueError as error:
            raise self.rules.not_json(self.rules.rows_at, row.id, error) from error

    # ---- sequences

    def reserve(self, message_id: str) -> int:
        self.rules.check_message_id(message_id)
        if message_id not in self._reserved:
            self._reserved[message_id] = self._next_sequence()
        return self._reserved[message_id]

    def release(self, message_id: str) -> None:
        self._reserved.pop(message_id, None)

    def _next_sequence(self) -> int:
        return self.rules.next_sequence([self._greatest_sequence])

    @property
    def _greatest_sequence(self) -> int:
        partial = None if self._partial is None else self._partial.metadata.history_sequence
        taken = (self._last_sequence, partial, *self._reserved.values())
        return max(sequence for sequence in taken if sequence is not None)

    def _is_kept_for(self, row: Row, sequence: int) -> bool:
        if self._reserved.get(row.id) == sequence:
            return True
        partial = self._partial
        return (
            partial is not None
            and partial.id == row.id
            and partial.metadata.history_sequence == sequence
        )

    # ---- the partial

    def write_partial(self, row: AssistantRow) -> None:
        row = with_metadata(self.rules.checked(row), partial=True)
        self._check_json(row)
        kept = self._partial
        if kept is not None:
            self.rules.check_not_overtaken(row, kept.id, kept.metadata.history_sequence)
            if kept.id != row.id:
                _log.warning(
                    "the partial of message %s in %s was in the way of that of %s: it is dropped",
                    kept.id,
                    self._workspace_id,
                    row.id,
                )
        self._partial, self._added = row, []

    def append_partial(
        self, message_id: str, parts: tuple[MessagePart, ...], metadata: RowMetadata | None
    ) -> None:
        kept = self._partial
        if kept is None or kept.id != message_id:
            raise self.rules.no_partial(message_id)
        # Text always is JSON, and it comes ten thousand times an answer.
        others = tuple(p for p in parts if not isinstance(p, TextPart) or p.model_extra)
        if others:
            self._check_json(kept.model_copy(update={"parts": others}))
        self._added.extend(parts)
        if metadata is not None:
            fields = {name: getattr(metadata, name) for name in metadata.model_fields_set}
            self._partial = with_metadata(kept, **fields)

    def read_partial(self) -> AssistantRow | None:
        if self._partial is not None and self._added:
            parts = fold_parts((*self._partial.parts, *self._added))
            self._partial, self._added = self._partial.model_copy(update={"parts": parts}), []
        return self._partial

    def delete_partial(self, message_id: str | None) -> bool:
        if self._partial is None or message_id not in (None, self._partial.id):
            return False
        self._drop_partial()
        return True

    def _drop_partial(self) -> None:
        self._partial, self._added = None, []

    def commit_partial(self, message_id: str | None) -> CommitResult:
        partial = self.read_partial()
        if partial is None:
            return CommitResult("no-partial")
        if message_id not in (None, partial.id):
            return CommitResult("other-message")
        result = self._committed(partial)
        self._drop_partial()
        return result

    def conclude(self, row: AssistantRow, end: LastEnd) -> CommitResult:
        result = self._committed(with_metadata(self.rules.checked(row), partial=True))
        self.delete_partial(row.id)
        if result.row is None:
            self.note = self.note.ended(end)
        self._reserved.pop(row.id, None)
        return result

    def _committed(self, partial: AssistantRow) -> CommitResult:
        """Its row, and its usage, which stands once: on the row, or apart from all rows (P16)."""
        result = self._carry_out(self._with_usage_once(partial))
        if partial.metadata.usage is not None:
            self.record_usage(UsageEntry.of_partial(partial, partial.metadata.usage))
        return result

    def _carry_out(self, partial: AssistantRow) -> CommitResult:
        sequence = partial.metadata.history_sequence
        known = None if sequence is None else self._rows.get(sequence)
        match decide_commit(partial, [] if known is None else [known], self._boundary):
            case Append(row):
                return CommitResult("appended", self._append(row))
            case Update(row):
                assert known is not None, "only a row that was found can be updated"
                return CommitResult("updated", self._replace(known, row))
            case Drop(reason):
                return CommitResult("dropped", drop_reason=reason)
            case Keep(kind, problem, way_out):
                raise HistoryError(kind, self.rules.partial_at, problem, way_out)

    # ---- usage

    def record_usage(self, entry: UsageEntry) -> bool:
        if entry.message_id in self.usage or any(
            row.id == entry.message_id and row.metadata.usage is not None
            for row in self._all_rows()
        ):
            return False
        self.usage[entry.message_id] = entry
        return True

    def _keep_usage(self, row: Row) -> None:
        if isinstance(row, AssistantRow) and row.metadata.usage is not None:
            self.usage.setdefault(row.id, UsageEntry.of_partial(row, row.metadata.usage))

    def _with_usage_once(self, row: AnyRow) -> AnyRow:
        if row.metadata.usage is None or row.id not in self.usage:
            return row
        return with_metadata(row, usage=None)


def _ordered(rows: dict[int, Row]) -> list[Row]:
    return [rows[sequence] for sequence in sorted(rows)]
