"""Probes WI: at which point of a fiber's life an interrupt lands."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, Never

import pytest
from returns.maybe import Nothing
from returns.result import Success

import fibers as fb
from fibers import Die, Effect, Fail, Interrupt
from tests.probes.kit_e import (
    Boom,
    Defect,
    chain,
    failed,
    interrupt_during,
    interrupted,
    me,
    parked,
    pass_time,
    peek,
    raising,
    say,
    show,
    slow,
)

if TYPE_CHECKING:
    from fibers.testing import TestClock

pytestmark = pytest.mark.lifecycle

DEEP = 10_000  # generations, far beyond the recursion limit


# ---- suspended


@pytest.mark.spec("WI1")
async def test_a_suspended_fiber_ends_on_the_interruptors_stack(rt: fb.Runtime) -> None:
    """The synchronous parts of its finalizers have run when interrupt_unsafe returns."""
    log: list[str] = []
    work = Effect.never().on_interrupt(lambda _: say(log, "inner")).ensuring(say(log, "outer"))
    fiber = rt.run_fork(work)

    fiber.interrupt_unsafe(by=77)
    log.append(peek(fiber))

    assert log == ["inner", "outer", "I(77)"]


@pytest.mark.spec("WI1")
async def test_a_finalizer_that_suspends_has_run_its_synchronous_part(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """The rest of it follows when it is resumed."""
    log: list[str] = []
    fiber = rt.run_fork(Effect.never().on_interrupt(lambda _: slow(log, "")))

    fiber.interrupt_unsafe(by=77)
    log.append("returned")
    await pass_time(rt, clock)

    assert log == ["start", "returned", "end"]


@pytest.mark.spec("WI1", "PD1")
async def test_a_suspended_body_unwinds_on_the_interruptors_stack(rt: fb.Runtime) -> None:
    """Its except and finally have run when interrupt_unsafe returns."""
    log: list[str] = []

    @fb.effect
    async def body() -> None:
        try:
            await fb.sleep(10)
        except asyncio.CancelledError:
            log.append("except")
            raise
        finally:
            log.append("finally")

    fiber = rt.run_fork(body())
    fiber.interrupt_unsafe(by=77)
    log.append(peek(fiber))

    assert log == ["except", "finally", "I(77)"]


@pytest.mark.spec("WI1", "VF1")
async def test_a_promise_on_a_future_stops_waiting_and_leaves_the_future_alone(
    rt: fb.Runtime,
) -> None:
    """It is neither settled nor cancelled."""
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    fiber = rt.run_fork(Effect.promise(lambda: future))

    fiber.interrupt_unsafe(by=77)

    assert fiber.poll() == interrupted(77)
    assert not future.done()


@pytest.mark.spec("WI1", "PR3")
async def test_a_promise_on_a_task_stops_waiting_and_leaves_the_task_running(
    rt: fb.Runtime,
) -> None:
    """The task ends by itself, with its own value."""
    gate = asyncio.Event()

    async def work() -> int:
        await gate.wait()
        return 5

    task = asyncio.create_task(work())
    fiber = rt.run_fork(Effect.promise(lambda: task))
    fiber.interrupt_unsafe(by=77)
    exit = fiber.poll()
    gate.set()

    assert exit == interrupted(77)
    assert await task == 5


@pytest.mark.spec("WI1", "PD1")
async def test_a_promise_on_a_coroutine_unwinds_it(rt: fb.Runtime) -> None:
    """A coroutine is a body of the fiber: its finally runs at once."""
    log: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            log.append("finally")

    fiber = rt.run_fork(Effect.promise(work))
    fiber.interrupt_unsafe(by=77)

    assert fiber.poll() == interrupted(77)
    assert log == ["finally"]


@pytest.mark.spec("WI1")
async def test_a_future_that_a_body_awaits_directly_is_cancelled(rt: fb.Runtime) -> None:
    """As asyncio does; the fiber has ended when interrupt_unsafe returns."""
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    @fb.effect
    async def body() -> int:
        return await future

    fiber = rt.run_fork(body())
    fiber.interrupt_unsafe(by=77)

    assert fiber.poll() == interrupted(77)
    assert future.cancelled()


@pytest.mark.spec("WI1")
async def test_a_task_that_a_body_awaits_directly_is_cancelled_and_awaited(rt: fb.Runtime) -> None:
    """The body is left when the clean-up of the task has ended."""
    log: list[str] = []
    gate = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            log.append("task cancelled")
            await gate.wait()
            log.append("task ended")

    @fb.effect
    async def body() -> None:
        try:
            await asyncio.create_task(work())
        finally:
            log.append("body left")

    fiber = rt.run_fork(body())
    await asyncio.sleep(0)  # the task reaches its wait
    fiber.interrupt_unsafe(by=77)
    log.append(peek(fiber))
    gate.set()
    exit = await rt.run(fiber.exit())

    assert exit == interrupted(77)
    assert log == ["PENDING", "task cancelled", "task ended", "body left"]


@pytest.mark.spec("WI1")
async def test_a_body_that_awaits_a_task_sees_its_own_cancelled_error(rt: fb.Runtime) -> None:
    """Not that of the task: interrupt_of knows it."""
    seen: list[object] = []

    @fb.effect
    async def body() -> None:
        try:
            await asyncio.create_task(asyncio.Event().wait())
        except asyncio.CancelledError as cut:
            seen.append(fb.interrupt_of(cut))
            raise

    fiber = rt.run_fork(body())
    await asyncio.sleep(0)  # the task reaches its wait
    fiber.interrupt_unsafe(by=77, reason="user")
    await rt.run(fiber.exit())

    assert seen == [Interrupt(by=77, reason="user")]


@pytest.mark.spec("WI1")
async def test_the_value_of_a_task_that_swallows_its_cancellation_is_dropped(
    rt: fb.Runtime,
) -> None:
    """The body is interrupted all the same."""
    log: list[str] = []

    async def stubborn() -> int:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            log.append("swallowed")
        return 5

    @fb.effect
    async def body() -> None:
        value = await asyncio.create_task(stubborn())
        log.append(f"got {value}")

    fiber = rt.run_fork(body())
    await asyncio.sleep(0)  # the task reaches its wait
    fiber.interrupt_unsafe(by=77)
    exit = await rt.run(fiber.exit())

    assert exit == interrupted(77)
    assert log == ["swallowed"]


@pytest.mark.spec("WI1")
async def test_the_error_of_a_task_that_fails_while_it_is_cancelled_joins_the_interrupt(
    rt: fb.Runtime,
) -> None:
    """A defect, and the first reason; the body sees its own CancelledError."""
    defect = Defect()
    seen: list[type[BaseException]] = []

    async def failing() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise defect

    @fb.effect
    async def body() -> None:
        try:
            await asyncio.create_task(failing())
        except BaseException as cut:
            seen.append(type(cut))
            raise

    fiber = rt.run_fork(body())
    await asyncio.sleep(0)  # the task reaches its wait
    fiber.interrupt_unsafe(by=77)
    exit = await rt.run(fiber.exit())

    assert exit == failed(Die(defect), Interrupt(by=77, reason=None))
    assert seen == [asyncio.CancelledError]


@pytest.mark.spec("WI1")
async def test_the_children_of_a_gather_have_ended_when_the_body_is_left(rt: fb.Runtime) -> None:
    """A gather that is cancelled is awaited as a task is."""
    log: list[str] = []
    gate = asyncio.Event()

    async def work(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await gate.wait()
            log.append(f"{name} ended")

    @fb.effect
    async def body() -> None:
        try:
            await asyncio.gather(work("a"), work("b"))
        finally:
            log.append("body left")

    fiber = rt.run_fork(body())
    await asyncio.sleep(0)  # the children reach their waits
    fiber.interrupt_unsafe(by=77)
    log.append(peek(fiber))
    gate.set()
    exit = await rt.run(fiber.exit())

    assert exit == interrupted(77)
    assert log == ["PENDING", "a ended", "b ended", "body left"]


@pytest.mark.spec("WI1")
async def test_a_body_that_waits_for_a_thread_is_left_at_once(rt: fb.Runtime) -> None:
    """The future of to_thread is done when it is cancelled; the thread goes on."""
    release = threading.Event()

    @fb.effect
    async def body() -> None:
        await asyncio.to_thread(release.wait)

    fiber = rt.run_fork(body())
    fiber.interrupt_unsafe(by=77)
    exit = fiber.poll()
    release.set()

    assert exit == interrupted(77)


# ---- running


@pytest.mark.spec("WI2")
async def test_a_masked_effect_that_would_come_next_is_not_entered(rt: fb.Runtime) -> None:
    """The interrupt lands before the mask is put on."""
    log: list[str] = []
    interrupting = Effect.sync(lambda: me().interrupt_unsafe(by=77))
    fiber = rt.run_fork(interrupting.flat_map(lambda _: say(log, "masked").uninterruptible()))

    assert fiber.poll() == interrupted(77)
    assert log == []


@pytest.mark.spec("WI2")
async def test_a_masked_effect_awaited_next_in_a_body_is_not_entered(rt: fb.Runtime) -> None:
    """The synchronous segment goes on to the await and ends there."""
    log: list[str] = []

    @fb.effect
    async def body() -> None:
        me().interrupt_unsafe(by=77)
        log.append("same segment")
        await say(log, "masked").uninterruptible()

    fiber = rt.run_fork(body())

    assert fiber.poll() == interrupted(77)
    assert log == ["same segment"]


@pytest.mark.spec("WI2")
async def test_an_interrupt_from_a_callback_under_the_fiber_lands_after_the_primitive(
    rt: fb.Runtime,
) -> None:
    """Here an abort listener, called by the fiber's own abort()."""
    log: list[str] = []
    controller = fb.AbortController()

    def abort() -> None:
        controller.abort("enough")
        log.append("aborted")

    def stop(_: object) -> None:
        fiber.interrupt_unsafe(by=77)
        log.append("interrupt asked")

    controller.signal.add_listener(stop)
    work = chain(Effect.yield_now(), Effect.sync(abort), say(log, "next"))
    fiber = rt.run_fork(work.ensuring(say(log, "finalizer")))
    exit = await rt.run(fiber.exit())

    assert exit == interrupted(77)
    assert log == ["interrupt asked", "aborted", "finalizer"]


