"""TestClock: time that moves when the test says so, and not while something still works."""

from __future__ import annotations

import asyncio
import gc
import math
import threading
import weakref
from datetime import timedelta
from typing import Any

import pytest
from returns.result import Success

import fibers as fb
import fibers.testing.clock as kit_clock
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


async def test_a_sleep_on_a_clock_that_nobody_moves_is_warned_of(
    clock: TestClock, rt: fb.Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once: such a test hangs, and this is what its log says."""
    monkeypatch.setattr(kit_clock, "UNMOVED_SECONDS", 0.01)
    loop = asyncio.get_running_loop()
    warned = asyncio.Event()
    texts = list[str]()

    def note(text: str, *args: object) -> None:
        texts.append(text % args)
        warned.set()

    monkeypatch.setattr(kit_clock._log, "warning", note)
    begin = loop.time()
    fibers = [rt.run_fork(fb.sleep(seconds)) for seconds in (90, 60)]
    await warned.wait()

    [text] = texts
    assert text.startswith(f"fiber #{fibers[1].id} waits for sleep(60) on a TestClock")
    assert "clock.adjust" in text
    assert loop.time() - begin >= 0.01
    await rt.run(clock.adjust(90))


async def test_a_clock_that_was_moved_is_not_warned_of(
    clock: TestClock, rt: fb.Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is one whose sleeper is gone: the next sleep counts."""
    armed = list[float]()
    real = asyncio.get_running_loop().call_later

    def call_later(seconds: float, *args: Any, **options: Any) -> Any:
        armed.append(seconds)
        return real(seconds, *args, **options)

    monkeypatch.setattr(asyncio.get_running_loop(), "call_later", call_later)
    fiber = rt.run_fork(fb.sleep(60))
    first = clock._warning
    assert first is not None
    await fiber.interrupt()
    clock._warn()
    fiber = rt.run_fork(fb.sleep(60))
    second = clock._warning
    await rt.run(clock.adjust(30))
    rt.run_fork(fb.sleep(1))

    assert second is not None
    assert second.cancelled()
    assert armed.count(kit_clock.UNMOVED_SECONDS) == 2
    await rt.run(clock.adjust(30))
    assert fiber.done()


async def test_sleeps_that_were_interrupted_are_not_kept(clock: TestClock, rt: fb.Runtime) -> None:
    """A test may interrupt many without moving time; those who still sleep do."""
    kept = rt.run_fork(fb.sleep(60))

    @fb.effect
    async def body() -> None:
        for _ in range(1000):
            fiber = await fb.sleep(30).fork_child(start_immediately=True)
            await fiber.interrupt()

    await rt.run(body())

    assert len(clock._sleeps) < 100
    assert "1 asleep" in repr(clock)
    await rt.run(clock.adjust(60))
    assert kept.poll() == Success(None)
    assert clock._sleeps == []


async def test_a_clock_does_not_hold_who_was_interrupted(clock: TestClock, rt: fb.Runtime) -> None:
    fiber = rt.run_fork(fb.sleep(60))
    await fiber.interrupt()
    gone = weakref.ref(fiber)
    del fiber
    gc.collect()

    assert gone() is None
