"""Probes FO: fibers owned by a scope, and what a closed scope does to a fork."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, Literal, Never

import pytest
from returns.result import Failure, Success

import fibers as fb
from fibers import Cause, Effect, Fail, Fiber, Interrupt, Scope
from tests.probes.kit_d import (
    Boom,
    at_gate,
    cause_of,
    interrupted_by,
    loop_turns,
    my_id,
    new_gate,
    parked,
    say,
    settle,
    steps,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from fibers.testing import TestClock

pytestmark = pytest.mark.lifecycle

SUSPENSIONS: dict[str, Callable[[asyncio.Future[int]], Effect[Any, Never]]] = {
    "effect": lambda _: Effect.never(),
    "plain future": at_gate,
    "sleep": lambda _: fb.sleep(60),
    "yield": lambda _: steps(Effect.yield_now(), Effect.never()),
}


async def closed_scope() -> Scope:
    """A scope that is closed already."""
    scope = Scope()
    await scope.close()
    return scope


def fork_and_look(
    effect: Effect[Any, Any],
    scope: Scope,
    *,
    start_immediately: bool = False,
    uninterruptible: bool | Literal["inherit"] = False,
) -> Effect[tuple[int, fb.Exit[Any, Any] | None], Never]:
    """Fork into the scope; give the forker's id and what poll says right after the fork."""
    forking = effect.fork_in(
        scope, start_immediately=start_immediately, uninterruptible=uninterruptible
    )
    return forking.map(lambda fiber: (my_id(), fiber.poll()))


# ---- into a closed scope, deferred


@pytest.mark.spec("FO1")
async def test_a_deferred_fork_into_a_closed_scope_has_ended_on_return() -> None:
    """The exit is an interrupt by the forker."""
    forker_id, exit = await fork_and_look(Effect.never(), await closed_scope())

    assert interrupted_by(exit) == [forker_id]


@pytest.mark.spec("FO1")
async def test_a_deferred_fork_at_the_edge_into_a_closed_scope_has_no_interruptor() -> None:
    """Outside any fiber there is nobody to name."""
    scope = await closed_scope()

    fiber = scope.fork(Effect.succeed(7))

    assert interrupted_by(fiber.poll()) == [None]


@pytest.mark.spec("FO1", "PD20")
async def test_a_fork_into_a_closed_scope_is_interrupted_because_the_scope_closed() -> None:
    """The reason says why."""
    forker_id, exit = await fork_and_look(Effect.never(), await closed_scope())

    assert exit == Failure(Cause((Interrupt(by=forker_id, reason="scope closed"),)))


@pytest.mark.spec("FO1")
async def test_nothing_of_a_deferred_fork_into_a_closed_scope_runs() -> None:
    """Neither the effect nor its on_exit, then or later."""
    log: list[str] = []
    scope = await closed_scope()
    work = say(log, "ran").on_exit(lambda _: say(log, "on_exit"))

    fiber = await work.fork_in(scope)
    await Effect.yield_now()
    await fiber.exit()

    assert log == []


@pytest.mark.spec("FO1")
async def test_a_deferred_fork_scoped_in_a_closed_scope_has_ended_on_return() -> None:
    """The scope in context counts as the one in hand."""
    log: list[str] = []
    scope = await closed_scope()
    forking = say(log, "ran").fork_scoped().map(lambda fiber: (my_id(), fiber.poll()))

    forker_id, exit = await scope.provide(forking)
    await Effect.yield_now()

    assert interrupted_by(exit) == [forker_id]
    assert log == []


@pytest.mark.spec("FO1")
async def test_no_line_of_a_deferred_body_forked_into_a_closed_scope_runs() -> None:
    """Nor its `finally`, which was never entered."""
    log: list[str] = []
    scope = await closed_scope()

    @fb.effect
    async def body() -> None:
        try:
            log.append("ran")
        finally:
            log.append("finally")

    fiber = scope.fork(body())
    await Effect.yield_now()

    assert cause_of(fiber.poll()).has_interrupts_only
    assert log == []


# ---- into a closed scope, started at once


