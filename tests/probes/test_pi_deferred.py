"""Probes PI1: Deferred, an outcome that arrives once."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
from returns.maybe import Nothing
from returns.result import Success

import fibers as fb
from fibers import Cause, Deferred, Die, Effect, Fail, Fiber, Interrupt
from tests.probes.kit_f import Boom, failed, interrupted, note, running_fiber, turns

if TYPE_CHECKING:
    from collections.abc import Callable

    from fibers.testing import TestClock


BOOM = Boom("boom")
BOTH: Cause[Boom] = Cause((Fail(BOOM), Interrupt(3)))

Completion: TypeAlias = "Callable[[Deferred[int, Boom]], Effect[bool]]"
COMPLETIONS: dict[str, tuple[Completion, fb.Exit[int, Boom]]] = {
    "succeed": (lambda d: d.succeed(1), Success(1)),
    "fail": (lambda d: d.fail(BOOM), failed(Fail(BOOM))),
    "die": (lambda d: d.die(BOOM), failed(Die(BOOM))),
    "fail_cause": (lambda d: d.fail_cause(BOTH), failed(*BOTH.reasons)),
    "done": (lambda d: d.done(Success(2)), Success(2)),
    "done, failed": (lambda d: d.done(failed(Die(BOOM))), failed(Die(BOOM))),
    "sync": (lambda d: d.sync(lambda: 3), Success(3)),
    "complete": (lambda d: d.complete(Effect.succeed(4)), Success(4)),
    "complete, failed": (lambda d: d.complete(Effect.fail(BOOM)), failed(Fail(BOOM))),
    "complete_with": (lambda d: d.complete_with(Effect.succeed(5)), Success(5)),
    "interrupt_with": (lambda d: d.interrupt_with(9), interrupted(9)),
    "interrupt_with nobody": (lambda d: d.interrupt_with(None), interrupted(None)),
}


# ---- completing


@pytest.mark.spec("PI1")
async def test_only_the_first_completion_counts() -> None:
    """Each says whether it was the one; the outcome stays."""
    deferred: Deferred[int, Boom] = Deferred()

    answers = [
        await deferred.succeed(1),
        await deferred.succeed(2),
        await deferred.fail(Boom("late")),
    ]

    assert answers == [True, False, False]
    assert await deferred == 1


@pytest.mark.spec("PI1")
@pytest.mark.parametrize("way", COMPLETIONS)
async def test_a_waiter_ends_as_the_deferred_was_completed(way: str) -> None:
    """Whether it waited before or comes after."""
    complete, exit_ = COMPLETIONS[way]
    deferred: Deferred[int, Boom] = Deferred()
    early = fb.run_fork(deferred.await_().exit())
    assert early.poll() is None

    first = await complete(deferred)
    await turns()

    assert first
    assert early.poll() == Success(exit_)
    assert await deferred.await_().exit() == exit_


@pytest.mark.spec("PI1")
async def test_interrupt_names_the_fiber_that_completes() -> None:
    """The waiters see an Interrupt by the completing fiber, and aren't interrupted themselves."""
    deferred: Deferred[int] = Deferred()
    waiter = fb.run_fork(deferred.await_().exit())

    fiber = fb.run_fork(deferred.interrupt())
    await turns()

    assert fiber.poll() == Success(True)
    assert waiter.poll() == Success(interrupted(fiber.id))


@pytest.mark.spec("PI1")
async def test_complete_runs_the_effect_once_and_complete_with_for_each_waiter() -> None:
    """1, 1 for the one; 2, 3 for the other."""
    runs = iter([1, 2, 3])
    count = Effect.sync(lambda: next(runs))
    once: Deferred[int] = Deferred()
    each: Deferred[int] = Deferred()

    await once.complete(count)
    seen = [await once, await once]
    await each.complete_with(count)
    seen += [await each, await each]

    assert seen == [1, 1, 2, 3]


@pytest.mark.spec("PI1")
async def test_complete_of_a_completed_deferred_does_not_run_the_effect() -> None:
    """It would be run for nothing."""
    log: list[str] = []
    deferred: Deferred[None] = Deferred()
    await deferred.succeed(None)

    answer = await deferred.complete(note(log, "run"))

    assert not answer
    assert log == []


