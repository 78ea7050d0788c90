"""The app scope closes over two hundred open turns, each with a subturn and an open question."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any, Final, Literal, final

import pytest

import fibers as fb
from fibers.app import AppScope, close_bounded
from fibers.testing import TestClock, assert_no_leaks
from streamengine import EngineOptions, FileHistory, StreamEngine
from tests.streamengine.engine.kit import Call, Parts, Provider, calls, make_desk, text
from turns import FileTurnStore, TurnError, TurnHandle, TurnRecord
from turns.agent_turns import agent_turns
from turns.loop.agent import AgentLoop
from turns.subturns import Agent, Agents, TurnState
from turns.subturns.tool import SubturnTool
from turns.tools import ShellTool
from turns.turn import OpenTurns, Turn
from turns.workspace import Workspace, Workspaces

pytestmark = pytest.mark.lifecycle

TURNS: Final = 200
CHILD: Final = {"prompt": "Look", "agent": "main"}
Io = Literal["inline", "thread"]


def speaks_on(_call: Call) -> Parts:
    """A first word, and then nothing until it is interrupted."""

    async def play() -> AsyncGenerator[Any, None]:
        yield text("Well, ")
        await asyncio.Event().wait()

    return play()


@final
class Town:
    """One life of a process, whose turns have a workspace each. No time passes in it."""

    def __init__(self, rt: fb.Runtime, clock: TestClock, directory: Path, *, io: Io) -> None:
        self.rt = rt
        self.scope = AppScope()
        fsync: Literal["off", "terminal"] = "off" if io == "inline" else "terminal"
        self.desk = make_desk(
            rt,
            clock,
            directory,
            calls("shell", "subturn", shell={"command": "true"}, subturn=CHILD),
            scope=self.scope,
            options=EngineOptions(tool_concurrency=2),
            inner=FileHistory(directory, io=io, fsync=fsync),
        )
        self._directory = directory
        self.open_turns = OpenTurns(Workspaces(self._made))
        children = Provider(speaks_on)
        tools = (
            ShellTool(self.open_turns, permission="ask"),
            SubturnTool(lambda: self.loop.subturns, self.scope),
        )
        joined = agent_turns(
            engine=self.desk.engine,
            history=self.desk.history,
            store=FileTurnStore(directory, io=io, fsync=fsync),
            scope=self.scope,
            open_turns=self.open_turns,
            agents=Agents([Agent(name="main", model="m", tools=tools)]),
            child_engine=lambda history: StreamEngine(
                history=history, provider=children, scope=self.scope
            ),
            clock=clock,
        )
        self.loop: AgentLoop = joined.loop
        self.turns = joined.manager

    def _made(self, workspace_id: str) -> Workspace:
        folder = self._directory / "folders" / workspace_id
        folder.mkdir(parents=True, exist_ok=True)
        state = self._directory / "of turns" / workspace_id
        return Workspace(workspace_id, folder=folder, state=state)

    @property
    def workspaces(self) -> list[Workspace]:
        return [self.open_turns.workspaces.get(f"w{n}") for n in range(TURNS)]

    async def fill(self) -> list[TurnHandle]:
        """As many turns; each has asked a person, and waits for its subturn."""
        handles = [
            await self.rt.run(
                self.turns.create_turn(owner="owner", workspace_id=f"w{n}", prompt="Go")
            )
            for n in range(TURNS)
        ]
        await self.desk.idle()
        return handles

    async def records(self) -> list[TurnRecord]:
        return list(await self.rt.run(self.turns.list()))


@pytest.fixture
async def rt() -> AsyncIterator[tuple[fb.Runtime, TestClock]]:
    clock = TestClock()
    runtime = fb.Runtime(clock=clock)
    await runtime.run(clock.adjust(0))
    yield runtime, clock
    await runtime.dispose()


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.spec("T14", "T16", "U9")
@pytest.mark.parametrize("io", ["inline", "thread"])
async def test_a_shutdown_with_two_hundred_open_turns(
    rt: tuple[fb.Runtime, TestClock], tmp_path: Path, io: Io
) -> None:
    with assert_no_leaks("fibers", "scopes", "tasks"):
        town = Town(*rt, tmp_path, io=io)
        handles = await town.fill()
        waiters = [
            town.rt.run_fork(town.turns.wait(handle.handle_id)).ignore_failure()
            for handle in handles
        ]
        await town.desk.idle()
        held: list[Turn] = [found for h in handles if (found := town.open_turns.get(h.turn_id))]
        below = town.loop.registry.children
        above = [child.parent for child in below if child.parent is not None]
        assert len(held) == len(below) == len(above) == TURNS
        assert all(w.permissions.card is not None for w in town.workspaces)
        assert [state.slots.limit - state.slots.available for state in above] == [1] * TURNS

        in_time = await close_bounded(town.scope)

        assert in_time
        assert_nothing_is_held(town, held, [*above, *below])
        await assert_nobody_waits(town, handles, waiters)
        # None has settled: each can be taken up by the next process (T14).
        assert {record.status for record in await read_anew(tmp_path)} == {"running"}

        after = Town(*rt, tmp_path, io=io)
        await after.rt.run(after.turns.start(after.scope))

        records = await after.records()
        assert [record.handle_id for record in records] == [h.handle_id for h in handles]
        assert {(r.status, r.cause) for r in records} == {("interrupted", "stale-restart")}
        assert await read_anew(tmp_path) == records
        await close_bounded(after.scope)


async def read_anew(directory: Path) -> list[TurnRecord]:
    """The records as a process finds them that knows nothing."""
    loaded = await FileTurnStore(directory, io="inline").load()
    assert loaded.warnings == ()
    return list(loaded.records)


def assert_nothing_is_held(town: Town, held: list[Turn], states: list[TurnState]) -> None:
    assert {turn.end for turn in held} == {"torn-down"}
    assert {turn.scope.state for turn in held} == {"closed"}
    assert len(town.open_turns) == 0
    for workspace in town.workspaces:
        assert workspace.permissions.card is None
        assert workspace.records.running == []
        assert workspace.readings.tokens == -1
        assert workspace.attribution.author == "person"
        assert not any(block.is_streaming for block in workspace.message.blocks)
    assert {state.slots.limit - state.slots.available for state in states} == {0}
    assert {state.slots.waiting for state in states} == {0}
    assert {state.is_finished for state in states} == {True}
    assert town.loop.registry.children == ()
    assert not any(town.loop.registry.claimed(f"w{n}") for n in range(TURNS))
    assert town.desk.is_idle
    assert town.turns.describe() == {"running": [], "queued": []}


async def assert_nobody_waits(
    town: Town, handles: list[TurnHandle], waiters: list[fb.Fiber[TurnRecord, TurnError]]
) -> None:
    await town.desk.idle()
    for handle, waiter in zip(handles, waiters, strict=True):
        exit_ = waiter.poll()
        assert isinstance(exit_, fb.Failure)
        error = exit_.failure().squash()
        assert isinstance(error, TurnError)
        assert error.kind == "shutting_down"
        assert error.way_out
        assert town.turns._waiters.count(handle.handle_id) == 0
