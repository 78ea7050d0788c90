"""What a history can be kept in, each with a back door for the tests."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sqlite3
from collections.abc import AsyncGenerator, Generator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import pytest

from streamengine.history import FileHistory, FsyncPolicy, HistoryStore
from streamengine.history.lines import fields_of
from streamengine.history.memory import MemoryHistory
from streamengine.history.partial import is_blank
from streamengine.history.row_fields import row_of
from streamengine.model import HistoryError

from .kit import no_space

if TYPE_CHECKING:
    from streamengine.history.sql import SqlHistory

WORKSPACE = "ws"

LastingKind = Literal["files", "sqlite", "postgresql"]
LASTING_KINDS: list[LastingKind] = ["files", "sqlite", "postgresql"]
Kind = LastingKind | Literal["memory"]
KINDS: list[Kind] = [*LASTING_KINDS, "memory"]

_number = count(1)


class Backend(Protocol):
    """A place for histories. Every history that is opened begins with what is there, as after a
    kill of the process that had the one before.
    """

    async def history(self, *, fsync: FsyncPolicy = "off") -> HistoryStore: ...

    async def put_row(self, fields: Mapping[str, Any] | str) -> None:
        """Store a row as somebody else may have: JSON, or text that is none."""
        ...

    async def put_partial(self, text: str) -> None: ...

    async def put_addition(self, line: str) -> None:
        """Add a line to the log of the partial, which has one."""
        ...

    async def rows(self) -> list[str]:
        """The stored rows, as they are, in the order of writing; without the archive."""
        ...

    async def aside(self) -> list[str]:
        """What was moved aside."""
        ...

    async def has_partial(self) -> bool: ...

    def failing(self, what: Literal["rows", "partial"]) -> Any:
        """In this block nothing can be written there: no room is left."""
        ...


# ---- files


class Files:
    def __init__(self, path: Path, patch: pytest.MonkeyPatch) -> None:
        self._path = path
        self._patch = patch

    @property
    def _directory(self) -> Path:
        directory = self._path / "workspaces" / WORKSPACE
        directory.mkdir(parents=True, exist_ok=True)
        return directory

    async def history(self, *, fsync: FsyncPolicy = "off") -> HistoryStore:
        return FileHistory(self._path, fsync=fsync)

    async def put_row(self, fields: Mapping[str, Any] | str) -> None:
        text = fields if isinstance(fields, str) else json.dumps(fields)
        with (self._directory / "chat.jsonl").open("a") as file:
            file.write(f"{text}\n")

    async def put_partial(self, text: str) -> None:
        (self._directory / "partial.json").write_text(text)

    async def put_addition(self, line: str) -> None:
        with (self._directory / "partial-log.jsonl").open("a") as file:
            file.write(f"{line}\n")

    async def rows(self) -> list[str]:
        path = self._directory / "chat.jsonl"
        return path.read_text().splitlines() if path.exists() else []

    async def aside(self) -> list[str]:
        return [path.read_text() for path in sorted(self._directory.glob("*.corrupt-*"))]

    async def has_partial(self) -> bool:
        return (self._directory / "partial.json").exists()

    @contextmanager
    def failing(self, what: Literal["rows", "partial"]) -> Generator[None]:
        from streamengine.history.directory import OpenDirectory

        prefix = "chat" if what == "rows" else "partial"
        with self._patch.context() as patch:
            for name in ("append_line", "append_at", "replace"):
                _fail_for(patch, OpenDirectory, name, prefix)
            yield


def _fail_for(patch: pytest.MonkeyPatch, owner: Any, method: str, prefix: str) -> None:
    from streamengine.history.faults import reported

    real = getattr(owner, method)

    def call(self: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith(prefix):
            with reported(self.path_of(name), "write"):
                raise no_space()
        return real(self, name, *args, **kwargs)

    patch.setattr(owner, method, call)


# ---- memory


class Memory:
    """What the process itself keeps. Nobody else reaches it, so nothing in it can be damaged."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._first = MemoryHistory()
        self._patch = patch

    @property
    def _kept(self) -> Any:
        return self._first._conversation(WORKSPACE)

    async def history(self, *, fsync: FsyncPolicy = "off") -> HistoryStore:
        opened = MemoryHistory()
        opened._conversations = self._first._conversations
        for kept in opened._conversations.values():
            kept._reserved.clear()  # what else would be gone with a process
        return opened

    async def put_row(self, fields: Mapping[str, Any] | str) -> None:
        row = None if isinstance(fields, str) else row_of(fields)
        if row is None or is_blank(row.parts):
            _skip_damage()  # no version of this one ever wrote such a row
        else:
            self._kept._append(row)

    async def put_partial(self, text: str) -> None:
        _skip_damage()

    async def put_addition(self, line: str) -> None:
        _skip_damage()

    async def rows(self) -> list[str]:
        return [row.to_json() for row in self._kept.read()]

    async def aside(self) -> list[str]:
        pytest.skip("in memory nothing is moved aside: there is no place where it could be found")

    async def has_partial(self) -> bool:
        return self._kept.read_partial() is not None

    @contextmanager
    def failing(self, what: Literal["rows", "partial"]) -> Generator[None]:
        def refuse(*_given: object) -> None:
            raise HistoryError("disk_full", "memory", "no room is left", "Make some.")

        names = ("_append", "_replace") if what == "rows" else ("write_partial", "append_partial")
        with self._patch.context() as patch:
            for name in names:
                patch.setattr(f"streamengine.history.memory._Conversation.{name}", refuse)
            yield


