"""Regions whose end no `with` block sees to, and parts of a region that are cut again and again."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from typing import Any, Never

import pytest

import fibers as fb
from fibers import Effect
from tests.probes.kit_f import (
    Boom,
    cause_of,
    collector_off,
    endless,
    inner_task,
    interrupted,
    new_gate,
    running_fiber,
)

pytestmark = pytest.mark.lifecycle


async def test_two_regions_left_open_are_both_closed() -> None:
    """PD17: the mask of outside comes back, not that of the outer one of the two."""

    @fb.effect
    async def leaky() -> None:
        fb.uninterruptible().__enter__()
        fb.uninterruptible().__enter__()

    fiber = fb.run_fork(leaky().catch_defect(lambda _: endless()))
    fiber.interrupt_unsafe(by=7)

    assert fiber.poll() == interrupted(by=7)


async def test_after_two_regions_left_open_the_task_of_outside_is_current() -> None:
    """PD11: what is cancelled there reaches what runs there."""
    tasks: list[Any] = []

    @fb.effect
    async def leaky() -> None:
        fb.uninterruptible().__enter__()
        fb.uninterruptible().__enter__()

    @fb.effect
    async def outer() -> None:
        tasks.append(asyncio.current_task())
        await leaky().exit()
        tasks.append(asyncio.current_task())

    await fb.run_fork(outer()).exit()

    assert tasks[0] is tasks[1]


def interrupted_in_a_callback(log: list[str]) -> Effect[None, Never]:
    """A callback that interrupts its own fiber and then restores a part of a region."""

    def callback() -> None:
        running_fiber().interrupt_unsafe(by=7)
        with fb.uninterruptible() as restore:
            log.append("region")
            with restore():
                log.append("restored")

    return Effect.sync(callback)


async def test_a_restore_in_a_callback_raises_the_pending_interrupt() -> None:
    """PD17, IN21: it is the fiber's interrupt all the same, and no defect of the callback."""
    log: list[str] = []

    alone = await fb.run_fork(interrupted_in_a_callback(log)).exit()
    followed = await fb.run_fork(
        interrupted_in_a_callback(log).map(lambda _: log.append("next"))
    ).exit()

    assert log == ["region", "region"]
    assert [alone, followed] == [interrupted(by=7), interrupted(by=7)]


async def test_a_body_cleans_up_after_a_callback_in_which_a_restore_raised() -> None:
    """PD2: what goes through the body is its interrupt, which cuts no cleanup."""
    log: list[str] = []

    async def body() -> None:
        try:
            await interrupted_in_a_callback(log)
        finally:
            await asyncio.sleep(0)
            log.append("cleaned")

    exit = await fb.run_fork(Effect.promise(body)).exit()

    assert log == ["region", "cleaned"]
    assert exit == interrupted(by=7)


async def test_a_callback_may_swallow_what_a_restore_raised_but_not_the_interrupt() -> None:
    """PD17: it lands behind the callback."""
    log: list[str] = []

    def callback() -> None:
        running_fiber().interrupt_unsafe(by=7)
        with fb.uninterruptible() as restore:
            try:
                with restore():
                    log.append("restored")
            except asyncio.CancelledError:
                log.append("swallowed")

    exit = await fb.run_fork(Effect.sync(callback).map(lambda _: log.append("next"))).exit()

    assert log == ["swallowed"]
    assert exit == interrupted(by=7)


async def test_a_body_under_a_mask_is_cut_in_each_of_its_holes() -> None:
    """IN12, PD3: also where it has swallowed what cut the ones before."""
    log: list[str] = []

    async def body() -> None:
        for hole in (endless(), Effect.yield_now(), Effect.yield_now()):
            try:
                await hole.interruptible()
                log.append("went on")
            except asyncio.CancelledError:
                log.append("cut")

    fiber = fb.run_fork(Effect.promise(body).uninterruptible())
    fiber.interrupt_unsafe(by=7)

    assert log == ["cut", "cut", "cut"]
    assert fiber.poll() == interrupted(by=7)


async def test_who_keeps_the_task_of_a_region_does_not_keep_the_fiber() -> None:
    """PD13: as with a mask made by a combinator."""
    kept: list[Any] = []

    async def body() -> None:
        with fb.uninterruptible():
            kept.append(asyncio.current_task())

    with collector_off():
        fiber = fb.run_fork(Effect.promise(body))
        gone = weakref.ref(fiber)
        del fiber
        alive = gone() is not None

    assert not alive


async def test_a_cancel_from_outside_lands_in_a_hole_of_the_mask_that_held_it() -> None:
    """PD11, IN12: there nothing protects from what was opened above."""
    log: list[str] = []
    tasks: list[asyncio.Task[Any]] = []

    async def masked() -> None:
        tasks[0].cancel()
        log.append("held")
        try:
            await Effect.yield_now().interruptible()
            log.append("went on")
        except asyncio.CancelledError:
            log.append("cut")

    async def body() -> None:
        tasks.append(inner_task())
        await Effect.promise(masked).uninterruptible()

    await fb.run_fork(Effect.promise(body)).exit()

    assert log == ["held", "cut"]


async def test_a_fiber_whose_body_left_a_region_open_leaves_no_cycle() -> None:
    """PD13: the record of the body and the region let go of each other."""
    regions: list[weakref.ref[Any]] = []

    class Held:
        """What is freed with the body."""

    @fb.effect
    async def leaky() -> None:
        fb.uninterruptible().__enter__()
        held = Held()
        regions.append(weakref.ref(held))

    with collector_off():
        fiber = fb.run_fork(leaky().exit())
        gone = weakref.ref(fiber)
        del fiber
        alive = [gone() is not None, regions[0]() is not None]

    assert alive == [False, False]


async def test_what_is_caught_in_one_restored_part_is_raised_in_the_next() -> None:
    """PD17: each restore() entered afterwards raises."""
    log: list[str] = []

    async def body() -> None:
        with fb.uninterruptible() as restore:
            for await_here in (endless(), Effect.yield_now()):
                try:
                    with restore():
                        log.append("entered")
                        await await_here
                except asyncio.CancelledError:
                    log.append("raised")

    fiber = fb.run_fork(Effect.promise(body))
    fiber.interrupt_unsafe(by=7)
    exit = await fiber.exit()

    assert log == ["entered", "raised", "raised"]
    assert exit == interrupted(by=7)


async def test_what_failed_beside_the_interrupt_leaves_the_region_with_it() -> None:
    """PD2, AT19: the defect of a finalizer in the restored part is not lost at the region's end."""

    async def body() -> None:
        with fb.uninterruptible() as restore, restore():
            await endless().ensuring(Effect.die(Boom()))

    fiber = fb.run_fork(Effect.promise(body))
    fiber.interrupt_unsafe(by=7)
    cause = cause_of(fiber.poll())

    assert [type(defect) for defect in cause.defects] == [Boom]
    assert cause.has_interrupts


async def test_leaving_a_restored_part_in_another_fiber_is_a_runtime_error() -> None:
    """PD17: it stays open, and its own fiber can leave it."""
    gate = new_gate()
    holes: list[contextlib.AbstractContextManager[None]] = []

    async def body() -> int:
        with fb.uninterruptible() as restore:
            holes.append(restore())
            with holes[0]:
                await gate
        return 5

    fiber = fb.run_fork(Effect.promise(body))
    with pytest.raises(RuntimeError, match="in another fiber"):
        holes[0].__exit__(None, None, None)
    gate.set_result(0)

    assert await fiber == 5
