"""Probes PD3, PD17: what can't be interrupted, and when an interrupt that waited lands."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Never

import pytest
from returns.result import Success

import fibers as fb
from fibers import Die, Effect, Fail, Interrupt
from tests.probes.kit_f import (
    Boom,
    cause_of,
    endless,
    failed,
    interrupted,
    new_gate,
    note,
    note_start_and_end,
    parked,
    running_fiber,
    turns,
    wait_for,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from fibers.testing import TestClock


def with_on_exit(finalizer: Effect[None, Never]) -> Effect[None, Never]:
    """`finalizer` through on_exit, after a success."""
    return Effect.succeed(None).on_exit(lambda _: finalizer)


def with_on_interrupt(finalizer: Effect[None, Never]) -> Effect[None, Never]:
    """`finalizer` through on_interrupt, after an effect that interrupts itself."""
    return Effect.interrupt().on_interrupt(lambda _: finalizer)


def with_ensuring(finalizer: Effect[None, Never]) -> Effect[None, Never]:
    """`finalizer` through ensuring, after a success."""
    return Effect.succeed(None).ensuring(finalizer)


def with_release(finalizer: Effect[None, Never]) -> Effect[None, Never]:
    """`finalizer` as the release of acquire_use_release."""

    def use(_: object) -> Effect[None, Boom]:
        return Effect.succeed(None)

    return fb.acquire_use_release(use(None), use, lambda _, __: finalizer).or_die()


def with_scope(finalizer: Effect[None, Never]) -> Effect[None, Never]:
    """`finalizer` in a scope that closes."""
    return fb.scoped(fb.add_finalizer(lambda _: finalizer))


EVERY_FINALIZER = pytest.mark.parametrize(
    "finalized_by", [with_on_exit, with_on_interrupt, with_ensuring, with_release, with_scope]
)


# ---- PD3: finalizers


@pytest.mark.spec("PD3")
@EVERY_FINALIZER
async def test_a_finalizer_is_not_cut_by_an_interrupt(
    clock: TestClock,
    rt: fb.Runtime,
    finalized_by: Callable[[Effect[None, Never]], Effect[None, Never]],
) -> None:
    """The interrupt arrives in the middle of it and waits for its end."""
    log = list[str]()

    fiber = rt.run_fork(finalized_by(note_start_and_end(log, "fin", 1.0)))
    fiber.interrupt_unsafe(by=7)
    early = fiber.poll()
    await rt.run(clock.adjust(1.0))

    assert early is None
    assert log == ["fin-start", "fin-end"]
    assert 7 in cause_of(fiber.poll()).interruptors


@pytest.mark.spec("PD3")
@EVERY_FINALIZER
async def test_a_finalizer_that_is_a_coroutine_is_not_cut_either(
    clock: TestClock,
    rt: fb.Runtime,
    finalized_by: Callable[[Effect[None, Never]], Effect[None, Never]],
) -> None:
    """Nothing is thrown into its body."""
    log = list[str]()

    @fb.effect
    async def finalizer() -> None:
        log.append("fin-start")
        try:
            await fb.sleep(1.0)
        except BaseException as exc:
            log.append(f"thrown: {exc!r}")
            raise
        log.append("fin-end")

    fiber = rt.run_fork(finalized_by(finalizer()))
    fiber.interrupt_unsafe(by=7)
    await rt.run(clock.adjust(1.0))

    assert log == ["fin-start", "fin-end"]
    assert 7 in cause_of(fiber.poll()).interruptors


@pytest.mark.spec("PD3")
@EVERY_FINALIZER
async def test_an_interruptible_hole_in_a_finalizer_is_cut(
    rt: fb.Runtime, finalized_by: Callable[[Effect[None, Never]], Effect[None, Never]]
) -> None:
    """The rest of that finalizer is skipped, the one outside it runs."""
    log = list[str]()
    hole = note(log, "before").flat_map(lambda _: endless().interruptible())
    finalizer = hole.flat_map(lambda _: note(log, "after"))

    fiber = rt.run_fork(finalized_by(finalizer).ensuring(note(log, "outer")))
    fiber.interrupt_unsafe(by=7)

    assert log == ["before", "outer"]
    assert 7 in cause_of(fiber.poll()).interruptors


@pytest.mark.spec("PD3")
async def test_an_interruptible_hole_in_a_finalizer_body_is_cut(rt: fb.Runtime) -> None:
    """A finalizer that is a coroutine: its finally runs, the rest does not."""
    log = list[str]()

    @fb.effect
    async def finalizer() -> None:
        try:
            await endless().interruptible()
            log.append("after")
        finally:
            log.append("finally")

    work = Effect.succeed(None).ensuring(finalizer()).ensuring(note(log, "outer"))
    fiber = rt.run_fork(work)
    fiber.interrupt_unsafe(by=7)

    assert log == ["finally", "outer"]
    assert interrupted(by=7) == fiber.poll()


@pytest.mark.spec("PD3")
async def test_the_other_finalizers_of_a_scope_run_after_one_was_cut(rt: fb.Runtime) -> None:
    """A hole in one of three."""
    log = list[str]()
    cut = endless().interruptible().flat_map(lambda _: note(log, "never here"))

    @fb.effect
    async def body() -> None:
        await fb.add_finalizer(lambda _: note(log, "first added"))
        await fb.add_finalizer(lambda _: cut)
        await fb.add_finalizer(lambda _: note(log, "last added"))

    fiber = rt.run_fork(fb.scoped(body()))
    fiber.interrupt_unsafe(by=7)

    assert log == ["last added", "first added"]
    assert 7 in cause_of(fiber.poll()).interruptors


# ---- PD17: the region


@pytest.mark.spec("PD17")
async def test_a_region_is_not_cut_by_an_interrupt() -> None:
    """What stands in it runs to its end, over a suspension."""
    log, gate = list[str](), new_gate()

    @fb.effect
    async def body() -> None:
        with fb.uninterruptible():
            await wait_for(gate)
            log.append("region done")

    fiber = fb.run_fork(body())
    fiber.interrupt_unsafe(by=7)
    pending = fiber.poll()
    gate.set_result(1)
    exit = await fiber.exit()

    assert pending is None
    assert log == ["region done"]
    assert interrupted(by=7) == exit


@pytest.mark.spec("PD17")
async def test_a_region_protects_the_wait_for_a_plain_future() -> None:
    """Nothing is cancelled: the future gives its value."""
    values, gate = list[int](), new_gate()

    @fb.effect
    async def body() -> None:
        with fb.uninterruptible():
            values.append(await gate)

    fiber = fb.run_fork(body())
    fiber.interrupt_unsafe(by=7)
    gate.set_result(5)
    exit = await fiber.exit()

    assert values == [5]
    assert interrupted(by=7) == exit


@pytest.mark.spec("PD17", "WI7")
async def test_a_region_masks_this_fiber_only() -> None:
    """A child forked in it is interruptible."""
    log, children = list[str](), list[fb.Fiber[None, Never]]()
    gate = new_gate()

    @fb.effect
    async def body() -> None:
        with fb.uninterruptible():
            child = await parked(log, "child").fork_child(start_immediately=True)
            children.append(child)
            await gate

    fiber = fb.run_fork(body())
    children[0].interrupt_unsafe(by=7)
    at_once = log.copy()
    gate.set_result(1)
    await fiber

    assert at_once == ["child"]


@pytest.mark.spec("PD17")
async def test_a_pending_interrupt_does_not_leave_exit() -> None:
    """The synchronous code behind the region runs."""
    log, gate = list[str](), new_gate()

    @fb.effect
    async def body() -> None:
        with fb.uninterruptible():
            await gate
        log.append("behind the region")
        await endless()
        log.append("behind the suspension")

    fiber = fb.run_fork(body())
    fiber.interrupt_unsafe(by=7)
    gate.set_result(1)
    exit = await fiber.exit()

    assert log == ["behind the region"]
    assert interrupted(by=7) == exit


@pytest.mark.spec("PD17")
async def test_a_try_behind_the_region_is_entered_before_the_interrupt_is_raised() -> None:
    """So that what was acquired in the region can be released there."""
    log, gate = list[str](), new_gate()

    @fb.effect
    async def body() -> None:
        with fb.uninterruptible():
            await gate
            log.append("acquired")
        try:
            await endless()
        finally:
            log.append("released")

    fiber = fb.run_fork(body())
    fiber.interrupt_unsafe(by=7)
    gate.set_result(1)
    await fiber.exit()

    assert log == ["acquired", "released"]


@pytest.mark.spec("PD17")
async def test_a_body_that_does_not_suspend_behind_the_region_ends_interrupted() -> None:
    """Its value is dropped at its end."""
    gate = new_gate()

    @fb.effect
    async def body() -> int:
        with fb.uninterruptible():
            await gate
        return 5

    fiber = fb.run_fork(body())
    fiber.interrupt_unsafe(by=7)
    gate.set_result(1)
    exit = await fiber.exit()

    assert interrupted(by=7) == exit


@pytest.mark.spec("PD17", "IN4")
async def test_a_masking_combinator_delivers_at_its_end() -> None:
    """Awaited in a body, the interrupt is raised at that await: no code behind it runs."""
    log, gate = list[str](), new_gate()

    @fb.effect
    async def body() -> None:
        await wait_for(gate).tap(lambda _: note(log, "masked done")).uninterruptible()
        log.append("behind")

    fiber = fb.run_fork(body())
    fiber.interrupt_unsafe(by=7)
    gate.set_result(1)
    exit = await fiber.exit()

    assert log == ["masked done"]
    assert interrupted(by=7) == exit


@pytest.mark.spec("PD17")
async def test_a_region_without_an_interrupt_changes_nothing() -> None:
    """The body goes on and returns its value."""

    @fb.effect
    async def body() -> int:
        with fb.uninterruptible() as restore:
            first = await Effect.succeed(1)
            with restore():
                second = await Effect.yield_now().map(lambda _: 2)
        return first + second

    assert await body() == 3


@pytest.mark.spec("PD17")
async def test_behind_a_region_the_body_is_interruptible_again() -> None:
    """At once, as before it."""

    @fb.effect
    async def body() -> None:
        with fb.uninterruptible():
            await Effect.yield_now()
        await endless()

    fiber = fb.run_fork(body())
    await turns()
    fiber.interrupt_unsafe(by=7)

    assert interrupted(by=7) == fiber.poll()


# ---- PD17: restore


@pytest.mark.spec("PD17", "IN12")
async def test_entering_restore_raises_a_pending_interrupt() -> None:
    """What stands under restore is never run; the rest of the region is."""
    log, gate = list[str](), new_gate()

    @fb.effect
    async def body() -> None:
        with fb.uninterruptible() as restore:
            await gate
            log.append("masked")
            try:
                with restore():
                    log.append("restored")
            except asyncio.CancelledError:
                log.append("interrupted")
            await Effect.yield_now()
            log.append("resumed")

    fiber = fb.run_fork(body())
    fiber.interrupt_unsafe(by=7)
    gate.set_result(1)
    exit = await fiber.exit()

    assert log == ["masked", "interrupted", "resumed"]
    assert interrupted(by=7) == exit


@pytest.mark.spec("PD17")
async def test_what_restore_raises_is_this_fibers_own_interrupt() -> None:
    """interrupt_of knows it."""
    seen, gate = list[Interrupt | None](), new_gate()

    @fb.effect
    async def body() -> None:
        with fb.uninterruptible() as restore:
            await gate
            try:
                restore().__enter__()
            except asyncio.CancelledError as exc:
                seen.append(fb.interrupt_of(exc))

    fiber = fb.run_fork(body())
    fiber.interrupt_unsafe(by=7, reason="enough")
    gate.set_result(1)
    await fiber.exit()

    assert seen == [Interrupt(by=7, reason="enough")]


@pytest.mark.spec("PD17")
async def test_each_later_restore_raises_again() -> None:
    """The interrupt stays pending in the region, however often it is caught."""
    log, gate = list[str](), new_gate()

    @fb.effect
    async def body() -> None:
        with fb.uninterruptible() as restore:
            await gate
            for _ in range(3):
                try:
                    with restore():
                        log.append("restored")
                except asyncio.CancelledError:
                    log.append("raised")

    fiber = fb.run_fork(body())
    fiber.interrupt_unsafe(by=7)
    gate.set_result(1)
    await fiber.exit()

    assert log == ["raised", "raised", "raised"]


@pytest.mark.spec("PD17", "WI3")
async def test_restore_lets_an_interrupt_through_at_once() -> None:
    """A wait under restore is cut on the interruptor's stack."""
    log = list[str]()

    @fb.effect
    async def body() -> None:
        with fb.uninterruptible() as restore, restore():
            try:
                await endless()
            finally:
                log.append("cut")

    fiber = fb.run_fork(body())
    fiber.interrupt_unsafe(by=7)

    assert log == ["cut"]
    assert interrupted(by=7) == fiber.poll()


