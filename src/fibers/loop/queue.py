"""The ready queue: fibers hand over to each other without a turn of the event loop each (PD16).

One queue a loop. It owns the order in which ready fibers run and the registry of the live ones; it
knows nothing of effects. ``run_sync`` uses a queue that no loop drains.
"""

from __future__ import annotations

import contextvars
import weakref
from collections import deque
from typing import TYPE_CHECKING

from fibers.loop.hooks import current_tasks, task_in, this_thread
from fibers.loop.native import speed, twins
from fibers.loop.protocol import SWITCH
from fibers.loop.states import OP_BUDGET_PRIMITIVES

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from fibers.loop.run_loop import FiberCore

DRAIN_BUDGET_STEPS = 512
"""Steps of one drain; then asyncio's own callbacks get their turn."""


class _Fields:
    """What a queue consists of."""

    __slots__ = (
        "__weakref__",
        "_armed",
        "context",
        "depth",
        "fatal",
        "gifts",
        "live",
        "loop",
        "manual",
        "on_fatal",
        "ready",
        "steps",
        "turn",
    )


if TYPE_CHECKING or speed is None:
    _Base = _Fields
else:
    _Base = speed.Queue


@twins("run_ready")
class ReadyQueue(_Base):
    """FIFO of fibers that can run now, plus those that gave the loop a turn."""

    __slots__ = ()

    def __init__(self, loop: asyncio.AbstractEventLoop | None, *, manual: bool = False) -> None:
        self.loop: asyncio.AbstractEventLoop | None = loop
        # Drained by run_all only, until attach().
        self.manual: bool = manual
        self.ready: deque[FiberCore] = deque()
        # Fibers that yielded (yield_now, sleep(0), the op budget): ready again only after the loop
        # has had a turn.
        self.turn: deque[FiberCore] = deque()
        # Strong, in order of first suspension: correctness never depends on the collector (PD13).
        # With the monotonic time of that, for the dump.
        self.live: dict[FiberCore, float | None] = {}
        self.depth: int = 0
        # Values of ended fibers that a body may still get without a way through the run loop.
        self.gifts: int = OP_BUDGET_PRIMITIVES
        # Steps of all fibers, ever: what "nothing happens any more" is told by.
        self.steps: int = 0
        self.fatal: BaseException | None = None
        self.on_fatal: Callable[[BaseException], None] | None = None
        self.context: contextvars.Context = contextvars.Context()
        self._armed = False
        _queues.add(self)

    def push(self, fiber: FiberCore) -> None:
        """``fiber`` can run: behind all that were ready before it."""
        self.ready.append(fiber)
        if not self._armed:
            self._arm()

    def wake_loop(self) -> None:
        """See to it that the loop drains this queue: what is appended then needs no call more."""
        if not self._armed:
            self._arm()

    def attach(self) -> None:
        """Let the loop drain this queue from now on (a run_sync whose effect went async)."""
        self.manual = False

    def _arm(self) -> None:
        if self.loop is not None and not self.manual:
            self.loop.call_soon(self._drain, context=self.context)
            self._armed = True

    def _drain(self) -> None:
        ready = self.ready
        if self.turn:
            ready.extend(self.turn)
            self.turn.clear()
        try:
            self.run_ready(DRAIN_BUDGET_STEPS)
        finally:
            if not ready and not self.turn:
                self._armed = False
            elif self.loop is not None:
                # _arm in place, once a turn of the loop: it is armed, and nobody's manual queue.
                self.loop.call_soon(self._drain, context=self.context)

    def run_ready(self, steps: int) -> None:
        """Run fibers in order until none is ready or ``steps`` of them had their step."""
        ready = self.ready
        loop = self.loop
        before = this_thread.task if loop is None else task_in(loop)
        step = this_thread.step
        loop_before = step.loop
        step.loop = loop
        self.depth += 1
        try:
            while ready and steps:
                fiber = ready.popleft()
                if fiber._stale:
                    # It was interrupted while it waited here, and has run since.
                    fiber._stale -= 1
                    continue
                steps -= 1
                self.steps += 1
                # FiberCore._drive without what is the same for all: a step may be that short.
                if loop is None:
                    this_thread.task = fiber._face
                else:
                    current_tasks[loop] = fiber._face
                try:
                    signal = fiber._ctx.run(fiber._run)
                except RuntimeError as exc:
                    signal = fiber._later(exc)
                if signal is SWITCH:
                    fiber._follow()
                del fiber  # see FiberCore._drive
        finally:
            self.depth -= 1
            step.loop = loop_before
            if loop is None:
                this_thread.task = before
            elif before is None:
                current_tasks.pop(loop, None)
            else:
                current_tasks[loop] = before
            del before

    def run_all(self) -> None:
        """Run until nothing is ready, yields included (run_sync, PD15)."""
        while self.ready or self.turn:
            self.ready.extend(self.turn)
            self.turn.clear()
            self.run_ready(len(self.ready))

    def stop_for(self, exc: BaseException) -> None:
        """KeyboardInterrupt or SystemExit left a fiber: who runs this queue must know (PD7)."""
        if self.fatal is None:
            self.fatal = exc
            if self.on_fatal is not None:
                self.on_fatal(exc)
            elif self.loop is not None:
                # Nobody takes charge: out of the loop with it, as from asyncio's own tasks.
                self.loop.call_soon(self._raise_fatal)

    def _raise_fatal(self) -> None:
        fatal, self.fatal = self.fatal, None
        if fatal is not None:
            raise fatal


_ON_LOOP = "__fibers_queue__"
_queues: weakref.WeakSet[ReadyQueue] = weakref.WeakSet()


def queue_of(loop: asyncio.AbstractEventLoop) -> ReadyQueue:
    """The queue of ``loop``, made at first use.

    It is an attribute of the loop, so that both go together. A WeakKeyDictionary would keep every
    loop for ever: the queue refers to its key.
    """
    queue: ReadyQueue | None = getattr(loop, _ON_LOOP, None)
    if queue is None:
        queue = ReadyQueue(loop)
        setattr(loop, _ON_LOOP, queue)
    return queue


def use_queue(loop: asyncio.AbstractEventLoop, queue: ReadyQueue) -> None:
    """Let fibers of ``loop`` wait in ``queue``: for loops of tests, before anything runs there."""
    setattr(loop, _ON_LOOP, queue)


def all_queues() -> list[ReadyQueue]:
    """The queues of this process, one a loop. RuntimeError where another thread makes one now."""
    return list(_queues)


def all_live() -> list[FiberCore]:
    """Every live fiber that has suspended at least once, of every loop of this process."""
    return [fiber for queue in list(_queues) for fiber in list(queue.live)]


def all_ready() -> list[FiberCore]:
    """Every fiber that can run now, of every loop: also those that have not started yet."""
    return [f for queue in list(_queues) for f in (*queue.ready, *queue.turn)]
