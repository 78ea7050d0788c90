"""Random trees of effects under random interrupts; what must hold whatever they are.

A failing assertion names the seed: `asyncio.run(run_one(seed))` runs it alone. Time is virtual.
"""

from __future__ import annotations

import asyncio
import gc
import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

import fibers as fb
from fibers import Effect
from fibers.loop.queue import queue_of
from fibers.testing import TestClock

if TYPE_CHECKING:
    from collections.abc import Callable

    Any_ = Effect[Any, Any]

pytestmark = pytest.mark.lifecycle

BLOCKS = 8
SEEDS_IN_A_BLOCK = 100


class Boom(Exception):
    """The expected error of these trees."""


class Defect(Exception):
    """The unexpected one."""


class Trees:
    """Makes random effects, and counts what was acquired and released in them."""

    def __init__(self, seed: int, clock: TestClock) -> None:
        self.random = random.Random(seed)
        self.clock = clock
        self.acquired: Counter[int] = Counter()
        self.released: Counter[int] = Counter()
        self.roots: list[fb.Fiber[Any, Any]] = []
        self._ids = 0
        self._kinds: list[Callable[[Callable[[], Any_]], Any_]] = [
            lambda t: _then(t(), t()),
            lambda t: _recovered(t(), t()),
            lambda t: t().uninterruptible(),
            lambda t: t().interruptible(),
            lambda t: _restored(t()),
            lambda t: t().exit(),
            lambda t: t().on_interrupt(_always(self.cleanup())),
            lambda t: t().on_exit(_always(t())),
            lambda t: fb.race(t(), t(), t()),
            lambda t: fb.race_first(t(), t()),
            lambda t: t().timeout(self.random.choice([0, 1, 2])),
            lambda t: fb.all_([t(), t(), t()], concurrency=self.random.choice([1, 2, 3])),
            lambda t: t().zip(t(), concurrent=True),
            lambda t: _forked_and_joined(t(), t(), immediate=self.random.random() < 0.5),
            lambda t: _forked_and_interrupted(t(), immediate=self.random.random() < 0.5),
            lambda t: _forked_in_a_scope(t(), t()),
            lambda t: _closed_by_a_member(t(), t()),
            lambda t: t().fork_child().flat_map(_always(fb.sleep(1))).await_all_children(),
            lambda t: _resumed_later(t(), self.cleanup()),
            self.used,
            self.used,
            self.scoped,
            self.body,
            self.body_with_a_region,
            self.body_with_a_group,
            self.body_with_a_timeout,
            self.body_that_gathers,
        ]

    def tree(self, depth: int) -> Any_:
        if depth <= 0:
            return self.leaf()
        make = self.random.choice(self._kinds)
        return make(lambda: self.tree(depth - 1 - self.random.randrange(2)))

    def leaf(self) -> Any_:
        pick = self.random.randrange(9)
        if pick == 0:
            return Effect.succeed(1)
        if pick == 1:
            return Effect.fail(Boom(self.random.randrange(3)))
        if pick == 2:
            return Effect.die(Defect(self.random.randrange(3)))
        if pick == 3:
            return Effect.yield_now()
        if pick == 4:
            return Effect.interrupt()
        if pick == 5:
            return Effect.promise(lambda: asyncio.sleep(0))
        if pick == 6:
            which = self.random.randrange(2)
            return Effect.sync(lambda: self.roots[which % len(self.roots)].interrupt_unsafe(by=501))
        return fb.sleep(self.random.choice([0, 1, 1, 2, 3]))

    def cleanup(self) -> Any_:
        options = [Effect.succeed(0), fb.sleep(1), Effect.yield_now(), Effect.die(Defect("late"))]
        return self.random.choice(options)

    # ---- what is acquired is released

    def _acquire(self) -> Effect[int, Any]:
        self._ids += 1
        name = self._ids

        def acquire() -> int:
            self.acquired[name] += 1
            return name

        return Effect.sync(acquire)

    def _release(self, name: int) -> None:
        self.released[name] += 1

    def used(self, t: Callable[[], Any_]) -> Any_:
        use, after = t(), self.cleanup()

        def release(name: int, _exit: object) -> Any_:
            self._release(name)
            return after

        return fb.acquire_use_release(self._acquire(), _always(use), release)

    def scoped(self, t: Callable[[], Any_]) -> Any_:
        use, after = t(), self.cleanup()

        def release(name: int, _exit: object) -> Any_:
            self._release(name)
            return after

        return fb.scoped(_then(fb.acquire_release(self._acquire(), release), use))

    # ---- bodies

    def body(self, t: Callable[[], Any_]) -> Any_:
        inner, after, acquire = t(), self.cleanup(), self._acquire()

        async def run() -> None:
            name = await acquire.uninterruptible().exit()
            try:
                await inner
            finally:
                self._release(name.unwrap())
                await after

        return Effect.promise(run)

    def body_with_a_region(self, t: Callable[[], Any_]) -> Any_:
        first, second = t(), t()
        swallows = self.random.random() < 0.4

        async def run() -> None:
            with fb.uninterruptible() as restore:
                try:
                    await first
                    with restore():
                        await second
                except (asyncio.CancelledError, Exception):
                    if not swallows:
                        raise
            await fb.sleep(1)

        return Effect.promise(run)

    def body_with_a_group(self, t: Callable[[], Any_]) -> Any_:
        inner = t()

        async def fails() -> None:
            raise Boom("in a group")

        async def run() -> None:
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(fails())
                    await inner
            except* Exception:
                pass

        return Effect.promise(run)

    def body_with_a_timeout(self, t: Callable[[], Any_]) -> Any_:
        inner = t()

        async def run() -> None:
            try:
                async with asyncio.timeout(0):
                    await inner
                    await Effect.yield_now()
            except TimeoutError:
                pass
            await fb.sleep(0)

        return Effect.promise(run)

    def body_that_gathers(self, t: Callable[[], Any_]) -> Any_:
        # A plain task has the default services: without the virtual clock it would really sleep.
        inner = t().provide_service(fb.ClockTag, self.clock)

        async def task() -> Any:
            return await inner

        async def run() -> None:
            await asyncio.gather(task(), task())

        return Effect.promise(run)