@pytest.mark.spec("FO2")
@pytest.mark.parametrize("suspension", list(SUSPENSIONS))
async def test_an_immediate_fork_into_a_closed_scope_is_interrupted_at_its_first_suspension(
    suspension: str,
) -> None:
    """It has run, unwound and ended before fork returns."""
    log: list[str] = []
    scope = await closed_scope()
    suspending = SUSPENSIONS[suspension](new_gate())
    work = steps(say(log, "body-started"), suspending, say(log, "not reached"))

    fiber = scope.fork(work.on_interrupt(lambda _: say(log, "interrupted")), start_immediately=True)
    log.append("forked")

    assert log == ["body-started", "interrupted", "forked"]
    assert interrupted_by(fiber.poll()) == [None]


@pytest.mark.spec("FO2")
@pytest.mark.parametrize("suspension", list(SUSPENSIONS))
async def test_a_body_forked_into_a_closed_scope_is_interrupted_at_its_first_suspension(
    suspension: str,
) -> None:
    """A coroutine runs to its first await that suspends; its `finally` has run on return."""
    log: list[str] = []
    scope = await closed_scope()
    suspending = SUSPENSIONS[suspension](new_gate())

    @fb.effect
    async def body() -> None:
        await say(log, "body-started")
        try:
            await suspending
        finally:
            log.append("interrupted")

    fiber = scope.fork(body(), start_immediately=True)
    log.append("forked")

    assert log == ["body-started", "interrupted", "forked"]
    assert interrupted_by(fiber.poll()) == [None]


@pytest.mark.spec("FO2")
async def test_fork_in_on_a_closed_scope_interrupts_by_the_forker_at_the_first_suspension() -> None:
    """As an effect in a fiber, too, everything has happened when fork_in returns."""
    log: list[str] = []
    scope = await closed_scope()
    work = steps(say(log, "body-started"), Effect.never())
    guarded = work.on_interrupt(lambda _: say(log, "interrupted"))

    forker_id, exit = await fork_and_look(guarded, scope, start_immediately=True)

    assert log == ["body-started", "interrupted"]
    assert interrupted_by(exit) == [forker_id]


@pytest.mark.spec("FO2", "WI1")
async def test_a_future_awaited_through_promise_is_left_alone_by_a_closed_scope() -> None:
    """The fiber stops waiting; the future is neither settled nor cancelled."""
    gate = new_gate()
    scope = await closed_scope()

    fiber = scope.fork(at_gate(gate), start_immediately=True)

    assert interrupted_by(fiber.poll()) == [None]
    assert not gate.done()


@pytest.mark.spec("FO2", "WI1")
async def test_a_future_awaited_by_a_body_is_cancelled_by_a_closed_scope() -> None:
    """A plain future that the body itself awaits is cancelled first, and is done at once."""
    gate = new_gate()
    log: list[str] = []
    scope = await closed_scope()

    @fb.effect
    async def body() -> None:
        log.append("body-started")
        await gate

    fiber = scope.fork(
        body().on_interrupt(lambda _: say(log, "interrupted")), start_immediately=True
    )

    assert log == ["body-started", "interrupted"]
    assert gate.cancelled()
    assert interrupted_by(fiber.poll()) == [None]


@pytest.mark.spec("FO2")
async def test_asyncio_sleep_in_a_body_counts_as_a_plain_future() -> None:
    """The body has unwound on return, whoever made the future it waits on."""
    log: list[str] = []
    scope = await closed_scope()

    @fb.effect
    async def body() -> None:
        log.append("body-started")
        await asyncio.sleep(60)

    fiber = scope.fork(
        body().on_interrupt(lambda _: say(log, "interrupted")), start_immediately=True
    )

    assert log == ["body-started", "interrupted"]
    assert interrupted_by(fiber.poll()) == [None]


@pytest.mark.spec("FO2", "WI1")
async def test_a_thread_awaited_by_a_body_counts_as_a_plain_future() -> None:
    """The fiber doesn't wait for the thread to return."""
    log: list[str] = []
    release = threading.Event()
    scope = await closed_scope()

    @fb.effect
    async def body() -> None:
        log.append("body-started")
        await asyncio.to_thread(release.wait)

    try:
        fiber = scope.fork(
            body().on_interrupt(lambda _: say(log, "interrupted")), start_immediately=True
        )
        log.append("forked")
    finally:
        release.set()

    assert log == ["body-started", "interrupted", "forked"]
    assert interrupted_by(fiber.poll()) == [None]


