"""Subturns: starts turns below a turn, and sees each to its end.

The order is part of what is promised: a slot, the depth, the request, the agent; then the child is
registered and told of; its slot is free again before its result is delivered (children that hold
slots while they wait for room would keep the parent from ever making some).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias, final

import structlog

import fibers as fb
from fibers import Effect, Exit, Scope

from ..events import (
    SubturnEndEvent,
    SubturnOrphanEvent,
    SubturnResultDeliveredEvent,
    SubturnSpawnEvent,
    TurnEvents,
)
from ..model.errors import TurnError
from .agents import Agent, Agents
from .config import SpawnRequest, SubturnLimits, SubturnResult, TokenBudget
from .context import CURRENT_TURN
from .finish import finish
from .registry import TurnRegistry
from .results import Delivery, Outcome, deliver
from .slots import Slot
from .state import TurnState

_log = structlog.get_logger("turns.subturns")

_numbers: Final = itertools.count(1)
"""Of the process: two children never have one id."""

PANICKED: Final = "subturn panicked"
INTERRUPTED: Final = "the subturn was interrupted"
ENDED_HARD: Final = "the subturn was ended hard"


@dataclass(frozen=True, slots=True)
class ChildRun:
    """What the agent loop is given to run a child. ``state.agent`` is the child's copy."""

    state: TurnState
    agent: Agent
    prompt: str
    runs: fb.Latch = field(default_factory=fb.Latch)
    """Opened by who runs it, once others can speak to it."""


@dataclass(frozen=True, slots=True)
class Begun:
    """A child that runs."""

    child_id: str
    fiber: fb.Fiber[SubturnResult, Any]
    """Gives its result. Its failure is nobody's to observe: subturn.end tells it."""
    runs: fb.Latch
    """Open once others can speak to it, or it has ended."""
    result: Callable[[], SubturnResult]
    """What it gave, once it has ended; why there is nothing where its fiber failed."""


RunChild: TypeAlias = Callable[[ChildRun], Effect[str, TurnError]]
"""Gives the child's answer."""


@final
class Subturns:
    """The subturns of one process: fibers of the app scope that know their parent.

        result = await subturns.spawn(SpawnRequest(prompt="Look it up", model="m"))

    ``run`` is the work of a child.
    """

    def __init__(
        self,
        *,
        scope: Scope,
        registry: TurnRegistry,
        events: TurnEvents,
        run: RunChild,
        agents: Agents | None = None,
        limits: SubturnLimits | None = None,
    ) -> None:
        self.limits: SubturnLimits = limits or SubturnLimits()
        self._scope = scope
        self._registry = registry
        self._events = events
        self._run = run
        self._agents = agents or Agents()

    def spawn(
        self, request: SpawnRequest, *, parent: TurnState | None = None
    ) -> Effect[SubturnResult, TurnError]:
        """Start a child and wait for its result; that of a child that failed says why. Who doesn't
        want to wait runs it in a fiber of its own: an interrupt of the wait leaves the child.

        ``parent`` None: the turn in context. Fails with TurnError where no child began:
        "no_parent_turn", "concurrency_timeout", "depth_limit", "invalid_subturn",
        "agent_not_found", "no_agent".
        """
        return self._spawn(request, parent)

    def begin(
        self, request: SpawnRequest, *, parent: TurnState | None = None
    ) -> Effect[Begun, TurnError]:
        """Start a child, and wait for no more than that. Fails as ``spawn``."""
        return self._begin(request, parent)

    @fb.effect(raises=TurnError)
    async def _spawn(self, request: SpawnRequest, parent: TurnState | None) -> SubturnResult:
        begun = await self._begin(request, parent)
        match await begun.fiber.exit():
            case fb.Success(result):
                return result
            case _:
                return begun.result()

    @fb.effect(raises=TurnError)
    async def _begin(self, request: SpawnRequest, parent: TurnState | None) -> Begun:
        if parent is None:
            parent = await CURRENT_TURN
        if parent is None:
            raise TurnError(
                "no_parent_turn", "a subturn has to be started by a turn", "Name the parent."
            )
        slot = parent.slots.slot()
        with fb.uninterruptible() as restore:
            try:
                with restore():
                    await slot.acquire(self.limits.slot_timeout_seconds)
                child = self._made(request, parent, slot)
            except BaseException:
                slot.release()
                raise
            # Nothing waits between its registration and owned_by: a hard abort of the parent comes
            # after both and finds the child, or came before and is seen there.
            child.tell_spawn()
            fiber = await child.live().fork_in(self._scope)
            child.owned_by(fiber)
        return Begun(child.state.turn_id, fiber, child.runs, child.result)

    def _made(self, request: SpawnRequest, parent: TurnState, slot: Slot) -> _Child:
        if parent.depth >= self.limits.max_depth:
            raise TurnError(
                "depth_limit",
                f"{parent.turn_id} is {parent.depth} turns deep, and {self.limits.max_depth} is "
                "the most",
                "Do the work in this turn.",
            )
        if request.model is None and request.agent is None:
            raise TurnError(
                "invalid_subturn", "a subturn needs a model or an agent", "Name one of them."
            )
        agent = self._agent_for(request, parent)
        turn_id = f"subturn-{next(_numbers)}"
        state = TurnState(
            turn_id,
            turn_id,
            agent=agent,
            parent=parent,
            critical=request.critical,
            limits=self.limits,
            budget=request.token_budget or parent.budget or self._default_budget(),
        )
        self._registry.add_child(state)
        return _Child(self, state, agent, request, slot)

    def _agent_for(self, request: SpawnRequest, parent: TurnState) -> Agent:
        """A copy, with what the request asks for."""
        if request.agent is not None:
            agent = self._agents.get(request.agent)
            if agent is None:
                known = ", ".join(self._agents.names) or "there are none"
                raise TurnError(
                    "agent_not_found", f"there is no agent {request.agent!r}", f"Agents: {known}."
                )
        else:
            agent = parent.agent or self._agents.default
            if agent is None:
                raise TurnError(
                    "no_agent",
                    f"{parent.turn_id} has no agent that a subturn could be a copy of",
                    "Name the agent.",
                )
        return replace(
            agent,
            model=request.model or agent.model,
            system=agent.system if request.system is None else request.system,
            tools=agent.tools if request.tools is None else request.tools,
        )

    def _default_budget(self) -> TokenBudget | None:
        limit = self.limits.token_budget
        return None if limit is None else TokenBudget(limit)


