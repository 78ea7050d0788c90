"""Many fibers that stop waiting for one future: gone from it together, in the next turn."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest

import fibers as fb
from fibers import Effect


class Counting(asyncio.Future[int]):
    """A future that counts how often somebody looks through its callbacks."""

    looks = 0

    def remove_done_callback(self, fn: Callable[[Any], object], /) -> int:
        self.looks += 1
        return super().remove_done_callback(fn)


@pytest.mark.parametrize("count", [1, 2, 500])
async def test_they_leave_in_one_pass_and_the_others_stay(count: int) -> None:
    future = Counting()
    leaving = [fb.run_fork(Effect.promise(lambda: future)) for _ in range(count)]
    staying = [fb.run_fork(Effect.promise(lambda: future)) for _ in range(3)]
    for fiber in leaving:
        fiber.interrupt_unsafe()
    await asyncio.sleep(0)

    assert future.looks == 1
    future.set_result(7)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert [fiber.result() for fiber in staying] == [7, 7, 7]
    assert all(isinstance(fiber.poll(), fb.Failure) for fiber in leaving)


async def test_who_comes_back_in_the_same_turn_is_woken() -> None:
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    first = fb.run_fork(Effect.promise(lambda: future))
    first.interrupt_unsafe()
    second = fb.run_fork(Effect.promise(lambda: future))
    future.set_result(7)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert second.result() == 7
    assert isinstance(first.poll(), fb.Failure)


async def test_nothing_of_a_fiber_that_left_is_kept() -> None:
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    fibers = [fb.run_fork(Effect.promise(lambda: future)) for _ in range(5)]
    left = [weakref.ref(fiber) for fiber in fibers]
    while fibers:
        fibers.pop().interrupt_unsafe()
    await asyncio.sleep(0)
    gc.collect()
    assert [ref() for ref in left] == [None] * 5


def test_a_loop_that_ends_at_once_is_left_in_order() -> None:
    async def main() -> fb.Fiber[int]:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        fiber = fb.run_fork(Effect.promise(lambda: future))
        fiber.interrupt_unsafe()
        return fiber

    assert isinstance(asyncio.run(main()).poll(), fb.Failure)
