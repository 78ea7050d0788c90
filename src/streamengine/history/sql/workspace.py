"""The rules of the history, on tables: what one transaction does to one workspace.

The counterpart of files.py. Every method is given the connection of a transaction; whether that is
committed is for the caller to say, and only then may anything be remembered of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any, Final, cast, final

from sqlalchemy import ColumnElement, Connection, delete, func, insert, select, update
from sqlalchemy import Row as Found

from ...model.errors import HistoryError
from ...model.note import LastEnd, WorkspaceNote
from ...model.parts import MessagePart
from ...model.rows import AssistantRow, Row, RowMetadata, UserRow, parse_row
from .. import partial_log as log_lines
from ..lines import encoded, fields_of
from ..partial import Append, Drop, Keep, Update, decide_commit, is_blank
from ..partial_log import LogContent, Tail
from ..results import AppendedUser, CommitResult, PartialRead, ReadRows
from ..row_fields import merged, metadata_of, row_of
from ..rules import AnyRow, Rules, lies_behind, with_metadata
from ..usage_log import UsageEntry
from . import schema

_LOG_DIGEST: Final = ""
"""A log in a table is deleted with its partial; it needs no mark of whose it is."""

_log = logging.getLogger("streamengine.history")

_rows, _partials, _partial_log = schema.rows, schema.partials, schema.partial_log


@final
class SqlWorkspace:
    """One workspace. Sequences that are reserved are known to this object only."""

    def __init__(self, workspace_id: str, place: str) -> None:
        self.workspace_id = workspace_id
        self.rules: Rules = Rules(workspace_id, place, place)
        self.reserved: dict[str, int] = {}

    # ---- rows

    def read(self, db: Connection, *, from_boundary: bool = False) -> ReadRows:
        where = [~_rows.c.is_archived]
        if from_boundary:
            boundary = self._boundary(db)
            if boundary is not None:
                where.append(_rows.c.sequence >= boundary)
        found = db.execute(self._select(*where).order_by(_rows.c.sequence))
        return _read(found.all())

    def read_archive(self, db: Connection) -> ReadRows:
        found = db.execute(self._select(_rows.c.is_archived).order_by(_rows.c.sequence))
        return _read(found.all())

    def tail(self, db: Connection, limit: int) -> list[Row]:
        if limit <= 0:
            return []
        last = self._select(~_rows.c.is_archived).order_by(_rows.c.sequence.desc())
        found = db.execute(last.limit(limit))
        return _read(reversed(found.all())).rows

    def append_user(self, db: Connection, row: UserRow) -> AppendedUser:
        self.rules.check_says_something(row)
        row = self.rules.checked(row)
        known = self._known_user_row(db, row)
        if known is not None:
            return AppendedUser(known, is_new=False)
        return AppendedUser(self._append(db, row), is_new=True)

    def finalize(self, db: Connection, row: AssistantRow) -> AssistantRow:
        row = with_metadata(self.rules.checked(row), partial=None)
        self.rules.check_says_something(row)
        sequence = self.rules.sequence_of(row)
        row = self._with_usage_once(db, row)
        known = self._with_sequence(db, sequence)
        return self._append(db, row) if known is None else self._replace(db, known, row)

    def update_row(self, db: Connection, row: AnyRow) -> AnyRow:
        row = self.rules.checked(row)
        sequence = row.metadata.history_sequence
        self.rules.check_says_something(row)
        known = None if sequence is None else self._with_sequence(db, sequence)
        if known is None:
            raise self.rules.not_found(row, sequence)
        return self._replace(db, known, self._with_usage_once(db, row))

    def truncate(self, db: Connection, after: int | None) -> int:
        last = -1 if after is None else after
        partial = self.read_partial(db).row
        if partial is not None and lies_behind(partial, last):
            self._keep_usage(db, partial)
            self.delete_partial(db)
        behind = self._of(_rows), ~_rows.c.is_archived, _rows.c.sequence > last
        for row in db.execute(self._select(*behind)).all():
            self._keep_usage(db, _row(row.body))
        note = self.read_note(db)
        if note.truncated(last) is not note:
            self.write_note(db, note.truncated(last))
        return db.execute(delete(_rows).where(*behind)).rowcount

    def _keep_usage(self, db: Connection, row: Row | None) -> None:
        if not isinstance(row, AssistantRow) or row.metadata.usage is None:
            return
        if not self._has_usage(db, row.id):
            self._insert_usage(db, UsageEntry.of_partial(row, row.metadata.usage))

    def remove_blank_rows(self, db: Connection) -> int:
        partial = self._partial_id(db)
        found = db.execute(
            self._select(~_rows.c.is_archived, _rows.c.is_partial, _rows.c.role == "assistant")
        )
        unwanted = [
            line.number
            for line in found.all()
            if line.message_id not in self.reserved
            and line.message_id != partial
            and isinstance(row := _row(line.body), AssistantRow)
            and is_blank(row.parts)
        ]
        if unwanted:
            db.execute(delete(_rows).where(_rows.c.number.in_(unwanted)))
        return len(unwanted)

    def archive(self, db: Connection) -> int:
        boundary = self._boundary(db)
        if boundary is None:
            return 0
        sealed = self._of(_rows), ~_rows.c.is_archived, _rows.c.sequence < boundary
        return db.execute(update(_rows).where(*sealed).values(is_archived=True)).rowcount

    # ---- sequences

    def next_sequence(self, db: Connection) -> int:
        return self.rules.next_sequence([self._greatest_sequence(db)])

    def _greatest_sequence(self, db: Connection) -> int:
        stored = db.scalar(select(func.max(_rows.c.sequence)).where(self._of(_rows)))
        partial = db.scalar(select(_partials.c.sequence).where(self._of(_partials)))
        taken = (stored, partial, *self.reserved.values())
        return max((sequence for sequence in taken if sequence is not None), default=-1)

    def _check_not_stale(self, db: Connection, row: Row, sequence: int) -> None:
        sealed = select(_rows.c.number).where(
            self._of(_rows), _rows.c.is_archived, _rows.c.sequence == sequence
        )
        if db.scalar(sealed) is not None:
            raise self.rules.sealed(row, sequence)
        if self.reserved.get(row.id) == sequence:
            return
        if (row.id, sequence) == self._partial_key(db):
            return  # reserved before a crash; the partial carries the reservation
        greatest = self._greatest_sequence(db)
        if sequence <= greatest:
            raise self.rules.stale(row, sequence, greatest)

    # ---- the partial

    def write_partial(self, db: Connection, row: AssistantRow) -> Tail:
        row = with_metadata(self.rules.checked(row), partial=True)
        body = self._body(row)
        kept = self._partial_key(db)
        if kept is not None and kept[0] != row.id:
            self.rules.check_not_overtaken(row, *kept)
            self._set_partial_aside(db, f"was in the way of the partial of message {row.id}")
        self.delete_partial(db)
        db.execute(
            insert(_partials).values(
                workspace_id=self.workspace_id,
                message_id=row.id,
                sequence=row.metadata.history_sequence,
                body=body,
            )
        )
        return log_lines.tail_of(row.parts)

    def append_partial(
        self,
        db: Connection,
        message_id: str,
        parts: tuple[MessagePart, ...],
        metadata: RowMetadata | None,
        tail: Tail,
    ) -> Tail:
        """The tail is that of the log before, and after."""
        if self._partial_id(db) != message_id:
            raise self.rules.no_partial(message_id)
        try:
            lines, tail = log_lines.encode(parts, metadata, tail)
        except ValueError as error:
            raise self.rules.not_json(self.rules.partial_at, message_id, error) from error
        if lines:
            added = insert(_partial_log).values(
                workspace_id=self.workspace_id, lines=lines.decode()
            )
            db.execute(added)
        return tail

    def tail_of_partial(self, db: Connection) -> Tail:
        """What the log ends with that is kept."""
        body = db.scalar(select(_partials.c.body).where(self._of(_partials)))
        base = None if body is None else _partial(body)
        return None if base is None else (self._log_of(db, base)).tail

    def read_partial(self, db: Connection) -> PartialRead:
        body = db.scalar(select(_partials.c.body).where(self._of(_partials)))
        if body is None:
            return PartialRead()
        base = _partial(body)
        if base is None:
            return PartialRead(warning=self._set_partial_aside(db, "is not an assistant row"))
        log = self._log_of(db, base)
        warning = None
        if log.unreadable_lines:
            warning = f"the log of the partial has {log.unreadable_lines} lines that can't be read"
        return PartialRead(log_lines.joined(base, log), warning)

    def delete_partial(self, db: Connection, message_id: str | None = None) -> bool:
        if message_id is not None and self._partial_id(db) != message_id:
            return False
        db.execute(delete(_partial_log).where(self._of(_partial_log)))
        return db.execute(delete(_partials).where(self._of(_partials))).rowcount > 0

    def commit_partial(self, db: Connection, message_id: str | None) -> CommitResult:
        read = self.read_partial(db)
        partial = read.row
        if partial is None:
            return CommitResult("no-partial")
        if message_id is not None and partial.id != message_id:
            return CommitResult("other-message")
        result = self._committed(db, partial)
        if read.warning is not None:
            self._set_partial_aside(db, read.warning)
        self.delete_partial(db)
        return result

    def conclude(self, db: Connection, row: AssistantRow, end: LastEnd) -> CommitResult:
        result = self._committed(db, with_metadata(self.rules.checked(row), partial=True))
        self.delete_partial(db, row.id)
        if result.row is None:
            self.update_note(db, lambda note: note.ended(end))
        return result

    def _committed(self, db: Connection, partial: AssistantRow) -> CommitResult:
        result = self._carry_out(db, self._with_usage_once(db, partial))
        usage = partial.metadata.usage
        if usage is not None:
            self.record_usage(db, UsageEntry.of_partial(partial, usage))
        return result

    def _carry_out(self, db: Connection, partial: AssistantRow) -> CommitResult:
        sequence = partial.metadata.history_sequence
        known = None if sequence is None else self._with_sequence(db, sequence)
        rows: list[Row] = []
        if known is not None:
            row = _row(known.body)
            if row is None:
                raise self.rules.sequence_taken(partial, sequence, known.role, known.message_id)
            rows.append(row)
        match decide_commit(partial, rows, self._boundary(db)):
            case Append(row):
                return CommitResult("appended", self._append(db, row))
            case Update(row):
                assert known is not None, "only a row that was found can be updated"
                return CommitResult("updated", self._replace(db, known, row))
            case Drop(reason):
                return CommitResult("dropped", drop_reason=reason)
            case Keep(kind, problem, way_out):
                raise HistoryError(kind, self.rules.partial_at, problem, way_out)

    def _log_of(self, db: Connection, base: AssistantRow) -> LogContent:
        found = db.execute(
            select(_partial_log.c.lines)
            .where(self._of(_partial_log))
            .order_by(_partial_log.c.number)
        )
        data = "".join(found.scalars()).encode()
        return log_lines.decode(
            log_lines.header(base.id, _LOG_DIGEST) + data, _LOG_DIGEST, base.parts
        )

    def _partial_id(self, db: Connection) -> str | None:
        return db.scalar(select(_partials.c.message_id).where(self._of(_partials)))

    def _partial_key(self, db: Connection) -> tuple[str, int | None] | None:
        """Whose partial is kept, and under which sequence."""
        found = db.execute(
            select(_partials.c.message_id, _partials.c.sequence).where(self._of(_partials))
        )
        kept = found.first()
        return None if kept is None else (kept.message_id, kept.sequence)

    def _set_partial_aside(self, db: Connection, problem: str) -> str:
        body = db.scalar(select(_partials.c.body).where(self._of(_partials)))
        log = db.execute(
            select(_partial_log.c.lines)
            .where(self._of(_partial_log))
            .order_by(_partial_log.c.number)
        )
        text = "\n".join([body or "", *log.scalars()])
        self.delete_partial(db)
        return self._put_aside(db, "partial", problem, text)

    def _put_aside(self, db: Connection, kind: str, problem: str, body: str) -> str:
        db.execute(
            insert(schema.aside).values(
                workspace_id=self.workspace_id, kind=kind, reason=problem, body=body
            )
        )
        warning = (
            f"the {kind} of workspace {self.workspace_id} {problem}; it was moved to history_aside"
        )
        _log.warning("%s", warning)
        return warning

    # ---- usage, and the note

    def record_usage(self, db: Connection, entry: UsageEntry) -> bool:
        self.rules.check_message_id(entry.message_id)
        on_row = select(_rows.c.number).where(
            self._of(_rows), _rows.c.message_id == entry.message_id, _rows.c.has_usage
        )
        if db.scalar(on_row) is not None or self._has_usage(db, entry.message_id):
            return False
        self._insert_usage(db, entry)
        return True

    def _insert_usage(self, db: Connection, entry: UsageEntry) -> None:
        db.execute(
            insert(schema.usage).values(
                workspace_id=self.workspace_id,
                message_id=entry.message_id,
                body=entry.to_json(),
            )
        )

    def read_usage(self, db: Connection) -> list[UsageEntry]:
        found = db.execute(
            select(schema.usage.c.body)
            .where(self._of(schema.usage))
            .order_by(schema.usage.c.number)
        )
        entries = (UsageEntry.of_line(body) for body in found.scalars())
        return [entry for entry in entries if entry is not None]

    def _has_usage(self, db: Connection, message_id: str) -> bool:
        kept = select(schema.usage.c.number).where(
            self._of(schema.usage), schema.usage.c.message_id == message_id
        )
        return db.scalar(kept) is not None

    def _with_usage_once(self, db: Connection, row: AnyRow) -> AnyRow:
        if row.metadata.usage is None or not self._has_usage(db, row.id):
            return row
        return with_metadata(row, usage=None)

    def read_note(self, db: Connection) -> WorkspaceNote:
        body = db.scalar(select(schema.notes.c.body).where(self._of(schema.notes)))
        if body is None:
            return WorkspaceNote()
        try:
            return WorkspaceNote.model_validate(fields_of(body.encode()))
        except ValueError:
            db.execute(delete(schema.notes).where(self._of(schema.notes)))
            self._put_aside(db, "note", "can't be read", body)
            return WorkspaceNote()

    def update_note(
        self, db: Connection, change: Callable[[WorkspaceNote], WorkspaceNote]
    ) -> WorkspaceNote:
        note = change(self.read_note(db))
        self.write_note(db, note)
        return note

    def write_note(self, db: Connection, note: WorkspaceNote) -> None:
        db.execute(delete(schema.notes).where(self._of(schema.notes)))
        db.execute(insert(schema.notes).values(workspace_id=self.workspace_id, body=note.to_json()))

    # ---- statements

    def _of(self, table: Any) -> ColumnElement[bool]:
        return cast("ColumnElement[bool]", table.c.workspace_id == self.workspace_id)

    def _select(self, *where: ColumnElement[bool]) -> Any:
        return select(
            _rows.c.number, _rows.c.message_id, _rows.c.role, _rows.c.sequence, _rows.c.body
        ).where(self._of(_rows), *where)

    def _boundary(self, db: Connection) -> int | None:
        found: int | None = db.scalar(
            select(func.max(_rows.c.sequence)).where(self._of(_rows), _rows.c.is_boundary)
        )
        return found

    def _with_sequence(self, db: Connection, sequence: int) -> Found[Any] | None:
        found = db.execute(self._select(~_rows.c.is_archived, _rows.c.sequence == sequence))
        return found.first()

    def _known_user_row(self, db: Connection, row: UserRow) -> UserRow | None:
        client = row.metadata.client_message_id
        same = [_rows.c.message_id == row.id]
        if client is not None:
            same.append(_rows.c.client_key == schema.client_key(client))
        for condition in same:  # its own id counts first
            found = db.execute(
                self._select(_rows.c.role == "user", condition).order_by(_rows.c.number)
            )
            for line in found.all():
                known = _row(line.body)
                if isinstance(known, UserRow):
                    return known
        return None

    def _append(self, db: Connection, row: AnyRow) -> AnyRow:
        sequence = row.metadata.history_sequence
        if sequence is None:
            sequence = self.next_sequence(db)
            row = with_metadata(row, history_sequence=sequence)
        else:
            self._check_not_stale(db, row, sequence)
        values = _values(row.to_mapping() if self._body(row) else {})
        db.execute(
            insert(_rows).values(
                workspace_id=self.workspace_id, sequence=sequence, is_archived=False, **values
            )
        )
        return row

    def _replace(self, db: Connection, known: Found[Any], row: AnyRow) -> AnyRow:
        if known.message_id != row.id or known.role != row.role:
            raise self.rules.sequence_taken(row, known.sequence, known.role, known.message_id)
        self._body(row)
        fields = merged(fields_of(known.body.encode()) or {}, row.to_mapping())
        db.execute(update(_rows).where(_rows.c.number == known.number).values(**_values(fields)))
        stored = parse_row(fields)
        assert isinstance(stored, type(row)), "the role was compared above"
        return stored

    def _body(self, row: Row) -> str:
        """Its JSON. Raises HistoryError ("invalid_row")."""
        try:
            return row.to_json()
        except ValueError as error:
            raise self.rules.not_json(self.rules.rows_at, row.id, error) from error


def _values(fields: dict[str, Any]) -> dict[str, Any]:
    """The columns of a row with this JSON."""
    metadata = metadata_of(fields)
    client: object = metadata.get("clientMessageId")
    return {
        "message_id": fields["id"],
        "role": fields["role"],
        "client_key": schema.client_key(client) if isinstance(client, str) else None,
        "is_boundary": metadata.get("compactionBoundary") is True,
        "is_partial": metadata.get("partial") is True,
        "has_usage": isinstance(metadata.get("usage"), dict),
        "body": encoded(fields).decode(),
    }


def _row(body: str) -> Row | None:
    fields = fields_of(body.encode())
    return None if fields is None else row_of(fields)


def _partial(body: str) -> AssistantRow | None:
    row = _row(body)
    return with_metadata(row, partial=True) if isinstance(row, AssistantRow) else None


def _read(found: Iterable[Any]) -> ReadRows:
    rows = [_row(line.body) for line in found]
    readable = [row for row in rows if row is not None]
    return ReadRows(readable, len(rows) - len(readable))
