"""Two things in one tick, and futures, hooks and handlers that do what hardly any does."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import gc
import logging
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Never, TypeVar

import pytest

import fibers as fb
from fibers import Die, Effect, Interrupt
from tests.probes.kit_e import cause_of, interrupted, me, say
from tests.probes.kit_f import turns

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine, Generator

A = TypeVar("A")

pytestmark = pytest.mark.lifecycle


class Boom(Exception):
    """The error of these tests."""


# ---- futures that end in another way than asked


class Stubborn(asyncio.Future[None]):
    """Cancelled, it fails instead."""

    def cancel(self, msg: Any | None = None) -> bool:
        self.set_exception(Boom("instead of a cancel"))
        return True


def died_and(exit_: fb.Exit[Any, Any] | None) -> list[type]:
    """The kinds of a cause's reasons, in order."""
    return [type(reason) for reason in cause_of(exit_).reasons]


@pytest.mark.spec("WI1")
async def test_a_future_that_fails_when_an_interrupt_cancels_it_joins_the_cause() -> None:
    """Its error comes first, as that of a task which is waited for."""

    async def body() -> None:
        await Stubborn()

    fiber = fb.run_fork(Effect.promise(body))
    fiber.interrupt_unsafe(by=7)

    assert died_and(fiber.poll()) == [Die, Interrupt]


@pytest.mark.spec("WI1", "WI2")
async def test_a_future_that_fails_when_a_pending_interrupt_cancels_it_joins_the_cause() -> None:
    """The same where the body asked to be interrupted before it awaited."""

    async def body() -> None:
        me().interrupt_unsafe(by=7)
        await Stubborn()

    fiber = fb.run_fork(Effect.promise(body))

    assert died_and(fiber.poll()) == [Die, Interrupt]


@pytest.mark.spec("PD11")
async def test_a_cancel_that_the_awaited_gather_refuses_lands_when_it_has_ended() -> None:
    """All it waits for is done, so there is nothing to cancel; as in a task of asyncio's."""
    log: list[str] = []

    async def body() -> None:
        done = asyncio.get_running_loop().create_future()
        done.set_result("value")
        task = asyncio.current_task()
        assert task is not None
        task.cancel("enough")
        try:
            log.append(str(await asyncio.gather(done)))
        except asyncio.CancelledError as exc:
            log.append(str(exc))
            raise

    fiber = fb.run_fork(Effect.promise(body))
    await fiber.exit()
    task = asyncio.create_task(body())
    await asyncio.wait([task])

    # What a gather refuses is asyncio's to say, and newer ones say something else.
    assert log[0] == log[1]
    assert fiber.cancelled() == task.cancelled()
    assert task.cancelled()


# ---- requests given back


@pytest.mark.spec("PD2", "PD11")
async def test_asking_again_in_the_step_that_gave_the_interrupt_back_asks_for_nothing_new() -> None:
    """What 3.13's TaskGroup does when it ends: the interrupt was thrown already."""
    log: list[Any] = []

    async def body() -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            log.append((task.uncancel(), task.cancel(), task.cancelling()))
            await asyncio.sleep(0)
            log.append("not cut")
            raise

    fiber = fb.run_fork(Effect.promise(body))
    fiber.interrupt_unsafe(by=7)
    await fiber.exit()

    assert log == [(1, True, 1), "not cut"]
    assert fiber.poll() == interrupted(7)


@pytest.mark.spec("PD11", "PD13")
async def test_a_request_can_be_given_back_after_the_fiber_is_gone() -> None:
    """asyncio.timeout does so where the frames that hold it outlive the fiber."""
    tasks: list[asyncio.Task[Any]] = []

    async def body() -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(task)
        task.cancel()
        await asyncio.sleep(0)

    await fb.run_fork(Effect.promise(body)).exit()

    assert tasks[0].cancelling() == 1
    assert tasks[0].uncancel() == 0


# ---- hooks, observers and handlers that raise


@pytest.mark.spec("PD7")
@pytest.mark.parametrize("fatal", [SystemExit(3), KeyboardInterrupt()])
def test_a_fatal_error_of_an_observer_ends_the_run(fatal: BaseException) -> None:
    """As one of a body: the observer runs inside the end of the fiber."""

    def observer(_exit: object) -> None:
        raise fatal

    async def main() -> None:
        fiber = fb.run_fork(fb.sleep(0))
        fiber.add_observer(observer)
        await Effect.never()

    with pytest.raises(type(fatal)) as raised:
        fb.run(Effect.promise(main))

    assert raised.value is fatal


