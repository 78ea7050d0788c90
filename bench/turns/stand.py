"""A manager of turns on each kind of store, and a provider that costs next to nothing."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
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
from turns import FileTurnStore, LoadedRecords, TurnError, TurnManager, TurnRecord, TurnStore

Kind = Literal["files", "sqlite"]


def kinds() -> tuple[Kind, ...]:
    """What can be measured here; the rest is named."""
    if importlib.util.find_spec("sqlalchemy") is not None:
        return ("files", "sqlite")
    print("  the extra `sql` is not installed: the rows of SQLite are not measured")
    return ("files",)


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
    if kind == "files":
        history = await FileHistory.open(folder, fsync=fsync)
        return Place(history, FileTurnStore(folder, fsync=fsync))
    from streamengine.history.sql import SqlHistory  # an extra
    from turns.handles.sql import SqlTurnStore

    in_database = await SqlHistory.open(f"sqlite:///{folder}/app.db", fsync=fsync)
    return Place(in_database, await SqlTurnStore.open(in_database))


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
