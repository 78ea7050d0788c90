"""AgentLoop: runs turns, and lets others steer, interrupt, abort and continue them.

A turn is a fiber in the scope of its open turn. What it does is turn_run.py's, how it ends
root_turn.py's; here is who may begin one, and what others may want of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, final

import structlog

import fibers as fb
from fibers import Effect, Scope
from streamengine import HistoryStore, StartOptions, StreamEngine
from streamengine.history import MemoryHistory

from ..events import InterruptReceivedEvent, TurnEndEvent, TurnEvents
from ..handles.happenings import CALLED_OFF
from ..model.errors import TurnError
from ..open_turn import OpenTurn, TurnRunner
from ..release import given_back
from ..subturns import (
    Agents,
    ChildRun,
    Claim,
    SubturnLimits,
    SubturnResult,
    Subturns,
    TurnRegistry,
    TurnState,
)
from ..subturns.finish import finish
from ..subturns.parse import spawn_request
from .config import LoopConfig
from .parts import Context, LoopParts, Surroundings
from .resumed import for_resumed
from .root_turn import RootTurn, end_of_aborted, restore_point
from .steering import Steering
from .turn_run import Onward, TurnRun

_log = structlog.get_logger("turns.loop")

Register: TypeAlias = Callable[[str, Callable[[str], bool]], Callable[[], None]]
"""Given a turn's id and what says whether it goes on after a message; gives what takes it back."""

Answer: TypeAlias = Callable[[str, str, object], Effect[bool, TurnError]]
"""Answers a question of the turn with this id by its request id; False where that doesn't wait."""


def _registers_nothing(_turn_id: str, _pending: Callable[[str], bool]) -> Callable[[], None]:
    return lambda: None


def _asks_nobody(_turn_id: str, _request_id: str, _answer: object) -> Effect[bool, TurnError]:
    return Effect.succeed(False)