@pytest.mark.spec("PD7")
def test_of_two_fatal_errors_the_first_leaves_the_run() -> None:
    """Once: the other finds the root closing."""
    first, second = SystemExit(1), SystemExit(2)

    def leave(error: BaseException) -> Never:
        raise error

    async def main() -> None:
        for error in (first, second):
            fb.run_fork(Effect.sync(functools.partial(leave, error))).ignore_failure()
        await Effect.never()

    with pytest.raises(SystemExit) as raised:
        fb.run(Effect.promise(main))

    assert raised.value is first


@pytest.mark.spec("PD7", "PD15")
def test_a_fatal_error_leaves_run_sync_where_no_loop_runs() -> None:
    """At once, and once."""
    fatal = SystemExit(3)

    def leave() -> None:
        raise fatal

    with pytest.raises(SystemExit) as raised:
        fb.run_sync(Effect.sync(leave))

    assert raised.value is fatal
    assert fb.run_sync(Effect.succeed(1)) == 1


class Breaks(logging.Handler):
    """A handler that raises ``error`` at the first record, instead of logging about it."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error: BaseException | None = error

    def emit(self, record: logging.LogRecord) -> None:
        error, self.error = self.error, None
        if error is not None:
            raise error


@contextlib.contextmanager
def log_that_breaks(handler: logging.Handler) -> Generator[None]:
    """What the runtime logs goes through ``handler``."""
    log = logging.getLogger("fibers")
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


def fork_with_a_bad_observer() -> fb.Fiber[None, Any]:
    """A fiber whose end gives the runtime something to log."""

    def observer(_exit: object) -> None:
        raise Boom

    fiber = fb.run_fork(fb.sleep(0))
    fiber.add_observer(observer)
    return fiber


@pytest.mark.spec("PD7")
def test_an_interrupt_of_the_keyboard_while_the_end_of_a_fiber_is_logged_ends_the_run() -> None:
    """It is raised wherever Python is just then, also past the end of a fiber."""
    fibers: list[fb.Fiber[None, Any]] = []

    async def main() -> None:
        fibers.append(fork_with_a_bad_observer())
        await Effect.never()

    pressed = KeyboardInterrupt()
    with log_that_breaks(Breaks(pressed)), pytest.raises(KeyboardInterrupt) as raised:
        fb.run(Effect.promise(main))

    assert raised.value is pressed
    assert fibers[0].poll() == fb.Success(None)


async def test_a_log_handler_that_raises_at_the_end_of_a_fiber_does_not_run_it_again() -> None:
    """It has ended, and who waits for it goes on."""
    with log_that_breaks(Breaks(Boom("the disk of the log is full"))):
        fiber = fork_with_a_bad_observer()
        await turns()

    assert await fiber.exit() == fb.Success(None)


async def test_a_log_that_can_say_nothing_at_the_end_of_a_fiber_is_told_of_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the loop, or as what the compiled twin can't raise. It is a RuntimeError like another one:
    the fiber is not put back for it.
    """
    told: list[object] = []
    broken = RuntimeError("the disk of the log is full")

    class Full(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise broken

    # A failure that an earlier test left unheard is reported when it is collected: now, not below.
    gc.collect()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, context: told.append(context["exception"]))

    def hear(what: Any) -> None:
        told.append(what.exc_value)

    monkeypatch.setattr(sys, "unraisablehook", hear)
    try:
        with log_that_breaks(Full()):
            fiber = fork_with_a_bad_observer()
            await turns()
    finally:
        loop.set_exception_handler(None)

    assert fiber.poll() == fb.Success(None)
    assert told == [broken]


# ---- fibers whose loop is gone


def _in_a_closed_loop(work: Effect[Any, Any]) -> fb.Fiber[Any, Any]:
    """A fiber that was left behind when its loop was closed."""
    loop = asyncio.new_event_loop()

    async def main() -> fb.Fiber[Any, Any]:
        return fb.run_fork(work)

    try:
        return loop.run_until_complete(main())
    finally:
        loop.close()


