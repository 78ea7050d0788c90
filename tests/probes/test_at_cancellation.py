"""Probes AT1-AT5, AT13, AT22: cancels and interrupts that asyncio's own helpers would lose."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest
from returns.result import Success

import fibers as fb
from fibers import Effect, Interrupt
from tests.loops import every_loop
from tests.probes.kit_f import (
    Boom,
    cause_of,
    endless,
    expire,
    inner_task,
    interrupted,
    interruptors,
    new_gate,
    turns,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

pytestmark = pytest.mark.lifecycle


async def waiting_for(gate: asyncio.Future[int]) -> int:
    """A task that gives what the gate is opened with."""
    return await gate


async def failing_at(gate: asyncio.Future[int], error: Exception) -> None:
    """A task that fails when the gate opens."""
    await gate
    raise error


# ---- AT1: wait_for


WAITED: dict[str, Callable[[asyncio.Future[int]], Awaitable[int]]] = {
    "a future": lambda gate: gate,
    "a coroutine": waiting_for,
    "an effect": lambda gate: fb.run_fork(Effect.promise(lambda: gate)),
}


@pytest.mark.spec("AT1")
@pytest.mark.parametrize("ask", ["interrupt_unsafe", "cancel"])
@pytest.mark.parametrize("waited", WAITED)
@every_loop
async def test_a_fiber_interrupted_in_wait_for_ends_interrupted(waited: str, ask: str) -> None:
    """The ordinary case: what is waited for has not ended."""
    gate, log = new_gate(), list[str]()

    async def body() -> int:
        value = await asyncio.wait_for(WAITED[waited](gate), 60)
        log.append("went on")
        return value

    fiber = fb.run_fork(Effect.promise(body))
    await turns()
    getattr(fiber, ask)()
    exit = await fiber.exit()

    assert exit == interrupted(None)
    assert log == []


@pytest.mark.spec("AT1")
@pytest.mark.parametrize(
    ("ask", "value_first"),
    [("interrupt_unsafe", True), ("interrupt_unsafe", False), ("cancel", False)],
)
@pytest.mark.parametrize("waited", WAITED)
@every_loop
async def test_a_value_of_wait_for_in_the_tick_of_the_interrupt_does_not_hide_it(
    waited: str, ask: str, value_first: bool
) -> None:
    """Whichever comes first, and whatever wait_for makes of it: the exit is I. (cancel() goes
    through the queue: behind the value it comes too late.)
    """
    gate = new_gate()

    async def body() -> int:
        return await asyncio.wait_for(WAITED[waited](gate), 60)

    fiber = fb.run_fork(Effect.promise(body))
    await turns()
    if value_first:
        gate.set_result(1)
    getattr(fiber, ask)()
    if not value_first and not gate.done():
        gate.set_result(1)
    exit = await fiber.exit()

    assert exit == interrupted(None)


@pytest.mark.spec("AT1", "PD2")
@every_loop
async def test_a_body_that_got_its_value_from_wait_for_is_interrupted_by_the_next_await() -> None:
    """What wait_for returned stays with the body; what it awaits next is not waited for."""
    gate, log = new_gate(), list[str]()

    async def body() -> None:
        try:
            log.append(f"got {await asyncio.wait_for(waiting_for(gate), 60)}")
        finally:
            log.append("left")

    fiber = fb.run_fork(Effect.promise(body).flat_map(lambda _: endless()))
    await turns()
    gate.set_result(1)
    await turns(1)  # the task has ended; wait_for has not heard of it yet
    fiber.interrupt_unsafe()
    exit = await fiber.exit()

    assert exit == interrupted(None)
    assert log[-1] == "left"


@pytest.mark.spec("AT1")
@pytest.mark.parametrize("first", ["interrupt", "timer"])
@every_loop
async def test_an_interrupt_in_the_tick_in_which_wait_for_times_out_is_in_the_exit(
    first: str,
) -> None:
    """Beside the TimeoutError where that had been raised already."""
    loop = asyncio.get_running_loop()

    async def body() -> None:
        await asyncio.wait_for(loop.create_future(), 0.001)

    def ask() -> None:
        fiber.interrupt_unsafe(by=7)

    # Two timers that are both due when the loop looks at them: they run in the order of their time.
    if first == "interrupt":
        loop.call_later(0.0005, ask)
    fiber = fb.run_fork(Effect.promise(body))
    if first == "timer":
        loop.call_later(0.0015, ask)
    time.sleep(0.01)  # noqa: ASYNC251  # the loop must not run before both timers are due
    exit = await fiber.exit()

    assert Interrupt(by=7) in cause_of(exit).reasons


# ---- AT2: nested groups


@pytest.mark.spec("AT2")
@pytest.mark.parametrize("failures", [1, 2])
@pytest.mark.parametrize("waits", ["in the group", "at its end"])
@pytest.mark.parametrize("order", ["outer first", "inner first"])
@every_loop
async def test_an_inner_group_that_fails_does_not_lose_the_cancel_of_the_outer_group(
    order: str, waits: str, failures: int
) -> None:
    """Both fail in one tick and the body catches the inner failure: the outer group ends it."""
    outer_gate, inner_gate, log = new_gate(), new_gate(), list[str]()

    async def body() -> None:
        async with asyncio.TaskGroup() as outer:
            outer.create_task(failing_at(outer_gate, Boom("outer")))
            try:
                async with asyncio.TaskGroup() as inner:
                    for _ in range(failures):
                        inner.create_task(failing_at(inner_gate, Boom("inner")))
                    if waits == "in the group":
                        await asyncio.get_running_loop().create_future()
            except* Boom:
                log.append("inner failed")
            await asyncio.get_running_loop().create_future()
            log.append("went on")

    fiber = fb.run_fork(Effect.promise(body)).ignore_failure()
    await turns()
    gates = [outer_gate, inner_gate]
    for gate in gates if order == "outer first" else reversed(gates):
        gate.set_result(1)
    await turns()

    assert fiber.done()
    assert log == ["inner failed"]


@pytest.mark.spec("AT2", "PD2")
@pytest.mark.parametrize("ask", ["interrupt_unsafe", "cancel"])
@pytest.mark.parametrize("waits", ["in the group", "at its end"])
@every_loop
async def test_a_group_that_fails_while_it_is_interrupted_does_not_lose_the_interrupt(
    waits: str, ask: str
) -> None:
    """Its error replaces the CancelledError; when that is handled, the interrupt lands."""
    gate, log = new_gate(), list[str]()

    async def child() -> None:
        try:
            await gate
        finally:
            raise Boom

    async def body() -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(child())
                if waits == "in the group":
                    await asyncio.get_running_loop().create_future()
        except* Boom:
            log.append("group failed")
        await asyncio.get_running_loop().create_future()
        log.append("went on")

    fiber = fb.run_fork(Effect.promise(body))
    await turns()
    getattr(fiber, ask)()
    await turns()

    assert fiber.poll() == interrupted(None)
    assert log == ["group failed"]


@pytest.mark.spec("AT2", "PD2")
@every_loop
async def test_an_interrupt_that_a_group_dropped_does_not_cut_the_cleanup_behind_it() -> None:
    """It lands when neither a `finally` nor an `except` is under way any more."""
    gate, log = new_gate(), list[str]()

    async def child() -> None:
        try:
            await gate
        finally:
            raise Boom

    async def body() -> None:
        try:
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(child())
            finally:
                await turns(2)
                log.append("finally")
        except* Boom:
            await turns(2)
            log.append("except")
        await asyncio.sleep(0)
        log.append("went on")

    fiber = fb.run_fork(Effect.promise(body))
    await turns()
    fiber.interrupt_unsafe()
    await turns()

    assert fiber.poll() == interrupted(None)
    assert log == ["finally", "except"]


@pytest.mark.spec("AT2", "PD2")
@every_loop
async def test_a_group_opened_after_a_swallowed_interrupt_does_not_bring_it_back() -> None:
    """Who swallows an interrupt goes on in peace, also if a group of his fails later."""
    gate, log = new_gate(), list[str]()

    async def fails() -> None:
        raise Boom

    async def body() -> None:
        try:
            await gate
        except asyncio.CancelledError:
            log.append("swallowed")
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(fails())
        except* Boom:
            log.append("group failed")
        await turns(2)
        log.append("went on")

    fiber = fb.run_fork(Effect.promise(body))
    fiber.interrupt_unsafe()
    exit = await fiber.exit()

    assert exit == interrupted(None)
    assert log == ["swallowed", "group failed", "went on"]


@pytest.mark.spec("AT2", "PD2")
@every_loop
async def test_an_interrupt_that_a_group_dropped_lands_once() -> None:
    """Who swallows it then goes on in peace, whatever else is asked of him."""
    gate, log = new_gate(), list[str]()

    async def child() -> None:
        try:
            await gate
        finally:
            raise Boom

    async def body() -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(child())
        except* Boom:
            log.append("group failed")
        try:
            await turns(2)
        except asyncio.CancelledError:
            log.append("swallowed")
        inner_task().cancel()
        inner_task().uncancel()
        await turns(2)
        log.append("went on")

    fiber = fb.run_fork(Effect.promise(body))
    await turns()
    fiber.interrupt_unsafe()
    exit = await fiber.exit()

    assert exit == interrupted(None)
    assert log == ["group failed", "swallowed", "went on"]


async def fails_in_its_own_time(gate: asyncio.Future[int]) -> None:
    """A task of a group that doesn't mind its cancel."""
    try:
        await asyncio.get_running_loop().create_future()
    except asyncio.CancelledError:
        await gate
    raise Boom


