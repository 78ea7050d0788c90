"""What an interrupt that is being carried out leaves behind, and a second one meets."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import weakref
from typing import TYPE_CHECKING, Any, Literal

import pytest

import fibers as fb
from fibers import Effect
from fibers.loop.states import NESTING_LIMIT_CALLS
from tests.probes.kit_f import (
    cause_of,
    collector_off,
    endless,
    inner_task,
    interrupted,
    interruptors,
    new_gate,
    running_fiber,
    turns,
)

if TYPE_CHECKING:
    from collections.abc import Generator

pytestmark = pytest.mark.lifecycle


async def test_a_cleanup_that_follows_a_yield_can_interrupt_its_own_fiber_again() -> None:
    """PD2: the fiber runs then, though it stands in the queue for its turn as well."""
    log: list[str] = []

    async def body() -> None:
        running_fiber().interrupt_unsafe(by=7)
        try:
            await asyncio.sleep(0)
        finally:
            running_fiber().interrupt_unsafe(by=8, again=True)
            log.append("running" if "running" in repr(running_fiber()) else "not running")
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                log.append("cut again")
            await asyncio.sleep(0)
            log.append("cleaned")

    exit = await fb.run_fork(Effect.promise(body)).exit()

    assert log == ["running", "cut again", "cleaned"]
    assert interruptors(exit) == [7, 8]


class Large:
    """What a body holds in a local."""


async def test_an_interrupted_fiber_keeps_nothing_of_its_body() -> None:
    """PD13: who keeps the fiber keeps its exit, not the frames that its interrupt went through."""
    gone: list[weakref.ref[Large]] = []

    async def body() -> None:
        large = Large()
        gone.append(weakref.ref(large))
        await Effect.never()

    with collector_off():
        fiber = fb.run_fork(Effect.promise(body))
        fiber.interrupt_unsafe(by=7)
        alive = gone[0]() is not None

    assert fiber.poll() == interrupted(by=7)
    assert not alive


class Boom(Exception):
    """An error that a body handles."""


async def handles_a_failure() -> None:
    with contextlib.suppress(Boom):
        await Effect.fail(Boom())


async def test_a_body_awaited_in_a_cleanup_does_not_bring_the_interrupt_up_again() -> None:
    """PD2: the record of what was thrown is the interrupted body's alone."""
    log: list[str] = []

    async def body() -> None:
        try:
            await Effect.never()
        finally:
            await Effect.promise(handles_a_failure)
            await asyncio.sleep(0)
            log.append("cleaned")

    fiber = fb.run_fork(Effect.promise(body))
    fiber.interrupt_unsafe(by=7)
    await fiber.exit()

    assert log == ["cleaned"]


async def test_a_body_that_handled_a_failure_before_does_not_swallow_its_interrupt() -> None:
    """PD2, IN5: it has a record already, which the interrupt goes into."""
    log: list[str] = []

    async def body() -> int:
        await handles_a_failure()
        try:
            await Effect.never()
        except asyncio.CancelledError:
            log.append("swallowed")
        return 5

    fiber = fb.run_fork(Effect.promise(body))
    fiber.interrupt_unsafe(by=7)

    assert log == ["swallowed"]
    assert fiber.poll() == interrupted(by=7)


async def test_an_interrupt_that_a_body_lets_pass_goes_past_recovery() -> None:
    """WI5: no handler outside the body runs."""
    log: list[str] = []

    async def body() -> None:
        await Effect.never()

    recovered = Effect.promise(body).exit().map(lambda _: log.append("recovered"))
    fiber = fb.run_fork(recovered)
    fiber.interrupt_unsafe(by=7)

    assert log == []
    assert fiber.poll() == interrupted(by=7)


