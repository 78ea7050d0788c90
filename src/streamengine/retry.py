"""RetryManager: tries a failed answer of one workspace again, later and later (1.10).

A series of tries is one fiber: an effect under a Schedule. So a timer that is out of date doesn't
exist (its fiber has been interrupted), and what a retry waits for is what the series waits for.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, final

import structlog

import fibers as fb
from fibers import Clock, Effect, Schedule, Scope

from .model.errors import SendError
from .model.events import (
    AutoRetryAbandonedEvent,
    AutoRetryScheduledEvent,
    AutoRetryStartingEvent,
    Event,
)

if TYPE_CHECKING:
    from fibers.schedule import ScheduleMetadata

    from .engine import StreamHandle

FIRST_DELAY_SECONDS: Final = 1.0
LONGEST_DELAY_SECONDS: Final = 60.0

NOT_RETRIED: Final[frozenset[str]] = frozenset(
    {
        # How a stream ended.
        "authentication",
        "quota",
        "model_not_found",
        "context_exceeded",
        "aborted",
        "runtime_not_ready",
        "model_refusal",
        # Why one could not begin.
        "api_key_not_found",
        "oauth_not_connected",
        "provider_disabled",
        "provider_not_supported",
        "model_not_available",
        "invalid_model_string",
        "incompatible_workspace",
        "policy_denied",
    }
)
"""What another try can't mend. Any other type is retried, one that nobody knows here as well."""

DISABLED: Final = "disabled_by_user"

_log = structlog.get_logger("streamengine.retry")


def is_retryable(error_type: str) -> bool:
    """Whether another try may do better (1.10)."""
    return error_type not in NOT_RETRIED


def backoff(attempts_before: int = 0) -> Schedule[float]:
    """1, 2, 4 ... 60 seconds between tries; from later on where there were tries before (E31)."""
    first = min(FIRST_DELAY_SECONDS * 2.0 ** min(attempts_before, 10), LONGEST_DELAY_SECONDS)
    return Schedule.exponential(first).modify_delay(
        lambda m: min(m.duration, LONGEST_DELAY_SECONDS)
    )


@final
@dataclass(frozen=True, slots=True)
class RetryState:
    """Where a workspace's retries stand. A copy: nothing done to it has an effect."""

    attempt: int
    """Tries scheduled since the last answer that was whole, counted from 1; 0: none."""
    pending: bool
    """A try waits for its time."""
    enabled: bool


@final
class _Failed(Exception):
    """An answer failed, and how."""

    def __init__(self, message_id: str, error_type: str) -> None:
        super().__init__(message_id, error_type)
        self.message_id = message_id
        self.error_type = error_type


