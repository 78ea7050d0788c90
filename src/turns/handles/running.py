"""Running: the fiber of a turn, from its start in the app scope to the release of what it held."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, final

import structlog

import fibers as fb
from fibers import Effect, Fiber, Scope
from fibers.app.scope import SYSTEM
from streamengine import StreamEngine
from streamengine.abandoned import ended_within
from streamengine.payloads import text_of

from ..model.cause import Cause, CreationAdmissionFailure, CreationValidationFailure
from ..model.correlation import correlation_of
from ..model.errors import TurnError
from ..model.record import TurnRecord
from ..open_turn import MarksContinuation, OpenTurn, TurnEnd, TurnRunner
from ..release import given_back
from .book import Book
from .continuation import Continuations
from .happenings import Happening, RunnerEnded
from .liveness import Liveness, LiveTurn
from .lost import cause_of_loss
from .places import Places
from .plain import OpenTurnFactory
from .verdicts import Verdicts
from .work import Work

RUNNER_GRACE_SECONDS: Final = 5.0
"""How long a runner may take to end by itself after its turn completed."""

RUNNER_STOP_SECONDS: Final = 1.0
"""How long an interrupted runner is waited for before what its turn holds is given back."""

_log = structlog.get_logger("turns.handles.running")


@final
class Running:
    """The turns of one manager that run, and those that wait for their workspace.

    ``over`` is told of each that runs no more, by a plain call, while the workspace is still its.
    """

    def __init__(
        self,
        *,
        book: Book,
        engine: StreamEngine,
        runner: TurnRunner,
        open_turn: OpenTurnFactory,
        continuations: Continuations,
        liveness: Liveness,
        verdicts: Verdicts,
        tell: Callable[[str, Happening], None],
        work: Work,
        over: Callable[[TurnRecord], None],
    ) -> None:
        self._book = book
        self._engine = engine
        self._runner = runner
        self._open_turn = open_turn
        self._continuations = continuations
        self._liveness = liveness
        self._verdicts = verdicts
        self._tell = tell
        self._work = work
        self._over = over
        self._live: dict[str, LiveTurn] = {}
        self.places: Places = Places(self._start)

    # ---- asking

    def live(self, handle_id: str) -> LiveTurn | None:
        """What is known of a turn that has begun and not settled."""
        live = self._live.get(handle_id)
        return None if live is None or live.settled.is_done_unsafe() else live

    def active_in(self, workspace_id: str) -> LiveTurn | None:
        """The turn that runs in this workspace and has not settled."""
        handle_id = self.places.taken_by(workspace_id)
        return None if handle_id is None else self.live(handle_id)

    def release(self, record: TurnRecord) -> None:
        """It has settled: its fiber winds it down, and events don't lead to it any more."""
        live = self._live.get(record.handle_id)
        if live is not None:
            live.settled.done_unsafe(Effect.succeed(record))
        else:
            self.places.give_up(record.workspace_id, record.handle_id)

    def closed(self, handle_id: str) -> Effect[None]:
        """Wait until a turn that has settled holds nothing more."""
        live = self._live.get(handle_id)
        return Effect.succeed(None) if live is None else live.closed.await_()

    def describe(self) -> dict[str, object]:
        """What runs and what waits, for a dump."""
        return {
            "running": [
                f"{live.workspace_id}/{handle_id}" for handle_id, live in self._live.items()
            ],
            "queued": self.places.waiting,
        }

    # ---- starting

    def enqueue(self, record: TurnRecord) -> None:
        """Run this turn once its workspace is free."""
        self.places.wait(record.workspace_id, record.handle_id)

    def resume(self, record: TurnRecord) -> None:
        """A turn that goes on after a restart: its streams are somebody else's to start."""
        live = self._enter(record)
        live.has_begun = live.is_resumed = True
        stream = self._liveness.stream_of(record)
        if stream is not None:
            live.streams.add(stream)
        self._launch(live, None)

    def _start(self, handle_id: str) -> None:
        record = self._book.get(handle_id)
        if not record.is_terminal:
            live = self._enter(record)
            live.has_runner = True
            self._launch(live, record.prompt or "")

    def _launch(self, live: LiveTurn, prompt: str | None) -> None:
        fiber = self._work.fork(f"turn {live.handle_id}", self._turn(live, prompt))
        if fiber.poll() is None:
            fiber.add_observer(lambda exit_: self._ended(live, exit_))
        elif self._forget(live):  # nothing begins in a closed scope
            self.places.free(live.workspace_id, live.handle_id)

    def _ended(self, live: LiveTurn, exit_: fb.Exit[None, Any]) -> None:
        if self._live.get(live.handle_id) is live and isinstance(exit_, fb.Failure):
            # It was interrupted before its first step, and held nothing.
            why = exit_.failure()
            interrupts = [each for each in why.reasons if isinstance(each, fb.Interrupt)]
            cause = cause_of_loss(interrupts[0] if interrupts else None, why.squash())
            if cause is not None and not self._work.is_closing:
                self._refuse(live, cause)
        self._leave(live)

    def _enter(self, record: TurnRecord) -> LiveTurn:
        live = LiveTurn(record.handle_id, record.turn_id, record.workspace_id)
        self._live[record.handle_id] = live
        self.places.take(record.workspace_id, record.handle_id)
        return live

    # ---- one turn

    @fb.effect
    async def _turn(self, live: LiveTurn, prompt: str | None) -> None:
        end: TurnEnd = "torn-down"
        # Not of the app scope itself: its close would release what the turn holds before anybody
        # said how the turn ended.
        scope = Scope(name=f"turn {live.turn_id}")
        turn: OpenTurn | None = None
        runner: Fiber[None, TurnError] | None = None
        why: str | None = None
        with fb.uninterruptible() as restore:
            try:
                turn = await self._opened(live, scope, prompt)
                if turn is not None and prompt is not None:
                    runner = await self._started(live, turn, prompt)
                with restore():
                    record = await live.settled
                    end = _end_of(record)
                    await self._wind_down(live, record, runner)
            except BaseException as error:
                interrupt = fb.interrupt_of(error)
                why = SYSTEM if interrupt is None else interrupt.reason
                cause = cause_of_loss(interrupt, error)
                if cause is not None and end == "torn-down" and not self._work.is_closing:
                    end = await self._lost(live, cause)
                raise
            finally:
                await self._close(live, scope, turn, runner, end, why)

    async def _lost(self, live: LiveTurn, cause: Cause) -> TurnEnd:
        """Settle it as an interrupt of its handle would, and stop it; gives how it ends."""
        settled = await self._verdicts.settle(live.handle_id, cause).exit()
        if isinstance(settled, fb.Failure):
            self._refuse(live, cause)
        await self.stop(live)
        record = self._book.get(live.handle_id)
        # Not on disk yet: that is tried again, and what it holds doesn't wait for that.
        return _end_of(record) if record.is_terminal else "interrupted"

    async def _opened(self, live: LiveTurn, scope: Scope, prompt: str | None) -> OpenTurn | None:
        """The open turn, marked as starting on disk; None where it can't be: then it settles."""

        def starting(record: TurnRecord) -> TurnRecord | None:
            return record.changed(status="starting") if record.status == "queued" else None

        turn: OpenTurn | None = None
        try:
            record = await self._book.change(live.handle_id, starting)
            if prompt is not None and not prompt.strip():
                self._refuse(live, CreationValidationFailure(error="its prompt has no text"))
                return None
            clock = await fb.current_clock()
            turn = self._open_turn(live.turn_id, live.workspace_id, clock, scope)
            if record.continues is not None and isinstance(turn, MarksContinuation):
                await turn.mark_continuation()
            return turn
        except Exception as error:  # noqa: BLE001  # whatever a factory raises, the turn ends for it
            _log.warning("a turn can't be opened", handleId=live.handle_id, error=text_of(error))
            if turn is not None:
                await self._given_back(live, turn, "errored")
            self._refuse(live, CreationAdmissionFailure(error=text_of(error)))
            return None

    def _refuse(self, live: LiveTurn, cause: Cause) -> None:
        # Apart: it may have to be tried again, and an interrupt ends this fiber only.
        settle = self._verdicts.settle(live.handle_id, cause)
        self._work.see_through(f"settlement of {live.handle_id}", settle)

    @fb.effect
    async def bury(self, record: TurnRecord) -> None:
        """Give back what a turn holds beyond the process that ran it, before its verdict. It
        has died: of a continuation the flag would keep the next one from beginning.
        """
        if record.continues is None:
            return
        scope = Scope(name=f"turn {record.turn_id}")
        try:
            clock = await fb.current_clock()
            turn = self._open_turn(record.turn_id, record.workspace_id, clock, scope)
        except Exception as error:  # noqa: BLE001  # a factory's; the verdict is not its to keep back
            _log.warning("a turn can't be opened", handleId=record.handle_id, error=text_of(error))
            return
        await given_back(
            turn.close("died").flat_map(lambda _: scope.close()),
            turn.scope,
            whose=record.handle_id,
            workspace_id=record.workspace_id,
        )

    async def _started(
        self, live: LiveTurn, turn: OpenTurn, prompt: str
    ) -> Fiber[None, TurnError] | None:
        record = self._book.get(live.handle_id)
        if record.is_terminal:
            return None  # interrupted while it was opened
        work = Effect.suspend(lambda: self._runner.run(turn, prompt, correlation_of(record)))
        runner = await work.fork_child()
        runner.set_name(f"runner of {live.handle_id}")
        runner.ignore_failure()

        def ended(exit_: fb.Exit[None, TurnError]) -> None:
            live.has_runner = False
            self._continuations.forget(live.turn_id)
            self._tell(live.handle_id, RunnerEnded(exit_))

        runner.add_observer(ended)
        return runner

    async def _wind_down(
        self, live: LiveTurn, record: TurnRecord, runner: Fiber[None, TurnError] | None
    ) -> None:
        """It has settled: what still works on it is let finish, or is stopped."""
        if record.status == "completed":
            if runner is not None:
                await runner.exit().timeout_option(RUNNER_GRACE_SECONDS)
        else:
            await self._stop_streams(live)

    async def stop(self, live: LiveTurn) -> None:
        """A person's stop of this turn: of its streams, and of a try that it waits for."""
        await self._stop_streams(live)
        waits_for_retry = live.last_error is not None or not live.has_runner
        if waits_for_retry and self._liveness.is_retrying(live.workspace_id):
            await self._liveness.call_off(live.workspace_id)

    async def _stop_streams(self, live: LiveTurn) -> None:
        """Of this turn, and of no other (BT7)."""
        for message_id in list(live.streams):
            await self._engine.stop_stream(live.workspace_id, reason="user", message_id=message_id)

    async def _close(
        self,
        live: LiveTurn,
        scope: Scope,
        turn: OpenTurn | None,
        runner: Fiber[None, TurnError] | None,
        end: TurnEnd,
        why: str | None,
    ) -> None:
        try:
            if runner is not None:
                await _stopped(live, runner, why)
            if turn is not None:
                await self._given_back(live, turn, end)
            if scope.state == "empty":
                await scope.close()
            else:  # what a factory has put beside its turn
                await given_back(
                    scope.close(), scope, whose=live.handle_id, workspace_id=live.workspace_id
                )
            if runner is not None:
                await runner.exit()  # its workspace is free when nothing starts streams there
        finally:
            self._leave(live)

    def _given_back(self, live: LiveTurn, turn: OpenTurn, end: TurnEnd) -> Effect[None]:
        return given_back(
            turn.close(end), turn.scope, whose=live.handle_id, workspace_id=live.workspace_id
        )

    def _leave(self, live: LiveTurn) -> None:
        if not self._forget(live):
            return
        record = self._book.find(live.handle_id)
        try:
            if record is not None:
                self._over(record)
        except Exception:  # noqa: BLE001  # a runner's: the workspace is free all the same
            _log.exception("what follows a turn can't be asked for", handleId=live.handle_id)
        self.places.leave(live.workspace_id, live.handle_id)

    def _forget(self, live: LiveTurn) -> bool:
        """Nothing of it runs any more. False where that was known."""
        if self._live.get(live.handle_id) is not live:
            return False
        self._continuations.forget(live.turn_id)
        live.closed.done_unsafe(Effect.succeed(None))
        del self._live[live.handle_id]
        return True


async def _stopped(live: LiveTurn, runner: Fiber[None, TurnError], why: str | None) -> None:
    """Have the runner end. One that ignores that must not keep what its turn holds: after a while
    that is given back without it.
    """
    runner.interrupt_unsafe(reason=why)
    clock = await fb.current_clock()
    if await ended_within(runner, clock, RUNNER_STOP_SECONDS) is None:
        _log.warning(
            "the runner of a turn does not end: what the turn held is given back without it",
            handleId=live.handle_id,
            workspaceId=live.workspace_id,
            wayOut="Its workspace is free when it ends; `fiberscope ps` shows where it waits.",
        )


def _end_of(record: TurnRecord) -> TurnEnd:
    """How what it holds shall end."""
    match record.status:
        case "completed":
            return "completed"
        case "error":
            return "errored"
        case "interrupted":
            return "interrupted"
        case _:
            return "torn-down"
