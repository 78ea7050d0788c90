"""Bytes of a fiber that waits, and what ended fibers leave behind."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from typing import Any

import fibers as fb
from bench.forking import nop_effect
from bench.measure import Row, Work, in_fiber, in_task

_HOUR_S = 3600.0
_SETTLING_FORKS = 1_000


class _Traced:
    """Bytes allocated inside the block and still alive at its end."""

    used: int = 0


@contextmanager
def _traced() -> Generator[_Traced]:
    # Nothing is collected: a cycle that only the collector could free counts as alive.
    traced = _Traced()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        yield traced
        after, _ = tracemalloc.get_traced_memory()
        traced.used = after - before
    finally:
        tracemalloc.stop()


# ---------------------------------------------------------------------------- suspended
# A waiter's own future counts on both sides, as what it waits for has to be somewhere.


async def _wait() -> None:
    await asyncio.get_running_loop().create_future()


async def _doze() -> None:
    await asyncio.sleep(_HOUR_S)


_wait_effect = fb.effect(_wait)


def _tasks(body: Callable[[], Coroutine[Any, Any, None]]) -> Work:
    async def work(n: int) -> float:
        with _traced() as traced:
            tasks = [asyncio.create_task(body()) for _ in range(n)]
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        return traced.used

    return work


def _fibers(eff: Callable[[], fb.Effect[Any]]) -> Work:
    async def work(n: int) -> float:
        with _traced() as traced:
            fibers = [await eff().fork_detach(start_immediately=True) for _ in range(n)]
            await asyncio.sleep(0)
        await fb.Fiber.interrupt_all(fibers)
        return traced.used

    return work


async def _in_scope(n: int) -> float:
    async with fb.Scope() as scope:
        with _traced() as traced:
            fibers = [await _wait_effect().fork_in(scope, start_immediately=True) for _ in range(n)]
            await asyncio.sleep(0)
        await fb.Fiber.interrupt_all(fibers)
    return traced.used


# ---------------------------------------------------------------------------- ended


async def _left_behind(n: int) -> float:
    async with fb.Scope() as scope:

        async def fork_and_join(times: int) -> None:
            for _ in range(times):
                await (await nop_effect().fork_in(scope))

        await fork_and_join(_SETTLING_FORKS)
        with _traced() as traced:
            await fork_and_join(n)
            held = scope.finalizer_count
    if held:
        raise RuntimeError(f"the scope still holds {held} of the fibers that have ended")
    return traced.used


_SIZE = 5_000

BYTES = [
    Row(
        "bytes-body",
        "suspended fiber: a body on a future of its own",
        "bytes per fiber",
        _SIZE,
        in_fiber(_fibers(_wait_effect)),
        "task on its own future",
        in_task(_tasks(_wait)),
        bar=1.25,
        aim=1.0,
    ),
    Row(
        "bytes-scope",
        "suspended fiber in a scope: a body on a future of its own",
        "bytes per fiber",
        _SIZE,
        in_fiber(_in_scope),
        "task on its own future",
        in_task(_tasks(_wait)),
        bar=1.9,
        aim=1.3,
    ),
    Row(
        "bytes-effect",
        "suspended fiber: the effect never()",
        "bytes per fiber",
        _SIZE,
        in_fiber(_fibers(fb.Effect.never)),
        "task on its own future",
        in_task(_tasks(_wait)),
        bar=0.7,
        aim=0.6,
    ),
    Row(
        "bytes-effect-sleep",
        "suspended fiber: a sleep effect, timer included",
        "bytes per fiber",
        _SIZE,
        in_fiber(_fibers(lambda: fb.sleep(_HOUR_S))),
        "task in asyncio.sleep",
        in_task(_tasks(_doze)),
        bar=0.7,
        aim=0.6,
    ),
]

LEFT = [
    Row(
        "left-behind",
        "{n} forks that ended, in a scope still open",
        "bytes left per fork",
        100_000,
        in_fiber(_left_behind),
        rounds=1,
        warm_ups=0,  # it settles by itself
        loop_matters=False,
    ),
]
