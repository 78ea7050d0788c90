"""What only one line of the run loop, a scope or a region sees to: found by mutation testing."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any, Literal, Never

import pytest

import fibers as fb
from fibers import Cause, Die, Effect, Fail
from tests.probes.kit_e import Boom, failed, interrupted, me, peek, say, show

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.lifecycle


async def turns(count: int = 10) -> None:
    """Give fibers and callbacks that many turns of the loop."""
    for _ in range(count):
        await asyncio.sleep(0)


async def exit_of(effect: Effect[Any, Any]) -> fb.Exit[Any, Any]:
    """The exit of an effect run in a fiber of its own."""
    return await fb.run_fork(effect).exit()


# ---- what a body lets pass


class Other(Exception):
    """An error that the bodies here don't declare."""


async def test_a_body_that_lets_two_defects_pass_keeps_both() -> None:
    """PD4: one exception is thrown in, the whole cause leaves."""
    first, second = ValueError("first"), ValueError("second")

    async def body() -> None:
        await Effect.fail_cause(Cause((Die(first), Die(second))))

    exit = await exit_of(Effect.promise(body))

    assert exit == failed(Die(first), Die(second))


async def test_a_body_that_lets_declared_errors_pass_keeps_all_of_them() -> None:
    """PD4: each is judged by what the body declares."""
    first, second = Boom("first"), Boom("second")

    @fb.effect(raises=Boom)
    async def body() -> None:
        await Effect.fail_cause(Cause((Fail(first), Fail(second))))

    assert await exit_of(body()) == failed(Fail(first), Fail(second))


async def test_an_undeclared_error_beside_a_declared_one_becomes_a_defect() -> None:
    """PD4: also where it is not the one that was thrown in."""
    declared, other, last = Boom("declared"), Other("other"), Boom("last")

    @fb.effect(raises=Boom)
    async def body() -> None:
        cause: Cause[Any] = Cause((Fail(declared), Fail(other), Fail(last)))
        await Effect.fail_cause(cause)

    assert await exit_of(body()) == failed(Fail(declared), Die(other), Fail(last))


async def test_a_defect_beside_an_error_that_passes_stays() -> None:
    """PD4: what comes after the one that was thrown in is not lost."""
    declared, defect = Boom("declared"), ValueError("defect")

    @fb.effect(raises=Boom)
    async def body() -> None:
        cause: Cause[Any] = Cause((Die(defect), Fail(declared), fb.Interrupt(999)))
        await Effect.fail_cause(cause)

    assert await exit_of(body()) == failed(Die(defect), Fail(declared), fb.Interrupt(999))


# ---- the task of outside comes back when a mask ends


async def test_the_task_of_outside_is_current_right_after_a_masked_body() -> None:
    """PD11: the very object, which asyncio.timeout and drivers keep, not only an equal one."""

    async def masked() -> asyncio.Task[Any] | None:
        return asyncio.current_task()

    async def body() -> list[bool]:
        outside = asyncio.current_task()
        inside = await Effect.promise(masked).uninterruptible()
        return [asyncio.current_task() is outside, inside is outside, inside == outside]

    assert await Effect.promise(body) == [True, False, True]


async def test_a_timeout_opened_after_a_masked_body_does_not_reach_into_the_next() -> None:
    """PD11: what is opened between two masks holds the task of outside again."""
    log: list[str] = []

    async def masked() -> None:
        await asyncio.sleep(0.01)
        log.append("masked part done")

    async def body() -> None:
        await Effect.promise(masked).uninterruptible()
        await asyncio.sleep(0)
        try:
            async with asyncio.timeout(0):
                await Effect.promise(masked).uninterruptible()
        except TimeoutError:
            log.append("timed out")

    await Effect.promise(body)

    assert log == ["masked part done", "masked part done", "timed out"]


async def test_a_timeout_in_a_region_does_not_reach_into_a_mask_under_it() -> None:
    """PD11: the task of a region is that of its own depth, and of no deeper one."""
    log: list[str] = []

    async def masked() -> None:
        await asyncio.sleep(0.01)
        log.append("masked part done")

    async def body() -> None:
        with fb.uninterruptible():
            try:
                async with asyncio.timeout(0):
                    await Effect.promise(masked).uninterruptible()
            except TimeoutError:
                log.append("timed out")

    await Effect.promise(body)

    assert log == ["masked part done", "timed out"]


