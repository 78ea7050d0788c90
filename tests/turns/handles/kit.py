"""Turns on a desk: a manager over an engine that the test dictates, and what happened to it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, final

import fibers as fb
from fibers import Effect
from fibers.app import AppScope, close_bounded
from fibers.testing import TestClock
from streamengine import StreamEngine, StreamHandle, StreamRequest
from streamengine.autoretry import AutoRetry
from tests.streamengine.engine.kit import Answer, Desk, Hold, make_desk
from turns import (
    Continuations,
    FileTurnStore,
    OpenTurn,
    TurnError,
    TurnHandle,
    TurnManager,
    TurnOptions,
    TurnRecord,
    TurnRunner,
)
from turns.handles.store import LoadedRecords, TurnStore

OWNER: Final = "owner"
WORKSPACE: Final = "w1"
STORE_FAULT: Final = TurnError("store", "the disk says no", "Try again.")


@final
class FaultyStore(TurnStore):
    """A store that writes down what it wrote, and fails or waits where the test says so."""

    def __init__(self, inner: TurnStore) -> None:
        self.inner = inner
        self.written: list[TurnRecord] = []
        self.failing: TurnError | None = None
        self.refuses: Callable[[TurnRecord], bool] = lambda _record: False
        self.before_write: Callable[[TurnRecord], Effect[object]] | None = None
        self.before_load: Effect[object] | None = None
        self.dies: Callable[[TurnRecord], bool] = lambda _record: False
        """The process is dead from the write on of which it is True: it does not come back."""
        self._over = asyncio.Event()
        self._holds: list[tuple[Callable[[TurnRecord], bool], Hold]] = []

    def bury(self) -> None:
        """After the test: what waits for a dead process goes, having written nothing."""
        self.failing = STORE_FAULT
        self._over.set()
        for _, hold in self._holds:
            hold.go.set()

    def hold(self, which: Callable[[TurnRecord], bool]) -> Hold:
        """Let each such write wait."""
        hold = Hold()
        self._holds.append((which, hold))
        return hold

    @fb.effect(raises=TurnError)
    async def write(self, record: TurnRecord) -> None:
        if self.dies(record):
            self.dies = lambda _record: True
            await self._over.wait()
        for which, hold in self._holds:
            if which(record):
                hold.begun.set()
                await hold.go.wait()
        if self.before_write is not None:
            await self.before_write(record)
        if self.failing is not None:
            raise self.failing
        if self.refuses(record):
            raise STORE_FAULT
        await self.inner.write(record)
        self.written.append(record)

    @fb.effect(raises=TurnError)
    async def load(self) -> LoadedRecords:
        if self.before_load is not None:
            await self.before_load
        return await self.inner.load()

    def statuses(self, handle_id: str) -> list[str]:
        """What was stored of this turn, in order."""
        return [r.status for r in self.written if r.handle_id == handle_id]


@final
class Conductor(TurnRunner):
    """A runner whose further streams the test dictates. ``more``: whether any are to come."""

    def __init__(self) -> None:
        self.continuations = Continuations()
        self.more = False
        self.engine: StreamEngine | None = None
        self._texts: asyncio.Queue[str | None] = asyncio.Queue()
        self.error: TurnError | None = None

    def go_on(self, text: str, *, more: bool = False) -> None:
        """Start a further stream, once the one before it has ended."""
        self.more = more
        self._texts.put_nowait(text)

    def end(self, error: TurnError | None = None) -> None:
        """Nothing more comes."""
        self.error = error
        self._texts.put_nowait(None)

    @fb.effect(raises=TurnError)
    async def run(self, turn: OpenTurn, prompt: str, correlation: Mapping[str, Any]) -> None:
        assert self.engine is not None
        self.continuations.register(turn.turn_id, lambda _message_id: self.more)
        text: str | None = prompt
        while text is not None:
            request = StreamRequest(text=text, correlation=correlation)
            handle = await self.engine.start_stream(turn.workspace_id, request)
            await handle.completion
            text = await self._texts.get()
        if self.error is not None:
            raise self.error


@dataclass
class Told:
    """What left the manager, in order."""

    attention: list[TurnRecord] = field(default_factory=list[TurnRecord])
    disposed: list[TurnRecord] = field(default_factory=list[TurnRecord])


@dataclass
class Process:
    """One life of a process: an app scope, an engine, a manager of turns."""

    desk: Desk
    scope: AppScope
    store: FaultyStore
    turns: TurnManager
    told: Told
    retries: AutoRetry | None

    @property
    def rt(self) -> fb.Runtime:
        return self.desk.rt

    async def create(
        self, prompt: str = "Count them", workspace_id: str = WORKSPACE, **options: Any
    ) -> TurnHandle:
        options = {"owner": OWNER, **options}
        creating = self.turns.create_turn(workspace_id=workspace_id, prompt=prompt, **options)
        handle = await self.rt.run(creating)
        await self.idle()
        return handle

    async def idle(self) -> None:
        await self.desk.idle()

    async def get(self, handle: TurnHandle) -> TurnRecord:
        await self.idle()
        return await self.rt.run(self.turns.get(handle.handle_id))

    async def status(self, handle: TurnHandle) -> str:
        return (await self.get(handle)).status

    async def cause(self, handle: TurnHandle) -> str | None:
        return (await self.get(handle)).cause

    def waiting(self, handle: TurnHandle, **options: Any) -> fb.Fiber[TurnRecord, TurnError]:
        """Somebody who waits, from now on."""
        waiter = self.rt.run_fork(self.turns.wait(handle.handle_id, **options))
        return waiter.ignore_failure()

    async def stream(self, text: str, workspace_id: str = WORKSPACE, **fields: Any) -> StreamHandle:
        """Somebody else's stream in the workspace of the turn."""
        handle = await self.desk.start(text, workspace_id, **fields)
        await self.idle()
        return handle

    async def crash(self) -> None:
        """End as a shutdown does."""
        await close_bounded(self.scope)


