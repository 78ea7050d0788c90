"""Probes VI: the startup, its bound for each step, and what follows a start."""

from __future__ import annotations

import asyncio
import logging
import pickle
import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from returns.result import Failure, Success

import fibers as fb
from fibers import Effect
from fibers.app import AppScope, Shutdown, Startup, StartupStepTimeoutError
from tests.probes.kit_f import (
    Boom,
    cause_of,
    endless,
    interruptors,
    new_gate,
    parked,
    turns,
    unhandled_failures,
)

pytestmark = pytest.mark.lifecycle

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from fibers.testing import TestClock


def step(log: list[str], name: str) -> tuple[str, Callable[[], Awaitable[Any]]]:
    """A step that writes its name."""

    async def run() -> None:
        log.append(name)

    return name, run


def hanging(gate: asyncio.Future[Any], name: str = "stuck") -> tuple[str, Any]:
    """A step that waits for the gate."""
    return name, lambda: gate


def raising(error: Exception, name: str = "broken") -> tuple[str, Any]:
    """A step that fails after a suspension."""

    async def run() -> None:
        await asyncio.sleep(0)
        raise error

    return name, run


def raising_at_once(error: Exception, name: str = "broken") -> tuple[str, Any]:
    """A step that is a plain function and raises."""

    def run() -> Any:
        raise error

    return name, run


def error_of(exit_: fb.Exit[Any, Any] | None) -> BaseException:
    """The one expected error of a failed exit."""
    (reason,) = cause_of(exit_).reasons
    assert isinstance(reason, fb.Fail)
    error: BaseException = reason.error
    return error


# ---- order and names


@pytest.mark.spec("VI1")
async def test_steps_run_in_the_order_given() -> None:
    """One after the other."""
    log = list[str]()

    await Startup([step(log, name) for name in ("c", "a", "b")]).run()

    assert log == ["c", "a", "b"]


@pytest.mark.spec("VI1")
async def test_a_step_begins_when_the_one_before_has_ended(
    clock: TestClock, rt: fb.Runtime
) -> None:
    """Not when it has begun."""
    log = list[str]()

    async def slow() -> None:
        await fb.sleep(5)
        log.append("slow")

    starting = rt.run_fork(Startup([("slow", slow), step(log, "next")]).run())
    await rt.run(clock.adjust(4.999))
    before = log.copy()
    await rt.run(clock.adjust(0.001))

    assert before == []
    assert log == ["slow", "next"]
    assert starting.poll() == Success(None)


@pytest.mark.spec("VI1", "PD18")
def test_two_steps_of_one_name_are_refused() -> None:
    """When the startup is made, before anything runs."""
    with pytest.raises(ValueError, match="names of their own: a twice"):
        Startup([step([], "a"), step([], "b"), step([], "a")])


@pytest.mark.spec("PD18")
def test_a_negative_bound_is_refused() -> None:
    with pytest.raises(ValueError, match="must not be negative"):
        Startup([], -1)


@pytest.mark.spec("VI1")
async def test_a_step_may_be_an_effect_and_sees_the_services_of_the_start() -> None:
    """The scope in context, say, in which it acquires."""
    log = list[str]()

    def acquiring() -> Effect[None]:
        return fb.add_finalizer(lambda _exit: Effect.sync(lambda: log.append("released")))

    async with fb.Scope() as scope:
        await scope.provide(Startup([("acquire", acquiring)]).run())
        while_open = log.copy()

    assert while_open == []
    assert log == ["released"]


# ---- the bound


@pytest.mark.spec("VI2")
async def test_a_step_that_never_resolves_fails_the_start_at_its_bound(
    clock: TestClock, rt: fb.Runtime
) -> None:
    """Pending a millisecond before."""
    log, gate = list[str](), new_gate()
    startup = Startup([step(log, "first"), hanging(gate), step(log, "later")], 1.5)

    starting = rt.run_fork(startup.run())
    await rt.run(clock.adjust(1.499))
    before = starting.poll()
    await rt.run(clock.adjust(0.001))

    assert before is None
    error = error_of(starting.poll())
    assert isinstance(error, StartupStepTimeoutError)
    assert str(error) == "stuck exceeded 1500 ms"
    assert (error.step, error.timeout) == ("stuck", timedelta(seconds=1.5))
    assert log == ["first"]


@pytest.mark.spec("VI2")
async def test_the_bound_is_sixty_seconds_unless_told_otherwise(
    clock: TestClock, rt: fb.Runtime
) -> None:
    starting = rt.run_fork(Startup([hanging(new_gate())]).run())
    await rt.run(clock.adjust(59.999))
    before = starting.poll()
    await rt.run(clock.adjust(0.001))

    assert before is None
    assert str(error_of(starting.poll())) == "stuck exceeded 60000 ms"


