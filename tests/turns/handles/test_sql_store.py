"""SqlTurnStore: its tables, its database that it shares with a history, and the faults of that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, get_args

import pytest

import fibers as fb
from streamengine.history import FsyncPolicy
from streamengine.model import HistoryError
from tests.streamengine.history.kit import user
from turns import TurnError

from .backends import OWNER, Backend, InDatabase
from .test_store import load, record

pytest.importorskip("sqlalchemy", reason="the extra `sql` is not installed: NOTHING of it was run")

from sqlalchemy import Connection, text

from streamengine.history.sql import SqlHistory
from streamengine.history.sql.database import Database, Transaction
from turns.handles.sql import SqlTurnStore, schema

both = pytest.mark.parametrize("kind", ["sqlite", "postgresql"], indirect=True)


@pytest.fixture
def database(backend: Backend) -> InDatabase:
    """An empty database."""
    assert isinstance(backend, InDatabase)
    return backend


async def version(database: InDatabase) -> int:
    return await SqlTurnStore((await database.history()).database).migrate()


async def failure_of(work: fb.Effect[object, TurnError]) -> TurnError:
    with pytest.raises(TurnError) as caught:
        await work
    assert caught.value.kind == "store"
    assert caught.value.way_out
    return caught.value


# ---- tables


@both
async def test_tables_are_made_once_and_beside_those_of_the_history(database: InDatabase) -> None:
    now = len(schema.MIGRATIONS)

    assert [await version(database) for _ in range(3)] == [0, now, now]
    assert await database.ask("SELECT count(*) FROM history_schema") == [(1,)]
    assert await database.ask("SELECT count(*) FROM turn_schema") == [(1,)]


@both
async def test_tables_of_a_newer_version_are_refused_and_untouched(database: InDatabase) -> None:
    await (await database.store()).write(record())
    await database.ask("UPDATE turn_schema SET version = 99")
    before = await database.ask("SELECT * FROM turn_records")

    with pytest.raises(HistoryError) as caught:
        await database.store()

    assert caught.value.kind == "newer_version"
    assert "99" in caught.value.message
    assert caught.value.way_out
    assert await database.ask("SELECT version FROM turn_schema") == [(99,)]
    assert await database.ask("SELECT * FROM turn_records") == before


@both
async def test_tables_of_an_older_version_are_brought_to_this_one_with_their_rows(
    database: InDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    await (await database.store()).write(record())

    def add_a_column(connection: Connection) -> None:
        connection.execute(text("ALTER TABLE turn_records ADD COLUMN mood TEXT"))

    monkeypatch.setattr(schema, "MIGRATIONS", [*schema.MIGRATIONS, add_a_column])
    store = await database.store()

    assert await version(database) == len(schema.MIGRATIONS)
    assert await database.ask("SELECT mood FROM turn_records") == [(None,)]
    assert len((await load(store)).records) == 1


# ---- rows


@pytest.mark.spec("T20")
@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
@pytest.mark.parametrize("put", ["CAST($1 AS TEXT)", "$1"], ids=["no UTF-8", "bytes"])
@pytest.mark.parametrize("column", ["handle_id", "owner_workspace_id", "body"])
async def test_what_is_no_text_is_told_and_hides_no_other(
    database: InDatabase, column: str, put: str
) -> None:
    """SQLite keeps in a column of text whatever it is given."""
    store = await database.store()
    for number in (1, 2):
        await store.write(record(number))
    await database.ask(
        f"UPDATE turn_records SET {column} = {put} WHERE handle_id = 'wst_2'", b"\xffx"
    )

    loaded = await load(store)

    assert [r.handle_id for r in loaded.records] == ["wst_1"]
    [warning] = loaded.warnings
    assert "turn_records, " in warning
    assert ("\\xffx" in warning) == (column == "handle_id")
    assert await database.ask("SELECT count(*) FROM turn_records") == [(2,)]


# ---- a database that fails


@pytest.mark.parametrize("kind", ["postgresql"], indirect=True)
async def test_a_server_that_cut_its_connections_is_used_again(database: InDatabase) -> None:
    store = await database.store()
    await store.write(record(1))
    await database.ask(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE pid <> pg_backend_pid() AND usename = current_user"
    )

    await store.write(record(2))

    assert len((await load(store)).records) == 2


async def test_a_database_that_is_lost_is_said_without_its_password() -> None:
    history = SqlHistory("postgresql://someone:secret@127.0.0.1:1/none")
    store = SqlTurnStore(history.database)

    for work in (store.write(record()), store.load()):
        error = await failure_of(work)

        assert "127.0.0.1" in error.message
        assert "can be reached" in error.way_out
        assert "secret" not in str(error)
    await history.close()


async def test_a_full_disk_is_said_by_the_database_itself(tmp_path: Path) -> None:
    history = SqlHistory(f"sqlite:///{tmp_path}/app.db")
    store = await SqlTurnStore.open(history)
    await store.write(record())
    # As if the disk ended here.
    async with history.database.transaction(durable=False) as db:
        await db.run(lambda sql: sql.exec_driver_sql("PRAGMA max_page_count=1"))

    error = await failure_of(store.write(record(prompt="x" * 1_000_000)))

    assert "no room" in error.message
    assert "Free some space" in error.way_out
    assert [r.prompt for r in (await load(store)).records] == ["Count them"]
    await history.close()


@pytest.mark.parametrize("kind", ["postgresql"], indirect=True)
async def test_a_full_disk_of_a_server_is_said_in_the_same_words(database: InDatabase) -> None:
    store = await database.store()
    await store.write(record())
    await database.ask(
        "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE 'could not extend file' USING ERRCODE = '53100'; END $$"
    )
    await database.ask(
        "CREATE TRIGGER full_disk BEFORE UPDATE ON turn_records EXECUTE FUNCTION full_disk()"
    )

    error = await failure_of(store.write(record(prompt="changed")))

    assert "no room" in error.message
    assert "Free some space" in error.way_out
    assert [r.prompt for r in (await load(store)).records] == ["Count them"]


@both
async def test_a_write_whose_commit_arrived_although_it_failed_can_be_repeated(
    database: InDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection was cut between the commit and its answer: the settlement tries again."""
    history = await database.history()
    store = await SqlTurnStore.open(history)
    real = history.database.transaction

    @asynccontextmanager
    async def cut(*, durable: bool) -> AsyncGenerator[Transaction]:
        async with real(durable=durable) as db:
            yield db
        raise HistoryError("io", "here", "cut", "Wait.")

    with monkeypatch.context() as patch:
        patch.setattr(history.database, "transaction", cut)
        await failure_of(store.write(record()))
    await store.write(record(prompt="again"))

    assert [r.prompt for r in (await load(store)).records] == ["again"]