@pytest.mark.spec("AT2", "PD11")
@every_loop
async def test_a_cancel_that_a_failing_group_dropped_lands_and_is_no_interrupt() -> None:
    """It was asked for by cancel(), which is what the fiber ends with."""
    gate, log, tasks = new_gate(), list[str](), list[asyncio.Task[Any]]()

    async def body() -> None:
        tasks.append(inner_task())
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(fails_in_its_own_time(gate))
                await asyncio.get_running_loop().create_future()
        except* Boom:
            log.append("group failed")
        await turns(2)
        log.append("went on")

    fiber = fb.run_fork(Effect.promise(body))
    await turns()
    tasks[0].cancel()
    await turns()
    gate.set_result(1)
    exit = await fiber.exit()

    assert exit == interrupted(None, "task.cancel")
    assert log == ["group failed"]


@pytest.mark.spec("AT2", "PD2", "PD11")
@every_loop
async def test_of_an_interrupt_and_a_cancel_that_a_group_dropped_each_lands_once() -> None:
    """The cancel at once, as in a plain task; the interrupt behind the cleanup."""
    gate, log, tasks = new_gate(), list[str](), list[asyncio.Task[Any]]()

    async def body() -> None:
        tasks.append(inner_task())
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(fails_in_its_own_time(gate))
        except* Boom:
            try:
                await turns(2)
            except asyncio.CancelledError:
                log.append("cancelled")
            await turns(2)
            log.append(f"cleaned, cancelling {tasks[0].cancelling()}")
        await turns(2)
        log.append("went on")

    fiber = fb.run_fork(Effect.promise(body))
    await turns()
    fiber.interrupt_unsafe(by=7)
    await turns()
    tasks[0].cancel()
    await turns()
    gate.set_result(1)
    exit = await fiber.exit()

    assert interruptors(exit) == [7]
    assert log == ["cancelled", "cleaned, cancelling 2"]


