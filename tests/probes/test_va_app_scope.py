"""Probes VA: the app scope, its bounded close, and the order of a shutdown."""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from typing import TYPE_CHECKING, Any, Never

import pytest
from returns.result import Success

import fibers as fb
from fibers import Effect, Interrupt, Scope
from fibers.app import AppScope, Shutdown, close_bounded
from tests.probes.kit_f import (
    Boom,
    cause_of,
    endless,
    interruptors,
    new_gate,
    note,
    note_start_and_end,
    parked,
    turns,
    wait_for,
)

pytestmark = pytest.mark.lifecycle

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from fibers.testing import TestClock

CLOSE_BOUND_SECONDS = 2.0
OUTER_BUDGET_SECONDS = 5.0


def step(log: list[str], name: str) -> tuple[str, Callable[[], Awaitable[Any]]]:
    """A teardown step that writes its name."""

    async def run() -> None:
        log.append(name)

    return name, run


def wedged(gate: asyncio.Future[int], log: list[str]) -> Effect[None, Never]:
    """An occupant that no interrupt can end before the gate opens."""

    @fb.effect
    async def wedged_occupant() -> None:
        await gate
        log.append("occupant finished")

    return wedged_occupant().uninterruptible()


# ---- the app scope


@pytest.mark.spec("PD20")
async def test_the_app_scope_closes_with_the_reason_system() -> None:
    """An occupant can tell a shutdown from a stop."""
    scope = AppScope()
    fiber = scope.fork(endless(), start_immediately=True)

    await scope.close()

    (reason,) = cause_of(fiber.poll()).reasons
    assert isinstance(reason, Interrupt)
    assert reason.reason == "system"


@pytest.mark.spec("PD20", "VA1")
async def test_a_bounded_close_of_the_app_scope_has_the_reason_system_too() -> None:
    """As it is closed at a shutdown."""
    scope = AppScope()
    fiber = scope.fork(endless(), start_immediately=True)

    await close_bounded(scope)

    (reason,) = cause_of(fiber.poll()).reasons
    assert isinstance(reason, Interrupt)
    assert reason.reason == "system"


@pytest.mark.spec("VF7", "SC2")
async def test_the_app_scope_closes_its_occupants_in_parallel(
    clock: TestClock, rt: fb.Runtime
) -> None:
    """Two finalizers of 1 s each take 1 s."""
    log, scope = list[str](), AppScope()

    def occupant(name: str) -> Effect[None, Never]:
        return endless().on_interrupt(lambda _: note_start_and_end(log, name, 1.0))

    for name in ("a", "b"):
        await rt.run(occupant(name).fork_in(scope, start_immediately=True))

    closing = rt.run_fork(scope.close())
    await rt.run(clock.adjust(1.0))

    assert closing.poll() == Success(None)
    assert sorted(log[:2]) == ["a-start", "b-start"]
    assert sorted(log[2:]) == ["a-end", "b-end"]


@pytest.mark.spec("VA1")
def test_the_app_scope_is_a_scope() -> None:
    """Whatever takes a scope takes it."""
    assert isinstance(AppScope(), Scope)


# ---- the bounded close


@pytest.mark.spec("VA3")
async def test_a_close_in_time_is_true() -> None:
    """All occupants have been interrupted and finalized."""
    log, scope = list[str](), AppScope()
    scope.fork(parked(log, "occupant"), start_immediately=True)

    closed = await close_bounded(scope)

    assert closed is True
    assert log == ["occupant"]
    assert scope.state == "closed"


@pytest.mark.spec("VA3")
async def test_a_bounded_close_of_a_closed_scope_is_true() -> None:
    """There is nothing to wait for."""
    scope = AppScope()
    await scope.close()

    assert await close_bounded(scope) is True


