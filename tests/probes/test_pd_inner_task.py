"""Probes PD11: the inner task, which is what ``current_task()`` gives inside a fiber, as a task."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from functools import partial
from typing import Any

import anyio
import pytest

import fibers as fb
from fibers import Effect
from tests.probes.kit_f import Boom, inner_task, new_gate, running_fiber, turns, wait_for

NAME: ContextVar[str] = ContextVar("NAME", default="outside")


@pytest.mark.spec("PD11")
async def test_it_answers_for_its_fiber_while_that_runs() -> None:
    """Loop, coroutine, Context, stack: what debuggers and libraries read of a task."""

    @fb.effect
    async def body() -> dict[str, Any]:
        NAME.set("inside")
        fiber = running_fiber()
        task: Any = inner_task()  # get_context is in no stub for 3.11
        return {
            "loop": task.get_loop() is asyncio.get_running_loop(),
            "coro": task.get_coro() is fiber.get_coro(),
            "name of the body": task.get_coro().__name__,
            "context": task.get_context().get(NAME),
            "stack": [frame.f_code.co_name for frame in task.get_stack()][:1],
            "done": (task.done(), task.cancelled()),
            "says": repr(task).startswith(f"<inner task of <Fiber #{fiber.id}"),
        }

    assert await body() == {
        "loop": True,
        "coro": True,
        "name of the body": "body",
        "context": "inside",
        "stack": ["body"],
        "done": (False, False),
        "says": True,
    }


async def kept_task(eff: Effect[Any, Any]) -> tuple[asyncio.Task[Any], fb.Fiber[Any, Any]]:
    """The inner task of a fiber that runs ``eff``, and the fiber, when it has ended."""
    kept = list[asyncio.Task[Any]]()
    keep = Effect.sync(lambda: kept.append(inner_task()))
    fiber = fb.run_fork(keep.flat_map(lambda _: eff)).ignore_failure()
    await fiber.exit()
    return kept[0], fiber


@pytest.mark.spec("PD11")
async def test_it_has_the_outcome_of_its_fiber() -> None:
    """A value."""
    task, fiber = await kept_task(Effect.succeed(5))

    assert task.done()
    assert (task.result(), task.exception(), task.cancelled()) == (5, None, False)
    assert fiber.result() == 5


@pytest.mark.spec("PD11")
async def test_it_has_the_very_error_of_its_fiber() -> None:
    """As a task of asyncio's."""
    boom = Boom()
    task, _fiber = await kept_task(Effect.fail(boom))

    assert task.exception() is boom
    with pytest.raises(Boom):
        task.result()


@pytest.mark.spec("PD11")
async def test_an_interrupted_fibers_task_is_cancelled() -> None:
    """There is no other word for it in asyncio."""
    task, _fiber = await kept_task(Effect.interrupt())

    assert task.cancelled()
    with pytest.raises(asyncio.CancelledError):
        task.result()
    with pytest.raises(asyncio.CancelledError):
        task.exception()


@pytest.mark.spec("PD11")
async def test_its_done_callbacks_are_called_and_can_be_removed() -> None:
    """By the loop, when the fiber has ended."""
    called, gate = list[str](), new_gate()

    def first(_: object) -> None:
        called.append("first")

    def second(_: object) -> None:
        called.append("second")

    @fb.effect
    async def body() -> int:
        task = inner_task()
        task.add_done_callback(first)
        task.add_done_callback(second)
        removed = task.remove_done_callback(first)
        await gate
        return removed

    fiber = fb.run_fork(body())
    gate.set_result(1)
    removed = await fiber
    await turns(3)

    assert removed == 1
    assert called == ["second"]


@pytest.mark.spec("PD11")
async def test_who_awaits_it_gets_the_fibers_value() -> None:
    """A plain task that was handed it, as by a library that keeps ``current_task()``."""
    kept, gate = list[asyncio.Task[Any]](), new_gate()

    @fb.effect
    async def body() -> int:
        kept.append(inner_task())
        return await wait_for(gate)

    async def waits() -> int:
        value: int = await kept[0]
        return value

    fiber = fb.run_fork(body())
    early = asyncio.ensure_future(waits())
    await turns(3)
    gate.set_result(5)

    assert await early == 5
    assert await waits() == 5
    assert fiber.done()


@pytest.mark.spec("PD13")
async def test_it_outlives_its_fiber_as_a_shell() -> None:
    """It keeps nothing: a cancel is refused, and what it could say of the fiber is gone."""
    task, fiber = await kept_task(Effect.succeed(5))
    del fiber

    assert not task.cancel()
    with pytest.raises(RuntimeError, match="has ended and is gone"):
        task.get_coro()


@pytest.mark.spec("PD11")
async def test_neither_face_lets_others_decide_how_the_fiber_ends() -> None:
    """As a task of asyncio's refuses it."""
    task = list[Any]()
    keep = Effect.sync(lambda: task.append(inner_task()))
    fiber: Any = fb.run_fork(keep.flat_map(lambda _: Effect.never()))

    for face in (task[0], fiber):
        with pytest.raises(RuntimeError, match="does not support set_result"):
            face.set_result(1)
        with pytest.raises(RuntimeError, match="does not support set_exception"):
            face.set_exception(Boom())
    running = fiber.poll() is None
    await fiber.interrupt()

    assert running


