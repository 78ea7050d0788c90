"""What the records of turns can be kept in, each with a back door for the tests."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from streamengine.history import directory as directory_module
from tests.streamengine.history.backends import Databases, LastingKind
from tests.streamengine.history.backends import backend as database_backend
from turns import FileTurnStore, TurnStore

if TYPE_CHECKING:
    from streamengine.history.sql import SqlHistory

OWNER = "owner"


class Backend(Protocol):
    """A place for records. Every store that is made begins with what is there."""

    async def store(self) -> TurnStore: ...

    def place_of(self, handle_id: str) -> str:
        """How a warning names where this handle of OWNER is kept."""
        ...

    async def get(self, handle_id: str) -> bytes:
        """What is kept under this handle of OWNER."""
        ...

    async def put(self, handle_id: str, body: bytes) -> None:
        """Keep this there, as somebody else may have."""
        ...

    def full(self) -> Any:
        """In this block nothing can be written: no room is left."""
        ...


class Files:
    def __init__(self, path: Path, patch: pytest.MonkeyPatch) -> None:
        self.path = path
        self._patch = patch

    async def store(self) -> TurnStore:
        return FileTurnStore(self.path, io="inline", fsync="off")

    def place_of(self, handle_id: str) -> str:
        return str(self._file(handle_id))

    async def get(self, handle_id: str) -> bytes:
        return self._file(handle_id).read_bytes()

    async def put(self, handle_id: str, body: bytes) -> None:
        self._file(handle_id).parent.mkdir(parents=True, exist_ok=True)
        self._file(handle_id).write_bytes(body)

    def _file(self, handle_id: str) -> Path:
        return self.path / "workspaces" / OWNER / "task-handles" / f"{handle_id}.json"

    @contextmanager
    def full(self) -> Generator[None]:
        def refuse(*_: Any) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with self._patch.context() as patch:
            patch.setattr(directory_module, "_write_all", refuse)
            yield


class InDatabase:
    """``place``: an empty database."""

    def __init__(self, place: Databases) -> None:
        self.place = place

    async def store(self) -> TurnStore:
        from turns.handles.sql import SqlTurnStore

        return await SqlTurnStore.open(await self.history())

    async def history(self) -> SqlHistory:
        from streamengine.history.sql import SqlHistory

        history = await self.place.history()
        assert isinstance(history, SqlHistory)
        return history

    @property
    def is_sqlite(self) -> bool:
        return self.place.url.startswith("sqlite")

    def place_of(self, handle_id: str) -> str:
        return f"turn_records, {handle_id}"

    async def get(self, handle_id: str) -> bytes:
        body = "CAST(body AS BLOB)" if self.is_sqlite else "body"
        [(found,)] = await self.ask(
            f"SELECT {body} FROM turn_records WHERE handle_id = $1", handle_id
        )
        return found.encode() if isinstance(found, str) else found

    async def put(self, handle_id: str, body: bytes) -> None:
        await self.store()  # its tables
        # SQLite takes any bytes for text.
        value: str | bytes = body if self.is_sqlite else body.decode()
        await self.ask(
            "INSERT INTO turn_records VALUES ($1, $2, CAST($3 AS TEXT)) "
            "ON CONFLICT (handle_id) DO UPDATE SET body = excluded.body",
            *(handle_id, OWNER, value),
        )

    async def ask(self, statement: str, *values: object) -> Sequence[tuple[Any, ...]]:
        return await self.place._do(statement, *values)

    def full(self) -> Any:
        return self.place.failing("records")


@asynccontextmanager
async def backend(
    kind: LastingKind, path: Path, patch: pytest.MonkeyPatch, sockets: str | None
) -> AsyncGenerator[Backend]:
    """An empty place of this kind."""
    if kind == "files":
        yield Files(path, patch)
        return
    async with database_backend(kind, path, patch, sockets) as place:
        assert isinstance(place, Databases)
        yield InDatabase(place)
