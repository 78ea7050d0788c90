"""PD13, PD8: with the collector off, an ended fiber is gone and its failure was told at once."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from typing import TYPE_CHECKING, Any

import pytest

import fibers as fb
from fibers import Effect
from tests.regressions.test_interrupts import turns

if TYPE_CHECKING:
    from collections.abc import Callable, Generator


@contextlib.contextmanager
def collector_off() -> Generator[None, None, None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def raising() -> None:
    raise ValueError("in a callback")


async def failing_task() -> None:
    raise ValueError("in a task")


async def group() -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(failing_task())


async def late() -> None:
    async with asyncio.timeout(0):
        await asyncio.get_running_loop().create_future()


async def after_a_sleep() -> None:
    await fb.sleep(0.001)
    raise ValueError("after a sleep")


async def with_a_handled_error() -> None:
    with contextlib.suppress(ValueError):
        await Effect.fail(ValueError("handled"))


async def with_a_restored_region() -> None:
    with fb.uninterruptible() as restore:
        await Effect.yield_now()
        with restore():
            await Effect.never()


FAILING: dict[str, Callable[[], Effect[Any, Any]]] = {
    "a callback": lambda: Effect.sync(raising),
    "what registers a callback": lambda: Effect.callback(lambda _resume: raising()),
    "a callback, then a finalizer": lambda: Effect.sync(raising).ensuring(Effect.yield_now()),
    "a body after a sleep": lambda: Effect.promise(after_a_sleep),
    "a group of asyncio's": lambda: Effect.promise(group),
    "a timeout of asyncio's": lambda: Effect.promise(late),
}


@pytest.mark.parametrize("what", FAILING)
async def test_the_failure_of_an_unkept_fiber_is_told_at_once(what: str) -> None:
    """PD8: when the last reference goes; a cycle would put it off until a collection."""
    reported: list[str] = []
    fb.set_unhandled_failure_hook(lambda _fiber, cause: reported.append(str(cause)))
    try:
        with collector_off():
            fb.run_fork(FAILING[what]())
            await asyncio.sleep(0.005)
            await turns()
            told = len(reported)
    finally:
        gc.collect()
        fb.set_unhandled_failure_hook(None)

    assert told == 1


ENDING: dict[str, Callable[[], Effect[Any, Any]]] = {
    "a sleep": lambda: fb.sleep(0.001),
    "a handled error": lambda: Effect.promise(with_a_handled_error),
}


@pytest.mark.parametrize("what", ENDING)
async def test_an_ended_fiber_leaves_no_cycle(what: str) -> None:
    """PD13: the fiber is freed, and the collector finds nothing."""
    await fb.run_fork(ENDING[what]())  # warms caches
    with collector_off():
        gone = weakref.ref(fb.run_fork(ENDING[what]()))
        await asyncio.sleep(0.005)
        await turns()
        alive = gone() is not None
        found = gc.collect()

    assert not alive
    assert found == 0


async def test_a_fiber_interrupted_in_a_restored_part_leaves_no_cycle() -> None:
    """PD13: neither the region nor the record of what the body saw keeps it."""
    with collector_off():
        fiber = fb.run_fork(Effect.promise(with_a_restored_region))
        await turns()
        fiber.interrupt_unsafe()
        assert fiber.done()
        gone = weakref.ref(fiber)
        del fiber
        await turns()
        alive = gone() is not None

    assert not alive


async def test_a_cancelled_task_that_awaited_an_effect_leaves_no_cycle() -> None:
    """PD13, PD12: neither the task nor its root fiber is kept by the traceback."""
    fibers: list[weakref.ref[fb.Fiber[Any, Any]]] = []

    def seen() -> None:
        fiber = fb.current_fiber()
        assert fiber is not None
        fibers.append(weakref.ref(fiber))

    async def body() -> None:
        await Effect.sync(seen).flat_map(lambda _: Effect.never())

    with collector_off():
        task = asyncio.create_task(body())
        await turns()
        task.cancel()
        await asyncio.wait([task])
        gone = weakref.ref(task)
        del task
        await turns()
        alive = [gone() is not None, fibers[0]() is not None]

    assert alive == [False, False]


async def test_a_closed_child_scope_does_not_keep_its_parent() -> None:
    """SO5: it is out of the parent's order then, and who keeps it keeps it alone."""
    with collector_off():
        parent = fb.Scope()
        child = parent.fork_scope()
        gone = weakref.ref(parent)
        await child.close()
        del parent
        alive = gone() is not None

    assert child.state == "closed"
    assert not alive
