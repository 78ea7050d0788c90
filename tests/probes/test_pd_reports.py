"""Probes PD7 to PD9: what ends the program, what is reported, what waits for itself."""

from __future__ import annotations

import gc
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never

import pytest

import fibers as fb
from fibers import Cause, Die, Effect, Fail, Scope
from tests.probes.kit_f import (
    Boom,
    cause_of,
    collector_off,
    endless,
    failing,
    inner_task,
    new_gate,
    note,
    parked,
    running_fiber,
    turns,
    unhandled_failures,
    wait_for,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


# ---- PD7: the end of the program


def stopping(stop: BaseException) -> Effect[None, Never]:
    """A body that raises KeyboardInterrupt or SystemExit."""

    @fb.effect
    async def body() -> None:
        raise stop

    return body()


@pytest.mark.spec("PD7")
@pytest.mark.parametrize("stop", [KeyboardInterrupt(), SystemExit(3)])
def test_run_raises_keyboard_interrupt_and_system_exit_again(stop: BaseException) -> None:
    """The very object."""
    with pytest.raises(type(stop)) as caught:
        fb.run(stopping(stop))

    assert caught.value is stop


@pytest.mark.spec("PD7")
@pytest.mark.parametrize("stop", [KeyboardInterrupt(), SystemExit(3)])
def test_finalizers_run_before_run_raises_them(stop: BaseException) -> None:
    """Those of a scope, asynchronous ones too."""
    log = list[str]()
    slow = Effect.yield_now().flat_map(lambda _: note(log, "finalizer"))

    @fb.effect
    async def body() -> None:
        await fb.add_finalizer(lambda _: slow)
        await stopping(stop)

    with pytest.raises(type(stop)):
        fb.run(fb.scoped(body()))

    assert log == ["finalizer"]


@pytest.mark.spec("PD7")
def test_detached_fibers_are_finalized_before_run_raises_system_exit() -> None:
    """The root scope closes: it holds every fiber of the run."""
    log = list[str]()

    @fb.effect
    async def body() -> None:
        await parked(log, "detached").fork_detach(start_immediately=True)
        await stopping(SystemExit(3))

    with pytest.raises(SystemExit):
        fb.run(body())

    assert log == ["detached"]


@pytest.mark.spec("PD7")
def test_a_system_exit_in_a_child_finalizes_the_main_fiber() -> None:
    """In whichever fiber it was raised."""
    log = list[str]()

    @fb.effect
    async def body() -> None:
        await Effect.yield_now().flat_map(lambda _: stopping(SystemExit(3))).fork_child()
        await parked(log, "main")

    with pytest.raises(SystemExit) as caught:
        fb.run(body())

    assert caught.value.code == 3
    assert log == ["main"]


@pytest.mark.spec("PD7")
def test_a_keyboard_interrupt_is_raised_once_and_reported_nowhere_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is the business of whoever called run."""
    with unhandled_failures() as unhandled, pytest.raises(KeyboardInterrupt):
        fb.run(stopping(KeyboardInterrupt()))
    gc.collect()

    assert unhandled == []
    assert caplog.records == []


@pytest.mark.spec("PD7", "PD8")
@pytest.mark.parametrize("stop", [KeyboardInterrupt(), SystemExit(3)])
def test_what_ends_the_program_from_a_child_is_raised_once_and_reported_nowhere_else(
    stop: BaseException,
) -> None:
    """Whoever called run handles it, in whichever fiber it was raised."""

    @fb.effect
    async def body() -> None:
        await stopping(stop).fork_child()
        await Effect.never()

    with unhandled_failures() as unhandled, pytest.raises(type(stop)):
        fb.run(body())
    gc.collect()

    assert unhandled == []


@pytest.mark.spec("PD7", "PD8")
def test_a_defect_beside_what_ends_the_program_is_reported() -> None:
    """Only the exit is raised by run: the other reason would be lost."""
    boom = Boom()

    @fb.effect
    async def body() -> None:
        await stopping(SystemExit(3)).ensuring(Effect.die(boom)).fork_child()
        await Effect.never()

    with unhandled_failures() as unhandled, pytest.raises(SystemExit):
        fb.run(body())

    assert [boom in cause.defects for _, cause in unhandled] == [True]


# ---- PD8: failures that nobody handles


@pytest.mark.spec("PD8")
async def test_a_failure_whose_handle_nobody_kept_is_reported_at_once() -> None:
    """Without help of the collector."""
    boom = Boom()

    with collector_off(), unhandled_failures() as seen:
        fb.run_fork(Effect.fail(boom))

        assert [cause for _, cause in seen] == [Cause((Fail(boom),))]


@pytest.mark.spec("PD8")
async def test_a_late_failure_whose_handle_nobody_kept_is_reported_when_it_happens() -> None:
    """The fiber was held by its owner until then."""
    boom, gate = Boom(), new_gate()

    with collector_off(), unhandled_failures() as seen:
        fb.run_fork(wait_for(gate).flat_map(lambda _: Effect.fail(boom)))
        gate.set_result(1)
        await turns()

        assert [cause for _, cause in seen] == [Cause((Fail(boom),))]


@pytest.mark.spec("PD8")
async def test_a_failure_is_reported_when_the_last_reference_goes() -> None:
    """Not before: whoever holds the fiber may still look at it."""
    boom = Boom()

    with collector_off(), unhandled_failures() as seen:
        fiber = fb.run_fork(Effect.fail(boom))
        await turns()
        while_held = seen.copy()
        fiber_id = fiber.id
        del fiber

        assert while_held == []
        assert seen == [(fiber_id, Cause((Fail(boom),)))]


@pytest.mark.spec("PD8")
async def test_a_defect_nobody_handles_is_reported_too() -> None:
    """Fail or Die."""
    boom = Boom()

    with collector_off(), unhandled_failures() as seen:
        fb.run_fork(Effect.die(boom))

        assert [cause for _, cause in seen] == [Cause((Die(boom),))]


@pytest.mark.spec("PD8")
async def test_an_interrupt_is_not_reported() -> None:
    """Somebody asked for it."""
    with collector_off(), unhandled_failures() as seen:
        fb.run_fork(endless()).interrupt_unsafe(by=7)
        await turns()

        assert seen == []


@pytest.mark.spec("PD8")
async def test_a_failure_in_a_scope_is_reported_when_the_scope_closes() -> None:
    """The handle is still there: the owner's end comes first."""
    boom, scope = Boom(), Scope()

    with collector_off(), unhandled_failures() as seen:
        fiber = scope.fork(Effect.fail(boom), start_immediately=True)
        before = seen.copy()
        await scope.close()

        assert before == []
        assert seen == [(fiber.id, Cause((Fail(boom),)))]


@pytest.mark.spec("PD8")
async def test_a_failure_of_a_child_is_reported_when_its_parent_ends() -> None:
    """The parent is its owner; supervision is not observing."""
    boom, kept = Boom(), list[fb.Fiber[None, Boom]]()

    @fb.effect
    async def parent() -> None:
        kept.append(await failing(boom).fork_child(start_immediately=True))

    with collector_off(), unhandled_failures() as seen:
        await parent()

        assert seen == [(kept[0].id, Cause((Fail(boom),)))]


@pytest.mark.spec("PD8")
async def test_a_failure_is_reported_when_its_runtime_is_disposed() -> None:
    """The owner of what a runtime's run_fork started."""
    boom, runtime = Boom(), fb.Runtime()

    with collector_off(), unhandled_failures() as seen:
        fiber = runtime.run_fork(failing(boom))
        before = seen.copy()
        await runtime.dispose()

        assert before == []
        assert seen == [(fiber.id, Cause((Fail(boom),)))]


@pytest.mark.spec("PD8")
async def test_a_failure_is_reported_once() -> None:
    """The owner ends, then the last reference goes."""
    scope = Scope()

    with collector_off(), unhandled_failures() as seen:
        fiber = scope.fork(Effect.fail(Boom()), start_immediately=True)
        await scope.close()
        del fiber
        await turns()

        assert len(seen) == 1


async def by_joining(fiber: fb.Fiber[None, Boom]) -> None:
    """Observe with join."""
    with pytest.raises(Boom):
        await fiber.join()


async def by_its_exit(fiber: fb.Fiber[None, Boom]) -> None:
    """Observe with exit()."""
    await fiber.exit()


async def by_polling(fiber: fb.Fiber[None, Boom]) -> None:
    """Observe with poll()."""
    assert fiber.poll() is not None


async def by_an_observer(fiber: fb.Fiber[None, Boom]) -> None:
    """Observe with add_observer."""
    exits = list[object]()
    fiber.add_observer(exits.append)
    assert len(exits) == 1


@pytest.mark.spec("PD8")
@pytest.mark.parametrize("observe", [by_joining, by_its_exit, by_polling, by_an_observer])
async def test_a_failure_that_was_observed_is_not_reported(
    observe: Callable[[fb.Fiber[None, Boom]], Awaitable[None]],
) -> None:
    """Join, exit, poll and observers count."""
    with collector_off(), unhandled_failures() as seen:
        fiber = fb.run_fork(failing(Boom()))
        await observe(fiber)
        del fiber
        await turns()

        assert seen == []


@pytest.mark.spec("PD8")
async def test_an_observer_added_before_the_failure_counts() -> None:
    """It gets the exit when it is there."""
    gate, exits = new_gate(), list[object]()

    with collector_off(), unhandled_failures() as seen:
        work = wait_for(gate).flat_map(lambda _: failing(Boom()))
        fb.run_fork(work).add_observer(exits.append)
        gate.set_result(1)
        await turns()

        assert len(exits) == 1
        assert seen == []


@pytest.mark.spec("PD8")
async def test_a_poll_before_the_failure_does_not_count() -> None:
    """It saw nothing."""
    gate = new_gate()

    with collector_off(), unhandled_failures() as seen:
        fiber = fb.run_fork(wait_for(gate).flat_map(lambda _: failing(Boom())))
        assert fiber.poll() is None
        del fiber
        gate.set_result(1)
        await turns()

        assert len(seen) == 1


@pytest.mark.spec("PD8")
async def test_ignore_failure_opts_out() -> None:
    """It gives the fiber back, to be written behind a fork."""
    with collector_off(), unhandled_failures() as seen:
        fiber = fb.run_fork(failing(Boom()))
        same = fiber.ignore_failure()
        identical = same is fiber
        del fiber, same
        await turns()

        assert identical
        assert seen == []


@pytest.mark.spec("PD8")
async def test_a_handled_failure_of_a_racer_or_worker_is_not_reported() -> None:
    """Races, for_each and timeouts look at the exits of their own fibers."""
    late = Effect.yield_now().flat_map(lambda _: failing(Boom()))
    works: list[Effect[Any, Any]] = [
        fb.race(late, Effect.yield_now().flat_map(lambda _: Effect.yield_now())),
        fb.all_([late, endless()], concurrency="unbounded"),
        late.timeout(60),
    ]

    with collector_off(), unhandled_failures() as seen:
        for work in works:
            await work.exit()
        await turns()

        assert seen == []


@pytest.mark.spec("PD8")
async def test_without_a_hook_one_error_record_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Logger "fibers", with the cause and the place of the fork."""
    fb.set_unhandled_failure_hook(None)

    with caplog.at_level(logging.ERROR), collector_off():
        fb.run_fork(failing(Boom("no such user")))
        await turns()

    (record,) = caplog.records
    assert (record.name, record.levelno) == ("fibers", logging.ERROR)
    assert "no such user" in caplog.text
    assert Path(__file__).name in caplog.text


# ---- PD9: waiting for oneself


@pytest.mark.spec("PD9", "IN20")
async def test_interrupting_oneself_in_a_masked_effect_is_an_error() -> None:
    """Instead of waiting for ever."""
    work = Effect.suspend(lambda: running_fiber().interrupt()).uninterruptible()

    exit = await work.exit()

    assert [type(defect) for defect in cause_of(exit).defects] == [fb.FiberDeadlockError]


@pytest.mark.spec("PD9", "IN20")
async def test_interrupting_oneself_in_a_region_is_an_error() -> None:
    """A RuntimeError, raised at the await."""

    @fb.effect
    async def body() -> None:
        with fb.uninterruptible():
            try:
                await running_fiber().interrupt()
            except RuntimeError as exc:
                errors.append(exc)

    errors = list[Exception]()
    await body().exit()

    assert [type(error) for error in errors] == [fb.FiberDeadlockError]


@pytest.mark.spec("PD9")
async def test_joining_oneself_is_an_error() -> None:
    """In a body."""
    errors = list[Exception]()

    @fb.effect
    async def body() -> None:
        try:
            await running_fiber().join()
        except RuntimeError as exc:
            errors.append(exc)

    await body()

    assert [type(error) for error in errors] == [fb.FiberDeadlockError]


@pytest.mark.spec("PD9")
async def test_awaiting_oneself_is_an_error() -> None:
    """`await fiber` is a join."""
    errors = list[Exception]()

    @fb.effect
    async def body() -> None:
        try:
            await running_fiber()
        except RuntimeError as exc:
            errors.append(exc)

    await body()

    assert [type(error) for error in errors] == [fb.FiberDeadlockError]


@pytest.mark.spec("PD9")
async def test_waiting_for_ones_own_exit_is_an_error() -> None:
    """As combinators."""
    exit = await Effect.suspend(lambda: running_fiber().exit()).exit()

    assert [type(defect) for defect in cause_of(exit).defects] == [fb.FiberDeadlockError]


@pytest.mark.spec("PD9", "PD11")
async def test_awaiting_ones_own_inner_task_is_an_error() -> None:
    """asyncio refuses a task that awaits itself, too."""
    errors = list[Exception]()

    @fb.effect
    async def body() -> None:
        try:
            await inner_task()
        except RuntimeError as exc:
            errors.append(exc)

    await body()

    assert [type(error) for error in errors] == [fb.FiberDeadlockError]
    assert "Task awaits itself" in str(errors[0])