@pytest.mark.spec("PD17", "WI3")
async def test_behind_a_restored_part_the_region_is_masked_again() -> None:
    """An interrupt that comes later waits for the region's end."""
    log, gate = list[str](), new_gate()

    @fb.effect
    async def body() -> None:
        with fb.uninterruptible() as restore:
            with restore():
                await Effect.yield_now()
            await gate
            log.append("region done")

    fiber = fb.run_fork(body())
    await turns()
    fiber.interrupt_unsafe(by=7)
    pending = fiber.poll()
    gate.set_result(1)
    exit = await fiber.exit()

    assert pending is None
    assert log == ["region done"]
    assert interrupted(by=7) == exit


@pytest.mark.spec("PD17", "IN15")
async def test_an_interrupt_caught_inside_the_region_is_pending_behind_it() -> None:
    """It was cut under restore, the region went on; the first suspension behind it raises."""
    log, gate = list[str](), new_gate()

    @fb.effect
    async def body() -> None:
        with fb.uninterruptible() as restore:
            try:
                with restore():
                    await endless()
            except asyncio.CancelledError:
                log.append("caught")
            await gate
            log.append("region done")
        log.append("behind")
        await endless()
        log.append("not reached")

    fiber = fb.run_fork(body())
    fiber.interrupt_unsafe(by=7)
    gate.set_result(1)
    exit = await fiber.exit()

    assert log == ["caught", "region done", "behind"]
    assert interrupted(by=7) == exit


