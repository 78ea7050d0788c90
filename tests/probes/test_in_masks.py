"""Probes IN: masked regions, what restores them, and holes in them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Never

import pytest
from returns.result import Success

import fibers as fb
from fibers import Die, Effect, Fail, Interrupt
from tests.probes.kit_e import (
    RECOVERIES,
    Boom,
    Defect,
    cause_of,
    chain,
    failed,
    interrupt_during,
    interrupted,
    pass_time,
    peek,
    say,
    show,
    slow,
)

if TYPE_CHECKING:
    from fibers.testing import TestClock

DEEP = 10_000  # nested levels, far beyond the recursion limit


# ---- masked


@pytest.mark.spec("IN4")
async def test_an_interrupt_lands_when_the_masked_part_has_ended(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """The masked part runs to its end, what comes after it does not run."""
    log: list[str] = []
    masked = chain(fb.sleep(1), say(log, "unint done")).uninterruptible()
    fiber = rt.run_fork(masked.flat_map(lambda _: say(log, "after")))

    fiber.interrupt_unsafe(by=77)
    log.append(f"poll {peek(fiber)}")
    await pass_time(rt, clock, 1)
    log.append(peek(fiber))

    assert log == ["poll PENDING", "unint done", "I(77)"]


@pytest.mark.spec("IN4")
async def test_a_coroutine_body_made_uninterruptible_runs_to_its_end(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """Each of its suspensions is masked; the interrupt lands behind the body."""
    log: list[str] = []

    @fb.effect
    async def body() -> None:
        await fb.sleep(1)
        log.append("one")
        await fb.sleep(1)
        log.append("two")

    work = body().uninterruptible().flat_map(lambda _: say(log, "after"))
    exit = await interrupt_during(rt, clock, work)

    assert exit == interrupted(77)
    assert log == ["one", "two"]


@pytest.mark.spec("IN4", "PD17")
async def test_an_interrupt_lands_at_the_first_suspension_after_a_region_in_a_body(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """The statements between the region and the next await still run."""
    log: list[str] = []

    @fb.effect
    async def body() -> None:
        with fb.uninterruptible():
            await fb.sleep(1)
            log.append("region done")
        log.append("same segment")
        await say(log, "after")

    exit = await interrupt_during(rt, clock, body())

    assert exit == interrupted(77)
    assert log == ["region done", "same segment"]


@pytest.mark.spec("IN5")
async def test_the_value_of_a_wholly_masked_effect_is_lost_to_a_pending_interrupt(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """The mask ends before the fiber does, so the interrupt lands in between."""
    work = fb.sleep(1).map(lambda _: 5).uninterruptible()

    assert await interrupt_during(rt, clock, work) == interrupted(77)


@pytest.mark.spec("IN5")
async def test_the_value_of_a_wholly_masked_body_is_lost_to_a_pending_interrupt(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """A coroutine body is treated as a chain of combinators is."""

    @fb.effect
    async def body() -> int:
        await fb.sleep(1)
        return 5

    exit = await interrupt_during(rt, clock, body().uninterruptible())

    assert exit == interrupted(77)


@pytest.mark.spec("IN5", "PD17")
async def test_a_value_returned_from_inside_a_region_is_lost_to_a_pending_interrupt(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """`return` leaves the region, and then the body with the interrupt still pending."""

    @fb.effect
    async def body() -> int:
        with fb.uninterruptible():
            await fb.sleep(1)
            return 5

    assert await interrupt_during(rt, clock, body()) == interrupted(77)


@pytest.mark.spec("IN6")
async def test_a_fiber_forked_uninterruptible_keeps_its_value_when_interrupted(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """The fork option covers the whole fiber: there is no place to land."""
    work = fb.sleep(1).map(lambda _: 5)
    fiber = await rt.run(work.fork_detach(uninterruptible=True))

    fiber.interrupt_unsafe(by=77)
    await pass_time(rt, clock)

    assert fiber.poll() == Success(5)


@pytest.mark.spec("IN6")
async def test_a_body_forked_uninterruptible_keeps_its_value_when_interrupted(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """The same for a coroutine body, started at once."""

    @fb.effect
    async def body() -> int:
        await fb.sleep(1)
        return 5

    fiber = await rt.run(body().fork_detach(start_immediately=True, uninterruptible=True))
    fiber.interrupt_unsafe(by=77)
    await pass_time(rt, clock)

    assert fiber.poll() == Success(5)


@pytest.mark.spec("IN7")
async def test_a_masked_failure_and_a_pending_interrupt_are_both_in_the_exit(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """The failure comes first."""
    boom = Boom("masked")
    work = fb.sleep(1).flat_map(lambda _: Effect.fail(boom)).uninterruptible()

    exit = await interrupt_during(rt, clock, work)

    assert exit == failed(Fail(boom), Interrupt(by=77, reason=None))


@pytest.mark.spec("IN7")
async def test_a_masked_defect_and_a_pending_interrupt_are_both_in_the_exit(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """A defect is kept as a failure is."""
    defect = Defect("masked")
    work = fb.sleep(1).flat_map(lambda _: Effect.die(defect)).uninterruptible()

    exit = await interrupt_during(rt, clock, work)

    assert exit == failed(Die(defect), Interrupt(by=77, reason=None))


@pytest.mark.spec("IN7", "PD17")
async def test_an_error_that_leaves_a_region_keeps_its_place_beside_the_interrupt(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """Raised inside the region of a body, it is in the exit as the very object."""
    boom = Boom("in the region")

    @fb.effect(raises=Boom)
    async def body() -> None:
        with fb.uninterruptible():
            await fb.sleep(1)
            raise boom

    exit = await interrupt_during(rt, clock, body())

    assert exit == failed(Fail(boom), Interrupt(by=77, reason=None))
    assert cause_of(exit).failures[0] is boom


@pytest.mark.spec("IN7")
async def test_a_finalizer_around_the_mask_sees_both_the_failure_and_the_interrupt(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """Finalizers are not skipped and drop nothing."""
    log: list[str] = []
    boom = Boom("b")
    work = fb.sleep(1).flat_map(lambda _: Effect.fail(boom)).uninterruptible()

    exit = await interrupt_during(rt, clock, work.on_exit(lambda ended: say(log, show(ended))))

    assert exit == failed(Fail(boom), Interrupt(by=77, reason=None))
    assert log == ["Fail(b)+I(77)"]


@pytest.mark.spec("IN8")
@pytest.mark.parametrize("recovery", RECOVERIES)
async def test_a_skipped_recovery_drops_the_masked_failure(
    rt: fb.Runtime, clock: TestClock, recovery: str
) -> None:
    """The handler does not run, only the interrupt is left, the outer finalizer runs."""
    log: list[str] = []
    work: Effect[None, Boom] = fb.sleep(1).flat_map(lambda _: Effect.fail(Boom("masked")))
    caught = RECOVERIES[recovery](work.uninterruptible(), say(log, "recovered"))

    exit = await interrupt_during(rt, clock, caught.ensuring(say(log, "ensuring")))

    assert exit == interrupted(77)
    assert log == ["ensuring"]


@pytest.mark.spec("IN8")
async def test_an_except_clause_is_skipped_when_the_interrupt_lands_with_the_masked_failure(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """What the body sees is its own interruption."""
    log: list[str] = []
    work = fb.sleep(1).flat_map(lambda _: Effect.fail(Boom("masked"))).uninterruptible()

    @fb.effect
    async def body() -> None:
        try:
            await work
        except Boom:
            log.append("recovered")
        except asyncio.CancelledError as cut:
            log.append(f"interrupted by {fb.interrupt_of(cut)}")
            raise

    exit = await interrupt_during(rt, clock, body())

    assert cause_of(exit).interruptors == {77}
    assert log == [f"interrupted by {Interrupt(by=77, reason=None)}"]


@pytest.mark.spec("IN9")
async def test_a_handler_inside_the_masked_region_runs_as_usual(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """The region recovers, goes on to its end, and only then the interrupt lands."""
    log: list[str] = []
    work: Effect[None, Boom] = fb.sleep(1).flat_map(lambda _: Effect.fail(Boom("masked")))
    region = work.catch(lambda _: say(log, "recovered")).flat_map(lambda _: slow(log, ""))

    exit = await interrupt_during(rt, clock, region.uninterruptible())

    assert exit == interrupted(77)
    assert log == ["recovered", "start", "end"]


@pytest.mark.spec("IN9")
async def test_an_except_clause_inside_a_region_runs_as_usual(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """The same in a body."""
    log: list[str] = []
    work = fb.sleep(1).flat_map(lambda _: Effect.fail(Boom("masked")))

    @fb.effect
    async def body() -> None:
        with fb.uninterruptible():
            try:
                await work
            except Boom:
                log.append("recovered")
            await fb.sleep(1)
            log.append("region done")

    exit = await interrupt_during(rt, clock, body())

    assert exit == interrupted(77)
    assert log == ["recovered", "region done"]


# ---- restore


@pytest.mark.spec("IN12")
async def test_restore_with_an_interrupt_pending_does_not_evaluate_its_effect(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """The interrupt lands in its place, exit() sees it, the rest of the region runs."""
    log: list[str] = []
    work: Effect[None, Never] = Effect.uninterruptible_mask(
        lambda restore: chain(
            say(log, "masked"),
            fb.sleep(1),
            restore(say(log, "restored")).exit().tap(lambda _: say(log, "interrupted")),
            say(log, "resumed"),
        )
    )

    exit = await interrupt_during(rt, clock, work)

    assert exit == interrupted(77)
    assert log == ["masked", "interrupted", "resumed"]


@pytest.mark.spec("IN12")
async def test_exit_around_restore_holds_the_pending_interrupt(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """And nothing else."""
    seen: list[object] = []
    work: Effect[None, Never] = Effect.uninterruptible_mask(
        lambda restore: (
            fb.sleep(1)
            .flat_map(lambda _: restore(Effect.succeed(5)).exit())
            .map(lambda ended: seen.append(ended))
        )
    )

    await interrupt_during(rt, clock, work)

    assert seen == [interrupted(77)]


@pytest.mark.spec("IN12", "PD17")
async def test_entering_restore_in_a_body_raises_the_pending_interrupt(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """Its block is not entered; caught, the region goes on to its end."""
    log: list[str] = []

    @fb.effect
    async def body() -> None:
        with fb.uninterruptible() as restore:
            log.append("masked")
            await fb.sleep(1)
            try:
                with restore():
                    log.append("restored")
            except asyncio.CancelledError:
                log.append("interrupted")
            await fb.sleep(1)
            log.append("resumed")

    exit = await interrupt_during(rt, clock, body())

    assert exit == interrupted(77)
    assert log == ["masked", "interrupted", "resumed"]


@pytest.mark.spec("IN12", "WI3")
async def test_the_region_is_masked_again_after_a_restored_part_was_interrupted(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """A second interrupt does not cut what follows the hole."""
    log: list[str] = []
    work: Effect[None, Never] = Effect.uninterruptible_mask(
        lambda restore: chain(restore(Effect.never()).exit(), slow(log, "", 2))
    )
    fiber = rt.run_fork(work)

    fiber.interrupt_unsafe(by=1)
    await pass_time(rt, clock, 1)
    fiber.interrupt_unsafe(by=2)
    await pass_time(rt, clock)

    assert log == ["start", "end"]
    assert fiber.poll() == interrupted(1, 2)


@pytest.mark.spec("IN14")
async def test_restore_of_a_mask_inside_a_masked_effect_is_the_identity(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """It restores what was there before its own mask: a mask."""
    log: list[str] = []
    inner: Effect[None, Never] = Effect.uninterruptible_mask(lambda restore: restore(slow(log, "")))

    exit = await interrupt_during(rt, clock, inner.uninterruptible())

    assert exit == interrupted(77)
    assert log == ["start", "end"]


@pytest.mark.spec("IN14", "PD17")
async def test_restore_of_a_region_inside_a_region_is_the_identity(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """It neither unmasks nor raises, with an interrupt pending or not."""
    log: list[str] = []

    @fb.effect
    async def body() -> None:
        with fb.uninterruptible(), fb.uninterruptible() as restore:
            with restore():
                await slow(log, "1")
            with restore():
                await slow(log, "2")

    exit = await interrupt_during(rt, clock, body())

    assert exit == interrupted(77)
    assert log == ["start1", "end1", "start2", "end2"]


@pytest.mark.spec("IN14", "PD17")
async def test_restore_of_a_region_in_a_masked_body_is_the_identity(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """It makes no difference which of the two ways masked the body."""
    log: list[str] = []

    @fb.effect
    async def body() -> None:
        with fb.uninterruptible() as restore, restore():
            await slow(log, "")

    exit = await interrupt_during(rt, clock, body().uninterruptible())

    assert exit == interrupted(77)
    assert log == ["start", "end"]


# ---- holes


@pytest.mark.spec("IN15")
async def test_an_interrupt_in_an_interruptible_hole_fails_only_the_hole(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """The region around it goes on to its end; then the fiber ends interrupted."""
    log: list[str] = []
    hole = Effect.never().interruptible().exit()
    region = hole.flat_map(lambda ended: chain(say(log, f"hole {show(ended)}"), slow(log, "")))

    exit = await interrupt_during(rt, clock, region.uninterruptible())

    assert exit == interrupted(77)
    assert log == ["hole I(77)", "start", "end"]


@pytest.mark.spec("IN15", "PD17")
async def test_an_interrupt_in_a_restored_block_of_a_body_fails_only_that_block(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """Caught there, it is pending again and lands behind the region."""
    log: list[str] = []

    @fb.effect
    async def body() -> None:
        with fb.uninterruptible() as restore:
            try:
                with restore():
                    await Effect.never()
            except asyncio.CancelledError as cut:
                log.append(f"hole {fb.interrupt_of(cut)}")
            await fb.sleep(1)
            log.append("region done")
        await say(log, "after")

    exit = await interrupt_during(rt, clock, body())

    assert exit == interrupted(77)
    assert log == [f"hole {Interrupt(by=77, reason=None)}", "region done"]


@pytest.mark.spec("IN15", "PD2", "PD17")
async def test_a_finally_behind_a_region_is_not_cut_by_the_interrupt_that_left_the_region(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """Raised in a restored block and not caught, it has been delivered once."""
    log: list[str] = []

    @fb.effect
    async def body() -> None:
        try:
            with fb.uninterruptible() as restore, restore():
                await Effect.never()
        finally:
            await slow(log, "")

    exit = await interrupt_during(rt, clock, body())

    assert exit == interrupted(77)
    assert log == ["start", "end"]


@pytest.mark.spec("IN15")
async def test_a_nest_of_alternating_masks_and_holes_lands_once_in_each_hole(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """Two holes, each caught by its own exit()."""
    log: list[str] = []
    inner = Effect.never().interruptible().exit().flat_map(lambda _: say(log, "inner"))
    outer = inner.uninterruptible().interruptible().exit().flat_map(lambda _: say(log, "outer"))

    exit = await interrupt_during(rt, clock, outer.uninterruptible())

    assert exit == interrupted(77)
    assert log == ["inner", "outer"]


@pytest.mark.spec("IN15")
async def test_ten_thousand_alternating_masks_and_holes_land_once_in_each_hole(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """From the inside out, without a Python stack per level."""
    log: list[int] = []

    def pair(hole: Effect[Any, Never], level: int) -> Effect[Any, Never]:
        note = Effect.sync(lambda: log.append(level))
        return hole.interruptible().exit().flat_map(lambda _: note).uninterruptible()

    nest: Effect[Any, Never] = Effect.never()
    for level in range(DEEP):
        nest = pair(nest, level)
    exit = await interrupt_during(rt, clock, nest)

    assert exit == interrupted(77)
    assert log == list(range(DEEP))


@pytest.mark.spec("IN15", "PD3")
async def test_an_interruptible_hole_cuts_the_rest_of_the_finalizer_that_holds_it(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """The interrupt that runs the finalizer lands in the hole; outer finalizers still run."""
    log: list[str] = []
    hole = say(log, "hole").interruptible()
    finalizer = chain(say(log, "before"), hole, say(log, "behind"))

    work = Effect.never().ensuring(finalizer).ensuring(say(log, "outer"))
    exit = await interrupt_during(rt, clock, work)

    assert exit == interrupted(77)
    assert log == ["before", "outer"]


@pytest.mark.spec("IN16")
async def test_interruptible_changes_no_value_in_an_interruptible_fiber(rt: fb.Runtime) -> None:
    """Its effect runs as it would without."""
    assert await rt.run(Effect.succeed(5).interruptible()) == 5


@pytest.mark.spec("IN16")
async def test_interruptible_in_an_interruptible_fiber_is_no_handler(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """An interrupt ends the fiber there as anywhere else."""
    log: list[str] = []
    work = fb.sleep(10).interruptible().flat_map(lambda _: say(log, "next"))

    exit = await interrupt_during(rt, clock, work, at=1)

    assert exit == interrupted(77)
    assert log == []
