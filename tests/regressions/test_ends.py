"""Found by looking hard: ends that were not taken well, and waits across event loops."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import Any

import pytest

import fibers as fb
from fibers import Effect
from tests.regressions.test_interrupts import run_apart, turns

pytestmark = pytest.mark.lifecycle


def test_a_hook_that_raises_a_base_exception_does_not_spin_the_parent() -> None:
    """PD8: it runs where the owner ends; the owner has ended by then and stays so."""
    program = """
        import asyncio, os
        import fibers as fb
        from fibers import Effect

        def hook(fiber, cause):
            raise asyncio.CancelledError

        kept = []

        async def parent():
            kept.append(await Effect.die(ValueError()).fork_child(start_immediately=True))
            await Effect.yield_now()

        async def main():
            fb.set_unhandled_failure_hook(hook)
            fiber = fb.run_fork(Effect.promise(parent))
            for _ in range(5):
                await asyncio.sleep(0)
            print("ended", fiber.done(), flush=True)
            os._exit(0)

        asyncio.run(main())
    """

    assert run_apart(program).stdout == "ended True\n"


def test_a_system_exit_that_run_sync_raised_is_over() -> None:
    """PD7, PD15: it is raised once, by run_sync; not out of the running loop as well."""
    program = """
        import asyncio
        import fibers as fb

        def leave():
            raise SystemExit(3)

        async def main():
            try:
                fb.run_sync(fb.Effect.sync(leave))
            except SystemExit:
                print("caught", flush=True)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            print("went on", flush=True)

        asyncio.run(main())
    """

    assert run_apart(program).stdout == "caught\nwent on\n"


def test_a_close_lets_go_of_a_fiber_that_begins_to_wait_for_the_closer() -> None:
    """SO6: also when that begins while the close waits for it already."""
    program = """
        import asyncio, os
        import fibers as fb
        from fibers import Effect

        async def main():
            scope = fb.Scope()
            gate = asyncio.get_running_loop().create_future()
            closers = []

            async def member():
                with fb.uninterruptible():
                    await Effect.promise(lambda: gate)
                    await closers[0].exit()

            scope.fork(Effect.promise(member), start_immediately=True)
            closers.append(fb.run_fork(scope.close()))
            await asyncio.sleep(0)
            gate.set_result(None)
            for _ in range(20):
                await asyncio.sleep(0)
            print("closed", closers[0].done(), flush=True)
            os._exit(0)

        asyncio.run(main())
    """

    assert run_apart(program).stdout == "closed True\n"


async def test_an_interrupt_from_another_loop_obeys_a_mask_entered_meanwhile() -> None:
    """WI3, AT16: between the asking and its landing in the other loop the body went on."""
    log: list[str] = []
    fibers: list[fb.Fiber[Any, Any]] = []
    started, waiting, asked = threading.Event(), threading.Event(), threading.Event()

    def elsewhere() -> None:
        async def main() -> None:
            loop = asyncio.get_running_loop()
            first, second = loop.create_future(), loop.create_future()

            async def body() -> None:
                await first
                with fb.uninterruptible():
                    loop.call_later(0.01, second.set_result, None)
                    await second
                    log.append("masked part done")

            fiber = fb.run_fork(Effect.promise(body))
            fibers.append(fiber)
            started.set()

            def let_it_go_on_and_be_asked() -> None:
                first.set_result(None)
                waiting.set()
                asked.wait(5)

            loop.call_soon(let_it_go_on_and_be_asked)
            await fiber.exit()

        asyncio.run(main())

    thread = threading.Thread(target=elsewhere)
    thread.start()
    started.wait()
    waiting.wait()
    waiter = fb.run_fork(fibers[0].interrupt())
    asked.set()
    await asyncio.to_thread(thread.join)
    await waiter.exit()

    assert log == ["masked part done"]


async def test_a_wait_given_up_leaves_nothing_on_a_fiber_of_another_loop() -> None:
    """PD13: as within one loop, where an abandoned join takes its observer back."""
    fibers: list[fb.Fiber[Any, Any]] = []
    gates: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
    started, looked = threading.Event(), threading.Event()

    def elsewhere() -> None:
        async def main() -> None:
            loop = asyncio.get_running_loop()
            gate: asyncio.Future[None] = loop.create_future()
            gates.append((loop, gate))
            fibers.append(fb.run_fork(Effect.promise(lambda: gate)))
            started.set()
            await asyncio.to_thread(looked.wait)
            # Everything that was sent to this loop before has been done by now.
            counts.append(len(fibers[0]._observers or ()))
            gate.set_result(None)
            await fibers[0].exit()

        asyncio.run(main())

    counts: list[int] = []
    thread = threading.Thread(target=elsewhere)
    thread.start()
    started.wait()
    for _ in range(20):
        waiter = fb.run_fork(fibers[0].exit())
        await turns(2)
        waiter.interrupt_unsafe()
    looked.set()
    await asyncio.to_thread(thread.join)

    assert counts == [0]


class Elsewhere:
    """A fiber in a loop of another thread, which ends when this side says so."""

    def __init__(self) -> None:
        self.fibers: list[fb.Fiber[str, Any]] = []
        self.gates: list[asyncio.Future[str]] = []
        self._up = threading.Event()
        self._held = threading.Event()
        self._goes_on = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()))
        self._thread.start()
        self._up.wait(5)

    async def _main(self) -> None:
        gate = asyncio.get_running_loop().create_future()

        async def body() -> str:
            value: str = await gate
            return value

        self.gates.append(gate)
        self.fibers.append(fb.run_fork(Effect.promise(body)))
        self._up.set()
        await self.fibers[0].exit()

    def end_and_hold(self) -> None:
        """The fiber's end is the next thing there, and that thread waits before it."""

        def hold() -> None:
            self.gates[0].set_result("value")
            self._held.set()
            self._goes_on.wait(5)

        self.gates[0].get_loop().call_soon_threadsafe(hold)
        self._held.wait(5)

    async def let_go_on(self) -> None:
        """The thread goes on to its end."""
        self._goes_on.set()
        await asyncio.to_thread(self._thread.join)

    async def observed_by(self, count: int) -> None:
        """Wait until so many observers have arrived."""
        loop = self.gates[0].get_loop()

        async def look() -> int:
            return len(self.fibers[0]._observers or ())

        while True:
            looked = asyncio.run_coroutine_threadsafe(look(), loop)
            if await asyncio.wrap_future(looked) >= count:
                return


