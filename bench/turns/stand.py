"""A manager of turns on each kind of store, and a provider that costs next to nothing."""

from __future__ import annotations

import importlib
import importlib.util
import time
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, final

import fibers as fb
from bench.engine.stand import FINISH
from fibers.app import AppScope
from streamengine import FileHistory, HistoryError, HistoryStore, StreamEngine
from streamengine.history import FsyncPolicy
from streamengine.providers.script import Answer, Give, Say, Script
from streamengine.providers.scripted import ScriptedProvider
from tests.streamengine.history import postgres
from turns import FileTurnStore, LoadedRecords, TurnError, TurnManager, TurnRecord, TurnStore


@dataclass(frozen=True, slots=True)
class Kind:
    """What records and conversations are kept in. ``sockets``: the directory of a server's."""

    name: Literal["files", "sqlite", "postgresql"]
    sockets: str | None = None

    def __str__(self) -> str:
        return self.name


@contextmanager
def kinds() -> Generator[Sequence[Kind]]:
    """What can be measured here, in the block; the rest is named."""
    files, sqlite = Kind("files"), Kind("sqlite")
    if importlib.util.find_spec("sqlalchemy") is None:
        print("  the extra `sql` is not installed: the rows of databases are not measured")
        yield [files]
        return
    with ExitStack() as stack:
        found = [files, sqlite]
        try:
            found.append(Kind("postgresql", stack.enter_context(postgres.server(durable=True))))
        except postgres.NoPostgres as missing:
            print(f"  {missing}")
        yield found


@dataclass(frozen=True, slots=True)
class Place:
    """Where conversations and records are kept."""

    history: HistoryStore
    store: TurnStore


@asynccontextmanager
async def place(
    kind: Kind, folder: Path, *, fsync: FsyncPolicy = "terminal"
) -> AsyncGenerator[Place]:
    """What is kept in ``folder``, as a process that begins finds it."""
    async with fb.Scope() as scope:
        yield await scope.provide(_opened(kind, folder, fsync))


@fb.effect(raises=HistoryError)
async def _opened(kind: Kind, folder: Path, fsync: FsyncPolicy) -> Place:
    if kind.name == "files":
        history = await FileHistory.open(folder, fsync=fsync)
        return Place(history, FileTurnStore(folder, fsync=fsync))
    from streamengine.history.sql import SqlHistory  # an extra
    from turns.handles.sql import SqlTurnStore

    url = f"sqlite:///{folder}/app.db"
    if kind.sockets is not None:
        await _made(kind.sockets, folder.name)
        url = f"postgresql://tests@/{folder.name}?host={kind.sockets}"
    in_database = await SqlHistory.open(url, fsync=fsync)
    return Place(in_database, await SqlTurnStore.open(in_database))


async def _made(sockets: str, name: str) -> None:
    """A database of this name, unless a process before has made it."""
    asyncpg: Any = importlib.import_module("asyncpg")  # it ships no types
    connection = await asyncpg.connect(host=sockets, user="tests", database="postgres")
    try:
        if not await connection.fetch("SELECT 1 FROM pg_database WHERE datname = $1", name):
            await connection.execute(f'CREATE DATABASE "{name}"')
    finally:
        await connection.close()


@final
class TimedStore(TurnStore):
    """Notes when the settled record of each handle was durable, in seconds of perf_counter."""

    def __init__(self, inner: TurnStore) -> None:
        self._inner = inner
        self.settled_at: dict[str, float] = {}

    @fb.effect(raises=TurnError)
    async def write(self, record: TurnRecord) -> None:
        await self._inner.write(record)
        if record.is_terminal:
            self.settled_at.setdefault(record.handle_id, time.perf_counter())

    def load(self) -> fb.Effect[LoadedRecords, TurnError]:
        return self._inner.load()


@dataclass(frozen=True, slots=True)
class Stand:
    """One life of a process."""

    scope: AppScope
    engine: StreamEngine
    store: TimedStore
    turns: TurnManager


@asynccontextmanager
async def stand(kind: Kind, folder: Path) -> AsyncGenerator[Stand]:
    """A manager whose turns are answered at once, with one word. Not started."""
    async with place(kind, folder) as kept:
        scope = AppScope()
        steps = (Say(text="Done"), Give(part=FINISH))
        provider = ScriptedProvider(Script(answers=(Answer(steps=steps),)))
        engine = StreamEngine(history=kept.history, provider=provider, scope=scope)
        store = TimedStore(kept.store)
        turns = TurnManager(engine=engine, store=store, scope=scope)
        try:
            yield Stand(scope, engine, store, turns)
        finally:
            await scope.close()


async def completed(stand: Stand, **options: Any) -> TurnRecord:
    """A turn, from its creation to the wake-up of who waits. Fails where it doesn't complete."""
    handle = await stand.turns.create_turn(owner="bench", prompt="Count them", **options)
    return await stand.turns.wait(handle.handle_id)
