"""Probes PD11: the two faces of a fiber, and what masks mean for asyncio."""

from __future__ import annotations

import asyncio
from typing import Any, Never

import pytest
from returns.result import Success

import fibers as fb
from fibers import Die, Effect, Fail, Interrupt
from tests.probes.kit_f import (
    Boom,
    cause_of,
    endless,
    expire,
    failed,
    inner_task,
    interrupted,
    interruptors,
    is_face_of,
    new_gate,
    note,
    parked,
    running_fiber,
    turns,
    wait_for,
)

# ---- PD11: the fiber, seen from outside


@pytest.mark.spec("PD11")
async def test_cancelling_a_fiber_is_an_interrupt_without_interruptor() -> None:
    """by=None, as for a signal."""
    fiber = fb.run_fork(endless())

    accepted = fiber.cancel()
    exit = await fiber.exit()

    assert accepted is True
    assert interruptors(exit) == [None]


@pytest.mark.spec("PD11")
async def test_cancelling_a_finished_fiber_is_refused() -> None:
    """As asyncio's: False."""
    fiber = fb.run_fork(Effect.succeed(1))

    assert fiber.cancel() is False
    assert fiber.poll() == Success(1)


@pytest.mark.spec("PD11")
async def test_cancelling_a_fiber_obeys_its_mask() -> None:
    """It lands at the end of the masked part."""
    log, gate = list[str](), new_gate()
    masked = wait_for(gate).flat_map(lambda _: note(log, "masked done")).uninterruptible()
    fiber = fb.run_fork(masked)

    fiber.cancel()
    await turns()
    pending = fiber.poll()
    gate.set_result(1)
    exit = await fiber.exit()

    assert pending is None
    assert log == ["masked done"]
    assert interruptors(exit) == [None]


@pytest.mark.spec("PD11")
async def test_cancelling_a_fiber_runs_nothing_on_the_callers_stack() -> None:
    """The request goes through the queue."""
    log = list[str]()

    @fb.effect
    async def body() -> None:
        try:
            await endless()
        finally:
            log.append("finally")

    fiber = fb.run_fork(body())
    fiber.cancel()
    log.append("cancel returned")
    await fiber.exit()

    assert log == ["cancel returned", "finally"]


@pytest.mark.spec("PD11")
async def test_interrupting_unsafely_does_run_on_the_callers_stack() -> None:
    """The difference to cancel()."""
    log = list[str]()
    fiber = fb.run_fork(parked(log, "interrupted"))

    fiber.interrupt_unsafe()
    log.append("interrupt_unsafe returned")

    assert log == ["interrupted", "interrupt_unsafe returned"]


@pytest.mark.spec("PD11")
async def test_a_suspended_fiber_is_among_all_tasks() -> None:
    """Until it has ended."""
    gate = new_gate()
    fiber = fb.run_fork(wait_for(gate))

    during = set[object](asyncio.all_tasks())
    gate.set_result(1)
    await fiber
    afterwards = set[object](asyncio.all_tasks())

    assert fiber in during
    assert fiber not in afterwards


@pytest.mark.spec("PD11")
async def test_a_fiber_can_be_awaited_in_a_plain_coroutine() -> None:
    """It gives its value."""
    gate = new_gate()
    fiber = fb.run_fork(wait_for(gate))
    gate.set_result(5)

    assert await fiber == 5


@pytest.mark.spec("PD11")
async def test_gather_takes_fibers() -> None:
    """Together with coroutines and futures."""
    gate = new_gate()

    async def work() -> int:
        return 3

    fibers = [fb.run_fork(wait_for(gate)), fb.run_fork(Effect.succeed(2))]
    gathered = asyncio.gather(*fibers, work())
    gate.set_result(1)

    assert await gathered == [1, 2, 3]


@pytest.mark.spec("PD11")
async def test_gather_raises_the_error_of_a_fiber() -> None:
    """The very object."""
    gate, boom = new_gate(), Boom()
    fiber = fb.run_fork(wait_for(gate).flat_map(lambda _: Effect.fail(boom)))
    gathered = asyncio.gather(fiber, return_exceptions=True)
    gate.set_result(1)

    (result,) = await gathered
    assert result is boom


@pytest.mark.spec("PD11")
async def test_cancelling_a_gather_interrupts_its_fibers() -> None:
    """And the gather ends cancelled."""
    fibers = [fb.run_fork(endless()), fb.run_fork(endless())]
    gathered = asyncio.gather(*fibers)
    gathered.cancel()

    with pytest.raises(asyncio.CancelledError):
        await gathered

    assert [interruptors(fiber.poll()) for fiber in fibers] == [[None], [None]]


