"""Probes PD17: self-interrupts, errors in flight, and how regions nest."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

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
    running_fiber,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager


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


@pytest.mark.spec("PD17")
async def test_a_region_is_entered_once() -> None:
    """A second entry would lose the mask of the first."""

    @fb.effect
    async def body() -> None:
        region = fb.uninterruptible()
        with region:
            pass
        with region:
            pytest.fail("the region was entered again")

    (defect,) = cause_of(await body().exit()).defects

    assert isinstance(defect, RuntimeError)
    assert "make a new one" in str(defect)


@pytest.mark.spec("PD17")
async def test_a_restore_of_an_outer_region_is_a_runtime_error() -> None:
    """It would unmask what the inner region protects."""

    @fb.effect
    async def body() -> None:
        with fb.uninterruptible() as outer, fb.uninterruptible(), outer():
            pytest.fail("the restore was entered")

    (defect,) = cause_of(await body().exit()).defects

    assert isinstance(defect, RuntimeError)
    assert "innermost" in str(defect)


@pytest.mark.spec("PD17")
async def test_a_region_that_was_left_says_so() -> None:
    """To leave it again, or to use its restore, is no matter of another fiber."""
    raised = list[BaseException]()

    @fb.effect
    async def body() -> int:
        region = fb.uninterruptible()
        with region as restore:
            pass
        try:
            region.__exit__(None, None, None)
        except RuntimeError as exc:
            raised.append(exc)
        try:
            restore().__enter__()
        except RuntimeError as exc:
            raised.append(exc)
        return 5

    exit = await body().exit()

    assert [str(exc) for exc in raised] == [
        "this uninterruptible() region was left already",
        "restore() of a region that was left already: use it inside the region",
    ]
    assert exit == Success(5)


@pytest.mark.spec("PD17")
async def test_a_region_that_was_not_entered_cannot_be_left() -> None:
    """The way in is `with`."""

    @fb.effect
    async def body() -> None:
        fb.uninterruptible().__exit__(None, None, None)

    exit = await body().exit()

    (defect,) = cause_of(exit).defects
    assert "was not entered" in str(defect)


@pytest.mark.spec("PD17")
async def test_a_restore_is_left_once_and_by_its_fiber() -> None:
    """Left again it would mask for good."""
    raised = list[BaseException]()

    @fb.effect
    async def body() -> int:
        with fb.uninterruptible() as restore:
            hole = restore()
            hole.__enter__()
            hole.__exit__(None, None, None)
            try:
                hole.__exit__(None, None, None)
            except RuntimeError as exc:
                raised.append(exc)
        return 5

    exit = await body().exit()

    assert [str(exc) for exc in raised] == ["restore() was left out of order or in another fiber"]
    assert exit == Success(5)


@pytest.mark.spec("PD17", "IN21")
async def test_a_region_in_a_callback_lets_the_callback_finish() -> None:
    """No body stands there: the interrupt lands right behind the primitive."""
    log = list[str]()

    def segment() -> None:
        with fb.uninterruptible():
            running_fiber().interrupt_unsafe(by=7)
            log.append("region")
        log.append("behind the region")

    fiber = fb.run_fork(Effect.sync(segment).map(lambda _: log.append("next")))
    exit = await fiber.exit()

    assert log == ["region", "behind the region"]
    assert interrupted(by=7) == exit
