"""One step of one body: what a suspension and its resumption cost."""

from __future__ import annotations

import asyncio

from bench.measure import MANY_ROUNDS, Row, cpu_us, in_fiber, in_task

# The same two functions run in a fiber and in a task.


async def _sleep_zero(n: int) -> float:
    started = cpu_us()
    for _ in range(n):
        await asyncio.sleep(0)
    return cpu_us() - started


async def _future(n: int) -> float:
    loop = asyncio.get_running_loop()
    started = cpu_us()
    for _ in range(n):
        future: asyncio.Future[None] = loop.create_future()
        loop.call_soon(future.set_result, None)
        await future
    return cpu_us() - started


_SIZE = 4_000

STEPS = [
    Row(
        "step-sleep",
        "one step: sleep(0)",
        "us per step",
        _SIZE,
        in_fiber(_sleep_zero),
        "C task",
        in_task(_sleep_zero),
        bar=1.3,
        aim=1.1,
        rounds=MANY_ROUNDS,
    ),
    Row(
        "step-future",
        "one step: a future that the loop sets",
        "us per step",
        _SIZE,
        in_fiber(_future),
        "C task",
        in_task(_future),
        bar=1.2,
        aim=1.0,
        rounds=MANY_ROUNDS,
    ),
]
