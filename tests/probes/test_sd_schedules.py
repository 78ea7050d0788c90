"""Probes SD1-SD4: when a schedule lets a run start, and what it gives at its end."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

import fibers as fb
from fibers import Effect, Schedule, ScheduleDone, ScheduleMetadata, Success
from fibers.testing import TestClock
from tests.probes.kit_s import Boom, Runs, ms, times_of

# ---- SD1, SD2, SD3: one schedule


@pytest.mark.spec("SD1")
async def test_recurs_repeats_at_once_and_gives_the_number(
    clock: TestClock, rt: fb.Runtime
) -> None:
    times, exit_ = await times_of(
        rt, clock, lambda runs: runs.counting().repeat(Schedule.recurs(3))
    )

    assert times == [0, 0, 0, 0]
    assert exit_ == Success(3)


@pytest.mark.spec("SD1")
async def test_recurs_0_never_repeats(clock: TestClock, rt: fb.Runtime) -> None:
    """The schedule is asked once and is over."""
    times, exit_ = await times_of(
        rt, clock, lambda runs: runs.counting().repeat(Schedule.recurs(0))
    )

    assert times == [0]
    assert exit_ == Success(0)


@pytest.mark.spec("SD2")
async def test_exponential_doubles_the_delay(clock: TestClock, rt: fb.Runtime) -> None:
    """And gives it, in seconds."""
    backoff = Schedule.exponential(ms(100)).up_to(4)

    times, exit_ = await times_of(rt, clock, lambda runs: runs.counting().repeat(backoff))

    assert times == [0, 100, 300, 700, 1500]
    assert exit_ == Success(1.6)


@pytest.mark.spec("SD2")
async def test_exponential_takes_another_factor(clock: TestClock, rt: fb.Runtime) -> None:
    backoff = Schedule.exponential(ms(100), 3).up_to(3)

    times, _ = await times_of(rt, clock, lambda runs: runs.counting().repeat(backoff))

    assert times == [0, 100, 400, 1300]


@pytest.mark.spec("SD2")
async def test_an_exponential_delay_beyond_a_float_is_infinite(
    clock: TestClock, rt: fb.Runtime
) -> None:
    """So a cap on it holds for ever."""
    capped = Schedule.min(Schedule.exponential(ms(1)), Schedule.spaced(ms(10))).up_to(2000)

    times, exit_ = await times_of(rt, clock, lambda runs: runs.counting().repeat(capped))

    assert len(times) == 2001
    assert times[-1] - times[-2] == 10
    assert exit_ == Success(ms(10))


@pytest.mark.spec("SD3")
async def test_spaced_waits_after_each_run(clock: TestClock, rt: fb.Runtime) -> None:
    schedule = Schedule.spaced(ms(100)).up_to(3)

    times, exit_ = await times_of(rt, clock, lambda runs: runs.counting().repeat(schedule))

    assert times == [0, 100, 200, 300]
    assert exit_ == Success(3)


@pytest.mark.spec("SD3")
async def test_spaced_counts_from_the_end_of_a_run(clock: TestClock, rt: fb.Runtime) -> None:
    schedule = Schedule.spaced(ms(100)).up_to(2)

    times, _ = await times_of(rt, clock, lambda runs: runs.taking(50).repeat(schedule))

    assert times == [0, 150, 300]


@pytest.mark.spec("SD3")
async def test_fixed_keeps_its_beat_and_makes_up_for_nothing(
    clock: TestClock, rt: fb.Runtime
) -> None:
    """After a run that is too long the next starts at once; then the beat is the old one."""
    schedule = Schedule.fixed(ms(100)).up_to(6)

    times, exit_ = await times_of(rt, clock, lambda runs: runs.taking(10, 250, 10).repeat(schedule))

    assert times == [0, 110, 360, 410, 510, 610, 710]
    assert exit_ == Success(6)


@pytest.mark.spec("SD3")
async def test_fixed_waits_for_the_next_beat_after_a_run_that_almost_missed_it(
    clock: TestClock, rt: fb.Runtime
) -> None:
    """A run that took as long as the interval is not late yet."""
    schedule = Schedule.fixed(ms(100)).up_to(4)

    times, _ = await times_of(
        rt, clock, lambda runs: runs.taking(0, 100, 99.5, 101, 0).repeat(schedule)
    )

    assert times == [0, 100, 300, 400, 501]


@pytest.mark.spec("SD3")
async def test_windowed_waits_for_the_next_window(clock: TestClock, rt: fb.Runtime) -> None:
    schedule = Schedule.windowed(ms(100)).up_to(4)

    times, exit_ = await times_of(rt, clock, lambda runs: runs.taking(30).repeat(schedule))

    assert times == [0, 130, 230, 330, 430]
    assert exit_ == Success(4)


@pytest.mark.spec("SD3")
async def test_windowed_lets_a_window_pass_that_a_long_run_has_begun(
    clock: TestClock, rt: fb.Runtime
) -> None:
    schedule = Schedule.windowed(ms(100)).up_to(3)

    times, _ = await times_of(rt, clock, lambda runs: runs.taking(0, 250, 0).repeat(schedule))

    assert times == [0, 100, 400, 500]


@pytest.mark.spec("SD3")
@pytest.mark.parametrize("make", [Schedule.fixed, Schedule.windowed])
async def test_a_thousand_beats_are_a_thousand_runs(
    make: Callable[[float], Schedule[int]], clock: TestClock, rt: fb.Runtime
) -> None:
    """In floats of seconds 0.3 is no multiple of 0.1: some would come twice."""
    times, _ = await times_of(
        rt, clock, lambda runs: runs.counting().repeat(make(0.1).up_to(1000)), within=200
    )

    assert times == [100 * n for n in range(1001)]


@pytest.mark.spec("SD3")
@pytest.mark.parametrize("make", [Schedule.fixed, Schedule.windowed])
def test_a_timer_that_fires_too_early_does_not_double_a_beat(
    make: Callable[[float], Schedule[int]],
) -> None:
    """uvloop's timers count in milliseconds."""
    step = make(0.1)._start()

    steps = [step(now, None) for now in (5.0, 5.0995, 5.2)]

    assert [count for count, _ in steps] == [0, 1, 2]
    assert [delay for _, delay in steps] == pytest.approx([0.1, 0.1005, 0.1])


