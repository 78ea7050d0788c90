"""The history as effects: what the engine needs of it, and the embedded default on files."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Protocol, TypeVar, final

from fibers import Effect, acquire_release, effect

from ..model.errors import HistoryError
from ..model.ids import check_id, is_valid_id
from ..model.note import LastEnd, WorkspaceNote
from ..model.parts import MessagePart
from ..model.rows import AssistantRow, Row, RowMetadata, UserRow
from ..model.usage import Usage
from .directory import DurableDirectory, FsyncPolicy, Step
from .files import WorkspaceFiles
from .lane import Crew, Lane
from .lock import StateDirLock
from .recovery import load
from .results import AppendedUser, CommitResult, Loaded
from .rules import AnyRow
from .usage_log import UsageEntry, UsageSource
from .workspaces import Workspaces

WORKSPACES_DIRECTORY: Final = "workspaces"

IoMode = Literal["thread", "inline"]
"""Where files are touched: on threads of the loop's executor, or on the loop itself (tests)."""

T = TypeVar("T")

_log = logging.getLogger("streamengine.history")


class HistoryStore(Protocol):
    """Where conversations are kept.

    Operations on one workspace happen one at a time, in the order in which their effects began.
    One that was interrupted before its turn doesn't happen; one that was interrupted in its turn
    happens whole. What a method calls durable is on disk before its effect succeeds.
    """

    def load(self, workspace_id: str) -> Effect[Loaded, HistoryError]:
        """Put the workspace in order after a crash, and read it. Before its first stream."""
        ...

    def read(
        self, workspace_id: str, *, from_boundary: bool = False
    ) -> Effect[list[Row], HistoryError]:
        """Its rows, by sequence, without those that were archived.

        `from_boundary`: only those that a provider is to see, from the latest row on that seals
        what lies before it. What was sealed isn't read for that.
        """
        ...

    def tail(self, workspace_id: str, limit: int) -> Effect[list[Row], HistoryError]:
        """Its last rows, by sequence, at a cost that doesn't depend on how many there are."""
        ...

    def read_archive(self, workspace_id: str) -> Effect[list[Row], HistoryError]:
        """The rows that were archived, by sequence."""
        ...

    def archive(self, workspace_id: str) -> Effect[int, HistoryError]:
        """Archive the rows before the latest boundary, durably; gives how many. They are sealed
        from then on: no longer read, updated or replaced, but their sequences and client message
        ids stay taken.
        """
        ...

    def append_user(self, workspace_id: str, row: UserRow) -> Effect[AppendedUser, HistoryError]:
        """Make a user row durable. One with a known client message id is not added again."""
        ...

    def reserve(self, workspace_id: str, message_id: str) -> Effect[int, HistoryError]:
        """The sequence that this message will have."""
        ...

    def release(self, workspace_id: str, message_id: str) -> Effect[None, HistoryError]:
        """Give up what was reserved for this message, if anything is."""
        ...

    def write_partial(
        self, workspace_id: str, row: AssistantRow, *, durable: bool = False
    ) -> Effect[None, HistoryError]:
        """Keep what the running stream has said so far, in place of what was kept before.

        Fails with "stale_sequence" where that is of a later message: this one comes too late.
        """
        ...

    def append_partial(
        self,
        workspace_id: str,
        message_id: str,
        parts: tuple[MessagePart, ...],
        *,
        metadata: RowMetadata | None = None,
        durable: bool = False,
    ) -> Effect[None, HistoryError]:
        """Keep also what it has said since (``fold_parts`` joins the two), at the cost of that
        alone. The fields of ``metadata`` that are set replace those kept before.

        Fails with "not_found" when nothing of this message is kept: write it whole, then.
        """
        ...

    def read_partial(self, workspace_id: str) -> Effect[AssistantRow | None, HistoryError]:
        """What was kept last, if anything is."""
        ...

    def commit_partial(
        self, workspace_id: str, message_id: str | None = None
    ) -> Effect[CommitResult, HistoryError]:
        """Move what was kept into the rows, durably. On failure it is still kept."""
        ...

    @effect(raises=HistoryError)
    async def conclude(self, workspace_id: str, row: AssistantRow, end: LastEnd) -> CommitResult:
        """All that the end of a stopped answer takes, at one stroke where the store can: the commit
        of ``row`` as its partial (which need not be written before), the end of its reservation,
        and a note of how it ended where no row says that.

        Fails when any of it fails; the rest may have been done. Each can be repeated. A store that
        inherits this does one after the other.
        """
        await self.write_partial(workspace_id, row)
        result = await self.commit_partial(workspace_id, row.id)
        if result.row is None:
            await self.update_note(workspace_id, lambda note: note.ended(end))
        await self.release(workspace_id, row.id)
        return result

    def delete_partial(
        self, workspace_id: str, message_id: str | None = None
    ) -> Effect[bool, HistoryError]:
        """Forget what was kept (only if it is of this message); False when there was nothing."""
        ...

    def finalize(self, workspace_id: str, row: AssistantRow) -> Effect[AssistantRow, HistoryError]:
        """Make a final row durable under its reserved sequence. Gives the row as stored. Fails with
        "empty_row" for one that says nothing.
        """
        ...

    def update(self, workspace_id: str, row: AnyRow) -> Effect[AnyRow, HistoryError]:
        """Replace, durably, the row that has this row's sequence. Gives the row as stored: fields
        of a newer version and the mark of a boundary stay, usage that is kept apart is left out.

        Fails with "not_found", "sequence_taken" (by another message), "empty_row".
        """
        ...

    @effect(raises=HistoryError)
    async def truncate(self, workspace_id: str, after: int | None) -> int:
        """Take out, durably, the rows behind the sequence ``after`` (None: all), a partial that
        would become one, and the note on an answer to one; gives how many rows. What they cost
        stays counted. Archived rows stay.

        The sequences may be given anew. Not for a workspace with a live stream. A store that
        inherits this can't: it fails.
        """
        raise HistoryError(
            "unwritable",
            workspace_id,
            f"a {type(self).__name__} can't take rows out of a conversation",
            "Use another history, or don't abort turns hard.",
        )

    def record_usage(
        self,
        workspace_id: str,
        message_id: str,
        usage: Usage,
        *,
        model: str | None,
        source: UsageSource,
    ) -> Effect[bool, HistoryError]:
        """Keep, durably, what an answer cost that has no row to say it. Once a message: False when
        it is kept already, here or on its row (P16).
        """
        ...

    def read_usage(self, workspace_id: str) -> Effect[list[UsageEntry], HistoryError]:
        """What was recorded apart from rows. With the usage on the rows it makes the total."""
        ...

    def read_note(self, workspace_id: str) -> Effect[WorkspaceNote, HistoryError]:
        """What is remembered of the workspace beside its rows; an empty note if nothing is."""
        ...

    def update_note(
        self, workspace_id: str, change: Callable[[WorkspaceNote], WorkspaceNote]
    ) -> Effect[WorkspaceNote, HistoryError]:
        """Replace the note, durably, by what ``change`` makes of it; gives that. One step: of two
        who change different things neither undoes the other's.
        """
        ...

    def workspaces(self) -> Effect[list[str], HistoryError]:
        """The ids of all workspaces that have a history, in order."""
        ...