async def test_who_keeps_the_task_of_a_masked_body_does_not_keep_the_fiber() -> None:
    """PD13: the mask has ended, the fiber too; a kept task holds nothing of it."""
    kept: list[Any] = []

    async def masked() -> None:
        kept.append(asyncio.current_task())

    async def body() -> weakref.ref[Any]:
        await Effect.promise(masked).uninterruptible()
        return weakref.ref(me())

    fiber = await fb.run_fork(Effect.promise(body)).exit()
    gone: weakref.ref[Any] = fiber.unwrap()
    await turns()
    gc.collect()

    assert gone() is None
    assert kept[0].done()


# ---- cancel() of the inner task


async def nothing() -> None:
    """A body that is done at once."""


async def cancelled_while_it_waits(
    wait: Callable[[], Any], ask: Callable[[asyncio.Task[Any]], Any] | None = None
) -> list[str]:
    """Ask a fiber's inner task to cancel, from inside or outside; what its body sees."""
    log: list[str] = []
    found: list[asyncio.Task[Any]] = []

    async def body() -> None:
        task = asyncio.current_task()
        assert task is not None
        found.append(task)
        if ask is None:
            task.cancel("enough")
        try:
            log.append(f"got {await wait()}")
            await Effect.promise(nothing).uninterruptible()
            log.append("went on")
        except asyncio.CancelledError as exc:
            log.append(f"cancelled {exc.args}")
            await fb.sleep(0)
            await Effect.promise(nothing).uninterruptible()
            await asyncio.sleep(0)
            log.append("cleaned up")

    fiber = fb.run_fork(Effect.promise(body))
    if ask is not None:
        await turns()
        ask(found[0])
    await fiber.exit()
    return log


async def test_a_task_that_cancels_itself_is_cancelled_once_at_an_effect() -> None:
    """PD11: its cleanup is not cut by the same request, also not at the end of a mask."""
    assert await cancelled_while_it_waits(Effect.never) == ["cancelled ('enough',)", "cleaned up"]


@pytest.mark.parametrize("wait", [Effect.never, lambda: asyncio.Event().wait()])
async def test_a_task_that_is_cancelled_from_outside_is_cancelled_once(
    wait: Callable[[], Any],
) -> None:
    """PD11: the same, asked for by somebody else, at an effect and at a future."""
    log = await cancelled_while_it_waits(wait, lambda task: task.cancel("enough"))

    assert log == ["cancelled ('enough',)", "cleaned up"]


async def test_a_cancel_right_before_a_wake_up_lands_all_the_same() -> None:
    """PD11: the fiber is ready to run by then, and is cancelled as a task would be."""
    latch = fb.Latch()

    def cancel_and_wake(task: asyncio.Task[Any]) -> None:
        task.cancel("enough")
        latch.open_unsafe()

    log = await cancelled_while_it_waits(latch.await_, cancel_and_wake)

    assert log == ["cancelled ('enough',)", "cleaned up"]


async def test_a_task_that_cancels_itself_gets_what_the_awaited_task_makes_of_it() -> None:
    """PD11: as asyncio does, the awaited task is cancelled and may have a value all the same."""

    async def stubborn() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
        return "a value"

    inner = asyncio.ensure_future(stubborn())
    await asyncio.sleep(0)

    assert await cancelled_while_it_waits(lambda: inner) == ["got a value", "went on"]


# ---- an interrupt in a body


class Stubborn(asyncio.Future[None]):
    """A future that fails when it is cancelled."""

    def cancel(self, msg: object = None) -> bool:
        self.set_exception(Boom("instead"))
        return True


async def test_what_a_future_makes_of_its_cancel_at_once_joins_the_interrupt() -> None:
    """WI1: also where it is done before cancel() returns."""

    async def body() -> None:
        await Stubborn()

    fiber = fb.run_fork(Effect.promise(body))
    await turns()
    fiber.interrupt_unsafe(by=7)

    assert peek(fiber) == "Die(instead)+I(7)"


async def test_it_joins_the_interrupt_of_a_fiber_that_asked_for_it_itself() -> None:
    """WI1, WI2: the interrupt lands as the body suspends, in the future that it suspends on."""

    async def body() -> None:
        me().interrupt_unsafe(by=7)
        await Stubborn()

    assert show(await exit_of(Effect.promise(body))) == "Die(instead)+I(7)"


