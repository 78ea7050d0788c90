"""Schedules on a grid: runs start at multiples of a window after the first step."""

from __future__ import annotations

import math
from typing import final

from fibers.duration import Duration, checked_seconds
from fibers.ops.repeat import Start, Step

_NANOSECONDS = 1_000_000_000
_TIMER_SLACK_NS = 1_000_000
"""How much too early an event loop's timer may fire: uvloop counts in milliseconds."""


@final
class Grid:
    """Starts at multiples of a window after the first step. In whole nanoseconds: in floats 0.3 is
    no multiple of 0.1, and a run would come twice.
    """

    __slots__ = ("count", "due", "start", "window")

    def __init__(self, window: int) -> None:
        self.window: int = window
        self.count: int = -1
        self.start: float = 0.0
        # When the run that follows is meant to start.
        self.due: int = 0

    def next_start(self, now: float) -> tuple[int, float]:
        """The step's number, from 0, and the seconds until the run: none where the last one was
        longer than the window.
        """
        at = self._step(now)
        if self.count and at > self.due + self.window:
            self.due = at
            return self.count, 0.0
        return self._wait(at)

    def next_window(self, now: float) -> tuple[int, float]:
        """The same, with a wait after a long run too: the starts that it missed are left out."""
        return self._wait(self._step(now))

    def _step(self, now: float) -> int:
        self.count += 1
        if self.count == 0:
            self.start = now
        return ns(now - self.start)

    def _wait(self, at: int) -> tuple[int, float]:
        if not self.window:
            return self.count, 0.0
        # A timer that fired a little early is taken for on time: the start that it was set for
        # would come a second time, an instant later.
        if 0 < self.due - at <= _TIMER_SLACK_NS:
            at_least = self.due
        else:
            at_least = at
        self.due = (at_least // self.window + 1) * self.window
        return self.count, (self.due - at) / _NANOSECONDS


def fixed(window: int) -> Start:
    """At the next start, at once where a run was longer than the window."""

    def begin() -> Step:
        grid = Grid(window)
        return lambda now, _: grid.next_start(now)

    return begin


def windowed(window: int) -> Start:
    """At the next start, always."""

    def begin() -> Step:
        grid = Grid(window)
        return lambda now, _: grid.next_window(now)

    return begin


def ns(seconds: float) -> int:
    """In whole nanoseconds."""
    return round(seconds * _NANOSECONDS)


def limit_ns(d: Duration) -> float:
    """The same of a limit, which may be infinite."""
    seconds = checked_seconds(d, "a duration")
    return seconds if math.isinf(seconds) else ns(seconds)


def window_ns(interval: Duration) -> int:
    """The same of an interval, checked."""
    seconds = checked_seconds(interval, "an interval")
    if math.isinf(seconds):
        raise ValueError("an interval must be finite: Effect.never() waits for ever")
    return ns(seconds)
