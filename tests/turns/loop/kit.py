"""An agent loop on a desk: turns, what comes in meanwhile, and all that was told."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar, final

import fibers as fb
from fibers import Clock, Effect, Fiber, Scope
from streamengine import HistoryStore, StreamEngine, Tool
from streamengine.model import Finish, ToolPart
from tests.streamengine.engine.kit import (
    WORKSPACE,
    Answer,
    Call,
    Desk,
    Line,
    Parts,
    Provider,
    says,
    text,
)
from turns.events import TurnEndEvent, TurnEvent, TurnStatus
from turns.loop import AgentLoop, LoopConfig
from turns.model.errors import TurnError
from turns.open_turn import TurnEnd
from turns.subturns import Agent, Agents, SubturnLimits, TurnState

T = TypeVar("T")

CUT: Final = Finish(finish_reason="length")
TOO_LONG: Final = "prompt is too long: 9000 tokens"

_numbers: Final = itertools.count(1)


@final
class Open:
    """An open turn with nothing but its scope."""

    def __init__(self, clock: Clock, workspace_id: str = WORKSPACE) -> None:
        self.turn_id = f"turn-{next(_numbers)}"
        self.workspace_id = workspace_id
        self.scope = Scope("parallel", name=self.turn_id)
        self.clock = clock
        self.end: TurnEnd | None = None

    def close(self, end: TurnEnd) -> Effect[None]:
        self.end = self.end or end
        return self.scope.close()


def correlation_of(turn: Open) -> dict[str, Any]:
    return {
        "type": "workspace-turn-task",
        "taskHandleId": "wst_1",
        "ownerWorkspaceId": "w0",
        "turnId": turn.turn_id,
    }


def fails(error: BaseException | str) -> Answer:
    """A call that fails with this after nothing was said."""

    def play(call: Call) -> Parts:
        line = Line()
        line.fail(error if isinstance(error, BaseException) else RuntimeError(error))
        return line(call)

    return play


def cut(words: str) -> Answer:
    """An answer that ends where the model may say no more."""
    return says(text(words), CUT)


@final
class Room:
    """One loop with its engine. Its children answer by ``child_answers``."""

    def __init__(
        self,
        desk: Desk,
        app_scope: Scope,
        *child_answers: Answer,
        tools: Sequence[Tool] = (),
        child_tools: Sequence[Tool] = (),
        config: LoopConfig | None = None,
        limits: SubturnLimits | None = None,
        window_tokens: int | None = 100_000,
        system: str | None = None,
    ) -> None:
        self.desk = desk
        self.rt = desk.rt
        self.app_scope = app_scope
        self.child_provider = Provider(*child_answers)
        self.child_histories: list[HistoryStore] = []
        self.pending: dict[str, Callable[[str], bool]] = {}
        agent = Agent(
            name="main",
            model="m",
            system=system,
            tools=tuple(tools),
            context_window_tokens=window_tokens,
        )
        helper = Agent(name="helper", model="small", tools=tuple(child_tools))

        def child_engine(history: HistoryStore) -> StreamEngine:
            self.child_histories.append(history)
            return StreamEngine(history=history, provider=self.child_provider, scope=app_scope)

        def register(turn_id: str, pending: Callable[[str], bool]) -> Callable[[], None]:
            self.pending[turn_id] = pending
            return lambda: self.pending.pop(turn_id, None) and None

        self.loop = AgentLoop(
            engine=desk.engine,
            history=desk.history,
            scope=app_scope,
            agents=Agents([agent, helper]),
            child_engine=child_engine,
            config=config,
            limits=limits,
            register=register,
        )
        self.told: list[TurnEvent] = []
        self.loop.events.subscribe(self.told.append)
        self.turns: list[Open] = []

    # ---- turns

    def open(self, workspace_id: str = WORKSPACE) -> Open:
        self.turns.append(Open(self.desk.clock, workspace_id))
        return self.turns[-1]

    async def start(self, prompt: str = "Go", turn: Open | None = None) -> Fiber[None, TurnError]:
        """A turn that runs as far as it can without time passing; closed as its exit says."""
        turn = turn or self.open()
        fiber = self.rt.run_fork(self.loop.run(turn, prompt, correlation_of(turn)))
        fiber.ignore_failure()
        await self.desk.idle()
        return fiber

    async def whole(self, prompt: str = "Go", turn: Open | None = None) -> str:
        """The answer of a turn, which must be done by what can run now."""
        fiber = await self.start(prompt, turn)
        exit_ = fiber.poll()
        assert exit_ is not None, "the turn still runs"
        exit_.unwrap()
        return self.content

    @property
    def turn_id(self) -> str:
        return self.turns[-1].turn_id

    @property
    def state(self) -> TurnState:
        """Of the root turn that runs."""
        state = self.loop.registry.root(WORKSPACE)
        assert state is not None, "no turn runs"
        return state

    async def do(self, work: Effect[T, Any]) -> T:
        """Run it, and then all that can run without time passing."""
        value = await self.rt.run(work)
        await self.desk.idle()
        return value

    async def steer(self, words: str) -> None:
        await self.do(self.loop.steer(self.turn_id, words))

    # ---- what was told

    @property
    def types(self) -> list[str]:
        return [event.type for event in self.told]

    def of(self, kind: type[T]) -> list[T]:
        return [event for event in self.told if isinstance(event, kind)]

    @property
    def ends(self) -> list[TurnStatus]:
        return [event.status for event in self.of(TurnEndEvent)]

    @property
    def content(self) -> str:
        """The answer of the last turn that ended."""
        return self.of(TurnEndEvent)[-1].content or ""

    # ---- what is on disk, and what the provider was given

    @property
    def prompts(self) -> list[str]:
        """The user rows."""
        return [
            "".join(part["text"] for part in row["parts"])
            for row in self.desk.disk.rows()
            if row["role"] == "user"
        ]

    def request(self, number: int) -> Any:
        """What the provider was given in this call, from 0."""
        return self.desk.provider.calls[number].request

    def outputs(self) -> list[Any]:
        """The results of all tool calls on disk, in order."""
        return [
            part["output"]
            for row in self.desk.disk.rows()
            for part in row["parts"]
            if part["type"] == ToolPart.model_fields["type"].default
        ]


def failure_of(fiber: Fiber[Any, Any]) -> fb.Cause[Any]:
    exit_ = fiber.poll()
    assert isinstance(exit_, fb.Failure), f"it has not failed: {exit_}"
    return exit_.failure()


def error_of(fiber: Fiber[Any, Any]) -> TurnError:
    error = failure_of(fiber).squash()
    assert isinstance(error, TurnError)
    return error