# ---- masked


@pytest.mark.spec("WI3")
async def test_an_interrupt_of_a_masked_fiber_runs_none_of_its_finalizers_yet(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """It is recorded; the finalizers run when the region is left."""
    log: list[str] = []
    fiber = rt.run_fork(slow(log, "").uninterruptible().ensuring(say(log, "finalizer")))

    fiber.interrupt_unsafe(by=77)
    log.append("recorded")
    await pass_time(rt, clock)

    assert log == ["start", "recorded", "end", "finalizer"]


@pytest.mark.spec("WI3")
async def test_the_region_is_masked_again_when_a_restored_part_has_ended(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """An interrupt that comes after it waits for the region's end."""
    log: list[str] = []
    work: Effect[None, Never] = Effect.uninterruptible_mask(
        lambda restore: chain(restore(fb.sleep(1)), slow(log, ""))
    )

    exit = await interrupt_during(rt, clock, work, at=1.5)

    assert exit == interrupted(77)
    assert log == ["start", "end"]


@pytest.mark.spec("WI3", "PD17")
async def test_a_region_in_a_body_is_masked_again_when_a_restored_block_has_ended(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """The same for `with restore()`."""
    log: list[str] = []

    @fb.effect
    async def body() -> None:
        with fb.uninterruptible() as restore:
            with restore():
                await fb.sleep(1)
            await slow(log, "")

    exit = await interrupt_during(rt, clock, body(), at=1.5)

    assert exit == interrupted(77)
    assert log == ["start", "end"]


@pytest.mark.spec("WI3")
async def test_an_interrupt_in_a_restored_part_lands_at_once(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """It ends the region too where nothing catches it."""
    log: list[str] = []
    work: Effect[None, Never] = Effect.uninterruptible_mask(
        lambda restore: chain(restore(fb.sleep(10)), say(log, "rest of the region"))
    )
    fiber = rt.run_fork(work)

    fiber.interrupt_unsafe(by=77)

    assert fiber.poll() == interrupted(77)
    assert log == []


# ---- own and foreign


@pytest.mark.spec("WI5", "PD14")
async def test_a_foreign_interrupt_is_an_ordinary_failure_in_a_body(rt: fb.Runtime) -> None:
    """Only the fiber's own interruption skips its handlers."""
    log: list[str] = []
    target = rt.run_fork(Effect.never())
    target.interrupt_unsafe(by=77)

    @fb.effect
    async def body() -> None:
        try:
            await target.join()
        except fb.FiberInterrupted as foreign:
            log.append(f"caught {show(failed(*foreign.cause.reasons))}")

    exit = await rt.run_exit(body())

    assert exit == Success(None)
    assert log == ["caught I(77)"]


# ---- what interrupt() waits for


@pytest.mark.spec("WI6")
async def test_interrupt_does_not_raise_the_defect_of_a_finalizer(rt: fb.Runtime) -> None:
    """The target's failure is the target's."""
    defect = Defect()
    target = rt.run_fork(Effect.never().ensuring(Effect.die(defect)))

    exit = await rt.run_exit(target.interrupt(by=77))

    assert exit == Success(None)
    assert target.poll() == failed(Interrupt(by=77, reason=None), Die(defect))


@pytest.mark.spec("WI6")
async def test_interrupt_does_not_raise_the_failure_of_a_target_that_has_ended(
    rt: fb.Runtime,
) -> None:
    """It returns at once and changes nothing."""
    boom = Boom()
    target = rt.run_fork(Effect.fail(boom))

    exit = await rt.run_exit(target.interrupt(by=77))

    assert exit == Success(None)
    assert target.poll() == failed(Fail(boom))


@pytest.mark.spec("WI6")
async def test_interrupt_signals_before_it_waits(rt: fb.Runtime, clock: TestClock) -> None:
    """The synchronous part of the target's finalizers runs first."""
    log: list[str] = []
    target = rt.run_fork(Effect.never().ensuring(slow(log, "")))

    waiter = rt.run_fork(target.interrupt().flat_map(lambda _: say(log, "returned")))
    log.append(f"waiter {peek(waiter)}")
    await pass_time(rt, clock)

    assert log == ["start", "waiter PENDING", "end", "returned"]


@pytest.mark.spec("WI6", "FL22")
async def test_the_waiting_of_interrupt_is_interruptible_and_leaves_the_target_ending(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """The waiter ends at once, the target's finalizer runs on to its end."""
    log: list[str] = []
    target = rt.run_fork(Effect.never().ensuring(slow(log, "")))
    waiter = rt.run_fork(target.interrupt())

    waiter.interrupt_unsafe(by=5)
    log.append(f"waiter {peek(waiter)}, target {peek(target)}")
    await pass_time(rt, clock)

    assert log == ["start", "waiter I(5), target PENDING", "end"]
    assert target.poll() == interrupted(waiter.id)


@pytest.mark.spec("WI6")
async def test_a_timeout_on_interrupt_leaves_the_target_ending(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """A bound ends the wait, not the finalizer."""
    log: list[str] = []
    target = rt.run_fork(Effect.never().ensuring(slow(log, "", seconds=5)))

    waiter = rt.run_fork(target.interrupt(by=77).timeout_option(1))
    await pass_time(rt, clock, 1)
    outcome, before = waiter.poll(), peek(target)
    await pass_time(rt, clock)

    assert outcome == Success(Nothing)
    assert (before, peek(target)) == ("PENDING", "I(77)")
    assert log == ["start", "end"]


# ---- fork inheritance


@pytest.mark.spec("WI7")
async def test_a_child_forked_in_a_masked_region_is_interruptible(rt: fb.Runtime) -> None:
    """The mask protects the forker, not what it forks."""
    log: list[str] = []

    @fb.effect
    async def parent() -> None:
        child = await Effect.never().fork_child(start_immediately=True)
        child.interrupt_unsafe(by=77)
        log.append(peek(child))

    await rt.run(parent().uninterruptible())

    assert log == ["I(77)"]


@pytest.mark.spec("WI7")
async def test_a_child_forked_in_a_region_of_a_body_is_interruptible(rt: fb.Runtime) -> None:
    """The same for `with uninterruptible()`."""
    log: list[str] = []

    @fb.effect
    async def parent() -> None:
        with fb.uninterruptible():
            child = await Effect.never().fork_child(start_immediately=True)
            child.interrupt_unsafe(by=77)
            log.append(peek(child))

    await rt.run(parent())

    assert log == ["I(77)"]


@pytest.mark.spec("WI7")
async def test_a_child_forked_with_inherit_in_a_masked_region_is_masked(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """It keeps its value, as one forked with uninterruptible=True."""
    log: list[str] = []

    @fb.effect
    async def parent() -> None:
        child = await slow(log, "").fork_child(start_immediately=True, uninterruptible="inherit")
        child.interrupt_unsafe(by=77)
        log.append(show(await child.exit()))

    rt.run_fork(parent().uninterruptible())
    await pass_time(rt, clock)

    assert log == ["start", "end", "ok(None)"]


@pytest.mark.spec("WI7")
async def test_a_child_forked_with_inherit_in_an_interruptible_region_is_interruptible(
    rt: fb.Runtime,
) -> None:
    """There is no mask to take over."""
    log: list[str] = []

    @fb.effect
    async def parent() -> None:
        child = await Effect.never().fork_child(start_immediately=True, uninterruptible="inherit")
        child.interrupt_unsafe(by=77)
        log.append(peek(child))

    await rt.run(parent())

    assert log == ["I(77)"]


# ---- supervision


def parent_of(
    *children: Effect[Any, Any], then: Effect[int, Boom] | None = None
) -> Effect[int, Boom]:
    """Fork the children, each started at once, then end as `then` does, or with 1."""

    @fb.effect(raises=Boom)
    async def parent() -> int:
        for child in children:
            await child.fork_child(start_immediately=True)
        return 1 if then is None else await then

    return parent()


@pytest.mark.spec("WI8", "PD20")
async def test_a_child_is_interrupted_by_its_parent_because_that_has_ended(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """Interruptor and reason say so."""
    exits: list[object] = []
    child = Effect.never().on_exit(lambda ended: Effect.sync(lambda: exits.append(ended)))
    fiber = rt.run_fork(parent_of(child))
    await pass_time(rt, clock, 0)

    assert fiber.poll() == Success(1)
    assert exits == [interrupted(fiber.id, reason="parent ended")]


@pytest.mark.spec("WI8", "SU6")
async def test_children_are_signalled_in_fork_order_before_any_is_awaited(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """Their clean-ups overlap; the shorter one ends first."""
    log: list[str] = []
    first = Effect.never().on_interrupt(lambda _: slow(log, "1", seconds=2))
    second = Effect.never().on_interrupt(lambda _: slow(log, "2", seconds=1))

    rt.run_fork(parent_of(first, second))
    await pass_time(rt, clock)

    assert log == ["start1", "start2", "end2", "end1"]


@pytest.mark.spec("WI8", "SU3")
async def test_the_parents_exit_is_withheld_until_its_children_are_done(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """Its body has ended, its exit is not there yet."""
    log: list[str] = []
    fiber = rt.run_fork(parent_of(parked(log, "child done", seconds=1)))
    fiber.add_observer(lambda ended: log.append(show(ended)))

    log.append(peek(fiber))
    await pass_time(rt, clock)

    assert log == ["PENDING", "child done", "ok(1)"]


@pytest.mark.spec("WI8")
async def test_a_success_withheld_for_children_becomes_an_interrupt(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """Interrupted while it waits, the parent still waits for its child."""
    log: list[str] = []
    fiber = rt.run_fork(parent_of(parked(log, "child done", seconds=1)))

    fiber.interrupt_unsafe(by=77)
    log.append(peek(fiber))
    await pass_time(rt, clock)
    log.append(peek(fiber))

    assert log == ["PENDING", "child done", "I(77)"]


@pytest.mark.spec("WI8")
async def test_a_failure_withheld_for_children_is_kept_beside_the_interrupt(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """The failure first."""
    boom = Boom()
    child = parked([], "child done", seconds=1)
    fiber = rt.run_fork(parent_of(child, then=Effect.fail(boom)))

    fiber.interrupt_unsafe(by=77)
    await pass_time(rt, clock)

    assert fiber.poll() == failed(Fail(boom), Interrupt(by=77, reason=None))


@pytest.mark.spec("WI8", "SU11")
async def test_an_interrupted_parent_interrupts_its_children_and_waits_for_them(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """Supervision does not ask how the parent ended."""
    log: list[str] = []
    child = parked(log, "child done", seconds=1)
    fiber = rt.run_fork(parent_of(child, then=fb.sleep(10).map(lambda _: 1)))

    fiber.interrupt_unsafe(by=77)
    log.append(peek(fiber))
    await pass_time(rt, clock, 1)
    log.append(peek(fiber))

    assert log == ["PENDING", "child done", "I(77)"]


@pytest.mark.spec("WI8", "PD16", "SU5")
async def test_ten_thousand_generations_of_children_end_with_the_first(rt: fb.Runtime) -> None:
    """Each parent before its child, without a Python stack per generation."""
    log: list[int] = []

    @fb.effect
    async def generation(n: int) -> None:
        if n < DEEP:
            await generation(n + 1).fork_child(start_immediately=True)
        try:
            await Effect.never()
        finally:
            log.append(n)

    first = rt.run_fork(generation(1))
    await rt.run(first.interrupt(by=77))

    assert first.poll() == interrupted(77)
    assert log == list(range(1, DEEP + 1))


@pytest.mark.spec("WI8")
async def test_a_child_forked_in_a_finalizer_and_not_awaited_is_interrupted_at_the_end(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """The fiber's end waits for it, too."""
    log: list[str] = []
    child = parked(log, "child done", seconds=1)
    work = Effect.succeed(1).ensuring(child.fork_child(start_immediately=True))
    fiber = rt.run_fork(work.tap(lambda _: say(log, "body done")))

    log.append(peek(fiber))
    await pass_time(rt, clock)
    log.append(peek(fiber))

    assert log == ["body done", "PENDING", "child done", "ok(1)"]


@pytest.mark.spec("WI8")
async def test_a_fiber_forked_in_a_scope_outlives_the_fiber_that_forked_it(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """Its scope owns it."""
    log: list[str] = []
    scope = fb.Scope()
    work = parked(log, "interrupted").fork_in(scope, start_immediately=True)

    fiber = await rt.run(work)
    await pass_time(rt, clock)
    log.append(peek(fiber))
    await rt.run(scope.close())

    assert log == ["PENDING", "interrupted"]


@pytest.mark.spec("WI8", "SU10")
async def test_a_detached_fiber_outlives_the_fiber_that_forked_it(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """Nobody but the holder of its handle ends it."""
    log: list[str] = []
    fiber = await rt.run(parked(log, "interrupted").fork_detach(start_immediately=True))

    await pass_time(rt, clock)
    log.append(peek(fiber))
    await rt.run(fiber.interrupt())

    assert log == ["PENDING", "interrupted"]


@pytest.mark.spec("WI8", "SU7")
@pytest.mark.parametrize("ending", [Effect.fail(Boom()), Effect.die(Defect())])
async def test_a_childs_failure_does_not_reach_its_parent(
    rt: fb.Runtime, clock: TestClock, ending: Effect[None, Boom]
) -> None:
    """The parent goes on and keeps its value."""
    log: list[str] = []
    then = chain(fb.sleep(1), say(log, "parent goes on")).map(lambda _: 2)
    fiber = rt.run_fork(parent_of(ending, then=then))

    await pass_time(rt, clock)

    assert fiber.poll() == Success(2)
    assert log == ["parent goes on"]


@pytest.mark.spec("WI8", "SU7")
async def test_the_defect_of_a_childs_finalizer_does_not_reach_its_parent(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """Not even while the parent waits for it."""
    child = Effect.never().on_interrupt(raising(Defect()))
    fiber = rt.run_fork(parent_of(child))
    await pass_time(rt, clock, 0)

    assert fiber.poll() == Success(1)


# ---- the op budget


@pytest.mark.spec("WI9")
async def test_a_busy_fiber_gives_the_loop_a_turn_every_2048_primitives(rt: fb.Runtime) -> None:
    """asyncio's own callbacks run in between."""
    turns = 0
    loop = asyncio.get_running_loop()

    def turn() -> None:
        nonlocal turns
        turns += 1
        if fiber.poll() is None:
            loop.call_soon(turn)

    @fb.effect
    async def spin() -> None:
        for _ in range(10 * 2048):
            await Effect.succeed(None)

    fiber = rt.run_fork(spin())
    loop.call_soon(turn)
    await rt.run(fiber.exit())

    assert turns >= 9


@pytest.mark.spec("WI9")
async def test_two_busy_fibers_share_the_loop(rt: fb.Runtime) -> None:
    """Neither waits for the other's end."""
    log: list[str] = []

    @fb.effect
    async def spin(name: str) -> None:
        log.append(f"{name} starts")
        for _ in range(3 * 2048):
            await Effect.succeed(None)
        log.append(f"{name} ends")

    first, second = rt.run_fork(spin("first")), rt.run_fork(spin("second"))
    await rt.run(fb.Fiber.join_all([first, second]))

    assert log == ["first starts", "second starts", "first ends", "second ends"]


@pytest.mark.spec("WI9", "PD16")
async def test_a_masked_busy_fiber_yields_as_well(rt: fb.Runtime) -> None:
    """The budget is about fairness: a mask does not lift it, nor does the yield let one in."""

    @fb.effect
    async def spin() -> int:
        for _ in range(20 * 2048):
            await Effect.succeed(None)
        return 5

    fiber = await rt.run(spin().fork_detach(start_immediately=True, uninterruptible=True))
    fiber.interrupt_unsafe(by=77)
    before = fiber.poll()
    await rt.run(fiber.exit())

    assert before is None
    assert fiber.poll() == Success(5)
