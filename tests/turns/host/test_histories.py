"""``--history``: conversations in a database, and what keeps one from being used."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sqlite3
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fibers as fb
from streamengine import FileHistory
from streamengine.history import StateDirLocked
from streamengine.redact import Secret
from tests.streamengine.history.backends import Databases, Postgres, Sqlite, postgres_sockets
from tests.turns.handles.test_store import record
from turns import FileTurnStore
from turns.host import logs
from turns.host.cli import main
from turns.host.config import ServeConfig
from turns.host.errors import HostError, UsageError
from turns.host.histories import database_of, open_history, open_turn_store

from .programs import WAIT_SECONDS, WORDS, fiberscope, said, script_in, serving

pytest.importorskip("sqlalchemy", reason="the extra `sql` is not installed: NOTHING of it was run")

PASSWORD = "hush-hush-7"


@pytest.fixture(autouse=True)
def _forget_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_secrets", set[str]())


@pytest.fixture(scope="module")
def sockets() -> Iterator[str]:
    yield from postgres_sockets()


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Databases:
    """An empty one of each kind."""
    if request.param == "sqlite":
        return Sqlite(tmp_path / "history.db")
    postgres = Postgres(request.getfixturevalue("sockets"), f"h{time.monotonic_ns()}")
    asyncio.run(postgres.make())
    return postgres


def ask(place: Databases, statement: str) -> list[tuple[Any, ...]]:
    return asyncio.run(place._do(statement))


def wait_for_words(place: Databases, words: str) -> None:
    """Wait until the partial in the database holds these words."""
    until = time.monotonic() + WAIT_SECONDS
    kept = "SELECT body FROM history_partials UNION ALL SELECT lines FROM history_partial_log"
    while time.monotonic() < until:
        if any(words in text for (text,) in ask(place, kept)):
            return
        time.sleep(0.02)
    raise AssertionError(f"the database never held {words!r}")


# ---- a server on a database


@pytest.mark.slow
@pytest.mark.lifecycle
@pytest.mark.spec("P12")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_next_server_finds_what_one_that_was_ended_had_said(
    tmp_path: Path, database: Databases, number: signal.Signals
) -> None:
    state = tmp_path / "state"
    with serving(tmp_path, state, FIBERSCOPE_HISTORY=database.url) as server:
        server.send("stay")
        wait_for_words(database, "ten")
        server.signal(number)
        server.end()
    with serving(tmp_path, state, "--history", database.url) as server:
        rows = server.rows()
        server.send("hello")

    assert [(row["role"], said(row)) for row in rows] == [("user", "stay"), ("assistant", WORDS)]
    assert rows[-1]["metadata"]["partial"] is True
    assert not (state / "workspaces").exists()
    assert "history=postgresql" in server.log or "history=sqlite" in server.log


@pytest.mark.slow
def test_a_chat_without_a_server_keeps_its_rows_there(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    code, output, _ = fiberscope(
        tmp_path,
        *("chat", "hello", "--state", "state", "--model", script_in(tmp_path)),
        *("--history", f"sqlite:///{path}"),
    )

    assert (code, output) == (0, WORDS + "\n")
    assert [role for (role,) in ask(Sqlite(path), "SELECT role FROM history_rows")] == [
        "user",
        "assistant",
    ]


async def test_without_one_they_are_files_of_the_state_directory(tmp_path: Path) -> None:
    async with fb.Scope() as scope:
        assert isinstance(await scope.provide(open_history(tmp_path, None)), FileHistory)


async def test_records_of_turns_are_where_the_history_is(
    tmp_path: Path, database: Databases
) -> None:
    for url in (None, Secret(database.url)):
        for number in (1, 2):  # a process, and the next one
            async with fb.Scope() as scope:
                history = await scope.provide(open_history(tmp_path, url))
                store = await scope.provide(open_turn_store(tmp_path, history))
                assert isinstance(store, FileTurnStore) == (url is None)
                assert len((await store.load()).records) == number - 1
                await store.write(record(number))

    assert await database._do("SELECT handle_id FROM turn_records ORDER BY 1") == [
        ("wst_1",),
        ("wst_2",),
    ]
    files = tmp_path / "workspaces" / "owner" / "task-handles"
    assert sorted(os.listdir(files)) == ["wst_1.json", "wst_2.json"]


# ---- what is one line on standard error


def refused(folder: Path, url: str, **env: str) -> str:
    """What ``serve`` says of this database; it must not start."""
    code, output, errors = fiberscope(
        folder,
        *("serve", "--port", "0", "--state", str(folder / "other"), "--model", script_in(folder)),
        stdin=b"",
        **{"FIBERSCOPE_LOG": "warning", "FIBERSCOPE_HISTORY": url, **env},
    )
    assert (code, output) == (1, "")
    assert errors.startswith("fiberscope: ")
    assert errors.count("\n") == 1
    return errors


@pytest.mark.slow
@pytest.mark.parametrize(
    ("missing", "url"),
    [("sqlalchemy", "sqlite:///{}/history.db"), ("asyncpg", "postgresql://127.0.0.1:1/nobody")],
)
def test_an_extra_that_is_not_installed_is_one_line(tmp_path: Path, missing: str, url: str) -> None:
    hiding = tmp_path / "hiding"
    hiding.mkdir()
    (hiding / f"{missing}.py").write_text(f"raise ModuleNotFoundError('No module {missing}')")
    path = os.pathsep.join([str(hiding), os.environ.get("PYTHONPATH", "")])

    told = refused(tmp_path, url.format(tmp_path), PYTHONPATH=path)

    assert f"{missing} isn't installed: pip install 'fiberscope[sql]'" in told
    assert not (tmp_path / "history.db").exists()


@pytest.mark.slow
def test_a_database_that_can_not_be_reached_is_one_line_without_its_password(
    tmp_path: Path,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    url = f"postgresql://me:{PASSWORD}@127.0.0.1:{port}/db"

    told = refused(tmp_path, url)

    assert f"postgresql://[secret]@127.0.0.1:{port}/db: " in told
    assert "can be reached" in told
    assert PASSWORD not in told


@pytest.mark.slow
def test_a_database_in_use_is_one_line_that_names_the_process(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/history.db"
    with serving(tmp_path, tmp_path / "state", "--history", url) as server:
        told = refused(tmp_path, url)
        server.send("hello")

    assert f"the database is in use by process {server.process.pid}" in told
    assert "another database" in told


@pytest.mark.slow
def test_a_database_of_a_newer_version_is_one_line_and_untouched(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    with sqlite3.connect(path) as made:
        made.execute("CREATE TABLE history_schema (version INTEGER NOT NULL)")
        made.execute("INSERT INTO history_schema VALUES (99)")
    made.close()

    told = refused(tmp_path, f"sqlite:///{path}")

    assert "its tables have version 99" in told
    assert ask(Sqlite(path), "SELECT name FROM sqlite_master") == [("history_schema",)]


@pytest.mark.slow
@pytest.mark.parametrize("option", ["--history", "variable"])
def test_no_log_and_no_file_has_the_password(tmp_path: Path, option: str) -> None:
    """Also not the note beside the lock, which holds the command line of its process."""
    url = f"postgresql://me:{PASSWORD}@127.0.0.1:1/db?sslpassword={PASSWORD}-2"
    state = tmp_path / "state"
    arguments = ["--history", url] if option == "--history" else []
    env = {} if arguments else {"FIBERSCOPE_HISTORY": url}

    code, output, errors = fiberscope(
        tmp_path,
        *("serve", "--port", "0", "--state", str(state), "--model", script_in(tmp_path)),
        *arguments,
        stdin=b"",
        FIBERSCOPE_LOG="debug",
        **env,
    )

    assert (code, output) == (1, "")
    assert "Traceback" not in errors
    assert PASSWORD not in errors
    assert not [p for p in state.rglob("*") if p.is_file() and PASSWORD in p.read_text()]


@pytest.mark.parametrize(
    ("url", "words"),
    [
        (f"mysql://me:{PASSWORD}@host/db", "there is no kind of database 'mysql'"),
        ("postgres://host/db", "there is no kind of database 'postgres'"),
        ("postgresql+psycopg://host/db", "used through asyncpg, not 'psycopg'"),
        (f"{PASSWORD}.db", "no URL of a database"),
        ("sqlite:/history.db", "no URL of a database"),
    ],
)
def test_a_url_that_makes_no_sense_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], url: str, words: str
) -> None:
    for command in (["serve"], ["chat", "hi"]):
        monkeypatch.setattr("sys.argv", ["fiberscope", *command, "--history", url])
        with pytest.raises(SystemExit) as left:
            main()
        told = capsys.readouterr().err

        assert left.value.code == UsageError.exit_code
        assert told.count("\n") == 1
        assert words in told
        assert PASSWORD not in told


# ---- secrets


def test_a_driver_may_be_named() -> None:
    for url in (
        "sqlite+pysqlite:///x.db",
        "sqlite+aiosqlite:///x.db",
        "postgresql+asyncpg://host/db",
        "sqlite:///x.db",
    ):
        assert database_of(url).reveal() == url


def test_a_configuration_does_not_show_the_url(tmp_path: Path) -> None:
    config = ServeConfig(state=tmp_path, database=Secret(f"postgresql://me:{PASSWORD}@host/db"))

    assert PASSWORD not in f"{config!r} {config}"


@pytest.mark.parametrize(
    ("url", "password"),
    [
        ("postgresql://me:pass%40word@host/db", "pass@word"),
        ("postgresql://me:pass%40word@host/db", "pass%40word"),
        ("postgresql://me:pass/word'x@host/db", "pass/word'x"),
        ("postgresql://host/db?user=me&password=in-the-query", "in-the-query"),
    ],
)
def test_no_line_of_the_log_has_its_password_from_then_on(url: str, password: str) -> None:
    database_of(url)

    assert password not in logs.without_secrets(f"the driver says: {password} is wrong")


async def test_a_state_directory_has_one_process_also_where_the_history_is_elsewhere(
    tmp_path: Path,
) -> None:
    async with fb.Scope() as scope:
        await scope.provide(open_history(tmp_path, Secret(f"sqlite:///{tmp_path}/a.db")))
        with pytest.raises(StateDirLocked, match="state directory"):
            await fb.scoped(open_history(tmp_path, Secret(f"sqlite:///{tmp_path}/b.db")))

    await fb.scoped(open_history(tmp_path, Secret(f"sqlite:///{tmp_path}/b.db")))


async def test_a_refused_database_gives_the_state_directory_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "sqlalchemy", None)
        with pytest.raises(HostError):
            await fb.scoped(open_history(tmp_path, Secret(f"sqlite:///{tmp_path}/a.db")))

    await fb.scoped(open_history(tmp_path, None))
