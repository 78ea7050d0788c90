"""The files of one workspace: `chat.jsonl`, `partial.json`, and the rules that join them.

The synchronous core of the history. Each public method is one step that no other thread sees half
done; `exclusive()` makes one step of several. Nothing here knows of event loops or effects.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import RLock
from typing import Any, Final, Literal, NamedTuple, TypeVar, cast, final

from ..model.errors import HistoryError
from ..model.ids import check_id
from ..model.rows import MAX_HISTORY_SEQUENCE, AssistantRow, Row, UserRow, parse_row
from .chatlog import NO_SEQUENCE, ChatLog, LineRef, ReadRows, is_sequence
from .directory import DurableDirectory, Fingerprint, FsyncPolicy, OpenDirectory, Step
from .partial import (
    Append,
    Drop,
    DropReason,
    Keep,
    Update,
    decide_commit,
    is_blank,
    is_commit_worthy,
)

CHAT_FILE: Final = "chat.jsonl"
ARCHIVE_FILE: Final = "chat-archive.jsonl"
PARTIAL_FILE: Final = "partial.json"

_AnyRow = TypeVar("_AnyRow", UserRow, AssistantRow)

_log = logging.getLogger("streamengine.history")


@dataclass(frozen=True, slots=True)
class AppendedUser:
    """The user row that is in the history now, and whether this call put it there."""

    row: UserRow
    is_new: bool


@dataclass(frozen=True, slots=True)
class CommitResult:
    """What a commit did. `row` is what was written, if anything was."""

    outcome: Literal["no-partial", "other-message", "appended", "updated", "dropped"]
    row: AssistantRow | None = None
    drop_reason: DropReason | None = None


@dataclass(frozen=True, slots=True)
class PartialRead:
    """The partial, if there is a usable one; else, if a file had to be moved away, the warning."""

    row: AssistantRow | None = None
    warning: str | None = None


class _PartialNote(NamedTuple):
    """What is remembered of `partial.json`, so that it isn't read anew for every append."""

    fingerprint: Fingerprint
    message_id: str | None
    """None: the file is no partial of this workspace."""
    sequence: int | None


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
        self.workspace_id = check_id(directory.name if workspace_id is None else workspace_id)
        self._directory = DurableDirectory(directory, fsync=fsync, on_step=on_step)
        self._chat = ChatLog(CHAT_FILE)
        self._archive = ChatLog(ARCHIVE_FILE)
        self._partial: _PartialNote | None = None
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

    def read(self) -> ReadRows:
        """The rows, by sequence. Lines that are no rows are counted and stay in the file."""
        with self._lock, self._directory.opened() as directory:
            return ReadRows([], 0) if directory is None else self._chat.read(directory)

    def append_user(self, row: UserRow) -> AppendedUser:
        """Make a user row durable, under the next sequence unless it brings one.

        A row with the same id, or the same client message id, is there already: that one is the
        answer and nothing is written. Raises HistoryError ("empty_row": it says nothing).
        """
        if not is_commit_worthy(row.parts):
            raise HistoryError(
                "empty_row",
                self.path / CHAT_FILE,
                f"user message {row.id} says nothing",
                "Send some text or a file.",
            )
        row = self._checked(row)
        with self._lock, self._directory.made() as directory:
            known = self._known_user_row(directory, row)
            if known is not None:
                return AppendedUser(known, is_new=False)
            return AppendedUser(self._append(directory, row), is_new=True)

    def finalize(self, row: AssistantRow) -> AssistantRow:
        """Make a final row durable, in the place of the partial row with its sequence, or as a new
        row under it. The row loses its partial mark. Gives the row as it stands in the file.

        Its reservation ends with that. Can be repeated. Raises HistoryError.
        """
        row = _with_metadata(self._checked(row), partial=None)
        sequence = row.metadata.history_sequence
        if sequence is None:
            raise HistoryError(
                "no_sequence",
                self.path / CHAT_FILE,
                f"the final row of message {row.id} has no historySequence",
                "Reserve one before the stream begins.",
            )
        with self._lock, self._directory.made() as directory:
            line = self._chat.index(directory).with_sequence(sequence)
            if line is None:
                stored = self._append(directory, row)
            else:
                stored = self._replace(directory, line, row)
            self._reserved.pop(row.id, None)
            return stored

    def update_row(self, row: AssistantRow) -> AssistantRow:
        """Replace the row that has this row's sequence; all other lines keep their bytes.

        Raises HistoryError ("not_found": no row has it; "sequence_taken": another message has).
        """
        row = self._checked(row)
        sequence = row.metadata.history_sequence
        with self._lock, self._directory.opened() as directory:
            index = None if directory is None else self._chat.index(directory)
            line = None if index is None or sequence is None else index.with_sequence(sequence)
            if directory is None or line is None:
                raise HistoryError(
                    "not_found",
                    self.path / CHAT_FILE,
                    f"no row has the sequence {sequence} of message {row.id}",
                    "Append the row instead.",
                )
            return self._replace(directory, line, row)

    def remove_blank_rows(self) -> int:
        """Remove partial rows that say nothing and whose partial is gone; gives how many.

        An older version wrote such a row before each stream.
        """
        with self._lock, self._directory.opened() as directory:
            if directory is None:
                return 0
            note = self._partial_note(directory)

            def unwanted(row: Row) -> bool:
                return (
                    isinstance(row, AssistantRow)
                    and row.is_partial
                    and is_blank(row.parts)
                    and row.id not in self._reserved
                    and (note is None or note.message_id != row.id)
                )

            return self._chat.remove(directory, unwanted, durable=True)

    # ---- sequences

    def reserve(self, message_id: str) -> int:
        """The sequence that this message will have; the same one until it is released."""
        self._checked_id(message_id)
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

    # ---- the partial

    def write_partial(self, row: AssistantRow, *, durable: bool = False) -> None:
        """Replace `partial.json`, marked partial whatever the row says.

        `durable=True` for what somebody is told of right afterwards (a tool's result, an error).
        A partial of another message that nobody committed is moved aside, not overwritten.
        """
        row = _with_metadata(self._checked(row), partial=True)
        try:
            data = row.to_json(indent_spaces=2).encode()
        except ValueError as error:
            raise self._not_json(PARTIAL_FILE, row, error) from error
        with self._lock, self._directory.made() as directory:
            note = self._partial_note(directory)
            if note is not None and note.message_id != row.id:
                self._set_aside(directory, f"was in the way of the partial of message {row.id}")
            fingerprint = directory.replace(PARTIAL_FILE, data, durable=durable)
            self._partial = _PartialNote(fingerprint, row.id, row.metadata.history_sequence)

    def read_partial(self) -> PartialRead:
        """The partial on disk. A file that is no partial of this workspace is moved aside."""
        with self._lock, self._directory.opened() as directory:
            return PartialRead() if directory is None else self._read_partial(directory)

    def delete_partial(self) -> bool:
        """Remove the partial, whatever it holds; False when there is none."""
        with self._lock, self._directory.opened() as directory:
            if directory is None:
                return False
            self._partial = None
            return directory.remove(PARTIAL_FILE, durable=True)

    def delete_partial_if_message_id(self, message_id: str) -> bool:
        """Remove the partial of this message; False when there is none, or another one's."""
        with self._lock, self._directory.opened() as directory:
            note = None if directory is None else self._partial_note(directory)
            if directory is None or note is None or note.message_id != message_id:
                return False
            self._partial = None
            return directory.remove(PARTIAL_FILE, durable=True)

    def commit_partial(self, message_id: str | None = None) -> CommitResult:
        """Move what the partial says into the history, then remove it; see partial.py for how.

        With `message_id` only the partial of that message. Can be repeated. When any step fails
        a HistoryError is raised and the partial is still there.
        """
        with self._lock, self._directory.opened() as directory:
            partial = None if directory is None else self._read_partial(directory).row
            if directory is None or partial is None:
                return CommitResult("no-partial")
            if message_id is not None and partial.id != message_id:
                return CommitResult("other-message")
            result = self._carry_out(directory, partial)
            self._partial = None
            directory.remove(PARTIAL_FILE, durable=True)
            return result

    def sweep_temps(self) -> tuple[str, ...]:
        """Remove the temp files that a crash left; gives their names."""
        with self._lock, self._directory.opened() as directory:
            return () if directory is None else directory.sweep_temps()

    # ---- steps of a commit

    def _carry_out(self, directory: OpenDirectory, partial: AssistantRow) -> CommitResult:
        index = self._chat.index(directory)
        sequence = partial.metadata.history_sequence
        line = None if sequence is None else index.with_sequence(sequence)
        rows: list[Row] = []
        if line is not None:
            row = self._chat.row_at(directory, line)
            if row is None:
                raise self._sequence_taken(partial, line)
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

    def _append(self, directory: OpenDirectory, row: _AnyRow) -> _AnyRow:
        sequence = row.metadata.history_sequence
        if sequence is None:
            row = _with_metadata(row, history_sequence=self._next_sequence(directory))
        else:
            self._check_not_stale(directory, row, sequence)
        try:
            self._chat.append(directory, row, durable=True)
        except ValueError as error:
            raise self._not_json(CHAT_FILE, row, error) from error
        return row

    def _replace(self, directory: OpenDirectory, line: LineRef, row: AssistantRow) -> AssistantRow:
        if line.message_id != row.id or line.role != row.role:
            raise self._sequence_taken(row, line)
        try:
            fields = self._chat.replace(directory, line, row, durable=True)
        except ValueError as error:
            raise self._not_json(CHAT_FILE, row, error) from error
        stored = parse_row(fields)
        assert isinstance(stored, AssistantRow), "the role was compared above"
        return stored

    def _known_user_row(self, directory: OpenDirectory, row: UserRow) -> UserRow | None:
        for log in (self._chat, self._archive):
            line = log.index(directory).user_row(row.id, row.metadata.client_message_id)
            known = None if line is None else log.row_at(directory, line)
            if isinstance(known, UserRow):
                return known
        return None

    # ---- sequences, in detail

    def _next_sequence(self, directory: OpenDirectory | None) -> int:
        sequence = 1 + self._greatest_sequence(directory)
        if sequence > MAX_HISTORY_SEQUENCE:
            raise HistoryError(
                "malformed_sequence",
                self.path / CHAT_FILE,
                f"the greatest possible sequence, {MAX_HISTORY_SEQUENCE}, is in use",
                "Look for the row that has it; it is most likely damaged.",
            )
        return sequence

    def _greatest_sequence(self, directory: OpenDirectory | None) -> int:
        greatest = max(self._reserved.values(), default=NO_SEQUENCE)
        if directory is not None:
            note = self._partial_note(directory)
            if note is not None and note.sequence is not None:
                greatest = max(greatest, note.sequence)
            for log in (self._chat, self._archive):
                greatest = max(greatest, log.index(directory).greatest_sequence)
        return greatest

    def _check_not_stale(self, directory: OpenDirectory, row: Row, sequence: int) -> None:
        """A sequence given with a row is new, or the one that is kept for just this message."""
        if self._reserved.get(row.id) == sequence:
            return
        note = self._partial_note(directory)
        if note is not None and note.message_id == row.id and note.sequence == sequence:
            return  # reserved before a crash; the partial carries the reservation
        greatest = self._greatest_sequence(directory)
        if sequence <= greatest:
            raise HistoryError(
                "stale_sequence",
                self.path / CHAT_FILE,
                f"message {row.id} came with sequence {sequence}, but {greatest} is in use or "
                "reserved already",
                "Leave the sequence out, or reserve one.",
            )

    # ---- the partial, in detail

    def _read_partial(self, directory: OpenDirectory) -> PartialRead:
        content = directory.read(PARTIAL_FILE)
        if content is None:
            self._partial = None
            return PartialRead()
        row, problem = self._parsed_partial(content.data)
        if row is None:
            return PartialRead(warning=self._set_aside(directory, problem))
        self._partial = _PartialNote(content.fingerprint, row.id, row.metadata.history_sequence)
        return PartialRead(row)

    def _partial_note(self, directory: OpenDirectory) -> _PartialNote | None:
        """What `partial.json` is, without moving anything; None when there is none."""
        fingerprint = directory.fingerprint(PARTIAL_FILE)
        if fingerprint is None:
            self._partial = None
        elif self._partial is None or self._partial.fingerprint != fingerprint:
            content = directory.read(PARTIAL_FILE)
            row = None if content is None else self._parsed_partial(content.data)[0]
            self._partial = _PartialNote(
                fingerprint,
                None if row is None else row.id,
                None if row is None else row.metadata.history_sequence,
            )
        return self._partial

    def _parsed_partial(self, data: bytes) -> tuple[AssistantRow | None, str]:
        """The partial that these bytes are, or what is wrong with them."""
        try:
            fields: object = json.loads(data)
        except (ValueError, RecursionError):
            return None, "is not JSON"
        try:
            row = parse_row(cast("dict[str, Any]", fields))
        except (ValueError, RecursionError):
            return None, "is not an assistant row"
        if not isinstance(row, AssistantRow):
            return None, "is not an assistant row"
        if row.workspace_id not in (None, self.workspace_id):
            return None, f"belongs to workspace {row.workspace_id}"
        return _with_metadata(row, partial=True), ""

    def _set_aside(self, directory: OpenDirectory, problem: str) -> str:
        aside = directory.set_aside(PARTIAL_FILE, "partial.corrupt", ".json")
        self._partial = None
        warning = f"{directory.path_of(PARTIAL_FILE)} {problem}; it was moved to {aside}"
        _log.warning("%s", warning)
        return warning

    # ---- what rows must be

    def _checked(self, row: _AnyRow) -> _AnyRow:
        """The row, marked as this workspace's. Copies of models aren't validated, so look again."""
        self._checked_id(row.id)
        if row.workspace_id not in (None, self.workspace_id):
            raise HistoryError(
                "invalid_row",
                self.path,
                f"message {row.id} belongs to workspace {row.workspace_id}, not to "
                f"{self.workspace_id}",
                "Store it in its own workspace.",
            )
        sequence: object = row.metadata.history_sequence
        if sequence is not None and not is_sequence(sequence):
            raise HistoryError(
                "malformed_sequence",
                self.path,
                f"message {row.id} has the historySequence {sequence!r}",
                f"It is a whole number from 0 to {MAX_HISTORY_SEQUENCE}; leave it out to get one.",
            )
        return row.model_copy(update={"workspace_id": self.workspace_id})

    def _checked_id(self, message_id: str) -> None:
        try:
            check_id(message_id)
        except ValueError as error:
            raise HistoryError(
                "invalid_id", self.path, f"message id {error}", "Make up another one."
            ) from error

    def _sequence_taken(self, row: Row, line: LineRef) -> HistoryError:
        return HistoryError(
            "sequence_taken",
            self.path / CHAT_FILE,
            f"message {row.id} has sequence {line.sequence}, but so has "
            f"{line.role or 'a row'} {line.message_id or 'without an id'}",
            "Look at both; one of them needs a sequence that no row has.",
        )

    def _not_json(self, name: str, row: Row, error: ValueError) -> HistoryError:
        return HistoryError(
            "invalid_row",
            self.path / name,
            f"message {row.id} can't be written as JSON ({error})",
            "Make the tool's input or output plain data.",
        )


def _with_metadata(row: _AnyRow, **changes: object) -> _AnyRow:
    return row.model_copy(update={"metadata": row.metadata.model_copy(update=changes)})
