"""PostgreSQL: some connections to a server, each used by one transaction at a time."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar, final

from sqlalchemy import URL, Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

T = TypeVar("T")


@final
class PostgresConnections:
    """At most ``most`` of them. Nothing is opened before the first is needed."""

    def __init__(self, url: URL, *, most: int) -> None:
        self.engine: AsyncEngine = create_async_engine(
            url, pool_size=most, max_overflow=0, pool_pre_ping=True
        )

    @asynccontextmanager
    async def transaction(self, *, syncs: bool) -> AsyncGenerator[PostgresTransaction]:
        """Committed at the end of the block, rolled back if that raises."""
        async with self.engine.connect() as connection, connection.begin():
            if not syncs:
                await connection.exec_driver_sql("SET LOCAL synchronous_commit TO off")
            yield PostgresTransaction(connection)

    async def dispose(self) -> None:
        """Close them."""
        await self.engine.dispose()


@final
class PostgresTransaction:
    """Begun."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def run(self, job: Callable[[Connection], T], *, last: bool = False) -> T:
        """What ``job`` gives, in the loop: where it waits for the server, others go on."""
        return await self._connection.run_sync(job)
