"""AutoRetry: failed and interrupted answers of one engine, taken up again without anybody asking.

In a running process it listens to the engine's events; at its start it looks at what the last one
left. When to try again is retry.py's business, whether a start takes an answer up startup.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final, final

import structlog

import fibers as fb
from fibers import Clock, Effect, Schedule, Scope
from fibers.app import Occupant

from .engine import StreamEngine
from .history import Loaded
from .history.store import HistoryStore
from .model.errors import HistoryError
from .model.events import (
    AutoRetryScheduledEvent,
    ErrorEvent,
    Event,
    StreamAbortEvent,
    StreamEndEvent,
    StreamStartEvent,
)
from .model.note import LastEnd, WorkspaceNote
from .model.rows import AssistantRow, Row, UserRow
from .payloads import text_of
from .recovered import log_not_recovered, log_recovered
from .retry import RetryManager, RetryState
from .startup import ASK_USER, StartupVerdict, asks_a_person, startup_verdict

READS_AGAIN: Final = 3
"""How often a history that can't be read at a start is tried again, after 1, 2 and 4 s."""
INTERRUPTED: Final = "interrupted"
"""The error type of an answer that the end of the process cut off."""

_log = structlog.get_logger("streamengine.autoretry")


@dataclass(frozen=True, slots=True)
class TakenUp:
    """A workspace after the start looked at it, and what was decided."""

    loaded: Loaded
    verdict: StartupVerdict