@final
class RetryManager:
    """The retries of one workspace, in fibers of ``scope``.

        manager = RetryManager("w1", retry=again, tell=engine.events.emit, scope=app_scope)
        manager.handle_failure("a_1", "server_error")   # again() after 1 s, then 2 s, 4 s ... 60 s

    ``retry`` starts the answer anew, without a user row (P20), and gives its handle; ``tell`` hands
    out the auto-retry events; ``clock``: None takes the clock in context; ``at_rest`` is called
    when a series has ended by itself. All calls are plain.
    """

    def __init__(
        self,
        workspace_id: str,
        *,
        retry: Callable[[], Effect[StreamHandle, SendError]],
        tell: Callable[[Event], None],
        scope: Scope,
        clock: Clock | None = None,
        enabled: bool = True,
        is_retryable: Callable[[str], bool] = is_retryable,
        at_rest: Callable[[], None] = lambda: None,
    ) -> None:
        self._workspace_id = workspace_id
        self._retry = retry
        self._tell = tell
        self._scope = scope
        self._clock = clock
        self._enabled = enabled
        self._is_retryable = is_retryable
        self._at_rest = at_rest
        self._attempt = 0
        self._pending = False
        self._told: AutoRetryScheduledEvent | None = None
        self._series: fb.Fiber[Any, Any] | None = None
        self._message_id = ""
        self._own_message: str | None = None
        self._starting = False

    @property
    def state(self) -> RetryState:
        return RetryState(self._attempt, self._pending, self._enabled)

    @property
    def scheduled(self) -> AutoRetryScheduledEvent | None:
        """What was told of the try that waits for its time, for who comes late; None where none
        waits, and before its event was told.
        """
        return self._told if self._pending else None

    @property
    def message_id(self) -> str:
        """The answer that failed last; empty before any has."""
        return self._message_id

    def is_own(self, message_id: str) -> bool:
        """Whether this answer is a try of the series: its end is the series' to deal with."""
        return self._starting or message_id == self._own_message

    def handle_failure(self, message_id: str, error_type: str) -> None:
        """An answer failed: try it again later, or say that it won't be."""
        if not self._enabled:
            return
        self._message_id = message_id
        if not self._is_retryable(error_type):
            self._stop()
            self._attempt = 0
            self._abandon(error_type)
            return
        self._stop()
        series = self._run(_Failed(message_id, error_type), self._attempt)
        if self._clock is not None:
            series = series.provide_service(fb.ClockTag, self._clock)
        # Deferred: who is told of the failure after us hears of the retry after the failure.
        fiber = self._scope.fork(series)
        fiber.set_name(f"retries of {self._workspace_id}")
        if fiber.poll() is None:  # into a closed scope nothing is started
            self._series = fiber
            self._pending = True
            self._told = None

    def handle_success(self) -> None:
        """An answer is whole: the next failure begins anew, with the first delay."""
        self._stop()
        self._attempt = 0

    def set_enabled(self, enabled: bool) -> None:
        """Turn the retries on or off. Off calls off what is pending, and says so."""
        self._enabled = enabled
        if not enabled:
            self.call_off(DISABLED)

    def call_off(self, reason: str) -> None:
        """Somebody has stopped it: what is pending is called off, and that is told."""
        had_any = self._pending or self._attempt > 0
        self._stop()
        self._attempt = 0
        if had_any:
            self._abandon(reason)

    def _stop(self) -> None:
        series, self._series = self._series, None
        self._pending = False
        self._own_message = None
        self._starting = False
        if series is not None:
            series.interrupt_unsafe(reason="the retries were called off")

    def _abandon(self, reason: str) -> None:
        self._tell(
            AutoRetryAbandonedEvent(
                workspace_id=self._workspace_id, message_id=self._message_id, reason=reason
            )
        )

    # ---- the series

    def _run(self, failure: _Failed, attempts_before: int) -> Effect[None, Any]:
        """The failure that begins a series is its first run; each further run is a try."""
        begun = False

        @fb.effect(raises=_Failed)
        async def run() -> None:
            nonlocal begun
            if not begun:
                begun = True
                raise failure
            try:
                await self._try()
            except SendError as error:
                self._given_up(str(error))

        schedule = backoff(attempts_before).tap(lambda m: Effect.sync(lambda: self._scheduled(m)))
        return (
            run()
            .retry(schedule)
            .catch_defect(lambda defect: Effect.sync(lambda: self._broken(defect)))
        )

    def _scheduled(self, m: ScheduleMetadata[float, Any]) -> None:
        self._attempt += 1
        self._pending = True
        self._told = AutoRetryScheduledEvent(
            workspace_id=self._workspace_id,
            message_id=self._message_id,
            attempt=self._attempt,
            delay_ms=round(m.duration * 1000),
            scheduled_at_ms=time.time_ns() // 1_000_000,
        )
        self._tell(self._told)

    async def _try(self) -> None:
        """Ends the series unless it raises _Failed: then there will be a further try."""
        me = self._series
        self._pending = False
        self._tell(
            AutoRetryStartingEvent(
                workspace_id=self._workspace_id, message_id=self._message_id, attempt=self._attempt
            )
        )
        # An observer of that event may have called it off.
        await self._check(me)
        self._starting = True
        handle = await self._retry()
        await self._check(me)
        self._starting = False
        self._own_message = handle.message_id
        completion = await handle.completion
        await self._check(me)
        if completion.status == "completed":
            self._over()
        elif completion.status == "aborted":
            self._given_up("aborted")
        else:
            self._message_id = handle.message_id
            error_type: str = completion.error_type or "unknown"
            if self._is_retryable(error_type):
                raise _Failed(handle.message_id, error_type)
            self._given_up(error_type)

    async def _check(self, me: object) -> None:
        """A series that was called off does nothing more, also where it is called off in the very
        tick in which it goes on.
        """
        if self._series is not me:
            await Effect.interrupt()

    def _over(self) -> None:
        """The series ends by itself; nothing interrupts it."""
        self._series = None
        self._own_message = None
        self._starting = False
        self._pending = False
        self._attempt = 0
        self._at_rest()

    def _given_up(self, reason: str) -> None:
        self._over()
        self._abandon(reason)

    def _broken(self, defect: BaseException) -> None:
        _log.error("a retry broke", workspaceId=self._workspace_id, exc_info=defect)
        self._given_up(f"the retry broke: {type(defect).__name__}")
