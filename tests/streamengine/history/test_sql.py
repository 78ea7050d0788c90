"""What is particular to a history in a database: its tables, its lock, its faults."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import fibers as fb
from streamengine.history import StateDirLocked
from streamengine.history.lane import Lane
from streamengine.model import HistoryError, TextPart
from streamengine.model.note import LastEnd, WorkspaceNote
from streamengine.model.usage import Usage

from .backends import WORKSPACE, Databases, Kind
from .backends import backend as make_backend
from .kit import assistant, text_of, user

pytest.importorskip("sqlalchemy", reason="the extra `sql` is not installed: NOTHING of it was run")

from sqlalchemy import Connection, insert, text

from streamengine.history.sql import SqlHistory, schema
from streamengine.history.sql import store as sql_store
from streamengine.history.sql.database import Transaction
from streamengine.history.workspaces import Workspaces


@pytest.fixture(params=["sqlite", "postgresql"])
async def database(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Databases]:
    """An empty database of each kind."""
    kind: Kind = request.param
    sockets = request.getfixturevalue("postgres") if kind == "postgresql" else None
    async with make_backend(kind, tmp_path, monkeypatch, sockets) as place:
        assert isinstance(place, Databases)
        yield place


@fb.effect(raises=HistoryError)
async def version(url: str) -> int:
    history = SqlHistory(url)
    try:
        return await history.migrate()
    finally:
        await history.close()


# ---- tables


async def test_tables_are_made_once(database: Databases) -> None:
    now = len(schema.MIGRATIONS)

    assert [await version(database.url) for _ in range(3)] == [0, now, now]


async def test_tables_of_a_newer_version_are_refused_and_untouched(database: Databases) -> None:
    await version(database.url)
    await database._do("UPDATE history_schema SET version = 99")

    with pytest.raises(HistoryError) as caught:
        await version(database.url)

    assert caught.value.kind == "newer_version"
    assert "99" in caught.value.message
    assert caught.value.way_out
    assert await database._do("SELECT version FROM history_schema") == [(99,)]


async def test_tables_of_an_older_version_are_brought_to_this_one_with_their_rows(
    database: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = await database.history()
    kept = await old.append_user(WORKSPACE, user("u1"))

    def add_a_column(connection: Connection) -> None:
        connection.execute(text("ALTER TABLE history_notes ADD COLUMN mood TEXT"))

    monkeypatch.setattr(schema, "MIGRATIONS", [*schema.MIGRATIONS, add_a_column])
    assert await version(database.url) == len(schema.MIGRATIONS) - 1
    assert await version(database.url) == len(schema.MIGRATIONS)

    assert await database._do("SELECT mood FROM history_notes") == []
    assert await (await database.history()).read(WORKSPACE) == [kept.row]


async def test_a_migration_that_fails_leaves_the_version_and_no_half(
    database: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    await version(database.url)

    def fail(connection: Connection) -> None:
        connection.execute(text("ALTER TABLE history_notes ADD COLUMN mood TEXT"))
        connection.execute(text("SELECT * FROM no_such_table"))

    with monkeypatch.context() as patch:
        patch.setattr(schema, "MIGRATIONS", [*schema.MIGRATIONS, fail])
        with pytest.raises(HistoryError):
            await version(database.url)

    assert await version(database.url) == len(schema.MIGRATIONS)
    await database._do("ALTER TABLE history_notes ADD COLUMN mood TEXT")


# ---- one process a database


async def test_a_second_user_is_refused_by_name_until_the_first_is_gone(
    database: Databases,
) -> None:
    scope = fb.Scope()
    await scope.provide(SqlHistory.open(database.url))

    with pytest.raises(StateDirLocked) as caught:
        await fb.scoped(SqlHistory.open(database.url))

    assert caught.value.holder is not None
    assert caught.value.holder.pid == os.getpid()
    assert str(os.getpid()) in str(caught.value)
    assert "database" in caught.value.way_out
    await scope.close()
    await fb.scoped(SqlHistory.open(database.url))


@pytest.mark.spec("P13")
async def test_a_link_to_a_database_is_no_way_to_a_second_user_of_it(tmp_path: Path) -> None:
    """Two would give the same sequences."""
    (tmp_path / "link.db").symlink_to(tmp_path / "history.db")
    scope = fb.Scope()
    await scope.provide(SqlHistory.open(f"sqlite:///{tmp_path}/history.db"))

    with pytest.raises(StateDirLocked):
        await fb.scoped(SqlHistory.open(f"sqlite:///{tmp_path}/link.db"))

    await scope.close()


@pytest.mark.parametrize("uri", ["file:history.db?uri=true", "file::memory:?uri=true"])
async def test_a_uri_of_sqlites_own_is_refused(uri: str) -> None:
    """It is another name of a file, which the lock beside that doesn't know, or of none."""
    with pytest.raises(HistoryError, match="file:"):
        SqlHistory(f"sqlite:///{uri}")


