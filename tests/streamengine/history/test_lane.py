"""Jobs off the loop: one at a time, in order."""

from __future__ import annotations

import asyncio
import contextvars
import sys
import threading
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import pytest

from streamengine.history.lane import Crew, Lane

from .kit import BOUND_SECONDS


async def test_jobs_run_in_the_order_in_which_they_were_given() -> None:
    lane, ran = Lane(), list[int]()

    await asyncio.gather(*(lane.run(partial(ran.append, number)) for number in range(200)))

    assert ran == list(range(200))


async def test_a_job_runs_off_the_loops_thread_and_its_result_comes_back() -> None:
    assert await Lane().run(threading.get_ident) != threading.get_ident()


async def test_what_a_job_raises_comes_back() -> None:
    error = OSError("no")

    def fail() -> None:
        raise error

    lane = Lane()
    with pytest.raises(OSError) as caught:
        await lane.run(fail)

    assert caught.value is error
    assert await lane.run(lambda: "next") == "next"


async def test_a_job_that_raises_what_no_future_takes_holds_up_nobodys_result() -> None:
    def stop() -> None:
        raise StopIteration("no more")

    lane = Lane()
    jobs = [lane.run(job) for job in (stop, lambda: "next")]
    both = asyncio.gather(*jobs, return_exceptions=True)
    failed, result = await asyncio.wait_for(both, BOUND_SECONDS)

    assert isinstance(failed, RuntimeError)
    assert isinstance(failed.__cause__, StopIteration)
    assert result == "next"


def test_each_of_two_loops_gets_its_own_results_however_their_threads_interleave() -> None:
    """The other loop asks between any two steps of this one."""
    crew, others = Crew(), list[object]()
    loop, other = asyncio.new_event_loop(), asyncio.new_event_loop()

    def step(frame: FrameType, _event: str, _arg: object) -> Callable[..., Any] | None:
        if frame.f_code is not Crew.post_of.__code__:
            return None
        frame.f_trace_opcodes = True
        sys.settrace(None)
        others.append(crew.post_of(other).loop)
        sys.settrace(step)
        return step

    before = sys.gettrace()
    sys.settrace(step)
    try:
        mine = crew.post_of(loop).loop
    finally:
        sys.settrace(before)
        loop.close()
        other.close()

    assert len(others) > 5
    assert set(others) == {other}
    assert mine is loop


async def test_jobs_of_one_lane_never_overlap() -> None:
    lane, inside, together = Lane(), set[int](), list[int]()

    def job(number: int) -> None:
        inside.add(number)
        together.append(len(inside))
        inside.remove(number)

    await asyncio.gather(*(lane.run(partial(job, number)) for number in range(50)))

    assert together == [1] * 50


async def test_a_busy_lane_does_not_hold_up_another() -> None:
    release = threading.Event()
    busy = asyncio.create_task(Lane().run(partial(release.wait, BOUND_SECONDS)))
    await asyncio.sleep(0)

    assert await Lane().run(lambda: "through") == "through"
    release.set()

    assert await busy


async def test_a_job_cancelled_before_its_turn_does_not_run() -> None:
    lane, release, ran = Lane(), threading.Event(), list[str]()
    first = asyncio.create_task(lane.run(partial(release.wait, BOUND_SECONDS)))
    cancelled = asyncio.create_task(lane.run(lambda: ran.append("cancelled")))
    last = asyncio.create_task(lane.run(lambda: ran.append("last")))
    await asyncio.sleep(0)

    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    release.set()
    await asyncio.gather(first, last)

    assert ran == ["last"]


async def test_a_job_cancelled_in_its_turn_ends_before_the_next_begins() -> None:
    lane, ran = Lane(), list[str]()
    begun, release = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def job() -> None:
        loop.call_soon_threadsafe(begun.set)
        release.wait(BOUND_SECONDS)
        ran.append("cancelled, but whole")

    cancelled = asyncio.create_task(lane.run(job))
    await begun.wait()
    cancelled.cancel()
    last = asyncio.create_task(lane.run(lambda: ran.append("last")))
    await asyncio.sleep(0)
    release.set()
    await last

    assert ran == ["cancelled, but whole", "last"]


async def test_a_job_sees_the_context_it_was_given_in() -> None:
    variable = contextvars.ContextVar("variable", default="outside")
    variable.set("inside")

    assert await Lane().run(variable.get) == "inside"


def test_a_loop_that_ends_waits_for_the_job_that_began() -> None:
    lane, ran = Lane(), list[str]()
    release = threading.Event()

    async def leave() -> None:
        begun, loop = asyncio.Event(), asyncio.get_running_loop()

        def job() -> None:
            loop.call_soon_threadsafe(begun.set)
            release.wait(BOUND_SECONDS)
            ran.append("last")

        task = asyncio.create_task(lane.run(job))
        await begun.wait()
        loop.call_soon(release.set)
        task.cancel()

    asyncio.run(leave())

    assert ran == ["last"]


def test_a_loop_whose_threads_have_ended_takes_no_job_and_the_lane_survives() -> None:
    lane = Lane()

    async def too_late() -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, int)
        await loop.shutdown_default_executor()
        with pytest.raises(RuntimeError):
            await lane.run(int)

    async def another_loop() -> int:
        return await lane.run(lambda: 5)

    asyncio.run(too_late())

    assert asyncio.run(another_loop()) == 5