@pytest.mark.spec("PD11")
async def test_wait_takes_fibers() -> None:
    """Its sets hold the fibers themselves."""
    gate = new_gate()
    slow, fast = fb.run_fork(endless()), fb.run_fork(wait_for(gate))
    gate.set_result(1)

    # typeshed wants Future or Task here; that a Fiber will do is the point of the test.
    wait: Any = asyncio.wait
    done, pending = await wait([slow, fast], return_when=asyncio.FIRST_COMPLETED)
    await slow.interrupt()

    assert (done, pending) == ({fast}, {slow})


@pytest.mark.spec("PD11")
async def test_wait_for_takes_a_fiber_in_time() -> None:
    """It gives the value."""
    gate = new_gate()
    fiber = fb.run_fork(wait_for(gate))
    asyncio.get_running_loop().call_soon(gate.set_result, 5)

    assert await asyncio.wait_for(fiber, timeout=60) == 5


@pytest.mark.spec("PD11")
async def test_wait_for_interrupts_a_fiber_that_is_late() -> None:
    """It waits for the fiber's end and raises TimeoutError."""
    log = list[str]()
    fiber = fb.run_fork(parked(log, "interrupted"))

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(fiber, timeout=0)

    assert log == ["interrupted"]
    assert interruptors(fiber.poll()) == [None]


@pytest.mark.spec("PD11")
async def test_done_and_result_are_asyncios() -> None:
    """A result is there once the fiber is done."""
    gate = new_gate()
    fiber = fb.run_fork(wait_for(gate))
    before = fiber.done()
    with pytest.raises(asyncio.InvalidStateError):
        fiber.result()
    gate.set_result(5)
    await fiber

    assert (before, fiber.done(), fiber.result(), fiber.exception()) == (False, True, 5, None)


@pytest.mark.spec("PD11")
async def test_exception_gives_the_error_of_a_failed_fiber() -> None:
    """And result() raises it."""
    boom = Boom()
    fiber = fb.run_fork(Effect.fail(boom))

    with pytest.raises(Boom) as caught:
        fiber.result()

    assert fiber.exception() is boom
    assert caught.value is boom


@pytest.mark.spec("PD11")
async def test_the_result_of_an_interrupted_fiber_raises_cancelled_error() -> None:
    """As a cancelled task's does."""
    fiber = fb.run_fork(endless())
    fiber.interrupt_unsafe(by=7)

    with pytest.raises(asyncio.CancelledError):
        fiber.result()


@pytest.mark.spec("PD11")
async def test_a_done_callback_is_called_with_the_fiber() -> None:
    """Through the loop, as asyncio's."""
    seen, gate = list[object](), new_gate()
    fiber = fb.run_fork(wait_for(gate))
    fiber.add_done_callback(seen.append)
    gate.set_result(1)
    await fiber
    await turns()

    assert seen == [fiber]


# ---- PD11: the inner task, seen from inside


@pytest.mark.spec("PD11")
async def test_the_current_task_equals_the_fiber() -> None:
    """By == and by hash."""

    @fb.effect
    async def body() -> bool:
        return is_face_of(inner_task(), running_fiber())

    assert await fb.run_fork(body())


@pytest.mark.spec("PD11")
async def test_the_current_task_equals_the_fiber_under_every_mask() -> None:
    """A mask boundary, combinator or region, may have an inner task of its own."""

    @fb.effect
    async def masked() -> bool:
        return is_face_of(inner_task(), running_fiber())

    @fb.effect
    async def body() -> list[bool]:
        with fb.uninterruptible() as restore:
            region = is_face_of(inner_task(), running_fiber())
            with restore():
                hole = is_face_of(inner_task(), running_fiber())
        behind = is_face_of(inner_task(), running_fiber())
        return [region, hole, behind, await masked().uninterruptible()]

    assert await fb.run_fork(body()) == [True, True, True, True]


@pytest.mark.spec("PD11")
async def test_cancelling_the_inner_task_raises_exactly_cancelled_error_with_its_message() -> None:
    """asyncio's own protocol: message kept, no mark of an interrupt."""
    seen = list[object]()

    @fb.effect
    async def body() -> None:
        inner_task().cancel("enough")
        try:
            await endless()
        except asyncio.CancelledError as exc:
            seen.extend([type(exc), exc.args, fb.interrupt_of(exc)])
            inner_task().uncancel()

    await body()

    assert seen == [asyncio.CancelledError, ("enough",), None]