@pytest.mark.spec("VI2")
async def test_each_step_has_the_whole_bound(clock: TestClock, rt: fb.Runtime) -> None:
    """Three steps of 40 s are no reason to fail at 60."""

    async def slow() -> None:
        await fb.sleep(40)

    starting = rt.run_fork(Startup([("a", slow), ("b", slow), ("c", slow)]).run())
    await rt.run(clock.adjust(120))

    assert starting.poll() == Success(None)


@pytest.mark.spec("VI2")
async def test_a_step_that_holds_the_loop_beyond_its_bound_has_exceeded_it(
    clock: TestClock, rt: fb.Runtime
) -> None:
    """Though no timer could fire meanwhile."""

    async def blocking() -> None:
        clock._set(2_000_000_000)  # what the clock says after a call that took two seconds

    starting = rt.run_fork(Startup([("blocking", blocking)], 1).run())
    await rt.run(clock.adjust(0))

    assert str(error_of(starting.poll())) == "blocking exceeded 1000 ms"


@pytest.mark.spec("VI2")
async def test_an_abandoned_step_is_left_alone(clock: TestClock, rt: fb.Runtime) -> None:
    """Neither interrupted nor waited for: it goes on to its end."""
    log, gate = list[str](), new_gate()

    async def stuck() -> None:
        try:
            await gate
            log.append("went on")
        except BaseException:
            log.append("was cut")
            raise

    starting = rt.run_fork(Startup([("stuck", stuck)], 1).run())
    await rt.run(clock.adjust(1))
    rejected = starting.poll()
    gate.set_result(1)
    await turns()

    assert isinstance(rejected, Failure)
    assert log == ["went on"]