@pytest.mark.spec("AT2")
@every_loop
async def test_an_interrupt_ends_nested_groups_and_all_their_tasks() -> None:
    """From the inside out; the exit is one interrupt, no group."""
    log = list[str]()

    async def child(name: str) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            log.append(name)

    async def body() -> None:
        async with asyncio.TaskGroup() as outer:
            outer.create_task(child("outer"))
            async with asyncio.TaskGroup() as inner:
                inner.create_task(child("inner"))

    fiber = fb.run_fork(Effect.promise(body))
    await turns()
    await fiber.interrupt(by=3)

    assert fiber.poll() == interrupted(3)
    assert log == ["inner", "outer"]


# ---- AT3: uncancel


@pytest.mark.spec("AT3", "PD11")
@pytest.mark.parametrize("masked", [False, True])
@every_loop
async def test_a_cancel_given_back_before_it_landed_is_gone(masked: bool) -> None:
    """The next await is not cancelled, and nor is one behind a mask."""
    log = list[str]()

    async def body() -> None:
        task = inner_task()
        task.cancel()
        assert task.uncancel() == 0
        await turns(2)
        log.append("not cancelled")

    effect = Effect.promise(body)
    exit = await fb.run_fork(effect.uninterruptible() if masked else effect).exit()

    assert exit == Success(None)
    assert log == ["not cancelled"]