@pytest.mark.spec("SD3")
@pytest.mark.parametrize("make", [Schedule.fixed, Schedule.windowed])
async def test_an_interval_of_0_is_no_delay(
    make: Callable[[float], Schedule[int]], clock: TestClock, rt: fb.Runtime
) -> None:
    times, exit_ = await times_of(rt, clock, lambda runs: runs.taking(10).repeat(make(0).up_to(2)))

    assert times == [0, 10, 20]
    assert exit_ == Success(2)


@pytest.mark.spec("SD3")
async def test_fibonacci_adds_the_two_delays_before(clock: TestClock, rt: fb.Runtime) -> None:
    """100, 100, 200, 300, 500 ms."""
    schedule = Schedule.fibonacci(ms(100)).up_to(5)

    times, exit_ = await times_of(rt, clock, lambda runs: runs.counting().repeat(schedule))

    assert times == [0, 100, 200, 400, 700, 1200]
    assert exit_ == Success(pytest.approx(0.8))


@pytest.mark.spec("SD3")
async def test_duration_is_one_repetition(clock: TestClock, rt: fb.Runtime) -> None:
    times, exit_ = await times_of(
        rt, clock, lambda runs: runs.counting().repeat(Schedule.duration(ms(70)))
    )

    assert times == [0, 70]
    assert exit_ == Success(0.0)


@pytest.mark.spec("SD4")
async def test_during_repeats_until_the_time_is_over(clock: TestClock, rt: fb.Runtime) -> None:
    """From the end of the first run; its very end belongs to it."""
    times, exit_ = await times_of(
        rt, clock, lambda runs: runs.taking(100).repeat(Schedule.during(ms(200)))
    )

    assert times == [0, 100, 200, 300]
    assert exit_ == Success(pytest.approx(0.3))


@pytest.mark.spec("SD3")
async def test_forever_counts_and_has_no_end(clock: TestClock, rt: fb.Runtime) -> None:
    seen = list[int]()
    schedule = Schedule.forever().tap(lambda m: seen.append(m.output))

    times, exit_ = await times_of(
        rt, clock, lambda runs: runs.taking(10).repeat(schedule), within=ms(35)
    )

    assert times == [0, 10, 20, 30]
    assert seen == [0, 1, 2]
    assert exit_ is None


