"""The files of one workspace: `chat.jsonl`, `partial.json`, and the rules that join them.

The synchronous core of the history. Each public method is one step that no other thread sees half
done; `exclusive()` makes one step of several. Nothing here knows of event loops or effects.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from threading import RLock
from typing import Final, final

from ..model.errors import HistoryError
from ..model.ids import check_id
from ..model.note import LastEnd, WorkspaceNote
from ..model.parts import MessagePart
from ..model.rows import AssistantRow, Row, RowMetadata, UserRow, parse_row
from ..model.usage import Usage
from .archive import Archive
from .chatlog import NO_SEQUENCE, ChatLog, LineRef
from .directory import DurableDirectory, FsyncPolicy, OpenDirectory, Step
from .note_file import read_note, write_note
from .partial import Append, Drop, Keep, Update, decide_commit, is_blank
from .partial_file import PARTIAL_FILE, PartialFile
from .results import AppendedUser, CommitResult, PartialRead, ReadRows
from .rules import AnyRow, Rules, lies_behind, with_metadata
from .usage_log import UsageEntry, UsageLog, UsageSource

CHAT_FILE: Final = "chat.jsonl"


@final
class WorkspaceFiles:
    """The durable history of one workspace.

    Sequence numbers that were reserved and not yet written are known to this object only, so
    there is to be one object a directory (and one process: see lock.py).
    """

    def __init__(
        self,
        directory: Path,
        *,
        workspace_id: str | None = None,
        fsync: FsyncPolicy = "terminal",
        on_step: Callable[[Step], None] | None = None,
    ) -> None:
        """The workspace's id is the directory's name unless it is given.

        `on_step` is called after each change on disk; what it raises passes through unhandled.
        Raises ValueError when the id is none.
        """
        self.workspace_id: str = check_id(directory.name if workspace_id is None else workspace_id)
        self._directory = DurableDirectory(directory, fsync=fsync, on_step=on_step)
        self._chat = ChatLog(CHAT_FILE)
        self._archive = Archive(self._chat)
        self._rules = Rules(self.workspace_id, self.path / CHAT_FILE, self.path / PARTIAL_FILE)
        self._partial = PartialFile(self._rules)
        self._usage = UsageLog()
        self._reserved: dict[str, int] = {}
        self._lock = RLock()

    @property
    def path(self) -> Path:
        return self._directory.path

    @contextmanager
    def exclusive(self) -> Generator[None]:
        """No other thread changes or reads this workspace inside the block."""
        with self._lock:
            yield

    # ---- rows

    def read(self, *, from_boundary: bool = False) -> ReadRows:
        """The rows, by sequence; those that count, if asked. Lines that are no rows are counted and
        stay in the file.
        """
        with self._lock, self._directory.opened() as directory:
            if directory is None:
                return ReadRows([], 0)
            if from_boundary:
                return self._chat.read_from_boundary(directory)
            return self._chat.read(directory)

    def tail(self, limit: int) -> list[Row]:
        """The last rows of the file, by sequence, without reading the rest of it."""
        with self._lock, self._directory.opened() as directory:
            return [] if directory is None else self._chat.tail(directory, limit)

    def append_user(self, row: UserRow) -> AppendedUser:
        """Make a user row durable, under the next sequence unless it brings one.

        A row with the same id, or the same client message id, is there already: that one is the
        answer and nothing is written. Raises HistoryError ("empty_row": it says nothing).
        """
        self._rules.check_says_something(row)
        row = self._rules.checked(row)
        with self._lock, self._directory.made() as directory:
            known = self._known_user_row(directory, row)
            if known is not None:
                return AppendedUser(known, is_new=False)
            return AppendedUser(self._append(directory, row), is_new=True)

    def finalize(self, row: AssistantRow) -> AssistantRow:
        """Make a final row durable, in the place of the partial row with its sequence, or as a new
        row under it. The row loses its partial mark. Gives the row as it stands in the file.

        Its reservation ends with that. Can be repeated. Raises HistoryError ("empty_row": it says
        nothing).
        """
        row = with_metadata(self._rules.checked(row), partial=None)
        self._rules.check_says_something(row)
        sequence = self._rules.sequence_of(row)
        with self._lock, self._directory.made() as directory:
            row = self._with_usage_once(directory, row)
            line = self._chat.index(directory).with_sequence(sequence)
            if line is None:
                stored = self._append(directory, row)
            else:
                stored = self._replace(directory, line, row)
            self._reserved.pop(row.id, None)
            return stored

    def update_row(self, row: AnyRow) -> AnyRow:
        """Replace the row that has this row's sequence; all other lines keep their bytes.

        Raises HistoryError ("not_found": no row has it; "sequence_taken": another message has;
        "empty_row").
        """
        row = self._rules.checked(row)
        sequence = row.metadata.history_sequence
        self._rules.check_says_something(row)
        with self._lock, self._directory.opened() as directory:
            index = None if directory is None else self._chat.index(directory)
            line = None if index is None or sequence is None else index.with_sequence(sequence)
            if directory is None or line is None:
                raise self._rules.not_found(row, sequence)
            return self._replace(directory, line, self._with_usage_once(directory, row))

    def truncate(self, after: int | None) -> int:
        """Take out the rows behind this sequence (None: all), a partial that would become one, and
        the note on an answer to one; gives how many rows. What they cost is recorded apart first.
        """
        last = NO_SEQUENCE if after is None else after
        with self._lock, self._directory.opened() as directory:
            if directory is None:
                return 0
            partial = self._partial.read(directory).row
            if partial is not None and lies_behind(partial, last):
                self._keep_usage(directory, partial)
                self._partial.remove(directory)
            cut = self._chat.index(directory).behind(last)
            for line in cut:
                self._keep_usage(directory, self._chat.row_at(directory, line))
            if cut:
                self._chat.cut_out(directory, cut)
            note = read_note(directory)
            if note.truncated(last) is not note:
                write_note(directory, note.truncated(last))
            return len(cut)

    def _keep_usage(self, directory: OpenDirectory, row: Row | None) -> None:
        if isinstance(row, AssistantRow) and row.metadata.usage is not None:
            self._usage.record(directory, UsageEntry.of_partial(row, row.metadata.usage))

    def remove_blank_rows(self) -> int:
        """Remove partial rows that say nothing and whose partial is gone; gives how many.

        An older version wrote such a row before each stream.
        """
        with self._lock, self._directory.opened() as directory:
            if directory is None:
                return 0
            note = self._partial.note(directory)

            def is_unwanted(line: LineRef) -> bool:
                if line.message_id in self._reserved:
                    return False
                if note is not None and note.message_id == line.message_id:
                    return False
                row = self._chat.row_at(directory, line)
                return isinstance(row, AssistantRow) and is_blank(row.parts)

            unwanted = list(filter(is_unwanted, self._chat.index(directory).partial_lines))
            if unwanted:
                self._chat.cut_out(directory, unwanted)
            return len(unwanted)

    # ---- the archive

    def archive(self) -> int:
        """Move the rows before the boundary into the archive, durably; gives how many lines."""
        with self._lock, self._directory.opened() as directory:
            return 0 if directory is None else self._archive.take_sealed(directory)

    def finish_archive(self) -> int:
        """Take out the rows that a crash left both here and in the archive; gives how many."""
        with self._lock, self._directory.opened() as directory:
            return 0 if directory is None else self._archive.finish(directory)

    def read_archive(self) -> ReadRows:
        """The rows that were archived, by sequence."""
        with self._lock, self._directory.opened() as directory:
            return ReadRows([], 0) if directory is None else self._archive.read(directory)

    # ---- usage, and the note

    def record_usage(
        self, message_id: str, usage: Usage, *, model: str | None, source: UsageSource
    ) -> bool:
        """Keep what an answer without a row cost; False when it is kept already, here or on a row
        (P16).
        """
        self._rules.check_message_id(message_id)
        entry = UsageEntry(message_id=message_id, usage=usage, model=model, source=source)
        with self._lock, self._directory.made() as directory:
            return self._record_usage(directory, entry)

    def read_usage(self) -> list[UsageEntry]:
        """What answers without a row cost, in the order of recording."""
        with self._lock, self._directory.opened() as directory:
            if directory is None:
                return []
            # A truncate that was killed has recorded it, and the row still says it.
            return [
                entry
                for entry in self._usage.entries(directory)
                if not self._is_on_row(directory, entry.message_id)
            ]

    def read_note(self) -> WorkspaceNote:
        """What is remembered of the workspace beside its rows; an empty note when nothing is."""
        with self._lock, self._directory.opened() as directory:
            return WorkspaceNote() if directory is None else read_note(directory)

    def write_note(self, note: WorkspaceNote) -> None:
        """Replace the note, durably."""
        with self._lock, self._directory.made() as directory:
            write_note(directory, note)

    def update_note(self, change: Callable[[WorkspaceNote], WorkspaceNote]) -> WorkspaceNote:
        """Replace the note, durably, by what `change` makes of it; gives that."""
        with self._lock, self._directory.made() as directory:
            note = change(read_note(directory))
            write_note(directory, note)
            return note

    def _record_usage(self, directory: OpenDirectory, entry: UsageEntry) -> bool:
        if self._is_on_row(directory, entry.message_id):
            return False
        return self._usage.record(directory, entry)

    def _is_on_row(self, directory: OpenDirectory, message_id: str) -> bool:
        return any(log.index(directory).has_usage(message_id) for log in self._logs)

    def _with_usage_once(self, directory: OpenDirectory, row: AnyRow) -> AnyRow:
        """The row, without its usage where that was recorded apart."""
        if row.metadata.usage is None or not self._usage.has(directory, row.id):
            return row
        return with_metadata(row, usage=None)

    # ---- sequences

    def reserve(self, message_id: str) -> int:
        """The sequence that this message will have; the same one until it is released."""
        self._rules.check_message_id(message_id)
        with self._lock, self._directory.opened() as directory:
            if message_id not in self._reserved:
                self._reserved[message_id] = self._next_sequence(directory)
            return self._reserved[message_id]

    def release(self, message_id: str) -> None:
        """Give up a reservation, if there is one."""
        with self._lock:
            self._reserved.pop(message_id, None)

    def is_reserved(self, message_id: str) -> bool:
        """Whether a live stream holds a sequence for this message."""
        with self._lock:
            return message_id in self._reserved

    @property
    def has_reservations(self) -> bool:
        """Whether a live stream holds any sequence."""
        with self._lock:
            return bool(self._reserved)

    # ---- the partial

    def write_partial(self, row: AssistantRow, *, durable: bool = False) -> None:
        """Begin the partial anew, marked partial whatever the row says.

        `durable=True` for what somebody is told of right afterwards (a tool's result, an error).
        A partial of another message that nobody committed is moved aside, not overwritten.
        """
        row = self._rules.checked(row)
        with self._lock, self._directory.made() as directory:
            self._partial.write(directory, row, durable=durable)

    def append_partial(
        self,
        message_id: str,
        parts: tuple[MessagePart, ...],
        *,
        metadata: RowMetadata | None = None,
        durable: bool = False,
    ) -> None:
        """Add to the partial of this message what was said since, and what its metadata now says.

        Costs the size of what is added. Raises HistoryError ("not_found": there is none).
        """
        with self._lock, self._directory.made() as directory:
            self._partial.add(directory, message_id, parts, metadata, durable=durable)

    def read_partial(self) -> PartialRead:
        """The partial on disk. A file that is no partial of this workspace is moved aside."""
        with self._lock, self._directory.opened() as directory:
            return PartialRead() if directory is None else self._partial.read(directory)

    def delete_partial(self) -> bool:
        """Remove the partial, whatever it holds; False when there is none."""
        with self._lock, self._directory.opened() as directory:
            return False if directory is None else self._partial.remove(directory)

    def delete_partial_if_message_id(self, message_id: str) -> bool:
        """Remove the partial of this message; False when there is none, or another one's."""
        with self._lock, self._directory.opened() as directory:
            note = None if directory is None else self._partial.note(directory)
            if directory is None or note is None or note.message_id != message_id:
                return False
            return self._partial.remove(directory)

    def commit_partial(self, message_id: str | None = None) -> CommitResult:
        """Move what the partial says into the history, then remove it; see partial.py for how.

        With `message_id` only the partial of that message. Can be repeated. When any step fails
        a HistoryError is raised and the partial is still there.
        """
        with self._lock, self._directory.opened() as directory:
            if directory is None:
                return CommitResult("no-partial")
            read = self._partial.read(directory)
            partial = read.row
            if partial is None:
                return CommitResult("no-partial")
            if message_id is not None and partial.id != message_id:
                return CommitResult("other-message")
            result = self._committed(directory, partial)
            # Its row is durable: should it come back, it is committed again, which changes nothing
            # (P4).
            self._partial.remove(directory, keep_log=read.warning is not None, durable=False)
            return result

    def conclude(self, row: AssistantRow, end: LastEnd) -> CommitResult:
        """Commit the last state of a partial that this process has written itself, and end the
        reservation. Where no row is written that says how it ended, the note says it.

        Raises HistoryError when any step fails; can be repeated.
        """
        row = with_metadata(self._rules.checked(row), partial=True)
        with self._lock, self._directory.made() as directory:
            result = self._committed(directory, row)
            partial = self._partial.note(directory)
            if partial is not None and partial.message_id == row.id:
                self._partial.remove(directory, durable=False)  # as after a commit
            if result.row is None:
                write_note(directory, read_note(directory).ended(end))
            self._reserved.pop(row.id, None)
            return result

    def sweep(self) -> tuple[str, ...]:
        """Remove what a crash left and nobody needs; gives the names of the files."""
        with self._lock, self._directory.opened() as directory:
            if directory is None:
                return ()
            return (*directory.sweep_temps(), *self._partial.sweep(directory))

    # ---- steps of a commit

    def _committed(self, directory: OpenDirectory, partial: AssistantRow) -> CommitResult:
        """Its row, and its usage, which stands once: on the row, or apart from all rows (P16)."""
        result = self._carry_out(directory, self._with_usage_once(directory, partial))
        usage = partial.metadata.usage
        if usage is not None:
            # Of a partial that became no row, or of one whose row says nothing of it.
            self._record_usage(directory, UsageEntry.of_partial(partial, usage))
        return result

    def _carry_out(self, directory: OpenDirectory, partial: AssistantRow) -> CommitResult:
        index = self._chat.index(directory)
        sequence = partial.metadata.history_sequence
        line = None if sequence is None else index.with_sequence(sequence)
        rows: list[Row] = []
        if line is not None:
            row = self._chat.row_at(directory, line)
            if row is None:
                raise self._rules.sequence_taken(partial, line.sequence, line.role, line.message_id)
            rows.append(row)
        decision = decide_commit(partial, rows, index.boundary)
        match decision:
            case Append(row):
                return CommitResult("appended", self._append(directory, row))
            case Update(row):
                assert line is not None, "only a row that was found can be updated"
                return CommitResult("updated", self._replace(directory, line, row))
            case Drop(reason):
                return CommitResult("dropped", drop_reason=reason)
            case Keep(kind, problem, way_out):
                raise HistoryError(kind, self.path / PARTIAL_FILE, problem, way_out)

    def _append(self, directory: OpenDirectory, row: AnyRow) -> AnyRow:
        sequence = row.metadata.history_sequence
        if sequence is None:
            row = with_metadata(row, history_sequence=self._next_sequence(directory))
        else:
            self._check_not_stale(directory, row, sequence)
        try:
            self._chat.append(directory, row, durable=True)
        except ValueError as error:
            raise self._rules.not_json(self._rules.rows_at, row.id, error) from error
        return row

    def _replace(self, directory: OpenDirectory, line: LineRef, row: AnyRow) -> AnyRow:
        if line.message_id != row.id or line.role != row.role:
            raise self._rules.sequence_taken(row, line.sequence, line.role, line.message_id)
        try:
            fields = self._chat.replace(directory, line, row, durable=True)
        except ValueError as error:
            raise self._rules.not_json(self._rules.rows_at, row.id, error) from error
        stored = parse_row(fields)
        assert isinstance(stored, type(row)), "the role was compared above"
        return stored

    def _known_user_row(self, directory: OpenDirectory, row: UserRow) -> UserRow | None:
        for log in self._logs:
            line = log.index(directory).user_row(row.id, row.metadata.client_message_id)
            known = None if line is None else log.row_at(directory, line)
            if isinstance(known, UserRow):
                return known
        return None

    # ---- sequences, in detail

    @property
    def _logs(self) -> tuple[ChatLog, ChatLog]:
        return self._chat, self._archive.log

    def _next_sequence(self, directory: OpenDirectory | None) -> int:
        return self._rules.next_sequence([self._greatest_sequence(directory)])

    def _greatest_sequence(self, directory: OpenDirectory | None) -> int:
        greatest = max(self._reserved.values(), default=NO_SEQUENCE)
        if directory is not None:
            note = self._partial.note(directory)
            if note is not None and note.sequence is not None:
                greatest = max(greatest, note.sequence)
            for log in self._logs:
                greatest = max(greatest, log.index(directory).greatest_sequence)
        return greatest

    def _check_not_stale(self, directory: OpenDirectory, row: Row, sequence: int) -> None:
        """A sequence given with a row is new, or the one that is kept for just this message, whose
        row was not archived meanwhile.
        """
        if self._archive.log.index(directory).with_sequence(sequence) is not None:
            raise self._rules.sealed(row, sequence)
        if self._reserved.get(row.id) == sequence:
            return
        note = self._partial.note(directory)
        if note is not None and note.message_id == row.id and note.sequence == sequence:
            return  # reserved before a crash; the partial carries the reservation
        greatest = self._greatest_sequence(directory)
        if sequence <= greatest:
            raise self._rules.stale(row, sequence, greatest)