@pytest.mark.spec("AT3")
@every_loop
async def test_of_two_cancels_one_given_back_leaves_the_other() -> None:
    """cancelling() counts down, and the one that is left lands."""
    seen = list[int]()

    async def body() -> None:
        task = inner_task()
        task.cancel()
        task.cancel()
        seen.append(task.uncancel())
        await turns(1)

    exit = await fb.run_fork(Effect.promise(body)).exit()

    assert seen == [1]
    assert exit == interrupted(None, "task.cancel")


@pytest.mark.spec("AT3")
@pytest.mark.parametrize("busy", [True, False])
@every_loop
async def test_a_group_that_gave_its_cancel_back_leaves_the_body_usable(busy: bool) -> None:
    """A failing child cancels its parent, in the group or at its end (from where 3.11 and 3.12
    don't give it back); behind the group nothing is pending and nothing counts.
    """
    log = list[str]()

    async def fails() -> None:
        raise Boom

    async def body() -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(fails())
                if busy:
                    await turns(5)
        except* Boom:
            log.append("group failed")
        await turns(2)
        log.append(f"went on, cancelling {inner_task().cancelling()}")

    exit = await fb.run_fork(Effect.promise(body)).exit()

    assert exit == Success(None)
    assert log == ["group failed", "went on, cancelling 0"]


# ---- AT4: timeout(0)


@pytest.mark.spec("AT4")
@pytest.mark.parametrize("limit", [0, -1])
@every_loop
async def test_a_timeout_of_zero_does_not_eat_an_earlier_cancel(limit: float) -> None:
    """The cancel was asked for before the timeout: no TimeoutError, the fiber ends."""
    log = list[str]()

    async def body() -> None:
        inner_task().cancel()
        try:
            async with asyncio.timeout(limit):
                await turns(3)
        except TimeoutError:
            log.append("TimeoutError")
        await turns(1)
        log.append("went on")

    exit = await fb.run_fork(Effect.promise(body)).exit()

    assert exit == interrupted(None, "task.cancel")
    assert log == []


@pytest.mark.spec("AT4")
@pytest.mark.parametrize("limit", [0, -1])
@every_loop
async def test_a_timeout_of_zero_does_not_eat_an_interrupt_by_the_body_itself(limit: float) -> None:
    """The same where the earlier request is an interrupt."""
    log = list[str]()

    async def body() -> None:
        me = fb.current_fiber()
        assert me is not None
        me.interrupt_unsafe(by=7)
        try:
            async with asyncio.timeout(limit):
                await turns(3)
        except TimeoutError:
            log.append("TimeoutError")
        await turns(1)
        log.append("went on")

    exit = await fb.run_fork(Effect.promise(body)).exit()

    assert interruptors(exit)[0] == 7
    assert log == []