@pytest.mark.spec("FO2")
async def test_a_suspension_deep_in_nested_awaits_counts_as_the_first() -> None:
    """Coroutines and effects awaited inline belong to the same first segment."""
    log: list[str] = []
    scope = await closed_scope()

    @fb.effect
    async def inner() -> None:
        try:
            log.append("inner")
            await Effect.never()
        finally:
            log.append("inner unwound")

    async def middle() -> None:
        try:
            await inner()
        finally:
            log.append("middle unwound")

    @fb.effect
    async def outer() -> None:
        try:
            await middle()
        finally:
            log.append("outer unwound")

    fiber = scope.fork(outer(), start_immediately=True)

    assert log == ["inner", "inner unwound", "middle unwound", "outer unwound"]
    assert interrupted_by(fiber.poll()) == [None]


@pytest.mark.spec("FO2")
async def test_an_asynchronous_finalizer_has_begun_when_the_fork_returns() -> None:
    """Its synchronous part has run; the fiber ends when the rest has."""
    log: list[str] = []
    gate = new_gate()
    scope = await closed_scope()
    farewell = steps(say(log, "finalizer-start"), at_gate(gate), say(log, "finalizer-end"))

    fiber = scope.fork(parked(farewell), start_immediately=True)
    log.append(f"forked, poll {fiber.poll()}")
    gate.set_result(0)
    await fiber.exit()

    assert log == ["finalizer-start", "forked, poll None", "finalizer-end"]
    assert interrupted_by(fiber.poll()) == [None]


@pytest.mark.spec("FO2")
async def test_a_finally_that_awaits_has_begun_when_the_fork_returns() -> None:
    """The same in a coroutine body: the rest of its `finally` is not cut short."""
    log: list[str] = []
    gate = new_gate()
    scope = await closed_scope()

    @fb.effect
    async def body() -> None:
        try:
            await Effect.never()
        finally:
            log.append("finally-start")
            await at_gate(gate)
            log.append("finally-end")

    fiber = scope.fork(body(), start_immediately=True)
    log.append(f"forked, poll {fiber.poll()}")
    gate.set_result(0)
    await fiber.exit()

    assert log == ["finally-start", "forked, poll None", "finally-end"]


@pytest.mark.spec("FO2", "WI1")
async def test_a_task_awaited_by_a_body_is_cancelled_before_the_fork_returns() -> None:
    """The interrupt is delivered at once; on_interrupt follows when the task has ended."""
    log: list[str] = []
    cleanup = new_gate()
    scope = await closed_scope()

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await cleanup
            log.append("task ended")

    task = asyncio.create_task(work())
    await asyncio.sleep(0)

    @fb.effect
    async def body() -> None:
        log.append("body-started")
        await task

    fiber = scope.fork(
        body().on_interrupt(lambda _: say(log, "interrupted")), start_immediately=True
    )
    log.append(f"forked, requests {task.cancelling()}, poll {fiber.poll()}")
    await asyncio.sleep(0)
    log.append(f"cleaning up, poll {fiber.poll()}")
    cleanup.set_result(0)
    await fiber.exit()

    assert log == [
        "body-started",
        "forked, requests 1, poll None",
        "cleaning up, poll None",
        "task ended",
        "interrupted",
    ]
    assert interrupted_by(fiber.poll()) == [None]


@pytest.mark.spec("FO2", "WI1")
async def test_a_gather_awaited_by_a_body_is_cancelled_before_the_fork_returns() -> None:
    """Every task of it gets the request; on_interrupt follows when all have ended."""
    log: list[str] = []
    cleanup = new_gate()
    scope = await closed_scope()

    async def work(name: str) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await cleanup
            log.append(f"{name} ended")

    tasks = [asyncio.create_task(work(name)) for name in ("first", "second")]
    await asyncio.sleep(0)

    @fb.effect
    async def body() -> None:
        log.append("body-started")
        await asyncio.gather(*tasks)

    fiber = scope.fork(
        body().on_interrupt(lambda _: say(log, "interrupted")), start_immediately=True
    )
    log.append(f"forked, requests {[task.cancelling() for task in tasks]}")
    await asyncio.sleep(0)
    log.append(f"cleaning up, poll {fiber.poll()}")
    cleanup.set_result(0)
    await fiber.exit()

    assert log == [
        "body-started",
        "forked, requests [1, 1]",
        "cleaning up, poll None",
        "first ended",
        "second ended",
        "interrupted",
    ]
    assert interrupted_by(fiber.poll()) == [None]


