"""SQLite off the loop: a transaction is one job on a thread, however many statements it has.

To go to the thread with each step of each statement takes longer for the way than for the work.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, TypeVar, final

from sqlalchemy import URL, Connection, Engine, create_engine, event

from ..lane import Crew, Lane
from .texts import decoded

T = TypeVar("T")

_DURABLE: Final = "history_durable"
_SYNCHRONOUS: Final = "history_synchronous"


@final
class SqliteConnection:
    """The one connection to a file. ``file``: what the URL leads to."""

    def __init__(self, url: URL, file: Path) -> None:
        self.engine: Engine = _engine(url, file)
        self._lane = Lane(Crew(threads=1))

    @asynccontextmanager
    async def transaction(self, *, syncs: bool) -> AsyncGenerator[SqliteTransaction]:
        """Committed at the end of the block, rolled back if that raises."""
        transaction = SqliteTransaction(self.engine, self._lane, syncs=syncs)
        try:
            yield transaction
            if not transaction.is_over:
                await self._lane.run(transaction.commit)
        except BaseException:
            # Behind a job of it that may still run, where its waiter was cancelled.
            await self._lane.run(transaction.close)
            raise

    async def dispose(self) -> None:
        """Close it. It may have to bring what was written into the file."""
        await self._lane.run(self.engine.dispose)


@final
class SqliteTransaction:
    """Begun by its first job."""

    def __init__(self, engine: Engine, lane: Lane, *, syncs: bool) -> None:
        self._engine = engine
        self._lane = lane
        self._syncs = syncs
        self._connection: Connection | None = None
        self.is_over: bool = False
        """Its last job was done, and committed."""

    async def run(self, job: Callable[[Connection], T], *, last: bool = False) -> T:
        """What ``job`` gives, on a thread, and with the commit where it is the last."""
        found = await self._lane.run(lambda: self._done(job, last))
        self.is_over = last
        return found

    # ---- on a thread

    def _done(self, job: Callable[[Connection], T], last: bool) -> T:
        found = job(self._begun())
        if last:
            self.commit()
        return found

    def _begun(self) -> Connection:
        if self._connection is None:
            self._connection = self._engine.connect().execution_options(**{_DURABLE: self._syncs})
            self._connection.begin()
        return self._connection

    def commit(self) -> None:
        if self._connection is not None:
            self._connection.commit()
            self.close()

    def close(self) -> None:
        """Rolls back what was not committed."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _engine(url: URL, file: Path) -> Engine:
    # Made before SQLite would make it readable for everybody.
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    engine = create_engine(url, pool_size=1, max_overflow=0)
    event.listen(engine, "connect", _prepare)
    event.listen(engine, "begin", _begin)
    return engine


def _prepare(connection: Any, _record: object) -> None:
    # Transactions are begun here (below), not by a guess of the driver before some statements.
    connection.isolation_level = None
    connection.text_factory = decoded
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.close()


def _begin(connection: Connection) -> None:
    syncs = connection.get_execution_options().get(_DURABLE, True)
    # FULL waits for the disk at each commit; NORMAL leaves whole transactions to be lost by a power
    # cut, never by a killed process. It can't be changed within a transaction.
    wanted = "FULL" if syncs else "NORMAL"
    if connection.info.get(_SYNCHRONOUS) != wanted:
        connection.exec_driver_sql(f"PRAGMA synchronous={wanted}")
        connection.info[_SYNCHRONOUS] = wanted
    connection.exec_driver_sql("BEGIN IMMEDIATE")