@pytest.mark.spec("VA3")
async def test_a_bounded_close_ends_at_its_default_bound(clock: TestClock, rt: fb.Runtime) -> None:
    """A wedged occupant: 2 s later the result is False."""
    scope, gate = AppScope(), new_gate()
    await rt.run(wedged(gate, []).fork_in(scope, start_immediately=True))

    closing = rt.run_fork(Effect.promise(lambda: close_bounded(scope)))
    await rt.run(clock.adjust(1.999))
    before_the_bound = closing.poll()
    await rt.run(clock.adjust(0.001))
    at_the_bound = closing.poll()
    gate.set_result(1)
    await turns()

    assert before_the_bound is None
    assert at_the_bound == Success(False)


@pytest.mark.spec("VA3")
async def test_the_bound_of_a_close_can_be_given(clock: TestClock, rt: fb.Runtime) -> None:
    """In seconds."""
    scope, gate = AppScope(), new_gate()
    await rt.run(wedged(gate, []).fork_in(scope, start_immediately=True))

    closing = rt.run_fork(Effect.promise(lambda: close_bounded(scope, 0.5)))
    await rt.run(clock.adjust(0.5))
    at_the_bound = closing.poll()
    gate.set_result(1)
    await turns()

    assert at_the_bound == Success(False)


@pytest.mark.spec("VA3")
async def test_a_bounded_close_ends_at_its_bound_in_real_time() -> None:
    """From a plain task: 20 ms of it."""
    scope, gate = AppScope(), new_gate()
    scope.fork(wedged(gate, []), start_immediately=True)

    closed = await close_bounded(scope, 0.020)
    gate.set_result(1)
    await turns()

    assert closed is False


@pytest.mark.spec("VA3")
async def test_an_exceeded_bound_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    """No more, and nothing above a warning."""
    scope, gate = AppScope(), new_gate()
    for _ in range(2):
        scope.fork(wedged(gate, []), start_immediately=True)

    with caplog.at_level(logging.WARNING):
        await close_bounded(scope, 0.020)
        gate.set_result(1)
        await turns()

    assert [record.levelno for record in caplog.records] == [logging.WARNING]


