"""Probes TR: what a timeout and a race do to the loser, and when the caller goes on."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Never

import pytest
from returns.maybe import Nothing, Some
from returns.result import Success

import fibers as fb
from fibers import Die, Effect, Fail, Interrupt
from tests.probes.kit_f import (
    Boom,
    cause_of,
    endless,
    failed,
    interrupted,
    new_gate,
    note,
    note_start_and_end,
    parked,
    running_fiber,
    wait_for,
)

if TYPE_CHECKING:
    from fibers.testing import TestClock

pytestmark = pytest.mark.lifecycle


def after(seconds: float, result: Effect[int, Boom]) -> Effect[int, Boom]:
    """`result`, `seconds` later."""
    return fb.sleep(seconds).flat_map(lambda _: result)


def value_after(seconds: float, value: int) -> Effect[int, Boom]:
    """Succeed with `value` after `seconds`."""
    return after(seconds, Effect.succeed(value))


def failure_after(seconds: float, error: Boom) -> Effect[int, Boom]:
    """Fail with `error` after `seconds`."""
    return after(seconds, Effect.fail(error))


def timed_out(exit: fb.Exit[object, Exception] | None) -> bool:
    """Whether the exit is one Fail of a TimeoutError and nothing else."""
    (reason,) = cause_of(exit).reasons
    return isinstance(reason, Fail) and type(reason.error) is TimeoutError


# ---- timeout


@pytest.mark.spec("TR1")
async def test_a_timeout_waits_for_a_masked_effect_and_then_fails(
    clock: TestClock, rt: fb.Runtime
) -> None:
    """60 ms under a mask, a bound of 10 ms: it ends at 60 ms, with the TimeoutError."""
    log = list[str]()
    masked = fb.sleep(0.060).flat_map(lambda _: note(log, "done")).uninterruptible()

    fiber = rt.run_fork(masked.timeout(0.010))
    await rt.run(clock.adjust(0.010))
    at_the_bound = fiber.poll()
    await rt.run(clock.adjust(0.050))

    assert at_the_bound is None
    assert log == ["done"]
    assert timed_out(fiber.poll())


@pytest.mark.spec("TR1")
async def test_a_timeout_waits_for_a_masked_coroutine(clock: TestClock, rt: fb.Runtime) -> None:
    """The same where the masked effect is a body."""
    log = list[str]()

    @fb.effect
    async def body() -> None:
        await fb.sleep(0.060)
        log.append("done")

    fiber = rt.run_fork(body().uninterruptible().timeout(0.010))
    await rt.run(clock.adjust(0.059))
    early = fiber.poll()
    await rt.run(clock.adjust(0.001))

    assert early is None
    assert log == ["done"]
    assert timed_out(fiber.poll())


@pytest.mark.spec("TR1", "PD17")
async def test_a_timeout_waits_for_a_region_in_a_body(clock: TestClock, rt: fb.Runtime) -> None:
    """The region ends first; what stands behind it is cut."""
    log = list[str]()

    @fb.effect
    async def body() -> None:
        with fb.uninterruptible():
            await fb.sleep(0.060)
            log.append("region done")
        await endless()
        log.append("not reached")

    fiber = rt.run_fork(body().timeout(0.010))
    await rt.run(clock.adjust(0.059))
    early = fiber.poll()
    await rt.run(clock.adjust(0.001))

    assert early is None
    assert log == ["region done"]
    assert timed_out(fiber.poll())


@pytest.mark.spec("TR2", "PD23")
async def test_a_timeout_under_a_mask_interrupts_what_it_bounds(
    clock: TestClock, rt: fb.Runtime
) -> None:
    """The mask lies outside the timeout: the bounded effect is interruptible."""
    log = list[str]()

    fiber = rt.run_fork(parked(log, "interrupted").timeout(0.010).uninterruptible())
    await rt.run(clock.adjust(0.010))

    assert log == ["interrupted"]
    assert timed_out(fiber.poll())


@pytest.mark.spec("TR2")
async def test_an_interrupt_of_a_masked_timeout_waits_for_the_timeout(
    clock: TestClock, rt: fb.Runtime
) -> None:
    """The interrupt is pending until the region ends and joins the TimeoutError there."""
    fiber = rt.run_fork(Effect.never().timeout(1.0).uninterruptible())

    fiber.interrupt_unsafe(by=7)
    pending = fiber.poll()
    await rt.run(clock.adjust(1.0))
    kinds = [type(reason) for reason in cause_of(fiber.poll()).reasons]

    assert pending is None
    assert kinds == [Fail, Interrupt]


@pytest.mark.spec("TR3")
async def test_or_else_runs_after_the_loser_is_finalized(clock: TestClock, rt: fb.Runtime) -> None:
    """Interrupted, finalized to the end, and only then the alternative."""
    log = list[str]()
    slow = Effect.never().on_interrupt(lambda _: note_start_and_end(log, "fin", 1.0))

    fiber = rt.run_fork(slow.timeout_or_else(1.0, lambda: note(log, "or_else")))
    await rt.run(clock.adjust(2.0))

    assert log == ["fin-start", "fin-end", "or_else"]
    assert fiber.poll() == Success(None)


@pytest.mark.spec("TR3")
async def test_or_else_is_not_run_when_the_effect_is_in_time(
    clock: TestClock, rt: fb.Runtime
) -> None:
    """The value of the effect is the result."""
    log = list[str]()

    fiber = rt.run_fork(value_after(1.0, 5).timeout_or_else(2.0, lambda: note(log, "or_else")))
    await rt.run(clock.adjust(3.0))

    assert fiber.poll() == Success(5)
    assert log == []


@pytest.mark.spec("TR4")
async def test_timeout_option_is_nothing_when_time_runs_out(
    clock: TestClock, rt: fb.Runtime
) -> None:
    """Absence instead of an error."""
    fiber = rt.run_fork(Effect.never().timeout_option(1.0))
    await rt.run(clock.adjust(1.0))

    assert fiber.poll() == Success(Nothing)


@pytest.mark.spec("TR4", "PD21")
async def test_timeout_option_is_some_value_in_time(clock: TestClock, rt: fb.Runtime) -> None:
    """The value comes as a Maybe."""
    fiber = rt.run_fork(value_after(1.0, 5).timeout_option(2.0))
    await rt.run(clock.adjust(1.0))

    assert fiber.poll() == Success(Some(5))


@pytest.mark.spec("TR4")
async def test_timeout_option_passes_an_inner_failure(clock: TestClock, rt: fb.Runtime) -> None:
    """A failure in time is that failure."""
    boom = Boom()

    fiber = rt.run_fork(failure_after(1.0, boom).timeout_option(2.0))
    await rt.run(clock.adjust(1.0))

    assert failed(Fail(boom)) == fiber.poll()


@pytest.mark.spec("TR4")
async def test_timeout_option_passes_an_inner_interrupt(rt: fb.Runtime) -> None:
    """An effect that interrupts itself is interrupted, not absent."""
    exit = await rt.run(Effect.interrupt().timeout_option(1.0).exit())

    assert cause_of(exit).has_interrupts_only


@pytest.mark.spec("TR4")
async def test_an_outer_interrupt_of_timeout_option_is_an_interrupt(
    clock: TestClock, rt: fb.Runtime
) -> None:
    """Not Nothing: somebody asked the whole to end."""
    log = list[str]()
    fiber = rt.run_fork(parked(log, "inner").timeout_option(1.0))

    fiber.interrupt_unsafe(by=7)
    await rt.run(clock.adjust(0))

    assert log == ["inner"]
    assert interrupted(by=7) == fiber.poll()


@pytest.mark.spec("TR4")
async def test_timeout_passes_an_inner_defect(rt: fb.Runtime) -> None:
    """A defect in time is that defect."""
    boom = Boom()

    exit = await rt.run(Effect.die(boom).timeout(1.0).exit())

    assert failed(Die(boom)) == exit


@pytest.mark.spec("TR5")
async def test_timeout_zero_lets_a_synchronous_effect_win(rt: fb.Runtime) -> None:
    """What needs no time is in time."""
    assert await rt.run(Effect.succeed(1).timeout(0)) == 1


@pytest.mark.spec("TR5")
async def test_timeout_zero_lets_a_yield_win() -> None:
    """On the live clock a sleep of 0 s is a yield too, and the effect yielded first."""
    value = await Effect.yield_now().map(lambda _: 1).timeout(0)

    assert value == 1


@pytest.mark.spec("TR5")
async def test_timeout_zero_ends_a_sleep(clock: TestClock, rt: fb.Runtime) -> None:
    """What needs time is late, without any passing."""
    fiber = rt.run_fork(fb.sleep(1).timeout(0))
    await rt.run(clock.adjust(0))

    assert timed_out(fiber.poll())


@pytest.mark.spec("TR5")
async def test_at_an_equal_deadline_the_value_wins(clock: TestClock, rt: fb.Runtime) -> None:
    """The effect registered its sleep before the timer did."""
    fiber = rt.run_fork(value_after(1.0, 5).timeout(1.0))
    await rt.run(clock.adjust(1.0))

    assert fiber.poll() == Success(5)


@pytest.mark.spec("TR6")
async def test_a_timeout_error_names_the_duration(clock: TestClock, rt: fb.Runtime) -> None:
    """The message says which bound was exceeded."""
    fiber = rt.run_fork(Effect.never().timeout(7))
    await rt.run(clock.adjust(7))

    (error,) = cause_of(fiber.poll()).failures
    assert "7" in str(error)


@pytest.mark.spec("TR6")
async def test_on_timeout_the_inner_on_interrupt_has_run(clock: TestClock, rt: fb.Runtime) -> None:
    """Before the TimeoutError is there."""
    log = list[str]()
    slow = Effect.never().on_interrupt(lambda _: note_start_and_end(log, "fin", 1.0))

    fiber = rt.run_fork(slow.timeout(1.0))
    await rt.run(clock.adjust(1.0))
    at_the_bound = fiber.poll()
    await rt.run(clock.adjust(1.0))

    assert at_the_bound is None
    assert log == ["fin-start", "fin-end"]
    assert timed_out(fiber.poll())


@pytest.mark.spec("TR6")
async def test_on_timeout_the_finally_of_a_body_has_run(clock: TestClock, rt: fb.Runtime) -> None:
    """The same for a coroutine body with an asynchronous finally."""
    log = list[str]()

    @fb.effect
    async def body() -> None:
        try:
            await Effect.never()
        finally:
            await note_start_and_end(log, "finally", 1.0)

    fiber = rt.run_fork(body().timeout(1.0))
    await rt.run(clock.adjust(2.0))

    assert log == ["finally-start", "finally-end"]
    assert timed_out(fiber.poll())


@pytest.mark.spec("TR6")
async def test_a_timeout_can_be_caught_as_the_builtin_timeout_error(
    clock: TestClock, rt: fb.Runtime
) -> None:
    """In a body it is raised like any typed error."""

    @fb.effect
    async def body() -> str:
        try:
            await endless().timeout(1.0)
        except TimeoutError:
            return "late"
        return "in time"

    fiber = rt.run_fork(body())
    await rt.run(clock.adjust(1.0))

    assert fiber.poll() == Success("late")


@pytest.mark.spec("TR6", "PD21")
async def test_a_timeout_takes_a_timedelta(clock: TestClock, rt: fb.Runtime) -> None:
    """Durations are timedelta or seconds."""
    fiber = rt.run_fork(Effect.never().timeout(timedelta(milliseconds=1500)))
    await rt.run(clock.adjust(1.499))
    early = fiber.poll()
    await rt.run(clock.adjust(0.001))

    assert early is None
    assert timed_out(fiber.poll())


@pytest.mark.spec("TR6")
async def test_an_effect_in_time_ends_with_its_value_at_once(
    clock: TestClock, rt: fb.Runtime
) -> None:
    """The exit is there at the value, not at the bound."""
    fiber = rt.run_fork(value_after(1.0, 5).timeout(60.0))
    await rt.run(clock.adjust(1.0))

    assert fiber.poll() == Success(5)


@pytest.mark.spec("TR6")
async def test_the_inner_of_two_timeouts_fires_first(clock: TestClock, rt: fb.Runtime) -> None:
    """And the outer one then has a value in time."""
    inner = Effect.never().timeout_or_else(1.0, lambda: Effect.succeed("inner"))

    fiber = rt.run_fork(inner.timeout(2.0))
    await rt.run(clock.adjust(1.0))

    assert fiber.poll() == Success("inner")


# ---- race: the first success


@pytest.mark.spec("TR7")
async def test_a_race_goes_on_after_a_failure_and_takes_the_first_success(
    clock: TestClock, rt: fb.Runtime
) -> None:
    """A failure alone decides nothing."""
    fiber = rt.run_fork(fb.race(failure_after(1.0, Boom()), value_after(2.0, 5)))
    await rt.run(clock.adjust(1.0))
    after_the_failure = fiber.poll()
    await rt.run(clock.adjust(1.0))

    assert after_the_failure is None
    assert fiber.poll() == Success(5)


@pytest.mark.spec("TR7")
async def test_a_race_whose_racers_all_fail_has_every_failure(
    clock: TestClock, rt: fb.Runtime
) -> None:
    """[Fail a, Fail b]."""
    a, b = Boom("a"), Boom("b")

    fiber = rt.run_fork(fb.race(failure_after(1.0, a), failure_after(2.0, b)))
    await rt.run(clock.adjust(2.0))

    assert failed(Fail(a), Fail(b)) == fiber.poll()


@pytest.mark.spec("TR7")
async def test_the_failures_of_a_race_stand_in_order_of_completion(
    clock: TestClock, rt: fb.Runtime
) -> None:
    """Not in order of the arguments."""
    a, b = Boom("a"), Boom("b")

    fiber = rt.run_fork(fb.race(failure_after(2.0, a), failure_after(1.0, b)))
    await rt.run(clock.adjust(2.0))

    assert failed(Fail(b), Fail(a)) == fiber.poll()


@pytest.mark.spec("TR7")
async def test_the_loser_of_a_race_is_finalized_before_the_result(
    clock: TestClock, rt: fb.Runtime
) -> None:
    """The winner's value waits for the loser's finalizer."""
    log = list[str]()
    slow = Effect.never().on_interrupt(lambda _: note_start_and_end(log, "fin", 1.0))

    fiber = rt.run_fork(fb.race(value_after(1.0, 5), slow))
    await rt.run(clock.adjust(1.0))
    at_the_value = fiber.poll()
    await rt.run(clock.adjust(1.0))

    assert at_the_value is None
    assert log == ["fin-start", "fin-end"]
    assert fiber.poll() == Success(5)


@pytest.mark.spec("TR7")
async def test_a_race_of_one_is_that_one(rt: fb.Runtime) -> None:
    """A single racer: its success or its failure."""
    boom = Boom()

    exits = [
        await rt.run(fb.race(Effect.succeed(5)).exit()),
        await rt.run(fb.race(Effect.fail(boom)).exit()),
    ]

    assert [Success(5), failed(Fail(boom))] == exits


# ---- race_first: the first to end


@pytest.mark.spec("TR8")
async def test_race_first_takes_the_first_failure(clock: TestClock, rt: fb.Runtime) -> None:
    """Whoever ends first decides, also by failing."""
    log, boom = list[str](), Boom()
    racers = fb.race_first(failure_after(1.0, boom), parked(log, "loser"))

    fiber = rt.run_fork(racers)
    await rt.run(clock.adjust(1.0))

    assert failed(Fail(boom)) == fiber.poll()
    assert log == ["loser"]


@pytest.mark.spec("TR8")
async def test_race_first_takes_the_first_success(clock: TestClock, rt: fb.Runtime) -> None:
    """A later failure is never seen."""
    fiber = rt.run_fork(fb.race_first(failure_after(2.0, Boom()), value_after(1.0, 5)))
    await rt.run(clock.adjust(1.0))

    assert fiber.poll() == Success(5)


@pytest.mark.spec("TR8")
async def test_of_two_synchronous_racers_the_first_in_the_list_wins(rt: fb.Runtime) -> None:
    """Racers start in order."""
    assert await rt.run(fb.race_first(Effect.succeed(1), Effect.succeed(2))) == 1


@pytest.mark.spec("TR8")
async def test_race_first_starts_no_racer_after_a_synchronous_end(rt: fb.Runtime) -> None:
    """The second never runs."""
    log = list[str]()

    await rt.run(fb.race_first(note(log, "first"), note(log, "second")))

    assert log == ["first"]


@pytest.mark.spec("TR8")
async def test_a_synchronous_failure_ends_race_first_as_well(rt: fb.Runtime) -> None:
    """A failure is an end: the later racer never runs."""
    log, boom = list[str](), Boom()

    exit = await rt.run(fb.race_first(Effect.fail(boom), note(log, "second")).exit())

    assert failed(Fail(boom)) == exit
    assert log == []


# ---- losers


@pytest.mark.spec("TR10")
async def test_a_defect_in_the_finalizer_of_a_loser_is_discarded(
    clock: TestClock, rt: fb.Runtime
) -> None:
    """The race has its result."""
    loser: Effect[int, Never] = Effect.never().on_interrupt(lambda _: Effect.die(Boom()))

    fiber = rt.run_fork(fb.race(value_after(1.0, 5), loser))
    await rt.run(clock.adjust(1.0))

    assert fiber.poll() == Success(5)


@pytest.mark.spec("TR10")
async def test_a_racer_that_interrupts_itself_is_ignored_if_another_succeeds(
    clock: TestClock, rt: fb.Runtime
) -> None:
    """It lost; the race goes on."""
    fiber = rt.run_fork(fb.race(Effect.interrupt(), value_after(1.0, 5)))
    await rt.run(clock.adjust(1.0))

    assert fiber.poll() == Success(5)


@pytest.mark.spec("TR10")
async def test_a_racer_that_interrupts_itself_is_a_reason_if_the_others_fail(
    clock: TestClock, rt: fb.Runtime
) -> None:
    """[Interrupt, Fail], in order of completion."""
    boom = Boom()

    fiber = rt.run_fork(fb.race(Effect.interrupt(), failure_after(1.0, boom)))
    await rt.run(clock.adjust(1.0))

    cause = cause_of(fiber.poll())
    assert [type(reason) for reason in cause.reasons] == [Interrupt, Fail]
    assert cause.failures == (boom,)


@pytest.mark.spec("TR11")
async def test_an_interrupted_race_waits_for_the_finalizers_of_all_racers(
    clock: TestClock, rt: fb.Runtime
) -> None:
    """A takes 2 s, B takes 1 s: B is done first, the exit comes after A."""
    log = list[str]()
    a = Effect.never().on_interrupt(lambda _: fb.sleep(2).flat_map(lambda _: note(log, "A")))
    b = Effect.never().on_interrupt(lambda _: fb.sleep(1).flat_map(lambda _: note(log, "B")))
    fiber = rt.run_fork(fb.race(a, b))
    fiber.add_observer(lambda _: log.append("exit"))

    fiber.interrupt_unsafe(by=7)
    await rt.run(clock.adjust(2))

    assert log == ["B", "A", "exit"]
    assert cause_of(fiber.poll()).has_interrupts_only


@pytest.mark.spec("TR11")
async def test_an_interrupted_race_first_waits_for_all_racers_too(
    clock: TestClock, rt: fb.Runtime
) -> None:
    """The same for race_first."""
    log = list[str]()
    a = Effect.never().on_interrupt(lambda _: fb.sleep(2).flat_map(lambda _: note(log, "A")))
    b = Effect.never().on_interrupt(lambda _: fb.sleep(1).flat_map(lambda _: note(log, "B")))
    fiber = rt.run_fork(fb.race_first(a, b))
    fiber.add_observer(lambda _: log.append("exit"))

    fiber.interrupt_unsafe(by=7)
    await rt.run(clock.adjust(2))

    assert log == ["B", "A", "exit"]
    assert cause_of(fiber.poll()).has_interrupts_only


@pytest.mark.spec("TR11", "PD18")
def test_race_all_of_nothing_is_a_value_error() -> None:
    """It could only wait for ever."""
    with pytest.raises(ValueError):
        fb.race_all([])


# ---- many racers


def five_racers(log: list[str], boom: Boom) -> list[Effect[int, Boom]]:
    """500, 300 and 200 ms, an immediate failure, 100 ms; each says when it is interrupted."""

    def racer(milliseconds: int) -> Effect[int, Boom]:
        started = note(log, f"start {milliseconds}")
        body = started.flat_map(lambda _: value_after(milliseconds / 1000, milliseconds))
        return body.on_interrupt(lambda _: note(log, f"interrupted {milliseconds}"))

    return [racer(500), racer(300), racer(200), Effect.fail(boom), racer(100)]


@pytest.mark.spec("TR12")
async def test_race_all_interrupts_the_losers_in_order(clock: TestClock, rt: fb.Runtime) -> None:
    """100 wins; the failed one is no loser to interrupt."""
    log = list[str]()

    fiber = rt.run_fork(fb.race_all(five_racers(log, Boom())))
    await rt.run(clock.adjust(0.1))

    assert fiber.poll() == Success(100)
    assert log[4:] == ["interrupted 500", "interrupted 300", "interrupted 200"]


@pytest.mark.spec("TR12")
async def test_race_all_first_ends_with_the_first_failure(clock: TestClock, rt: fb.Runtime) -> None:
    """The immediate failure decides; who stands behind it never starts."""
    log, boom = list[str](), Boom()

    fiber = rt.run_fork(fb.race_all_first(five_racers(log, boom)))
    await rt.run(clock.adjust(0))

    assert failed(Fail(boom)) == fiber.poll()
    assert "start 100" not in log


@pytest.mark.spec("TR12")
async def test_race_all_takes_a_one_shot_generator(clock: TestClock, rt: fb.Runtime) -> None:
    """Any iterable of effects."""
    racers = (value_after(seconds, seconds) for seconds in (3, 1, 2))

    fiber = rt.run_fork(fb.race_all(racers))
    await rt.run(clock.adjust(1))

    assert fiber.poll() == Success(1)


@pytest.mark.spec("TR12")
async def test_race_all_first_takes_a_one_shot_generator(clock: TestClock, rt: fb.Runtime) -> None:
    """The same for the other race."""
    racers = (value_after(seconds, seconds) for seconds in (3, 1, 2))

    fiber = rt.run_fork(fb.race_all_first(racers))
    await rt.run(clock.adjust(1))

    assert fiber.poll() == Success(1)


@pytest.mark.spec("TR12")
async def test_ten_thousand_racers_end_with_one_winner(rt: fb.Runtime) -> None:
    """All the others are interrupted and awaited; no limit of the stack is touched."""
    gate, ended = new_gate(), list[int]()
    waiting = Effect.never().on_interrupt(lambda _: Effect.sync(lambda: ended.append(1)))
    losers: list[Effect[int, Never]] = [waiting] * 9_999

    fiber = rt.run_fork(fb.race_all([*losers, wait_for(gate)]))
    gate.set_result(5)
    exit = await fiber.exit()

    assert exit == Success(5)
    assert len(ended) == 9_999


# ---- fibers of their own


@pytest.mark.spec("PD23")
async def test_racers_run_in_fibers_of_their_own(rt: fb.Runtime) -> None:
    """Neither in the caller's fiber nor in a common one."""

    @fb.effect
    async def body() -> set[int]:
        ids = set[int]()
        racer = Effect.sync(lambda: ids.add(running_fiber().id))
        slow = racer.flat_map(lambda _: Effect.never())
        await fb.race(slow, racer)
        ids.add(running_fiber().id)
        return ids

    assert len(await rt.run(body())) == 3


