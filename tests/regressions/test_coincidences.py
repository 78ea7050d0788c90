"""Two things in one tick, and futures, hooks and handlers that do what hardly any does."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

import fibers as fb
from fibers import Die, Effect, Interrupt
from tests.probes.kit_e import cause_of, interrupted, me
from tests.probes.kit_f import turns

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

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

    assert log == ["enough", "enough"]
    assert fiber.cancelled()
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

    async def leave(error: BaseException) -> None:
        raise error

    async def main() -> None:
        for error in (first, second):
            fb.run_fork(Effect.promise(lambda error=error: leave(error))).ignore_failure()
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


async def test_a_log_that_can_say_nothing_at_the_end_of_a_fiber_is_the_loops_to_tell() -> None:
    """A RuntimeError like another one: the fiber is not put back for it."""
    told: list[BaseException] = []
    broken = RuntimeError("the disk of the log is full")

    class Full(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise broken

    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, context: told.append(context["exception"]))
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
    """Nobody drains its queue any more, so it unwinds where it is interrupted, as by a plain call."""
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