@pytest.mark.spec("SD4")
async def test_elapsed_gives_the_time_since_its_first_step(
    clock: TestClock, rt: fb.Runtime
) -> None:
    seen = list[float]()
    schedule = Schedule.elapsed().tap(lambda m: seen.append(m.output)).up_to(3)

    await times_of(rt, clock, lambda runs: runs.taking(50).repeat(schedule))

    assert seen == pytest.approx([0, 0.05, 0.1, 0.15])


@pytest.mark.spec("SD1")
async def test_identity_gives_its_input(clock: TestClock, rt: fb.Runtime) -> None:
    _, exit_ = await times_of(
        rt, clock, lambda runs: runs.counting().repeat(Schedule.identity().up_to(2))
    )

    assert exit_ == Success(3)


# ---- SD4: several


@pytest.mark.spec("SD4")
async def test_concat_is_one_after_the_other(clock: TestClock, rt: fb.Runtime) -> None:
    """The end of the first is the first step of the second."""
    schedule = Schedule.recurs(1).concat(Schedule.spaced(ms(100)).up_to(2))

    times, exit_ = await times_of(rt, clock, lambda runs: runs.counting().repeat(schedule))

    assert times == [0, 0, 100, 200]
    assert exit_ == Success(2)


@pytest.mark.spec("SD4")
async def test_max_ends_with_the_first_and_takes_the_longest_delay(
    clock: TestClock, rt: fb.Runtime
) -> None:
    schedule = Schedule.max(Schedule.recurs(2), Schedule.spaced(ms(100)))

    times, exit_ = await times_of(rt, clock, lambda runs: runs.counting().repeat(schedule))

    assert times == [0, 100, 200]
    assert exit_ == Success(0.0)


@pytest.mark.spec("SD4")
async def test_min_ends_with_the_last_and_takes_the_shortest_delay(
    clock: TestClock, rt: fb.Runtime
) -> None:
    schedule = Schedule.min(Schedule.recurs(2), Schedule.spaced(ms(100)).up_to(3))

    times, exit_ = await times_of(rt, clock, lambda runs: runs.counting().repeat(schedule))

    assert times == [0, 0, 0, 100]
    assert exit_ == Success(0.0)


@pytest.mark.spec("SD4")
async def test_max_with_during_bounds_the_time(clock: TestClock, rt: fb.Runtime) -> None:
    schedule = Schedule.max(Schedule.spaced(ms(100)), Schedule.during(ms(250)))

    times, _ = await times_of(rt, clock, lambda runs: runs.counting().repeat(schedule))

    assert times == [0, 100, 200, 300]


@pytest.mark.spec("SD4")
async def test_max_and_min_take_any_number(clock: TestClock, rt: fb.Runtime) -> None:
    """They give the delay that they chose."""
    delays = (Schedule.spaced(ms(10)), Schedule.spaced(ms(30)), Schedule.spaced(ms(20)))
    longest, shortest = list[float](), list[float]()

    slow = Schedule.max(*delays, Schedule.recurs(2)).tap(lambda m: longest.append(m.output))
    fast = Schedule.min(*delays).tap(lambda m: shortest.append(m.output)).up_to(2)
    slow_times, _ = await times_of(rt, clock, lambda runs: runs.counting().repeat(slow), within=1)
    fast_times, _ = await times_of(rt, clock, lambda runs: runs.counting().repeat(fast), within=1)

    assert slow_times == [0, 30, 60]
    assert fast_times == [1000, 1010, 1020]
    assert longest == [ms(30), ms(30)]
    assert shortest == [ms(10), ms(10), ms(10)]


@pytest.mark.spec("SD4")
async def test_a_combination_of_effectful_schedules(clock: TestClock, rt: fb.Runtime) -> None:
    """Each step that is an effect is run, in order."""
    log = list[str]()

    def logging(name: str, times: int) -> Schedule[int]:
        return Schedule.recurs(times).tap(lambda _: Effect.sync(lambda: log.append(name)))

    schedule = logging("a", 1).concat(logging("b", 1)).max(logging("c", 5))
    times, _ = await times_of(rt, clock, lambda runs: runs.counting().repeat(schedule))

    assert times == [0, 0, 0]
    assert log == ["a", "c", "b", "c", "c"]


