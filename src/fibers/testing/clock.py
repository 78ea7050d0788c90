"""TestClock: virtual time, moved by the test."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import math
import weakref
from typing import TYPE_CHECKING, Any, ClassVar, Never, cast

from fibers.clock import Clock
from fibers.duration import Duration, checked_seconds, seconds_of
from fibers.effect import Effect
from fibers.fiber import current_fiber
from fibers.loop.protocol import Node, Wait
from fibers.loop.queue import queue_of
from fibers.ops.wait import NEVER

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from fibers.loop.run_loop import FiberCore

_NANOSECONDS = 1_000_000_000
UNMOVED_SECONDS = 1.0
"""Real time that a sleep may wait for a clock that nobody has ever moved, before a warning."""
_LEFT_KEPT = 64
"""Sleeps that nobody waits for any more; beyond these they go, once they are most of all."""
QUIET_TURNS = 32
"""Turns of the loop without a step of any fiber, after which it is taken to be idle although some
plain task still spins (or the loop doesn't show its ready list)."""

_log = logging.getLogger("fibers")


def _ns(d: Duration) -> int:
    return round(seconds_of(d) * _NANOSECONDS)


class TestClock(Clock):
    """A clock for tests: starts at 0 and stands still until ``adjust`` or ``set_time``.

        clock = TestClock()
        runtime = Runtime(clock=clock)
        fiber = runtime.run_fork(fb.sleep(60).map(lambda _: "done"))
        await runtime.run(clock.adjust(60))

    Sleeps wake one by one, in order of their time and then of their registration; after each,
    everything that became ready runs before the next.

    Where something sleeps and nobody moves the clock for a real second, a warning of the logger
    "fibers" says so once: such a test hangs.
    """

    __test__ = False  # not a test class, whatever pytest thinks of the name

    def __init__(self) -> None:
        self._now_ns = 0
        self._monotonic_ns = 0
        self._sleeps: list[tuple[int, int, _Sleep]] = []
        self._sequence = itertools.count()
        self._left = 0
        self._moved = False
        self._warning: asyncio.TimerHandle | None = None

    def now(self) -> float:
        """Virtual seconds; never goes back, also where ``set_time`` does."""
        return self._monotonic_ns / _NANOSECONDS

    def sleep(self, d: Duration) -> Effect[None, Never]:
        """Wait until the test has moved time by ``d``; not positive returns at once."""
        seconds = seconds_of(d)
        if math.isnan(seconds):
            raise ValueError("sleep() takes a number of seconds, not NaN")
        return _TestSleep(self, None if math.isinf(seconds) and seconds > 0 else _ns(d))

    def adjust(self, d: Duration) -> Effect[None, Never]:
        """Move time by ``d`` (timedelta or seconds), waking sleeps on the way. ValueError where
        that is negative (``set_time`` goes back) or endless.
        """
        if checked_seconds(d, "what adjust() moves time by") == math.inf:
            raise ValueError("adjust() moves time by a finite span: there is no end to wait for")
        return Effect.promise(lambda: self._move(lambda: self._now_ns + _ns(d)))

    def set_time(self, t: Duration) -> Effect[None, Never]:
        """Move time to ``t`` after the start; back is allowed and wakes nobody. ValueError where
        that is no finite time.
        """
        if not math.isfinite(seconds_of(t)):
            raise ValueError(f"set_time() takes a finite time, not {t!r}")
        return Effect.promise(lambda: self._move(lambda: _ns(t)))

    async def _move(self, target: Callable[[], int]) -> None:
        # One at a time in a loop: each waits until nothing is ready, the other's waiting included.
        async with _ThreadWork.watch(asyncio.get_running_loop()).moving:
            await self._move_to(target())

    async def _move_to(self, target_ns: int) -> None:
        self._moved = True
        if self._warning is not None:
            self._warning.cancel()
            self._warning = None
        await settle()
        while self._sleeps and self._sleeps[0][0] <= target_ns:
            at_ns, _, sleep = heapq.heappop(self._sleeps)
            fiber = sleep.fiber
            if fiber is None:
                self._left -= 1
                continue
            sleep.fiber = None
            self._set(max(at_ns, self._now_ns))
            fiber._wake(None)
            await settle()
        self._set(target_ns)

    def _put(self, sleep: _Sleep) -> None:
        heapq.heappush(self._sleeps, (self._now_ns + sleep.ns, next(self._sequence), sleep))

    def _leave(self) -> None:
        """One of the sleeps was interrupted. It stays where it is until these are most of all."""
        self._left += 1
        if self._left > _LEFT_KEPT and self._left * 2 > len(self._sleeps):
            self._sleeps[:] = [entry for entry in self._sleeps if entry[2].fiber is not None]
            heapq.heapify(self._sleeps)
            self._left = 0

    def _warn_unless_moved(self, loop: Any) -> None:
        # Virtual time says nothing about a test that hangs: such a loop has StalledError.
        if self._moved or self._warning is not None or getattr(loop, "virtual_time", None):
            return
        self._warning = loop.call_later(UNMOVED_SECONDS, self._warn)

    def _warn(self) -> None:
        for _, _, sleep in sorted(self._sleeps, key=lambda entry: entry[:2]):
            fiber = sleep.fiber
            if fiber is not None:
                _log.warning(
                    "fiber #%d waits for %s and nobody moves that: await clock.adjust(...) in the "
                    "test, or let time pass by itself with @virtual_time",
                    fiber.id,
                    sleep._label(),
                )
                return
        self._warning = None  # nobody waits now: the next sleep counts

    def _set(self, now_ns: int) -> None:
        self._now_ns = now_ns
        self._monotonic_ns = max(self._monotonic_ns, now_ns)

    def __repr__(self) -> str:
        return f"<TestClock at {self.now():g} s, {len(self._sleeps) - self._left} asleep>"


class _SleepOp(Node):
    __slots__ = ("clock", "ns")

    def __init__(self, clock: TestClock, ns: int | None) -> None:
        self.clock = clock
        self.ns = ns

    def _ev(self, fiber: FiberCore) -> Any:
        if self.ns is None:
            return fiber._suspend(NEVER)
        if self.ns <= 0:
            return None
        if fiber._queue.loop is None:
            return fiber._suspend(NEVER)  # run_sync without a loop: it says that it can't wait
        sleep = _Sleep(fiber, self.clock, self.ns)
        self.clock._put(sleep)
        self.clock._warn_unless_moved(fiber._queue.loop)
        _ThreadWork.watch(fiber._queue.loop)
        return fiber._suspend(sleep)


class _TestSleep(_SleepOp, Effect[None, Never]):
    __slots__ = ()


class _Sleep(Wait):
    __slots__ = ("clock", "fiber", "ns")

    def __init__(self, fiber: FiberCore, clock: TestClock, ns: int) -> None:
        # None once the fiber waits no longer: the heap must not hold it.
        self.fiber: FiberCore | None = fiber
        self.clock = clock
        self.ns = ns

    def _abandon(self, fiber: FiberCore) -> None:
        if self.fiber is not None:
            self.fiber = None
            self.clock._leave()

    def _label(self) -> str:
        return f"sleep({self.ns / _NANOSECONDS:g}) on a TestClock"


class _ThreadWork:
    """The futures of run_in_executor that are under way in a loop: virtual time must not move while
    a thread works for somebody who may sleep next.
    """

    _of: ClassVar[weakref.WeakKeyDictionary[Any, _ThreadWork]] = weakref.WeakKeyDictionary()

    def __init__(self) -> None:
        self.moving = asyncio.Lock()
        self.under_way: set[asyncio.Future[Any]] = set()

    @classmethod
    def watch(cls, loop: Any) -> _ThreadWork:
        """Start to count the loop's thread work; once a loop."""
        work = cls._of.get(loop)
        if work is None:
            work = cls._of[loop] = cls()
            original = cast("Any", type(loop)).run_in_executor
            under_way = work.under_way

            def run_in_executor(executor: Any, func: Any, *args: Any) -> Awaitable[Any]:
                future: asyncio.Future[Any] = original(loop, executor, func, *args)
                under_way.add(future)
                future.add_done_callback(under_way.discard)
                return future

            loop.run_in_executor = run_in_executor
        return work


async def settle() -> None:
    """Wait until nothing is ready: no fiber, no callback of the loop, no thread work under way."""
    loop: Any = asyncio.get_running_loop()
    queue = queue_of(loop)
    work = _ThreadWork.watch(loop)
    quiet = 0
    # Waiting here is itself a step a turn, where a fiber does it.
    own = 0 if current_fiber() is None else 1
    steps = queue.steps
    while True:
        await asyncio.sleep(0)
        ready = getattr(loop, "_ready", None)
        others = queue.steps - steps - own
        steps = queue.steps
        if queue.ready or queue.turn or others:
            quiet = 0
        elif work.under_way:
            quiet = 0
            await asyncio.wait(set(work.under_way), return_when=asyncio.FIRST_COMPLETED)
        else:
            quiet += 1
            if quiet >= QUIET_TURNS or (ready is not None and not ready):
                return