@pytest.mark.spec("FO2")
async def test_an_effect_masked_at_its_first_suspension_ends_when_the_mask_is_left() -> None:
    """The masked part runs to its end first."""
    log: list[str] = []
    gate = new_gate()
    scope = await closed_scope()
    masked = steps(at_gate(gate), say(log, "mask left")).uninterruptible()
    work = steps(say(log, "body-started"), masked, say(log, "not reached"))

    fiber = scope.fork(work.on_interrupt(lambda _: say(log, "interrupted")), start_immediately=True)
    log.append(f"forked, poll {fiber.poll()}")
    gate.set_result(0)
    await fiber.exit()

    assert log == ["body-started", "forked, poll None", "mask left", "interrupted"]
    assert interrupted_by(fiber.poll()) == [None]


@pytest.mark.spec("FO2", "PD17")
async def test_a_body_masked_at_its_first_suspension_ends_after_its_region() -> None:
    """At the first suspension after the region, so that a following `try` is entered."""
    log: list[str] = []
    gate = new_gate()
    scope = await closed_scope()

    @fb.effect
    async def body() -> None:
        log.append("body-started")
        with fb.uninterruptible():
            await at_gate(gate)
        log.append("region left")
        try:
            await Effect.never()
        finally:
            log.append("interrupted")

    fiber = scope.fork(body(), start_immediately=True)
    log.append(f"forked, poll {fiber.poll()}")
    gate.set_result(0)
    await fiber.exit()

    assert log == ["body-started", "forked, poll None", "region left", "interrupted"]
    assert interrupted_by(fiber.poll()) == [None]


@pytest.mark.spec("FO2")
async def test_a_first_segment_that_closes_the_scope_counts_as_forked_into_a_closed_one() -> None:
    """It goes on after its close, to its first suspension."""
    log: list[str] = []
    scope = Scope()
    work = steps(say(log, "body-started"), scope.close(), say(log, "closed"), Effect.never())

    fiber = scope.fork(work.on_interrupt(lambda _: say(log, "interrupted")), start_immediately=True)
    log.append("forked")

    assert log == ["body-started", "closed", "interrupted", "forked"]
    assert interrupted_by(fiber.poll()) == [None]


@pytest.mark.spec("FO2")
async def test_a_body_whose_first_segment_closes_its_scope_is_interrupted_by_the_forker() -> None:
    """The same in a coroutine, forked by a fiber."""
    log: list[str] = []
    scope = Scope()

    @fb.effect
    async def body() -> None:
        await scope.close()
        log.append("closed")
        try:
            await Effect.never()
        finally:
            log.append("interrupted")

    forker_id, exit = await fork_and_look(body(), scope, start_immediately=True)

    assert log == ["closed", "interrupted"]
    assert interrupted_by(exit) == [forker_id]


@pytest.mark.spec("FO2", "PD16")
async def test_immediate_forks_into_a_closed_scope_nest_without_a_python_stack() -> None:
    """Ten thousand levels each start, fork the next one, and are interrupted."""
    log: list[str] = []
    interrupted: list[int] = []
    scope = await closed_scope()

    def nest(level: int) -> Effect[Any, Never]:
        if level == 0:
            return say(log, "innermost")
        forking = Effect.suspend(lambda: nest(level - 1).fork_in(scope, start_immediately=True))
        parking = parked(Effect.sync(lambda: interrupted.append(level)))
        return steps(forking, parking)

    await nest(10_000).fork_in(scope, start_immediately=True)

    assert log == ["innermost"]
    assert interrupted == list(range(1, 10_001))


# ---- synchronous and uninterruptible forks into a closed scope


@pytest.mark.spec("FO3")
async def test_a_synchronous_effect_has_finished_before_the_closed_scope_is_looked_at() -> None:
    """Its success is its exit."""
    scope = await closed_scope()

    fiber = scope.fork(Effect.succeed(6).map(lambda n: n + 1), start_immediately=True)

    assert fiber.poll() == Success(7)


@pytest.mark.spec("FO3")
async def test_a_synchronous_body_has_finished_before_the_closed_scope_is_looked_at() -> None:
    """A coroutine that never suspends, forked by a fiber."""
    log: list[str] = []

    @fb.effect
    async def body() -> int:
        await say(log, "ran")
        return 7

    _, exit = await fork_and_look(body(), await closed_scope(), start_immediately=True)

    assert log == ["ran"]
    assert exit == Success(7)


