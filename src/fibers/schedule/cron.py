"""Cron expressions: the calendar is a library's (cronsim, extra "cron"), the waiting is ours."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, Any

from fibers.clock import ClockTag, LiveClock
from fibers.effect import Effect
from fibers.ops.repeat import ScheduleDone

if TYPE_CHECKING:
    from fibers.clock import Clock
    from fibers.ops.repeat import Start, Step


class _Wall:
    """The time of day, in step with the clock in context: a virtual one takes it along."""

    def __init__(self) -> None:
        self._read: tuple[datetime, float] | None = None

    def now(self, clock: Clock, seconds: float) -> datetime:
        # Read anew each time where time is real: a monotonic clock knows neither the machine's
        # sleep nor that somebody set the time.
        if self._read is None or (isinstance(clock, LiveClock) and clock.is_real()):
            self._read = datetime.now(UTC), seconds
        read_at, then = self._read
        return read_at + timedelta(seconds=seconds - then)


def cron(expression: str, zone: tzinfo | None) -> Start:
    """Steps that wait for each time which ``expression`` names, in ``zone`` (the machine's)."""
    given: Any = expression  # annotations bind nobody who runs no type checker
    if not isinstance(given, str):
        raise TypeError(f"a cron expression is a text of five fields, not {given!r}")
    try:
        import cronsim
    except ImportError as exc:
        raise ModuleNotFoundError(
            "Schedule.cron needs the package cronsim: install fiberscope[cron]"
        ) from exc
    try:
        cronsim.CronSim(expression, datetime.now(UTC))
    except cronsim.CronSimError as exc:
        raise ValueError(f"not a cron expression, {exc}: {expression!r}") from exc

    def begin() -> Step:
        wall = _Wall()
        last: datetime | None = None

        def step(seconds: float, _input: object) -> Effect[Any]:
            def decide(clock: Clock) -> tuple[datetime, float] | ScheduleDone[datetime | None]:
                nonlocal last
                now = wall.now(clock, seconds).astimezone(zone)
                # A timer may be a little early: a time that was waited for doesn't come again.
                after = now if last is None or last < now else last
                due = next(cronsim.CronSim(expression, after), None)
                if due is None:
                    return ScheduleDone(last)
                last = due
                return due, max(0.0, (due - now).total_seconds())

            return ClockTag.map(decide)

        return step

    return begin
