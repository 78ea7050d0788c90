"""A task cancelled in the very tick in which it got something loses nothing of it.

The loop is stepped: the cancel comes before, in and after the tick in which the fiber behind the
task has taken what the task has not been given yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from returns.maybe import Some

import fibers as fb
from fibers import Effect, PubSub, Queue, Scope, Semaphore

TICKS = range(6)
TAKES: dict[str, Callable[[Queue[int, fb.Done]], Effect[Any, Any]]] = {
    "take": lambda q: q.take(),
    "take_n": lambda q: q.take_n(2),
    "take_all": lambda q: q.take_all(),
}
HOSTS = ["plain", "hosted"]


def start(host: str, work: Awaitable[Any], scope: Scope) -> asyncio.Task[Any]:
    """A task that awaits ``work``: asyncio's own, or one of the task factory."""

    async def body() -> Any:
        return await work

    if host == "plain":
        return asyncio.get_running_loop().create_task(body())
    task: asyncio.Task[Any] = fb.task_factory(scope=scope)(asyncio.get_running_loop(), body())
    return task


async def cancelled_after(
    ticks: int, host: str, work: Awaitable[Any], then: Callable[[], Any]
) -> Any:
    """What the task gave that awaited ``work``, cancelled so many ticks after ``then``; None if it
    was cancelled.
    """
    scope = Scope("parallel")
    task = start(host, work, scope)
    for _ in range(3):
        await asyncio.sleep(0)
    then()
    for _ in range(ticks):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    await scope.close()
    return None if task.cancelled() else task.result()


@pytest.mark.spec("PD12")
@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("how", TAKES)
async def test_what_a_cancelled_task_took_is_at_the_head_of_the_queue_again(
    how: str, host: str
) -> None:
    outcomes: set[bool] = set()
    for ticks in TICKS:
        queue: Queue[int, fb.Done] = Queue.unbounded()

        def offer(queue: Queue[int, fb.Done] = queue) -> None:
            for n in (1, 2, 3):
                queue.offer_unsafe(n)

        got = await cancelled_after(ticks, host, TAKES[how](queue), offer)

        taken = [] if got is None else [got] if isinstance(got, int) else got
        outcomes.add(got is None)
        assert taken + await queue.clear() == [1, 2, 3], f"after {ticks} ticks"
    assert outcomes == {True, False}


@pytest.mark.spec("PD12")
async def test_it_is_there_again_also_in_a_queue_that_it_was_the_last_of() -> None:
    queue: Queue[int, fb.Done] = Queue.unbounded()
    first = start("plain", queue.take(), Scope())
    await asyncio.sleep(0)
    queue.offer_unsafe(1)
    queue.end_unsafe()
    await asyncio.sleep(0)

    first.cancel()
    await asyncio.wait([first])

    assert first.cancelled()
    assert await queue.take() == 1
    with pytest.raises(fb.Done):
        await queue.take()


@pytest.mark.spec("PD12")
async def test_a_queue_that_was_shut_down_meanwhile_drops_it() -> None:
    queue: Queue[int, fb.Done] = Queue.unbounded()
    task = start("plain", queue.take(), Scope())
    await asyncio.sleep(0)
    queue.offer_unsafe(1)
    await asyncio.sleep(0)
    queue.shutdown_unsafe()

    task.cancel()
    await asyncio.wait([task])

    assert task.cancelled()
    assert queue.size_unsafe() == 0


@pytest.mark.spec("PD12")
@pytest.mark.parametrize("host", HOSTS)
async def test_what_a_cancelled_task_took_of_a_subscription_is_there_again(host: str) -> None:
    for ticks in TICKS:
        hub: PubSub[int] = PubSub.unbounded()

        @fb.effect
        async def use(hub: PubSub[int] = hub, ticks: int = ticks) -> None:
            own = await hub.subscribe()
            got = await cancelled_after(
                ticks, host, own.take(), lambda: [hub.publish_unsafe(n) for n in (1, 2)]
            )

            left = [] if got is None else [got]
            while isinstance(item := own.poll_unsafe(), Some):
                left.append(item.unwrap())
            assert left == [1, 2], f"after {ticks} ticks"

        await fb.scoped(use())


@pytest.mark.spec("PD12")
@pytest.mark.parametrize("host", HOSTS)
async def test_permits_that_a_cancelled_task_took_are_free_again(host: str) -> None:
    for ticks in TICKS:
        permits = Semaphore(2)
        permits.take_unsafe(2)

        def release(permits: Semaphore = permits) -> int:
            return permits.release_unsafe(2)

        got = await cancelled_after(ticks, host, permits.take(2), release)

        assert permits.available_unsafe() == (2 if got is None else 0), f"after {ticks} ticks"


@pytest.mark.spec("PD12")
async def test_what_a_body_took_before_it_ended_is_the_bodys() -> None:
    """It may have done something with it: given back, it would be there twice."""
    queue: Queue[int, fb.Done] = Queue.unbounded()
    seen: list[int] = []

    @fb.effect(raises=fb.Done)
    async def body() -> int:
        item = await queue.take()
        seen.append(item)
        return item

    got = await cancelled_after(1, "plain", body(), lambda: queue.offer_unsafe(1))

    assert got is None
    assert seen == [1]
    assert queue.size_unsafe() == 0


@pytest.mark.spec("PD12")
@pytest.mark.parametrize("host", HOSTS)
async def test_a_pooled_item_of_a_cancelled_task_is_lent_again(host: str) -> None:
    for ticks in TICKS:

        async def use(ticks: int = ticks) -> None:
            pool = await fb.Pool.make(Effect.succeed("item"), size=1)
            lease = Scope()
            await lease.provide(pool.get())
            mine = Scope()

            def hand_back() -> None:
                fb.run_fork(lease.close())

            await cancelled_after(ticks, host, mine.use(pool.get()), hand_back)

            assert await fb.scoped(pool.get()).timeout(1) == "item", f"after {ticks} ticks"

        await fb.scoped(fb.effect(use)())
