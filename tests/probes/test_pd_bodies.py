"""Probes PD1, PD2, PD6, PD14: what a coroutine body sees when something is interrupted."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from returns.result import Success

import fibers as fb
from fibers import Cause, Die, Effect, Fail, FiberInterrupted, Interrupt
from tests.probes.kit_f import (
    Boom,
    cause_of,
    endless,
    expire,
    failed,
    failing,
    inner_task,
    interrupted,
    interruptors,
    new_gate,
    note,
    note_start_and_end,
    turns,
    wait_for,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from fibers.testing import TestClock


# ---- PD1: an ordinary coroutine


@pytest.mark.spec("PD1", "IN25")
async def test_a_finally_runs_on_interrupt() -> None:
    """Before interrupt_unsafe returns, where it needs no waiting."""
    log, gate = list[str](), new_gate()

    @fb.effect
    async def body() -> None:
        try:
            await gate
        finally:
            log.append("finally")

    fiber = fb.run_fork(body())
    fiber.interrupt_unsafe(by=7)

    assert log == ["finally"]
    assert interrupted(by=7) == fiber.poll()


@pytest.mark.spec("PD1", "IN25")
async def test_an_asynchronous_finally_is_awaited_on_interrupt(
    clock: TestClock, rt: fb.Runtime
) -> None:
    """The exit is there after it."""
    log = list[str]()

    @fb.effect
    async def body() -> None:
        try:
            await Effect.never()
        finally:
            await note_start_and_end(log, "finally", 1.0)

    fiber = rt.run_fork(body())
    fiber.interrupt_unsafe(by=7)
    early = fiber.poll()
    await rt.run(clock.adjust(1.0))

    assert early is None
    assert log == ["finally-start", "finally-end"]
    assert interrupted(by=7) == fiber.poll()


@pytest.mark.spec("PD1", "IN25")
async def test_an_except_cancelled_error_runs_on_interrupt() -> None:
    """As in any task that is cancelled."""
    log = list[str]()

    @fb.effect
    async def body() -> None:
        try:
            await Effect.never()
        except asyncio.CancelledError:
            log.append("except")
            raise

    fiber = fb.run_fork(body())
    fiber.interrupt_unsafe(by=7)

    assert log == ["except"]
    assert interrupted(by=7) == fiber.poll()


@pytest.mark.spec("PD1")
async def test_an_async_with_is_left_on_interrupt() -> None:
    """Its exit sees the CancelledError."""
    log = list[str]()

    @asynccontextmanager
    async def resource() -> AsyncGenerator[None, None]:
        try:
            yield
        except asyncio.CancelledError:
            log.append("left by interrupt")
            raise

    @fb.effect
    async def body() -> None:
        async with resource():
            await Effect.never()

    fb.run_fork(body()).interrupt_unsafe(by=7)

    assert log == ["left by interrupt"]


@pytest.mark.spec("PD1")
async def test_a_finally_runs_on_failure() -> None:
    """A failure of an awaited effect is raised in the body."""
    log, boom = list[str](), Boom()

    @fb.effect(raises=Boom)
    async def body() -> None:
        try:
            await Effect.fail(boom)
        finally:
            log.append("finally")

    exit = await body().exit()

    assert failed(Fail(boom)) == exit
    assert log == ["finally"]


@pytest.mark.spec("PD1")
async def test_an_async_with_is_left_on_failure() -> None:
    """Its exit sees the very error."""
    seen, boom = list[BaseException](), Boom()

    @asynccontextmanager
    async def resource() -> AsyncGenerator[None, None]:
        try:
            yield
        except Boom as exc:
            seen.append(exc)
            raise

    @fb.effect(raises=Boom)
    async def body() -> None:
        async with resource():
            await Effect.fail(boom)

    exit = await body().exit()

    assert failed(Fail(boom)) == exit
    assert seen == [boom]


@pytest.mark.spec("PD1")
async def test_the_finallys_of_nested_bodies_run_from_the_inside_out() -> None:
    """Bodies that await bodies unwind like calls."""
    log = list[str]()

    @fb.effect
    async def inner() -> None:
        try:
            await Effect.never()
        finally:
            log.append("inner")

    @fb.effect
    async def outer() -> None:
        try:
            await inner()
        finally:
            log.append("outer")

    fiber = fb.run_fork(outer().ensuring(note(log, "ensuring")))
    fiber.interrupt_unsafe(by=7)

    assert log == ["inner", "outer", "ensuring"]


@pytest.mark.spec("PD1")
async def test_an_error_in_the_body_is_caught_by_an_ordinary_except() -> None:
    """And the body goes on."""

    @fb.effect
    async def body() -> str:
        try:
            await failing(Boom())
        except Boom:
            return "caught"
        return "nothing raised"

    assert await body() == "caught"


# ---- PD2: what is thrown


@pytest.mark.spec("PD2")
async def test_what_is_thrown_is_exactly_a_cancelled_error() -> None:
    """No subclass: a TaskGroup of 3.11 and 3.12 would report one as a group."""
    seen = list[type]()

    @fb.effect
    async def body() -> None:
        try:
            await Effect.never()
        except BaseException as exc:
            seen.append(type(exc))
            raise

    fb.run_fork(body()).interrupt_unsafe(by=7)

    assert seen == [asyncio.CancelledError]


@pytest.mark.spec("PD2")
async def test_interrupt_of_tells_who_interrupted_and_why() -> None:
    """The mark on what was thrown."""
    seen = list[Interrupt | None]()

    @fb.effect
    async def body() -> None:
        try:
            await Effect.never()
        except asyncio.CancelledError as exc:
            seen.append(fb.interrupt_of(exc))
            raise

    fb.run_fork(body()).interrupt_unsafe(by=7, reason="enough")

    assert seen == [Interrupt(by=7, reason="enough")]


@pytest.mark.spec("PD2")
def test_interrupt_of_a_foreign_exception_is_none() -> None:
    """A CancelledError of asyncio's and any other error carry no mark."""
    assert fb.interrupt_of(asyncio.CancelledError()) is None
    assert fb.interrupt_of(Boom()) is None


