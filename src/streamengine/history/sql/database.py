"""A database as this package uses it: one transaction a step, made durable by policy.

SQLite and PostgreSQL differ only here.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, final

from sqlalchemy import URL, Connection, event, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from ...model.errors import HistoryError
from ..directory import FsyncPolicy
from .faults import reported
from .texts import decoded

_DRIVERS: Final = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg"}
_CONNECTIONS: Final = 5
_DURABLE: Final = "history_durable"


@final
class Database:
    """Connections to one database, for all that is kept in it. Of one loop. Nothing is opened
    before the first transaction.
    """

    def __init__(self, url: str, *, fsync: FsyncPolicy) -> None:
        """`url`: "sqlite:////path/to/file" or "postgresql://user@host/name".

        Raises HistoryError for any other. ``place`` is the URL as it may be shown.
        """
        self.url: URL = _url_of(url)
        self.place: str = _shown(self.url)
        self._fsync: FsyncPolicy = fsync
        # SQLite has one writer, who is waited for here: it would answer a second one with an error.
        self._free = asyncio.Semaphore(1 if self.is_sqlite else _CONNECTIONS)
        self._engine: AsyncEngine | None = None

    @property
    def is_sqlite(self) -> bool:
        return self.url.get_backend_name() == "sqlite"

    @property
    def file(self) -> Path | None:
        """The file of an SQLite database; of a link to one what it leads to."""
        name = self.url.database
        return Path(os.path.realpath(name)) if self.is_sqlite and name else None

    @asynccontextmanager
    async def transaction(self, *, durable: bool) -> AsyncGenerator[AsyncConnection]:
        """A transaction, committed at the end of the block, rolled back if that raises. It begins
        once a connection is free, first come, first served.

        `durable`: the disk is waited for under the policy "terminal". Raises HistoryError.
        """
        syncs = self._fsync == "every-write" or (durable and self._fsync == "terminal")
        with reported(self.place):
            async with self._free, self.engine.connect() as plain:
                connection = await plain.execution_options(**{_DURABLE: syncs})
                async with connection.begin():
                    if not self.is_sqlite and not syncs:
                        await connection.exec_driver_sql("SET LOCAL synchronous_commit TO off")
                    yield connection

    @property
    def engine(self) -> AsyncEngine:
        if self._engine is None:
            self._engine = self._made()
        return self._engine

    async def dispose(self) -> None:
        """Close all connections; nothing happens if there is none."""
        engine, self._engine = self._engine, None
        if engine is not None:
            await engine.dispose()

    def _made(self) -> AsyncEngine:
        if not self.is_sqlite:
            return create_async_engine(
                self.url, pool_size=_CONNECTIONS, max_overflow=0, pool_pre_ping=True
            )
        if self.file is not None:
            # Made before SQLite would make it readable for everybody.
            self.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(self.file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        engine = create_async_engine(self.url, pool_size=1, max_overflow=0)
        event.listen(engine.sync_engine, "connect", _prepare)
        event.listen(engine.sync_engine, "begin", _begin)
        return engine


def _prepare(connection: Any, _record: object) -> None:
    # Transactions are begun here (below), not by a guess of the driver before some statements.
    connection.isolation_level = None
    connection.driver_connection.text_factory = decoded
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.close()


def _begin(connection: Connection) -> None:
    syncs = connection.get_execution_options().get(_DURABLE, True)
    # FULL waits for the disk at each commit; NORMAL leaves whole transactions to be lost by a power
    # cut, never by a killed process. It can't be changed within a transaction.
    connection.exec_driver_sql(f"PRAGMA synchronous={'FULL' if syncs else 'NORMAL'}")
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _url_of(text: str) -> URL:
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):  # ValueError: a port that is no number
        url = None
    backend = None if url is None else url.get_backend_name()
    if url is None or backend not in _DRIVERS:
        # The text may hold a password.
        raise _no_url("its URL is none that this version can use")
    if backend == "sqlite":
        _check_file(url.database or ":memory:")
    elif "@" in (url.host or "") or "@" in (url.database or ""):
        raise _no_url("its URL has an @ where none belongs: it may be of a password", _ESCAPED)
    return url.set(drivername=_DRIVERS[backend])


def _check_file(name: str) -> None:
    if name == ":memory:":
        raise _no_url("its URL names no file, and what is in memory is gone with the process")
    if name.startswith("file:"):
        # SQLite would take it for a URI: it may be in memory, and the lock isn't beside it.
        raise _no_url("its URL has a file: where a path belongs")


_ESCAPED: Final = "Write @, : and / in a user or a password as %40, %3A and %2F."


def _no_url(
    problem: str,
    way_out: str = 'Give one such as "sqlite:////path/to/file" or "postgresql://user@host/name".',
) -> HistoryError:
    return HistoryError("io", "the database", problem, way_out)


def _shown(url: URL) -> str:
    """Without the password, wherever in the URL it stands."""
    masked = {name: "hidden" for name in url.query if "pass" in name.lower()}
    # Not the driver: nobody has written it.
    plain = url.set(drivername=url.get_backend_name()).update_query_dict(masked)
    return plain.render_as_string(hide_password=True)
