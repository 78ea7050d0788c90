"""SqlTurnStore: the records of turns in a database."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final, TypeAlias, final

from sqlalchemy import Executable, select
from sqlalchemy.dialects import postgresql, sqlite

import fibers as fb
from fibers import Effect, effect
from streamengine import HistoryError
from streamengine.history.sql import SqlHistory
from streamengine.history.sql.database import Database
from streamengine.locks import WorkspaceLocks

from ...model.errors import TurnError
from ...model.ids import is_handle_id
from ...model.record import TurnRecord
from ..store import LoadedRecords, TurnStore, in_order, said_of_store
from ..stored import Unusable, record_of
from . import schema
from .gathered import Gathered

_Found: TypeAlias = tuple[str, str, str]
"""Handle, owner and body of a row."""

_TABLE: Final = schema.records


@final
class SqlTurnStore(TurnStore):
    """One row a handle, in the database of a history.

        history = await SqlHistory.open("sqlite:////var/lib/app/app.db")
        store = await SqlTurnStore.open(history)

    The connections, the lock and the fsync policy are the history's: SQLite has one writer, and a
    database one process.
    """

    def __init__(self, database: Database) -> None:
        """Opens nothing; the tables are there (``open`` sees to that), and the process is alone."""
        self._database = database
        self._rows = Gathered(database, _put(database))
        # One a handle: of two writes of one record the later one stays.
        self._turns = WorkspaceLocks()

    @staticmethod
    def open(history: SqlHistory) -> Effect[SqlTurnStore, HistoryError]:
        """The store beside this history, for as long as that is open; its tables are made, or
        brought to this version. Fails with "newer_version" where a newer program made them.
        """
        store = SqlTurnStore(history.database)
        return store.migrate().map(lambda _: store)

    @effect(raises=HistoryError)
    async def migrate(self) -> int:
        """Make the tables, or bring them to this version; gives the version that they had."""
        with fb.uninterruptible():
            async with self._database.transaction(durable=True) as db:
                return await db.run(
                    lambda sql: schema.migrate(sql, self._database.place), last=True
                )

    @effect(raises=TurnError)
    async def write(self, record: TurnRecord) -> None:
        values = {
            "handle_id": record.handle_id,
            "owner_workspace_id": record.owner_workspace_id,
            "body": record.to_json(),
        }
        async with self._turns.hold(record.handle_id):
            with fb.uninterruptible(), said_of_store():
                await self._rows.write(values)

    @effect(raises=TurnError)
    async def load(self) -> LoadedRecords:
        with fb.uninterruptible(), said_of_store():
            async with self._database.transaction(durable=False) as db:
                found = await db.run(
                    lambda sql: [tuple(row) for row in sql.execute(select(_TABLE))], last=True
                )
        # Some thousand of them are a second of work.
        return await asyncio.to_thread(_read, found, f"{self._database.place}, {_TABLE.name}")


def _put(database: Database) -> Executable:
    added = sqlite.insert(_TABLE) if database.is_sqlite else postgresql.insert(_TABLE)
    kept = {name: added.excluded[name] for name in ("owner_workspace_id", "body")}
    return added.on_conflict_do_update(index_elements=[_TABLE.c.handle_id], set_=kept)


def _read(found: Iterable[_Found], table: str) -> LoadedRecords:
    records: list[TurnRecord] = []
    warnings: list[str] = []
    for row in found:
        try:
            records.append(_record_of(row, table))
        except Unusable as problem:
            warnings.append(str(problem))
    return in_order(records, warnings)


def _record_of(row: _Found, table: str) -> TurnRecord:
    handle_id, owner, body = row
    place = f"{table}, {handle_id}"
    if not is_handle_id(handle_id):
        raise Unusable(f"{place}: not the row of a handle. Move it away if it is not needed here.")
    return record_of(body.encode(), place=place, handle_id=handle_id, owner=owner)