@pytest.mark.spec("PI1")
async def test_complete_loses_to_who_completes_while_its_effect_runs(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """The effect runs to its end; its value is dropped."""
    deferred: Deferred[int] = Deferred()
    slow = rt.run_fork(deferred.complete(fb.sleep(1).map(lambda _: 1)))

    await deferred.succeed(2)
    await rt.run(clock.adjust(1))

    assert slow.poll() == Success(False)
    assert await deferred == 2


@pytest.mark.spec("PI1")
async def test_done_unsafe_completes_from_plain_code() -> None:
    """With an exit, or with an effect that each waiter runs."""
    by_exit: Deferred[int, Boom] = Deferred()
    by_effect: Deferred[int, Boom] = Deferred()

    answers = [
        by_exit.done_unsafe(failed(Fail(BOOM))),
        by_exit.done_unsafe(Success(1)),
        by_effect.done_unsafe(Effect.succeed(2)),
    ]

    assert answers == [True, False, True]
    assert await by_exit.await_().exit() == failed(Fail(BOOM))
    assert await by_effect == 2


# ---- looking


@pytest.mark.spec("PI1")
async def test_poll_gives_the_outcome_as_an_effect_once_it_is_there() -> None:
    """Nothing before; a failure does not fail the poll."""
    deferred: Deferred[int, Boom] = Deferred()

    before = (await deferred.poll(), await deferred.is_done(), deferred.is_done_unsafe())
    await deferred.fail(BOOM)
    after = await deferred.poll()

    assert before == (Nothing, False, False)
    assert await after.unwrap().exit() == failed(Fail(BOOM))
    assert await deferred.is_done()
    assert deferred.is_done_unsafe()


# ---- waiters


@pytest.mark.spec("PI1", "PD16")
async def test_waiters_go_on_in_order_and_after_the_one_that_completes() -> None:
    """Through the ready queue: nobody runs on the completer's stack."""
    log: list[str] = []
    deferred: Deferred[int] = Deferred()

    def waiter(name: str) -> Effect[None]:
        return deferred.await_().flat_map(lambda _: note(log, name))

    for name in ("w1", "w2", "w3"):
        fb.run_fork(waiter(name))

    @fb.effect
    async def complete() -> None:
        await deferred.succeed(1)
        log.append("after succeed")

    await complete()
    await turns()

    assert log == ["after succeed", "w1", "w2", "w3"]


@pytest.mark.spec("PI1")
async def test_an_interrupted_waiter_is_removed_at_once() -> None:
    """Ten thousand of them leave nothing."""
    deferred: Deferred[int] = Deferred()
    waiters = [fb.run_fork(deferred.await_()) for _ in range(10_000)]
    waiting = len(deferred._waiters)

    for waiter in waiters:
        waiter.interrupt_unsafe()

    assert waiting == 10_000
    assert not deferred._waiters
    assert all(waiter.poll() == interrupted(None) for waiter in waiters)


@pytest.mark.spec("PI1")
async def test_an_interrupt_in_the_tick_of_the_completion_wins_for_that_waiter_only() -> None:
    """Woken and interrupted before it ran; the other one gets the value."""
    deferred: Deferred[int] = Deferred()
    first = fb.run_fork(deferred.await_())
    second = fb.run_fork(deferred.await_())

    deferred.done_unsafe(Success(1))
    first.interrupt_unsafe(by=7)
    await turns()

    assert first.poll() == interrupted(7)
    assert second.poll() == Success(1)


@pytest.mark.spec("PI1")
async def test_a_masked_waiter_gets_its_value_before_the_interrupt_lands() -> None:
    """The wait goes on inside the mask."""
    got: list[int] = []
    deferred: Deferred[int] = Deferred()
    waiting = deferred.await_().tap(lambda n: Effect.sync(lambda: got.append(n)))
    fiber = fb.run_fork(waiting.uninterruptible())

    fiber.interrupt_unsafe(by=7)
    still_waiting = fiber.poll()
    deferred.done_unsafe(Success(1))
    await turns()

    assert still_waiting is None
    assert got == [1]
    assert fiber.poll() == interrupted(7)


@pytest.mark.spec("PI1")
async def test_a_finalizer_can_complete_what_another_fiber_waits_for() -> None:
    """In the synchronous part of an interrupt."""
    deferred: Deferred[int] = Deferred()
    never: Effect[int] = Effect.never()
    owner = fb.run_fork(never.on_interrupt(lambda _: deferred.succeed(1)))
    waiter = fb.run_fork(deferred.await_())

    owner.interrupt_unsafe()
    await turns()

    assert waiter.poll() == Success(1)


@pytest.mark.spec("PI1", "PD12")
async def test_a_plain_task_waits_like_a_fiber() -> None:
    """It is woken, and its cancellation leaves no waiter behind."""
    deferred: Deferred[int] = Deferred()

    async def wait() -> int:
        return await deferred

    woken = asyncio.create_task(wait())
    cancelled = asyncio.create_task(wait())
    await turns()
    cancelled.cancel()
    await turns()
    waiting = len(deferred._waiters)
    deferred.done_unsafe(Success(1))

    assert waiting == 1
    assert await woken == 1
    assert cancelled.cancelled()


# ---- into


@pytest.mark.spec("PI1")
async def test_into_completes_with_the_exit_of_the_effect() -> None:
    """A failure of the effect is no failure of into."""
    good: Deferred[int, Boom] = Deferred()
    bad: Deferred[int, Boom] = Deferred()
    fine: Effect[int, Boom] = Effect.succeed(1)
    boom: Effect[int, Boom] = Effect.fail(BOOM)

    answers = [
        await Deferred.into(fine, good),
        await Deferred.into(boom, bad),
        await Deferred.into(fine, bad),
    ]

    assert answers == [True, True, False]
    assert await good == 1
    assert await bad.await_().exit() == failed(Fail(BOOM))


@pytest.mark.spec("PI1")
async def test_into_of_an_interrupted_fiber_completes_with_the_interrupt() -> None:
    """Nobody waits for an outcome that never comes."""
    deferred: Deferred[int] = Deferred()
    never: Effect[int] = Effect.never()
    fiber = fb.run_fork(Deferred.into(never, deferred))
    waiter = fb.run_fork(deferred.await_().exit())

    fiber.interrupt_unsafe(by=9)
    await turns()

    assert fiber.poll() == interrupted(9)
    assert waiter.poll() == Success(interrupted(9))


@pytest.mark.spec("PI1")
async def test_into_is_interruptible_only_where_the_caller_is() -> None:
    """restore gives the outer state back, which may be masked."""
    deferred: Deferred[int] = Deferred()
    gate: Deferred[int] = Deferred()
    fiber = fb.run_fork(Deferred.into(gate.await_(), deferred).uninterruptible())

    fiber.interrupt_unsafe(by=9)
    gate.done_unsafe(Success(1))
    await turns()

    assert await deferred == 1
    assert fiber.poll() == interrupted(9)


# ---- threads


@pytest.mark.spec("PI1", "AT16")
async def test_another_thread_completes_it() -> None:
    """done_unsafe wakes each waiter in the waiter's own loop."""
    deferred: Deferred[int] = Deferred()
    fiber = fb.run_fork(deferred.await_().map(lambda n: (n, threading.get_ident())))

    answer = await asyncio.to_thread(deferred.done_unsafe, Success(1))
    outcome = await fiber

    assert answer
    assert outcome == (1, threading.get_ident())


@pytest.mark.spec("PI1", "AT16")
def test_another_thread_wakes_a_loop_that_sleeps() -> None:
    """Through call_soon_threadsafe: a loop in debug mode refuses anything else."""
    deferred: Deferred[int] = Deferred()

    async def main() -> int:
        waiter = fb.run_fork(deferred.await_())
        thread = threading.Timer(0, deferred.done_unsafe, [Success(1)])
        thread.start()
        value = await waiter
        thread.join()
        return value

    with asyncio.Runner(debug=True) as runner:
        assert runner.run(main()) == 1


@pytest.mark.spec("PI1", "AT16")
async def test_fibers_of_two_loops_wait_for_one() -> None:
    """Each goes on in its own loop."""
    deferred: Deferred[int] = Deferred()
    here = fb.run_fork(deferred.await_())
    loop = asyncio.get_running_loop()
    waits = asyncio.Event()
    seen: list[tuple[int, bool]] = []

    @fb.effect
    async def wait_elsewhere() -> None:
        fiber = await deferred.await_().fork_child(start_immediately=True)
        loop.call_soon_threadsafe(waits.set)
        ident = threading.get_ident()
        seen.append((await fiber, threading.get_ident() == ident))

    thread = asyncio.create_task(asyncio.to_thread(fb.run, wait_elsewhere()))
    await waits.wait()
    await deferred.succeed(1)
    await thread

    assert await here == 1
    assert seen == [(1, True)]


@pytest.mark.spec("PI1", "AT16")
async def test_of_many_threads_one_completes_it() -> None:
    """Exactly one gets True, and every waiter gets that one's value."""
    for _ in range(50):
        deferred: Deferred[int] = Deferred()
        waiters: list[Fiber[int, Any]] = [fb.run_fork(deferred.await_()) for _ in range(3)]
        start = threading.Barrier(4)

        def complete(n: int, d: Deferred[int] = deferred, b: threading.Barrier = start) -> bool:
            b.wait()
            return d.done_unsafe(Success(n))

        answers = await asyncio.gather(*(asyncio.to_thread(complete, n) for n in range(4)))
        values = [await waiter for waiter in waiters]

        assert answers.count(True) == 1
        assert values == [answers.index(True)] * 3


@pytest.mark.spec("PI1")
async def test_a_waiter_of_a_closed_loop_keeps_nobody_else_waiting() -> None:
    """Its loop will never run again."""
    deferred: Deferred[int] = Deferred()
    loop = asyncio.new_event_loop()

    def abandon() -> None:
        async def wait() -> Fiber[int, Any]:
            return fb.run_fork(deferred.await_())

        loop.run_until_complete(wait())
        loop.close()

    await asyncio.to_thread(abandon)
    here = fb.run_fork(deferred.await_())
    deferred.done_unsafe(Success(1))

    assert await here == 1


@pytest.mark.spec("PI1")
def test_run_sync_gives_a_completed_deferred_without_a_loop() -> None:
    """And says that it can't wait for one that is not; no waiter stays behind."""
    ready: Deferred[int] = Deferred()
    pending: Deferred[int] = Deferred()

    fb.run_sync(ready.succeed(1))

    assert fb.run_sync(ready.await_()) == 1
    with pytest.raises(fb.AsyncFiberError):
        fb.run_sync(pending.await_())
    assert not pending._waiters


@pytest.mark.spec("PI1")
async def test_a_body_sees_the_failure_of_a_deferred_as_an_exception() -> None:
    """The very object, by its own class; an Interrupt as FiberInterrupted."""
    error: Deferred[int, Boom] = Deferred()
    cut: Deferred[int] = Deferred()
    await error.fail(BOOM)
    await cut.interrupt_with(9)

    @fb.effect
    async def body() -> list[object]:
        seen: list[object] = [running_fiber().id > 0]
        try:
            await error
        except Boom as exc:
            seen.append(exc)
        try:
            await cut
        except fb.FiberInterrupted as exc:
            seen.append(exc.cause)
        return seen

    assert await body() == [True, BOOM, Cause((Interrupt(9),))]


@pytest.mark.spec("PI1", "AT16")
async def test_an_interrupt_overtakes_a_completion_from_another_thread() -> None:
    """The thread has completed it, and the loop has not yet heard."""
    deferred = Deferred[int]()
    fiber = fb.run_fork(deferred.await_())
    thread = threading.Thread(target=lambda: deferred.done_unsafe(Success(5)))
    thread.start()
    thread.join()

    fiber.interrupt_unsafe(by=7)
    exit = await fiber.exit()
    await Effect.yield_now()

    assert interrupted(by=7) == exit
    assert await deferred == 5