@dataclass(frozen=True, slots=True)
class _Workspace:
    files: WorkspaceFiles
    lane: Lane

    @property
    def is_idle(self) -> bool:
        """Whether all that is known of it is on disk."""
        # The lane first: a job may hold the files for long.
        return self.lane.is_idle and not self.files.has_reservations


def hold(state_directory: Path) -> Effect[None, HistoryError]:
    """Lock a state directory against other processes for as long as the scope in the context lives:
    for who keeps its history elsewhere. Fails with StateDirLocked, which names the other process.
    """
    lock = StateDirLock(state_directory)

    @effect
    async def give_back() -> None:
        try:
            lock.release()
        except HistoryError as error:
            # The lock itself is given back all the same, only its note stayed.
            _log.warning("%s", error)

    @effect(raises=HistoryError)
    async def take() -> None:
        lock.acquire()

    return acquire_release(take(), lambda _none, _exit: give_back())


@final
class FileHistory(HistoryStore):
    """Conversations in files, one directory a workspace, under `<state directory>/workspaces`.

    Reserved sequences live in this object, so a state directory has one of it. `open` sees to
    that across processes; who constructs it directly holds a StateDirLock, or is alone.
    """

    def __init__(
        self,
        state_directory: Path | str,
        *,
        fsync: FsyncPolicy = "terminal",
        io: IoMode = "thread",
        on_step: Callable[[Step], None] | None = None,
    ) -> None:
        """Touches no file. `on_step` as for WorkspaceFiles."""
        # Absolute from the start: a process that changes its directory later keeps its history.
        self._path = Path(state_directory).absolute() / WORKSPACES_DIRECTORY
        self._fsync: FsyncPolicy = fsync
        self._io: IoMode = io
        self._on_step = on_step
        self._crew = Crew()
        self._all_lane = Lane(self._crew)
        self._workspaces = Workspaces(self._made, is_idle=lambda workspace: workspace.is_idle)

    @staticmethod
    def open(
        state_directory: Path | str, *, fsync: FsyncPolicy = "terminal", io: IoMode = "thread"
    ) -> Effect[FileHistory, HistoryError]:
        """The history of a state directory, locked against other processes for as long as the
        scope in the context lives. Fails with StateDirLocked, which names the other process.
        """
        path = Path(state_directory)
        return hold(path).map(lambda _: FileHistory(path, fsync=fsync, io=io))

    def load(self, workspace_id: str) -> Effect[Loaded, HistoryError]:
        return self._in(workspace_id, load)

    def read(
        self, workspace_id: str, *, from_boundary: bool = False
    ) -> Effect[list[Row], HistoryError]:
        return self._in(workspace_id, lambda files: files.read(from_boundary=from_boundary).rows)

    def tail(self, workspace_id: str, limit: int) -> Effect[list[Row], HistoryError]:
        return self._in(workspace_id, lambda files: files.tail(limit))

    def read_archive(self, workspace_id: str) -> Effect[list[Row], HistoryError]:
        return self._in(workspace_id, lambda files: files.read_archive().rows)

    def archive(self, workspace_id: str) -> Effect[int, HistoryError]:
        return self._in(workspace_id, lambda files: files.archive())

    def append_user(self, workspace_id: str, row: UserRow) -> Effect[AppendedUser, HistoryError]:
        return self._in(workspace_id, lambda files: files.append_user(row))

    def reserve(self, workspace_id: str, message_id: str) -> Effect[int, HistoryError]:
        return self._in(workspace_id, lambda files: files.reserve(message_id))

    def release(self, workspace_id: str, message_id: str) -> Effect[None, HistoryError]:
        return self._released(workspace_id, message_id)

    @effect(raises=HistoryError)
    async def _released(self, workspace_id: str, message_id: str) -> None:
        # No file is touched: a hop to a thread and back would cost more than all the rest of it.
        workspace = self._workspaces.get(workspace_id)
        if workspace.lane.is_idle:
            workspace.files.release(message_id)
        else:
            await self._done(workspace.lane, lambda: workspace.files.release(message_id))

    def write_partial(
        self, workspace_id: str, row: AssistantRow, *, durable: bool = False
    ) -> Effect[None, HistoryError]:
        return self._in(workspace_id, lambda files: files.write_partial(row, durable=durable))

    def append_partial(
        self,
        workspace_id: str,
        message_id: str,
        parts: tuple[MessagePart, ...],
        *,
        metadata: RowMetadata | None = None,
        durable: bool = False,
    ) -> Effect[None, HistoryError]:
        return self._in(
            workspace_id,
            lambda files: files.append_partial(
                message_id, parts, metadata=metadata, durable=durable
            ),
        )

    def read_partial(self, workspace_id: str) -> Effect[AssistantRow | None, HistoryError]:
        return self._in(workspace_id, lambda files: files.read_partial().row)

    def commit_partial(
        self, workspace_id: str, message_id: str | None = None
    ) -> Effect[CommitResult, HistoryError]:
        return self._in(workspace_id, lambda files: files.commit_partial(message_id))

    def conclude(
        self, workspace_id: str, row: AssistantRow, end: LastEnd
    ) -> Effect[CommitResult, HistoryError]:
        return self._in(workspace_id, lambda files: files.conclude(row, end))

    def delete_partial(
        self, workspace_id: str, message_id: str | None = None
    ) -> Effect[bool, HistoryError]:
        if message_id is None:
            return self._in(workspace_id, lambda files: files.delete_partial())
        return self._in(workspace_id, lambda files: files.delete_partial_if_message_id(message_id))

    def finalize(self, workspace_id: str, row: AssistantRow) -> Effect[AssistantRow, HistoryError]:
        return self._in(workspace_id, lambda files: files.finalize(row))

    def update(self, workspace_id: str, row: AnyRow) -> Effect[AnyRow, HistoryError]:
        return self._in(workspace_id, lambda files: files.update_row(row))

    def truncate(self, workspace_id: str, after: int | None) -> Effect[int, HistoryError]:
        return self._in(workspace_id, lambda files: files.truncate(after))

    def record_usage(
        self,
        workspace_id: str,
        message_id: str,
        usage: Usage,
        *,
        model: str | None,
        source: UsageSource,
    ) -> Effect[bool, HistoryError]:
        def record(files: WorkspaceFiles) -> bool:
            return files.record_usage(message_id, usage, model=model, source=source)

        return self._in(workspace_id, record)

    def read_usage(self, workspace_id: str) -> Effect[list[UsageEntry], HistoryError]:
        return self._in(workspace_id, lambda files: files.read_usage())

    def read_note(self, workspace_id: str) -> Effect[WorkspaceNote, HistoryError]:
        return self._in(workspace_id, lambda files: files.read_note())

    def update_note(
        self, workspace_id: str, change: Callable[[WorkspaceNote], WorkspaceNote]
    ) -> Effect[WorkspaceNote, HistoryError]:
        return self._in(workspace_id, lambda files: files.update_note(change))

    def workspaces(self) -> Effect[list[str], HistoryError]:
        return self._workspaces_listed()

    @effect(raises=HistoryError)
    async def _workspaces_listed(self) -> list[str]:
        return await self._done(self._all_lane, self._list_workspaces)

    def _list_workspaces(self) -> list[str]:
        with DurableDirectory(self._path, fsync=self._fsync).opened() as directory:
            if directory is None:
                return []
            return [name for name in directory.directory_names() if is_valid_id(name)]

    @effect(raises=HistoryError)
    async def _in(self, workspace_id: str, job: Callable[[WorkspaceFiles], T]) -> T:
        workspace = self._workspaces.get(workspace_id)
        return await self._done(workspace.lane, lambda: job(workspace.files))

    async def _done(self, lane: Lane, job: Callable[[], T]) -> T:
        return job() if self._io == "inline" else await lane.run(job)

    def _made(self, workspace_id: str) -> _Workspace:
        try:
            check_id(workspace_id)
        except ValueError as error:
            raise HistoryError(
                "invalid_id", self._path, f"workspace id {error}", "Use another id."
            ) from error
        files = WorkspaceFiles(self._path / workspace_id, fsync=self._fsync, on_step=self._on_step)
        return _Workspace(files, Lane(self._crew))