def _in_no_loop(work: Effect[Any, Any]) -> fb.Fiber[Any, Any]:
    """A fiber that was forked in a run_sync, where no loop runs."""
    return fb.run_sync(work.fork_detach(start_immediately=True))


def in_a_thread(f: Callable[[], A]) -> A:
    """What ``f`` gives, called where no loop runs."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(f).result(5)


@pytest.mark.spec("WI6", "AT16")
@pytest.mark.parametrize("ask", ["interrupt", "sequential", "parallel"])
@pytest.mark.parametrize("leave", [_in_a_closed_loop, _in_no_loop])
async def test_a_fiber_whose_loop_is_gone_can_be_ended_from_another(
    leave: Callable[[Effect[Any, Any]], fb.Fiber[Any, Any]], ask: Any
) -> None:
    """Nobody drains its queue any more: it unwinds where it is interrupted, as by a plain call."""
    log: list[str] = []
    ends = Effect.sync(lambda: log.append("finalized"))
    fiber = in_a_thread(lambda: leave(Effect.never().ensuring(ends)))
    alive = fiber.poll() is None
    if ask == "interrupt":
        await fiber.interrupt()
    else:
        scope = fb.Scope(ask)
        fiber.run_in(scope)
        await scope.close()

    assert alive
    assert log == ["finalized"]
    assert fiber.cancelled()


@pytest.mark.spec("PD11")
async def test_a_fiber_that_no_loop_runs_can_be_cancelled_and_tells_who_listens() -> None:
    """There is no queue to go through: at once."""
    log: list[object] = []
    fiber = in_a_thread(lambda: _in_no_loop(Effect.never()))
    fiber.add_done_callback(log.append)

    assert fiber.cancel("enough")
    assert log == [fiber]
    assert fiber.poll() == interrupted(None, reason="enough")


async def test_a_done_callback_of_a_fiber_whose_loop_was_closed_is_not_called() -> None:
    """Its place would have been that loop."""
    log: list[object] = []
    fiber = in_a_thread(lambda: _in_a_closed_loop(Effect.never()))
    fiber.add_done_callback(log.append)
    fiber.interrupt_unsafe(by=7)

    assert fiber.done()
    assert log == []


# ---- a wake-up and something else in one tick


@pytest.mark.spec("PD11")
async def test_a_cancel_follows_a_body_that_is_woken_in_its_tick_to_the_next_future() -> None:
    """It was asked for at an effect, and lands at the future that the body awaits by then."""
    log: list[str] = []
    tasks: list[asyncio.Task[Any]] = []
    first: fb.Deferred[str, Never] = fb.Deferred()
    gate = asyncio.get_running_loop().create_future()

    async def body() -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(task)
        log.append(await first.await_())
        await gate

    fiber = fb.run_fork(Effect.promise(body))
    fb.run_fork(Effect.yield_now())  # the queue has its turn of the loop before the cancel
    tasks[0].cancel("enough")
    first.done_unsafe(fb.Success("woken"))
    await turns()

    assert log == ["woken"]
    assert gate.cancelled()
    assert fiber.poll() == interrupted(None, reason="task.cancel")


@pytest.mark.spec("FL15", "WI1")
@pytest.mark.parametrize("how", ["join", "exit", "join_all"])
async def test_an_observer_may_interrupt_who_waits_for_the_same_end(how: str) -> None:
    """It was there first; who waits is told nothing after that."""
    gate: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    target = fb.run_fork(Effect.promise(lambda: gate))
    waiters: list[fb.Fiber[Any, Any]] = []
    target.add_observer(lambda _: waiters[0].interrupt_unsafe(by=7))
    waits: dict[str, Effect[Any, Any]] = {
        "join": target.join(),
        "exit": target.exit(),
        "join_all": fb.Fiber.join_all([target, target]),
    }
    waiters.append(fb.run_fork(waits[how]))
    gate.set_result(5)
    await turns()

    assert waiters[0].poll() == interrupted(7)
    assert target.poll() == fb.Success(5)


@pytest.mark.spec("PD10", "PD16")
async def test_an_interrupt_deep_in_a_fibers_own_context_lands_when_that_code_is_done() -> None:
    """Its Context can't be entered twice: the trampoline goes on with the others."""
    log: list[str] = []
    target = fb.run_fork(Effect.never().on_interrupt(lambda _: say(log, "ended")))

    def inside(level: int) -> Effect[None]:
        if level == 0:
            return target.interrupt().flat_map(lambda _: say(log, "interrupt returned"))
        below = Effect.suspend(lambda: inside(level - 1)).fork_child(start_immediately=True)
        return below.flat_map(lambda fiber: fiber.join())

    asker = target.get_context().run(fb.run_fork, inside(30))
    log.append("the code of its context is done")
    await asker.exit()

    assert log == ["the code of its context is done", "ended", "interrupt returned"]


