"""A house: the manager, the agent loop and the holds as one, in one workspace, on virtual time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar, final

from fibers import Effect
from streamengine import StreamEngine, Tool
from tests.streamengine.engine.kit import WORKSPACE, Answer, Desk, Provider
from tests.turns.handles.kit import FaultyStore
from turns import FileTurnStore, TurnHandle, TurnOptions, TurnRecord
from turns.agent_turns import AgentTurns, agent_turns
from turns.loop import LoopConfig
from turns.subturns import Agent, Agents
from turns.turn import OpenTurns
from turns.workspace import Workspace, Workspaces

T = TypeVar("T")


@final
class House:
    """An engine, its turns, and the one workspace that they work in."""

    def __init__(
        self,
        desk: Desk,
        directory: Path,
        *,
        tools: Callable[[OpenTurns], Sequence[Tool]],
        children: Sequence[Answer],
        options: TurnOptions | None,
        config: LoopConfig | None = None,
    ) -> None:
        assert desk.scope is not None
        self.desk, self.rt, self.scope = desk, desk.rt, desk.scope
        folder = directory / "folder"
        folder.mkdir(exist_ok=True)
        self.workspace = Workspace(WORKSPACE, folder=folder, state=directory / "of turns")
        self.open_turns = OpenTurns(Workspaces(lambda _id: self.workspace))
        self.store = FaultyStore(FileTurnStore(directory, io="inline", fsync="off"))
        provider = Provider(*children)
        self.joined: AgentTurns = agent_turns(
            engine=desk.engine,
            history=desk.history,
            store=self.store,
            scope=self.scope,
            open_turns=self.open_turns,
            agents=Agents([Agent(name="main", model="m", tools=tuple(tools(self.open_turns)))]),
            child_engine=lambda history: StreamEngine(
                history=history, provider=provider, scope=self.scope
            ),
            clock=desk.clock,
            options=options,
            config=config,
        )
        self.turns = self.joined.manager

    async def do(self, work: Effect[T, Any]) -> T:
        """Run it, and then all that can run without time passing."""
        value = await self.rt.run(work)
        await self.desk.idle()
        return value

    async def create(self, prompt: str = "Go") -> TurnHandle:
        return await self.do(
            self.turns.create_turn(owner="owner", workspace_id=WORKSPACE, prompt=prompt)
        )

    async def record(self, handle: TurnHandle) -> TurnRecord:
        return await self.do(self.turns.get(handle.handle_id))

    async def on_disk(self, handle: TurnHandle) -> TurnRecord:
        """As the next process finds it."""
        loaded = await self.rt.run(self.store.load())
        (record,) = [r for r in loaded.records if r.handle_id == handle.handle_id]
        return record

    @property
    def is_free(self) -> bool:
        """Whether nothing is held any more."""
        readings = self.workspace.readings
        return (
            len(self.open_turns) == 0
            and self.workspace.permissions.card is None
            and not self.workspace.records.running
            and readings.tokens == -1
        )


class MakeHouse(Protocol):
    """What the fixture `house` is."""

    def __call__(
        self,
        *answers: Answer,
        tools: Callable[[OpenTurns], Sequence[Tool]] = ...,
        children: Sequence[Answer] = (),
        options: TurnOptions | None = None,
        config: LoopConfig | None = None,
    ) -> House: ...