# ---- SD4: changed


@pytest.mark.spec("SD4")
async def test_up_to_a_duration(clock: TestClock, rt: fb.Runtime) -> None:
    """Whichever limit is met first."""
    schedule = Schedule.spaced(ms(100)).up_to(99, duration=ms(200))

    times, exit_ = await times_of(rt, clock, lambda runs: runs.counting().repeat(schedule))

    assert times == [0, 100, 200, 300]
    assert exit_ == Success(3)


@pytest.mark.spec("SD4")
@pytest.mark.parametrize("limit", ["during", "up_to"])
async def test_the_very_end_of_a_duration_belongs_to_it(
    limit: str, clock: TestClock, rt: fb.Runtime
) -> None:
    """Though 0.4 - 0.1 is a little more than 0.3 in floats."""
    schedule = (
        Schedule.during(ms(300))
        if limit == "during"
        else Schedule.forever().up_to(duration=ms(300))
    )
    await rt.run(clock.adjust(ms(100)))

    times, _ = await times_of(
        rt,
        clock,
        lambda runs: runs.taking(0, 100).repeat(schedule),
    )

    assert times == [100, 100, 200, 300, 400]


@pytest.mark.spec("SD4")
async def test_an_infinite_limit_is_none(clock: TestClock, rt: fb.Runtime) -> None:
    schedule = Schedule.spaced(10).up_to(2, duration=math.inf).max(Schedule.during(math.inf))

    times, _ = await times_of(rt, clock, lambda runs: runs.counting().repeat(schedule))

    assert times == [0, 10_000, 20_000]


@pytest.mark.spec("SD4")
async def test_while_stops_with_the_output_of_that_step(clock: TestClock, rt: fb.Runtime) -> None:
    schedule = Schedule.spaced(ms(100)).while_(lambda m: m.output < 2)

    times, exit_ = await times_of(rt, clock, lambda runs: runs.counting().repeat(schedule))

    assert times == [0, 100, 200]
    assert exit_ == Success(2)


@pytest.mark.spec("SD4")
async def test_while_takes_an_effect(clock: TestClock, rt: fb.Runtime) -> None:
    """It may take its time; the delay comes on top."""
    schedule = Schedule.spaced(ms(100)).while_(
        lambda m: fb.sleep(ms(5)).map(lambda _: m.attempt <= 2)
    )

    times, exit_ = await times_of(rt, clock, lambda runs: runs.counting().repeat(schedule))

    assert times == [0, 105, 210]
    assert exit_ == Success(2)


@pytest.mark.spec("SD4")
async def test_map_changes_every_output_and_the_last(clock: TestClock, rt: fb.Runtime) -> None:
    seen = list[str]()
    schedule = Schedule.recurs(2).map(lambda m: f"#{m.output}").tap(lambda m: seen.append(m.output))

    _, exit_ = await times_of(rt, clock, lambda runs: runs.counting().repeat(schedule))

    assert seen == ["#0", "#1"]
    assert exit_ == Success("#2")


@pytest.mark.spec("SD4")
async def test_map_takes_an_effect(clock: TestClock, rt: fb.Runtime) -> None:
    schedule = Schedule.recurs(2).map(lambda m: fb.sleep(ms(5)).map(lambda _: m.output * 10))

    times, exit_ = await times_of(rt, clock, lambda runs: runs.counting().repeat(schedule))

    assert times == [0, 5, 10]
    assert exit_ == Success(20)


@pytest.mark.spec("SD4")
async def test_passthrough_gives_the_input(clock: TestClock, rt: fb.Runtime) -> None:
    schedule = Schedule.spaced(ms(100)).up_to(2).passthrough()

    times, exit_ = await times_of(rt, clock, lambda runs: runs.counting().repeat(schedule))

    assert times == [0, 100, 200]
    assert exit_ == Success(3)