async def test_a_join_of_a_fiber_that_ends_before_its_loop_hears_of_it_gets_the_value() -> None:
    """AT16: the asking and the end cross on the way."""
    there = Elsewhere()
    there.end_and_hold()
    waiter = fb.run_fork(there.fibers[0].join())
    await there.let_go_on()

    assert await waiter.exit() == fb.Success("value")


async def test_a_wait_given_up_while_the_other_loop_tells_of_the_end_stays_given_up() -> None:
    """AT16: the end comes too late for the one that left; who stayed has the value."""
    there = Elsewhere()
    leaves = fb.run_fork(there.fibers[0].join())
    await there.observed_by(2)  # the other is the thread's own
    there.end_and_hold()
    leaves.interrupt_unsafe(by=7)
    await there.let_go_on()
    await turns()

    assert leaves.poll() == fb.Failure(fb.Cause([fb.Interrupt(7)]))
    assert there.fibers[0].poll() == fb.Success("value")


async def test_of_two_waits_in_one_loop_only_the_one_given_up_is_taken_back() -> None:
    """AT16, PD13: the other loop knows them apart."""
    there = Elsewhere()
    stays = fb.run_fork(there.fibers[0].join())
    leaves = fb.run_fork(there.fibers[0].join())
    await there.observed_by(3)
    leaves.interrupt_unsafe(by=7)
    there.end_and_hold()
    observers = len(there.fibers[0]._observers or ())
    await there.let_go_on()

    assert observers == 2
    assert await stays.exit() == fb.Success("value")


async def test_a_failure_that_an_interrupted_await_all_never_saw_reaches_the_hook() -> None:
    """PD8: waiting is not yet observing, as for join, exit and join_all."""
    reported: list[str] = []
    fb.set_unhandled_failure_hook(lambda _fiber, cause: reported.append(str(cause)))
    try:
        gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        failing = Effect.promise(lambda: gate).flat_map(lambda _: Effect.fail(ValueError("b")))
        fiber = fb.run_fork(failing)
        waiter = fb.run_fork(fb.Fiber.await_all([fiber]))
        waiter.interrupt_unsafe()
        del waiter
        gate.set_result(None)
        await turns()
        del fiber
    finally:
        fb.set_unhandled_failure_hook(None)

    assert reported == ["Cause([Fail(ValueError(b))])"]


async def test_a_gather_that_failed_in_the_tick_of_a_cancel_counts_as_looked_at() -> None:
    """PD11: asyncio's task takes the failure and throws the cancel instead; nothing is told to the
    loop's exception handler as never retrieved.
    """
    loop = asyncio.get_running_loop()
    told: list[object] = []
    loop.set_exception_handler(lambda _loop, context: told.append(context["message"]))
    tasks: list[asyncio.Task[Any]] = []

    async def fails() -> None:
        raise ValueError("in a task")

    async def body() -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(task)
        await asyncio.gather(fails(), fails())

    fiber = fb.run_fork(Effect.promise(body))
    await asyncio.sleep(0)
    # Both tasks have failed by now; the gather hears of it in this turn.
    tasks[0].cancel()
    await fiber.exit()
    await turns()
    gc.collect()

    assert told == []