@pytest.mark.spec("PD17", "PD2")
async def test_an_interrupt_that_leaves_the_region_does_not_cut_the_cleanup_behind_it() -> None:
    """Raised by restore and not caught inside: it is thrown once."""
    log, gate, cleanup = list[str](), new_gate(), new_gate()

    @fb.effect
    async def body() -> None:
        try:
            with fb.uninterruptible() as restore:
                await gate
                with restore():
                    log.append("not reached")
        finally:
            await cleanup
            log.append("cleaned up")

    fiber = fb.run_fork(body())
    fiber.interrupt_unsafe(by=7)
    gate.set_result(1)
    await turns()
    cleanup.set_result(1)
    exit = await fiber.exit()

    assert log == ["cleaned up"]
    assert interrupted(by=7) == exit


@pytest.mark.spec("PD17", "IN14")
async def test_restore_is_the_identity_in_a_masked_effect() -> None:
    """Entered while already masked: restore neither unmasks nor raises."""
    log, gate = list[str](), new_gate()

    @fb.effect
    async def body() -> None:
        with fb.uninterruptible() as restore, restore():
            log.append("restored")
            await gate
            log.append("went on")

    fiber = fb.run_fork(body().uninterruptible())
    fiber.interrupt_unsafe(by=7)
    gate.set_result(1)
    exit = await fiber.exit()

    assert log == ["restored", "went on"]
    assert interrupted(by=7) == exit


