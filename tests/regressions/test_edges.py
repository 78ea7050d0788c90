"""asyncio from inside a fiber, and fibers of two loops: what a plain task would do, or refuse."""

from __future__ import annotations

import asyncio
import contextvars
from typing import TYPE_CHECKING, Any

import pytest

import fibers as fb
from fibers import Die, Effect, Failure, Success
from fibers.testing import TestClock
from tests.regressions.test_interrupts import run_apart, turns

if TYPE_CHECKING:
    from collections.abc import Generator


class Boom(Exception):
    """The error of these tests."""


# ---------------------------------------------------------------------------- PD11


async def fails() -> None:
    raise Boom


async def failing_group(log: list[str]) -> None:
    """A group of asyncio's whose child fails, and then one more suspension."""
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(fails())
    except* Boom:
        log.append("group failed")
    await turns(2)
    log.append("went on")


async def test_a_failing_task_group_in_a_finalizer_does_not_cut_it() -> None:
    """PD3, AT21: on 3.13 the group gives a cancel back and asks again while cancelling() counts the
    fiber's own interrupt; that is no new request.
    """
    log: list[str] = []

    async def body() -> None:
        await asyncio.get_running_loop().create_future()

    last = Effect.promise(lambda: failing_group(log))
    fiber = fb.run_fork(Effect.promise(body).ensuring(last))
    fiber.interrupt_unsafe(by=3)
    await fiber.exit()

    assert log == ["group failed", "went on"]


async def test_a_failing_task_group_in_a_finally_does_not_cut_it() -> None:
    """PD2, AT21: the same in the cleanup of the body that was interrupted."""
    log: list[str] = []

    async def body() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await failing_group(log)

    fiber = fb.run_fork(Effect.promise(body))
    fiber.interrupt_unsafe(by=3)
    await fiber.exit()

    assert log == ["group failed", "went on"]


async def test_the_inner_task_of_a_left_region_still_cancels_a_suspended_body() -> None:
    """PD11: current_task() taken in a region is still this fiber when the region is left."""
    tasks: list[asyncio.Task[Any]] = []

    async def body() -> None:
        with fb.uninterruptible():
            task = asyncio.current_task()
            assert task is not None
            tasks.append(task)
        await asyncio.get_running_loop().create_future()

    fiber = fb.run_fork(Effect.promise(body))
    tasks[0].cancel()
    exit_ = await fiber.exit()

    assert exit_ == Failure(fb.Cause([fb.Interrupt(None, "task.cancel")]))


async def test_the_inner_task_of_a_left_region_still_cancels_a_running_body() -> None:
    """PD11: the same from inside: the request lands at the next suspension."""
    log: list[str] = []

    async def body() -> None:
        with fb.uninterruptible():
            task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)
        log.append("not cancelled")

    await fb.run_fork(Effect.promise(body)).exit()

    assert log == []


def test_a_body_that_awaits_its_own_task_fails() -> None:
    """PD9: asyncio says "Task cannot await on itself"; nobody waits for himself here either."""
    program = """
        import asyncio, os
        import fibers as fb

        async def body():
            await asyncio.current_task()

        async def main():
            fiber = fb.run_fork(fb.Effect.promise(body)).ignore_failure()
            for _ in range(5):
                await asyncio.sleep(0)
            print("ended", fiber.done(), flush=True)
            os._exit(0)

        asyncio.run(main())
    """

    assert run_apart(program).stdout == "ended True\n"


async def test_a_future_of_another_loop_is_refused() -> None:
    """As by asyncio's own tasks: its callback would run the fiber in the other loop's thread."""
    other = asyncio.new_event_loop()
    foreign = other.create_future()

    async def body() -> None:
        await foreign

    fiber = fb.run_fork(Effect.promise(body))
    await turns()
    exit_ = fiber.poll()
    foreign.remove_done_callback(fiber._future_done)
    fiber.interrupt_unsafe()
    other.close()

    assert isinstance(exit_, Failure)
    (reason,) = exit_.failure().reasons
    assert isinstance(reason, Die)
    assert "different loop" in str(reason.defect)


class OfAnotherLibrary:
    """Awaited, it hands out what only its own event loop knows."""

    def __await__(self) -> Generator[str, None, None]:
        yield "a trap of another library"


@pytest.mark.spec("PD1")
async def test_what_is_neither_an_effect_nor_a_future_is_refused_by_name() -> None:
    """As by asyncio's own tasks, where it is awaited: the body may go on."""
    said: list[str] = []

    async def body() -> int:
        try:
            await OfAnotherLibrary()
        except RuntimeError as exc:
            said.append(str(exc))
        return 5

    exit_ = await fb.run_fork(Effect.promise(body)).exit()

    assert exit_ == Success(5)
    (message,) = said
    assert "'a trap of another library', which is neither an effect nor an asyncio" in message


def test_anyio_finds_its_root_task_beside_a_live_fiber() -> None:
    """AT21: anyio's to_thread looks at ``_callbacks`` of every task of the loop."""
    program = """
        import asyncio, anyio
        import fibers as fb

        async def main():
            fibers = [fb.run_fork(fb.Effect.never()) for _ in range(200)]
            async def body():
                return await anyio.to_thread.run_sync(lambda: "from a thread")
            print(await fb.Effect.promise(body).exit(), flush=True)
            for fiber in fibers:
                fiber.interrupt_unsafe()

        asyncio.run(main())
    """

    assert run_apart(program).stdout == "<Success: from a thread>\n"