# ---- many at a time


@pytest.fixture
def transactions(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """One entry for each transaction from now on: whether it was durable."""
    begun: list[bool] = []
    real = Database.transaction

    def counted(self: Database, *, durable: bool) -> AbstractAsyncContextManager[Transaction]:
        begun.append(durable)
        return real(self, durable=durable)

    monkeypatch.setattr(Database, "transaction", counted)
    return begun


@both
async def test_records_that_wait_at_the_same_time_are_written_together(
    database: InDatabase, transactions: list[bool]
) -> None:
    store = await database.store()
    transactions.clear()

    await asyncio.gather(*(store.write(record(number)) for number in range(100)))

    assert 1 <= len(transactions) <= 10
    assert all(transactions)
    assert len((await load(store)).records) == 100


@both
async def test_a_record_that_can_not_be_written_fails_alone(
    database: InDatabase, transactions: list[bool]
) -> None:
    store = await database.store()
    refused: Any = {"owner_workspace_id": None}
    records = [record(number, **(refused if number == 3 else {})) for number in range(10)]

    exits = await asyncio.gather(*(store.write(each).exit() for each in records))

    assert [number for number, exit_ in enumerate(exits) if isinstance(exit_, fb.Failure)] == [3]
    assert [r.handle_id for r in (await load(store)).records] == [
        f"wst_{number}" for number in range(10) if number != 3
    ]


@both
async def test_all_that_wait_for_a_database_that_is_lost_are_told(
    database: InDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await database.store()

    real = Database.transaction
    attempts: list[bool] = []

    @asynccontextmanager
    async def lost(self: Database, *, durable: bool) -> AsyncGenerator[Transaction]:
        attempts.append(durable)
        await asyncio.sleep(0)
        if durable:
            raise HistoryError("io", "here", "lost", "Wait.")
        async with real(self, durable=durable) as db:
            yield db

    with monkeypatch.context() as patch:
        patch.setattr(Database, "transaction", lost)
        await failure_of(store.write(record()))
        assert len(attempts) == 1  # an attempt may take long
        exits = await asyncio.gather(*(store.write(record(n)).exit() for n in range(10)))

    assert all(isinstance(exit_, fb.Failure) for exit_ in exits)
    await store.write(record())
    assert len((await load(store)).records) == 1


# ---- one database with the history


@pytest.mark.parametrize("kind", ["postgresql"], indirect=True)
async def test_a_later_write_of_a_record_waits_for_the_one_before(
    database: InDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Side by side on two connections either could be the last."""
    history = await database.history()
    store = await SqlTurnStore.open(history)
    real = history.database.transaction
    begun, go = asyncio.Event(), asyncio.Event()

    class Slow:
        def __init__(self, db: Transaction) -> None:
            self._db = db

        async def run(self, job: Callable[[Connection], object], **given: Any) -> None:
            if not begun.is_set():
                begun.set()
                await go.wait()
            await self._db.run(job, **given)

    @asynccontextmanager
    async def slow(*, durable: bool) -> AsyncGenerator[Slow]:
        async with real(durable=durable) as db:
            yield Slow(db)

    monkeypatch.setattr(history.database, "transaction", slow)
    first = asyncio.ensure_future(store.write(record(prompt="first")))
    await begun.wait()
    second = asyncio.ensure_future(store.write(record(prompt="second")))
    for _ in range(3):
        await store.write(record(2))  # another's waits for neither
    go.set()
    await asyncio.gather(first, second)

    monkeypatch.undo()
    assert {r.handle_id: r.prompt for r in (await load(store)).records} == {
        "wst_1": "second",
        "wst_2": "Count them",
    }


@both
async def test_the_history_and_the_records_write_side_by_side(database: InDatabase) -> None:
    """SQLite would answer the second of two writers with an error after a while."""
    history = await database.history()
    store = await SqlTurnStore.open(history)

    async def one(number: int) -> None:
        handle = record(number)
        for status in ("starting", "running", "completed"):
            await asyncio.gather(
                store.write(handle.changed(status=status)),
                history.append_user(f"w{number}", user(f"u_{status}")),
            )

    await asyncio.gather(*map(one, range(20)))

    assert {r.status for r in (await load(store)).records} == {"completed"}
    assert await history.workspaces() == sorted(f"w{number}" for number in range(20))


@both
@pytest.mark.parametrize("fsync", get_args(FsyncPolicy))
async def test_a_record_waits_for_the_disk_by_the_policy_of_the_history(
    database: InDatabase, fsync: FsyncPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = SqlHistory(database.place.url, fsync=fsync)
    store = await SqlTurnStore.open(history)
    is_sqlite = history.database.is_sqlite
    real = history.database.transaction
    found: list[Any] = []

    @asynccontextmanager
    async def asked(*, durable: bool) -> AsyncGenerator[Transaction]:
        async with real(durable=durable) as db:
            asking = "PRAGMA synchronous" if is_sqlite else "SHOW synchronous_commit"
            found.append(await db.run(lambda sql: sql.exec_driver_sql(asking).scalar()))
            yield db

    monkeypatch.setattr(history.database, "transaction", asked)
    await store.write(record(owner_workspace_id=OWNER))
    await history.close()

    waits = {True: 2, False: 1} if is_sqlite else {True: "on", False: "off"}
    assert found == [waits[fsync != "off"]]