@pytest.mark.spec("PD2")
async def test_an_interrupt_counts_in_cancelling() -> None:
    """As a cancelled task's does."""
    seen = list[int]()

    @fb.effect
    async def body() -> None:
        before = inner_task().cancelling()
        try:
            await Effect.never()
        finally:
            seen.extend([before, inner_task().cancelling()])

    fb.run_fork(body()).interrupt_unsafe(by=7)

    assert seen == [0, 1]


@pytest.mark.spec("PD2")
async def test_an_interrupt_counts_until_the_fiber_ends() -> None:
    """Also in the next body, after the first has been left."""
    seen = list[int]()

    @fb.effect
    async def inner() -> None:
        try:
            await Effect.never()
        finally:
            await asyncio.sleep(0)

    @fb.effect
    async def outer() -> None:
        try:
            await inner()
        finally:
            await asyncio.sleep(0)
            seen.append(inner_task().cancelling())

    fiber = fb.run_fork(outer())
    fiber.interrupt_unsafe(by=7)
    await fiber.exit()

    assert seen == [1]


@pytest.mark.spec("PD2", "AT22")
async def test_a_timeout_that_expires_after_the_interrupt_in_one_tick_changes_nothing() -> None:
    """The exit is the interrupt, no TimeoutError."""
    limits, gate = list[asyncio.Timeout](), new_gate()

    @fb.effect(raises=TimeoutError)
    async def body() -> None:
        async with asyncio.timeout(None) as limit:
            limits.append(limit)
            await gate

    fiber = fb.run_fork(body())
    expire(limits[0])
    fiber.interrupt_unsafe(by=7)
    exit = await fiber.exit()

    assert interrupted(by=7) == exit


@pytest.mark.spec("PD2", "AT22")
async def test_a_timeout_that_expires_before_the_interrupt_in_one_tick_changes_nothing() -> None:
    """The timeout has asked for a cancel already; the interrupt still is not a TimeoutError."""
    limits, gate = list[asyncio.Timeout](), new_gate()

    @fb.effect(raises=TimeoutError)
    async def body() -> None:
        async with asyncio.timeout(None) as limit:
            limits.append(limit)
            await gate

    fiber = fb.run_fork(body())
    expire(limits[0])
    asyncio.get_running_loop().call_soon(lambda: fiber.interrupt_unsafe(by=7))
    exit = await fiber.exit()

    assert cause_of(exit).has_interrupts_only
    assert Interrupt(by=7, reason=None) in cause_of(exit).reasons


@pytest.mark.spec("PD2")
async def test_a_second_interrupt_does_not_cut_a_finally(clock: TestClock, rt: fb.Runtime) -> None:
    """Only the first request is thrown."""
    log = list[str]()

    @fb.effect
    async def body() -> None:
        try:
            await Effect.never()
        finally:
            await note_start_and_end(log, "finally", 1.0)

    fiber = rt.run_fork(body())
    fiber.interrupt_unsafe(by=7)
    fiber.interrupt_unsafe(by=8)
    await rt.run(clock.adjust(1.0))

    assert log == ["finally-start", "finally-end"]


@pytest.mark.spec("PD2")
async def test_a_second_interrupt_does_not_cut_a_finally_that_awaits_a_plain_future() -> None:
    """Nor where the finally waits on asyncio itself: the future is not cancelled."""
    log, gate = list[str](), new_gate()

    @fb.effect
    async def body() -> None:
        try:
            await Effect.never()
        finally:
            await gate
            log.append("finally")

    fiber = fb.run_fork(body())
    fiber.interrupt_unsafe(by=7)
    fiber.interrupt_unsafe(by=8)
    gate.set_result(1)
    await fiber.exit()

    assert log == ["finally"]


