"""Many at once: fork them all, then wait for them all."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
from typing import Any

import anyio
import trio

import fibers as fb
from bench.forking import check, nop, nop_effect
from bench.measure import Row, cpu_us, in_fiber, in_task, in_trio

AIOJOBS_IS_HERE = importlib.util.find_spec("aiojobs") is not None


# ---------------------------------------------------------------------------- fibers


async def _detached(n: int) -> float:
    total = 0
    started = cpu_us()
    fibers = [await nop_effect().fork_detach() for _ in range(n)]
    for fiber in fibers:
        total += await fiber
    took = cpu_us() - started
    check(total // n)
    return took


async def _in_scope(n: int) -> float:
    """The opening and the close of the scope are part of the work, as a group's are."""
    total = 0
    started = cpu_us()
    async with fb.Scope() as scope:
        fibers = [await nop_effect().fork_in(scope) for _ in range(n)]
        for fiber in fibers:
            total += await fiber
    took = cpu_us() - started
    check(total // n)
    return took


# ---------------------------------------------------------------------------- the others


async def _tasks(n: int) -> float:
    total = 0
    started = cpu_us()
    tasks = [asyncio.create_task(nop()) for _ in range(n)]
    for task in tasks:
        total += await task
    took = cpu_us() - started
    check(total // n)
    return took


async def _task_group(n: int) -> float:
    started = cpu_us()
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(nop()) for _ in range(n)]
    total = sum([task.result() for task in tasks])
    took = cpu_us() - started
    check(total // n)
    return took


# What follows has no results to collect: these groups only wait.


async def _anyio_group(n: int) -> float:
    started = cpu_us()
    async with anyio.create_task_group() as group:
        for _ in range(n):
            group.start_soon(nop)
    return cpu_us() - started


async def _nursery(n: int) -> float:
    started = cpu_us()
    async with trio.open_nursery() as nursery:
        for _ in range(n):
            nursery.start_soon(nop)
    return cpu_us() - started


async def _aiojobs(n: int) -> float:
    # By name and late: it is no dependency, and where it is missing there are no types of it.
    module: Any = importlib.import_module("aiojobs")
    started = cpu_us()
    # Without a limit, as everywhere here; its default is 100 jobs at a time.
    async with module.Scheduler(limit=None) as scheduler:
        for _ in range(n):
            await scheduler.spawn(nop())
    return cpu_us() - started


_SIZE = 20_000

BATCHES = [
    Row(
        "batch-detached",
        "{n} forked, then joined: detached",
        "us per fork",
        _SIZE,
        in_fiber(_detached),
        "as many tasks",
        in_task(_tasks),
        bar=0.8,
        aim=0.45,
    ),
    Row(
        "batch-scope",
        "{n} forked, then joined: in a scope",
        "us per fork",
        _SIZE,
        in_fiber(_in_scope),
        "as many tasks",
        in_task(_tasks),
        bar=1.0,
        aim=0.6,
    ),
    Row(
        "batch-taskgroup",
        "{n} in a scope",
        "us per fork",
        _SIZE,
        in_fiber(_in_scope),
        "asyncio.TaskGroup",
        in_task(_task_group),
    ),
    Row(
        "batch-anyio",
        "{n} in a scope",
        "us per fork",
        _SIZE,
        in_fiber(_in_scope),
        "anyio task group",
        in_task(_anyio_group),
        bar=0.1,
        aim=0.06,
    ),
    Row(
        "batch-trio",
        "{n} in a scope",
        "us per fork",
        _SIZE,
        in_fiber(_in_scope),
        "trio nursery",
        in_trio(_nursery),
        bar=0.3,
        aim=0.2,
    ),
]

if AIOJOBS_IS_HERE:
    BATCHES.append(
        Row(
            "batch-aiojobs",
            "{n} in a scope",
            "us per fork",
            _SIZE,
            in_fiber(_in_scope),
            "aiojobs scheduler",
            in_task(_aiojobs),
            bar=0.05,
            aim=0.03,
        )
    )
