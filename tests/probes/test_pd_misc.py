"""Probes PD7 to PD9, PD13, PD18, PD20 to PD22: what is reported, held, refused, named."""

from __future__ import annotations

import asyncio
import gc
import logging
import tracemalloc
import weakref
from collections.abc import Awaitable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never

import pytest
from returns.maybe import Some
from returns.result import Failure, Success

import fibers as fb
from fibers import Cause, Die, Effect, Fail, Interrupt, Scope
from fibers.app import AppScope, Shutdown
from tests.probes.kit_f import (
    Boom,
    cause_of,
    collector_off,
    endless,
    failed,
    failing,
    interrupted,
    new_gate,
    note,
    parked,
    running_fiber,
    turns,
    unhandled_failures,
    wait_for,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from fibers.testing import TestClock


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


# ---- PD13: what is held, and what is left


@pytest.mark.spec("PD13")
async def test_a_live_fiber_is_held_by_its_owner() -> None:
    """Nothing else refers to it or to what it waits on; the collector leaves it alone."""
    log, scope = list[str](), Scope()

    @fb.effect
    async def body() -> None:
        try:
            # Fiber, frame and future refer to each other only.
            await asyncio.get_running_loop().create_future()
        finally:
            log.append("finally")

    scope.fork(body(), start_immediately=True)
    gc.collect()
    before = log.copy()
    await scope.close()

    assert before == []
    assert log == ["finally"]


@pytest.mark.spec("PD13", "AT9")
async def test_a_fiber_of_run_fork_is_held_until_it_has_ended() -> None:
    """Without a handle, too."""
    log, gates = list[str](), list[weakref.ref[asyncio.Future[int]]]()

    @fb.effect
    async def body() -> None:
        gate: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        gates.append(weakref.ref(gate))
        await gate
        log.append("done")

    fb.run_fork(body())
    gc.collect()
    gate = gates[0]()
    assert gate is not None
    gate.set_result(1)
    await turns()

    assert log == ["done"]


class Payload:
    """Something to watch the end of."""


@pytest.mark.spec("PD13")
async def test_a_finished_fiber_goes_with_its_last_reference() -> None:
    """It leaves no cycle: no collector needed."""
    gate = new_gate()

    @fb.effect
    async def body() -> int:
        return await gate

    with collector_off():
        fiber = fb.run_fork(body())
        gate.set_result(1)
        await fiber
        await turns()
        gone = weakref.ref(fiber)
        del fiber

        assert gone() is None


@pytest.mark.spec("PD13", "AT17")
async def test_a_failed_fiber_goes_though_its_error_is_kept() -> None:
    """The error's traceback holds neither the fiber nor the run loop."""
    gate, boom = new_gate(), Boom()

    @fb.effect(raises=Boom)
    async def body() -> None:
        await gate
        raise boom

    with collector_off():
        fiber = fb.run_fork(body())
        gate.set_result(1)
        await fiber.exit()
        await turns()
        gone = weakref.ref(fiber)
        del fiber

        assert gone() is None


@pytest.mark.spec("PD13")
async def test_an_interrupted_fiber_goes_with_its_last_reference() -> None:
    """What was thrown into its body holds nothing back."""

    @fb.effect
    async def body() -> None:
        try:
            await endless()
        finally:
            await asyncio.sleep(0)

    with collector_off():
        fiber = fb.run_fork(body())
        fiber.interrupt_unsafe(by=7)
        await fiber.exit()
        await turns()
        gone = weakref.ref(fiber)
        del fiber

        assert gone() is None


@pytest.mark.spec("PD13")
async def test_the_value_of_a_finished_fiber_goes_with_it() -> None:
    """Nothing else keeps it."""
    with collector_off():
        fiber = fb.run_fork(Effect.yield_now().map(lambda _: Payload()))
        gone = weakref.ref(await fiber)
        await turns()
        del fiber

        assert gone() is None


@pytest.mark.spec("PD13", "VF6")
async def test_finished_fibers_leave_no_finalizer_in_their_scope() -> None:
    """Those that suspended and those that did not."""
    scope, gate = Scope(), new_gate()
    kinds = [wait_for(gate), Effect.succeed(1)]
    fibers = [scope.fork(kinds[index % 2]) for index in range(50)]

    gate.set_result(1)
    for fiber in fibers:
        await fiber

    assert scope.finalizer_count == 0


@pytest.mark.slow
@pytest.mark.spec("PD13")
async def test_a_hundred_thousand_forks_in_one_open_scope_leave_memory_flat() -> None:
    """Every tenth suspends; under 1 MB stays after all of them."""
    scope = Scope()

    @fb.effect
    async def forks(count: int) -> None:
        for index in range(count):
            work = Effect.yield_now() if index % 10 == 0 else Effect.succeed(None)
            await (await work.fork_in(scope, start_immediately=True))

    await forks(1_000)
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        await forks(100_000)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert after - before < 1_000_000
    assert scope.finalizer_count == 0


# ---- PD18: arguments that could only hang


@pytest.mark.spec("PD18")
def test_a_race_of_nothing_is_a_value_error() -> None:
    """Each of the four races."""
    for race in (fb.race, fb.race_first):
        with pytest.raises(ValueError):
            race()
    for race_of_list in (fb.race_all, fb.race_all_first):
        with pytest.raises(ValueError):
            race_of_list(iter(()))


@pytest.mark.spec("PD18")
@pytest.mark.parametrize("after", [-1, -0.001, timedelta(seconds=-1)])
def test_a_negative_timeout_is_a_value_error(after: float | timedelta) -> None:
    """Each of the three timeouts, at the call."""
    with pytest.raises(ValueError):
        endless().timeout(after)
    with pytest.raises(ValueError):
        endless().timeout_option(after)
    with pytest.raises(ValueError):
        endless().timeout_or_else(after, endless)


@pytest.mark.spec("PD18")
def test_duplicate_names_of_steps_are_a_value_error() -> None:
    """Found when the shutdown is put together, not when it is needed."""

    async def step() -> None:
        raise AssertionError("no step runs in this test")

    with pytest.raises(ValueError):
        Shutdown(AppScope(), [("flush", step), ("flush", step)], runtime=fb.Runtime())


# ---- PD20: reasons


@pytest.mark.spec("PD20", "IN10")
async def test_equal_interrupts_are_one_reason() -> None:
    """The same interruptor with the same reason, twice."""
    gate = new_gate()
    fiber = fb.run_fork(wait_for(gate).uninterruptible())

    fiber.interrupt_unsafe(by=7, reason="enough")
    fiber.interrupt_unsafe(by=7, reason="enough")
    gate.set_result(1)
    exit = await fiber.exit()

    assert interrupted(by=7, reason="enough") == exit


@pytest.mark.spec("PD20")
async def test_one_interruptor_with_two_reasons_is_two_reasons() -> None:
    """(by, reason) is the key."""
    gate = new_gate()
    fiber = fb.run_fork(wait_for(gate).uninterruptible())

    fiber.interrupt_unsafe(by=7, reason="first")
    fiber.interrupt_unsafe(by=7, reason="second")
    gate.set_result(1)
    exit = await fiber.exit()

    assert failed(Interrupt(by=7, reason="first"), Interrupt(by=7, reason="second")) == exit


@pytest.mark.spec("PD20", "FO12")
async def test_a_scope_close_hands_its_reason_to_every_interrupt() -> None:
    """The interruptor is the fiber that closes."""
    scope = Scope()
    fibers = [scope.fork(endless(), start_immediately=True) for _ in range(2)]

    @fb.effect
    async def closer() -> int:
        await scope.close(reason="maintenance")
        return running_fiber().id

    closed_by = await closer()
    exits = [fiber.poll() for fiber in fibers]

    assert [interrupted(by=closed_by, reason="maintenance")] * 2 == exits


@pytest.mark.spec("PD20")
async def test_a_scope_close_without_a_reason_says_scope_closed() -> None:
    """The reason where nobody gives one."""
    scope = Scope()
    fiber = scope.fork(endless(), start_immediately=True)

    await scope.close()

    (reason,) = cause_of(fiber.poll()).reasons
    assert isinstance(reason, Interrupt)
    assert reason.reason == "scope closed"


@pytest.mark.spec("PD20")
async def test_a_child_scope_hands_on_the_reason_of_the_close() -> None:
    """What sits in the parent's order is closed with the parent's reason."""
    scope = Scope()
    fiber = scope.fork_scope().fork(endless(), start_immediately=True)

    await scope.close(reason="maintenance")

    (reason,) = cause_of(fiber.poll()).reasons
    assert isinstance(reason, Interrupt)
    assert reason.reason == "maintenance"


@pytest.mark.spec("PD20", "SU6")
async def test_supervision_says_parent_ended() -> None:
    """The interruptor is the parent."""
    children = list[fb.Fiber[None, Never]]()

    @fb.effect
    async def parent() -> int:
        children.append(await endless().fork_child(start_immediately=True))
        return running_fiber().id

    parent_id = await parent()

    assert interrupted(by=parent_id, reason="parent ended") == children[0].poll()


@pytest.mark.spec("PD20")
async def test_an_interrupt_hands_on_its_reason() -> None:
    """As an effect; without a reason there is none."""
    fibers = [fb.run_fork(endless()), fb.run_fork(endless())]

    await fibers[0].interrupt(by=7, reason="enough")
    await fibers[1].interrupt(by=7)

    assert interrupted(by=7, reason="enough") == fibers[0].poll()
    assert interrupted(by=7, reason=None) == fibers[1].poll()


# ---- PD21: absent values, durations


@pytest.mark.spec("PD21")
async def test_poll_is_an_exit_or_none() -> None:
    """No Maybe here."""
    gate = new_gate()
    fiber = fb.run_fork(wait_for(gate))

    before = fiber.poll()
    gate.set_result(1)
    await fiber

    assert before is None
    assert fiber.poll() == Success(1)


@pytest.mark.spec("PD21")
async def test_an_absent_value_is_a_maybe_elsewhere(rt: fb.Runtime) -> None:
    """So that None can be a value: Some(None) is not Nothing."""
    value: object = await rt.run(Effect.succeed(None).timeout_option(1))

    assert value == Some(None)


@pytest.mark.spec("PD21")
async def test_a_sleep_takes_a_timedelta_or_seconds(clock: TestClock, rt: fb.Runtime) -> None:
    """An int is a number of seconds as well."""
    log = list[str]()

    def sleeper(name: str, duration: timedelta | float) -> Effect[None, Never]:
        return fb.sleep(duration).flat_map(lambda _: note(log, name))

    rt.run_fork(sleeper("timedelta", timedelta(milliseconds=500)))
    rt.run_fork(sleeper("int", 1))
    rt.run_fork(sleeper("float", 1.5))
    await rt.run(clock.adjust(timedelta(seconds=1.5)))

    assert log == ["timedelta", "int", "float"]


# ---- PD22: exits are data


@pytest.mark.spec("PD22")
async def test_an_exit_is_not_awaitable() -> None:
    """It is plain data: one value, or one cause."""
    exits: list[object] = [
        await Effect.succeed(1).exit(),
        await Effect.fail(Boom()).exit(),
    ]

    assert [type(exit) for exit in exits] == [Success, Failure]
    assert [isinstance(exit, Awaitable) for exit in exits] == [False, False]


@pytest.mark.spec("PD22", "FL23")
async def test_from_exit_gives_the_value_or_fails_with_the_cause() -> None:
    """An exit goes back into an effect."""
    boom = Boom()
    failure = failed(Fail(boom), Interrupt(by=7, reason=None))

    exits: list[object] = [
        await Effect.from_exit(Success(1)).exit(),
        await Effect.from_exit(failure).exit(),
    ]

    assert [Success(1), failure] == exits


def flat_mapped(exit: fb.Exit[int, Boom]) -> Effect[int, Boom]:
    """An exit out of flat_map."""
    return Effect.succeed(1).flat_map(lambda _: exit)


def caught(exit: fb.Exit[int, Boom]) -> Effect[int | None, Boom]:
    """An exit out of catch."""
    return failing(Boom()).catch(lambda _: exit)


def tag_caught(exit: fb.Exit[int, Boom]) -> Effect[int | None, Boom]:
    """An exit out of catch_tag."""
    return failing(Boom()).catch_tag(Boom, lambda _: exit)


def if_caught(exit: fb.Exit[int, Boom]) -> Effect[int | None, Boom]:
    """An exit out of catch_if."""
    return failing(Boom()).catch_if(lambda _: True, lambda _: exit)


def cause_caught(exit: fb.Exit[int, Boom]) -> Effect[int | None, Boom]:
    """An exit out of catch_cause."""
    return failing(Boom()).catch_cause(lambda _: exit)


def defect_caught(exit: fb.Exit[int, Boom]) -> Effect[int, Boom]:
    """An exit out of catch_defect."""
    return Effect.die(Boom()).catch_defect(lambda _: exit)


def timed_out(exit: fb.Exit[int, Boom]) -> Effect[int | None, Boom]:
    """An exit out of timeout_or_else."""
    return endless().timeout_or_else(0, lambda: exit)


EVERY_CALLBACK = pytest.mark.parametrize(
    "through",
    [flat_mapped, caught, tag_caught, if_caught, cause_caught, defect_caught, timed_out],
)


@pytest.mark.spec("PD22")
@EVERY_CALLBACK
async def test_a_callback_may_return_a_success_exit(
    through: Callable[[fb.Exit[int, Boom]], Effect[object, Boom]],
) -> None:
    """Its value is the effect's."""
    assert await through(Success(5)) == 5


@pytest.mark.spec("PD22")
@EVERY_CALLBACK
async def test_a_callback_may_return_a_failed_exit(
    through: Callable[[fb.Exit[int, Boom]], Effect[object, Boom]],
) -> None:
    """Its cause is the effect's."""
    boom = Boom("the exit's")

    exit = await through(failed(Fail(boom))).exit()

    assert failed(Fail(boom)) == exit


@pytest.mark.spec("PD22")
async def test_a_finalizer_callback_may_return_an_exit() -> None:
    """A success changes nothing, a failure counts like one of the finalizer."""
    boom = Boom()
    done: fb.Exit[None, Never] = Success(None)
    broken: fb.Exit[None, Never] = failed(Die(boom))

    exits: list[object] = [
        await Effect.succeed(5).on_exit(lambda _: done).exit(),
        await Effect.succeed(5).on_exit(lambda _: broken).exit(),
        await Effect.interrupt().on_interrupt(lambda _: done).exit(),
    ]

    assert exits[:2] == [Success(5), failed(Die(boom))]
    assert isinstance(exits[2], Failure)


@pytest.mark.spec("PD22")
async def test_effects_and_fibers_are_hashable() -> None:
    """Each is itself and no other."""
    effects = [Effect.succeed(1), Effect.sync(lambda: 1), endless()]
    fibers = [fb.run_fork(Effect.succeed(1)), fb.run_fork(Effect.succeed(1))]

    assert len(set[object](effects)) == 3
    assert len(set[object](fibers)) == 2


@pytest.mark.spec("PD22")
def test_equal_exits_have_equal_hashes() -> None:
    """Successes by their value, failures by their cause."""
    boom = Boom()
    pairs: list[tuple[object, object]] = [
        (Success(1), Success(1)),
        (failed(Fail(boom)), failed(Fail(boom))),
        (failed(Die(boom)), failed(Die(boom))),
        (interrupted(by=7, reason="enough"), interrupted(by=7, reason="enough")),
    ]

    assert [one == other for one, other in pairs] == [True] * 4
    assert [hash(one) == hash(other) for one, other in pairs] == [True] * 4


@pytest.mark.spec("PD22")
def test_an_exit_of_something_unhashable_is_unhashable() -> None:
    """Hashable where the content is."""
    with pytest.raises(TypeError):
        hash(Success([1]))