async def test_a_region_in_the_cleanup_of_an_interrupt_does_not_bring_it_up_again() -> None:
    """PD17: what the body handles already is not pending when the region is left."""
    log: list[str] = []

    async def body() -> None:
        try:
            await Effect.never()
        except asyncio.CancelledError:
            with fb.uninterruptible():
                await asyncio.sleep(0)
            await asyncio.sleep(0)
            log.append("cleaned up")

    fiber = fb.run_fork(Effect.promise(body))
    await turns()
    fiber.interrupt_unsafe(by=7)
    exit = await fiber.exit()

    assert log == ["cleaned up"]
    assert exit == interrupted(7)


# ---- an interrupt that a failing TaskGroup drops


@pytest.mark.parametrize("failed_before", [False, True])
async def test_an_interrupt_thrown_into_a_group_that_has_failed_lands_after_it(
    *, failed_before: bool
) -> None:
    """AT2: the group raises its errors instead; the interrupt comes at the next suspension."""
    log: list[str] = []
    gate = asyncio.Event()

    async def failing() -> None:
        raise Boom("of a task")

    async def slow() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await gate.wait()

    async def body() -> None:
        if failed_before:
            with contextlib.suppress(Boom):
                await Effect.fail(Boom("earlier"))
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(slow())
                await asyncio.sleep(0)
                group.create_task(failing())
        except* Boom:
            log.append("errors handled")
        await asyncio.sleep(0)
        log.append("went on")

    fiber = fb.run_fork(Effect.promise(body))
    await turns()
    fiber.interrupt_unsafe(by=7)
    await turns()
    gate.set()
    exit = await fiber.exit()

    assert log == ["errors handled"]
    assert exit == interrupted(7)


# ---- what others are told


async def test_a_dump_names_the_fibers_whose_end_is_waited_for() -> None:
    """Who interrupts waits for the end of what is still there, by its number."""
    gate = asyncio.Event()
    slow = fb.run_fork(Effect.promise(gate.wait).uninterruptible())
    quick: fb.Fiber[Any, Any] = fb.run_fork(Effect.never())
    await turns()
    ending = fb.run_fork(fb.Fiber.interrupt_all([slow, quick]))
    await turns()
    dump = fb.dump()
    gate.set()
    await ending.exit()

    assert f"the end of #{slow.id}" in dump
    assert f"the end of #{slow.id}, " not in dump


async def test_the_stack_of_a_fiber_is_that_of_its_bodies() -> None:
    """PD11: as a task's, outermost first; what stands between the bodies is left out."""

    async def inner() -> None:
        await Effect.never()

    async def outer() -> None:
        await Effect.promise(inner).interruptible()

    fiber = fb.run_fork(Effect.promise(outer))
    await turns()
    names = [frame.f_code.co_name for frame in fiber.get_stack()]
    last = [frame.f_code.co_name for frame in fiber.get_stack(limit=1)]
    await fiber.interrupt()

    assert names == ["outer", "inner"]
    assert last == ["inner"]


def test_an_observer_that_raises_an_exit_request_stops_the_run() -> None:
    """PD7: it is raised by run, once, after the finalizers."""
    log: list[str] = []

    def stop(_: object) -> None:
        raise SystemExit(3)

    async def main() -> None:
        async with fb.Scope() as scope:
            await scope.add_finalizer(lambda _: say(log, "finalizer"))
            scope.fork(Effect.succeed(1)).add_observer(stop)
            await Effect.never()

    with pytest.raises(SystemExit):
        fb.run(Effect.promise(main))

    assert log == ["finalizer"]


def test_an_exit_request_beside_an_interrupt_stops_the_run() -> None:
    """PD7: raised in a cleanup of a fiber that was interrupted, it is not the only reason."""

    async def exiting() -> None:
        raise SystemExit(3)

    async def main() -> None:
        fiber = fb.run_fork(Effect.never().ensuring(Effect.promise(exiting)))
        fiber.ignore_failure()  # else it is told of when it is collected, in some other test
        fiber.interrupt_unsafe()
        await Effect.never()

    with pytest.raises(SystemExit):
        fb.run(Effect.promise(main))