def _always(effect: Any_) -> Callable[..., Any_]:
    return lambda *_: effect


def _then(first: Any_, second: Any_) -> Any_:
    return first.flat_map(_always(second))


def _recovered(first: Any_, second: Any_) -> Any_:
    return first.catch(_always(second))


def _restored(inner: Any_) -> Any_:
    return Effect.uninterruptible_mask(
        lambda restore: restore(inner).exit().flat_map(_always(fb.sleep(1)))
    )


def _forked_and_joined(child: Any_, rest: Any_, *, immediate: bool) -> Any_:
    fork = child.fork_child(start_immediately=immediate)
    return fork.flat_map(lambda fiber: _then(rest, fiber.join()))


def _forked_and_interrupted(child: Any_, *, immediate: bool) -> Any_:
    return child.fork_child(start_immediately=immediate).flat_map(lambda fiber: fiber.interrupt())


def _forked_in_a_scope(child: Any_, rest: Any_) -> Any_:
    return fb.scoped(child.fork_scoped().flat_map(lambda fiber: _then(rest, fiber.exit())))


def _closed_by_a_member(member: Any_, rest: Any_) -> Any_:
    def run() -> Any_:
        scope = fb.Scope("parallel")
        closer = _then(rest, scope.close()).fork_in(scope)
        both = member.fork_in(scope, start_immediately=True).zip(closer)
        return both.flat_map(fb.Fiber.await_all).ensuring(Effect.suspend(scope.close))

    return Effect.suspend(run)


def _resumed_later(outcome: Any_, cleanup: Any_) -> Any_:
    def register(resume: Callable[[Any_], None]) -> Any_:
        asyncio.get_running_loop().call_soon(resume, outcome)
        return cleanup

    return Effect.callback(register)


async def run_one(seed: int) -> None:
    loop = asyncio.get_running_loop()
    escaped: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _loop, context: escaped.append(context))
    clock = TestClock()
    runtime = fb.Runtime(clock=clock)
    trees = Trees(seed, clock)
    pick = trees.random
    # Something to interrupt before the first root is there.
    trees.roots.append(runtime.run_fork(Effect.never()))
    for _ in range(2):
        trees.roots.append(runtime.run_fork(trees.tree(pick.randrange(2, 6))))
    for step in range(pick.randrange(1, 8)):
        if pick.random() < 0.5:
            await runtime.run(clock.adjust(pick.choice([0, 1, 2])))
        else:
            await asyncio.sleep(0)
        target = pick.choice(trees.roots)
        how = pick.randrange(5)
        if how == 0:
            target.interrupt_unsafe(by=100 + step)
        elif how == 1:
            target.interrupt_unsafe(by=100 + step, again=True)
        elif how == 2:
            target.cancel()
        elif how == 3:
            live: list[Any] = list(queue_of(loop).live)
            if live:
                pick.choice(live).interrupt_unsafe(by=900)
    for root in trees.roots:
        root.interrupt_unsafe(by=1)
    await runtime.run(clock.adjust(100))
    without_exit = [root for root in trees.roots if root.poll() is None]
    await runtime.dispose()
    for _ in range(5):
        await asyncio.sleep(0)
    queue = queue_of(loop)

    assert without_exit == [], f"seed {seed}"
    assert not queue.live, f"seed {seed}: {fb.dump()}"
    assert not queue.ready, f"seed {seed}"
    assert not queue.turn, f"seed {seed}"
    assert trees.acquired == trees.released, f"seed {seed}"
    assert escaped == [], f"seed {seed}"


@pytest.mark.parametrize("block", range(BLOCKS))
def test_whatever_is_interrupted_everything_ends_and_is_released(block: int) -> None:
    """Each exit is there, each finalizer ran once, nothing is left, nothing escapes the loop."""
    fb.set_unhandled_failure_hook(lambda _fiber, _cause: None)
    try:
        for seed in range(block * SEEDS_IN_A_BLOCK, (block + 1) * SEEDS_IN_A_BLOCK):
            asyncio.run(run_one(seed))
    finally:
        gc.collect()  # what was not looked at is told here, not in a later test
        fb.set_unhandled_failure_hook(None)