@pytest.mark.spec("AT4")
@every_loop
async def test_a_timeout_of_zero_alone_is_a_timeout_error() -> None:
    """It fires at the first await inside."""

    @fb.effect(raises=TimeoutError)
    async def body() -> None:
        async with asyncio.timeout(0):
            await turns(3)

    exit = await fb.run_fork(body()).exit()

    assert isinstance(cause_of(exit).squash(), TimeoutError)


# ---- AT5: timeouts in the cleanup


@pytest.mark.spec("AT5", "PD2")
@pytest.mark.parametrize("ask", ["interrupt_unsafe", "cancel", "inner cancel"])
@every_loop
async def test_a_timeout_in_the_handler_of_a_cancelled_error_is_a_timeout_error(ask: str) -> None:
    """cancelling() is not 0 there: the timeout counts from what it was at its entry."""
    log, tasks = list[str](), list[asyncio.Task[Any]]()

    async def body() -> None:
        tasks.append(inner_task())
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            log.append(f"cancelling {inner_task().cancelling()}")
            try:
                async with asyncio.timeout(0):
                    await asyncio.get_running_loop().create_future()
            except TimeoutError:
                log.append("TimeoutError")
            await turns(1)
            log.append("cleaned up")
            raise

    fiber = fb.run_fork(Effect.promise(body))
    tasks[0].cancel() if ask == "inner cancel" else getattr(fiber, ask)()
    exit = await fiber.exit()

    assert interruptors(exit) == [None]
    assert log == ["cancelling 1", "TimeoutError", "cleaned up"]


@pytest.mark.spec("AT5")
@every_loop
async def test_a_timeout_in_the_handler_that_does_not_expire_changes_nothing() -> None:
    """The interrupt goes on when the handler raises it again."""
    log = list[str]()

    async def body() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            async with asyncio.timeout(60):
                await turns(2)
            log.append("cleaned up")

    fiber = fb.run_fork(Effect.promise(body))
    await fiber.interrupt(by=3)

    assert fiber.poll() == interrupted(3)
    assert log == ["cleaned up"]


# ---- AT13: one end


@pytest.mark.spec("AT13")
@pytest.mark.parametrize("body", [True, False])
@pytest.mark.parametrize("ask", ["interrupt_unsafe", "cancel", "none"])
@pytest.mark.parametrize("value_first", [True, False])
@every_loop
async def test_completion_and_interrupt_in_one_tick_give_one_exit(
    ask: str, value_first: bool, body: bool
) -> None:
    """Observers, done callbacks, poll, join and result() all tell the same, once."""
    gate, told = new_gate(), list[fb.Exit[int, Any]]()

    async def waits() -> int:
        return await gate

    fiber = fb.run_fork(Effect.promise(waits if body else lambda: gate))
    fiber.add_observer(told.append)
    called = list[object]()
    fiber.add_done_callback(called.append)
    if value_first:
        gate.set_result(1)
    if ask != "none":
        getattr(fiber, ask)()
    if not gate.done():
        gate.set_result(1)
    exit = await fiber.exit()
    await turns()

    assert told == [exit]
    assert called == [fiber]
    assert fiber.poll() == exit
    assert fiber.cancelled() is (exit != Success(1))
    if ask == "none":
        assert exit == Success(1)
    if ask == "interrupt_unsafe":
        assert exit == interrupted(None)


@pytest.mark.spec("AT13")
@every_loop
async def test_an_interrupt_by_an_observer_of_the_end_comes_too_late() -> None:
    """The exit was decided before anybody heard of it."""
    gate = new_gate()
    fiber = fb.run_fork(Effect.promise(lambda: gate))
    fiber.add_observer(lambda _: fiber.interrupt_unsafe())
    gate.set_result(1)

    assert await fiber == 1
    assert fiber.poll() == Success(1)


