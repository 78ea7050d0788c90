"""Probes IN: what an interrupt stops, where it finds nothing that holds it off."""

from __future__ import annotations

import asyncio
import gc
import warnings
from typing import TYPE_CHECKING, Any, Never

import pytest
from returns.result import Success

import fibers as fb
from fibers import Effect, Interrupt
from tests.probes.kit_e import (
    RECOVERIES,
    chain,
    failed,
    interrupt_during,
    interrupted,
    parked,
    pass_time,
    peek,
    say,
    show,
    slow,
)

if TYPE_CHECKING:
    from types import TracebackType

    from fibers.testing import TestClock

DEEP = 10_000  # nested levels, far beyond the recursion limit


# ---- never started


@pytest.mark.spec("IN1", "WI4")
async def test_a_never_started_fiber_ends_at_the_interrupt_itself(rt: fb.Runtime) -> None:
    """Its exit stands as soon as interrupt_unsafe returns."""

    @fb.effect
    async def parent() -> fb.Exit[Any, Any] | None:
        child = await Effect.never().fork_child()
        child.interrupt_unsafe(by=77)
        return child.poll()

    assert await rt.run(parent()) == interrupted(77)


@pytest.mark.spec("IN1")
async def test_nothing_of_a_never_started_fiber_runs(rt: fb.Runtime) -> None:
    """Neither its effect nor the finalizers around it: they were never entered."""
    log: list[str] = []
    work = say(log, "body").on_interrupt(lambda _: say(log, "on_interrupt"))

    @fb.effect
    async def parent() -> fb.Exit[None, Never]:
        child = await work.ensuring(say(log, "ensuring")).fork_child()
        await child.interrupt(by=77)
        return await child.exit()

    exit = await rt.run(parent())

    assert exit == interrupted(77)
    assert log == []


@pytest.mark.spec("IN1")
async def test_nothing_of_a_never_started_fiber_runs_though_its_effect_is_masked(
    rt: fb.Runtime,
) -> None:
    """The mask is part of the effect, and the effect is never entered."""
    log: list[str] = []

    @fb.effect
    async def parent() -> fb.Exit[None, Never]:
        child = await say(log, "body").uninterruptible().fork_child()
        await child.interrupt(by=77)
        return await child.exit()

    exit = await rt.run(parent())

    assert exit == interrupted(77)
    assert log == []


@pytest.mark.spec("IN1")
async def test_a_never_started_coroutine_body_is_dropped_without_a_warning(rt: fb.Runtime) -> None:
    """No line of it runs, and no coroutine is left that was never awaited."""
    log: list[str] = []

    @fb.effect
    async def body() -> None:
        try:
            log.append("body")
        finally:
            log.append("finally")

    @fb.effect
    async def parent() -> fb.Exit[None, Never]:
        child = await body().fork_child()
        await child.interrupt(by=77)
        return await child.exit()

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        exit = await rt.run(parent())
        gc.collect()

    assert exit == interrupted(77)
    assert log == []
    assert warned == []


@pytest.mark.spec("IN1")
async def test_observers_of_a_never_started_fiber_hear_of_the_interrupt_before_it_returns(
    rt: fb.Runtime,
) -> None:
    """They are called within interrupt_unsafe."""
    log: list[str] = []

    @fb.effect
    async def parent() -> None:
        child = await Effect.never().fork_child()
        child.add_observer(lambda ended: log.append(show(ended)))
        child.interrupt_unsafe(by=77)
        log.append("returned")

    await rt.run(parent())

    assert log == ["I(77)", "returned"]