@pytest.mark.spec("PD11")
async def test_cancelling_the_inner_task_counts_in_cancelling() -> None:
    """And uncancel() gives it back."""
    seen = list[int]()

    @fb.effect
    async def body() -> None:
        task = inner_task()
        seen.append(task.cancelling())
        task.cancel()
        seen.append(task.cancelling())
        try:
            await endless()
        except asyncio.CancelledError:
            seen.append(task.uncancel())

    exit = await body().exit()

    assert seen == [0, 1, 0]
    assert exit == Success(None)


@pytest.mark.spec("PD11")
async def test_cancelling_the_inner_task_skips_the_handlers_of_effects() -> None:
    """Neither catch_cause nor exit between the wait and the body sees it."""
    log = list[str]()

    @fb.effect
    async def body() -> None:
        waiting = endless().catch_cause(lambda _: note(log, "catch_cause"))
        inner_task().cancel()
        try:
            await waiting.exit()
        except asyncio.CancelledError:
            log.append("body")
            inner_task().uncancel()

    await body()

    assert log == ["body"]


@pytest.mark.spec("PD11")
async def test_cancelling_the_inner_task_reaches_the_innermost_body_first() -> None:
    """As an await inside an await."""
    log, tasks = list[str](), list[asyncio.Task[Any]]()

    @fb.effect
    async def inner() -> None:
        try:
            await endless()
        except asyncio.CancelledError:
            log.append("inner")
            raise

    @fb.effect
    async def outer() -> None:
        tasks.append(inner_task())
        try:
            await inner()
        except asyncio.CancelledError:
            log.append("outer")
            raise

    fiber = fb.run_fork(outer())
    tasks[0].cancel()
    await fiber.exit()

    assert log == ["inner", "outer"]


@pytest.mark.spec("PD11")
async def test_cancelling_the_inner_task_runs_nothing_on_the_callers_stack() -> None:
    """It goes through the queue as well."""
    log, tasks = list[str](), list[asyncio.Task[Any]]()

    @fb.effect
    async def body() -> None:
        tasks.append(inner_task())
        try:
            await endless()
        finally:
            log.append("finally")

    fiber = fb.run_fork(body())
    tasks[0].cancel()
    log.append("cancel returned")
    await fiber.exit()

    assert log == ["cancel returned", "finally"]


@pytest.mark.spec("PD11", "PI1")
async def test_a_fiber_whose_inner_task_is_cancelled_waits_for_nothing_any_more() -> None:
    """As after an interrupt: what it waited for knows nothing of it."""
    deferred = fb.Deferred[int, Never]()
    tasks = list[asyncio.Task[Any]]()

    @fb.effect
    async def body() -> str:
        tasks.append(inner_task())
        try:
            await deferred
        except asyncio.CancelledError:
            return repr(deferred)
        return "not cancelled"

    fiber = fb.run_fork(body())
    waiting = repr(deferred)
    tasks[0].cancel()

    assert waiting == "<Deferred pending, 1 waiting>"
    assert await fiber == "<Deferred pending, 0 waiting>"


@pytest.mark.spec("PD11")
async def test_a_cancel_that_leaves_the_body_is_an_interrupt() -> None:
    """The request was not given back: Interrupt(by=None, reason="task.cancel")."""

    @fb.effect
    async def body() -> None:
        inner_task().cancel()
        await endless()

    fiber = fb.run_fork(body())
    await turns()

    assert interrupted(by=None, reason="task.cancel") == fiber.poll()


@pytest.mark.spec("PD11", "PD6")
async def test_a_cancel_that_was_given_back_leaves_the_body_as_a_defect() -> None:
    """After uncancel() nobody asks for the end any more."""

    @fb.effect
    async def body() -> None:
        inner_task().cancel()
        try:
            await endless()
        finally:
            inner_task().uncancel()

    exit = await body().exit()

    assert [type(defect) for defect in cause_of(exit).defects] == [asyncio.CancelledError]
    assert not cause_of(exit).has_interrupts


@pytest.mark.spec("PD11", "PD2", "PD6")
async def test_an_interrupt_does_not_stand_for_a_cancel_of_the_inner_task() -> None:
    """A CancelledError of somebody else's that leaves an interrupted body is still a defect."""
    other = asyncio.CancelledError("of something else")

    @fb.effect
    async def body() -> None:
        try:
            await endless()
        finally:
            raise other

    fiber = fb.run_fork(body())
    fiber.interrupt_unsafe(by=7)

    assert failed(Die(other), Interrupt(by=7, reason=None)) == fiber.poll()