# ---- AT22: interrupts, groups and timeouts


@pytest.mark.spec("AT22")
@pytest.mark.parametrize("ask", ["interrupt_unsafe", "cancel"])
@pytest.mark.parametrize("around", ["group", "timeout", "group in timeout", "timeout in group"])
@every_loop
async def test_an_interrupt_inside_groups_and_timeouts_is_the_exit(around: str, ask: str) -> None:
    """No TimeoutError, no exception group, and the group's task has ended."""
    log = list[str]()

    async def child() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            log.append("child ended")

    async def in_group() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(child())
            await asyncio.get_running_loop().create_future()

    async def body() -> None:
        if around == "group":
            await in_group()
        elif around == "timeout":
            async with asyncio.timeout(60):
                await child()
        elif around == "group in timeout":
            async with asyncio.timeout(60):
                await in_group()
        else:
            async with asyncio.TaskGroup() as group, asyncio.timeout(60):
                group.create_task(child())
                await asyncio.get_running_loop().create_future()

    fiber = fb.run_fork(Effect.promise(body))
    await turns()
    getattr(fiber, ask)()
    exit = await fiber.exit()

    assert exit == interrupted(None)
    assert log == ["child ended"]


@pytest.mark.spec("AT22")
@pytest.mark.parametrize("first", ["interrupt", "timeout"])
@every_loop
async def test_an_interrupt_and_a_timeout_around_a_group_in_one_tick_are_the_interrupt(
    first: str,
) -> None:
    """Both want the same body to end; the exit names the interrupt and no TimeoutError."""
    limits = list[asyncio.Timeout]()

    @fb.effect(raises=TimeoutError)
    async def body() -> None:
        async with asyncio.timeout(None) as limit, asyncio.TaskGroup() as group:
            limits.append(limit)
            group.create_task(asyncio.sleep(60))
            await asyncio.get_running_loop().create_future()

    fiber = fb.run_fork(body())
    await turns()
    loop = asyncio.get_running_loop()
    if first == "interrupt":
        loop.call_soon(lambda: fiber.interrupt_unsafe(by=7))
        expire(limits[0])
    else:
        expire(limits[0])
        loop.call_soon(lambda: fiber.interrupt_unsafe(by=7))
    exit = await fiber.exit()

    assert interruptors(exit) == [7]


@pytest.mark.spec("AT22")
@pytest.mark.parametrize("first", ["interrupt", "failure"])
@every_loop
async def test_an_interrupt_and_a_failing_child_in_one_tick_end_the_fiber(first: str) -> None:
    """The group's errors may be in the exit; the interrupt is."""
    gate = new_gate()

    async def body() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(failing_at(gate, Boom()))
            await asyncio.get_running_loop().create_future()

    fiber = fb.run_fork(Effect.promise(body))
    await turns()
    if first == "failure":
        gate.set_result(1)
        await turns(2)  # the child has failed; the parent is about to hear of it
    fiber.interrupt_unsafe(by=7)
    if not gate.done():
        gate.set_result(1)
    exit = await fiber.exit()

    assert Interrupt(by=7) in cause_of(exit).reasons


@pytest.mark.spec("AT1", "PD11")
async def test_a_fiber_waited_for_without_a_limit_ends_with_who_waits() -> None:
    """wait_for(fiber, None), on every Python: nobody's interrupt, and waited for."""
    log = list[str]()

    async def ends() -> None:
        await asyncio.sleep(0)
        log.append("finalized")

    waited = fb.run_fork(Effect.never().ensuring(Effect.promise(ends)))

    async def body() -> None:
        await asyncio.wait_for(waited, None)

    fiber = fb.run_fork(Effect.promise(body))
    await turns()
    fiber.interrupt_unsafe()
    await fiber.exit()

    assert fiber.poll() == interrupted(None)
    assert waited.poll() == interrupted(None)
    assert log == ["finalized"]