@pytest.mark.spec("PD17", "IN14")
async def test_restore_does_not_raise_a_pending_interrupt_in_a_masked_effect() -> None:
    """The interrupt came before restore is entered."""
    log, gate = list[str](), new_gate()

    @fb.effect
    async def body() -> None:
        with fb.uninterruptible() as restore:
            await gate
            with restore():
                log.append("restored")

    fiber = fb.run_fork(body().uninterruptible())
    fiber.interrupt_unsafe(by=7)
    gate.set_result(1)
    await fiber.exit()

    assert log == ["restored"]


@pytest.mark.spec("PD17", "IN14")
async def test_restore_of_an_inner_region_is_the_identity() -> None:
    """A region in a region restores what it found: the outer mask."""
    log, gate = list[str](), new_gate()

    @fb.effect
    async def body() -> None:
        with fb.uninterruptible(), fb.uninterruptible() as restore:
            await gate
            with restore():
                log.append("restored")

    fiber = fb.run_fork(body())
    fiber.interrupt_unsafe(by=7)
    gate.set_result(1)
    exit = await fiber.exit()

    assert log == ["restored"]
    assert interrupted(by=7) == exit


@pytest.mark.spec("PD17", "PD3")
async def test_restore_is_the_identity_in_a_finalizer() -> None:
    """Though the fiber is being interrupted."""
    log, gate = list[str](), new_gate()

    @fb.effect
    async def finalizer() -> None:
        with fb.uninterruptible() as restore, restore():
            log.append("restored")
            await gate
            log.append("went on")

    fiber = fb.run_fork(endless().ensuring(finalizer()))
    fiber.interrupt_unsafe(by=7)
    gate.set_result(1)
    exit = await fiber.exit()

    assert log == ["restored", "went on"]
    assert interrupted(by=7) == exit


