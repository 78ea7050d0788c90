"""A database as this package uses it: one transaction a step, made durable by policy.

What SQLite and PostgreSQL do differently is in the modules of their names.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, Protocol, TypeVar, final

from sqlalchemy import URL, Connection, Engine, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.ext.asyncio import AsyncEngine

from ...model.errors import HistoryError
from ..directory import FsyncPolicy
from .faults import reported
from .postgres import PostgresConnections
from .sqlite import SqliteConnection

T = TypeVar("T")

_DRIVERS: Final = {"sqlite": "sqlite+pysqlite", "postgresql": "postgresql+asyncpg"}
_CONNECTIONS: Final = 5


class Transaction(Protocol):
    """One that is open. What is asked is plain code, for either kind of database."""

    async def run(self, job: Callable[[Connection], T], *, last: bool = False) -> T:
        """What ``job`` gives. It may run on a thread, and keeps nothing of the connection.

        ``last``: no other follows, and the commit may come right behind it.
        """
        ...


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
        self._backend: SqliteConnection | PostgresConnections | None = None

    @property
    def is_sqlite(self) -> bool:
        return self.url.get_backend_name() == "sqlite"

    @property
    def file(self) -> Path | None:
        """The file of an SQLite database; of a link to one what it leads to."""
        name = self.url.database
        return Path(os.path.realpath(name)) if self.is_sqlite and name else None

    @asynccontextmanager
    async def transaction(self, *, durable: bool) -> AsyncGenerator[Transaction]:
        """A transaction, committed at the end of the block, rolled back if that raises. It begins
        once a connection is free, first come, first served.

        `durable`: the disk is waited for under the policy "terminal". Raises HistoryError.
        """
        syncs = self._fsync == "every-write" or (durable and self._fsync == "terminal")
        with reported(self.place):
            async with self._free:
                backend = self._connected()
                async with backend.transaction(syncs=syncs) as transaction:
                    yield transaction

    @property
    def engine(self) -> AsyncEngine:
        """The connections to a server, for who needs one of his own."""
        backend = self._connected()
        assert isinstance(backend, PostgresConnections), "a file has one connection"
        return backend.engine

    @property
    def sync_engine(self) -> Engine:
        """What every statement goes through, for who listens to it."""
        backend = self._connected()
        return backend.engine if isinstance(backend, SqliteConnection) else self.engine.sync_engine

    async def dispose(self) -> None:
        """Close all connections; nothing happens if there is none."""
        backend, self._backend = self._backend, None
        if backend is not None:
            await backend.dispose()

    def _connected(self) -> SqliteConnection | PostgresConnections:
        if self._backend is None:
            file = self.file
            self._backend = (
                PostgresConnections(self.url, most=_CONNECTIONS)
                if file is None
                else SqliteConnection(self.url, file)
            )
        return self._backend


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
