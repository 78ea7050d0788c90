"""Probes PD6, PD14: what a body sees of somebody else's cancellation or interrupt."""

from __future__ import annotations

import asyncio

import pytest
from returns.result import Success

import fibers as fb
from fibers import Cause, Die, Effect, Fail, FiberInterrupted, Interrupt
from tests.probes.kit_f import (
    Boom,
    cause_of,
    endless,
    failed,
    inner_task,
    interrupted,
    new_gate,
    note,
    turns,
    wait_for,
)

# ---- PD6: a foreign CancelledError


@pytest.mark.spec("PD6")
async def test_a_future_cancelled_by_somebody_else_makes_a_promise_die() -> None:
    """Nobody asked this fiber to end: a defect, no interrupt."""
    gate = new_gate()
    fiber = fb.run_fork(wait_for(gate))

    gate.cancel()
    exit = await fiber.exit()

    assert [type(defect) for defect in cause_of(exit).defects] == [asyncio.CancelledError]
    assert not cause_of(exit).has_interrupts


@pytest.mark.spec("PD6")
async def test_a_task_cancelled_by_somebody_else_makes_the_awaiting_body_die() -> None:
    """The same for a task that a body awaits directly."""
    gate = new_gate()

    async def work() -> int:
        return await gate

    task = asyncio.create_task(work())

    @fb.effect
    async def body() -> int:
        return await task

    fiber = fb.run_fork(body())
    await turns()
    task.cancel()
    exit = await fiber.exit()

    assert [type(defect) for defect in cause_of(exit).defects] == [asyncio.CancelledError]
    assert not cause_of(exit).has_interrupts


@pytest.mark.spec("PD6")
async def test_a_body_can_tell_a_foreign_cancelled_error_and_go_on() -> None:
    """interrupt_of says None, cancelling() says 0, and the fiber succeeds."""
    gate = new_gate()

    @fb.effect
    async def body() -> tuple[object, int]:
        try:
            await gate
        except asyncio.CancelledError as exc:
            return fb.interrupt_of(exc), inner_task().cancelling()
        return "not reached", -1

    fiber = fb.run_fork(body())
    gate.cancel()

    assert await fiber == (None, 0)


@pytest.mark.spec("PD6")
async def test_a_cancelled_error_that_a_body_raises_itself_is_a_defect() -> None:
    """Nobody asked for it either."""
    error = asyncio.CancelledError("mine")

    @fb.effect
    async def body() -> None:
        raise error

    exit = await body().exit()

    assert failed(Die(error)) == exit


@pytest.mark.spec("PD6")
async def test_a_foreign_cancelled_error_does_not_run_on_interrupt() -> None:
    """Nothing was interrupted."""
    log, gate = list[str](), new_gate()
    fiber = fb.run_fork(wait_for(gate).on_interrupt(lambda _: note(log, "interrupted")))

    gate.cancel()
    exit = await fiber.exit()

    assert cause_of(exit).has_dies
    assert log == []


# ---- PD14: somebody else's interrupt


@pytest.mark.spec("PD14", "FL7")
async def test_joining_an_interrupted_fiber_raises_fiber_interrupted() -> None:
    """It carries the cause of the other fiber."""
    target = fb.run_fork(endless())

    @fb.effect
    async def body() -> Cause[Exception]:
        try:
            await target.join()
        except FiberInterrupted as exc:
            return exc.cause
        return Cause(())

    fiber = fb.run_fork(body())
    target.interrupt_unsafe(by=7)

    assert await fiber == Cause((Interrupt(by=7, reason=None),))


@pytest.mark.spec("PD14")
async def test_awaiting_an_interrupted_fiber_raises_fiber_interrupted() -> None:
    """`await fiber` is the same as join."""
    target = fb.run_fork(endless())

    @fb.effect
    async def body() -> str:
        try:
            await target
        except FiberInterrupted:
            return "interrupted"
        return "nothing raised"

    fiber = fb.run_fork(body())
    target.interrupt_unsafe(by=7)

    assert await fiber == "interrupted"


@pytest.mark.spec("PD14", "IN18")
async def test_awaiting_an_effect_that_interrupts_itself_raises_fiber_interrupted() -> None:
    """Effect.interrupt() is an ordinary failure of what was awaited."""

    @fb.effect
    async def body() -> str:
        try:
            await Effect.interrupt().map(lambda _: None)
        except FiberInterrupted:
            return "caught"
        return "nothing raised"

    assert await body() == "caught"


@pytest.mark.spec("PD14")
async def test_a_foreign_interrupt_in_an_exit_raises_fiber_interrupted() -> None:
    """from_exit with somebody's Interrupt."""

    @fb.effect
    async def body() -> Cause[Exception]:
        try:
            await Effect.from_exit(interrupted(by=999))
        except FiberInterrupted as exc:
            return exc.cause
        return Cause(())

    assert await body() == Cause((Interrupt(by=999, reason=None),))