@pytest.mark.spec("PD2", "IN10")
async def test_a_second_interrupt_joins_the_cause(clock: TestClock, rt: fb.Runtime) -> None:
    """Both interruptors are named."""

    @fb.effect
    async def body() -> None:
        try:
            await Effect.never()
        finally:
            await fb.sleep(1.0)

    fiber = rt.run_fork(body())
    fiber.interrupt_unsafe(by=7)
    fiber.interrupt_unsafe(by=8)
    await rt.run(clock.adjust(1.0))

    assert interruptors(fiber.poll()) == [7, 8]


@pytest.mark.spec("PD2")
async def test_a_body_that_swallowed_an_interrupt_is_not_thrown_at_by_the_next() -> None:
    """A later plain request only joins the cause."""
    log, gate = list[str](), new_gate()

    @fb.effect
    async def body() -> None:
        try:
            await Effect.never()
        except asyncio.CancelledError:
            log.append("swallowed")
        await gate
        log.append("went on")

    fiber = fb.run_fork(body())
    fiber.interrupt_unsafe(by=7)
    fiber.interrupt_unsafe(by=8)
    gate.set_result(1)
    exit = await fiber.exit()

    assert log == ["swallowed", "went on"]
    assert interruptors(exit) == [7, 8]


@pytest.mark.spec("PD2")
async def test_an_interrupt_with_again_is_thrown_once_more() -> None:
    """For a body that swallowed the first."""
    log = list[str]()

    @fb.effect
    async def body() -> None:
        try:
            await Effect.never()
        except asyncio.CancelledError:
            log.append("swallowed")
        try:
            await Effect.never()
        finally:
            log.append("finally")

    fiber = fb.run_fork(body())
    fiber.interrupt_unsafe(by=7)
    fiber.interrupt_unsafe(by=8, again=True)

    assert log == ["swallowed", "finally"]
    assert interruptors(fiber.poll()) == [7, 8]


@pytest.mark.spec("PD2")
async def test_the_effect_interrupt_with_again_waits_for_the_end() -> None:
    """The same through fiber.interrupt()."""

    @fb.effect
    async def body() -> None:
        try:
            await Effect.never()
        except asyncio.CancelledError:
            pass
        await Effect.never()

    fiber = fb.run_fork(body())
    fiber.interrupt_unsafe(by=7)
    still_there = fiber.poll()
    await fiber.interrupt(by=8, again=True)

    assert still_there is None
    assert interruptors(fiber.poll()) == [7, 8]


@pytest.mark.spec("PD2", "IN5")
async def test_a_body_that_swallows_an_interrupt_and_returns_ends_interrupted() -> None:
    """The value is dropped."""

    @fb.effect
    async def body() -> int:
        try:
            await endless()
        except asyncio.CancelledError:
            pass
        return 5

    fiber = fb.run_fork(body())
    fiber.interrupt_unsafe(by=7)

    assert interrupted(by=7) == fiber.poll()


@pytest.mark.spec("PD2")
async def test_a_declared_error_after_a_swallowed_interrupt_stands_before_it() -> None:
    """[Fail(e), I]."""
    boom = Boom()

    @fb.effect(raises=Boom)
    async def body() -> None:
        try:
            await Effect.never()
        except asyncio.CancelledError:
            raise boom from None

    fiber = fb.run_fork(body())
    fiber.interrupt_unsafe(by=7)

    assert failed(Fail(boom), Interrupt(by=7, reason=None)) == fiber.poll()


@pytest.mark.spec("PD2", "AT19")
async def test_a_defect_in_a_finally_stands_before_the_interrupt() -> None:
    """[Die(e), I]: an error raised while unwinding loses neither."""
    boom = Boom()

    @fb.effect
    async def body() -> None:
        try:
            await Effect.never()
        finally:
            raise boom

    fiber = fb.run_fork(body())
    fiber.interrupt_unsafe(by=7)

    assert failed(Die(boom), Interrupt(by=7, reason=None)) == fiber.poll()


@pytest.mark.spec("PD2", "WI5")
async def test_an_interrupt_of_a_body_skips_the_failure_handlers_around_it() -> None:
    """catch_cause outside a body that is unwound is not asked."""
    log = list[str]()

    @fb.effect
    async def body() -> None:
        try:
            await Effect.never()
        finally:
            await asyncio.sleep(0)
            log.append("finally")

    fiber = fb.run_fork(body().catch_cause(lambda _: note(log, "handler")))
    fiber.interrupt_unsafe(by=7)
    exit = await fiber.exit()

    assert log == ["finally"]
    assert interrupted(by=7) == exit


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
