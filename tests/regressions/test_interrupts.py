"""Interrupts that arrive while a primitive is half done, twice in a tick, for several at once."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING, Any

import pytest

import fibers as fb
from fibers import Effect

if TYPE_CHECKING:
    from fibers.loop.inner_task import InnerTask

pytestmark = pytest.mark.lifecycle


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_forker_interrupted_during_the_childs_first_segment_leaves_it_owned() -> None:
    """FO2, FO5: the fork had begun, so the scope holds the child, and its close ends it."""
    scope = fb.Scope()
    children: list[fb.Fiber[Any, Any]] = []

    async def forker() -> None:
        me = fb.current_fiber()
        assert me is not None

        async def child() -> None:
            mine = fb.current_fiber()
            assert mine is not None
            children.append(mine)
            me.interrupt_unsafe()
            await Effect.never()

        await Effect.promise(child).fork_in(scope, start_immediately=True)

    await fb.run_fork(Effect.promise(forker)).exit()
    held = scope.finalizer_count
    await scope.close()

    assert held == 1
    assert children[0].poll() is not None


async def test_a_forker_interrupted_during_the_first_segment_still_fails_closed() -> None:
    """FO2: also then the child of a closed scope does not live on."""
    scope = fb.Scope()
    await scope.close()
    children: list[fb.Fiber[Any, Any]] = []

    async def forker() -> None:
        me = fb.current_fiber()
        assert me is not None

        async def child() -> None:
            mine = fb.current_fiber()
            assert mine is not None
            children.append(mine)
            me.interrupt_unsafe()
            await Effect.never()

        await Effect.promise(child).fork_in(scope, start_immediately=True)

    await fb.run_fork(Effect.promise(forker)).exit()

    assert children[0].poll() is not None


async def test_interrupt_all_signals_everybody_also_if_the_caller_is_among_them() -> None:
    """FL13, WI2: the signalling is one primitive; the own interrupt lands after it."""
    first = fb.run_fork(Effect.never())
    second = fb.run_fork(Effect.never())

    async def caller() -> None:
        me = fb.current_fiber()
        assert me is not None
        await fb.Fiber.interrupt_all([me, first, second])

    await fb.run_fork(Effect.promise(caller)).exit()

    assert first.poll() is not None
    assert second.poll() is not None


async def test_interrupt_all_signals_everybody_also_if_a_finalizer_interrupts_the_caller() -> None:
    """FL13, WI2: the same where the interrupt comes out of the first target's finalizer."""
    callers: list[fb.Fiber[Any, Any]] = []
    first = fb.run_fork(
        Effect.never().on_interrupt(lambda _: Effect.sync(lambda: callers[0].interrupt_unsafe()))
    )
    second = fb.run_fork(Effect.never())

    async def caller() -> None:
        me = fb.current_fiber()
        assert me is not None
        callers.append(me)
        await fb.Fiber.interrupt_all([first, second])

    await fb.run_fork(Effect.promise(caller)).exit()

    assert second.poll() is not None


async def test_a_sibling_of_the_same_close_is_joined_as_somebody_elses_interrupt() -> None:
    """PD14: one close interrupts both; to the one that joins, the other's interrupt is foreign."""
    scope = fb.Scope("parallel")
    log: list[str] = []
    sibling = scope.fork(Effect.never(), start_immediately=True)

    async def body() -> None:
        try:
            await Effect.never()
        finally:
            try:
                await sibling
            except fb.FiberInterrupted:
                log.append("foreign")
            log.append("cleaned")

    scope.fork(Effect.promise(body), start_immediately=True)
    await scope.close()

    assert log == ["foreign", "cleaned"]


async def test_children_interrupted_by_their_parents_end_see_each_other_as_foreign() -> None:
    """PD14: the same where a parent's end interrupts its children."""
    log: list[str] = []

    async def parent() -> None:
        sibling = await Effect.never().fork_child(start_immediately=True)

        async def cleaning() -> None:
            try:
                await Effect.never()
            finally:
                try:
                    await sibling
                except fb.FiberInterrupted:
                    log.append("foreign")

        await Effect.promise(cleaning).fork_child(start_immediately=True)

    await fb.run_fork(Effect.promise(parent)).exit()

    assert log == ["foreign"]