@pytest.mark.spec("VI5")
async def test_the_late_failure_of_an_abandoned_step_is_swallowed(
    clock: TestClock, rt: fb.Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither the hook for unhandled failures nor the loop hears of it."""
    gate = new_gate()
    told = list[Any]()
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: told.append(context))
    with unhandled_failures() as unhandled, caplog.at_level(logging.WARNING):
        starting = rt.run_fork(Startup([hanging(gate)], 1).run().exit())
        await rt.run(clock.adjust(1))
        gate.set_exception(Boom())
        await turns()

    assert isinstance(starting.poll(), Success)
    assert unhandled == []
    assert told == []
    assert caplog.records == []


# ---- failures


@pytest.mark.spec("VI3")
@pytest.mark.parametrize("broken", [raising, raising_at_once])
async def test_a_raising_step_rejects_with_the_same_object(
    broken: Callable[[Exception], tuple[str, Any]],
) -> None:
    """And later steps don't run."""
    log, error = list[str](), Boom()
    startup = Startup([step(log, "first"), broken(error), step(log, "later")])

    with pytest.raises(Boom) as told:
        await startup.run()

    assert told.value is error
    assert log == ["first"]


@pytest.mark.spec("VI3")
async def test_the_error_of_an_effect_that_is_a_step_is_the_same_object_too() -> None:
    error = Boom()

    with pytest.raises(Boom) as told:
        await Startup([("broken", lambda: Effect.fail(error))]).run()

    assert told.value is error


@pytest.mark.spec("VI4")
async def test_durations_are_kept_for_every_step_that_began(
    clock: TestClock, rt: fb.Runtime
) -> None:
    """The failing one included, the ones after it not."""

    async def slow() -> None:
        await fb.sleep(0.25)

    async def slow_and_broken() -> None:
        await fb.sleep(0.5)
        raise Boom

    startup = Startup([("slow", slow), ("broken", slow_and_broken), step([], "later")])
    starting = rt.run_fork(startup.run().exit())
    await rt.run(clock.adjust(1))

    assert isinstance(starting.poll(), Success)
    assert startup.durations_ms == {"slow": 250.0, "broken": 500.0}


@pytest.mark.spec("VI4")
async def test_a_step_that_was_abandoned_has_the_bound_as_its_duration(
    clock: TestClock, rt: fb.Runtime
) -> None:
    startup = Startup([hanging(new_gate())], 2)
    starting = rt.run_fork(startup.run().exit())
    await rt.run(clock.adjust(2))

    assert isinstance(starting.poll(), Success)
    assert startup.durations_ms == {"stuck": 2000.0}


@pytest.mark.spec("VI13", "VI4")
async def test_each_step_is_one_line_of_the_log(
    clock: TestClock, rt: fb.Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    """With its time, also where it failed."""

    async def slow() -> None:
        await fb.sleep(0.25)

    with caplog.at_level(logging.INFO, "fibers.app"):
        starting = rt.run_fork(Startup([("slow", slow), raising(Boom())]).run().exit())
        await rt.run(clock.adjust(1))

    assert isinstance(starting.poll(), Success)
    assert [record.getMessage() for record in caplog.records] == [
        "[startup] slow {ms: 250}",
        "[startup] broken {ms: 0, failed}",
    ]


@pytest.mark.spec("VI2")
def test_the_timeout_error_survives_pickling() -> None:
    """It may cross to another process."""
    error = pickle.loads(pickle.dumps(StartupStepTimeoutError("db.open", 0.001)))

    assert isinstance(error, StartupStepTimeoutError)
    assert (str(error), error.step) == ("db.open exceeded 1 ms", "db.open")


# ---- an interrupt of the start


@pytest.mark.spec("VI2", "WI1")
async def test_an_interrupt_of_the_start_interrupts_the_step_and_waits_for_it() -> None:
    """Not as at the bound: who interrupts wants all of it to end."""
    log, gate = list[str](), asyncio.Event()

    async def slow_to_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            log.append("cleaning")
            await gate.wait()
            log.append("clean")

    starting = fb.run_fork(Startup([("slow", slow_to_end), step(log, "later")]).run())
    interrupting = fb.run_fork(starting.interrupt(by=7))
    await turns()
    while_cleaning = (log.copy(), interrupting.poll())
    gate.set()
    await interrupting

    assert while_cleaning == (["cleaning"], None)
    assert log == ["cleaning", "clean"]
    assert interruptors(starting.poll()) == [7]


@pytest.mark.spec("VI2")
async def test_a_step_whose_own_first_segment_interrupts_the_start_is_not_left_alone() -> None:
    """The interrupt comes between the fork of the step and the wait for it."""
    log = list[str]()
    starting: fb.Fiber[None, Exception] | None = None

    @fb.effect
    async def rash() -> None:
        assert starting is not None
        starting.interrupt_unsafe(by=7)
        await parked(log, "step interrupted")

    async def begin() -> None:
        await asyncio.sleep(0)

    starting = fb.run_fork(Startup([("begin", begin), ("rash", rash)]).run())
    exit_ = await starting.exit()

    assert interruptors(exit_) == [7]
    assert log == ["step interrupted"]


# ---- together with the shutdown


def an_app(*steps: Any, **more: Any) -> tuple[AppScope, Shutdown, Startup, list[str]]:
    """An app scope, its shutdown, whose one step writes "disposed", and a startup."""
    log, scope = list[str](), AppScope()
    shutdown = Shutdown(scope, [step(log, "disposed")])
    return scope, shutdown, Startup(steps, 60, shutdown=shutdown, **more), log


@pytest.mark.spec("VI6")
async def test_a_rejected_start_is_followed_by_a_dispose() -> None:
    """It is over when the start fails, with the error of the step."""
    error = Boom()
    scope, _, startup, log = an_app(raising(error))
    occupant = scope.fork(endless(), start_immediately=True)

    with pytest.raises(Boom) as told:
        await startup.run()

    assert told.value is error
    assert log == ["disposed"]
    assert scope.state == "closed"
    assert occupant.poll() is not None


@pytest.mark.spec("VI6", "VI2")
async def test_a_start_that_took_too_long_is_followed_by_a_dispose(
    clock: TestClock, rt: fb.Runtime
) -> None:
    scope, _, startup, log = an_app(hanging(new_gate()))

    starting = rt.run_fork(startup.run())
    await rt.run(clock.adjust(60))

    assert isinstance(error_of(starting.poll()), StartupStepTimeoutError)
    assert log == ["disposed"]
    assert scope.state == "closed"


@pytest.mark.spec("VI6")
async def test_the_dispose_after_a_rejected_start_is_bounded(
    clock: TestClock, rt: fb.Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    """An explicit step that never ends costs the outer budget, and one warning."""
    scope, gate = AppScope(), new_gate()
    shutdown = Shutdown(scope, [("stuck", lambda: gate)])
    error = Boom()
    with caplog.at_level(logging.WARNING):
        starting = rt.run_fork(Startup([raising(error)], shutdown=shutdown).run())
        await rt.run(clock.adjust(4.999))
        before = starting.poll()
        await rt.run(clock.adjust(0.001))

    assert before is None
    assert error_of(starting.poll()) is error
    assert [r.getMessage() for r in caplog.records] == [
        "[startup] the teardown after the failed start is not over after 5 s; left"
    ]


@pytest.mark.spec("VI6")
async def test_a_start_that_succeeds_disposes_of_nothing() -> None:
    scope, shutdown, startup, log = an_app(step([], "fine"))

    await startup.run()

    assert (log, scope.state, shutdown.is_shutting_down) == ([], "empty", False)


@pytest.mark.spec("VI8")
@pytest.mark.parametrize("end", ["begin", "dispose"])
async def test_a_start_after_the_shutdown_began_fails_at_once(end: str) -> None:
    """Its error says what to do, and no step runs."""
    ran = list[str]()
    _, shutdown, startup, _ = an_app(step(ran, "step"))
    if end == "begin":
        shutdown.begin()
    else:
        await shutdown.dispose()

    with pytest.raises(RuntimeError, match=r"the shutdown has begun.*make a new scope"):
        await startup.run()

    assert ran == []
    assert startup.durations_ms == {}


@pytest.mark.spec("VI8")
async def test_a_shutdown_during_a_step_keeps_the_later_ones_from_running() -> None:
    ran, gate = list[str](), new_gate()
    _, shutdown, startup, _ = an_app(hanging(gate), step(ran, "later"))
    starting = fb.run_fork(startup.run())
    await turns()
    await shutdown.dispose()
    gate.set_result(1)

    exit_ = await starting.exit()

    assert re.match("the shutdown has begun", str(error_of(exit_)))
    assert ran == []


# ---- what follows a start


@pytest.mark.spec("VI7")
async def test_services_start_when_the_housekeeping_has_ended() -> None:
    """The start itself waits for neither."""
    log, gate = list[str](), new_gate()
    _, shutdown, startup, _ = an_app(
        step(log, "step"), housekeeping=[hanging(gate, "sweep")], services=[step(log, "ticker")]
    )

    await startup.run()
    await turns()
    before = log.copy()
    gate.set_result(1)
    await turns()

    assert before == ["step"]
    assert log == ["step", "ticker"]
    await shutdown.dispose()


@pytest.mark.spec("VI7")
@pytest.mark.parametrize("broken", [raising, raising_at_once])
async def test_services_start_though_the_housekeeping_failed(
    broken: Callable[[Exception], tuple[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    """The failure is one warning, and the next housekeeping step runs too."""
    log = list[str]()
    _, shutdown, startup, _ = an_app(
        housekeeping=[broken(Boom("a torn file")), step(log, "next")],
        services=[step(log, "ticker")],
    )

    with caplog.at_level(logging.WARNING):
        await startup.run()
        await turns()

    assert log == ["next", "ticker"]
    (record,) = caplog.records
    assert "[startup] housekeeping broken failed" in record.getMessage()
    assert "a torn file" in record.getMessage()
    await shutdown.dispose()


@pytest.mark.spec("VI7")
async def test_a_service_that_fails_to_start_keeps_no_other_from_starting() -> None:
    log = list[str]()
    _, shutdown, startup, _ = an_app(services=[raising_at_once(Boom()), step(log, "ticker")])

    await startup.run()
    await turns()

    assert log == ["ticker"]
    await shutdown.dispose()


@pytest.mark.spec("VI7")
async def test_a_service_may_be_started_by_a_plain_function() -> None:
    log = list[str]()
    _, shutdown, startup, _ = an_app(services=[("ticker", lambda: log.append("ticker"))])

    await startup.run()
    await turns()

    assert log == ["ticker"]
    await shutdown.dispose()


@pytest.mark.spec("VI7")
async def test_after_a_dispose_during_the_housekeeping_the_services_never_start() -> None:
    """Also where the housekeeping swallows its interrupt and ends as if nothing was."""
    log = list[str]()

    async def stubborn() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            log.append("swallowed")

    _, shutdown, startup, _ = an_app(
        housekeeping=[("sweep", stubborn)], services=[step(log, "ticker")]
    )
    await startup.run()
    await turns()

    await shutdown.dispose()
    await turns()

    assert log == ["swallowed"]


@pytest.mark.spec("VI7")
async def test_after_the_latch_alone_the_services_never_start() -> None:
    """``begin`` closes no scope, so the housekeeping goes on to its end."""
    log, gate = list[str](), new_gate()
    _, shutdown, startup, _ = an_app(
        housekeeping=[hanging(gate, "sweep")], services=[step(log, "ticker")]
    )
    await startup.run()
    await turns()

    shutdown.begin()
    gate.set_result(1)
    await turns()

    assert log == []
    await shutdown.dispose()


@pytest.mark.spec("VI7")
async def test_nothing_follows_a_rejected_start() -> None:
    log = list[str]()
    _, _, startup, _ = an_app(
        raising(Boom()), housekeeping=[step(log, "sweep")], services=[step(log, "ticker")]
    )

    with pytest.raises(Boom):
        await startup.run()
    await turns()

    assert log == []


@pytest.mark.spec("PD18")
def test_services_without_a_shutdown_are_refused() -> None:
    """Nobody would end them."""
    with pytest.raises(ValueError, match="give shutdown= too"):
        Startup([], services=[step([], "ticker")])