@pytest.mark.spec("PD11", "AT21")
async def test_both_faces_have_what_libraries_read_of_a_task() -> None:
    """Its loop and callbacks, also where asyncio keeps them in private; a name can be given."""
    loop = asyncio.get_running_loop()
    task = list[Any]()
    keep = Effect.sync(lambda: task.append(inner_task()))
    fiber: Any = fb.run_fork(keep.flat_map(lambda _: Effect.never()))
    heard = list[object]()
    fiber.add_done_callback(heard.append)
    task[0].set_name("named inside")
    read = [(face._loop, len(face._callbacks), face.get_name()) for face in (task[0], fiber)]
    fiber.interrupt_unsafe()
    taken_back = fiber.uncancel()
    await asyncio.sleep(0)

    assert read == [(loop, 1, "named inside")] * 2
    assert heard == [fiber]
    assert taken_back == 1  # an interrupt can't be


@pytest.mark.spec("PD11", "AT21")
async def test_libraries_read_of_it_which_future_it_waits_for() -> None:
    """Asyncio's own name for that; None while it runs, and where it waits for an effect."""
    gate, task = new_gate(), list[Any]()
    read = list[Any]()

    @fb.effect
    async def body() -> None:
        task.append(inner_task())
        read.append(task[0]._fut_waiter)
        await gate
        await Effect.never()

    fiber = fb.run_fork(body())
    read.append(task[0]._fut_waiter)
    gate.set_result(1)
    await turns()
    read.append(task[0]._fut_waiter)
    fiber.interrupt_unsafe()

    assert read == [None, gate, None]


@pytest.mark.spec("PD11", "AT21")
async def test_a_scope_of_anyios_does_not_cancel_what_has_its_value_already() -> None:
    """It asks what the task waits for: what is done there is not lost."""
    gate, scopes, log = new_gate(), list[anyio.CancelScope](), list[str]()

    @fb.effect
    async def body() -> None:
        with anyio.CancelScope() as scope:
            scopes.append(scope)
            log.append(f"got {await gate}")
            await asyncio.sleep(0)
            log.append("went on")

    fiber = fb.run_fork(body())
    gate.set_result(5)
    scopes[0].cancel()
    await fiber.exit()

    assert log == ["got 5"]
    assert scopes[0].cancelled_caught


@pytest.mark.spec("PD11")
async def test_a_request_that_a_library_drops_by_its_flag_is_not_thrown() -> None:
    """anyio 3 cleared ``_must_cancel`` of the task that leaves a scope."""
    log = list[str]()

    async def body() -> None:
        task: Any = asyncio.current_task()
        task.cancel()
        task._must_cancel = False
        task.uncancel()
        await asyncio.sleep(0)
        log.append("went on")

    await Effect.promise(body)

    assert log == ["went on"]


@pytest.mark.spec("PD11")
async def test_an_await_driven_by_hand_before_the_end_is_an_error() -> None:
    """In asyncio's words."""
    task = list[Any]()
    keep = Effect.sync(lambda: task.append(inner_task()))
    fiber = fb.run_fork(keep.flat_map(lambda _: Effect.never()))
    steps = task[0].__await__()

    assert next(steps) is task[0]
    with pytest.raises(RuntimeError, match="await wasn't used with future"):
        next(steps)
    await fiber.interrupt()


@pytest.mark.spec("PD11")
async def test_another_fiber_can_wait_for_it() -> None:
    """As for any task: it gets the value."""
    tasks, gate = list[asyncio.Task[Any]](), new_gate()

    async def awaited() -> int:
        tasks.append(inner_task())
        return await gate

    async def waiting() -> int:
        value: int = await tasks[0]
        return value

    fb.run_fork(Effect.promise(awaited))
    waiter = fb.run_fork(Effect.promise(waiting))
    gate.set_result(5)

    assert await waiter == 5


@pytest.mark.spec("PD11")
async def test_who_is_told_of_its_end_gets_the_very_task() -> None:
    """Equal to the fiber, but who waits for a task may tell it by identity."""
    heard, gate, tasks = list[object](), new_gate(), list[asyncio.Task[Any]]()

    async def body() -> int:
        tasks.append(inner_task())
        return await gate

    fiber = fb.run_fork(Effect.promise(body))
    tasks[0].add_done_callback(heard.append)
    fiber.add_done_callback(heard.append)
    gate.set_result(5)
    await turns()

    assert [heard[0] is tasks[0], heard[1] is fiber] == [True, True]


@pytest.mark.spec("PD11")
async def test_who_waits_for_several_gets_the_results_of_fibers_that_nobody_else_keeps() -> None:
    """asyncio.gather and asyncio.wait ask each task for its result once the last has ended."""
    tasks, gates = list[asyncio.Task[Any]](), [new_gate(), new_gate()]

    async def body(gate: asyncio.Future[Any]) -> object:
        tasks.append(inner_task())
        value: object = await gate
        return value

    for gate in gates:
        fb.run_fork(Effect.promise(partial(body, gate)))
    await turns()
    results = asyncio.gather(*tasks)
    waiting = asyncio.ensure_future(asyncio.wait(list(tasks)))
    tasks.clear()
    for value, gate in enumerate(gates):
        await turns()
        gate.set_result(value)
    await turns()

    assert results.done()
    assert await results == [0, 1]
    done, _ = await waiting
    assert {task.result() for task in done} == {0, 1}