async def test_a_cancel_and_an_interrupt_of_one_tick_are_thrown_once() -> None:
    """PD2, AT22: as two cancel() calls of one tick are one CancelledError in a plain task, so the
    cleanup that the first throw began is not cut by the second request.
    """
    log: list[str] = []
    faces: list[InnerTask] = []

    async def body() -> None:
        task: Any = asyncio.current_task()
        faces.append(task)
        try:
            await Effect.never()
        finally:
            await turns(3)
            log.append("cleaned")

    fiber = fb.run_fork(Effect.promise(body))
    faces[0].cancel()
    fiber.interrupt_unsafe(by=3)
    await fiber.exit()

    assert log == ["cleaned"]


async def test_an_interrupt_caught_in_restore_is_pending_after_the_region_also_the_second() -> None:
    """PD17: what lands in a restored part and is caught is raised after the region; here it is one
    asked for with again=True, in a region entered while the first was being handled.
    """
    log: list[str] = []

    async def body() -> None:
        try:
            await Effect.never()
        except asyncio.CancelledError:
            log.append("first")
        with fb.uninterruptible() as restore:
            try:
                with restore():
                    await Effect.never()
            except asyncio.CancelledError:
                log.append("second")
        try:
            await Effect.yield_now()
        except asyncio.CancelledError:
            log.append("after the region")

    fiber = fb.run_fork(Effect.promise(body))
    fiber.interrupt_unsafe(by=3)
    await turns()
    fiber.interrupt_unsafe(by=4, again=True)
    await fiber.exit()

    assert log == ["first", "second", "after the region"]


def run_apart(program: str, seconds: float = 30.0) -> subprocess.CompletedProcess[str]:
    """Run a program that may never end: a fiber that spins can't be stopped from inside."""
    started = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with started:
        try:
            out, err = started.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            started.kill()
            out, err = started.communicate()
            err += f"killed after {seconds:g} s"
    return subprocess.CompletedProcess(program, started.returncode, out, err)


def test_an_error_that_cannot_be_compared_leaves_no_mask_behind() -> None:
    """PD3: a finalizer's mask ends with the finalizer, whatever its failure is like."""
    program = """
        import asyncio, os
        import fibers as fb
        from fibers import Effect

        class Touchy(Exception):
            def __eq__(self, other):
                raise RuntimeError("not comparable")
            __hash__ = Exception.__hash__

        async def main():
            broken = Effect.die(Touchy()).ensuring(Effect.die(Touchy())).exit()
            fiber = fb.run_fork(broken.flat_map(lambda _: Effect.never()))
            fiber.interrupt_unsafe()
            print("interrupted", fiber.done(), flush=True)
            os._exit(0)

        asyncio.run(main())
    """

    assert run_apart(program).stdout == "interrupted True\n"


def test_an_observer_that_raises_a_base_exception_does_not_spin_the_fiber() -> None:
    """FL15: the fiber has ended by then. future.result() of a cancelled future is enough."""
    program = """
        import asyncio
        import fibers as fb

        def observer(exit_):
            raise asyncio.CancelledError

        async def main():
            fiber = fb.run_fork(fb.sleep(0))
            fiber.add_observer(observer)
            for _ in range(5):
                await asyncio.sleep(0)
            print("ended", fiber.done())

        try:
            asyncio.run(main())
        except asyncio.CancelledError:
            print("ended", True)
    """

    assert run_apart(program).stdout == "ended True\n"


def test_a_joiner_whose_loop_is_closed_does_not_spin_the_fiber() -> None:
    """The same where waking a waiter fails because its loop is gone."""
    program = """
        import asyncio, threading
        import fibers as fb
        from fibers.loop import hooks

        def elsewhere(target):
            async def main():
                hooks.unregister_task(fb.run_fork(target.exit()))
            asyncio.run(main())

        async def main():
            gate = asyncio.get_running_loop().create_future()
            target = fb.run_fork(fb.Effect.promise(lambda: gate))
            thread = threading.Thread(target=elsewhere, args=[target])
            thread.start()
            await asyncio.to_thread(thread.join)
            gate.set_result(None)
            for _ in range(5):
                await asyncio.sleep(0)
            print("ended", target.done())

        asyncio.run(main())
    """

    assert run_apart(program).stdout == "ended True\n"
