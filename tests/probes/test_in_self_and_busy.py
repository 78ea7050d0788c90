"""Probes IN: fibers that interrupt themselves, and fibers that never wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Never

import pytest
from returns.result import Success

import fibers as fb
from fibers import Effect, FiberDeadlockError, FiberInterrupted
from tests.probes.kit_e import (
    cause_of,
    chain,
    failed,
    interrupted,
    me,
    pass_time,
    say,
    show,
    slow,
)

if TYPE_CHECKING:
    from fibers.testing import TestClock

# ---- Effect.interrupt


@pytest.mark.spec("IN18", "WI5")
@pytest.mark.parametrize("masked", [False, True])
async def test_exit_catches_effect_interrupt(rt: fb.Runtime, masked: bool) -> None:
    """It is a failure of the fiber's own making; the fiber goes on and succeeds."""
    log: list[str] = []
    caught = Effect.interrupt().exit().map(lambda ended: cause_of(ended).has_interrupts_only)

    exit = await rt.run_exit(
        (caught.uninterruptible() if masked else caught).tap(lambda _: say(log, "after"))
    )

    assert exit == Success(True)
    assert log == ["after"]


@pytest.mark.spec("IN18", "WI5")
@pytest.mark.parametrize("masked", [False, True])
async def test_catch_cause_catches_effect_interrupt(rt: fb.Runtime, masked: bool) -> None:
    """In an interruptible and in a masked region."""
    caught = Effect.interrupt().catch_cause(lambda _: Effect.succeed(5))

    exit = await rt.run_exit(caught.uninterruptible() if masked else caught)

    assert exit == Success(5)


@pytest.mark.spec("IN18", "PD14")
@pytest.mark.parametrize("masked", [False, True])
async def test_a_body_catches_effect_interrupt_as_fiber_interrupted(
    rt: fb.Runtime, masked: bool
) -> None:
    """Not as CancelledError: nobody has interrupted the fiber."""
    log: list[str] = []

    @fb.effect
    async def body() -> int:
        try:
            await Effect.interrupt()
        except FiberInterrupted as caught:
            log.append(show(failed(*caught.cause.reasons)))
        return me().id

    fiber_id = await rt.run(body().uninterruptible() if masked else body())

    assert log == [f"I({fiber_id})"]


@pytest.mark.spec("IN18")
async def test_effect_interrupt_names_the_fiber_itself(rt: fb.Runtime) -> None:
    """Not caught, it is the exit."""
    fiber = rt.run_fork(Effect.interrupt())

    assert fiber.poll() == interrupted(fiber.id)


# ---- a fiber that interrupts itself


@pytest.mark.spec("IN19")
async def test_a_fiber_that_interrupts_itself_ends_there(rt: fb.Runtime) -> None:
    """Finalizers see its own id; code after the call does not run."""
    log: list[str] = []
    work = Effect.suspend(lambda: me().interrupt())
    work = work.on_exit(lambda ended: say(log, f"inner {show(ended)}"))
    fiber = rt.run_fork(work.flat_map(lambda _: say(log, "after")))

    assert fiber.poll() == interrupted(fiber.id)
    assert log == [f"inner I({fiber.id})"]


@pytest.mark.spec("IN19")
async def test_a_body_that_interrupts_itself_leaves_through_its_finally(rt: fb.Runtime) -> None:
    """The await of the interrupt raises the fiber's own CancelledError."""
    log: list[str] = []

    @fb.effect
    async def body() -> None:
        try:
            await me().interrupt()
            log.append("after")
        finally:
            log.append("finally")

    fiber = rt.run_fork(body())

    assert fiber.poll() == interrupted(fiber.id)
    assert log == ["finally"]


@pytest.mark.spec("IN20", "PD9")
async def test_a_masked_effect_that_interrupts_itself_fails_with_a_deadlock_error(
    rt: fb.Runtime,
) -> None:
    """It would wait for its own end, which waits for it."""
    defects: list[BaseException] = []
    refused = Effect.suspend(lambda: me().interrupt()).exit()
    work = refused.map(lambda ended: defects.extend(cause_of(ended).defects))

    await rt.run_exit(work.uninterruptible())

    assert [type(defect) for defect in defects] == [FiberDeadlockError]


@pytest.mark.spec("IN20", "PD9")
async def test_a_masked_effect_that_is_among_all_it_interrupts_fails_with_a_deadlock_error(
    rt: fb.Runtime,
) -> None:
    """Before anyone is signalled: who is to end is not left to the order of the list."""
    defects: list[BaseException] = []
    other = fb.run_fork(Effect.never())
    refused = Effect.suspend(lambda: fb.Fiber.interrupt_all([other, me()])).exit()
    work = refused.map(lambda ended: defects.extend(cause_of(ended).defects))

    exit = await rt.run_exit(work.uninterruptible())

    assert exit == Success(None)
    assert [type(defect) for defect in defects] == [FiberDeadlockError]
    assert other.poll() is None
    await other.interrupt()


@pytest.mark.spec("IN20", "PD9")
async def test_a_body_that_interrupts_itself_in_a_region_gets_a_deadlock_error(
    rt: fb.Runtime,
) -> None:
    """The error is raised at the await, where the body can see what it did."""
    log: list[str] = []

    @fb.effect
    async def body() -> None:
        with fb.uninterruptible():
            try:
                await me().interrupt()
            except FiberDeadlockError:
                log.append("refused")

    await rt.run_exit(body())

    assert log == ["refused"]


