"""RootTurn: one root turn from its start to its one end, whoever brings that about."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, final

import structlog

import fibers as fb
from fibers import Exit
from streamengine import HistoryError
from streamengine.payloads import text_of

from ..events import InterruptReceivedEvent, TurnEndEvent, TurnErrorEvent, TurnStartEvent
from ..model.errors import TurnError
from ..open_turn import OpenTurn
from ..subturns import CURRENT_TURN, Agent, SubturnLimits, TurnState
from ..subturns.finish import bind, finish, wait_below
from ..subturns.state import RestorePoint
from .parts import LoopParts, Surroundings
from .turn_run import TurnRun

_log = structlog.get_logger("turns.loop")


async def restore_point(parts: LoopParts, session: str) -> RestorePoint:
    """What the conversation is now, with all that is left of an earlier answer before it. Raises
    TurnError ("history").
    """
    try:
        await parts.engine.stop_stream(session, reason="system")
        # What a stop before has left to its store stands before this turn: no abort takes it.
        await parts.engine.writes_done(session)
        left = await parts.history.commit_partial(session).exit()
        if isinstance(left, fb.Failure):
            # One that can't be committed stays on disk; the start of the stream says why.
            _log.debug("a partial is left as it is", problem=left.failure().pretty())
        last = await parts.history.tail(session, 1)
    except HistoryError as error:
        raise TurnError("history", f"{error.path}: {error.message}", error.way_out) from error
    sequence = last[0].metadata.history_sequence if last else None
    return RestorePoint(sequence, parts.context_of(session).omitted)


@fb.effect
async def end_of_aborted(state: TurnState, parts: LoopParts) -> None:
    """Wait until no turn below runs any more, nor this one, if it is a child itself. Not for ever:
    one that ignores its interrupt is named in a warning.
    """
    await wait_below(state, parts.registry).timeout_option(parts.config.abort_grace_seconds)
    for child in parts.registry.tree_of(state):
        _log.warning("an aborted subturn goes on", turnId=child.turn_id)


@final
class RootTurn:
    """A root turn that may be aborted from now on: its restore point is known."""

    def __init__(
        self,
        parts: LoopParts,
        turn: OpenTurn,
        agent: Agent,
        point: RestorePoint,
        correlation: Mapping[str, Any],
        limits: SubturnLimits,
    ) -> None:
        self._parts = parts
        self.turn = turn
        self.correlation = correlation
        self.state: TurnState = TurnState(
            turn.turn_id, turn.workspace_id, agent=agent, limits=limits
        )
        self.state.restore_point = point
        self.run: TurnRun = TurnRun(
            self.state,
            agent,
            Surroundings(
                engine=parts.engine,
                history=parts.history,
                events=parts.events,
                registry=parts.registry,
                steering=parts.steering,
                config=parts.config,
                context=parts.context_of(turn.workspace_id),
                scope=turn.scope,
                correlation=correlation,
                tools_correlation=correlation,
            ),
        )
        self._over = asyncio.Event()

    # ---- running

    async def run_to_its_end(self, prompt: str, restore: Callable[[], Any]) -> Exit[str, TurnError]:
        """Masked but for the wait: the end is the end, whoever asked for it."""
        await bind(self.turn, self.state, self._parts.registry)
        self._parts.events.emit(TurnStartEvent(**self.run.about, prompt=prompt))
        work = (
            self.run.run(prompt)
            .provide_service(CURRENT_TURN, self.state)
            .provide_service(fb.ClockTag, self.turn.clock)
        )
        fiber = await work.fork_in(self.turn.scope)
        fiber.set_name(f"turn {self.turn.turn_id}")
        fiber.ignore_failure()  # its exit is the caller's
        self.state.run_by(fiber)
        try:
            with restore():
                await fiber.exit()
        except BaseException as error:
            # A shutdown, or whoever runs it: the turn is interrupted with it, for that reason.
            interrupt = fb.interrupt_of(error)
            await fiber.interrupt(reason=None if interrupt is None else interrupt.reason)
            raise
        finally:
            exit_ = self._as_it_was_told(await fiber.exit())
            await self._end(exit_)
        return exit_

    def _as_it_was_told(self, exit_: Exit[str, TurnError]) -> Exit[str, TurnError]:
        """An interrupt that came after the last word ends nothing any more."""
        is_late = isinstance(exit_, fb.Failure) and exit_.failure().has_interrupts_only
        return fb.Success(self.run.content) if is_late and self.run.is_answered else exit_

    async def _end(self, exit_: Exit[str, TurnError]) -> None:
        state, about = self.state, self.run.about
        if isinstance(exit_, fb.Success):
            state.status = "completed"
            end = TurnEndEvent(**about, status="completed", content=exit_.unwrap())
        else:
            cause = exit_.failure()
            state.let_go()
            # The turns below end with it, as the scope of the open turn would have it, too.
            finish(state, hard=True, registry=self._parts.registry)
            if state.abort_wanted:
                await self._put_back()
            if cause.has_interrupts_only:
                state.status = "aborted"
                end = TurnEndEvent(**about, status="aborted")
            else:
                state.status = "error"
                error = text_of(cause.squash())
                self._parts.events.emit(TurnErrorEvent(**about, error=error))
                end = TurnEndEvent(**about, status="error", error=error)
        self._parts.events.emit(end)

    def is_over(self) -> None:
        """Nothing of it runs, and its session is free."""
        self._over.set()

    # ---- aborting

    async def abort(self) -> bool:
        """End it hard, and wait for that. False where it has said its last word, which is stored
        and stays, or where somebody asked for it before.
        """
        state = self.state
        if state.is_finished and not state.is_aborted:
            # What it has left running is not at its end.
            finish(state, hard=True, registry=self._parts.registry)
            return False
        if not state.want_abort():
            return False
        self._parts.events.emit(InterruptReceivedEvent(**self.run.about, kind="hard_abort"))
        finish(state, hard=True, registry=self._parts.registry)
        await self._over.wait()
        return True

    async def _put_back(self) -> None:
        """The turns below first: they write no more. Then what the turn has said is taken back."""
        parts, state, point = self._parts, self.state, self.state.restore_point
        assert point is not None, "a root has one from its start on"
        await end_of_aborted(state, parts).provide_service(fb.ClockTag, self.turn.clock)
        # However long it takes: what comes after the cut would stand there again (U16).
        await parts.engine.writes_done(state.workspace_id)
        parts.context_of(state.workspace_id).omitted = point.omitted
        cut = await parts.history.truncate(state.workspace_id, point.last_sequence).exit()
        if isinstance(cut, fb.Failure):
            error = f"the conversation could not be put back: {cut.failure().squash()}"
            _log.warning("a hard abort is not whole", turnId=state.turn_id, error=error)
            parts.events.emit(TurnErrorEvent(**self.run.about, error=error))
