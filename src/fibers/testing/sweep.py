"""sweep: interrupt an effect at every point where an interrupt can land."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from fibers.dump import describe
from fibers.effect import Effect
from fibers.exit import Exit
from fibers.loop import run_loop, states
from fibers.loop.native import set_op_budget
from fibers.loop.queue import ReadyQueue, queue_of, use_queue
from fibers.root import new_fiber
from fibers.sync.checks import checked_count
from fibers.testing.loop import TestLoop

if TYPE_CHECKING:
    from fibers.fiber import Fiber

Case = tuple[Effect[Any, Any], Callable[[Exit[Any, Any]], object]]
"""An effect, and what must hold of its exit and of the world when it has ended."""

MAX_POINTS: Final = 10_000
# With 2, a step is resuming plus one primitive; with 1 a fiber would never get any further.
_ONE_PRIMITIVE: Final = 2
_How = Literal["ready", "suspended"]


class SweepError(AssertionError):
    """An invariant broke at one point. ``point`` counts from 0; None: without an interrupt."""

    def __init__(self, message: str, point: int | None) -> None:
        super().__init__(message)
        self.point = point


@dataclass(frozen=True)
class SweepReport:
    """How far a sweep got: runs that were interrupted, and different places where."""

    interrupted: int
    places: frozenset[str]


class _SteppingQueue(ReadyQueue):
    """Counts steps, and interrupts ``target`` at the step ``point``."""

    __slots__ = ("_count", "_how", "_most", "_point", "landed_at", "over", "target")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, point: int | None, how: _How, *, most: int
    ) -> None:
        super().__init__(loop)
        self._count = -1
        self._most = most
        self._point = point
        self._how = how
        self.target: Fiber[Any, Any] | None = None
        self.landed_at: str | None = None
        # The effect ended before the point was reached.
        self.over = True

    def run_ready(self, steps: int) -> None:
        while self.ready and steps:
            steps -= 1
            self._count += 1
            here = self._count == self._point
            if here and self._how == "ready":
                self._interrupt()
            super().run_ready(1)
            if here and self._how == "suspended":
                self._interrupt()

    @property
    def endless(self) -> bool:
        """The target has taken more steps than it may, and goes on."""
        target = self.target
        return self._count > self._most and target is not None and not target.done()

    def _interrupt(self) -> None:
        target = self.target
        if target is None or target.done():
            return
        self.over = False
        if self._how == "suspended" and target._state != states.SUSPENDED:
            return  # the same as the next point, which is tried anyway
        self.landed_at = describe(target)
        target.interrupt_unsafe(reason="sweep")


class _EndlessError(Exception):
    """It takes step after step and comes to no end."""


class _SweepLoop(TestLoop):
    """Leaves where its fibers would step for ever: nothing that waits, so no StalledError."""

    stepping: _SteppingQueue

    def _run_once(self) -> None:
        if self.stepping.endless:
            raise _EndlessError
        super()._run_once()


def sweep(case: Callable[[], Case], *, max_points: int = MAX_POINTS) -> SweepReport:
    """Run an effect again and again, interrupting it once, at every primitive and suspension.

        def case() -> Case:
            lock = Semaphore(1)
            return use(lock), lambda exit: check(lock.free == 1)

        sweep(case)

    ``case`` makes a fresh world for each run: the effect, and a function that is called with its
    exit and raises where an invariant is broken. An effect that it returns is run. Before the first
    interrupt comes one run without; time is virtual (TestLoop). A plain call: not inside a loop.
    A fiber that is started at once is cut after a primitive, too: here it has not always got to its
    first suspension when the fork returns, as one of thousands of primitives has not elsewhere.

    Raises SweepError, from the error itself, with the place of the interrupt; also where a fiber
    is left alive, or where the effect does not end any more: where nothing can happen, or after
    ``max_points`` more steps. RuntimeError where it takes more than that without an interrupt;
    ValueError unless ``max_points`` is a positive int.
    """
    checked_count(max_points, "max_points")
    _run_one(case, None, "ready", max_points)
    interrupted = 0
    places: set[str] = set()
    for point in range(max_points):
        over = True
        for how in ("ready", "suspended"):
            queue = _run_one(case, point, how, max_points)
            over = over and queue.over
            if queue.landed_at is not None:
                interrupted += 1
                places.add(queue.landed_at.split("#")[0] + queue.landed_at.partition(" ")[2])
        if over:
            return SweepReport(interrupted, frozenset(places))
    raise _too_long(max_points)


def _too_long(max_points: int) -> RuntimeError:
    return RuntimeError(
        f"the effect has not ended after {max_points} steps: sweep a smaller one, "
        "or pass max_points="
    )


def _run_one(
    case: Callable[[], Case], point: int | None, how: _How, max_points: int
) -> _SteppingQueue:
    loop = _SweepLoop()
    queue = loop.stepping = _SteppingQueue(loop, point, how, most=(point or 0) + max_points)
    use_queue(loop, queue)
    try:
        with _one_primitive_a_step(), asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(_watched(case, queue))
    except _EndlessError:
        if queue.landed_at is None:
            raise _too_long(max_points) from None
        raise SweepError(
            f"interrupted at point {point} ({how}), {queue.landed_at}: "
            f"it has not ended {max_points} steps later",
            point,
        ) from None
    except Exception as exc:
        if queue.landed_at is None:
            raise SweepError(f"without an interrupt: {exc}", None) from exc
        raise SweepError(
            f"interrupted at point {point} ({how}), {queue.landed_at}: {exc}", point
        ) from exc
    return queue


async def _watched(case: Callable[[], Case], queue: _SteppingQueue) -> None:
    eff, check = case()
    fiber: Fiber[Any, Any] = new_fiber(eff)
    queue.target = fiber
    queue.push(fiber)
    exit_ = await fiber.exit()
    # Neither the interrupt nor the count concerns what is looked at now.
    queue.target = None
    said = check(exit_)
    if isinstance(said, Effect):
        await said
    alive = [f for f in queue_of(asyncio.get_running_loop()).live if not f.done()]
    if alive:
        raise AssertionError("left alive: " + "; ".join(map(describe, alive)))


@contextmanager
def _one_primitive_a_step() -> Generator[None]:
    # Each of the two keeps a number of its own.
    before = states.OP_BUDGET_PRIMITIVES
    setattr(run_loop, "OP_BUDGET_PRIMITIVES", _ONE_PRIMITIVE)  # noqa: B010  # Final for everyone else
    set_op_budget(_ONE_PRIMITIVE)
    try:
        yield
    finally:
        set_op_budget(before)
        setattr(run_loop, "OP_BUDGET_PRIMITIVES", before)  # noqa: B010  # see above
