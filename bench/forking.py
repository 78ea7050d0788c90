"""One fiber at a time: fork it, wait for it, fork the next."""

from __future__ import annotations

import asyncio

import fibers as fb
from bench.measure import MANY_ROUNDS, Row, cpu_us, in_fiber, in_task

VALUE = 1


async def nop() -> int:
    """A body that never suspends: the same function for fibers and for tasks."""
    return VALUE


async def hop() -> int:
    """A body that suspends once and gives the loop a turn."""
    await asyncio.sleep(0)
    return VALUE


nop_effect = fb.effect(nop)
hop_effect = fb.effect(hop)


def check(given: int) -> None:
    """Stop the benchmark where the work was not done."""
    if given != VALUE:
        raise RuntimeError(f"the work gave {given!r}, not {VALUE!r}: its time means nothing")


# ---------------------------------------------------------------------------- asyncio


async def task_and_await(n: int) -> float:
    """create_task, await; the body never suspends."""
    value = 0
    started = cpu_us()
    for _ in range(n):
        value = await asyncio.create_task(nop())
    took = cpu_us() - started
    check(value)
    return took


async def hopping_task_and_await(n: int) -> float:
    """create_task, await; the body suspends once."""
    value = 0
    started = cpu_us()
    for _ in range(n):
        value = await asyncio.create_task(hop())
    took = cpu_us() - started
    check(value)
    return took


# ---------------------------------------------------------------------------- at the edge


async def _run_fork_and_poll(n: int) -> float:
    exit: fb.Exit[int, Exception] | None = None
    started = cpu_us()
    for _ in range(n):
        exit = fb.run_fork(nop_effect()).poll()
    took = cpu_us() - started
    check(0 if exit is None else exit.unwrap())
    return took


async def _scope_fork_and_poll(n: int) -> float:
    exit: fb.Exit[int, Exception] | None = None
    async with fb.Scope() as scope:
        started = cpu_us()
        for _ in range(n):
            exit = scope.fork(nop_effect(), start_immediately=True).poll()
        took = cpu_us() - started
    check(0 if exit is None else exit.unwrap())
    return took


# ---------------------------------------------------------------------------- inside a fiber


async def _immediate(n: int) -> float:
    value = 0
    started = cpu_us()
    for _ in range(n):
        value = await (await nop_effect().fork_child(start_immediately=True))
    took = cpu_us() - started
    check(value)
    return took


async def _deferred(n: int) -> float:
    value = 0
    started = cpu_us()
    for _ in range(n):
        value = await (await nop_effect().fork_child())
    took = cpu_us() - started
    check(value)
    return took


async def _hop_immediate(n: int) -> float:
    value = 0
    started = cpu_us()
    for _ in range(n):
        value = await (await hop_effect().fork_child(start_immediately=True))
    took = cpu_us() - started
    check(value)
    return took


async def _hop_deferred(n: int) -> float:
    value = 0
    started = cpu_us()
    for _ in range(n):
        value = await (await hop_effect().fork_child())
    took = cpu_us() - started
    check(value)
    return took


async def _await_body(n: int) -> float:
    value = 0
    started = cpu_us()
    for _ in range(n):
        value = await nop_effect()
    took = cpu_us() - started
    check(value)
    return took


async def _await_value(n: int) -> float:
    value = 0
    started = cpu_us()
    for _ in range(n):
        value = await fb.Effect.succeed(VALUE)
    took = cpu_us() - started
    check(value)
    return took


_TASK = "create_task + await"
_SIZE = 2_000

EDGE = [
    Row(
        "edge-run-fork",
        "run_fork of a body that never suspends, polled at the edge",
        "us per fork",
        _SIZE,
        in_task(_run_fork_and_poll),
        _TASK,
        in_task(task_and_await),
        bar=0.45,
        aim=0.25,
        rounds=MANY_ROUNDS,
    ),
    Row(
        "edge-scope-fork",
        "Scope.fork of such a body, start_immediately, polled at the edge",
        "us per fork",
        _SIZE,
        in_task(_scope_fork_and_poll),
        _TASK,
        in_task(task_and_await),
        bar=0.45,
        aim=0.25,
        rounds=MANY_ROUNDS,
    ),
]

ONE_BY_ONE = [
    Row(
        "join-immediate",
        "fork_child + join one by one in a fiber, immediate",
        "us per fork",
        _SIZE,
        in_fiber(_immediate),
        _TASK,
        in_task(task_and_await),
        bar=0.5,
        aim=0.25,
        rounds=MANY_ROUNDS,
    ),
    Row(
        "join-deferred",
        "fork_child + join one by one in a fiber, deferred",
        "us per fork",
        _SIZE,
        in_fiber(_deferred),
        _TASK,
        in_task(task_and_await),
        bar=0.6,
        aim=0.35,
        rounds=MANY_ROUNDS,
    ),
    Row(
        "hop-immediate",
        "fork_child + one sleep(0) + join, immediate",
        "us per fork",
        _SIZE,
        in_fiber(_hop_immediate),
        "the same with a task",
        in_task(hopping_task_and_await),
        bar=0.9,
        aim=0.65,
        rounds=MANY_ROUNDS,
    ),
    Row(
        "hop-deferred",
        "fork_child + one sleep(0) + join, deferred",
        "us per fork",
        _SIZE,
        in_fiber(_hop_deferred),
        "the same with a task",
        in_task(hopping_task_and_await),
        bar=0.9,
        aim=0.65,
        rounds=MANY_ROUNDS,
    ),
]

AWAITED = [
    Row(
        "await-body",
        "a body that never suspends, awaited in a body",
        "us per await",
        _SIZE,
        in_fiber(_await_body),
        _TASK,
        in_task(task_and_await),
        bar=0.2,
        aim=0.08,
        rounds=MANY_ROUNDS,
    ),
    Row(
        "await-value",
        "Effect.succeed, awaited in a body",
        "us per await",
        _SIZE,
        in_fiber(_await_value),
        _TASK,
        in_task(task_and_await),
        bar=0.2,
        aim=0.08,
        rounds=MANY_ROUNDS,
    ),
]