async def test_a_cleanup_gets_its_value_where_what_was_awaited_had_to_end_first() -> None:
    """WI1, PD2: the interrupt has landed by then."""
    log: list[int] = []
    gate = new_gate()

    async def slow_to_end() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await asyncio.sleep(0)

    async def body() -> None:
        try:
            await asyncio.create_task(slow_to_end())
        finally:
            log.append(await gate)

    fiber = fb.run_fork(Effect.promise(body))
    await turns()
    fiber.interrupt_unsafe(by=7)
    await turns()
    gate.set_result(5)
    exit = await fiber.exit()

    assert log == [5]
    assert exit == interrupted(by=7)


async def test_a_cancel_and_an_interrupt_of_one_tick_are_thrown_once_into_an_old_record() -> None:
    """PD2, AT22: the same where the body has seen a failure before."""
    log: list[str] = []
    tasks: list[asyncio.Task[Any]] = []

    async def body() -> None:
        tasks.append(inner_task())
        await handles_a_failure()
        try:
            await Effect.never()
        finally:
            await asyncio.sleep(0)
            log.append("cleaned")

    fiber = fb.run_fork(Effect.promise(body))
    tasks[0].cancel()
    fiber.interrupt_unsafe(by=7)
    await fiber.exit()

    assert log == ["cleaned"]


@pytest.mark.parametrize("strategy", ["sequential", "parallel"])
async def test_a_close_does_not_cut_a_cleanup_that_has_begun(
    strategy: Literal["sequential", "parallel"],
) -> None:
    """PD2: a later request only joins the cause."""
    log: list[str] = []
    gate = new_gate()
    scope = fb.Scope(strategy)

    async def body() -> None:
        try:
            await Effect.never()
        finally:
            await gate
            log.append("cleaned")

    fiber = scope.fork(Effect.promise(body), start_immediately=True)
    fiber.interrupt_unsafe(by=7)
    closer = fb.run_fork(scope.close())
    gate.set_result(0)
    await closer.exit()

    assert log == ["cleaned"]
    assert interruptors(fiber.poll()) == [7, closer.id]


async def test_a_fiber_that_asked_itself_to_end_still_runs() -> None:
    """WI2: up to its next suspension, and it says so."""
    said: list[str] = []

    async def body() -> None:
        running_fiber().interrupt_unsafe(by=7)
        said.append(repr(running_fiber()))

    exit = await fb.run_fork(Effect.promise(body)).exit()

    assert "running" in said[0]
    assert exit == interrupted(by=7)


async def test_an_interrupt_from_the_fibers_own_context_lands_in_turn_however_deep() -> None:
    """PD10, PD16: also by the trampoline, a Context can't be entered twice."""
    target = fb.run_fork(endless())
    last = fb.run_fork(endless().ensuring(target.interrupt()))
    for _ in range(10):
        call = Effect.sync(last.interrupt_unsafe)
        last = fb.run_fork(endless().ensuring(call))

    target.get_context().run(last.interrupt_unsafe)
    at_once = target.poll()
    await turns()

    assert at_once is None
    assert target.done()


class Touchy:
    """A callback that can't be compared, as a future does that forgets one."""

    touchy = True

    def __eq__(self, other: object) -> bool:
        if self.touchy:
            raise RuntimeError("not comparable")
        return self is other

    __hash__ = object.__hash__

    def __call__(self, _: object) -> None:
        """Nothing to do."""


async def test_a_fiber_that_could_not_be_cut_loose_ends_by_the_next_interrupt() -> None:
    """WI1: it waits on, as if nobody had asked."""
    awaited: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    callback = Touchy()
    awaited.add_done_callback(callback)

    async def waiting() -> int:
        return await awaited

    fiber = fb.run_fork(Effect.promise(waiting))
    with pytest.raises(RuntimeError, match="not comparable"):
        fiber.interrupt_unsafe(by=7)
    alive = fiber.poll()
    callback.touchy = False
    fiber.interrupt_unsafe(by=8)

    assert alive is None
    assert interruptors(fiber.poll()) == [7, 8]


class Sealed(asyncio.Future[int]):
    """Done once it is cancelled, and tells nobody yet how."""

    sealed = True

    def cancel(self, msg: object = None) -> bool:
        if self.done():
            return False
        self.set_exception(Boom())
        return True

    def exception(self) -> BaseException | None:
        if self.sealed:
            raise RuntimeError("sealed")
        return super().exception()


