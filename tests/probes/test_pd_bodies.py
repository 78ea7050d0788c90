"""Probes PD1, PD2: a body is an ordinary coroutine, and what is thrown into it."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

import fibers as fb
from fibers import Die, Effect, Fail, Interrupt
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