# ---- PD17: interrupting oneself


@pytest.mark.spec("PD17", "IN21")
async def test_after_a_self_interrupt_a_region_in_the_same_segment_is_entered() -> None:
    """It holds the interrupt: what stands in it suspends and goes on."""
    log, gate = list[str](), new_gate()

    @fb.effect
    async def body() -> None:
        running_fiber().interrupt_unsafe(by=7)
        with fb.uninterruptible():
            log.append("entered")
            await gate
            log.append("held")
        await endless()
        log.append("not reached")

    fiber = fb.run_fork(body())
    pending = fiber.poll()
    gate.set_result(1)
    exit = await fiber.exit()

    assert pending is None
    assert log == ["entered", "held"]
    assert interrupted(by=7) == exit


@pytest.mark.spec("PD17", "IN21", "WI2")
async def test_after_a_self_interrupt_the_synchronous_segment_goes_on() -> None:
    """To the first suspension, which raises."""
    log = list[str]()

    @fb.effect
    async def body() -> None:
        running_fiber().interrupt_unsafe(by=7)
        log.append("same segment")
        try:
            await endless()
        finally:
            log.append("finally")

    fiber = fb.run_fork(body())

    assert log == ["same segment", "finally"]
    assert interrupted(by=7) == fiber.poll()


# ---- PD17: an exception in flight


@pytest.mark.spec("PD17")
async def test_an_exception_passes_the_end_of_the_region() -> None:
    """The interrupt joins it at the body's end: [Fail(e), I]."""
    gate, boom = new_gate(), Boom()

    @fb.effect(raises=Boom)
    async def body() -> None:
        with fb.uninterruptible():
            await gate
            raise boom

    fiber = fb.run_fork(body())
    fiber.interrupt_unsafe(by=7)
    gate.set_result(1)
    exit = await fiber.exit()

    assert failed(Fail(boom), Interrupt(by=7, reason=None)) == exit


@pytest.mark.spec("PD17")
async def test_an_undeclared_exception_passes_the_end_of_the_region() -> None:
    """The same for a defect: [Die(e), I]."""
    gate, boom = new_gate(), Boom()

    @fb.effect
    async def body() -> None:
        with fb.uninterruptible():
            await gate
            raise boom

    fiber = fb.run_fork(body())
    fiber.interrupt_unsafe(by=7)
    gate.set_result(1)
    exit = await fiber.exit()

    assert failed(Die(boom), Interrupt(by=7, reason=None)) == exit