# ---- PD11: a mask and what was opened above it


@pytest.mark.spec("PD11", "TR1")
async def test_a_timeout_around_a_masked_effect_fires_when_the_mask_is_left() -> None:
    """It expired long before."""
    log, limits, gate = list[str](), list[asyncio.Timeout](), new_gate()

    @fb.effect
    async def body() -> None:
        try:
            async with asyncio.timeout(None) as limit:
                limits.append(limit)
                await wait_for(gate).tap(lambda _: note(log, "masked done")).uninterruptible()
                log.append("behind")
        except TimeoutError:
            log.append("timeout")

    fiber = fb.run_fork(body())
    expire(limits[0])
    await turns()
    log.append("expired")
    gate.set_result(1)
    await fiber

    assert log == ["expired", "masked done", "timeout"]


@pytest.mark.spec("PD11", "TR1")
async def test_a_timeout_around_a_masked_coroutine_fires_when_the_mask_is_left() -> None:
    """The masked effect is a body that waits on a plain future."""
    log, limits, gate = list[str](), list[asyncio.Timeout](), new_gate()

    @fb.effect
    async def masked() -> None:
        await gate
        log.append("masked done")

    @fb.effect
    async def body() -> None:
        try:
            async with asyncio.timeout(None) as limit:
                limits.append(limit)
                await masked().uninterruptible()
                log.append("behind")
        except TimeoutError:
            log.append("timeout")

    fiber = fb.run_fork(body())
    expire(limits[0])
    await turns()
    log.append("expired")
    gate.set_result(1)
    await fiber

    assert log == ["expired", "masked done", "timeout"]


@pytest.mark.spec("PD11")
async def test_a_timeout_under_one_mask_and_around_another_fires_when_the_inner_is_left() -> None:
    """The body was masked already: the timeout stands between the two masks."""
    log, limits, gate = list[str](), list[asyncio.Timeout](), new_gate()

    @fb.effect
    async def masked() -> None:
        await gate
        log.append("masked done")

    @fb.effect
    async def body() -> None:
        try:
            async with asyncio.timeout(None) as limit:
                limits.append(limit)
                await masked().uninterruptible()
                log.append("behind")
        except TimeoutError:
            log.append("timeout")

    fiber = fb.run_fork(body().uninterruptible())
    expire(limits[0])
    await turns()
    log.append("expired")
    gate.set_result(1)
    await fiber

    assert log == ["expired", "masked done", "timeout"]


@pytest.mark.spec("PD11")
async def test_a_timeout_opened_under_the_mask_works_in_it() -> None:
    """A mask keeps interrupts away, not the body's own timeouts."""
    limits, gate = list[asyncio.Timeout](), new_gate()

    @fb.effect
    async def body() -> str:
        try:
            async with asyncio.timeout(None) as limit:
                limits.append(limit)
                await gate
        except TimeoutError:
            return "timeout"
        return "in time"

    fiber = fb.run_fork(body().uninterruptible())
    expire(limits[0])

    assert await fiber == "timeout"


@pytest.mark.spec("PD11")
async def test_a_timeout_works_in_a_finalizer() -> None:
    """Finalizers are masked; what they open works."""
    log, limits, gate = list[str](), list[asyncio.Timeout](), new_gate()

    @fb.effect
    async def finalizer() -> None:
        try:
            async with asyncio.timeout(None) as limit:
                limits.append(limit)
                await gate
        except TimeoutError:
            log.append("timeout")

    fiber = fb.run_fork(endless().on_interrupt(lambda _: finalizer()))
    fiber.interrupt_unsafe(by=7)
    expire(limits[0])
    exit = await fiber.exit()

    assert log == ["timeout"]
    assert interrupted(by=7) == exit


@pytest.mark.spec("PD11")
async def test_a_timeout_works_in_the_finally_of_an_interrupted_body() -> None:
    """The interrupt that unwinds the body is not mistaken for the timeout's."""
    log, limits, gate = list[str](), list[asyncio.Timeout](), new_gate()

    @fb.effect
    async def body() -> None:
        try:
            await endless()
        finally:
            try:
                async with asyncio.timeout(None) as limit:
                    limits.append(limit)
                    await gate
            except TimeoutError:
                log.append("timeout")

    fiber = fb.run_fork(body())
    fiber.interrupt_unsafe(by=7)
    expire(limits[0])
    exit = await fiber.exit()

    assert log == ["timeout"]
    assert interrupted(by=7) == exit