@pytest.mark.spec("VA3")
async def test_the_warning_names_the_occupants_still_alive(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """And where they wait: this file."""
    scope, gate = AppScope(), new_gate()
    scope.fork(wedged(gate, []), start_immediately=True)

    with caplog.at_level(logging.WARNING):
        await close_bounded(scope, 0.020)
        gate.set_result(1)
        await turns()

    assert "wedged_occupant" in caplog.text or "test_va_app_scope.py" in caplog.text


@pytest.mark.spec("VA3")
async def test_a_wedged_occupant_keeps_running() -> None:
    """The bound abandons the wait, not the work."""
    log, scope, gate = list[str](), AppScope(), new_gate()
    fiber = scope.fork(wedged(gate, log), start_immediately=True)

    await close_bounded(scope, 0.020)
    after_the_bound = fiber.poll()
    gate.set_result(1)
    exit = await fiber.exit()

    assert after_the_bound is None
    assert log == ["occupant finished"]
    assert cause_of(exit).has_interrupts_only


@pytest.mark.spec("VA3", "SO7")
async def test_the_finalizer_of_a_late_occupant_runs_to_its_end() -> None:
    """The bound does not cut it."""
    log, scope, gate = list[str](), AppScope(), new_gate()
    slow = wait_for(gate).flat_map(lambda _: note(log, "finalized"))
    fiber = scope.fork(endless().on_interrupt(lambda _: slow), start_immediately=True)

    await close_bounded(scope, 0.020)
    before = log.copy()
    gate.set_result(1)
    await fiber.exit()

    assert before == []
    assert log == ["finalized"]


@pytest.mark.spec("VA3")
async def test_after_an_exceeded_bound_the_scope_is_closed() -> None:
    """Nothing new starts in it."""
    log, scope, gate = list[str](), AppScope(), new_gate()
    scope.fork(wedged(gate, []), start_immediately=True)

    await close_bounded(scope, 0.020)
    late = scope.fork(note(log, "late"))
    await turns()
    gate.set_result(1)
    await turns()

    assert scope.state == "closed"
    assert cause_of(late.poll()).has_interrupts_only
    assert log == []


@pytest.mark.spec("VA3")
async def test_a_bounded_close_does_not_raise_what_a_finalizer_raises() -> None:
    """It was closed in time all the same."""
    scope = AppScope()
    await scope.add_finalizer(lambda _: Effect.die(Boom()))

    assert await close_bounded(scope) is True


@pytest.mark.spec("VA3", "VA4")
async def test_a_second_bounded_close_returns_at_once(clock: TestClock, rt: fb.Runtime) -> None:
    """Though an occupant is still wedged: the scope counts as closed before."""
    scope, gate = AppScope(), new_gate()
    await rt.run(wedged(gate, []).fork_in(scope, start_immediately=True))
    first = rt.run_fork(Effect.promise(lambda: close_bounded(scope, 0.5)))
    await rt.run(clock.adjust(0.5))
    await first

    second = rt.run_fork(Effect.promise(lambda: close_bounded(scope, 0.5)))
    await rt.run(clock.adjust(0))
    at_once = second.poll()
    gate.set_result(1)
    await turns()

    assert at_once == Success(True)


# ---- the shutdown


@pytest.mark.spec("VA1")
async def test_dispose_does_its_four_parts_in_order() -> None:
    """The latch, the scope, the steps, the runtime."""
    log, scope, runtime = list[str](), AppScope(), fb.Runtime()
    shutdown = Shutdown(scope, [step(log, "first"), step(log, "second")], runtime=runtime)

    def occupant_ends(_: frozenset[int]) -> Effect[None, Never]:
        return Effect.sync(lambda: log.append(f"scope, latched: {shutdown.is_shutting_down}"))

    scope.fork(endless().on_interrupt(occupant_ends), start_immediately=True)
    runtime.run_fork(parked(log, "runtime"))
    await shutdown.dispose()

    assert log == ["scope, latched: True", "first", "second", "runtime"]


@pytest.mark.spec("VA1")
async def test_the_first_step_starts_after_the_occupants_have_ended() -> None:
    """Their asynchronous finalizers included."""
    log, scope = list[str](), AppScope()
    shutdown = Shutdown(scope, [step(log, "step")], runtime=fb.Runtime())
    slow = Effect.yield_now().flat_map(lambda _: Effect.yield_now())
    occupant = endless().on_interrupt(lambda _: slow.flat_map(lambda _: note(log, "occupant")))
    scope.fork(occupant, start_immediately=True)

    await shutdown.dispose()

    assert log == ["occupant", "step"]


@pytest.mark.spec("VA1")
async def test_steps_run_one_after_the_other() -> None:
    """The second waits for the first."""
    log, gate = list[str](), new_gate()

    async def slow() -> None:
        log.append("first start")
        await gate
        log.append("first end")

    steps = [("first", slow), step(log, "second")]
    disposing = asyncio.create_task(Shutdown(AppScope(), steps, runtime=fb.Runtime()).dispose())
    await turns()
    gate.set_result(1)
    await disposing

    assert log == ["first start", "first end", "second"]


@pytest.mark.spec("VA1")
async def test_begin_latches() -> None:
    """Once begun it stays so; a second begin changes nothing."""
    shutdown = Shutdown(AppScope(), [], runtime=fb.Runtime())

    before = shutdown.is_shutting_down
    shutdown.begin()
    shutdown.begin()

    assert (before, shutdown.is_shutting_down) == (False, True)


@pytest.mark.spec("VA1")
async def test_begin_closes_nothing() -> None:
    """It only says that the end has come."""
    scope, runtime = AppScope(), fb.Runtime()
    fiber = scope.fork(endless(), start_immediately=True)

    Shutdown(scope, [], runtime=runtime).begin()
    await turns()

    assert fiber.poll() is None
    assert await runtime.run(Effect.succeed(5)) == 5
    await scope.close()


@pytest.mark.slow
@pytest.mark.spec("VA4")
async def test_a_dispose_with_a_wedged_occupant_stays_under_the_outer_budget() -> None:
    """Real time: the bound of the close and hardly more."""
    log, scope, runtime, gate = list[str](), AppScope(), fb.Runtime(), new_gate()
    shutdown = Shutdown(scope, [step(log, "step")], runtime=runtime)
    await runtime.run(wedged(gate, log).fork_in(scope, start_immediately=True))

    started = time.monotonic()
    await shutdown.dispose()
    seconds = time.monotonic() - started
    after_dispose = log.copy()
    gate.set_result(1)
    await turns()

    assert CLOSE_BOUND_SECONDS <= seconds < OUTER_BUDGET_SECONDS
    assert after_dispose == ["step"]
    assert log == ["step", "occupant finished"]


@pytest.mark.slow
@pytest.mark.spec("VA4")
async def test_after_an_exceeded_bound_the_dispose_of_the_runtime_is_fast() -> None:
    """Real time: the scope is not waited for a second time."""
    scope, runtime, gate = AppScope(), fb.Runtime(), new_gate()
    ends = list[float]()

    async def last_step() -> None:
        ends.append(time.monotonic())

    shutdown = Shutdown(scope, [("last", last_step)], runtime=runtime)
    await runtime.run(wedged(gate, []).fork_in(scope, start_immediately=True))

    await shutdown.dispose()
    ends.append(time.monotonic())
    gate.set_result(1)
    await turns()

    assert ends[1] - ends[0] < 1.0


@pytest.mark.spec("VA5")
def test_the_bounds_fit_into_the_outer_budget() -> None:
    """2 s for the scope and 2 s for the runtime leave a second of the 5 s."""
    close_bound = inspect.signature(close_bounded).parameters["timeout"].default
    outer_budget = inspect.signature(fb.run_main).parameters["budget"].default

    assert (close_bound, outer_budget) == (CLOSE_BOUND_SECONDS, OUTER_BUDGET_SECONDS)
    assert close_bound + close_bound < outer_budget


@pytest.mark.spec("VA8")
async def test_concurrent_disposes_share_one_teardown() -> None:
    """Each step runs once."""
    log = list[str]()
    shutdown = Shutdown(AppScope(), [step(log, "step")], runtime=fb.Runtime())

    await asyncio.gather(shutdown.dispose(), shutdown.dispose(), shutdown.dispose())

    assert log == ["step"]


@pytest.mark.spec("VA8")
async def test_every_dispose_returns_after_the_teardown() -> None:
    """Who came second waits as long as who came first."""
    log, gate = list[str](), new_gate()

    async def slow() -> None:
        await gate
        log.append("step done")

    shutdown = Shutdown(AppScope(), [("slow", slow)], runtime=fb.Runtime())

    async def dispose(name: str) -> None:
        await shutdown.dispose()
        log.append(f"{name} returned")

    callers = [asyncio.create_task(dispose(name)) for name in ("first", "second")]
    await turns()
    gate.set_result(1)
    await asyncio.gather(*callers)

    assert log[0] == "step done"
    assert sorted(log[1:]) == ["first returned", "second returned"]


@pytest.mark.spec("VA8")
async def test_a_later_dispose_runs_nothing_again() -> None:
    """It returns: all has been done."""
    log = list[str]()
    shutdown = Shutdown(AppScope(), [step(log, "step")], runtime=fb.Runtime())

    await shutdown.dispose()
    await shutdown.dispose()

    assert log == ["step"]


async def as_it_is(dispose: Callable[[], Awaitable[None]]) -> None:
    await dispose()


async def in_a_task(dispose: Callable[[], Awaitable[None]]) -> None:
    await asyncio.gather(dispose(), asyncio.sleep(0))


async def in_a_child(dispose: Callable[[], Awaitable[None]]) -> None:
    child = await Effect.promise(dispose).fork_child()
    await child


async def under_a_timeout(dispose: Callable[[], Awaitable[None]]) -> None:
    await Effect.promise(dispose).timeout(10)


async def in_a_race(dispose: Callable[[], Awaitable[None]]) -> None:
    await fb.race(Effect.never(), Effect.promise(dispose))


@pytest.mark.parametrize(
    "ask", [as_it_is, in_a_task, in_a_child, under_a_timeout, in_a_race], ids=lambda f: f.__name__
)
@pytest.mark.parametrize("part", ["dispose", "shutdown"])
@pytest.mark.spec("VA8")
async def test_a_step_that_asks_for_the_teardown_does_not_begin_another(
    ask: Callable[[Callable[[], Awaitable[None]]], Awaitable[None]], part: str
) -> None:
    """Nor does it wait for itself. A server whose stop ends the application, say."""
    log, made = list[str](), list[Shutdown]()

    async def asking() -> None:
        log.append("asks")
        await ask(getattr(made[0], part))
        log.append("answered")

    made.append(Shutdown(AppScope(), [("asking", asking), step(log, "after")]))
    async with asyncio.timeout(5):
        await made[0].dispose()

    assert log == ["asks", "answered", "after"]


@pytest.mark.spec("VA8")
async def test_a_cancelled_caller_of_dispose_does_not_stop_the_teardown() -> None:
    """The others still return after all of it."""
    log, gate = list[str](), new_gate()

    async def slow() -> None:
        await gate
        log.append("first step")

    shutdown = Shutdown(
        AppScope(), [("slow", slow), step(log, "second step")], runtime=fb.Runtime()
    )
    impatient = asyncio.create_task(shutdown.dispose())
    patient = asyncio.create_task(shutdown.dispose())
    await turns()
    impatient.cancel()
    await turns()
    gate.set_result(1)
    await patient
    await asyncio.wait([impatient])

    assert log == ["first step", "second step"]


@pytest.mark.spec("VA10")
async def test_shutdown_leaves_the_scope_open() -> None:
    """The lighter call: occupants live on."""
    scope = AppScope()
    fiber = scope.fork(endless(), start_immediately=True)

    await Shutdown(scope, [], runtime=fb.Runtime()).shutdown()
    alive = fiber.poll()
    state = scope.state
    await scope.close()

    assert alive is None
    assert state == "open"


@pytest.mark.spec("VA10")
async def test_shutdown_leaves_the_runtime_usable() -> None:
    """Runs go on."""
    runtime = fb.Runtime()

    await Shutdown(AppScope(), [], runtime=runtime).shutdown()

    assert await runtime.run(Effect.succeed(5)) == 5


@pytest.mark.spec("VA10", "VA1")
async def test_a_dispose_after_a_shutdown_closes_the_scope() -> None:
    """The lighter call does not stand for the whole."""
    scope = AppScope()
    fiber = scope.fork(endless(), start_immediately=True)
    shutdown = Shutdown(scope, [], runtime=fb.Runtime())

    await shutdown.shutdown()
    await shutdown.dispose()

    assert scope.state == "closed"
    assert len(interruptors(fiber.poll())) == 1


@pytest.mark.spec("VA12")
async def test_the_runtime_is_usable_during_the_last_step() -> None:
    """A flush can still run its effects."""
    runtime, values = fb.Runtime(), list[int]()

    async def flush() -> None:
        values.append(await runtime.run(Effect.yield_now().map(lambda _: 5)))

    await Shutdown(AppScope(), [("flush", flush)], runtime=runtime).dispose()

    assert values == [5]


@pytest.mark.spec("VA12", "LY4")
async def test_the_runtime_is_dead_after_dispose() -> None:
    """A run fails, and says why."""
    runtime = fb.Runtime()

    await Shutdown(AppScope(), [], runtime=runtime).dispose()

    with pytest.raises(Exception, match="disposed"):
        await runtime.run(Effect.succeed(5))
