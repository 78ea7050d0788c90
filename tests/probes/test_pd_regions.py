"""Probes PD17: regions in bodies, restore, and when an interrupt that waited lands."""

from __future__ import annotations

import asyncio
from typing import Never

import pytest

import fibers as fb
from fibers import Effect, Interrupt
from tests.probes.kit_f import (
    endless,
    inner_task,
    interrupted,
    interruptors,
    new_gate,
    note,
    parked,
    turns,
    wait_for,
)

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


@fb.effect
async def restored_by_hand(gate: asyncio.Future[int], seen: list[Interrupt | None]) -> None:
    """Enters a restore once the gate is open, and notes what that raises."""
    with fb.uninterruptible() as restore:
        await gate
        try:
            restore().__enter__()
        except asyncio.CancelledError as exc:
            seen.append(fb.interrupt_of(exc))


@pytest.mark.spec("PD17")
async def test_what_restore_raises_is_this_fibers_own_interrupt() -> None:
    """interrupt_of knows it."""
    seen, gate = list[Interrupt | None](), new_gate()
    fiber = fb.run_fork(restored_by_hand(gate, seen))
    fiber.interrupt_unsafe(by=7, reason="enough")
    gate.set_result(1)
    await fiber.exit()

    assert seen == [Interrupt(by=7, reason="enough")]


@pytest.mark.spec("PD17", "PD2")
async def test_of_two_pending_interrupts_restore_raises_the_first() -> None:
    """The second is in the cause, as everywhere."""
    seen, gate = list[Interrupt | None](), new_gate()
    fiber = fb.run_fork(restored_by_hand(gate, seen))
    fiber.interrupt_unsafe(by=7)
    fiber.interrupt_unsafe(by=8)
    gate.set_result(1)
    exit = await fiber.exit()

    assert seen == [Interrupt(by=7)]
    assert interruptors(exit) == [7, 8]


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


@pytest.mark.spec("PD17", "PD2")
async def test_a_later_interrupt_does_not_cut_the_cleanup_behind_a_region() -> None:
    """What restore raised and the region let out was the first one, thrown once."""
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
    fiber.interrupt_unsafe(by=8)
    pending = fiber.poll()
    cleanup.set_result(1)
    exit = await fiber.exit()

    assert pending is None
    assert log == ["cleaned up"]
    assert interruptors(exit) == [7, 8]


@pytest.mark.spec("PD17", "PD2")
async def test_what_restore_raised_is_the_interrupt_wherever_the_body_raises_it() -> None:
    """Also where it was caught in the region and leaves the body behind it."""
    gate = new_gate()

    @fb.effect
    async def body() -> None:
        caught: asyncio.CancelledError | None = None
        with fb.uninterruptible() as restore:
            await gate
            try:
                restore().__enter__()
            except asyncio.CancelledError as exc:
                caught = exc
        assert caught is not None
        raise caught

    fiber = fb.run_fork(body())
    fiber.interrupt_unsafe(by=7)
    gate.set_result(1)
    exit = await fiber.exit()

    assert interrupted(by=7) == exit


@pytest.mark.spec("PD17", "PD2")
async def test_what_restore_raises_counts_in_cancelling() -> None:
    """From then on, as where an interrupt cuts a wait."""
    counts, gate = list[int](), new_gate()

    @fb.effect
    async def body() -> None:
        with fb.uninterruptible() as restore:
            await gate
            counts.append(inner_task().cancelling())
            try:
                restore().__enter__()
            except asyncio.CancelledError:
                counts.append(inner_task().cancelling())

    fiber = fb.run_fork(body())
    fiber.interrupt_unsafe(by=7)
    gate.set_result(1)
    await fiber.exit()

    assert counts == [0, 1]
