"""Probes VF: what the engine above relies on in the fiber runtime."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from typing import TYPE_CHECKING, Never

import pytest
from returns.result import Failure, Success

import fibers as fb
from fibers import Cause, Die, Effect, Fail, Fiber, Scope
from tests.probes.kit_d import (
    Boom,
    Defect,
    at_gate,
    cause_of,
    interrupted_by,
    loop_errors,
    loop_turns,
    new_gate,
    parked,
    say,
    settle,
    slow_farewell,
    steps,
    throwing,
    unhandled_failures,
)

pytestmark = pytest.mark.lifecycle

if TYPE_CHECKING:
    from fibers.testing import TestClock

LOGGER = logging.getLogger("probes.supervisor")


def supervise(processing: asyncio.Future[int], log: list[str]) -> Effect[object, Never]:
    """Wait for work that somebody else drives; a defect of it becomes a warning."""
    return (
        Effect.promise(lambda: processing)
        .on_interrupt(lambda _: say(log, "stopped"))
        .catch_defect(lambda defect: Effect.sync(lambda: LOGGER.warning("defect: %r", defect)))
    )


# ---- interrupting a fiber that waits on a promise


@pytest.mark.spec("VF1")
async def test_an_interrupt_neither_settles_nor_cancels_the_future_waited_for() -> None:
    """The fiber unwinds; the future belongs to somebody else."""
    log: list[str] = []
    gate = new_gate()
    fiber = fb.run_fork(at_gate(gate).on_interrupt(lambda _: say(log, "unwound")))

    await fiber.interrupt(by=5)

    assert log == ["unwound"]
    assert interrupted_by(fiber.poll()) == [5]
    assert not gate.done()


@pytest.mark.spec("VF1")
async def test_a_body_that_waits_through_promise_leaves_the_future_alone_too() -> None:
    """Its `finally` has run; whoever else waits for the future still gets its result."""
    log: list[str] = []
    gate = new_gate()

    @fb.effect
    async def body() -> None:
        try:
            await Effect.promise(lambda: gate)
        finally:
            log.append("finally")

    fiber = fb.run_fork(body())
    await fiber.interrupt(by=5)
    gate.set_result(7)

    assert log == ["finally"]
    assert await gate == 7


@pytest.mark.spec("VF1")
async def test_an_interrupt_leaves_a_task_waited_for_through_promise_running() -> None:
    """The interrupt does not wait for it either."""
    release = asyncio.Event()

    async def work() -> int:
        await release.wait()
        return 7

    task = asyncio.create_task(work())
    fiber = fb.run_fork(Effect.promise(lambda: task))
    await fiber.interrupt()
    requests = task.cancelling()
    release.set()

    assert requests == 0
    assert await task == 7


@pytest.mark.spec("VF2")
async def test_interrupting_and_awaiting_returns_after_the_asynchronous_finalizer(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """Begin, end, then the awaiter."""
    log: list[str] = []
    farewell = steps(say(log, "finalizer-start"), fb.sleep(0.05), say(log, "finalizer-end"))
    fiber = rt.run_fork(at_gate(new_gate()).on_interrupt(lambda _: farewell))

    rt.run_fork(steps(fiber.interrupt(), say(log, "awaiter")))
    await rt.run(clock.adjust(0.05))

    assert log == ["finalizer-start", "finalizer-end", "awaiter"]


@pytest.mark.spec("VF2")
async def test_closing_the_scope_returns_after_the_asynchronous_finalizer() -> None:
    """The finalizer is a coroutine that waits for the work to wind down."""
    log: list[str] = []
    scope = Scope("parallel")
    wound_down = new_gate()

    async def stop_and_wait() -> None:
        log.append("finalizer-start")
        await wound_down
        log.append("finalizer-end")

    supervisor = at_gate(new_gate()).on_interrupt(lambda _: Effect.promise(stop_and_wait))
    scope.fork(supervisor, start_immediately=True)

    closing = fb.run_fork(steps(scope.close(), say(log, "closed")))
    await Effect.yield_now()
    wound_down.set_result(0)
    await closing

    assert log == ["finalizer-start", "finalizer-end", "closed"]


@pytest.mark.spec("VF3")
async def test_an_uninterruptible_finalizer_survives_a_second_interrupt() -> None:
    """It runs to its end, once."""
    log: list[str] = []
    gate = new_gate()
    farewell = steps(say(log, "finalizer-start"), at_gate(gate), say(log, "finalizer-end"))
    fiber = fb.run_fork(parked(farewell.uninterruptible()))

    fiber.interrupt_unsafe(by=5)
    fiber.interrupt_unsafe(by=6)
    log.append(f"poll {fiber.poll()}")
    gate.set_result(0)
    exit = await fiber.exit()

    assert log == ["finalizer-start", "poll None", "finalizer-end"]
    assert interrupted_by(exit) == [5, 6]


@pytest.mark.spec("VF3")
async def test_an_uninterruptible_finalizer_survives_the_cancelling_of_its_awaiter() -> None:
    """The task that waits is cancelled; the finalizer is not."""
    log: list[str] = []
    gate = new_gate()
    farewell = steps(say(log, "finalizer-start"), at_gate(gate), say(log, "finalizer-end"))
    fiber = fb.run_fork(parked(farewell.uninterruptible()))

    async def stop_and_wait() -> None:
        await fiber.interrupt()

    awaiter = asyncio.create_task(stop_and_wait())
    await asyncio.sleep(0)
    awaiter.cancel()
    await asyncio.wait([awaiter])
    log.append(f"awaiter cancelled {awaiter.cancelled()}, poll {fiber.poll()}")
    gate.set_result(0)
    await fiber.exit()

    assert log == [
        "finalizer-start",
        "awaiter cancelled True, poll None",
        "finalizer-end",
    ]


@pytest.mark.spec("VF3")
async def test_a_coroutine_finalizer_survives_a_second_interrupt_and_a_cancelled_awaiter() -> None:
    """The same for a coroutine behind Effect.promise, with both at once."""
    log: list[str] = []
    gate = new_gate()

    async def wind_down() -> None:
        log.append("finalizer-start")
        await gate
        log.append("finalizer-end")

    farewell = Effect.promise(wind_down).uninterruptible()
    fiber = fb.run_fork(parked(farewell))

    async def wait_for_it() -> None:
        await fiber

    awaiter = asyncio.create_task(wait_for_it())
    await asyncio.sleep(0)
    fiber.interrupt_unsafe(by=5)
    fiber.interrupt_unsafe(by=6)
    awaiter.cancel()
    await asyncio.wait([awaiter])
    log.append(f"awaiter cancelled {awaiter.cancelled()}, future cancelled {gate.cancelled()}")
    gate.set_result(0)
    await fiber.exit()

    assert log == [
        "finalizer-start",
        "awaiter cancelled True, future cancelled False",
        "finalizer-end",
    ]


# ---- immediate starts


@pytest.mark.spec("VF4")
async def test_an_immediate_fork_runs_to_its_first_suspension_before_fork_returns() -> None:
    """A plain call, as from a callback."""
    log: list[str] = []
    scope = Scope()
    gate = new_gate()
    work = steps(say(log, "first part"), at_gate(gate), say(log, "second part"))

    fiber = scope.fork(work, start_immediately=True)
    log.append("forked")
    gate.set_result(0)
    await fiber

    assert log == ["first part", "forked", "second part"]


@pytest.mark.spec("VF4")
async def test_an_immediate_fork_of_a_body_runs_to_its_first_suspension() -> None:
    """Through every await that does not suspend."""
    log: list[str] = []
    scope = Scope()
    gate = new_gate()

    async def helper() -> None:
        log.append("helper")

    @fb.effect
    async def body() -> None:
        log.append("started")
        await helper()
        await say(log, "effect")
        await gate
        log.append("resumed")

    fiber = await body().fork_in(scope, start_immediately=True)
    log.append("forked")
    gate.set_result(0)
    await fiber

    assert log == ["started", "helper", "effect", "forked", "resumed"]


@pytest.mark.spec("VF4")
async def test_an_immediate_fork_works_from_a_synchronous_callback() -> None:
    """No fiber and no coroutine around the call."""
    log: list[str] = []
    scope = Scope()
    called = new_gate()

    def callback() -> None:
        scope.fork(steps(say(log, "first part"), Effect.never()), start_immediately=True)
        log.append("forked")
        called.set_result(0)

    asyncio.get_running_loop().call_soon(callback)
    await called
    await scope.close()

    assert log == ["first part", "forked"]


@pytest.mark.spec("VF5")
async def test_an_immediate_fork_into_a_closed_scope_starts_and_runs_its_finalizer() -> None:
    """Fork does not raise; the fiber's exit is the interrupt."""
    log: list[str] = []
    scope = Scope("parallel")
    await scope.close()

    def processing() -> asyncio.Future[int]:
        log.append("body-started")
        return new_gate()

    fiber = scope.fork(
        Effect.promise(processing).on_interrupt(lambda _: say(log, "interrupted")),
        start_immediately=True,
    )
    exit = fiber.poll()

    assert log == ["body-started", "interrupted"]
    assert cause_of(exit).has_interrupts_only


