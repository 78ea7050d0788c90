"""Who owns a fiber, when it changes hands, and closes that wait for each other."""

from __future__ import annotations

import asyncio
from typing import Never

import pytest

import fibers as fb
from fibers import Effect
from tests.probes.kit_f import new_gate
from tests.regressions.test_interrupts import run_apart, turns

pytestmark = pytest.mark.lifecycle


def test_a_parent_whose_child_was_given_to_a_scope_ends() -> None:
    """FO11, WI8: run_in of a supervised child; the parent's end must not wait for it for ever."""
    program = """
        import asyncio
        import fibers as fb

        async def parent(scope):
            child = await fb.Effect.yield_now().fork_child()
            child.run_in(scope)
            await child.exit()

        async def main():
            fiber = fb.run_fork(fb.Effect.promise(lambda: parent(fb.Scope())))
            for _ in range(20):
                await asyncio.sleep(0)
            print("ended", fiber.done(), flush=True)

        asyncio.run(main())
    """

    assert run_apart(program).stdout == "ended True\n"


async def test_a_fiber_moved_to_another_scope_leaves_nothing_in_the_first() -> None:
    """FO5, VF6, PD13: both counts are 0 when it has ended."""
    first, second = fb.Scope(), fb.Scope()
    fiber = first.fork(Effect.yield_now())
    fiber.run_in(second)
    await fiber.exit()

    assert (first.finalizer_count, second.finalizer_count) == (0, 0)
    assert first.state == "empty"


def test_a_close_does_not_wait_for_a_fiber_that_began_to_wait_for_the_closer() -> None:
    """SO6: who waits for the closer is asked when the close gets to it, not when it began."""
    program = """
        import asyncio, os
        import fibers as fb
        from fibers import Effect

        async def main():
            scope = fb.Scope()
            gate = asyncio.get_running_loop().create_future()
            waiting = asyncio.Event()
            closers = []

            async def member():
                with fb.uninterruptible():
                    await Effect.promise(lambda: gate)
                    waiting.set()
                    await closers[0].exit()

            async def slow(exit_):
                gate.set_result(None)
                await waiting.wait()

            scope.fork(Effect.promise(member), start_immediately=True)
            await scope.add_finalizer(slow)
            closers.append(fb.run_fork(fb.sleep(0).flat_map(lambda _: scope.close())))
            for _ in range(40):
                await asyncio.sleep(0)
            print("closed", closers[0].done(), flush=True)
            os._exit(0)

        asyncio.run(main())
    """

    assert run_apart(program).stdout == "closed True\n"


async def test_of_two_closes_each_lets_go_of_a_fiber_that_begins_to_wait_for_its_closer() -> None:
    """SO6: a fiber that changed hands while its first scope closed is awaited by both closes."""
    scopes = [fb.Scope(), fb.Scope()]
    gates = [new_gate(), new_gate()]
    closers: list[fb.Fiber[None, Never]] = []
    closed: list[list[bool]] = []

    async def member() -> None:
        try:
            await Effect.never()
        finally:
            for at in range(2):
                await gates[at]
                await closers[at].exit()

    fiber = scopes[0].fork(Effect.promise(member), start_immediately=True)
    closers.append(fb.run_fork(scopes[0].close()))
    fiber.run_in(scopes[1])
    closers.append(fb.run_fork(scopes[1].close()))
    for gate in gates:
        closed.append([closer.done() for closer in closers])
        gate.set_result(0)
        await turns(20)
    closed.append([closer.done() for closer in closers])
    ended = fiber.done()
    fiber.interrupt_unsafe(again=True)  # else nothing would ever end where this fails

    assert closed == [[False, False], [True, False], [True, True]]
    assert ended


async def test_a_fork_made_by_run_sync_goes_on_when_run_sync_has_returned() -> None:
    """PD15, SU10: it drains its own queue, but what it forked lives on in the running loop."""
    log: list[str] = []
    gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    waiter = Effect.promise(lambda: gate).map(lambda _: log.append("woke"))
    fb.run_sync(waiter.fork_detach(start_immediately=True))
    gate.set_result(None)
    await turns(10)

    assert log == ["woke"]


def test_a_fork_of_run_sync_into_a_scope_does_not_hang_its_close() -> None:
    """PD15, SO1: its finalizer suspends, so the queue has to be drained by somebody."""
    program = """
        import asyncio, os
        import fibers as fb
        from fibers import Effect

        async def main():
            scope = fb.Scope()
            member = Effect.never().ensuring(Effect.yield_now())
            fb.run_sync(member.fork_in(scope, start_immediately=True))
            closing = fb.run_fork(scope.close())
            for _ in range(10):
                await asyncio.sleep(0)
            print("closed", closing.done(), flush=True)
            os._exit(0)

        asyncio.run(main())
    """

    assert run_apart(program).stdout == "closed True\n"


async def test_failures_that_join_all_did_not_deliver_reach_the_hook() -> None:
    """PD8, FL11: it fails with the first; nobody has seen the second."""
    reported: list[str] = []
    fb.set_unhandled_failure_hook(lambda _fiber, cause: reported.append(str(cause)))
    try:
        gate = asyncio.get_running_loop().create_future()
        first = fb.run_fork(Effect.yield_now().flat_map(lambda _: Effect.fail(ValueError("a"))))
        second = fb.run_fork(
            Effect.promise(lambda: gate).flat_map(lambda _: Effect.fail(ValueError("b")))
        )
        await fb.Fiber.join_all([first, second]).exit()
        gate.set_result(None)
        await turns()
        del first, second
    finally:
        fb.set_unhandled_failure_hook(None)

    assert reported == ["Cause([Fail(ValueError(b))])"]


@pytest.mark.parametrize(
    ("made", "concurrency"), [("fb.Success(n)", 1), ("fb.Effect.succeed(n)", 2)]
)
def test_an_endless_for_each_still_lets_others_run(made: str, concurrency: int) -> None:
    """WI9, IN24: what needs no fiber of its own counts for the op budget too."""
    program = f"""
        import asyncio, itertools, os, threading
        import fibers as fb

        threading.Timer(2.0, lambda: os._exit(1)).start()

        async def main():
            endless = fb.for_each(
                itertools.count(), lambda n: {made}, concurrency={concurrency}, discard=True
            )
            fiber = fb.run_fork(fb.sleep(0).flat_map(lambda _: endless))
            for _ in range(5):
                await asyncio.sleep(0)
            fiber.interrupt_unsafe()
            print("ended", fiber.done(), flush=True)
            os._exit(0)

        asyncio.run(main())
    """

    assert run_apart(program).stdout == "ended True\n"


def test_a_scope_says_what_it_is_called_and_how_much_it_has_to_end() -> None:
    """In messages and debuggers; one without a name says nothing of it."""
    scopes = [fb.Scope(name="service"), fb.Scope()]
    said = [repr(scope) for scope in scopes]
    for scope in scopes:
        fb.run_sync(scope.add_finalizer(lambda _: None))
        said.append(repr(scope))
        fb.run_sync(scope.close())
        said.append(repr(scope))

    assert said == [
        "<Scope 'service' empty, 0 to finalize>",
        "<Scope empty, 0 to finalize>",
        "<Scope 'service' open, 1 to finalize>",
        "<Scope 'service' closed, 0 to finalize>",
        "<Scope open, 1 to finalize>",
        "<Scope closed, 0 to finalize>",
    ]