async def test_a_fiber_whose_future_did_not_tell_how_it_ended_ends_by_the_next_interrupt() -> None:
    """WI1: it waits on until then, for the same future."""
    awaited = Sealed()

    async def waiting() -> int:
        return await awaited

    fiber = fb.run_fork(Effect.promise(waiting))
    with pytest.raises(RuntimeError, match="sealed"):
        fiber.interrupt_unsafe(by=7)
    alive = fiber.poll()
    awaited.sealed = False
    fiber.interrupt_unsafe(by=8)
    cause = cause_of(fiber.poll())

    assert alive is None
    assert [type(defect) for defect in cause.defects] == [Boom]
    assert cause.interruptors == {7, 8}


@pytest.mark.parametrize("waiters", [1, 3])
async def test_a_future_that_lets_nobody_go_wakes_nobody_who_has_left(waiters: int) -> None:
    """Who only waits for somebody's future leaves it in the next turn of the loop, with all others
    that left it meanwhile; what can't be taken off does nothing.
    """
    awaited: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    callback = Touchy()
    awaited.add_done_callback(callback)
    fibers = [fb.run_fork(Effect.promise(lambda: awaited)) for _ in range(waiters)]
    stays = fb.run_fork(Effect.promise(lambda: awaited))
    for fiber in fibers:
        fiber.interrupt_unsafe(by=7)
    await turns()
    awaited.set_result(1)
    callback.touchy = False
    await turns()

    assert [interruptors(fiber.poll()) for fiber in fibers] == [[7]] * waiters
    assert stays.result() == 1


class Meddling:
    """A callback whose comparison interrupts a fiber."""

    def __init__(self) -> None:
        self.fibers: list[fb.Fiber[Any, Any]] = []

    def __eq__(self, other: object) -> bool:
        while self.fibers:
            self.fibers.pop().interrupt_unsafe(by=8)
        return self is other

    __hash__ = object.__hash__

    def __call__(self, _: object) -> None:
        """Nothing to do."""


async def test_a_fiber_interrupted_while_it_is_cut_loose_unwinds_once() -> None:
    """WI1: the second request joins the cause."""
    log: list[str] = []
    awaited: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    callback = Meddling()
    awaited.add_done_callback(callback)

    async def waiting() -> None:
        try:
            await awaited
        finally:
            log.append("cleaned")

    fiber = fb.run_fork(Effect.promise(waiting))
    callback.fibers.append(fiber)
    fiber.interrupt_unsafe(by=7)

    assert log == ["cleaned"]
    assert interruptors(fiber.poll()) == [7, 8]


class Bare:
    """Yields a future again after it has awaited it: what asyncio refuses."""

    def __init__(self, future: asyncio.Future[int]) -> None:
        self._future = future

    def __await__(self) -> Generator[Any, None, None]:
        yield from self._future.__await__()
        yield self._future


async def test_a_future_that_is_yielded_and_not_awaited_is_refused() -> None:
    """PD11: as in a plain task, also where it was awaited before."""
    gate = new_gate()

    async def body() -> None:
        await Bare(gate)

    fiber = fb.run_fork(Effect.promise(body))
    gate.set_result(0)
    (defect,) = cause_of(await fiber.exit()).defects

    assert isinstance(defect, RuntimeError)


async def test_a_cancel_in_a_later_step_than_an_uncancel_is_a_new_request() -> None:
    """PD11, AT21: only in the same step is it the TaskGroup that takes back what it gave back."""
    log: list[str] = []
    gate = new_gate()

    async def body() -> None:
        try:
            await Effect.never()
        finally:
            task = inner_task()
            task.uncancel()
            await gate
            task.cancel()
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                log.append("cancelled")

    fiber = fb.run_fork(Effect.promise(body))
    fiber.interrupt_unsafe(by=7)
    gate.set_result(0)
    await fiber.exit()

    assert log == ["cancelled"]


