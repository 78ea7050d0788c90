"""Ending many sleepers: each asked to end, all awaited.

Every side is timed until the loop has had one more turn: it is then that asyncio throws the timers
of cancelled sleeps away, and a side that ends within the call must pay for that too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

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


def _interrupt(sleeper: Callable[[], fb.Effect[Any]]) -> Work:
    async def work(n: int) -> float:
        fibers = [await sleeper().fork_detach(start_immediately=True) for _ in range(n)]
        started = cpu_us()
        await fb.Fiber.interrupt_all(fibers)
        await asyncio.sleep(0)
        took = cpu_us() - started
        _check(all(fiber.cancelled() for fiber in fibers))
        return took

    return work


def _interrupt_unsafe(sleeper: Callable[[], fb.Effect[Any]]) -> Work:
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


def _close(sleeper: Callable[[], fb.Effect[Any]], strategy: str) -> Work:
    async def work(n: int) -> float:
        scope = fb.Scope("parallel" if strategy == "parallel" else "sequential")
        fibers = [await sleeper().fork_in(scope, start_immediately=True) for _ in range(n)]
        started = cpu_us()
        await scope.close()
        await asyncio.sleep(0)
        took = cpu_us() - started
        _check(all(fiber.cancelled() for fiber in fibers))
        return took

    return work


_VERSUS = "Task.cancel + wait"
_SIZE = 10_000
X=[]
for nm,s in (("asleep",doze_effect),("fbsleep body",_doze_here_effect),("effect",_sleep_effect)):
    for mode,w in (("all",_interrupt(s)),("unsafe",_interrupt_unsafe(s)),("close par",_close(s,"parallel")),("close seq",_close(s,"s"))):
        X.append(Row(nm+mode,nm+" "+mode,"us per fiber",_SIZE,in_fiber(w),_VERSUS,in_task(_cancel_and_wait)))