@final
class AgentLoop(TurnRunner):
    """Runs turns as an agent: the model, its tools, and all that comes in meanwhile.

        loop = AgentLoop(engine=engine, history=history, scope=app_scope, agents=Agents([agent]),
                         child_engine=lambda history: StreamEngine(history=history, ...))
        turns = TurnManager(engine=engine, ..., options=TurnOptions(runner=loop))

    ``child_engine`` makes the engine of one subturn, on a history of its own. ``register`` is told
    of what says whether a turn goes on after one of its streams, ``answer`` what answers the
    questions of an open turn.
    """

    def __init__(
        self,
        *,
        engine: StreamEngine,
        history: HistoryStore,
        scope: Scope,
        agents: Agents,
        child_engine: Callable[[HistoryStore], StreamEngine],
        config: LoopConfig | None = None,
        limits: SubturnLimits | None = None,
        register: Register = _registers_nothing,
        answer: Answer = _asks_nobody,
    ) -> None:
        self.config: LoopConfig = config or LoopConfig()
        self.events: TurnEvents = TurnEvents(engine.events)
        self.registry: TurnRegistry = TurnRegistry()
        self.steering: Steering = Steering(
            capacity=self.config.steering_capacity, mode=self.config.steering_mode
        )
        self.subturns: Subturns = Subturns(
            scope=scope,
            registry=self.registry,
            events=self.events,
            run=self._run_child,
            agents=agents,
            limits=limits,
        )
        self._parts = LoopParts(
            engine=engine,
            history=history,
            events=self.events,
            registry=self.registry,
            steering=self.steering,
            config=self.config,
        )
        self._agents = agents
        self._child_engine = child_engine
        self._register = register
        self._answer = answer
        self._roots: dict[str, RootTurn] = {}
        self._stops: set[Claim] = set()
        fb.run_sync(scope.add_finalizer(lambda _exit: self._tell_what_is_lost()))

    def _tell_what_is_lost(self) -> None:
        """Steering is kept by the process only."""
        for session, count in self.steering.counts.items():
            _log.warning(
                "messages that no turn has heard go with the process: they have to be sent again",
                workspaceId=session,
                messages=count,
            )

    # ---- running

    def run(
        self, turn: OpenTurn, prompt: str, correlation: Mapping[str, Any]
    ) -> Effect[None, TurnError]:
        """See TurnRunner. Fails with "turn_active", "no_agent", "history", "launch_canceled" (it
        was stopped before it began), "context_limit", "stream". A stop or a hard abort ends it as
        interrupted, for "user".
        """
        return self._run(turn, lambda: prompt, correlation)

    def continue_session(
        self, turn: OpenTurn, correlation: Mapping[str, Any]
    ) -> Effect[bool, TurnError]:
        """Run a turn on what was queued in the session after its last one; False, and nothing
        begins, where nothing was. Fails as ``run``.
        """
        return self._continue(turn, correlation)

    @fb.effect(raises=TurnError)
    async def _continue(self, turn: OpenTurn, correlation: Mapping[str, Any]) -> bool:
        # No wait before the claim: of two, one gets the session.
        session = turn.workspace_id
        if self.registry.claimed(session) is None and not self.steering.waits(session):
            return False
        # Taken when it begins: of a turn that can't, it goes on waiting.
        await self._run(turn, lambda: "\n\n".join(self.steering.take(session)), correlation)
        return True

    @fb.effect(raises=TurnError)
    async def _run(
        self, turn: OpenTurn, prompt: Callable[[], str], correlation: Mapping[str, Any]
    ) -> None:
        agent = self._agents.default
        if agent is None:
            raise TurnError("no_agent", "there is no agent to run a turn", "Give the loop one.")
        claim = self.registry.claim(turn.workspace_id, turn.turn_id)
        with fb.uninterruptible() as restore:
            try:
                with restore():
                    point = await restore_point(self._parts, turn.workspace_id)
                self._look_for_a_stop(claim, turn)
            except BaseException:
                self._stops.discard(claim)
                self._give_up(claim)
                raise
            root = RootTurn(self._parts, turn, agent, point, correlation, self.subturns.limits)
            self._roots[turn.turn_id] = root
            self._parts.runs[turn.turn_id] = root.run
            claim.state = root.state
            try:
                done = self._register(turn.turn_id, Onward(root.run))
                exit_ = await root.run_to_its_end(prompt(), restore)
            finally:
                del self._roots[turn.turn_id], self._parts.runs[turn.turn_id]
                self._give_up(claim)
                root.is_over()
        if isinstance(exit_, fb.Success):
            # Of no other end: what was said before is not the last word of a turn that was cut off.
            done()
        else:
            cause = exit_.failure()
            if cause.has_interrupts_only:
                reason = "user" if root.state.abort_wanted else _reason_of(cause)
                cause = fb.Cause((fb.Interrupt(None, reason),))
            await Effect.fail_cause(cause)

    def _give_up(self, claim: Claim) -> None:
        self.registry.give_up(claim)
        self._parts.leave(claim.session)

    # ---- children

    @fb.effect(raises=TurnError)
    async def _run_child(self, child: ChildRun) -> str:
        """On an engine and a conversation of its own: nothing of it is the parent's."""
        state = child.state
        history = MemoryHistory(rows=self.subturns.limits.history_rows)
        root = self._roots.get(_root_of(state).turn_id)
        scope = Scope(name=state.turn_id)
        run = TurnRun(
            state,
            child.agent,
            Surroundings(
                engine=self._child_engine(history),
                history=history,
                events=self.events,
                registry=self.registry,
                steering=self.steering,
                config=self.config,
                context=Context(),
                scope=scope,
                correlation={"type": "subturn", "turnId": state.turn_id},
                tools_correlation={} if root is None else root.correlation,
            ),
        )
        self._parts.runs[state.turn_id] = run
        child.runs.open_unsafe()
        try:
            return await scope.provide(run.run(child.prompt)).on_exit(
                lambda exit_: given_back(
                    scope.close(exit_), scope, whose=state.turn_id, workspace_id=state.session
                )
            )
        finally:
            del self._parts.runs[state.turn_id]
            self.steering.clear(state.workspace_id)

    # ---- what others want of a turn

    def is_running(self, turn_id: str) -> bool:
        """Whether this loop runs that turn: it then tries again by itself what of it failed."""
        return turn_id in self._parts.runs

    def steer(self, turn_id: str, text: str) -> Effect[None, TurnError]:
        """Let a turn that runs hear ``text`` at its next step, one that is about to begin at its
        first. What comes after its last word waits in the session: see ``continue_session``. Fails
        with "not_found", "steering_full", "empty_message".
        """

        def steer() -> None:
            session = self.registry.session_of(turn_id)
            if session is not None and turn_id not in self._parts.runs:
                self.steering.put(session, text)
                return
            run = self._run_of(turn_id)
            self.steering.put(run.state.workspace_id, text)
            run.hear()

        return _asked(steer)

    def take_unheard(self, workspace_id: str) -> str | None:
        """What waits in the session after its turn has ended, as one prompt."""
        if self.registry.claimed(workspace_id) is not None or not self.steering.waits(workspace_id):
            return None
        return "\n\n".join(self.steering.take(workspace_id)) or None

    def put_back_unheard(self, workspace_id: str, text: str) -> None:
        """No turn could be begun with it: the next one hears it first."""
        self.steering.put_back(workspace_id, text)

    def queue(self, session: str | None, text: str) -> Effect[None, TurnError]:
        """Say something to whatever turn of the session hears it first: the one that runs, or the
        next one. ``session`` None: to whichever session looks first.
        """

        def queue() -> None:
            self.steering.put(session, text)
            state = None if session is None else self.registry.root(session)
            if state is not None and state.turn_id in self._parts.runs:
                self._parts.runs[state.turn_id].hear()

        return _asked(queue)

    def interrupt(self, turn_id: str, *, hint: str | None = None) -> Effect[None, TurnError]:
        """Have a turn end soon: no further tools, one last call without any, then it is completed.
        Fails with "not_found", and with "aborted" once it is aborted hard.
        """
        return _asked(lambda: self._run_of(turn_id).interrupt(hint))

    def finish(self, turn_id: str, *, hard: bool) -> Effect[None, TurnError]:
        """End a turn, root or child: softly as ``interrupt``, or ``hard``. Hard also ends the turns
        below one that has ended by itself.
        """
        return self._hard(turn_id) if hard else self.interrupt(turn_id)

    @fb.effect(raises=TurnError)
    async def _hard(self, turn_id: str) -> None:
        root = self._roots.get(turn_id)
        if root is not None:
            await root.abort()
            return
        state = self.registry.find(turn_id)
        if state is None:
            raise _not_found(f"turn {turn_id}")
        if state.parent is not None and not state.is_aborted:
            self.events.emit(
                InterruptReceivedEvent(
                    workspace_id=state.session, turn_id=turn_id, kind="hard_abort"
                )
            )
        finish(state, hard=True, registry=self.registry)
        await end_of_aborted(state, self._parts)

    def hard_abort(self, session: str) -> Effect[bool, TurnError]:
        """Abort the session's turn and all below it, and put the conversation back to what it was.
        True once that is done; False where it was asked for before, or the turn was done already.

        Fails with "not_found" (no turn runs there) and "initializing" (it has not begun).
        """
        return self._hard_abort(session)

    @fb.effect(raises=TurnError)
    async def _hard_abort(self, session: str) -> bool:
        claim = self.registry.claimed(session)
        if claim is None:
            raise _not_found(f"turn in {session}")
        if claim.state is None:
            raise TurnError(
                "initializing", f"the turn in {session} is still initializing", "Try again."
            )
        return await self._roots[claim.state.turn_id].abort()

    def stop(self, session: str) -> Effect[bool, TurnError]:
        """A person's stop: what is queued in the session is dropped, its turn aborted. One that has
        not begun won't. Fails with "not_found"; an idle session remembers nothing of it.
        """
        return self._stop(session)

    @fb.effect(raises=TurnError)
    async def _stop(self, session: str) -> bool:
        claim = self.registry.claimed(session)
        if claim is None:
            raise _not_found(f"turn in {session}")
        self.steering.clear(session)
        if claim.state is not None:
            return await self._roots[claim.state.turn_id].abort()
        first = claim not in self._stops
        self._stops.add(claim)
        return first

    def _look_for_a_stop(self, claim: Claim, turn: OpenTurn) -> None:
        if claim in self._stops:
            self.events.emit(
                TurnEndEvent(workspace_id=turn.workspace_id, turn_id=turn.turn_id, status="aborted")
            )
            raise TurnError(CALLED_OFF, "the turn was stopped before it began")

    def spawn_subturn(
        self, turn_id: str, config: Mapping[str, Any]
    ) -> Effect[SubturnResult, TurnError]:
        """Run a subturn of a turn, by the fields of a SpawnRequest (camelCase); gives its result.
        Fails as ``Subturns.spawn``, and with "not_found".
        """

        return self._spawn_subturn(turn_id, config)

    @fb.effect(raises=TurnError)
    async def _spawn_subturn(self, turn_id: str, config: Mapping[str, Any]) -> SubturnResult:
        request, parent = spawn_request(config), self._run_of(turn_id).state
        return await self.subturns.spawn(request, parent=parent)

    def begin_subturn(self, turn_id: str, config: Mapping[str, Any]) -> Effect[str, TurnError]:
        """Start a subturn as ``spawn_subturn`` does, and give its id as soon as it runs."""
        return self._begin_subturn(turn_id, config)

    @fb.effect(raises=TurnError)
    async def _begin_subturn(self, turn_id: str, config: Mapping[str, Any]) -> str:
        request, parent = spawn_request(config), self._run_of(turn_id).state
        begun = await self.subturns.begin(request, parent=parent)
        await begun.runs.await_()
        return begun.child_id

    def answer_permission(
        self, turn_id: str, request_id: str, answer: object
    ) -> Effect[bool, TurnError]:
        """Answer a question of a turn. False, and nothing is changed, where the turn is over or
        this is not the request that waits.
        """
        if turn_id not in self._roots or not request_id:
            return Effect.succeed(False)
        return self._answer(turn_id, request_id, answer)

    # ---- turns that go on after a restart, which this loop doesn't run

    def for_resumed(self) -> StartOptions | None:
        """What an answer of such a turn is resumed with; None where there is no agent."""
        agent = self._agents.default
        return None if agent is None else for_resumed(agent, self.config)

    def answer_resumed(
        self, turn_id: str, request_id: str, answer: object
    ) -> Effect[bool, TurnError]:
        """Answer a question of such a turn: one of the tools that it was given asks it."""
        return self._answer(turn_id, request_id, answer)

    def _run_of(self, turn_id: str) -> TurnRun:
        run = self._parts.runs.get(turn_id)
        if run is None:
            raise _not_found(f"turn {turn_id}")
        return run


def _asked(do: Callable[[], None]) -> Effect[None, TurnError]:
    @fb.effect(raises=TurnError)
    async def asked() -> None:
        do()

    return asked()


def _not_found(what: str) -> TurnError:
    return TurnError(
        "not_found", f"no {what} runs", "It has not begun yet, or has ended meanwhile."
    )


def _root_of(state: TurnState) -> TurnState:
    above = list(state.ancestors)
    return above[-1] if above else state


def _reason_of(cause: fb.Cause[Any]) -> str | None:
    reasons = [reason.reason for reason in cause.reasons if isinstance(reason, fb.Interrupt)]
    return next((reason for reason in reasons if reason is not None), None)