async def test_a_request_in_the_cleanup_of_a_body_that_lets_the_first_pass_joins_the_cause() -> (
    None
):
    """PD2: also where the cleanup is one synchronous segment."""

    async def body() -> None:
        try:
            await Effect.never()
        finally:
            running_fiber().interrupt_unsafe(by=8)

    fiber = fb.run_fork(Effect.promise(body))
    fiber.interrupt_unsafe(by=7)

    assert interruptors(fiber.poll()) == [7, 8]


@pytest.mark.parametrize(("again", "cleaned"), [(False, ["cleaned"]), (True, [])])
async def test_only_an_urgent_request_cuts_what_an_awaited_task_cleans_up(
    again: bool, cleaned: list[str]
) -> None:
    """WI1, PD2: the task was cancelled by the first one, and ends in its own time."""
    log: list[str] = []
    gate = new_gate()

    async def slow_to_end() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await asyncio.wait([gate])
            log.append("cleaned")

    async def body() -> None:
        await asyncio.create_task(slow_to_end())

    fiber = fb.run_fork(Effect.promise(body))
    await turns()
    fiber.interrupt_unsafe(by=7)
    await turns()
    fiber.interrupt_unsafe(by=8, again=again)
    await turns()
    gate.set_result(0)
    exit = await fiber.exit()

    assert log == cleaned
    assert interruptors(exit) == [7, 8]


async def test_an_ended_fiber_keeps_nothing_of_its_context() -> None:
    """PD13: what it has set there may be large."""
    var: contextvars.ContextVar[Large] = contextvars.ContextVar("var")
    gone: list[weakref.ref[Large]] = []

    async def body() -> None:
        large = Large()
        gone.append(weakref.ref(large))
        var.set(large)

    with collector_off():
        fiber = fb.run_fork(Effect.promise(body))
        alive = gone[0]() is not None

    assert fiber.done()
    assert not alive


async def test_an_ended_fiber_does_not_keep_its_parent() -> None:
    """PD13: who keeps a child keeps the child alone."""
    children: list[fb.Fiber[Any, Any]] = []

    async def parent() -> None:
        children.append(await endless().fork_child(start_immediately=True))

    with collector_off():
        fiber = fb.run_fork(Effect.promise(parent))
        gone = weakref.ref(fiber)
        ended = fiber.done()
        del fiber
        alive = gone() is not None

    assert ended
    assert children[0].done()
    assert not alive


async def test_a_cancel_follows_its_fiber_from_an_effect_to_a_future() -> None:
    """PD11: it was asked for while an effect was waited for, and lands a turn later."""
    log: list[str] = []
    tasks: list[asyncio.Task[Any]] = []
    latch = fb.Latch()
    gate = new_gate()
    scope = fb.Scope()

    async def body() -> None:
        tasks.append(inner_task())
        await latch.await_()
        log.append("woken")
        try:
            await gate
        except asyncio.CancelledError:
            log.append("cancelled")

    fiber = fb.run_fork(Effect.promise(body))
    scope.fork(latch.open())
    tasks[0].cancel()
    await turns()
    landed = log.copy()
    gate.cancel()
    await fiber.exit()

    assert landed == ["woken", "cancelled"]


async def test_a_fiber_is_in_its_own_context_after_a_switch_however_deep() -> None:
    """PD10, PD16: also where it went on by the trampoline."""
    log: list[str] = []
    var: contextvars.ContextVar[str] = contextvars.ContextVar("var", default="of nobody")
    target = fb.run_fork(endless())
    token = var.set("its own")
    ended = target.interrupt().map(lambda _: log.append(var.get()))
    last = fb.run_fork(endless().ensuring(ended))
    var.reset(token)
    for _ in range(10):
        last = fb.run_fork(endless().ensuring(Effect.sync(last.interrupt_unsafe)))

    last.interrupt_unsafe()

    assert log == ["its own"]