@pytest.mark.spec("IN2", "WI4")
async def test_a_never_started_fiber_forked_uninterruptible_runs_and_interrupt_waits_for_it(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """The fork option holds from before the first step."""
    log: list[str] = []

    @fb.effect
    async def parent() -> None:
        child = await slow(log, "").fork_child(uninterruptible=True)
        log.append("interrupt")
        await child.interrupt(by=77)
        log.append("returned")

    rt.run_fork(parent())
    await pass_time(rt, clock)

    assert log == ["interrupt", "start", "end", "returned"]


@pytest.mark.spec("IN2")
async def test_a_never_started_fiber_forked_uninterruptible_runs_to_success(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """Its value is its exit, the interrupt leaves no trace."""

    @fb.effect
    async def parent() -> fb.Exit[int, Never]:
        child = await fb.sleep(1).map(lambda _: 5).fork_child(uninterruptible=True)
        await child.interrupt(by=77)
        return await child.exit()

    fiber = rt.run_fork(parent())
    await pass_time(rt, clock)

    assert fiber.poll() == Success(Success(5))


# ---- suspended and interruptible


@pytest.mark.spec("IN3", "WI5")
@pytest.mark.parametrize("recovery", RECOVERIES)
async def test_an_external_interrupt_skips_failure_handlers(
    rt: fb.Runtime, clock: TestClock, recovery: str
) -> None:
    """No combinator that recovers from failures gets to see it."""
    log: list[str] = []
    work = RECOVERIES[recovery](fb.sleep(10), say(log, "recovered"))

    exit = await interrupt_during(rt, clock, work, at=1)

    assert exit == interrupted(77)
    assert log == []


@pytest.mark.spec("IN3", "WI5")
async def test_an_external_interrupt_skips_catch_defect(rt: fb.Runtime, clock: TestClock) -> None:
    """An interrupt is no defect."""
    log: list[str] = []
    work = fb.sleep(10).catch_defect(lambda _: say(log, "recovered"))

    exit = await interrupt_during(rt, clock, work, at=1)

    assert exit == interrupted(77)
    assert log == []


@pytest.mark.spec("IN3")
async def test_an_interrupt_skips_what_would_come_next(rt: fb.Runtime, clock: TestClock) -> None:
    """The continuation of the suspended effect is not called."""
    log: list[str] = []
    work = fb.sleep(10).flat_map(lambda _: say(log, "next"))

    await interrupt_during(rt, clock, work, at=1)

    assert log == []


@pytest.mark.spec("IN3")
async def test_an_interrupt_runs_ensuring_from_the_inside_out(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """A skipped handler between two finalizers changes nothing."""
    log: list[str] = []
    work = fb.sleep(10).ensuring(say(log, "inner"))
    work = work.exit().flat_map(lambda _: say(log, "next")).ensuring(say(log, "outer"))

    exit = await interrupt_during(rt, clock, work, at=1)

    assert exit == interrupted(77)
    assert log == ["inner", "outer"]


@pytest.mark.spec("IN3")
async def test_exit_awaited_in_a_body_does_not_hand_out_the_bodys_own_interrupt(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """The body leaves through its finally, not through the next line."""
    log: list[str] = []

    @fb.effect
    async def body() -> None:
        try:
            await fb.sleep(10).exit()
            log.append("next")
        finally:
            log.append("finally")

    exit = await interrupt_during(rt, clock, body(), at=1)

    assert exit == interrupted(77)
    assert log == ["finally"]


@pytest.mark.spec("IN3")
async def test_ten_thousand_nested_finalizers_run_from_the_inside_out(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """Unwinding needs no Python stack per level."""
    log: list[int] = []

    def note(level: int) -> Effect[None, Never]:
        return Effect.sync(lambda: log.append(level))

    nest: Effect[Any, Never] = Effect.never()
    for level in range(DEEP):
        nest = nest.ensuring(note(level))
    exit = await interrupt_during(rt, clock, nest)

    assert exit == interrupted(77)
    assert log == list(range(DEEP))


@pytest.mark.spec("IN3", "IN25")
async def test_ten_thousand_nested_bodies_leave_through_their_finally(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """Bodies that await bodies unwind as deep as combinators do."""
    log: list[int] = []

    @fb.effect
    async def level(depth: int) -> None:
        try:
            await (level(depth + 1) if depth < DEEP else Effect.never())
        finally:
            log.append(depth)

    exit = await interrupt_during(rt, clock, level(1))

    assert exit == interrupted(77)
    assert log == list(range(DEEP, 0, -1))


# ---- several interrupts


@pytest.mark.spec("IN10")
async def test_two_interrupts_before_delivery_are_both_in_the_exit(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """In the order in which they were asked for."""
    fiber = rt.run_fork(fb.sleep(1).uninterruptible())

    fiber.interrupt_unsafe(by=1001)
    fiber.interrupt_unsafe(by=1002)
    await pass_time(rt, clock)

    assert fiber.poll() == interrupted(1001, 1002)


@pytest.mark.spec("IN10", "PD2")
async def test_of_two_interrupts_before_delivery_the_first_is_thrown(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """The second joins the cause."""
    thrown: list[Interrupt | None] = []

    @fb.effect
    async def body() -> None:
        try:
            await fb.sleep(1).uninterruptible()
        except asyncio.CancelledError as exc:
            thrown.append(fb.interrupt_of(exc))
            raise

    fiber = rt.run_fork(body())
    fiber.interrupt_unsafe(by=1001)
    fiber.interrupt_unsafe(by=1002)
    await pass_time(rt, clock)

    assert thrown == [Interrupt(by=1001)]
    assert fiber.poll() == interrupted(1001, 1002)


@pytest.mark.spec("IN10", "PD20")
async def test_the_same_interrupt_twice_counts_once(rt: fb.Runtime, clock: TestClock) -> None:
    """Same interruptor, same reason."""
    fiber = rt.run_fork(fb.sleep(1).uninterruptible())

    for by in (1001, 1002, 1001):
        fiber.interrupt_unsafe(by=by, reason="stop")
    await pass_time(rt, clock)

    assert fiber.poll() == interrupted(1001, 1002, reason="stop")


@pytest.mark.spec("IN10", "PD20")
async def test_one_interruptor_with_two_reasons_counts_twice(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """The reason is part of the identity of an interrupt."""
    fiber = rt.run_fork(fb.sleep(1).uninterruptible())

    fiber.interrupt_unsafe(by=1001, reason="user")
    fiber.interrupt_unsafe(by=1001, reason="system")
    await pass_time(rt, clock)

    expected = failed(Interrupt(by=1001, reason="user"), Interrupt(by=1001, reason="system"))
    assert fiber.poll() == expected


@pytest.mark.spec("IN11")
async def test_a_second_interrupt_does_not_cut_a_running_finalizer(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """The finalizer keeps its pace and runs once."""
    log: list[str] = []
    fiber = rt.run_fork(Effect.never().on_interrupt(lambda _: slow(log, "", 2)))

    fiber.interrupt_unsafe(by=1)
    await pass_time(rt, clock, 1)
    fiber.interrupt_unsafe(by=2)
    log.append(peek(fiber))
    await pass_time(rt, clock, 1)

    assert log == ["start", "PENDING", "end"]


@pytest.mark.spec("IN11")
async def test_an_interrupt_that_comes_during_a_finalizer_is_in_the_exit(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """Both interruptors are named, the earlier first."""
    fiber = rt.run_fork(Effect.never().ensuring(fb.sleep(2)))

    fiber.interrupt_unsafe(by=1)
    await pass_time(rt, clock, 1)
    fiber.interrupt_unsafe(by=2)
    await pass_time(rt, clock)

    assert fiber.poll() == interrupted(1, 2)


@pytest.mark.spec("IN11")
async def test_an_outer_on_interrupt_is_told_of_an_interrupt_that_came_during_the_inner_one(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """The inner one was started with the first interruptor only."""
    told: list[frozenset[int]] = []

    def tell(ids: frozenset[int]) -> Effect[None, Never]:
        told.append(ids)
        return fb.sleep(2)

    fiber = rt.run_fork(Effect.never().on_interrupt(tell).on_interrupt(tell))

    fiber.interrupt_unsafe(by=1)
    await pass_time(rt, clock, 1)
    fiber.interrupt_unsafe(by=2)
    await pass_time(rt, clock)

    assert told == [frozenset({1}), frozenset({1, 2})]


@pytest.mark.spec("IN11", "PD2")
async def test_a_second_interrupt_does_not_cut_a_finally_that_awaits(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """A body's clean-up is as safe as a finalizer, and both interruptors are in the exit."""
    log: list[str] = []

    @fb.effect
    async def body() -> None:
        try:
            await Effect.never()
        finally:
            await slow(log, "", 2)

    fiber = rt.run_fork(body())
    fiber.interrupt_unsafe(by=1)
    await pass_time(rt, clock, 1)
    fiber.interrupt_unsafe(by=2)
    await pass_time(rt, clock)

    assert log == ["start", "end"]
    assert fiber.poll() == interrupted(1, 2)


# ---- bodies


@pytest.mark.spec("IN25", "PD1")
async def test_finally_runs_when_a_body_is_interrupted(rt: fb.Runtime) -> None:
    """Its synchronous part on the interruptor's stack."""
    log: list[str] = []

    @fb.effect
    async def body() -> None:
        try:
            await Effect.never()
        finally:
            log.append("finally")

    rt.run_fork(body()).interrupt_unsafe(by=77)

    assert log == ["finally"]


@pytest.mark.spec("IN25", "PD1")
async def test_a_finally_that_awaits_holds_up_the_end_of_the_body(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """The fiber has ended when the clean-up has."""
    log: list[str] = []

    @fb.effect
    async def body() -> None:
        try:
            await Effect.never()
        finally:
            await slow(log, "")

    fiber = rt.run_fork(body())
    fiber.interrupt_unsafe(by=77)
    log.append(peek(fiber))
    await pass_time(rt, clock)
    log.append(peek(fiber))

    assert log == ["start", "PENDING", "end", "I(77)"]


@pytest.mark.spec("IN25", "PD2")
async def test_except_cancelled_error_sees_who_interrupted_and_why(rt: fb.Runtime) -> None:
    """interrupt_of reads it from the exception."""
    seen: list[object] = []

    @fb.effect
    async def body() -> None:
        try:
            await Effect.never()
        except asyncio.CancelledError as cut:
            seen.append(fb.interrupt_of(cut))
            raise

    rt.run_fork(body()).interrupt_unsafe(by=77, reason="user")

    assert seen == [Interrupt(by=77, reason="user")]


@pytest.mark.spec("IN25", "PD1")
async def test_except_exception_does_not_see_an_interrupt(rt: fb.Runtime) -> None:
    """A body that handles errors broadly can still be interrupted."""
    log: list[str] = []

    @fb.effect
    async def body() -> None:
        try:
            await Effect.never()
        except Exception:
            log.append("caught")

    fiber = rt.run_fork(body())
    fiber.interrupt_unsafe(by=77)

    assert fiber.poll() == interrupted(77)
    assert log == []


@pytest.mark.spec("IN25", "PD1")
async def test_async_with_is_left_when_a_body_is_interrupted(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """Its __aexit__ may await, and is handed the interruption."""
    log: list[str] = []

    class Connection:
        async def __aenter__(self) -> None:
            log.append("open")

        async def __aexit__(
            self,
            kind: type[BaseException] | None,
            _: BaseException | None,
            __: TracebackType | None,
        ) -> None:
            log.append(f"closing {kind.__name__ if kind else None}")
            await fb.sleep(1)
            log.append("closed")

    @fb.effect
    async def body() -> None:
        async with Connection():
            await Effect.never()

    exit = await interrupt_during(rt, clock, body())

    assert exit == interrupted(77)
    assert log == ["open", "closing CancelledError", "closed"]


@pytest.mark.spec("IN26")
async def test_an_async_interrupt_finalizer_ends_before_interrupt_returns(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """It runs once, from its start to its end."""
    log: list[str] = []
    farewell = chain(say(log, "finalizer-start"), fb.sleep(1), say(log, "finalizer-end"))
    work = chain(say(log, "acquired"), Effect.never()).on_interrupt(lambda _: farewell)
    fiber = rt.run_fork(work)

    rt.run_fork(fiber.interrupt().flat_map(lambda _: say(log, "awaited")))
    await pass_time(rt, clock)

    assert log == ["acquired", "finalizer-start", "finalizer-end", "awaited"]


@pytest.mark.spec("IN26")
async def test_an_async_interrupt_finalizer_runs_once_for_two_interruptors(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """Both wait for the same run of it."""
    log: list[str] = []
    fiber = rt.run_fork(parked(log, "finalizer", seconds=1))

    first = rt.run_fork(fiber.interrupt())
    second = rt.run_fork(fiber.interrupt())
    await pass_time(rt, clock)

    assert log == ["finalizer"]
    assert (first.poll(), second.poll()) == (Success(None), Success(None))