@pytest.mark.spec("PD10")
async def test_a_fiber_woken_while_a_thread_runs_in_its_context_waits_for_the_thread() -> None:
    """Whoever hands get_context().run to an executor gets that instead of an error."""
    entered, leave = threading.Event(), threading.Event()
    gate: fb.Deferred[str, Never] = fb.Deferred()
    fiber = fb.run_fork(gate.await_())

    def blocks() -> None:
        entered.set()
        leave.wait(5)

    thread = asyncio.get_running_loop().run_in_executor(None, fiber.get_context().run, blocks)
    await asyncio.to_thread(entered.wait)
    gate.done_unsafe(fb.Success("value"))
    await turns(3)
    meanwhile = fiber.poll()
    leave.set()
    await thread

    assert meanwhile is None
    assert await fiber.exit() == fb.Success("value")


class Telling(asyncio.Task[Any]):
    """A task that tells its Context, as all do since 3.12."""

    def __init__(self, coro: Any, *, loop: asyncio.AbstractEventLoop, **kwargs: Any) -> None:
        self._told = contextvars.copy_context()
        super().__init__(coro, loop=loop, context=self._told)

    def get_context(self) -> contextvars.Context:
        """The one that it runs in."""
        return self._told


@pytest.mark.spec("PD12")
async def test_an_effect_in_a_task_that_tells_its_context_runs_in_that_very_one() -> None:
    """Also where it comes back from fibers that it has started; cancelled, it ends there."""
    variable = contextvars.ContextVar("variable", default="unset")
    log: list[str] = []

    async def sets(name: str) -> None:
        variable.set(name)

    async def main() -> None:
        await fb.for_each([1, 2], lambda _: Effect.promise(lambda: turns(1)), concurrency=2)
        await Effect.promise(lambda: sets("inside"))
        log.append(variable.get())
        await Effect.never().on_interrupt(lambda _: say(log, variable.get()))

    loop = asyncio.get_running_loop()
    task = Telling(main(), loop=loop)
    await turns()
    task.cancel()
    await asyncio.wait([task])

    assert log == ["inside", "inside"]
    assert task.cancelled()
    assert variable.get() == "unset"


# ---- masks


@pytest.mark.spec("PD2", "PD11")
@pytest.mark.parametrize("seen", [False, True])
async def test_an_interrupt_that_a_masked_body_is_given_again_leaves_a_cancel_pending(
    seen: bool,
) -> None:
    """The cancel was aimed at what is around the mask; there both are one."""
    log: list[str] = []
    tasks: list[asyncio.Task[Any]] = []

    async def given_again(exit_: fb.Exit[Any, Any]) -> None:
        if seen:
            await Effect.fail(Boom()).exit()
            try:
                await Effect.die(Boom())
            except Boom:
                log.append("saw a defect")
        tasks[0].cancel("outside")
        try:
            await Effect.from_exit(exit_)
        except asyncio.CancelledError:
            log.append("given again")
        await turns(1)
        log.append("not cut")

    def masked(restore: Callable[[Effect[Any, Any]], Effect[Any, Any]]) -> Effect[Any, Any]:
        hole = restore(Effect.never()).exit()
        return hole.flat_map(lambda exit_: Effect.promise(lambda: given_again(exit_)))

    async def body() -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(task)
        await Effect.uninterruptible_mask(masked)
        log.append("never")

    fiber = fb.run_fork(Effect.promise(body))
    fiber.interrupt_unsafe(by=7)
    await fiber.exit()

    assert log == ["saw a defect"] * seen + ["given again", "not cut"]
    assert fiber.poll() == interrupted(7)