async def test_the_lock_goes_with_a_process_that_is_killed(database: Databases) -> None:
    program = f"""
import asyncio, os, signal
import fibers as fb
from streamengine.history.sql import SqlHistory

@fb.effect
async def hold():
    await SqlHistory.open({database.url!r})
    print(os.getpid(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(fb.Runtime().run(fb.scoped(hold())))
"""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE
    )
    told, _ = await process.communicate()

    assert told.strip().isdigit()
    assert process.returncode == -signal.SIGKILL
    await fb.scoped(SqlHistory.open(database.url))


# ---- what else goes wrong


@pytest.mark.parametrize(
    "url",
    [
        "",
        "mysql://root:secret@host/db",
        "no url",
        "/tmp/secret.db",
        "postgresql://me:secret@host:port/db",
    ],
)
async def test_a_url_of_something_else_is_refused_without_telling_it(url: str) -> None:
    with pytest.raises(HistoryError) as caught:
        SqlHistory(url)

    assert "secret" not in str(caught.value)
    assert "sqlite:" in caught.value.way_out


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///", "sqlite:///:memory:"])
async def test_a_database_in_memory_is_refused(url: str) -> None:
    with pytest.raises(HistoryError, match="gone with the process"):
        SqlHistory(url)


@pytest.mark.parametrize(
    "url", ["postgresql://me:sec@ret@host/db", "postgresql://my/self:secret@host/db"]
)
async def test_what_is_not_escaped_in_a_url_is_refused_and_none_of_it_told(url: str) -> None:
    """A password would be taken for a part of the host, or of the database's name, and shown."""
    with pytest.raises(HistoryError) as caught:
        SqlHistory(url)

    assert "ret@" not in str(caught.value)
    assert "%40" in caught.value.way_out


async def test_an_option_that_the_driver_does_not_know_is_told() -> None:
    with pytest.raises(HistoryError) as caught:
        await fb.scoped(SqlHistory.open("postgresql://127.0.0.1:1/db?sslmode=require"))

    assert "sslmode" in caught.value.message
    assert "ssl=require" in caught.value.way_out


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://someone:secret@127.0.0.1:1/none",
        "postgresql://127.0.0.1:1/none?user=someone&password=secret",
    ],
)
async def test_a_password_is_in_no_error(url: str) -> None:
    history = SqlHistory(url)

    with pytest.raises(HistoryError) as caught:
        await history.read(WORKSPACE)

    assert caught.value.kind == "io"
    assert "127.0.0.1" in str(caught.value)
    assert "secret" not in str(caught.value)
    await history.close()


async def test_a_file_that_is_no_database_is_told_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    path.write_text("a letter, " * 100)
    history = SqlHistory(f"sqlite:///{path}")

    with pytest.raises(HistoryError) as caught:
        await history.migrate()
    await history.close()

    assert str(path) in str(caught.value)
    assert path.read_text() == "a letter, " * 100


@pytest.mark.spec("P14", "P9")
@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
@pytest.mark.parametrize("put", ["CAST($1 AS TEXT)", "$1"], ids=["no UTF-8", "bytes"])
async def test_what_is_no_text_reads_as_damaged_and_hides_nothing_else(
    database: Databases, put: str
) -> None:
    """SQLite keeps in a column of text whatever it is given."""
    history = await database.history()
    for name in ("u1", "u2"):
        await history.append_user(WORKSPACE, user(name))
    await history.write_partial(WORKSPACE, assistant("a1", "Hello", history_sequence=2))
    await history.append_partial(WORKSPACE, "a1", (TextPart(text=" there"),))
    await history.record_usage(WORKSPACE, "a0", Usage(input_tokens=1), model=None, source="abort")
    await history.update_note(WORKSPACE, lambda note: note.with_fields(auto_retry=False))
    for column, where in (
        ("rows SET body", "message_id = 'u1'"),
        ("partial_log SET lines", "true"),
        ("usage SET body", "true"),
        ("notes SET body", "true"),
    ):
        await database._do(f"UPDATE history_{column} = {put} WHERE {where}", b'{"id": "\xff"}\n')

    fresh = await database.history()
    loaded = await fresh.load(WORKSPACE)

    assert [(row.id, text_of(row)) for row in loaded.rows] == [("u2", "question"), ("a1", "Hello")]
    assert loaded.report.unreadable_lines == 1
    [warning] = loaded.report.warnings
    assert "the log of the partial" in warning
    assert await fresh.tail(WORKSPACE, 9) == list(loaded.rows)
    assert await fresh.read_usage(WORKSPACE) == []
    assert await fresh.read_note(WORKSPACE) == WorkspaceNote()
    assert ['{"id": "\\xff"}' in body for body in await database.aside()] == [True, True]
    assert await database._do("SELECT count(*) FROM history_rows") == [(3,)]


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
@pytest.mark.parametrize("put", ["CAST($1 AS TEXT)", "$1"], ids=["no UTF-8", "bytes"])
async def test_a_partial_that_is_no_text_is_moved_aside(database: Databases, put: str) -> None:
    history = await database.history()
    await history.append_user(WORKSPACE, user("u1"))
    await history.write_partial(WORKSPACE, assistant("a1", "Hello", history_sequence=1))
    await database._do(f"UPDATE history_partials SET body = {put}", b"\xff Hello")

    loaded = await (await database.history()).load(WORKSPACE)

    assert [row.id for row in loaded.rows] == ["u1"]
    [warning] = loaded.report.warnings
    assert "history_aside" in warning
    assert ["Hello" in body for body in await database.aside()] == [True]