@pytest.mark.spec("PD17")
async def test_behind_a_caught_exception_the_next_suspension_raises_the_interrupt() -> None:
    """The except clause around the region sees the error, not the interrupt."""
    log, gate = list[str](), new_gate()

    @fb.effect
    async def body() -> None:
        try:
            with fb.uninterruptible():
                await gate
                raise Boom
        except Boom:
            log.append("error")
        try:
            await endless()
        except asyncio.CancelledError:
            log.append("interrupt")
            raise

    fiber = fb.run_fork(body())
    fiber.interrupt_unsafe(by=7)
    gate.set_result(1)
    exit = await fiber.exit()

    assert log == ["error", "interrupt"]
    assert interrupted(by=7) == exit


# ---- PD17: nesting


@pytest.mark.spec("PD17")
async def test_leaving_the_inner_region_does_not_unmask() -> None:
    """The interrupt lands behind the outer one."""
    log, gate = list[str](), new_gate()

    @fb.effect
    async def body() -> None:
        with fb.uninterruptible():
            with fb.uninterruptible():
                await gate
            await Effect.yield_now()
            log.append("outer region done")

    fiber = fb.run_fork(body())
    fiber.interrupt_unsafe(by=7)
    gate.set_result(1)
    exit = await fiber.exit()

    assert log == ["outer region done"]
    assert interrupted(by=7) == exit


@pytest.mark.spec("PD17")
async def test_leaving_regions_out_of_order_is_a_runtime_error() -> None:
    """The inner one has to be left first."""
    raised = list[BaseException]()

    @fb.effect
    async def body() -> None:
        outer, inner = fb.uninterruptible(), fb.uninterruptible()
        outer.__enter__()
        inner.__enter__()
        try:
            outer.__exit__(None, None, None)
        except RuntimeError as exc:
            raised.append(exc)
        inner.__exit__(None, None, None)
        outer.__exit__(None, None, None)

    await body().exit()

    assert [type(exc) for exc in raised] == [RuntimeError]


@pytest.mark.spec("PD17")
async def test_leaving_a_region_in_another_fiber_is_a_runtime_error() -> None:
    """A region belongs to the fiber that entered it."""
    regions: list[AbstractContextManager[Any]] = []
    gate = new_gate()

    @fb.effect
    async def owner() -> None:
        region = fb.uninterruptible()
        region.__enter__()
        regions.append(region)
        await gate
        region.__exit__(None, None, None)

    @fb.effect
    async def stranger() -> None:
        regions[0].__exit__(None, None, None)

    fiber = fb.run_fork(owner())
    exit = await stranger().exit()
    gate.set_result(1)

    assert [type(defect) for defect in cause_of(exit).defects] == [RuntimeError]
    assert await fiber.exit() == Success(None)


@pytest.mark.spec("PD17")
async def test_using_a_restore_in_another_fiber_is_a_runtime_error() -> None:
    """It would unmask somebody else."""
    restores: list[Callable[[], AbstractContextManager[None]]] = []
    gate = new_gate()

    @fb.effect
    async def owner() -> None:
        with fb.uninterruptible() as restore:
            restores.append(restore)
            await gate

    @fb.effect
    async def stranger() -> None:
        with restores[0]():
            pass

    fiber = fb.run_fork(owner())
    exit = await stranger().exit()
    gate.set_result(1)

    assert [type(defect) for defect in cause_of(exit).defects] == [RuntimeError]
    assert await fiber.exit() == Success(None)


@pytest.mark.spec("PD17")
def test_a_region_outside_any_fiber_is_a_runtime_error_that_names_the_fix() -> None:
    """No fiber, no mask: the message tells where regions belong."""
    with pytest.raises(RuntimeError, match=r"effect|fiber"), fb.uninterruptible():
        pytest.fail("the region was entered outside a fiber")


@pytest.mark.spec("PD17")
async def test_a_region_in_a_plain_task_is_a_runtime_error() -> None:
    """A running loop is not enough."""
    with pytest.raises(RuntimeError, match=r"effect|fiber"), fb.uninterruptible():
        pytest.fail("the region was entered outside a fiber")