@pytest.mark.spec("FO3")
async def test_a_synchronous_failure_has_happened_before_the_closed_scope_is_looked_at() -> None:
    """A typed failure is an end like a success."""
    error = Boom("early")
    scope = await closed_scope()

    fiber = scope.fork(Effect.fail(error), start_immediately=True)

    assert fiber.poll() == Failure(Cause((Fail(error),)))


@pytest.mark.spec("FO4")
@pytest.mark.parametrize("start_immediately", [False, True], ids=["deferred", "immediate"])
async def test_an_uninterruptible_fork_into_a_closed_scope_never_runs(
    start_immediately: bool,
) -> None:
    """It could not be interrupted later, so it is not let in."""
    log: list[str] = []
    work = steps(say(log, "ran"), Effect.yield_now()).on_exit(lambda _: say(log, "on_exit"))

    forker_id, exit = await fork_and_look(
        work,
        await closed_scope(),
        start_immediately=start_immediately,
        uninterruptible=True,
    )
    await Effect.yield_now()

    assert interrupted_by(exit) == [forker_id]
    assert log == []


@pytest.mark.spec("FO4")
@pytest.mark.parametrize("start_immediately", [False, True], ids=["deferred", "immediate"])
async def test_a_fork_that_inherits_a_mask_into_a_closed_scope_never_runs(
    start_immediately: bool,
) -> None:
    """To inherit from a masked forker is as closed as the option itself."""
    log: list[str] = []
    work = steps(say(log, "ran"), Effect.yield_now()).on_exit(lambda _: say(log, "on_exit"))
    looking = fork_and_look(
        work,
        await closed_scope(),
        start_immediately=start_immediately,
        uninterruptible="inherit",
    )

    forker_id, exit = await looking.uninterruptible()
    await Effect.yield_now()

    assert interrupted_by(exit) == [forker_id]
    assert log == []


@pytest.mark.spec("FO4")
async def test_a_synchronous_uninterruptible_fork_into_a_closed_scope_never_runs() -> None:
    """Unlike an interruptible one, it does not get to run its synchronous part."""
    log: list[str] = []
    scope = await closed_scope()

    fiber = scope.fork(say(log, "ran"), start_immediately=True, uninterruptible=True)

    assert interrupted_by(fiber.poll()) == [None]
    assert log == []


@pytest.mark.spec("FO4")
async def test_inherit_from_an_unmasked_forker_still_runs_to_the_first_suspension() -> None:
    """Where there is no mask to inherit the fork is an ordinary one."""
    log: list[str] = []
    work = steps(say(log, "body-started"), parked(say(log, "interrupted")))

    await fork_and_look(
        work, await closed_scope(), start_immediately=True, uninterruptible="inherit"
    )

    assert log == ["body-started", "interrupted"]


# ---- into an open scope


@pytest.mark.spec("FO5")
@pytest.mark.parametrize("start_immediately", [False, True], ids=["deferred", "immediate"])
async def test_a_fork_adds_one_finalizer_to_an_open_scope(start_immediately: bool) -> None:
    """Nothing before, one after."""
    scope = Scope()
    before = scope.finalizer_count

    scope.fork(Effect.never(), start_immediately=start_immediately)
    after = scope.finalizer_count
    await scope.close()

    assert [before, after] == [0, 1]


@pytest.mark.spec("FO5")
async def test_the_finalizer_is_gone_before_an_awaiter_of_the_fiber_goes_on() -> None:
    """The joiner finds an empty scope."""
    scope = Scope()
    gate = new_gate()
    fiber = scope.fork(at_gate(gate), start_immediately=True)
    counting = fiber.join().map(lambda _: (scope.finalizer_count, scope.state))
    awaiter = fb.run_fork(counting)

    during = scope.finalizer_count
    gate.set_result(7)

    assert await awaiter == (0, "empty")
    assert during == 1


@pytest.mark.spec("FO5")
async def test_the_finalizer_is_gone_when_the_observers_of_the_fiber_are_called() -> None:
    """Right at completion, not a turn later."""
    scope = Scope()
    gate = new_gate()
    counts: list[int] = []
    fiber = scope.fork(at_gate(gate), start_immediately=True)
    fiber.add_observer(lambda _: counts.append(scope.finalizer_count))

    gate.set_result(7)
    await fiber.exit()

    assert counts == [0]