@pytest.mark.spec("IN20", "PD9")
async def test_a_finalizer_that_interrupts_its_own_fiber_dies_of_a_deadlock_error(
    rt: fb.Runtime,
) -> None:
    """Finalizers are masked too."""
    work = Effect.succeed(1).ensuring(Effect.suspend(lambda: me().interrupt()))

    exit = await rt.run_exit(work)

    assert [type(defect) for defect in cause_of(exit).defects] == [FiberDeadlockError]


@pytest.mark.spec("IN21", "WI2")
async def test_the_op_that_interrupts_its_own_fiber_finishes_and_the_next_does_not_run(
    rt: fb.Runtime,
) -> None:
    """A running fiber is stopped between two primitives, never inside one."""
    log: list[str] = []

    def op() -> None:
        me().interrupt_unsafe(by=77)
        log.append("op finished")

    fiber = rt.run_fork(Effect.sync(op).flat_map(lambda _: say(log, "next")))

    assert fiber.poll() == interrupted(77)
    assert log == ["op finished"]


@pytest.mark.spec("IN21", "WI2")
async def test_the_segment_of_a_body_that_interrupts_its_own_fiber_finishes(rt: fb.Runtime) -> None:
    """It is stopped at its next await, whose effect does not run."""
    log: list[str] = []

    @fb.effect
    async def body() -> None:
        me().interrupt_unsafe(by=77)
        log.append("same segment")
        await say(log, "next")
        log.append("after")

    fiber = rt.run_fork(body())

    assert fiber.poll() == interrupted(77)
    assert log == ["same segment"]


@pytest.mark.spec("IN21")
async def test_a_body_that_returns_after_interrupting_itself_ends_interrupted(
    rt: fb.Runtime,
) -> None:
    """The value is lost, though no await came in between."""

    @fb.effect
    async def body() -> int:
        me().interrupt_unsafe(by=77)
        return 42

    fiber = rt.run_fork(body())

    assert fiber.poll() == interrupted(77)


@pytest.mark.spec("IN23")
async def test_a_masked_sequence_goes_on_through_repeated_interrupts(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """Every step runs; then the fiber ends with all of them."""
    log: list[str] = []
    steps = [slow(log, f"{n}") for n in (1, 2, 3)]
    fiber = rt.run_fork(chain(*steps).uninterruptible())

    for by in (101, 102, 103):
        fiber.interrupt_unsafe(by=by)
        await pass_time(rt, clock, 1)

    assert log == ["start1", "end1", "start2", "end2", "start3", "end3"]
    assert fiber.poll() == interrupted(101, 102, 103)


@pytest.mark.spec("IN23")
async def test_a_region_of_a_body_goes_on_through_repeated_interrupts(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """No await inside it raises."""
    log: list[str] = []

    @fb.effect
    async def body() -> None:
        with fb.uninterruptible():
            for n in (1, 2, 3):
                await fb.sleep(1)
                log.append(f"step{n}")

    fiber = rt.run_fork(body())
    for by in (101, 102, 103):
        fiber.interrupt_unsafe(by=by)
        await pass_time(rt, clock, 1)

    assert log == ["step1", "step2", "step3"]
    assert fiber.poll() == interrupted(101, 102, 103)


# ---- busy fibers

BUDGET = 2048  # primitives a fiber may run before it yields to the loop
LONG = 50 * BUDGET  # primitives; a bound for the case that nothing ever yields


@pytest.mark.spec("IN24", "WI9")
async def test_a_busy_loop_of_combinators_yields_within_the_op_budget(rt: fb.Runtime) -> None:
    """It has no suspension of its own, yet the forker gets control back."""
    count = 0

    def again(_: object) -> Effect[None, Never]:
        nonlocal count
        count += 1
        return Effect.succeed(None).flat_map(again) if count < LONG else Effect.succeed(None)

    fiber = rt.run_fork(again(None))

    assert fiber.poll() is None
    assert BUDGET // 4 <= count <= BUDGET
    fiber.interrupt_unsafe()


@pytest.mark.spec("IN24", "WI9")
async def test_a_busy_body_yields_within_the_op_budget(rt: fb.Runtime) -> None:
    """Each effect that it awaits is a primitive."""
    count = 0

    @fb.effect
    async def spin() -> None:
        nonlocal count
        while count < LONG:
            await Effect.succeed(None)
            count += 1

    fiber = rt.run_fork(spin())

    assert fiber.poll() is None
    assert BUDGET // 2 <= count <= BUDGET
    fiber.interrupt_unsafe()


@pytest.mark.spec("IN24")
async def test_a_busy_fiber_is_interruptible_where_it_yields(rt: fb.Runtime) -> None:
    """There it is suspended like any other: it ends at once."""

    @fb.effect
    async def spin() -> None:
        for _ in range(LONG):
            await Effect.succeed(None)

    fiber = rt.run_fork(spin())
    fiber.interrupt_unsafe(by=77)

    assert fiber.poll() == interrupted(77)


@pytest.mark.spec("IN24", "WI9")
async def test_a_fiber_within_its_op_budget_does_not_yield(rt: fb.Runtime) -> None:
    """A few hundred primitives run in one go."""

    @fb.effect
    async def spin() -> int:
        for _ in range(BUDGET // 4):
            await Effect.succeed(None)
        return 5

    assert rt.run_fork(spin()).poll() == Success(5)


@pytest.mark.spec("IN24")
async def test_forever_yields_each_turn(rt: fb.Runtime) -> None:
    """One turn has run when the fork returns, and the fiber can be interrupted between turns."""
    log: list[str] = []
    fiber = rt.run_fork(say(log, "turn").forever())

    turns = list(log)
    fiber.interrupt_unsafe(by=77)

    assert turns == ["turn"]
    assert fiber.poll() == interrupted(77)