@pytest.mark.spec("PD17")
async def test_leaving_a_region_outside_any_fiber_is_a_runtime_error() -> None:
    """A callback of the loop cannot unmask a fiber."""
    regions: list[AbstractContextManager[Any]] = []
    gate = new_gate()

    @fb.effect
    async def owner() -> None:
        region = fb.uninterruptible()
        region.__enter__()
        regions.append(region)
        await gate
        region.__exit__(None, None, None)

    fiber = fb.run_fork(owner())
    with pytest.raises(RuntimeError):
        regions[0].__exit__(None, None, None)
    gate.set_result(1)

    assert await fiber.exit() == Success(None)


@pytest.mark.spec("PD17")
async def test_using_a_restore_outside_any_fiber_is_a_runtime_error() -> None:
    """The same for restore."""
    restores: list[Callable[[], AbstractContextManager[None]]] = []
    gate = new_gate()

    @fb.effect
    async def owner() -> None:
        with fb.uninterruptible() as restore:
            restores.append(restore)
            await gate

    fiber = fb.run_fork(owner())
    with pytest.raises(RuntimeError), restores[0]():
        pytest.fail("a restore was entered outside its fiber")
    gate.set_result(1)

    assert await fiber.exit() == Success(None)


@pytest.mark.spec("PD17")
async def test_a_region_left_open_is_reported() -> None:
    """Die(RuntimeError), though the body returned."""

    @fb.effect
    async def body() -> int:
        fb.uninterruptible().__enter__()
        return 1

    exit = await body().exit()

    assert [type(reason) for reason in cause_of(exit).reasons] == [Die]
    assert [type(defect) for defect in cause_of(exit).defects] == [RuntimeError]


@pytest.mark.spec("PD17")
async def test_a_region_left_open_is_closed_by_the_runtime() -> None:
    """The fiber is interruptible again behind the body."""

    @fb.effect
    async def leaky() -> None:
        fb.uninterruptible().__enter__()

    fiber = fb.run_fork(leaky().catch_defect(lambda _: endless()))
    fiber.interrupt_unsafe(by=7)

    assert interrupted(by=7) == fiber.poll()


@pytest.mark.spec("PD17")
async def test_a_region_left_open_by_an_inner_body_is_closed_for_the_outer_one() -> None:
    """The outer body, too, gets its mask back."""

    @fb.effect
    async def leaky() -> None:
        fb.uninterruptible().__enter__()

    @fb.effect
    async def outer() -> None:
        try:
            await leaky()
        except RuntimeError:
            pass
        await endless()

    fiber = fb.run_fork(outer())
    fiber.interrupt_unsafe(by=7)

    assert interrupted(by=7) == fiber.poll()


@pytest.mark.spec("PD17")
async def test_an_error_is_not_lost_where_a_region_is_left_open() -> None:
    """Both are in the cause."""
    boom = Boom()

    @fb.effect
    async def body() -> None:
        fb.uninterruptible().__enter__()
        raise boom

    exit = await body().exit()

    assert {type(defect) for defect in cause_of(exit).defects} == {Boom, RuntimeError}


@pytest.mark.spec("PD17")
async def test_a_region_in_an_awaited_body_masks_the_fiber() -> None:
    """Bodies awaited inline share the fiber: the inner region holds the interrupt."""
    log, gate = list[str](), new_gate()

    @fb.effect
    async def inner() -> None:
        with fb.uninterruptible():
            await gate
            log.append("region done")

    @fb.effect
    async def outer() -> None:
        await inner()
        log.append("behind the inner body")

    fiber = fb.run_fork(outer())
    fiber.interrupt_unsafe(by=7)
    gate.set_result(1)
    exit = await fiber.exit()

    assert log[0] == "region done"
    assert interrupted(by=7) == exit


@pytest.mark.spec("PD17")
async def test_a_body_awaited_under_a_region_is_masked() -> None:
    """The mask covers all that runs under it."""
    log, gate = list[str](), new_gate()

    @fb.effect
    async def inner() -> None:
        await gate
        log.append("inner done")

    @fb.effect
    async def outer() -> None:
        with fb.uninterruptible():
            await inner()
            log.append("region done")

    fiber = fb.run_fork(outer())
    fiber.interrupt_unsafe(by=7)
    gate.set_result(1)
    await fiber.exit()

    assert log == ["inner done", "region done"]