async def test_who_sees_the_exit_of_a_cancelled_fiber_sees_a_plain_interrupt() -> None:
    """PD11: what travelled to the body as asyncio's own cancel is none of the reader's business."""

    async def body() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    exit = await exit_of(Effect.promise(body))

    assert [type(reason) for reason in exit.failure().reasons] == [fb.Interrupt]
    assert exit == interrupted(None, reason="task.cancel")


# ---- scopes


async def test_a_fork_by_a_plain_call_is_told_by_the_line_of_the_call() -> None:
    """PD8: not by a line of the library."""
    async with fb.Scope() as scope:
        line = sys._getframe().f_lineno + 1
        fiber = scope.fork(Effect.never())

        assert f"test_details.py:{line}" in fiber.forked_at


@pytest.mark.parametrize("strategy", ["sequential", "parallel"])
def test_a_close_ends_fibers_of_another_loop_among_the_rest(
    strategy: Literal["sequential", "parallel"],
) -> None:
    """SO6, AT16: asked for in their own thread, awaited by the close; what was added before them
    is ended too.
    """
    log: list[str] = []
    ended_in: dict[str, int] = {}
    forked, over = threading.Event(), threading.Event()
    scope = fb.Scope(strategy)
    away: list[fb.Fiber[Any, Any]] = []

    def end(name: str) -> Effect[None, Never]:
        ended_in[name] = threading.get_ident()
        return say(log, name)

    async def elsewhere() -> None:
        away.append(scope.fork(Effect.never().on_interrupt(lambda _: end("away"))))
        await turns()
        forked.set()
        await asyncio.to_thread(over.wait)

    async def here() -> None:
        await scope.add_finalizer(lambda _: say(log, "finalizer"))
        near = scope.fork(Effect.never().on_interrupt(lambda _: end("near")))
        await turns()
        thread.start()
        await asyncio.to_thread(forked.wait)
        await scope.close()
        log.append(f"closed {near.done()} {away[0].done()}")
        over.set()

    thread = threading.Thread(target=lambda: asyncio.run(elsewhere()))
    try:
        asyncio.run(asyncio.wait_for(here(), 30))
    finally:
        over.set()
        thread.join()

    assert sorted(log[:-1]) == ["away", "finalizer", "near"]
    assert log[-1] == "closed True True"
    assert ended_in == {"near": threading.get_ident(), "away": thread.ident}


# ---- an interrupt from code of the fiber's own Context


async def test_an_interrupt_from_the_fibers_own_context_lands_when_that_code_is_done() -> None:
    """PD10: a Context can't be entered twice, so the fiber ends in turn."""
    fiber = fb.run_fork(Effect.never())

    fiber.get_context().run(fiber.interrupt_unsafe, by=7)
    at_once = fiber.poll()
    await turns()

    assert at_once is None
    assert fiber.poll() == interrupted(7)


async def test_an_interrupt_that_follows_one_from_the_fibers_own_context_lands_at_once() -> None:
    """PD10, WI1: the fiber waits for its turn, as one that was woken does."""
    fiber = fb.run_fork(Effect.never())

    fiber.get_context().run(fiber.interrupt_unsafe, by=7)
    fiber.interrupt_unsafe(by=8, again=True)

    assert fiber.poll() == interrupted(7, 8)


# ---- after the end


async def test_a_task_kept_past_the_end_of_its_fiber_is_still_equal_to_it() -> None:
    """PD11: by == and hash, so that a registry of tasks finds it again."""
    kept: list[Any] = []

    async def body() -> None:
        kept.append(asyncio.current_task())

    fiber = fb.run_fork(Effect.promise(body))

    assert fiber.done()
    assert kept[0] == fiber
    assert hash(kept[0]) == hash(fiber)


class Large:
    """Something that an effect refers to."""


async def test_a_fiber_that_never_started_does_not_keep_its_effect() -> None:
    """PD13, WI4: whoever keeps the ended fiber keeps its exit and nothing else."""
    large = Large()
    gone = weakref.ref(large)
    scope = fb.Scope()

    def refer(to: Large) -> Effect[Large, Never]:
        return Effect.sync(lambda: to)

    fiber = scope.fork(refer(large))
    fiber.interrupt_unsafe(by=7)
    del large
    await turns()

    assert fiber.poll() == interrupted(7)
    assert gone() is None