@final
class AutoRetry(Occupant):
    """Takes up again what failed, later and later, and what a crash or a shutdown interrupted.

        retries = AutoRetry(engine, history)
        await retries.start(app_scope)
        await retries.recover()          # in the place of engine.recover()

    ``clock``: what the delays wait on; None takes the clock in context. ``ask_user_tools``: tools
    that wait for a person: an answer that waits for one is left as it is. ``is_relevant``: rows for
    which it is False are passed over in looking for an unanswered one. ``tried_elsewhere``: of a
    running process, the failures that somebody else deals with; after a restart nobody does.
    ``is_over``: whether nobody waits any more for the answer that was interrupted; its last row.

    A retry has no tools to give: the engine's ``EngineOptions.for_resumed`` has.
    """

    name = "autoretry"

    def __init__(
        self,
        engine: StreamEngine,
        history: HistoryStore,
        *,
        clock: Clock | None = None,
        ask_user_tools: Collection[str] = (ASK_USER,),
        is_relevant: Callable[[Row], bool] = lambda _row: True,
        tried_elsewhere: Callable[[ErrorEvent], bool] = lambda _event: False,
        is_over: Callable[[Row], bool] = lambda _row: False,
    ) -> None:
        self._engine = engine
        self._history = history
        self._clock = clock
        self._ask_user_tools = ask_user_tools
        self._is_relevant = is_relevant
        self._tried_elsewhere = tried_elsewhere
        self._is_over = is_over
        self._scope: Scope | None = None
        # Only those with something to remember: a series, or an opt-out.
        self._managers: dict[str, RetryManager] = {}

    # ---- an occupant of the app scope

    def start(self, scope: Scope) -> Effect[None]:
        """Listen to the engine from now on, until ``scope`` closes; the tries run in it."""

        def listen() -> None:
            self._scope = scope
            unsubscribe = self._engine.events.subscribe(self._on_event)
            fb.run_sync(scope.add_finalizer(lambda _exit: Effect.sync(unsubscribe)))

        return Effect.sync(listen)

    def describe(self) -> Mapping[str, object]:
        """The workspaces with a series of tries or an opt-out, for a dump."""
        return {
            workspace_id: f"try {state.attempt}{' pending' if state.pending else ''}"
            if (state := manager.state).enabled
            else "off"
            for workspace_id, manager in self._managers.items()
        }

    # ---- asking and telling

    def state(self, workspace_id: str) -> RetryState:
        """Where the retries of a workspace stand."""
        manager = self._managers.get(workspace_id)
        return RetryState(0, pending=False, enabled=True) if manager is None else manager.state

    def scheduled(self, workspace_id: str) -> AutoRetryScheduledEvent | None:
        """What was told of the try that waits for its time; None where none does."""
        manager = self._managers.get(workspace_id)
        return None if manager is None else manager.scheduled

    def call_off(self, workspace_id: str) -> Effect[None]:
        """A person's stop while a try is pending: it won't come, nor after a restart (I10).

        Never fails: where the stop can't be remembered, that is logged.
        """
        return self._call_off(workspace_id)

    @fb.effect
    async def _call_off(self, workspace_id: str) -> None:
        manager = self._managers.get(workspace_id)
        if manager is None:
            return
        was_pending, message_id = manager.state.pending, manager.message_id
        manager.call_off("stopped")
        self._tidy(workspace_id)
        if not was_pending:
            return  # what runs, if anything does, is stopped and noted by the engine
        exit_ = await self._remember_stop(workspace_id, message_id).exit()
        if isinstance(exit_, fb.Failure):
            _log.warning(
                "a stop is not remembered: after a restart the answer is tried again",
                workspaceId=workspace_id,
                error=text_of(exit_.failure().squash()),
            )

    @fb.effect(raises=HistoryError)
    async def _remember_stop(self, workspace_id: str, message_id: str) -> None:
        def stopped(note: WorkspaceNote) -> WorkspaceNote:
            end = note.last_end
            if end is None or end.message_id != message_id:
                end = LastEnd(message_id=message_id)
            return note.with_fields(last_end=end.model_copy(update={"abort_reason": "user"}))

        await self._history.update_note(workspace_id, stopped)

    def set_enabled(self, workspace_id: str, enabled: bool) -> Effect[None, HistoryError]:
        """Turn the retries of a workspace on or off, also for later runs of the process."""
        return self._set_enabled(workspace_id, enabled)

    @fb.effect(raises=HistoryError)
    async def _set_enabled(self, workspace_id: str, enabled: bool) -> None:
        manager = self._manager(workspace_id)
        manager.set_enabled(enabled)
        self._tidy(workspace_id)
        await self._history.update_note(
            workspace_id, lambda note: note.with_fields(auto_retry=enabled)
        )

    def _manager(self, workspace_id: str, *, enabled: bool = True) -> RetryManager:
        manager = self._managers.get(workspace_id)
        if manager is None:
            if self._scope is None:
                raise RuntimeError("AutoRetry has no scope yet: run start(scope) first")
            manager = self._managers[workspace_id] = RetryManager(
                workspace_id,
                retry=lambda: self._engine.resume_stream(workspace_id),
                tell=self._engine.events.emit,
                scope=self._scope,
                clock=self._clock,
                enabled=enabled,
                at_rest=lambda: self._tidy(workspace_id),
            )
        return manager

    def _tidy(self, workspace_id: str) -> None:
        """Forget a manager that has nothing to remember."""
        manager = self._managers.get(workspace_id)
        if manager is not None and manager.state == RetryState(0, pending=False, enabled=True):
            self._managers.pop(workspace_id, None)

    # ---- in a running process

    def _on_event(self, event: Event) -> None:
        manager = self._managers.get(event.workspace_id)
        if manager is not None and manager.is_own(event.message_id):
            return  # the series waits for that answer's completion itself
        match event:
            case ErrorEvent() if self._tried_elsewhere(event):
                pass
            case ErrorEvent():
                manager = self._manager(event.workspace_id)
                manager.handle_failure(event.message_id, event.error_type)
            case StreamStartEvent() | StreamEndEvent() if manager is not None:
                # Somebody asks anew: what had failed before is not tried again.
                manager.handle_success()
            case StreamAbortEvent() if manager is not None:
                manager.call_off("aborted")
            case _:
                pass
        self._tidy(event.workspace_id)

    # ---- at the start of a process

    def recover(self) -> Effect[Mapping[str, StartupVerdict], HistoryError]:
        """Put every workspace in order, and take up again what the last process left interrupted.

        Gives the verdict on each. A workspace whose history can't be read is tried again in the
        background, and isn't among them. Fails only where the workspaces can't be listed.
        """
        return self._recover()

    def take_up(self, workspace_id: str) -> Effect[TakenUp, HistoryError]:
        """Put one workspace in order, in the place of the history's load, say in the log what was
        found, and take up what the last process left interrupted there.
        """
        return self._take_up(workspace_id)

    @fb.effect(raises=HistoryError)
    async def _recover(self) -> Mapping[str, StartupVerdict]:
        verdicts: dict[str, StartupVerdict] = {}
        for workspace_id in await self._history.workspaces():
            try:
                taken = await self._take_up(workspace_id)
            except HistoryError as error:
                log_not_recovered(workspace_id, error, then="it is tried again in a second")
                self._take_up_later(workspace_id)
            else:
                verdicts[workspace_id] = taken.verdict
        return verdicts

    def _take_up_later(self, workspace_id: str) -> None:
        assert self._scope is not None, "AutoRetry has no scope yet: run start(scope) first"
        again = Schedule.exponential(1.0).up_to(READS_AGAIN - 1)

        def give_up(error: HistoryError) -> Effect[None]:
            then = "its next start tries again"
            return Effect.sync(lambda: log_not_recovered(workspace_id, error, then=then))

        later = fb.sleep(1).flat_map(lambda _: self._take_up(workspace_id))
        work = later.retry(again).map(lambda _: None).catch(give_up)
        if self._clock is not None:
            work = work.provide_service(fb.ClockTag, self._clock)
        self._scope.fork(work).set_name(f"recovery of {workspace_id}")

    @fb.effect(raises=HistoryError)
    async def _take_up(self, workspace_id: str) -> TakenUp:
        # Before the load, which drops a partial that is nothing but an unanswered question (P7).
        partial = await self._history.read_partial(workspace_id)
        loaded = await self._history.load(workspace_id)
        log_recovered(loaded.report)
        note = await self._history.read_note(workspace_id)
        if partial is not None and asks_a_person(partial.parts, self._ask_user_tools):
            note = await self._remember_question(workspace_id, partial, loaded)
        if not note.auto_retry:
            self._manager(workspace_id, enabled=False)
        if self._engine.is_streaming(workspace_id) or self._engine.is_starting(workspace_id):
            # Somebody was quicker: it is being answered.
            return TakenUp(loaded, "nothing-interrupted")
        verdict = startup_verdict(
            loaded.rows,
            note,
            is_relevant=self._is_relevant,
            ask_user_tools=self._ask_user_tools,
        )
        if verdict == "retry":
            last = [row for row in loaded.rows if self._is_relevant(row)][-1]
            if self._is_over(last):
                return TakenUp(loaded, "is-over")
            _log.info("an interrupted answer is taken up again", workspaceId=workspace_id)
            self._manager(workspace_id).handle_failure(last.id, INTERRUPTED)
        return TakenUp(loaded, verdict)

    @fb.effect(raises=HistoryError)
    async def _remember_question(
        self, workspace_id: str, partial: AssistantRow, loaded: Loaded
    ) -> WorkspaceNote:
        users = [row for row in loaded.rows if isinstance(row, UserRow)]
        end = LastEnd(
            message_id=partial.id,
            after_sequence=users[-1].metadata.history_sequence if users else None,
            asks_a_person=True,
        )
        return await self._history.update_note(
            workspace_id, lambda note: note.with_fields(last_end=end)
        )