def correlation(handle: TurnHandle, owner: str = OWNER) -> dict[str, str]:
    """What the streams of this turn carry."""
    return {
        "type": "workspace-turn-task",
        "taskHandleId": handle.handle_id,
        "ownerWorkspaceId": owner,
        "turnId": handle.turn_id,
    }


def make_process(
    rt: fb.Runtime,
    clock: TestClock,
    state: Path,
    *answers: Answer,
    store: TurnStore | None = None,
    retrying: bool = False,
    disposing: bool = True,
    conductor: Conductor | None = None,
    **options: Any,
) -> Process:
    """A manager with these answers on the files of this directory. Not started."""
    scope = AppScope()
    desk = make_desk(rt, clock, state, *answers, scope=scope)
    kept = FaultyStore(store or FileTurnStore(state, io="inline", fsync="off"))
    told = Told()

    def dispose(record: TurnRecord) -> Effect[object, Exception]:
        return Effect.sync(lambda: told.disposed.append(record))

    options.setdefault("on_attention", told.attention.append)
    retries = AutoRetry(desk.engine, desk.history, clock=clock) if retrying else None
    if disposing:
        options.setdefault("dispose", dispose)
    if retries is not None:
        options = {"retries": retries, "recovery": retries.recover(), **options}
    if conductor is not None:
        conductor.engine = desk.engine
        options = {"runner": conductor, "continuations": conductor.continuations, **options}
    turns = TurnManager(
        engine=desk.engine,
        store=kept,
        scope=scope,
        clock=clock,
        options=TurnOptions(**options),
    )
    return Process(desk, scope, kept, turns, told, retries)


def on_disk(state: Path, handle: TurnHandle, owner: str = OWNER) -> dict[str, Any]:
    """The record as another process would see it."""
    path = state / "workspaces" / owner / "task-handles" / f"{handle.handle_id}.json"
    record: dict[str, Any] = json.loads(path.read_text())
    return record
