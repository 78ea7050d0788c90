"""What is told of fibers is bounded and names where they come from."""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
from collections.abc import Callable
from typing import Any

import pytest

import fibers as fb
from fibers import Effect, FiberMetrics, Scope, runtime
from fibers.loop.queue import queue_of
from fibers.testing import TestClock

MANY = 5000


@fb.effect
async def stubborn(done: asyncio.Event) -> None:
    with fb.uninterruptible():
        await done.wait()


@pytest.mark.spec("PD11")
async def test_what_run_leaves_is_told_of_a_few_and_counted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    done = asyncio.Event()
    left = [fb.run_fork(stubborn(done)) for _ in range(MANY)]

    await runtime.end_the_rest(queue_of(asyncio.get_running_loop()), 0, bound_seconds=0)
    told = capsys.readouterr().err.splitlines()
    done.set()
    await fb.Fiber.await_all(left)

    assert told[0] == f"run: {MANY} fiber(s) still alive after 0 s, left:"
    assert len(told) == 2 + runtime.LEFT_TOLD_FIBERS
    assert told[-1] == f"  and {MANY - runtime.LEFT_TOLD_FIBERS} more"


@pytest.mark.spec("PI10")
async def test_a_defect_of_one_refresh_is_told_and_the_next_comes_by_the_schedule(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = TestClock()
    rt = fb.Runtime(clock=clock)
    runs: list[int] = []

    @fb.effect
    async def acquire() -> int:
        runs.append(1)
        if len(runs) == 2:
            raise LookupError("no such thing")
        return len(runs)

    @fb.effect
    async def use() -> list[int]:
        settings = await fb.Resource.auto(acquire(), 10.0)
        seen: list[int] = []
        for _ in range(3):
            await clock.adjust(10)
            seen.append(await settings.get())
        return seen

    with caplog.at_level(logging.ERROR, "fibers"):
        assert await rt.run(fb.scoped(use())) == [1, 3, 4]
    await rt.dispose()

    [record] = caplog.records
    assert "Resource.auto: a refresh died" in record.getMessage()
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], LookupError)


@pytest.mark.spec("LY6")
async def test_tasks_of_the_factory_count_and_so_does_what_they_fork() -> None:
    async with Scope("parallel") as scope:
        create = fb.task_factory(scope=scope)
        loop = asyncio.get_running_loop()

        async def body(*, fail: bool) -> None:
            await Effect.succeed(1).fork_child(start_immediately=True)
            if fail:
                raise LookupError

        with FiberMetrics() as metrics:
            tasks = [create(loop, body(fail=fail)) for fail in (False, True)]
            await asyncio.wait(tasks)

        assert tasks[1].exception() is not None
        assert (metrics.started, metrics.succeeded, metrics.failed) == (4, 3, 1)


FORKING: dict[str, Callable[[Effect[Any]], Effect[Any, TimeoutError]]] = {
    "race": lambda e: fb.race(e, e),
    "race_all": lambda e: fb.race_all([e]),
    "race_first": lambda e: fb.race_first(e),
    "race_all_first": lambda e: fb.race_all_first([e]),
    "timeout": lambda e: e.timeout(100),
    "timeout_option": lambda e: e.timeout_option(100),
    "timeout_or_else": lambda e: e.timeout_or_else(100, lambda: Effect.succeed(None)),
    "all_": lambda e: fb.all_([e], concurrency=2),
    "for_each": lambda e: fb.for_each([1], lambda _: e, concurrency="unbounded"),
    "zip": lambda e: e.zip(e, concurrent=True),
}


@pytest.mark.parametrize("how", FORKING)
async def test_a_fiber_of_a_combinator_is_shown_as_forked_where_that_was_called(how: str) -> None:
    seen: list[str] = []

    @fb.effect
    async def look() -> None:
        fiber = fb.current_fiber()
        assert fiber is not None
        seen.append(fiber.forked_at)

    make = FORKING[how]
    await make(look())

    here = rf"{re.escape(__file__)}:{inspect.getsourcelines(make)[1]}"
    assert seen
    assert all(re.fullmatch(here, site) for site in seen), seen
