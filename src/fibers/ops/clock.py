"""Sleeping: on the clock in context, and on the event loop's timer."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from fibers.loop.protocol import NEXT, Node, Wait
from fibers.ops.wait import NEVER

if TYPE_CHECKING:
    from fibers.duration import Duration
    from fibers.loop.run_loop import FiberCore

CLOCK_KEY = "fibers.Clock"


class SleepOp(Node):
    """Sleep on whatever clock the fiber has in context."""

    __slots__ = ("d",)

    def __init__(self, d: Duration) -> None:
        self.d: Duration = d

    def _ev(self, fiber: FiberCore) -> Any:
        fiber._next = fiber._env[CLOCK_KEY].sleep(self.d)
        return NEXT


class LiveSleepOp(Node):
    """Sleep on the loop's timer: not at all or in the past is a yield, infinity is never."""

    __slots__ = ("seconds",)

    def __init__(self, seconds: float) -> None:
        self.seconds: float = seconds

    def _ev(self, fiber: FiberCore) -> Any:
        if not self.seconds > 0:
            fiber._rv = None
            return fiber._yield_turn()
        if math.isinf(self.seconds):
            return fiber._suspend(NEVER)
        loop = fiber._queue.loop
        if loop is None:
            # run_sync without a loop: nothing will ever wake it; run_sync says so.
            return fiber._suspend(NEVER)
        return fiber._suspend(LiveSleep(fiber, loop, self.seconds))


class LiveSleep(Wait):
    """One sleep: a timer of the loop's, cancelled when the fiber waits no longer."""

    __slots__ = ("fiber", "handle", "seconds")

    def __init__(self, fiber: FiberCore, loop: Any, seconds: float) -> None:
        self.fiber: FiberCore = fiber
        self.seconds: float = seconds
        self.handle: Any = loop.call_later(seconds, self.over, context=fiber._queue.context)

    def over(self) -> None:
        """The timer's callback: the fiber goes on. Never after ``_abandon``, which cancels it."""
        self.handle = None  # it refers to this method
        self.fiber._wake(None)

    def _abandon(self, fiber: FiberCore) -> None:
        self.handle.cancel()

    def _label(self) -> str:
        return f"sleep({self.seconds:g})"
