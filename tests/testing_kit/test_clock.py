"""TestClock: time that moves when the test says so, and not while something still works."""

from __future__ import annotations

import asyncio
import math
import threading
from datetime import timedelta

import pytest
from returns.result import Success

import fibers as fb
from fibers import Effect
from fibers.testing import TestClock, settle


@pytest.fixture
def clock() -> TestClock:
    return TestClock()


@pytest.fixture
def rt(clock: TestClock) -> fb.Runtime:
    return fb.Runtime(clock=clock)


async def test_set_time_wakes_what_is_due(clock: TestClock, rt: fb.Runtime) -> None:
    """It takes the time since the start."""
    log = list[float]()
    fiber = rt.run_fork(fb.sleep(60).map(lambda _: log.append(clock.now())))

    await rt.run(clock.set_time(timedelta(seconds=59)))
    before = list(log)
    await rt.run(clock.set_time(61))

    assert (before, log) == ([], [60.0])
    assert fiber.done()


async def test_set_time_may_go_back_but_monotonic_time_does_not(
    clock: TestClock, rt: fb.Runtime
) -> None:
    """A sleep that is under way waits for its time; ``now`` stands until that is passed again."""
    await rt.run(clock.set_time(100))
    fiber = rt.run_fork(fb.sleep(10))

    await rt.run(clock.set_time(50))
    now = clock.now()
    await rt.run(clock.adjust(59))
    before = fiber.poll()
    await rt.run(clock.adjust(1))

    assert now == 100.0
    assert before is None
    assert fiber.poll() == Success(None)


async def test_time_does_not_move_while_a_thread_works(clock: TestClock, rt: fb.Runtime) -> None:
    """Who waits for it may sleep next, inside the same adjust."""
    log, go = list[tuple[str, float]](), threading.Event()

    @fb.effect
    async def body() -> None:
        await fb.sleep(1)
        await asyncio.to_thread(go.wait, 10)
        log.append(("thread", clock.now()))
        await fb.sleep(1)
        log.append(("sleep", clock.now()))

    fiber = rt.run_fork(body())
    threading.Timer(0.05, go.set).start()
    await rt.run(clock.adjust(5))

    assert log == [("thread", 1.0), ("sleep", 2.0)]
    assert fiber.done()


async def test_settle_waits_for_a_thread_and_for_what_follows(clock: TestClock) -> None:
    """In a plain task too."""
    log, go = list[str](), threading.Event()
    await settle()

    @fb.effect
    async def body() -> None:
        await asyncio.to_thread(go.wait, 10)
        log.append("thread")
        await Effect.yield_now()
        log.append("afterwards")

    fiber = fb.run_fork(body())
    threading.Timer(0.05, go.set).start()
    await settle()

    assert log == ["thread", "afterwards"]
    assert fiber.done()


async def test_an_endless_sleep_is_never_due(clock: TestClock, rt: fb.Runtime) -> None:
    fiber = rt.run_fork(fb.sleep(math.inf))

    await rt.run(clock.adjust(1e6))

    assert fiber.poll() is None
    await rt.dispose()


async def test_it_says_what_it_holds(clock: TestClock, rt: fb.Runtime) -> None:
    rt.run_fork(fb.sleep(60))
    await rt.run(clock.adjust(1.5))

    assert repr(clock) == "<TestClock at 1.5 s, 1 asleep>"
    await rt.dispose()