@final
class _Child:
    """One child from its registration to its end."""

    def __init__(
        self, home: Subturns, state: TurnState, agent: Agent, request: SpawnRequest, slot: Slot
    ) -> None:
        assert state.parent is not None
        self._home = home
        self.state = state
        self._agent = agent
        self._request = request
        self._slot = slot
        self._parent = state.parent
        self._result: SubturnResult | None = None
        self._delivery: Delivery | None = None
        self._is_over = False
        self.runs = fb.Latch()

    def owned_by(self, fiber: fb.Fiber[SubturnResult, Any]) -> None:
        fiber.set_name(f"{self.state.turn_id} of {self._parent.turn_id}")
        fiber.ignore_failure()  # whoever waits is given it, and subturn.end tells it
        self.state.run_by(fiber)
        if any(above.is_aborted for above in self.state.ancestors):
            # Ended before this child was registered: nobody else tells it.
            finish(self.state, hard=True, registry=self._home._registry)
        # Also of one that never began: a closed app scope starts nothing.
        fiber.add_observer(lambda _exit: self._end())

    def result(self) -> SubturnResult:
        """What it gives; where that is not known, that it was stopped."""
        if self._result is None:
            state = self.state
            is_own = state.is_aborted and not any(above.is_aborted for above in state.ancestors)
            self._result = SubturnResult.failed(
                state.turn_id, ENDED_HARD if is_own else INTERRUPTED
            )
        return self._result

    @fb.effect
    async def live(self) -> SubturnResult:
        state, request = self.state, self._request
        try:
            run = self._home._run(ChildRun(state, self._agent, request.prompt, self.runs))
            timeout_seconds = request.timeout_seconds or 0
            if timeout_seconds <= 0:
                timeout_seconds = self._home.limits.timeout_seconds
            exit_ = await run.provide_service(CURRENT_TURN, state).timeout(timeout_seconds).exit()
            self._result = result = self._result_of(exit_, timeout_seconds)
            self._slot.release()
            if request.delivers:
                self._delivery = Delivery(result, self._tell_outcome)
                await deliver(self._parent.results, self._delivery)
            return result
        finally:
            self._end()

    def _result_of(self, exit_: Exit[str, Any], timeout_seconds: float) -> SubturnResult:
        child_id = self.state.turn_id
        if isinstance(exit_, fb.Success):
            return SubturnResult(child_id=child_id, content=exit_.unwrap())
        cause = exit_.failure()
        error = cause.squash()
        if cause.has_dies:
            _log.error("a subturn panicked", childId=child_id, exc_info=error)
            return SubturnResult.failed(child_id, PANICKED)
        if isinstance(error, TimeoutError):
            return SubturnResult.failed(child_id, f"it took longer than {timeout_seconds:g} s")
        if cause.has_fails:
            return SubturnResult.failed(child_id, str(error))
        return self.result()

    def _end(self) -> None:
        """Whatever way it ended: give back, tell, forget. Once."""
        if self._is_over:
            return
        self._is_over = True
        self.runs.open_unsafe()
        state, home = self.state, self._home
        # At its end anyway: the turns below are, not this fiber.
        state.let_go()
        result = self.result()
        state.status = "completed" if result.error is None else "error"
        finish(state, hard=result.error is not None, registry=home._registry)
        self._slot.release()
        if self._request.delivers and self._delivery is None:
            # Interrupted: it waits for nobody. A parent that still runs is told what it can take.
            self._delivery = Delivery(result, self._tell_outcome)
            self._parent.results.put(self._delivery)
            self._parent.results.give_up(self._delivery)
        home._registry.remove_child(state)
        home._events.emit(
            SubturnEndEvent(
                workspace_id=self._parent.session,
                turn_id=self._parent.turn_id,
                child_id=state.turn_id,
                status="completed" if result.error is None else "error",
                error=result.error,
            )
        )

    # ---- telling

    def tell_spawn(self) -> None:
        self._home._events.emit(
            SubturnSpawnEvent(
                workspace_id=self._parent.session,
                turn_id=self._parent.turn_id,
                child_id=self.state.turn_id,
                prompt=self._request.prompt,
                depth=self.state.depth,
                critical=self.state.critical,
            )
        )

    def _tell_outcome(self, outcome: Outcome) -> None:
        assert self._delivery is not None
        result, parent = self._delivery.result, self._parent
        if outcome == "delivered":
            self._home._events.emit(
                SubturnResultDeliveredEvent(
                    workspace_id=parent.session,
                    turn_id=parent.turn_id,
                    child_id=result.child_id,
                    content_length=len(result.content),
                )
            )
            return
        _log.info("a subturn's result is an orphan", childId=result.child_id, reason=outcome)
        self._home._events.emit(
            SubturnOrphanEvent(
                workspace_id=parent.session,
                turn_id=parent.turn_id,
                child_id=result.child_id,
                reason=outcome,
                content=result.content,
            )
        )
