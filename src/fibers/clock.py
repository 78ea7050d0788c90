"""Time as a service: everything that waits asks the clock in context (VF13)."""

from __future__ import annotations

import math
import time
from typing import Never, Protocol, cast, runtime_checkable

from fibers.duration import Duration, seconds_of
from fibers.effect import Effect, Tag
from fibers.loop import hooks
from fibers.ops.clock import CLOCK_KEY, LiveSleepOp, SleepOp


@runtime_checkable
class Clock(Protocol):
    """What tells the time and lets a fiber sleep."""

    def now(self) -> float:
        """Seconds, monotonic, from an arbitrary start."""
        ...

    def sleep(self, d: Duration) -> Effect[None, Never]:
        """Wait for ``d`` (timedelta or seconds): not positive is a yield, infinity is never."""
        ...


class _Sleep(SleepOp, Effect[None, Never]):
    __slots__ = ()


class _LiveSleep(LiveSleepOp, Effect[None, Never]):
    __slots__ = ()


class LiveClock:
    """The machine's monotonic time and the event loop's timer."""

    def now(self) -> float:
        """Seconds of the monotonic clock; of the running loop's own, where that is virtual."""
        # A loop with virtual time (fibers.testing.TestLoop) has the timers, so it has the time too.
        virtual = getattr(hooks.running_loop(), "virtual_time", None)
        return time.monotonic() if virtual is None else cast("float", virtual())

    def sleep(self, d: Duration) -> Effect[None, Never]:
        """Wait for ``d`` (timedelta or seconds), as ``Clock.sleep`` says. ValueError for NaN."""
        seconds = seconds_of(d)
        if math.isnan(seconds):
            raise ValueError("sleep() takes a number of seconds, not NaN")
        return _LiveSleep(seconds)

    def is_real(self) -> bool:
        """Whether its time is the machine's, here: in a loop with virtual time it isn't."""
        return getattr(hooks.running_loop(), "virtual_time", None) is None

    def __repr__(self) -> str:
        return "<LiveClock>"


LIVE_CLOCK = LiveClock()
ClockTag: Tag[Clock] = Tag(CLOCK_KEY, LIVE_CLOCK)
"""The service that every sleep and timeout asks; provide another clock for a part of a program."""


def current_clock() -> Effect[Clock, Never]:
    """The clock in context."""
    return ClockTag


def sleep(d: Duration) -> Effect[None, Never]:
    """Wait for ``d`` (timedelta or seconds) on the clock in context: a TestClock makes it virtual.

    Not positive gives the loop a turn; infinity never wakes.
    """
    return _Sleep(d)