@pytest.mark.spec("SD4")
async def test_modify_delay_replaces_the_delay(clock: TestClock, rt: fb.Runtime) -> None:
    """By a duration or an effect of one."""
    plain = Schedule.spaced(ms(100)).modify_delay(lambda m: m.duration / 2).up_to(2)
    effectful = plain.modify_delay(lambda m: Effect.succeed(m.duration * 4))

    plain_times, _ = await times_of(rt, clock, lambda runs: runs.counting().repeat(plain), within=1)
    times, exit_ = await times_of(rt, clock, lambda runs: runs.counting().repeat(effectful))

    assert plain_times == [0, 50, 100]
    assert times == [1000, 1200, 1400]
    assert exit_ == Success(2)


@pytest.mark.spec("SD4")
async def test_add_delay_adds_to_the_delay(clock: TestClock, rt: fb.Runtime) -> None:
    schedule = Schedule.spaced(ms(100)).add_delay(lambda m: ms(10) * m.attempt).up_to(2)

    times, _ = await times_of(rt, clock, lambda runs: runs.counting().repeat(schedule))

    assert times == [0, 110, 230]


@pytest.mark.spec("SD4")
async def test_jittered_stays_within_a_fifth(clock: TestClock, rt: fb.Runtime) -> None:
    """0.8 to 1.2 of the delay; where exactly, ``random`` says."""
    draws = iter([0.0, 0.5, 0.75])
    schedule = Schedule.spaced(ms(100)).up_to(3).jittered(random=lambda: next(draws))

    times, exit_ = await times_of(rt, clock, lambda runs: runs.counting().repeat(schedule))

    assert times == [0, 80, 180, 290]
    assert exit_ == Success(3)


@pytest.mark.spec("SD4")
def test_jittered_differs_from_step_to_step() -> None:
    step = Schedule.spaced(1).jittered()._start()

    delays = [step(0.0, None)[1] for _ in range(200)]

    assert len(set(delays)) > 100
    assert all(0.8 <= delay <= 1.2 for delay in delays)


# ---- a schedule of one's own, and what it knows


@pytest.mark.spec("SD4")
async def test_a_schedule_from_a_step_function(clock: TestClock, rt: fb.Runtime) -> None:
    """It is told the time and the input; each run of it starts afresh."""
    seen = list[tuple[float, int]]()

    def start() -> Callable[[float, int], tuple[str, float] | ScheduleDone[str]]:
        delays = iter([ms(10), ms(20)])

        def step(now: float, value: int) -> tuple[str, float] | ScheduleDone[str]:
            seen.append((round(now, 3), value))
            delay = next(delays, None)
            return ScheduleDone("over") if delay is None else ("more", delay)

        return step

    schedule = Schedule.from_step(start)
    times, exit_ = await times_of(rt, clock, lambda runs: runs.counting().repeat(schedule))
    again, _ = await times_of(rt, clock, lambda runs: runs.counting().repeat(schedule))

    assert times == [0, 10, 30]
    assert exit_ == Success("over")
    assert seen[:3] == [(0.0, 1), (0.01, 2), (0.03, 3)]
    assert again == [60_000, 60_010, 60_030]


@pytest.mark.spec("SD4")
async def test_a_step_may_be_an_effect_that_fails(clock: TestClock, rt: fb.Runtime) -> None:
    """Its failure is that of the repeat."""
    boom = Boom()

    def start() -> Callable[[float, object], Effect[tuple[int, float], Boom]]:
        return lambda _now, _input: Effect.fail(boom)

    times, exit_ = await times_of(
        rt, clock, lambda runs: runs.counting().repeat(Schedule.from_step(start))
    )

    assert times == [0]
    assert exit_ == fb.Failure(fb.Cause((fb.Fail(boom),)))


@pytest.mark.spec("SD4")
async def test_a_step_that_raises_is_a_defect(clock: TestClock, rt: fb.Runtime) -> None:
    boom = Boom()

    def refuse(_: object) -> bool:
        raise boom

    schedule = Schedule.forever().while_(refuse)
    times, exit_ = await times_of(rt, clock, lambda runs: runs.counting().repeat(schedule))

    assert times == [0]
    assert exit_ == fb.Failure(fb.Cause((fb.Die(boom),)))


