"""A tree of turns on a desk: children that do what the test says, and all that was told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, final

import fibers as fb
from fibers import Effect, Fiber
from fibers.app import AppScope
from fibers.testing import TestClock
from streamengine import EventSpine
from turns.events import TurnEvent, TurnEvents
from turns.model.errors import TurnError
from turns.subturns import (
    Agent,
    Agents,
    ChildRun,
    SpawnRequest,
    SubturnLimits,
    SubturnResult,
    Subturns,
    TurnRegistry,
    TurnState,
)
from turns.subturns.finish import finish

T = TypeVar("T")
Work = Callable[[ChildRun], Awaitable[str]]

AGENT = Agent(name="helper", model="small")


@final
class Gate:
    """Children that come here wait until it is opened; who is turned back by an interrupt too."""

    def __init__(self) -> None:
        self.came: list[ChildRun] = []
        self.turned_back: list[str] = []
        self._open = asyncio.Event()

    def open(self) -> None:
        self._open.set()

    async def __call__(self, run: ChildRun) -> str:
        self.came.append(run)
        try:
            await self._open.wait()
        except asyncio.CancelledError:
            self.turned_back.append(run.state.turn_id)
            raise
        return f"{run.prompt} done"


async def at_once(run: ChildRun) -> str:
    return f"{run.prompt} done"


@final
class Tree:
    """One registry with its subturns, on virtual time."""

    def __init__(
        self, rt: fb.Runtime, clock: TestClock, work: Work, limits: SubturnLimits | None = None
    ) -> None:
        self.rt = rt
        self.clock = clock
        self.work: Work = work
        self.scope = AppScope()
        self.registry = TurnRegistry()
        events = TurnEvents(EventSpine())
        self.told: list[TurnEvent] = []
        events.subscribe(self.told.append)
        self.subturns = Subturns(
            scope=self.scope,
            registry=self.registry,
            events=events,
            run=self._run,
            agents=Agents([AGENT, Agent(name="other", model="big")]),
            limits=limits,
        )

    def _run(self, run: ChildRun) -> Effect[str, TurnError]:
        @fb.effect(raises=TurnError)
        async def body() -> str:
            return await self.work(run)

        return body()

    def root(self, session: str = "w1", **fields: Any) -> TurnState:
        """A root turn that runs in this session."""
        state = TurnState(
            f"turn-{session}", session, agent=AGENT, limits=self.subturns.limits, **fields
        )
        self.registry.claim(session).state = state
        return state

    def finish(self, state: TurnState, *, hard: bool = False) -> None:
        finish(state, hard=hard, registry=self.registry)

    # ---- spawning

    def spawning(
        self, parent: TurnState | None, prompt: str = "Work", **fields: Any
    ) -> Effect[SubturnResult, TurnError]:
        asked: dict[str, Any] = {"model": "m", **fields}
        request = SpawnRequest(prompt=prompt, **asked)
        return self.subturns.spawn(request, parent=parent)

    async def spawn(
        self, parent: TurnState | None, prompt: str = "Work", **fields: Any
    ) -> SubturnResult:
        return await self.rt.run(self.spawning(parent, prompt, **fields))

    async def spawn_in_background(
        self, parent: TurnState, prompt: str = "Work", **fields: Any
    ) -> Fiber[SubturnResult, TurnError]:
        fiber = self.rt.run_fork(self.spawning(parent, prompt, **fields))
        await self.idle()
        return fiber.ignore_failure()

    async def idle(self) -> None:
        await self.pass_time(0)

    async def pass_time(self, seconds: float) -> None:
        await self.rt.run(self.clock.adjust(seconds))

    # ---- what was told

    @property
    def types(self) -> list[str]:
        return [event.type for event in self.told]

    def of(self, kind: type[T]) -> list[T]:
        return [event for event in self.told if isinstance(event, kind)]


def result_of(fiber: Fiber[T, Any]) -> T:
    """What it gave; it has to be over."""
    exit_ = fiber.poll()
    assert exit_ is not None, "it still runs"
    return exit_.unwrap()


def error_of(fiber: Fiber[Any, Any]) -> BaseException:
    exit_ = fiber.poll()
    assert isinstance(exit_, fb.Failure), "it has not failed"
    return exit_.failure().squash()
