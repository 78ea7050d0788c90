"""One process a database: a lock that goes with its connection or its file, with a name on it."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, final

from sqlalchemy import delete, insert, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from ...model.errors import HistoryError
from ..lock import LockHolder, StateDirLock, StateDirLocked, this_process
from . import schema
from .database import Database
from .faults import reported

_KEY: Final = "hashtext('fiberscope history ' || current_schema())"
"""An advisory lock is of a whole database; this one is of the schema that the tables are in."""


@final
class DatabaseLock:
    """The right to use a database. Sequences that are reserved live in memory, so it has one user.

    SQLite: a lock file beside it. PostgreSQL: an advisory lock on a connection of its own; it goes
    with the process, also when that is killed, or with the connection.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        file = database.file
        self._file_lock = None if file is None else StateDirLock(_beside(file))
        self._connection: AsyncConnection | None = None

    async def acquire(self) -> None:
        """Raises StateDirLocked, which names the other process, or HistoryError."""
        if self._file_lock is not None:
            with self._named():
                self._file_lock.acquire()
        elif not self._database.is_sqlite:
            with reported(self._database.place):
                connection = await self._connected()
                try:
                    taken = await connection.scalar(text(f"SELECT pg_try_advisory_lock({_KEY})"))
                    # The lock is of the session and outlives the transaction.
                    await connection.commit()
                except BaseException:
                    await connection.close()
                    raise
                if not taken:
                    named = await self._holder(connection)
                    await connection.close()
                    raise StateDirLocked(self._database.place, named, "database")
                self._connection = connection

    async def leave_name(self) -> None:
        """Write who holds it, once the tables are there."""
        if self._connection is None:
            return
        with reported(self._database.place):
            await self._connection.execute(delete(schema.holder))
            await self._connection.execute(
                insert(schema.holder).values(body=this_process().to_json())
            )
            await self._connection.commit()

    async def release(self) -> None:
        """Give it back; nothing happens if it isn't held. Raises HistoryError."""
        if self._file_lock is not None:
            self._file_lock.release()
        connection, self._connection = self._connection, None
        if connection is not None:
            with reported(self._database.place):
                try:
                    await connection.execute(text(f"SELECT pg_advisory_unlock({_KEY})"))
                    await connection.commit()
                finally:
                    await connection.close()

    async def _connected(self) -> AsyncConnection:
        """The first connection to this database: what its URL asks for is tried out here."""
        try:
            return await self._database.engine.connect()
        except TypeError as error:
            raise HistoryError(
                "io",
                self._database.place,
                f"its URL has an option that the driver doesn't know ({error})",
                "Leave it out; ssl=require is what sslmode=require is called here.",
            ) from error

    async def _holder(self, connection: AsyncConnection) -> LockHolder | None:
        known = await connection.scalar(text("SELECT to_regclass('history_holder')"))
        body = None if known is None else await connection.scalar(select(schema.holder.c.body))
        try:
            return None if body is None else LockHolder.model_validate(json.loads(body))
        except ValueError:
            return None

    @contextmanager
    def _named(self) -> Generator[None]:
        """The refusal speaks of the database, not of the directory of its lock."""
        try:
            yield
        except StateDirLocked as error:
            raise StateDirLocked(self._database.place, error.holder, "database") from None


def _beside(file: Path) -> Path:
    return file.with_name(f"{file.name}-lock")