@pytest.mark.spec("PD23")
async def test_a_bounded_effect_runs_in_a_fiber_of_its_own(rt: fb.Runtime) -> None:
    """A timeout does not run what it bounds in the caller's fiber."""

    @fb.effect
    async def body() -> bool:
        bounded = await Effect.sync(lambda: running_fiber().id).timeout(1)
        return bounded != running_fiber().id

    assert await rt.run(body())


@pytest.mark.spec("PD23")
async def test_the_children_of_a_bounded_effect_end_before_the_result(
    clock: TestClock, rt: fb.Runtime
) -> None:
    """They belong to the fiber that the timeout made."""
    log = list[str]()
    child = Effect.never().on_interrupt(lambda _: note_start_and_end(log, "child", 1.0))

    @fb.effect
    async def bounded() -> int:
        await child.fork_child(start_immediately=True)
        return 5

    fiber = rt.run_fork(bounded().timeout(60).tap(lambda _: note(log, "result")))
    await rt.run(clock.adjust(1.0))

    assert log == ["child-start", "child-end", "result"]
    assert fiber.poll() == Success(5)


@pytest.mark.spec("PD23")
async def test_the_children_of_a_winning_racer_end_before_the_result(
    clock: TestClock, rt: fb.Runtime
) -> None:
    """The same for a race."""
    log = list[str]()
    child = Effect.never().on_interrupt(lambda _: note_start_and_end(log, "child", 1.0))

    @fb.effect
    async def winner() -> int:
        await child.fork_child(start_immediately=True)
        return 5

    fiber = rt.run_fork(fb.race(winner(), Effect.never()).tap(lambda _: note(log, "result")))
    await rt.run(clock.adjust(1.0))

    assert log == ["child-start", "child-end", "result"]
    assert fiber.poll() == Success(5)