@pytest.mark.spec("PD11", "IN15")
async def test_a_cancel_that_waits_for_a_mask_lands_where_an_interruptible_hole_begins() -> None:
    """The hole lies outside of the mask, as what was cancelled does: nothing of it runs."""
    log: list[str] = []
    tasks: list[asyncio.Task[Any]] = []

    async def ask() -> None:
        tasks[0].cancel("outside")
        await turns(1)
        log.append("masked part")

    async def body() -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(task)
        hole = say(log, "hole").interruptible()
        work = Effect.promise(ask).flat_map(lambda _: hole)
        await work.uninterruptible()

    fiber = fb.run_fork(Effect.promise(body))
    await fiber.exit()

    assert log == ["masked part"]
    assert fiber.poll() == interrupted(None, reason="task.cancel")


@pytest.mark.spec("PD17")
async def test_a_region_and_its_restore_left_open_leave_the_caller_its_task() -> None:
    """Both are closed with the body that forgot them, and reported."""
    kept: list[contextlib.ExitStack] = []

    async def forgets() -> None:
        stack = contextlib.ExitStack()
        kept.append(stack)
        restore = stack.enter_context(fb.uninterruptible())
        stack.enter_context(restore())

    async def body() -> tuple[type, bool, bool]:
        before: Any = me()
        (reason,) = cause_of(await Effect.promise(forgets).exit()).reasons
        assert isinstance(reason, Die)
        await Effect.yield_now()
        return type(reason.defect), fb.current_fiber() is before, asyncio.current_task() == before

    ended = await fb.run_fork(Effect.promise(body))
    kept[0].pop_all()

    assert ended == (RuntimeError, True, True)


# ---- failures that a body has seen


@pytest.mark.spec("PD4")
async def test_of_many_failures_that_a_body_has_seen_those_it_keeps_stay_what_they_were() -> None:
    """What nobody can raise again is forgotten (PD13); what is kept is a Fail of its effect."""
    kept: list[Boom] = []
    gone: list[weakref.ref[Boom]] = []

    @fb.effect(raises=Boom)
    async def fails(number: int) -> None:
        raise Boom(number)

    async def body() -> None:
        for number in range(30):
            try:
                await fails(number)
            except Boom as exc:
                gone.append(weakref.ref(exc))
                if number == 0:
                    kept.append(exc)
        gc.collect()
        gone[:] = [error for error in gone if error() is not None]
        raise kept[0]

    (reason,) = cause_of(await Effect.promise(body).exit()).reasons

    assert isinstance(reason, Die)
    assert reason.defect is kept[0]
    assert "fails" in kept[0].__notes__[0]
    assert len(gone) < 20


# ---- task groups and conditions of asyncio's


@pytest.mark.spec("AT2")
async def test_a_group_in_a_generator_that_fails_at_the_exit_of_another_does_as_in_a_task() -> None:
    """It is none of those that the body is leaving just then."""
    logs: list[list[str]] = []

    async def fails() -> None:
        await turns(2)
        raise Boom

    async def grouped() -> AsyncGenerator[int]:
        async with asyncio.TaskGroup() as group:
            group.create_task(fails())
            yield 1

    def body_with(log: list[str]) -> Callable[[], Coroutine[Any, Any, None]]:
        async def body() -> None:
            generator = grouped()
            await anext(generator)
            try:
                async with asyncio.TaskGroup() as other:
                    other.create_task(turns(9))
            except asyncio.CancelledError:
                log.append("cancelled by the group of the generator")
            try:
                await generator.aclose()
            except BaseExceptionGroup as group:
                log.append(str([type(error).__name__ for error in group.exceptions]))
            await turns(1)
            log.append("went on")

        logs.append(log)
        return body

    await asyncio.wait([asyncio.create_task(body_with([])())])
    await fb.run_fork(Effect.promise(body_with([]))).exit()

    assert logs[0] == logs[1]
    assert logs[0][0] == "cancelled by the group of the generator"


@pytest.mark.spec("AT7")
async def test_the_only_waiter_of_a_condition_may_be_interrupted_in_the_tick_of_its_wake_up() -> (
    None
):
    """Nobody is left to be woken instead; the lock is free again."""
    condition = asyncio.Condition()

    async def waits() -> None:
        async with condition:
            await condition.wait()

    fiber = fb.run_fork(Effect.promise(waits))
    await turns(2)
    async with condition:
        condition.notify()
    fiber.interrupt_unsafe(by=7)
    await fiber.exit()

    assert fiber.poll() == interrupted(7)
    assert not condition.locked()