def _skip_damage() -> None:
    pytest.skip("what only this process reaches can't be damaged by somebody else")


# ---- databases


class Databases:
    """What the two kinds of database have in common; ``url`` is of a database of its own."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._open: list[SqlHistory] = []

    async def _do(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        raise NotImplementedError

    async def history(self, *, fsync: FsyncPolicy = "off") -> HistoryStore:
        from streamengine.history.sql import SqlHistory

        history = SqlHistory(self.url, fsync=fsync)
        self._open.append(history)
        await history.migrate()
        return history

    async def close(self) -> None:
        for history in self._open:
            await history.close()

    async def put_row(self, fields: Mapping[str, Any] | str) -> None:
        await self.history()  # its tables
        body: Any = {} if isinstance(fields, str) else fields
        metadata = body.get("metadata", {})
        await self._do(
            "INSERT INTO history_rows (workspace_id, sequence, message_id, role, is_boundary, "
            "is_partial, has_usage, is_archived, body) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
            WORKSPACE,
            metadata.get("historySequence", 1_000 + next(_number)),
            body.get("id", "damaged"),
            body.get("role", "assistant"),
            metadata.get("compactionBoundary") is True,
            metadata.get("partial") is True,
            "usage" in metadata,
            False,
            fields if isinstance(fields, str) else json.dumps(fields),
        )

    async def put_partial(self, text: str) -> None:
        await self.history()
        fields = fields_of(text.encode()) or {}
        metadata: Any = fields.get("metadata", {})
        await self._do(
            "INSERT INTO history_partials (workspace_id, message_id, sequence, body) "
            "VALUES ($1, $2, $3, $4)",
            WORKSPACE,
            fields.get("id", "damaged"),
            metadata.get("historySequence"),
            text,
        )

    async def put_addition(self, line: str) -> None:
        await self._do(
            "INSERT INTO history_partial_log (workspace_id, lines) VALUES ($1, $2)",
            WORKSPACE,
            f"{line}\n",
        )

    async def rows(self) -> list[str]:
        found = await self._do(
            "SELECT body FROM history_rows WHERE NOT is_archived ORDER BY number"
        )
        return [body for (body,) in found]

    async def aside(self) -> list[str]:
        return [
            body for (body,) in await self._do("SELECT body FROM history_aside ORDER BY number")
        ]

    async def has_partial(self) -> bool:
        return bool(await self._do("SELECT 1 FROM history_partials"))

    @contextmanager
    def failing(self, what: Literal["rows", "partial", "records"]) -> Generator[None]:
        from sqlalchemy import event

        table = {"rows": "history_rows", "partial": "history_partial", "records": "turn_records"}

        def refuse(_c: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
            written = statement.startswith(("INSERT", "UPDATE"))
            if written and table[what] in statement:
                raise no_space()

        engines = [history._database.sync_engine for history in self._open]
        for engine in engines:
            event.listen(engine, "before_cursor_execute", refuse)
        try:
            yield
        finally:
            for engine in engines:
                event.remove(engine, "before_cursor_execute", refuse)


class Sqlite(Databases):
    def __init__(self, path: Path) -> None:
        super().__init__(f"sqlite:///{path}")
        self._path = path

    async def _do(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        connection = sqlite3.connect(self._path)
        try:
            with connection:
                numbered = {str(at): value for at, value in enumerate(values, 1)}
                return connection.execute(statement.replace("$", ":"), numbered).fetchall()
        finally:
            connection.close()


class Postgres(Databases):
    """A schema of its own, that of the role with its name: a database is hundreds of files."""

    def __init__(self, sockets: str, role: str) -> None:
        super().__init__(f"postgresql://{role}@/postgres?host={sockets}")
        self._sockets = sockets
        self._role = role

    async def make(self) -> None:
        await _ask(self._sockets, "tests", f"CREATE ROLE {self._role} LOGIN")
        await _ask(self._sockets, "tests", f"CREATE SCHEMA AUTHORIZATION {self._role}")

    async def _do(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        return await _ask(self._sockets, self._role, statement, *values)


async def _ask(sockets: str, role: str, statement: str, *values: object) -> list[Any]:
    # By name: it ships no types, and need not be there.
    asyncpg: Any = importlib.import_module("asyncpg")
    connection = await asyncpg.connect(host=sockets, user=role, database="postgres")
    try:
        return [tuple(found.values()) for found in await connection.fetch(statement, *values)]
    finally:
        await connection.close()


@asynccontextmanager
async def backend(
    kind: Kind, path: Path, patch: pytest.MonkeyPatch, sockets: str | None
) -> AsyncGenerator[Backend]:
    """An empty place of this kind."""
    if kind == "files":
        yield Files(path / "state", patch)
        return
    if kind == "memory":
        yield Memory(patch)
        return
    if importlib.util.find_spec("sqlalchemy") is None:
        pytest.skip("the extra `sql` is not installed, so NOTHING here ran on a database")
    if kind == "sqlite":
        place: Databases = Sqlite(path / "history.db")
    else:
        assert sockets is not None
        place = postgres = Postgres(sockets, f"t{next(_number)}")
        await postgres.make()
    try:
        yield place
    finally:
        await place.close()


def postgres_sockets() -> Iterator[str]:
    """The socket directory of a server, for as long as the tests run; skips where there is none."""
    from . import postgres

    try:
        with postgres.server() as sockets:
            yield sockets
    except postgres.NoPostgres as missing:
        pytest.skip(str(missing))