@pytest.mark.spec("SD1")
async def test_the_metadata_of_a_step(clock: TestClock, rt: fb.Runtime) -> None:
    seen = list[ScheduleMetadata[int, Any]]()
    schedule = Schedule.spaced(ms(250)).tap(lambda m: seen.append(m)).up_to(1)

    await rt.run(clock.adjust(1))
    await times_of(rt, clock, lambda runs: runs.taking(500).map(lambda _: "v").repeat(schedule))

    assert seen == [
        ScheduleMetadata("v", 0, 0.25, 1, 1.5, 1.5, 0.0, 0.0),
        ScheduleMetadata("v", 1, 0.25, 2, 1.5, 2.25, 0.75, 0.75),
    ]


@pytest.mark.spec("SD1")
async def test_a_run_sees_the_step_before_it(clock: TestClock, rt: fb.Runtime) -> None:
    """CurrentMetadata: attempt 0 in the first run and outside."""
    seen = list[tuple[int, object, float]]()

    @fb.effect
    async def run() -> str:
        m = await fb.CurrentMetadata
        seen.append((m.attempt, m.output, m.duration))
        return f"value {m.attempt}"

    @fb.effect
    async def main() -> int:
        await run().repeat(Schedule.spaced(0.5).up_to(2))
        return (await fb.CurrentMetadata).attempt

    fiber = rt.run_fork(main())
    await rt.run(clock.adjust(2))

    assert seen == [(0, None, 0.0), (1, 0, 0.5), (2, 1, 0.5)]
    assert fiber.poll() == Success(0)


@pytest.mark.spec("SD1")
async def test_a_repeat_in_a_repeat_has_metadata_of_its_own(rt: fb.Runtime) -> None:
    """The outer one's are back after it."""
    seen = list[str]()

    inner = noting(seen, "i").repeat(times=1)
    outer = inner.flat_map(lambda _: noting(seen, "o")).repeat(times=1)
    await rt.run(outer)

    assert seen == ["i0", "i1", "o0", "i0", "i1", "o1"]


@pytest.mark.spec("SD1", "EX14")
@pytest.mark.parametrize("way", ["repeat", "retry", "defect"])
async def test_the_metadata_outside_are_back_after_a_failure(way: str, rt: fb.Runtime) -> None:
    seen = list[str]()
    failing: Effect[None, Boom] = Effect.fail(Boom())

    def broken(_: Boom) -> bool:
        raise ZeroDivisionError

    again = {
        "repeat": failing.repeat(times=1),
        "retry": failing.retry(times=1),
        "defect": failing.retry(until=broken),
    }
    await rt.run(again[way].catch_cause(lambda _: noting(seen, "o")).repeat(times=2))

    assert seen == ["o0", "o1", "o2"]


def noting(seen: list[str], name: str) -> Effect[None]:
    """Write down the name and the attempt in context."""
    return fb.CurrentMetadata.map(lambda m: seen.append(f"{name}{m.attempt}"))


# ---- PD18: bad arguments


@pytest.mark.spec("PD18")
@pytest.mark.parametrize(
    "make",
    [
        lambda: Schedule.recurs(-1),
        lambda: Schedule.recurs(True),
        lambda: Schedule.spaced(-1),
        lambda: Schedule.spaced(math.nan),
        lambda: Schedule.fixed(-0.1),
        lambda: Schedule.fixed(math.inf),
        lambda: Schedule.windowed(-0.1),
        lambda: Schedule.exponential(-1),
        lambda: Schedule.exponential(1, 0),
        lambda: Schedule.fibonacci(-1),
        lambda: Schedule.duration(-1),
        lambda: Schedule.during(-1),
        lambda: Schedule.forever().up_to(),
        lambda: Schedule.forever().up_to(1.5),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # what it is about
        lambda: Schedule.forever().up_to(duration=-1),
    ],
)
def test_a_bad_argument_of_a_schedule_is_a_value_error(make: Callable[[], object]) -> None:
    with pytest.raises(ValueError):
        make()


@pytest.mark.spec("PD18")
async def test_a_negative_delay_of_a_callback_is_a_defect(clock: TestClock, rt: fb.Runtime) -> None:
    schedule = Schedule.forever().modify_delay(lambda _: -1)

    _, exit_ = await times_of(rt, clock, lambda runs: Runs(clock).counting().repeat(schedule))

    assert isinstance(exit_, fb.Failure)
    assert "negative" in str(exit_.failure())