# ---- scopes


@pytest.mark.spec("VF6")
@pytest.mark.parametrize("start_immediately", [False, True], ids=["deferred", "immediate"])
async def test_fifty_fibers_that_ended_leave_no_finalizer(start_immediately: bool) -> None:
    """Each one takes its own away."""
    scope = Scope("parallel")
    gate = new_gate()
    fibers = [scope.fork(at_gate(gate), start_immediately=start_immediately) for _ in range(50)]

    during = scope.finalizer_count
    gate.set_result(0)
    await Fiber.await_all(fibers)

    assert during == 50
    assert (scope.finalizer_count, scope.state) == (0, "empty")


@pytest.mark.spec("VF6")
async def test_fifty_fibers_one_after_the_other_leave_no_finalizer() -> None:
    """A long-lived scope doesn't fill up, whether its fibers suspend or not."""
    scope = Scope("parallel")

    @fb.effect
    async def body() -> None:
        await Effect.yield_now()

    counts: list[int] = []
    for _ in range(50):
        await scope.fork(body())
        await scope.fork(Effect.succeed(None), start_immediately=True)
        counts.append(scope.finalizer_count)

    assert counts == [0] * 50


@pytest.mark.spec("VF7")
async def test_closing_a_parallel_scope_interrupts_all_its_fibers_at_once(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """Last forked first; two finalizers of 50 ms are over 50 ms after the close began."""
    log: list[str] = []
    scope = Scope("parallel")
    for name in ("1", "2"):
        await rt.run(slow_farewell(log, name, 0.050).fork_in(scope, start_immediately=True))

    closing = rt.run_fork(steps(scope.close(), say(log, "closed")))
    await rt.run(clock.adjust(0.040))
    log.append(f"poll {closing.poll()}")
    await rt.run(clock.adjust(0.010))

    assert log == ["s2", "s1", "poll None", "e2", "e1", "closed"]
    assert clock.now() == pytest.approx(0.050)


@pytest.mark.spec("VF8")
async def test_closing_a_scope_twice_runs_every_finalizer_once() -> None:
    """One after the other."""
    log: list[str] = []
    scope = Scope()
    await scope.add_finalizer(lambda _: say(log, "finalizer"))
    scope.fork(parked(say(log, "fiber")), start_immediately=True)

    await scope.close()
    await scope.close()

    assert log == ["fiber", "finalizer"]


@pytest.mark.spec("VF8")
async def test_a_second_close_returns_at_once_while_the_first_is_under_way() -> None:
    """It doesn't suspend, and it runs nothing again."""
    log: list[str] = []
    scope = Scope("parallel")
    gate = new_gate()
    farewell = steps(say(log, "start"), at_gate(gate), say(log, "end"))
    await scope.add_finalizer(lambda _: farewell)
    first = fb.run_fork(scope.close())

    fb.run_sync(scope.close())
    log.append(f"second returned, first {first.poll()}")
    gate.set_result(0)
    await first

    assert log == ["start", "second returned, first None", "end"]


@pytest.mark.spec("VF9")
@pytest.mark.parametrize("raising", ["building", "running", "coroutine"])
async def test_one_raising_finalizer_neither_stops_the_others_nor_is_lost(raising: str) -> None:
    """The rest runs in its order; the close dies with what was raised."""
    log: list[str] = []
    defect = Defect(raising)
    scope = Scope()

    async def failing_coroutine() -> None:
        raise defect

    await scope.add_finalizer(lambda _: say(log, "first added"))
    if raising == "building":
        await scope.add_finalizer(throwing(defect))
    elif raising == "running":
        await scope.add_finalizer(lambda _: Effect.die(defect))
    else:
        await scope.add_finalizer(lambda _: failing_coroutine())
    await scope.add_finalizer(lambda _: say(log, "last added"))
    exit = await scope.close().exit()

    assert log == ["last added", "first added"]
    assert exit == Failure(Cause((Die(defect),)))


@pytest.mark.spec("VF9")
async def test_the_failure_of_a_finalizer_is_raised_by_the_close_at_the_edge() -> None:
    """As the very object."""
    defect = Defect("in a finalizer")
    scope = Scope("parallel")
    await scope.add_finalizer(lambda _: Effect.die(defect))

    with pytest.raises(Defect) as caught:
        await scope.close()

    assert caught.value is defect


# ---- supervisors


@pytest.mark.spec("VF10")
async def test_a_defect_under_a_supervisor_is_logged_as_a_warning_and_goes_no_further(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Neither to the loop's handler nor to the hook for unhandled failures."""
    scope = Scope("parallel")
    processing = new_gate()

    with loop_errors() as errors, unhandled_failures() as unhandled:
        fiber = scope.fork(supervise(processing, []), start_immediately=True)
        processing.set_exception(Defect("work broke"))
        exit = await fiber.exit()
        del fiber, processing
        gc.collect()
        await asyncio.sleep(0)

    assert exit == Success(None)
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [
        ("WARNING", "defect: Defect('work broke')")
    ]
    assert errors == []
    assert unhandled == []


@pytest.mark.spec("VF10")
async def test_a_defect_that_no_supervisor_catches_never_reaches_the_loops_handler() -> None:
    """It reaches the hook for unhandled failures, once."""
    defect = Defect("work broke")
    scope = Scope("parallel")
    processing = new_gate()

    with loop_errors() as errors, unhandled_failures() as unhandled:
        scope.fork(Effect.promise(lambda: processing), start_immediately=True)
        processing.set_exception(defect)
        await loop_turns()
        await scope.close()
        gc.collect()
        await loop_turns()

    assert errors == []
    assert unhandled == [Cause((Die(defect),))]


@pytest.mark.spec("VF10")
async def test_a_defect_in_a_supervisors_farewell_never_reaches_the_loops_handler() -> None:
    """Work that breaks while the scope closes neither stops nor fails the close."""
    log: list[str] = []
    scope = Scope("parallel")
    broken = parked(Effect.die(Defect("farewell broke")))

    with loop_errors() as errors, unhandled_failures():
        scope.fork(broken, start_immediately=True)
        scope.fork(supervise(new_gate(), log), start_immediately=True)
        exit = await scope.close().exit()
        gc.collect()
        await asyncio.sleep(0)

    assert log == ["stopped"]
    assert exit == Success(None)
    assert errors == []


# ---- unsupervised fibers


@pytest.mark.spec("VF12")
async def test_a_fiber_of_run_fork_survives_the_close_of_a_scope_and_a_dispose(
    rt: fb.Runtime,
) -> None:
    """Forked by a fiber that both of them own."""
    scope = Scope("parallel")
    gate = new_gate()
    unsupervised: list[Fiber[int, Never]] = []
    service = steps(
        Effect.sync(lambda: unsupervised.append(fb.run_fork(at_gate(gate)))), Effect.never()
    )

    await rt.run(service.fork_in(scope, start_immediately=True))
    (fiber,) = unsupervised
    await scope.close()
    await rt.dispose()
    after_both = fiber.poll()
    gate.set_result(7)

    assert after_both is None
    assert await fiber == 7


@pytest.mark.spec("VF12")
async def test_a_fiber_of_run_fork_survives_the_dispose_of_the_runtime_that_forked_it(
    rt: fb.Runtime,
) -> None:
    """While the runtime's own fiber is interrupted."""
    gate = new_gate()
    unsupervised: list[Fiber[int, Never]] = []
    owned = rt.run_fork(
        steps(Effect.sync(lambda: unsupervised.append(fb.run_fork(at_gate(gate)))), Effect.never())
    )

    await rt.dispose()
    (fiber,) = unsupervised
    after_the_dispose = fiber.poll()
    gate.set_result(7)

    assert cause_of(owned.poll()).has_interrupts_only
    assert after_the_dispose is None
    assert await fiber == 7


# ---- time


@pytest.mark.spec("VF13")
async def test_a_timeout_of_sixty_seconds_fires_when_virtual_time_gets_there(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """Not a moment earlier, and without real waiting."""
    began = time.monotonic()
    fiber = rt.run_fork(at_gate(new_gate()).timeout(60))

    await rt.run(clock.adjust(59))
    at_59_s = fiber.poll()
    await rt.run(clock.adjust(1))
    exit = fiber.poll()
    real_seconds = time.monotonic() - began

    assert at_59_s is None
    assert isinstance(cause_of(exit).failures[0], TimeoutError)
    assert real_seconds < 30


@pytest.mark.spec("VF13")
async def test_a_sleep_in_a_body_uses_the_clock_of_the_runtime(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """Sixty virtual seconds, in a child and a fiber of a scope as well."""
    log: list[str] = []
    scope = Scope()

    @fb.effect
    async def napping(name: str) -> None:
        await fb.sleep(60)
        log.append(name)

    @fb.effect
    async def body() -> None:
        await napping("in a scope").fork_in(scope, start_immediately=True)
        child = await napping("child").fork_child(start_immediately=True)
        await napping("body")
        await child

    fiber = rt.run_fork(body())
    await rt.run(clock.adjust(59))
    log.append("59 s")
    await rt.run(clock.adjust(1))

    assert log == ["59 s", "in a scope", "child", "body"]
    assert fiber.poll() == Success(None)


@pytest.mark.spec("VF13")
async def test_a_body_under_a_timeout_is_unwound_when_virtual_time_gets_there(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """Its `finally` has run when the timeout fails."""
    log: list[str] = []

    @fb.effect
    async def body() -> None:
        try:
            await new_gate()
        finally:
            log.append("finally")

    fiber = rt.run_fork(body().timeout(60))
    await settle(rt, clock)
    log.append(f"poll {fiber.poll()}")
    await rt.run(clock.adjust(60))

    assert log == ["poll None", "finally"]
    assert isinstance(cause_of(fiber.poll()).failures[0], TimeoutError)


# ---- errors


@pytest.mark.spec("VF14")
@pytest.mark.parametrize("suspends_first", [False, True], ids=["sync raise", "async raise"])
async def test_an_awaited_runtime_raises_the_very_object_that_was_raised(
    suspends_first: bool, rt: fb.Runtime
) -> None:
    """Identity, not only type and message."""
    error = Boom("the one")

    @fb.effect(raises=Boom)
    async def body() -> None:
        if suspends_first:
            await asyncio.sleep(0)
        raise error

    with pytest.raises(Boom) as caught:
        await rt.run(body())

    assert caught.value is error


@pytest.mark.spec("VF14")
@pytest.mark.parametrize("suspends_first", [False, True], ids=["sync raise", "async raise"])
async def test_an_awaited_fiber_raises_the_very_object_that_was_raised(
    suspends_first: bool,
) -> None:
    """For a declared error and a plain task that awaits the fiber."""
    error = Boom("the one")

    @fb.effect(raises=Boom)
    async def body() -> None:
        if suspends_first:
            await asyncio.sleep(0)
        raise error

    fiber = fb.run_fork(body())
    with pytest.raises(Boom) as caught:
        await fiber

    assert caught.value is error


@pytest.mark.spec("VF14")
@pytest.mark.parametrize("suspends_first", [False, True], ids=["sync raise", "async raise"])
async def test_try_promise_hands_the_very_error_of_its_thunk_to_the_awaiter(
    suspends_first: bool,
) -> None:
    """Through `catch`, from a coroutine or from the thunk itself."""
    error = Boom("the one")

    async def failing() -> int:
        await asyncio.sleep(0)
        raise error

    def same(raised: Exception) -> Boom:
        assert isinstance(raised, Boom)
        return raised

    thunk = failing if suspends_first else throwing(error)
    with pytest.raises(Boom) as caught:
        await Effect.try_promise(thunk, catch=same)

    assert caught.value is error


@pytest.mark.spec("VF14")
async def test_a_combinator_chain_fails_with_the_very_object_in_its_cause() -> None:
    """The exit holds it too."""
    error = Boom("the one")

    exit = await fb.run_fork(Effect.yield_now().flat_map(lambda _: Effect.fail(error))).exit()

    assert exit == Failure(Cause((Fail(error),)))
    assert cause_of(exit).failures[0] is error
