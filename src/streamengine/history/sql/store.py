"""SqlHistory: the history as effects, on a database."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TypeVar, final

from sqlalchemy import Connection, select, union

import fibers as fb
from fibers import Effect, acquire_release, effect

from ...model.errors import HistoryError
from ...model.ids import check_id
from ...model.note import LastEnd, WorkspaceNote
from ...model.parts import MessagePart
from ...model.rows import AssistantRow, Row, RowMetadata, UserRow
from ...model.usage import Usage
from ..directory import FsyncPolicy
from ..partial_log import Tail
from ..results import AppendedUser, CommitResult, Loaded, PartialRead, RecoveryReport
from ..rules import AnyRow
from ..store import HistoryStore
from ..usage_log import UsageEntry, UsageSource
from ..workspaces import Workspaces
from . import schema
from .database import Database
from .holder import DatabaseLock
from .workspace import SqlWorkspace

T = TypeVar("T")
Job = Callable[[SqlWorkspace, Connection], T]

_log = logging.getLogger("streamengine.history")


@final
class _Workspace:
    """A workspace, whose turn it is, and what is remembered of its partial."""

    def __init__(self, workspace_id: str, place: str) -> None:
        self.sql = SqlWorkspace(workspace_id, place)
        self._lock = asyncio.Lock()
        self._users = 0
        self.tail: tuple[str, Tail] | None = None
        """The message whose partial is kept, and what its log ends with."""
        self.doubtful: str | None = None
        """The message of which an addition failed: its commit may have arrived all the same."""

    @property
    def turn(self) -> AbstractAsyncContextManager[None]:
        """Alone in the workspace, in the block: first come, first served."""
        return self._turn()

    @asynccontextmanager
    async def _turn(self) -> AsyncGenerator[None]:
        # Counted, as a lock that goes from one to the next is free in between.
        self._users += 1
        try:
            async with self._lock:
                yield
        finally:
            self._users -= 1

    def ended(self, message_id: str) -> None:
        """Nothing is added to the partial of this message any more."""
        if self.tail is not None and self.tail[0] == message_id:
            self.tail = None
        if self.doubtful == message_id:
            self.doubtful = None

    def partial_is_gone(self) -> None:
        """Nothing is added to the partial that was kept, whosever it was."""
        self.tail = self.doubtful = None

    @property
    def is_idle(self) -> bool:
        """Whether all that is known of it is in the database."""
        return not (self._users or self.sql.reserved or self.doubtful is not None)


@final
class SqlHistory(HistoryStore):
    """Conversations in a database, with the rules and the recovery of FileHistory.

        history = await SqlHistory.open("sqlite:////var/lib/app/history.db")

    ``fsync``: when the disk is waited for (see FsyncPolicy); SQLite's ``synchronous`` and
    PostgreSQL's ``synchronous_commit`` are set for each transaction accordingly. Of one loop, and
    of one process: sequences that are reserved live in this object.
    """

    def __init__(self, url: str, *, fsync: FsyncPolicy = "terminal") -> None:
        """Opens nothing; the tables are there, and the caller is alone (``open`` sees to both).

        Raises HistoryError for a URL of another kind of database.
        """
        self._database = Database(url, fsync=fsync)
        self._workspaces = Workspaces(self._made, is_idle=lambda workspace: workspace.is_idle)

    @staticmethod
    def open(url: str, *, fsync: FsyncPolicy = "terminal") -> Effect[SqlHistory, HistoryError]:
        """The history of a database, locked against other processes for as long as the scope in
        the context lives; its tables are made, or brought to this version.

        Fails with StateDirLocked, which names the other process, or with "newer_version".
        """

        @effect(raises=HistoryError)
        async def take() -> tuple[SqlHistory, DatabaseLock]:
            history = SqlHistory(url, fsync=fsync)
            lock = DatabaseLock(history._database)
            try:
                await lock.acquire()
                await history.migrate()
                await lock.leave_name()
            except BaseException:
                await history._give_back(lock)
                raise
            return history, lock

        @effect
        async def give_back(taken: tuple[SqlHistory, DatabaseLock]) -> None:
            await taken[0]._give_back(taken[1])

        taken = acquire_release(take(), lambda taken, _exit: give_back(taken))
        return taken.map(lambda taken: taken[0])

    @property
    def database(self) -> Database:
        """For who keeps tables beside the history's: one pool of connections, one lock."""
        return self._database

    @effect(raises=HistoryError)
    async def migrate(self) -> int:
        """Make the tables, or bring them to this version; gives the version that they had.

        Fails with "newer_version" when another version of this program made them.
        """
        with fb.uninterruptible():
            async with self._database.transaction(durable=True) as db:
                return await db.run(
                    lambda sql: schema.migrate(sql, self._database.place), last=True
                )

    async def close(self) -> None:
        """Close the connections. Not needed after ``open``, whose scope does it."""
        await self._database.dispose()

    async def _give_back(self, lock: DatabaseLock) -> None:
        try:
            await lock.release()
        except HistoryError as error:
            _log.warning("%s", error)  # it goes with the connection all the same
        await self.close()

    # ---- the protocol

    @effect(raises=HistoryError)
    async def load(self, workspace_id: str) -> Loaded:
        """As HistoryStore.load; each step a transaction of its own, as one that fails must not
        undo the others."""
        workspace = self._workspaces.get(workspace_id)
        async with workspace.turn:
            with fb.uninterruptible():
                return await self._load(workspace)

    async def _load(self, workspace: _Workspace) -> Loaded:
        problems: list[HistoryError] = []

        async def attempt(job: Job[T]) -> T | None:
            try:
                return await self._do(workspace, job, durable=True)
            except HistoryError as error:
                problems.append(error)
                return None

        partial = await attempt(lambda sql, db: sql.read_partial(db)) or PartialRead()
        commit = None
        if partial.row is not None and partial.row.id not in workspace.sql.reserved:
            workspace.tail = None
            commit = await attempt(lambda sql, db: sql.commit_partial(db, None))
            if commit is not None:
                workspace.partial_is_gone()
        removed = await attempt(lambda sql, db: sql.remove_blank_rows(db)) or 0
        read = await self._do(workspace, lambda sql, db: sql.read(db), durable=False)
        report = RecoveryReport(
            workspace.sql.workspace_id,
            commit,
            warnings=() if partial.warning is None else (partial.warning,),
            problems=tuple(problems),
            removed_blank_rows=removed,
            unreadable_lines=read.unreadable_lines,
        )
        return Loaded(tuple(read.rows), report)

    @effect(raises=HistoryError)
    async def read(self, workspace_id: str, *, from_boundary: bool = False) -> list[Row]:
        read = await self._in(
            workspace_id, lambda sql, db: sql.read(db, from_boundary=from_boundary), durable=False
        )
        return read.rows

    def tail(self, workspace_id: str, limit: int) -> Effect[list[Row], HistoryError]:
        return self._in(workspace_id, lambda sql, db: sql.tail(db, limit), durable=False)

    @effect(raises=HistoryError)
    async def read_archive(self, workspace_id: str) -> list[Row]:
        return (await self._in(workspace_id, lambda sql, db: sql.read_archive(db))).rows

    def archive(self, workspace_id: str) -> Effect[int, HistoryError]:
        return self._in(workspace_id, lambda sql, db: sql.archive(db))

    def append_user(self, workspace_id: str, row: UserRow) -> Effect[AppendedUser, HistoryError]:
        return self._in(workspace_id, lambda sql, db: sql.append_user(db, row))

    def reserve(self, workspace_id: str, message_id: str) -> Effect[int, HistoryError]:
        def job(sql: SqlWorkspace, db: Connection) -> int:
            sql.rules.check_message_id(message_id)
            if message_id not in sql.reserved:
                sql.reserved[message_id] = sql.next_sequence(db)
            return sql.reserved[message_id]

        return self._in(workspace_id, job, durable=False)

    @effect(raises=HistoryError)
    async def release(self, workspace_id: str, message_id: str) -> None:
        workspace = self._workspaces.get(workspace_id)
        async with workspace.turn:
            workspace.sql.reserved.pop(message_id, None)

    @effect(raises=HistoryError)
    async def write_partial(
        self, workspace_id: str, row: AssistantRow, *, durable: bool = False
    ) -> None:
        workspace = self._workspaces.get(workspace_id)
        async with workspace.turn:
            with fb.uninterruptible():
                workspace.tail = None
                tail: Tail = await self._do(
                    workspace, lambda sql, db: sql.write_partial(db, row), durable=durable
                )
                workspace.tail, workspace.doubtful = (row.id, tail), None

    @effect(raises=HistoryError)
    async def append_partial(
        self,
        workspace_id: str,
        message_id: str,
        parts: tuple[MessagePart, ...],
        *,
        metadata: RowMetadata | None = None,
        durable: bool = False,
    ) -> None:
        workspace = self._workspaces.get(workspace_id)

        def job(sql: SqlWorkspace, db: Connection) -> Tail:
            if workspace.doubtful == message_id:
                # Added once more, it could stand there twice; written anew, it can't.
                raise sql.rules.no_partial(message_id)
            known = workspace.tail
            if known is not None and known[0] == message_id:
                tail = known[1]
            else:
                tail = sql.tail_of_partial(db)
            return sql.append_partial(db, message_id, parts, metadata, tail)

        async with workspace.turn:
            with fb.uninterruptible():
                try:
                    tail = await self._do(workspace, job, durable=durable)
                except HistoryError as error:
                    if error.kind != "not_found":
                        workspace.doubtful = message_id
                    raise
                workspace.tail = message_id, tail

    @effect(raises=HistoryError)
    async def read_partial(self, workspace_id: str) -> AssistantRow | None:
        return (await self._in(workspace_id, lambda sql, db: sql.read_partial(db))).row

    def commit_partial(
        self, workspace_id: str, message_id: str | None = None
    ) -> Effect[CommitResult, HistoryError]:
        return self._removed(
            workspace_id,
            lambda sql, db: sql.commit_partial(db, message_id),
            is_gone=lambda result: result.outcome != "other-message",
        )

    @effect(raises=HistoryError)
    async def conclude(self, workspace_id: str, row: AssistantRow, end: LastEnd) -> CommitResult:
        return await self._ended(workspace_id, row.id, lambda sql, db: sql.conclude(db, row, end))

    def delete_partial(
        self, workspace_id: str, message_id: str | None = None
    ) -> Effect[bool, HistoryError]:
        return self._removed(
            workspace_id,
            lambda sql, db: sql.delete_partial(db, message_id),
            is_gone=lambda removed: removed or message_id is None,
        )

    @effect(raises=HistoryError)
    async def finalize(self, workspace_id: str, row: AssistantRow) -> AssistantRow:
        return await self._ended(workspace_id, row.id, lambda sql, db: sql.finalize(db, row))

    def update(self, workspace_id: str, row: AnyRow) -> Effect[AnyRow, HistoryError]:
        return self._in(workspace_id, lambda sql, db: sql.update_row(db, row))

    def truncate(self, workspace_id: str, after: int | None) -> Effect[int, HistoryError]:
        # Also where it stays: a workspace without a live stream has nobody who adds to it.
        return self._removed(
            workspace_id, lambda sql, db: sql.truncate(db, after), is_gone=lambda _cut: True
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
        def job(sql: SqlWorkspace, db: Connection) -> bool:
            sql.rules.check_message_id(message_id)
            entry = UsageEntry(message_id=message_id, usage=usage, model=model, source=source)
            return sql.record_usage(db, entry)

        return self._in(workspace_id, job)

    def read_usage(self, workspace_id: str) -> Effect[list[UsageEntry], HistoryError]:
        return self._in(workspace_id, lambda sql, db: sql.read_usage(db), durable=False)

    def read_note(self, workspace_id: str) -> Effect[WorkspaceNote, HistoryError]:
        return self._in(workspace_id, lambda sql, db: sql.read_note(db))

    def update_note(
        self, workspace_id: str, change: Callable[[WorkspaceNote], WorkspaceNote]
    ) -> Effect[WorkspaceNote, HistoryError]:
        return self._in(workspace_id, lambda sql, db: sql.update_note(db, change))

    @effect(raises=HistoryError)
    async def workspaces(self) -> list[str]:
        tables = (schema.rows, schema.partials, schema.usage, schema.notes)
        ids = union(*(select(table.c.workspace_id) for table in tables)).order_by("workspace_id")
        with fb.uninterruptible():
            async with self._database.transaction(durable=False) as db:
                return await db.run(lambda sql: list(sql.execute(ids).scalars()), last=True)

    # ---- one at a time

    @effect(raises=HistoryError)
    async def _in(self, workspace_id: str, job: Job[T], *, durable: bool = True) -> T:
        """One that was interrupted before its turn doesn't happen; in its turn it happens whole."""
        workspace = self._workspaces.get(workspace_id)
        async with workspace.turn:
            with fb.uninterruptible():
                return await self._do(workspace, job, durable=durable)

    @effect(raises=HistoryError)
    async def _removed(self, workspace_id: str, job: Job[T], *, is_gone: Callable[[T], bool]) -> T:
        """Do what removes the partial, durably, and forget what was known of it."""
        workspace = self._workspaces.get(workspace_id)
        async with workspace.turn:
            with fb.uninterruptible():
                done = await self._do(workspace, job, durable=True)
                if is_gone(done):
                    workspace.partial_is_gone()
                return done

    async def _ended(self, workspace_id: str, message_id: str, job: Job[T]) -> T:
        """Do what ends the reservation of this message, durably."""
        workspace = self._workspaces.get(workspace_id)
        async with workspace.turn:
            with fb.uninterruptible():
                done = await self._do(workspace, job, durable=True)
                workspace.sql.reserved.pop(message_id, None)
                workspace.ended(message_id)
                return done

    async def _do(self, workspace: _Workspace, job: Job[T], *, durable: bool) -> T:
        async with self._database.transaction(durable=durable) as db:
            return await db.run(lambda sql: job(workspace.sql, sql), last=True)

    def _made(self, workspace_id: str) -> _Workspace:
        place = self._database.place
        try:
            check_id(workspace_id)
        except ValueError as error:
            raise HistoryError(
                "invalid_id", place, f"workspace id {error}", "Use another id."
            ) from error
        return _Workspace(workspace_id, place)