# ---------------------------------------------------------------------------- two loops


@pytest.mark.parametrize("how", ["join", "exit", "interrupt"])
def test_waiting_for_a_fiber_of_another_loop_takes_no_timer_to_end(how: str) -> None:
    """AT16: the same with nothing else in the waiting loop."""
    program = f"""
        import asyncio, threading, time
        import fibers as fb

        started = threading.Event()
        found = []

        def elsewhere():
            async def main():
                pause = fb.sleep(0.1)
                ending = fb.Effect.never().ensuring(pause) if {how!r} == "interrupt" else pause
                fiber = fb.run_fork(ending)
                found.append(fiber)
                started.set()
                await fiber.exit()
            asyncio.run(main())

        thread = threading.Thread(target=elsewhere)
        thread.start()
        started.wait()
        fb.run(getattr(found[0], {how!r})())
        print("woken", flush=True)
    """

    assert run_apart(program).stdout == "woken\n"


# ---------------------------------------------------------------------------- PD12, PD7, PD15


async def test_a_context_variable_can_be_reset_after_a_suspension_in_a_plain_task() -> None:
    """PD12: as in a coroutine, a token made before a suspension is good after it (3.11: one Context
    from the first segment to the last).
    """
    variable = contextvars.ContextVar("variable", default="outside")

    @fb.effect
    async def body() -> str:
        token = variable.set("inside")
        await Effect.yield_now()
        variable.reset(token)
        return variable.get()

    async def task() -> fb.Exit[str, Any]:
        return await body().exit()

    assert await asyncio.create_task(task()) == fb.Success("outside")


def test_a_system_exit_that_the_awaiting_task_caught_is_over() -> None:
    """PD7: raised once, in the task that awaits; the queue must not raise it again later."""
    program = """
        import asyncio
        import fibers as fb

        @fb.effect
        async def leave():
            raise SystemExit(3)

        async def main():
            try:
                await leave()
            except SystemExit:
                print("caught", flush=True)
            await fb.sleep(0)
            print("went on", flush=True)

        asyncio.run(main())
    """

    assert run_apart(program).stdout == "caught\nwent on\n"


def test_a_system_exit_in_a_fiber_woken_by_a_future_leaves_the_loop() -> None:
    """PD7: as from one woken by the queue, and as from a plain task; not swallowed."""
    program = """
        import asyncio
        import fibers as fb

        async def leave():
            await asyncio.sleep(0.01)
            raise SystemExit(3)

        async def main():
            fb.run_fork(fb.Effect.promise(leave)).ignore_failure()
            await asyncio.sleep(0.1)
            print("swallowed", flush=True)

        asyncio.run(main())
    """
    ended = run_apart(program)

    assert (ended.stdout, ended.returncode) == ("", 3)


def test_run_sync_of_a_virtual_sleep_without_a_loop_says_that_it_would_wait() -> None:
    """PD15: AsyncFiberError, as for a sleep on the live clock."""
    with pytest.raises(fb.AsyncFiberError):
        fb.run_sync(TestClock().sleep(1))


async def test_two_adjusts_at_once_both_end() -> None:
    """TestClock: each settles until nothing else is ready; the other's settling is not work."""
    clock = TestClock()
    both = fb.run_fork(fb.all_([clock.adjust(1), clock.adjust(2)], concurrency=2))
    await turns(200)
    ended = both.done()
    both.interrupt_unsafe()

    assert ended


# ---------------------------------------------------------------------------- PD4


async def test_a_failure_beside_an_interrupt_is_judged_again_by_the_outer_body() -> None:
    """PD4, IN7: the outer body doesn't declare Boom, so it leaves as a defect."""

    @fb.effect(raises=Boom)
    async def inner() -> None:
        await Effect.yield_now()
        raise Boom

    @fb.effect
    async def outer() -> None:
        await inner().uninterruptible()

    fiber = fb.run_fork(outer())
    fiber.interrupt_unsafe(by=3)
    exit_ = await fiber.exit()

    assert isinstance(exit_, Failure)
    assert [type(reason) for reason in exit_.failure().reasons] == [Die, fb.Interrupt]


async def test_an_object_that_failed_before_and_died_now_leaves_as_a_defect() -> None:
    """PD4: what counts is the defect in flight, not what the shared object was earlier."""
    shared = Boom()

    @fb.effect(raises=Boom)
    async def body() -> None:
        try:
            await Effect.fail(shared)
        except Boom:
            pass
        await Effect.die(shared)

    assert await body().exit() == Failure(fb.Cause([Die(shared)]))


async def test_an_object_that_died_before_and_fails_now_leaves_as_a_failure() -> None:
    """PD4: the other way round."""
    shared = Boom()

    @fb.effect(raises=Boom)
    async def body() -> None:
        try:
            await Effect.die(shared)
        except Boom:
            pass
        await Effect.fail(shared)

    assert await body().exit() == Failure(fb.Cause([fb.Fail(shared)]))
