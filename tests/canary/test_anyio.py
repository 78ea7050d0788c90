"""Canaries: what anyio reads of a task, by which its groups and scopes work in a fiber (AT21)."""

from __future__ import annotations

import asyncio
import weakref
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread

import fibers as fb
from fibers import Effect
from fibers.loop.inner_task import InnerTask
from tests.canary.kit import pins, read_of_task
from tests.probes.kit_f import inner_task, is_face_of, running_fiber


async def cancels_what_is_suspended() -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(anyio.sleep_forever)
        await anyio.lowlevel.checkpoint()
        group.cancel_scope.cancel()


async def asks_for_the_root_task() -> None:
    await anyio.to_thread.run_sync(int)


@pins("_must_cancel", "_fut_waiter", by="loop/inner_task.py, what others read of a task")
def test_anyio_looks_whether_a_task_waits_and_whether_it_is_being_cancelled() -> None:
    """It cancels again and again, but not a task that is about to be cancelled anyway."""
    read = read_of_task(cancels_what_is_suspended)

    assert {"cancel", "cancelling"} & read
    assert hasattr(InnerTask, "_must_cancel")
    assert hasattr(InnerTask, "_fut_waiter")


@pins("_callbacks", by="fiber.py and loop/inner_task.py, _callbacks")
async def test_anyios_search_for_its_root_task_reads_the_callbacks_of_every_task() -> None:
    """Pairs of a function and a Context, of fibers too."""
    fiber = fb.run_fork(Effect.never())
    fiber.add_done_callback(lambda _: None)
    ((fn, context),) = fiber._callbacks
    assert callable(fn)
    assert context is None or context is not fiber
    assert await anyio.to_thread.run_sync(lambda: 5) == 5
    fiber.interrupt_unsafe()


@pins("_task_states", by="loop/inner_task.py, hash, == and weak references")
async def test_anyio_keeps_what_it_knows_of_a_task_in_a_weak_dict() -> None:
    """Under every mask the fiber is one key of it, as long as it lives."""
    seen = weakref.WeakKeyDictionary[Any, int]()

    async def under_a_mask() -> bool:
        return seen[inner_task()] == 1 and is_face_of(inner_task(), running_fiber())

    async def body() -> bool:
        task = inner_task()
        seen[task] = 1
        return await Effect.promise(under_a_mask).uninterruptible()

    assert await fb.run_fork(Effect.promise(body))


@pins("message", by="cause.py, TaskCancel; loop/inner_task.py, _make_cancelled_error")
async def test_anyio_knows_its_own_cancels_by_their_message() -> None:
    """Which therefore has to arrive as it was given."""
    messages = list[object]()

    async def body() -> None:
        with anyio.CancelScope() as scope:
            scope.cancel()
            try:
                await anyio.sleep_forever()
            except asyncio.CancelledError as exc:
                messages.append(exc.args[0])
                raise
        assert scope.cancelled_caught

    await fb.run_fork(Effect.promise(body))

    assert str(messages[0]).startswith("Cancelled ")