@pytest.mark.spec("FO5")
async def test_the_finalizer_is_gone_after_a_body_failed_or_was_interrupted() -> None:
    """However the fiber ended."""
    scope = Scope()
    gate = new_gate()

    @fb.effect
    async def body() -> None:
        await at_gate(gate)
        raise ValueError

    failing = scope.fork(body(), start_immediately=True)
    interrupted = scope.fork(Effect.never(), start_immediately=True)
    counts = [scope.finalizer_count]
    interrupted.interrupt_unsafe()
    counts.append(scope.finalizer_count)
    gate.set_result(0)
    await failing.exit()
    counts.append(scope.finalizer_count)

    assert counts == [2, 1, 0]


@pytest.mark.spec("FO5")
async def test_a_fiber_that_finished_synchronously_never_registers() -> None:
    """The scope has not even been opened by it."""
    scope = Scope()

    fiber = scope.fork(Effect.succeed(7), start_immediately=True)

    assert fiber.poll() == Success(7)
    assert (scope.finalizer_count, scope.state) == (0, "empty")


@pytest.mark.spec("FO5")
async def test_a_scope_is_back_to_empty_after_its_last_fiber() -> None:
    """Open as long as one is left."""
    scope = Scope()
    gates = [new_gate() for _ in range(2)]
    fibers = [scope.fork(at_gate(gate), start_immediately=True) for gate in gates]
    states: list[str] = [scope.state]

    for gate, fiber in zip(gates, fibers, strict=True):
        gate.set_result(7)
        await fiber.exit()
        states.append(scope.state)

    assert states == ["open", "open", "empty"]


@pytest.mark.spec("FO5", "PD16")
async def test_immediate_forks_into_an_open_scope_nest_without_a_python_stack() -> None:
    """Ten thousand levels, each started by the one above; nothing is left in the scope."""
    log: list[str] = []
    scope = Scope()

    def nest(level: int) -> Effect[Any, Never]:
        if level == 0:
            return say(log, "innermost")
        return Effect.suspend(lambda: nest(level - 1).fork_in(scope, start_immediately=True))

    await steps(nest(10_000), say(log, "back at the top"))

    assert log == ["innermost", "back at the top"]
    assert scope.finalizer_count == 0


# ---- the close of the scope


@pytest.mark.spec("FO6")
async def test_a_fiber_that_closes_its_own_scope_is_not_interrupted_by_it() -> None:
    """It goes on, suspends again, and succeeds."""
    log: list[str] = []
    scope = Scope()
    work = steps(Effect.yield_now(), scope.close(), say(log, "after-close"), Effect.yield_now())

    fiber = await work.map(lambda _: 7).fork_in(scope)
    exit = await fiber.exit()

    assert log == ["after-close"]
    assert exit == Success(7)


@pytest.mark.spec("FO6")
async def test_a_deferred_body_may_close_its_own_scope_in_its_first_segment() -> None:
    """It was forked into an open scope; the close leaves its closer out."""
    log: list[str] = []
    scope = Scope("parallel")

    @fb.effect
    async def body() -> int:
        await scope.close()
        log.append("after-close")
        await Effect.yield_now()
        return 7

    fiber = scope.fork(body())
    exit = await fiber.exit()

    assert log == ["after-close"]
    assert exit == Success(7)
    assert scope.state == "closed"


@pytest.mark.spec("FO6", "SO6")
async def test_a_fiber_that_closes_its_own_scope_ends_its_neighbours_first() -> None:
    """Only the closer is left out; the others have ended when close returns."""
    log: list[str] = []
    scope = Scope()
    neighbour = scope.fork(
        parked(steps(Effect.yield_now(), say(log, "neighbour"))), start_immediately=True
    )

    closer = scope.fork(
        steps(Effect.yield_now(), scope.close(), say(log, "after-close")), start_immediately=True
    )
    await closer.exit()

    assert log == ["neighbour", "after-close"]
    assert interrupted_by(neighbour.poll()) == [closer.id]


@pytest.mark.spec("FO8")
@pytest.mark.parametrize("strategy", ["sequential", "parallel"])
async def test_a_close_waits_for_an_uninterruptible_fiber(
    strategy: Literal["sequential", "parallel"], rt: fb.Runtime, clock: TestClock
) -> None:
    """The fiber runs to its end, then close returns."""
    log: list[str] = []
    scope = Scope(strategy)
    work = steps(fb.sleep(1), say(log, "slept"))
    fiber = await rt.run(work.fork_in(scope, start_immediately=True, uninterruptible=True))

    rt.run_fork(steps(scope.close(), say(log, "closed")))
    await settle(rt, clock)
    before = list(log)
    await rt.run(clock.adjust(1))

    assert before == []
    assert log == ["slept", "closed"]
    assert fiber.poll() == Success(None)