@pytest.mark.spec("PD14")
async def test_fiber_interrupted_is_caught_by_except_exception() -> None:
    """Catchable like any error; it is no CancelledError."""
    target = fb.run_fork(endless())
    target.interrupt_unsafe(by=7)

    @fb.effect
    async def body() -> bool:
        try:
            await target
        except Exception as exc:
            return isinstance(exc, asyncio.CancelledError)
        return True

    assert await body() is False


@pytest.mark.spec("PD14")
async def test_a_foreign_interrupt_does_not_count_as_cancelling() -> None:
    """The joiner itself is not being cancelled."""
    target = fb.run_fork(endless())
    target.interrupt_unsafe(by=7)

    @fb.effect
    async def body() -> int:
        try:
            await target
        except FiberInterrupted:
            pass
        return inner_task().cancelling()

    assert await body() == 0


@pytest.mark.spec("PD14", "FL7")
async def test_a_fiber_interrupted_that_leaves_the_body_is_that_interrupt_again() -> None:
    """Neither Fail nor Die: the cause of the joined fiber."""
    target = fb.run_fork(endless())
    target.interrupt_unsafe(by=7)

    @fb.effect
    async def body() -> None:
        await target

    exit = await body().exit()

    assert interrupted(by=7) == exit


@pytest.mark.spec("PD14")
async def test_a_fiber_interrupted_passes_through_nested_bodies() -> None:
    """No raises= needs to name it."""
    target = fb.run_fork(endless())
    target.interrupt_unsafe(by=7)

    @fb.effect
    async def inner() -> None:
        await target

    @fb.effect(raises=Boom)
    async def outer() -> None:
        await inner()

    exit = await outer().exit()

    assert interrupted(by=7) == exit


@pytest.mark.spec("PD14")
async def test_a_fiber_interrupted_leaves_a_promised_coroutine_as_an_interrupt() -> None:
    """A coroutine given to promise is a body too."""
    target = fb.run_fork(endless())
    target.interrupt_unsafe(by=7)

    async def work() -> None:
        await target

    exit = await Effect.promise(work).exit()

    assert interrupted(by=7) == exit


@pytest.mark.spec("PD14", "FL8")
async def test_a_foreign_interrupt_that_leaves_the_body_fires_on_interrupt() -> None:
    """With the ids of the joined fiber's cause; the fiber goes on after exit()."""
    log = list[str]()
    target = fb.run_fork(endless())
    target.interrupt_unsafe(by=7)

    @fb.effect
    async def body() -> None:
        await target

    watched = body().on_interrupt(lambda by: note(log, f"on_interrupt {sorted(by)}"))
    await watched.exit().flat_map(lambda _: note(log, "went on"))

    assert log == ["on_interrupt [7]", "went on"]


@pytest.mark.spec("PD14")
async def test_an_own_interrupt_during_a_join_is_a_cancelled_error() -> None:
    """The joiner is interrupted, not the target: its body sees CancelledError."""
    seen = list[type]()
    target = fb.run_fork(endless())

    @fb.effect
    async def body() -> None:
        try:
            await target
        except BaseException as exc:
            seen.append(type(exc))
            raise

    fiber = fb.run_fork(body())
    fiber.interrupt_unsafe(by=7)
    alive = target.poll()
    await target.interrupt()

    assert seen == [asyncio.CancelledError]
    assert alive is None


@pytest.mark.spec("PD14")
async def test_equal_interrupts_of_target_and_joiner_are_told_apart() -> None:
    """Both were interrupted by the same id: each body still sees its own kind."""
    seen = list[type]()
    target = fb.run_fork(endless())
    target.interrupt_unsafe(by=7)
    gate = new_gate()

    @fb.effect
    async def body() -> None:
        try:
            await target
        except BaseException as exc:
            seen.append(type(exc))
        try:
            await gate
        except BaseException as exc:
            seen.append(type(exc))
            raise

    fiber = fb.run_fork(body())
    await turns()
    fiber.interrupt_unsafe(by=7)
    exit = await fiber.exit()

    assert seen == [FiberInterrupted, asyncio.CancelledError]
    assert exit == interrupted(by=7)


@pytest.mark.spec("PD14", "PD4")
async def test_an_error_raised_from_a_fiber_interrupted_is_an_ordinary_error() -> None:
    """A body may turn it into a declared failure."""
    target = fb.run_fork(endless())
    target.interrupt_unsafe(by=7)
    boom = Boom()

    @fb.effect(raises=Boom)
    async def body() -> None:
        try:
            await target
        except FiberInterrupted as exc:
            raise boom from exc

    exit = await body().exit()

    assert failed(Fail(boom)) == exit


@pytest.mark.spec("PD14")
async def test_a_joined_success_after_a_caught_foreign_interrupt() -> None:
    """A caught FiberInterrupted leaves no trace in the exit."""
    target = fb.run_fork(endless())
    target.interrupt_unsafe(by=7)

    @fb.effect
    async def body() -> int:
        try:
            await target
        except FiberInterrupted:
            pass
        return 5

    fiber = fb.run_fork(body())
    await fiber.exit()

    assert fiber.poll() == Success(5)