@pytest.mark.spec("PD11")
async def test_a_task_group_under_the_mask_aborts_its_parent() -> None:
    """A child that fails cancels the masked body's wait, as in a task."""
    gate, boom = new_gate(), Boom()

    async def fail() -> None:
        raise boom

    @fb.effect
    async def body() -> tuple[object, ...]:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(fail())
                await gate
        except BaseExceptionGroup as errors:
            return errors.exceptions
        return ()

    fiber = fb.run_fork(body().uninterruptible())

    assert await fiber == (boom,)


@pytest.mark.spec("PD11")
async def test_a_timeout_around_a_region_fires_when_the_region_is_left() -> None:
    """At the first suspension behind it."""
    log, limits, gate = list[str](), list[asyncio.Timeout](), new_gate()

    @fb.effect
    async def body() -> None:
        try:
            async with asyncio.timeout(None) as limit:
                limits.append(limit)
                with fb.uninterruptible():
                    await gate
                    log.append("region done")
                await endless()
        except TimeoutError:
            log.append("timeout")

    fiber = fb.run_fork(body())
    expire(limits[0])
    await turns()
    log.append("expired")
    gate.set_result(1)
    await fiber

    assert log == ["expired", "region done", "timeout"]


@pytest.mark.spec("PD11")
async def test_a_timeout_inside_a_region_fires_at_once() -> None:
    """It was opened under the mask."""
    log, limits, gate = list[str](), list[asyncio.Timeout](), new_gate()

    @fb.effect
    async def body() -> None:
        with fb.uninterruptible():
            try:
                async with asyncio.timeout(None) as limit:
                    limits.append(limit)
                    await gate
            except TimeoutError:
                log.append("timeout")
            await Effect.yield_now()
            log.append("region done")

    fiber = fb.run_fork(body())
    expire(limits[0])
    await fiber

    assert log == ["timeout", "region done"]


@pytest.mark.spec("PD11", "AT22")
async def test_an_interrupt_and_an_expired_timeout_both_wait_for_the_region() -> None:
    """The exit is the interrupt: it is no TimeoutError."""
    limits, gate = list[asyncio.Timeout](), new_gate()

    @fb.effect(raises=TimeoutError)
    async def body() -> None:
        async with asyncio.timeout(None) as limit:
            limits.append(limit)
            with fb.uninterruptible():
                await gate
            await endless()

    fiber = fb.run_fork(body())
    fiber.interrupt_unsafe(by=7)
    expire(limits[0])
    await turns()
    gate.set_result(1)
    exit = await fiber.exit()

    assert not cause_of(exit).has_fails
    assert Interrupt(by=7, reason=None) in cause_of(exit).reasons


@pytest.mark.spec("PD11", "PD4")
async def test_a_timeout_error_of_an_asyncio_timeout_is_a_fail_where_it_is_declared() -> None:
    """It is an error like any other once asyncio has made it."""
    limits, gate = list[asyncio.Timeout](), new_gate()

    @fb.effect(raises=TimeoutError)
    async def body() -> None:
        async with asyncio.timeout(None) as limit:
            limits.append(limit)
            await gate

    fiber = fb.run_fork(body())
    expire(limits[0])
    exit = await fiber.exit()

    assert [type(reason) for reason in cause_of(exit).reasons] == [Fail]
    assert [type(error) for error in cause_of(exit).failures] == [TimeoutError]


# ---- PD11: the end of the loop


@pytest.mark.spec("PD11")
def test_asyncio_run_does_not_return_while_a_fiber_stays_masked() -> None:
    """Its final cancel is an interrupt request, and waits for the mask."""
    log = list[str]()

    @fb.effect
    async def slow() -> None:
        for _ in range(10):
            await Effect.yield_now()
        log.append("masked done")

    async def main() -> None:
        fb.run_fork(slow().uninterruptible())
        log.append("main returned")

    asyncio.run(main())

    assert log == ["main returned", "masked done"]


@pytest.mark.spec("PD11")
def test_asyncio_run_interrupts_and_finalizes_what_is_left() -> None:
    """Its final cancel reaches fibers as it reaches tasks."""
    log = list[str]()

    @fb.effect
    async def body() -> None:
        try:
            await endless()
        finally:
            await asyncio.sleep(0)
            log.append("finally")

    async def main() -> None:
        fb.run_fork(body())

    asyncio.run(main())

    assert log == ["finally"]