@pytest.mark.spec("FO8")
async def test_a_close_waits_for_the_asynchronous_finalizer_of_its_fiber(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """Interrupt and await, not only interrupt."""
    log: list[str] = []
    scope = Scope()
    parking = parked(steps(fb.sleep(1), say(log, "finalized")))
    await rt.run(parking.fork_in(scope, start_immediately=True))

    rt.run_fork(steps(scope.close(), say(log, "closed")))
    await rt.run(clock.adjust(1))

    assert log == ["finalized", "closed"]


@pytest.mark.spec("FO9")
async def test_a_scoped_fiber_keeps_its_place_among_the_finalizers() -> None:
    """Last in, first out: the later finalizer, the fiber, the earlier finalizer."""
    log: list[str] = []

    @fb.effect
    async def body() -> None:
        await fb.add_finalizer(lambda _: say(log, "fin1"))
        await parked(say(log, "fiber int")).fork_scoped(start_immediately=True)
        await fb.add_finalizer(lambda _: say(log, "fin2"))

    await fb.scoped(body())

    assert log == ["fin2", "fiber int", "fin1"]


@pytest.mark.spec("FO9")
async def test_fork_in_keeps_its_place_among_the_finalizers_of_its_scope() -> None:
    """The same with a scope in hand."""
    log: list[str] = []
    scope = Scope()

    await scope.add_finalizer(lambda _: say(log, "fin1"))
    scope.fork(parked(say(log, "fiber int")), start_immediately=True)
    await scope.add_finalizer(lambda _: say(log, "fin2"))
    await scope.close()

    assert log == ["fin2", "fiber int", "fin1"]


@pytest.mark.spec("FO9")
async def test_a_scoped_fiber_outlives_its_forker_and_ends_with_the_scope() -> None:
    """It belongs to the scope, not to the fiber that forked it."""
    log: list[str] = []
    scope = Scope()

    forking = parked(say(log, "fiber int")).fork_scoped(start_immediately=True)
    fiber = await scope.provide(forking)
    log.append(f"forker ended, poll {fiber.poll()}")
    await scope.close()

    assert log == ["forker ended, poll None", "fiber int"]


@pytest.mark.spec("FO10")
async def test_a_deferred_scoped_fiber_whose_scope_closes_first_never_runs() -> None:
    """It is interrupted before its first step."""
    log: list[str] = []
    work = say(log, "ran").on_exit(lambda _: say(log, "on_exit"))

    fiber = await fb.scoped(work.fork_scoped())
    exit = await fiber.exit()

    assert cause_of(exit).has_interrupts_only
    assert log == []


@pytest.mark.spec("FO10")
async def test_a_deferred_body_whose_scope_closes_first_never_runs() -> None:
    """Forked at the edge, closed before the loop turned."""
    log: list[str] = []
    scope = Scope()

    @fb.effect
    async def body() -> None:
        log.append("ran")

    fiber = scope.fork(body())
    closer = fb.run_fork(scope.close())
    exit = fiber.poll()
    await Effect.yield_now()

    assert interrupted_by(exit) == [closer.id]
    assert log == []


# ---- run_in


@pytest.mark.spec("FO11")
async def test_run_in_a_closed_scope_interrupts_with_the_fibers_own_id() -> None:
    """At once, and the fiber is given back."""
    scope = await closed_scope()
    fiber: Fiber[None, Never] = fb.run_fork(Effect.never())

    same = fiber.run_in(scope)

    assert same is fiber
    assert interrupted_by(fiber.poll()) == [fiber.id]


@pytest.mark.spec("FO11")
async def test_run_in_a_closed_scope_leaves_a_finished_fiber_as_it_is() -> None:
    """There is nothing left to interrupt."""
    fiber = fb.run_fork(Effect.succeed(7))

    fiber.run_in(await closed_scope())

    assert fiber.poll() == Success(7)


@pytest.mark.spec("FO11")
async def test_run_in_an_open_scope_ends_the_fiber_with_that_scope() -> None:
    """A running fiber gets an owner; when it ends it takes its finalizer away."""
    scope = Scope()
    gate = new_gate()
    kept = fb.run_fork(parked(Effect.succeed(None))).run_in(scope)
    done = fb.run_fork(at_gate(gate)).run_in(scope)
    counts = [scope.finalizer_count]

    gate.set_result(7)
    await done.exit()
    counts.append(scope.finalizer_count)
    await scope.close()

    assert counts == [2, 1]
    assert cause_of(kept.poll()).has_interrupts_only


# ---- who interrupts at a close


@pytest.mark.spec("FO12")
async def test_a_close_interrupts_by_the_closing_fiber_whatever_exit_it_closes_with() -> None:
    """Not by the one that the scope's exit names."""
    scope = Scope()
    fiber: Fiber[None, Never] = scope.fork(Effect.never(), start_immediately=True)
    why: fb.Exit[None, Never] = Failure(Cause((Interrupt(by=999, reason=None),)))

    closer = fb.run_fork(scope.close(why))
    await closer.exit()

    assert interrupted_by(fiber.poll()) == [closer.id]


@pytest.mark.spec("FO12")
@pytest.mark.parametrize("strategy", ["sequential", "parallel"])
async def test_a_close_with_a_success_interrupts_by_the_closing_fiber_too(
    strategy: Literal["sequential", "parallel"],
) -> None:
    """Both strategies, every fiber."""
    scope = Scope(strategy)
    fibers = [scope.fork(Effect.never(), start_immediately=True) for _ in range(3)]

    closer = fb.run_fork(scope.close(Success("done")))
    await closer.exit()

    assert [interrupted_by(fiber.poll()) for fiber in fibers] == [[closer.id]] * 3


@pytest.mark.spec("FO12", "PD20")
async def test_a_close_without_a_reason_says_that_the_scope_closed() -> None:
    """The default reason of an interrupt by a close."""
    scope = Scope()
    fiber: Fiber[None, Never] = scope.fork(Effect.never(), start_immediately=True)

    closer = fb.run_fork(scope.close())
    await closer.exit()

    assert fiber.poll() == Failure(Cause((Interrupt(by=closer.id, reason="scope closed"),)))


@pytest.mark.spec("FO12", "PD20")
async def test_a_close_hands_its_reason_to_every_interrupt() -> None:
    """Who closes says why."""
    scope = Scope("parallel")
    fibers = [scope.fork(Effect.never(), start_immediately=True) for _ in range(2)]

    closer = fb.run_fork(scope.close(reason="maintenance"))
    await closer.exit()

    expected = Failure(Cause((Interrupt(by=closer.id, reason="maintenance"),)))
    assert [fiber.poll() for fiber in fibers] == [expected] * 2


@pytest.mark.spec("FO2", "PD17")
@pytest.mark.parametrize("levels", [0, 30])
async def test_a_body_masked_at_its_first_suspension_in_a_closed_scope_ends_when_unmasked(
    levels: int,
) -> None:
    """The fork is back by then, near the top and deep inside other forks."""
    log: list[str] = []
    gate = new_gate()
    scope = Scope()
    await scope.close()

    async def body() -> None:
        with fb.uninterruptible():
            await gate
            log.append("unmasked")
        await Effect.never()

    def inside(level: int) -> Effect[Fiber[None, Any]]:
        if level == 0:
            return Effect.promise(body).fork_in(scope, start_immediately=True)
        below = Effect.suspend(lambda: inside(level - 1)).fork_child(start_immediately=True)
        return below.flat_map(lambda fiber: fiber.join())

    fiber = await inside(levels)
    before = fiber.poll()
    gate.set_result(0)
    await fiber.exit()

    assert before is None
    assert log == ["unmasked"]
    assert len(interrupted_by(fiber.poll())) == 1


@pytest.mark.spec("FO4", "FO5")
async def test_a_plain_masked_fork_into_an_open_scope_starts_at_once_and_is_owned() -> None:
    """Only a closed scope keeps it from running; the close waits for it."""
    log: list[str] = []
    gate = new_gate()
    scope = Scope()
    work = at_gate(gate).flat_map(lambda _: say(log, "done"))
    fiber = scope.fork(work, start_immediately=True, uninterruptible=True)
    held = scope.finalizer_count
    closing = fb.run_fork(scope.close().flat_map(lambda _: say(log, "closed")))
    await loop_turns()
    early = list(log)
    gate.set_result(0)
    await closing.exit()

    assert held == 1
    assert early == []
    assert log == ["done", "closed"]
    assert fiber.poll() == Success(None)