async def test_a_cancelled_error_that_a_callback_raises_is_a_defect() -> None:
    """PD6: nobody asked this fiber to end."""

    def callback() -> None:
        raise asyncio.CancelledError

    exit = await fb.run_fork(Effect.sync(callback)).exit()

    assert [type(defect) for defect in cause_of(exit).defects] == [asyncio.CancelledError]


async def test_a_body_that_was_cut_waits_for_nothing_any_more() -> None:
    """PD11: anyio reads of the task what it waits for, and doesn't cancel it where that is done."""
    gate = new_gate()
    waited_for: list[Any] = []

    async def body() -> None:
        task: Any = inner_task()
        try:
            await gate
        finally:
            waited_for.append(task._fut_waiter)

    fiber = fb.run_fork(Effect.promise(body))
    fiber.interrupt_unsafe(by=7)

    assert waited_for == [None]


async def test_a_fiber_put_off_for_depth_is_ready_and_ends_by_the_next_interrupt() -> None:
    """PD16, WI1: it waits for nothing but its turn, and the second call has room of its own."""
    log: list[str] = []
    last = endless().ensuring(Effect.sync(lambda: log.append("finalizer")))
    fibers = [fb.run_fork(last)]
    for _ in range(2 * NESTING_LIMIT_CALLS):
        call = Effect.sync(fibers[-1].interrupt_unsafe)
        fibers.append(fb.run_fork(endless().ensuring(call)))

    fibers[-1].interrupt_unsafe()
    put_off = [fiber for fiber in fibers if not fiber.done()][-1]
    said = repr(put_off)
    put_off.interrupt_unsafe(by=8)
    at_once = put_off.done()
    await turns()

    assert "ready" in said
    assert at_once
    assert all(fiber.done() for fiber in fibers)
    assert log == ["finalizer"]


async def test_a_fiber_interrupted_in_its_turn_has_the_turns_of_its_cleanup() -> None:
    """PD16: of its places in the queue only the one that it was interrupted in is void."""
    log: list[str] = []
    latch = fb.Latch()

    async def body() -> None:
        try:
            await latch.await_()
        finally:
            await Effect.yield_now()
            log.append("cleaned")

    fiber = fb.run_fork(Effect.promise(body))
    fb.run_fork(latch.open())
    woken = repr(fiber)
    fiber.interrupt_unsafe(by=7)
    await turns()

    assert "ready" in woken
    assert log == ["cleaned"]
    assert fiber.poll() == interrupted(by=7)


class Stubborn(asyncio.Future[int]):
    """What can't be cancelled."""

    def cancel(self, msg: object = None) -> bool:
        """No."""
        return False


@pytest.mark.parametrize("runs_as", ["a fiber", "a task"])
async def test_a_cancel_that_what_is_awaited_refuses_lands_when_it_is_done(runs_as: str) -> None:
    """PD11: asked for before the await, as in a plain task."""
    log: list[str] = []
    awaited = Stubborn()

    async def body() -> None:
        inner_task().cancel()
        try:
            await awaited
            log.append("went on")
        except asyncio.CancelledError:
            log.append("cancelled")

    runs = fb.run_fork(Effect.promise(body)) if runs_as == "a fiber" else None
    task = None if runs is not None else asyncio.create_task(body())
    await turns()
    before = log.copy()
    awaited.set_result(1)
    await turns()

    assert (runs or task or awaited).done()
    assert (before, log) == ([], ["cancelled"])


class BareFiber:
    """Yields a fiber that nobody joins."""

    def __init__(self, fiber: fb.Fiber[Any, Any]) -> None:
        self._fiber = fiber

    def __await__(self) -> Generator[Any, None, None]:
        yield self._fiber


@pytest.mark.parametrize("runs_as", ["a fiber", "a task"])
async def test_a_fiber_that_is_yielded_and_not_awaited_is_refused(runs_as: str) -> None:
    """PD11: as a future is that was not awaited."""
    other = fb.run_fork(endless())

    async def body() -> None:
        await BareFiber(other)

    with pytest.raises(RuntimeError):
        await (body() if runs_as == "a task" else fb.run_fork(Effect.promise(body)))
