"""Ending many sleepers: each asked to end, all awaited.

Every side is timed until the loop has had one more turn: it is then that asyncio throws the timers
of cancelled sleeps away, and a side that ends within the call must pay for that too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Literal

import fibers as fb
from bench.measure import Row, Work, cpu_us, in_fiber, in_task

_HOUR_S = 3600.0


async def doze() -> None:
    """A body asleep in asyncio: the same function for fibers and for tasks."""
    await asyncio.sleep(_HOUR_S)


async def _doze_here() -> None:
    await fb.sleep(_HOUR_S)


doze_effect = fb.effect(doze)
_doze_here_effect = fb.effect(_doze_here)


def _sleep_effect() -> fb.Effect[None]:
    return fb.sleep(_HOUR_S)


def _check(ended: bool) -> None:
    if not ended:
        raise RuntimeError("a sleeper was not interrupted: the time means nothing")


async def _cancel_and_wait(n: int) -> float:
    tasks = [asyncio.create_task(doze()) for _ in range(n)]
    await asyncio.sleep(0)
    started = cpu_us()
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    await asyncio.sleep(0)
    took = cpu_us() - started
    _check(all(task.cancelled() for task in tasks))
    return took


def _interrupt_all(sleeper: Callable[[], fb.Effect[Any]]) -> Work:
    async def work(n: int) -> float:
        fibers = [await sleeper().fork_detach(start_immediately=True) for _ in range(n)]
        started = cpu_us()
        await fb.Fiber.interrupt_all(fibers)
        await asyncio.sleep(0)
        took = cpu_us() - started
        _check(all(fiber.cancelled() for fiber in fibers))
        return took

    return work


def _interrupt_each(sleeper: Callable[[], fb.Effect[Any]]) -> Work:
    async def work(n: int) -> float:
        fibers = [await sleeper().fork_detach(start_immediately=True) for _ in range(n)]
        started = cpu_us()
        for fiber in fibers:
            fiber.interrupt_unsafe()
        await fb.Fiber.await_all(fibers)
        await asyncio.sleep(0)
        took = cpu_us() - started
        _check(all(fiber.cancelled() for fiber in fibers))
        return took

    return work


def _close(
    sleeper: Callable[[], fb.Effect[Any]], strategy: Literal["sequential", "parallel"]
) -> Work:
    async def work(n: int) -> float:
        scope = fb.Scope(strategy)
        fibers = [await sleeper().fork_in(scope, start_immediately=True) for _ in range(n)]
        started = cpu_us()
        await scope.close()
        await asyncio.sleep(0)
        took = cpu_us() - started
        _check(all(fiber.cancelled() for fiber in fibers))
        return took

    return work


def _row(key: str, what: str, work: Work, *, bar: float, aim: float) -> Row:
    return Row(
        key,
        what,
        "us per fiber",
        10_000,
        in_fiber(work),
        "Task.cancel + wait",
        in_task(_cancel_and_wait),
        bar=bar,
        aim=aim,
    )


INTERRUPTS = [
    _row(
        "interrupt-bodies",
        "interrupt_all of {n} bodies in asyncio.sleep",
        _interrupt_all(doze_effect),
        bar=1.3,
        aim=1.0,
    ),
    _row(
        "interrupt-bodies-clock",
        "interrupt_all of {n} bodies in fb.sleep",
        _interrupt_all(_doze_here_effect),
        bar=1.3,
        aim=1.0,
    ),
    _row(
        "interrupt-bodies-each",
        "interrupt_unsafe of {n} bodies in asyncio.sleep, one by one",
        _interrupt_each(doze_effect),
        bar=1.3,
        aim=1.0,
    ),
    _row(
        "interrupt-effects",
        "interrupt_all of {n} sleep effects",
        _interrupt_all(_sleep_effect),
        bar=0.9,
        aim=0.6,
    ),
    _row(
        "interrupt-effects-each",
        "interrupt_unsafe of {n} sleep effects, one by one",
        _interrupt_each(_sleep_effect),
        bar=0.9,
        aim=0.6,
    ),
]

CLOSES = [
    _row(
        "close-bodies",
        "close of a parallel scope of {n} bodies in asyncio.sleep",
        _close(doze_effect, "parallel"),
        bar=1.6,
        aim=1.0,
    ),
    _row(
        "close-bodies-sequential",
        "close of a sequential scope of {n} bodies in asyncio.sleep",
        _close(doze_effect, "sequential"),
        bar=1.6,
        aim=1.0,
    ),
    _row(
        "close-effects",
        "close of a parallel scope of {n} sleep effects",
        _close(_sleep_effect, "parallel"),
        bar=1.2,
        aim=0.7,
    ),
    _row(
        "close-effects-sequential",
        "close of a sequential scope of {n} sleep effects",
        _close(_sleep_effect, "sequential"),
        bar=1.2,
        aim=0.7,
    ),
]