@pytest.mark.spec("PD20")
async def test_a_loser_learns_that_it_lost_the_race(clock: TestClock, rt: fb.Runtime) -> None:
    """Its interrupt carries a reason."""
    reasons = list[str | None]()

    def remember(exit: fb.Exit[Never, Never]) -> Effect[None, Never]:
        (reason,) = cause_of(exit).reasons
        assert isinstance(reason, Interrupt)
        reasons.append(reason.reason)
        return Effect.succeed(None)

    rt.run_fork(fb.race(value_after(1.0, 5), Effect.never().on_exit(remember)))
    await rt.run(clock.adjust(1.0))

    assert reasons == ["lost race"]


@pytest.mark.spec("PD20")
async def test_a_bounded_effect_learns_that_it_timed_out(clock: TestClock, rt: fb.Runtime) -> None:
    """Its interrupt carries a reason."""
    reasons = list[str | None]()

    def remember(exit: fb.Exit[Never, Never]) -> Effect[None, Never]:
        (reason,) = cause_of(exit).reasons
        assert isinstance(reason, Interrupt)
        reasons.append(reason.reason)
        return Effect.succeed(None)

    rt.run_fork(Effect.never().on_exit(remember).timeout(1.0))
    await rt.run(clock.adjust(1.0))

    assert reasons == ["timed out"]
