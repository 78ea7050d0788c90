"""Gathered: rows that wait for the database at the same time are written in one transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, TypeAlias, final

from sqlalchemy import Executable

from streamengine import HistoryError
from streamengine.history.sql.database import Database

Values: TypeAlias = Mapping[str, Any]
"""The columns of a row."""

_Waiting: TypeAlias = tuple[Values, asyncio.Future[bool]]


@final
class Gathered:
    """Writes rows by one ``statement``, durably. Of one key never two at a time: that is for the
    caller to see to.

    Where many turns are at work, most of a write is the wait for a connection and for the disk, and
    both take as long for a hundred rows as for one.
    """

    def __init__(self, database: Database, statement: Executable) -> None:
        self._database = database
        self._statement = statement
        self._waiting: list[_Waiting] = []

    async def write(self, values: Values) -> None:
        """On disk once it returns. Masked by the caller. Raises HistoryError."""
        if not await self._with_others(values):
            # One of them could not be written; which, is seen where each is alone.
            async with self._database.transaction(durable=True) as db:
                await db.run(lambda sql: sql.execute(self._statement, values), last=True)

    async def _with_others(self, values: Values) -> bool:
        """Whether it was written. Raises what went wrong where there was nobody else."""
        mine: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append((values, mine))
        if len(self._waiting) > 1:
            return await mine  # whoever came first writes for all
        rows: list[_Waiting] = []
        is_written = False
        try:
            async with self._database.transaction(durable=True) as db:
                # Not before: who came while this waited for a connection is one of them.
                rows = self._take()
                given = [values for values, _ in rows]
                await db.run(lambda sql: sql.execute(self._statement, given), last=True)
            is_written = True
        except HistoryError:
            rows = rows or self._take()
            if len(rows) == 1:
                raise
        finally:
            for _, written in rows or self._take():
                if not written.done():
                    written.set_result(is_written)
        return is_written

    def _take(self) -> list[_Waiting]:
        taken, self._waiting = self._waiting, []
        return taken