async def test_a_database_file_is_for_its_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "history.db"

    assert await version(f"sqlite:///{path}") == 0

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


async def test_a_full_disk_is_told_as_such_and_nothing_is_lost(tmp_path: Path) -> None:
    history = SqlHistory(f"sqlite:///{tmp_path}/history.db")
    await history.migrate()
    await history.append_user(WORKSPACE, user("u1"))
    # As if the disk ended here.
    async with history._database.transaction(durable=False) as db:
        await db.run(lambda sql: sql.exec_driver_sql("PRAGMA max_page_count=1"))

    with pytest.raises(HistoryError) as caught:
        await history.append_user(WORKSPACE, user("u2", "x" * 1_000_000))

    assert caught.value.kind == "disk_full"
    assert [row.id for row in await history.read(WORKSPACE)] == ["u1"]
    await history.close()


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_a_transaction_goes_to_the_thread_of_the_database_once(
    database: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With each statement it would take longer for the way than for the work."""
    history = await database.history()
    ways: list[object] = []
    real = Lane.run

    def counted(self: Lane, job: Callable[[], Any]) -> Any:
        ways.append(job)
        return real(self, job)

    monkeypatch.setattr(Lane, "run", counted)
    sequence = await history.reserve(WORKSPACE, "a1")
    row = assistant("a1", "one", historySequence=sequence)
    await history.write_partial(WORKSPACE, row)
    await history.conclude(WORKSPACE, row, LastEnd(message_id="a1"))

    assert len(ways) == 3


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_a_cancelled_transaction_leaves_its_connection_to_the_next(
    database: Databases,
) -> None:
    """Its job runs to the end on the thread, although nobody waits for it any more."""
    history = await database.history()
    assert isinstance(history, SqlHistory)
    begun, go = threading.Event(), threading.Event()

    def slow(sql: Connection) -> None:
        begun.set()
        assert go.wait(10)
        sql.execute(insert(schema.notes).values(workspace_id=WORKSPACE, body="{}"))

    async def cut() -> None:
        async with history.database.transaction(durable=True) as db:
            await db.run(slow)

    task = asyncio.ensure_future(cut())
    await asyncio.to_thread(begun.wait, 10)
    task.cancel()
    await asyncio.sleep(0)
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert await history.workspaces() == []


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
async def test_a_server_that_cut_its_connections_is_used_again(database: Databases) -> None:
    history = await database.history()
    sequence = await history.reserve(WORKSPACE, "a1")
    await history.write_partial(WORKSPACE, assistant("a1", "one", historySequence=sequence))
    await database._do(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE pid <> pg_backend_pid() AND usename = current_user"
    )

    row = await history.read_partial(WORKSPACE)

    assert row is not None


async def test_an_addition_whose_commit_arrived_although_it_failed_is_not_made_twice(
    database: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection was cut between the commit and its answer."""
    history = SqlHistory(database.url)
    await history.migrate()
    row = assistant("a1", "one", historySequence=await history.reserve(WORKSPACE, "a1"))
    await history.write_partial(WORKSPACE, row)
    real = history._database.transaction

    @asynccontextmanager
    async def cut(*, durable: bool) -> AsyncGenerator[Transaction]:
        async with real(durable=durable) as db:
            yield db
        raise HistoryError("io", "here", "cut", "Wait.")

    addition = history.append_partial(WORKSPACE, "a1", (TextPart(text=" two"),))
    with monkeypatch.context() as patch:
        patch.setattr(history._database, "transaction", cut)
        with pytest.raises(HistoryError):
            await addition

    with pytest.raises(HistoryError) as caught:
        await addition
    assert caught.value.kind == "not_found"  # so that it is written anew, with everything
    await history.write_partial(WORKSPACE, row)
    await addition

    kept = await history.read_partial(WORKSPACE)
    assert kept is not None
    assert text_of(kept) == "one two"
    await history.close()


async def test_what_is_interrupted_in_its_turn_happens_whole(
    database: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = SqlHistory(database.url)
    await history.migrate()
    begun, go = asyncio.Event(), asyncio.Event()
    real = history._database.transaction

    @asynccontextmanager
    async def slow(*, durable: bool) -> AsyncGenerator[Transaction]:
        async with real(durable=durable) as db:
            begun.set()
            await go.wait()
            yield db

    with monkeypatch.context() as patch:
        patch.setattr(history._database, "transaction", slow)
        task = asyncio.ensure_future(history.append_user(WORKSPACE, user("u1")))
        await begun.wait()
        waiting = asyncio.ensure_future(history.append_user(WORKSPACE, user("u2")))
        await asyncio.sleep(0)
        task.cancel()
        waiting.cancel()
        go.set()
        await asyncio.gather(task, waiting, return_exceptions=True)

    assert [row.id for row in await history.read(WORKSPACE)] == ["u1"]
    await history.close()


@pytest.mark.parametrize(
    ("fsync", "durable", "synchronous"),
    [
        ("off", True, 1),
        ("terminal", False, 1),
        ("terminal", True, 2),
        ("every-write", False, 2),
    ],
)
async def test_the_disk_is_waited_for_by_policy(
    database: Databases, fsync: Any, durable: bool, synchronous: int
) -> None:
    history = SqlHistory(database.url, fsync=fsync)
    asked = "PRAGMA synchronous" if database.url.startswith("sqlite") else "SHOW synchronous_commit"
    async with history._database.transaction(durable=durable) as db:
        found = await db.run(lambda sql: sql.exec_driver_sql(asked).scalar())
    await history.close()

    assert found in (synchronous, {1: "off", 2: "on"}[synchronous])


@pytest.mark.spec("P13")
async def test_idle_workspaces_are_forgotten_one_with_a_reservation_is_not(
    database: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_store, "Workspaces", partial(Workspaces, most=3))
    history = await database.history()
    assert isinstance(history, SqlHistory)
    assert await history.reserve("live", "a1") == 0
    for number in range(8):
        await history.append_user(f"w{number}", user("u1"))

    assert len(history._workspaces) <= 4
    assert await history.reserve("live", "a2") == 1
    assert (await history.append_user("w0", user("u2"))).row.metadata.history_sequence == 1


@pytest.mark.spec("P13")
async def test_a_workspace_that_somebody_waits_for_is_not_forgotten(database: Databases) -> None:
    """Between two turns its lock is free; of two that remember it, each would give a sequence."""
    history = await database.history()
    assert isinstance(history, SqlHistory)
    workspace = history._workspaces.get(WORKSPACE)
    async with workspace.turn:
        waiting = asyncio.ensure_future(history.reserve(WORKSPACE, "a1"))
        await asyncio.sleep(0)

    assert not workspace.is_idle
    await waiting
    await history.release(WORKSPACE, "a1")
    assert workspace.is_idle


@pytest.mark.parametrize("end", ["conclude", "finalize", "commit", "delete", "truncate"])
async def test_a_workspace_is_idle_again_after_an_answer_of_which_an_addition_failed(
    database: Databases, end: str
) -> None:
    """One that never is would be remembered for as long as the process lives."""
    history = await database.history()
    assert isinstance(history, SqlHistory)
    sequence = await history.reserve(WORKSPACE, "a1")
    row = assistant("a1", "one", historySequence=sequence)
    await history.write_partial(WORKSPACE, row)
    addition = history.append_partial(WORKSPACE, "a1", (TextPart(text=" two"),))
    with database.failing("partial"), pytest.raises(HistoryError):
        await addition
    workspace = history._workspaces.get(WORKSPACE)
    assert not workspace.is_idle
    for _ in range(2):  # it may stand there already: whoever adds it has to write it anew
        with pytest.raises(HistoryError) as refused:
            await addition
        assert refused.value.kind == "not_found"

    ends: dict[str, fb.Effect[Any, HistoryError]] = {
        "conclude": history.conclude(WORKSPACE, row, LastEnd(message_id="a1")),
        "finalize": history.finalize(WORKSPACE, row),
        "commit": history.commit_partial(WORKSPACE),
        "delete": history.delete_partial(WORKSPACE, "a1"),
        "truncate": history.truncate(WORKSPACE, None),
    }
    await ends[end]
    await history.release(WORKSPACE, "a1")

    assert workspace.is_idle
