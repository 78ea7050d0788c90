"""Probes SD1, SD2, SD5: what is run again, what is not, and what comes out of it."""

from __future__ import annotations

import asyncio
from typing import Never

import pytest

import fibers as fb
from fibers import Cause, Die, Effect, Fail, Failure, Interrupt, Schedule, Success
from fibers.testing import TestClock
from tests.memory import peak_bytes
from tests.probes.kit_s import Boom, Runs, ms, times_of

# ---- SD1, SD5: repeat


@pytest.mark.spec("SD1")
async def test_repeat_times_gives_the_last_value(clock: TestClock, rt: fb.Runtime) -> None:
    """Twice more after the first run."""
    times, exit_ = await times_of(rt, clock, lambda runs: runs.counting().repeat(times=2))

    assert times == [0, 0, 0]
    assert exit_ == Success(3)


@pytest.mark.spec("SD1")
async def test_repeat_times_0_is_one_run(clock: TestClock, rt: fb.Runtime) -> None:
    times, exit_ = await times_of(rt, clock, lambda runs: runs.counting().repeat(times=0))

    assert times == [0]
    assert exit_ == Success(1)


@pytest.mark.spec("SD1")
async def test_repeat_while_gives_the_value_that_ended_it(clock: TestClock, rt: fb.Runtime) -> None:
    _, exit_ = await times_of(
        rt, clock, lambda runs: runs.counting().repeat(while_=lambda n: n < 3)
    )

    assert exit_ == Success(3)


@pytest.mark.spec("SD1")
async def test_repeat_until_takes_an_effect(clock: TestClock, rt: fb.Runtime) -> None:
    times, exit_ = await times_of(
        rt,
        clock,
        lambda runs: runs.counting().repeat(until=lambda n: fb.sleep(ms(10)).map(lambda _: n == 3)),
    )

    assert times == [0, 10, 20]
    assert exit_ == Success(3)


@pytest.mark.spec("SD1")
async def test_repeat_on_a_schedule_with_a_limit_gives_the_last_value(
    clock: TestClock, rt: fb.Runtime
) -> None:
    """The delays are the schedule's; the first end ends it."""
    spaced = Schedule.spaced(ms(100))

    times, exit_ = await times_of(rt, clock, lambda runs: runs.counting().repeat(spaced, times=2))
    short_times, short = await times_of(
        rt, clock, lambda runs: runs.counting().repeat(spaced.up_to(1), until=lambda n: n == 9)
    )

    assert (times, exit_) == ([0, 100, 200], Success(3))
    assert (short_times, short) == ([60_000, 60_100], Success(2))


@pytest.mark.spec("SD5")
async def test_a_failure_ends_a_repeat_at_once(clock: TestClock, rt: fb.Runtime) -> None:
    boom = Boom()

    def run(runs: Runs) -> Effect[int, Boom]:
        return runs.counting().flat_map(
            lambda n: Effect.fail(boom) if n == 2 else Effect.succeed(n)
        )

    times, exit_ = await times_of(rt, clock, lambda runs: run(runs).repeat(Schedule.spaced(ms(10))))

    assert times == [0, 10]
    assert exit_ == Failure(Cause((Fail(boom),)))


# ---- SD2, SD5: retry


@pytest.mark.spec("SD2")
async def test_retry_fails_with_the_last_error(clock: TestClock, rt: fb.Runtime) -> None:
    """The very object; recurs(2) is three runs."""
    errors = [Boom("e1"), Boom("e2"), Boom("e3")]

    times, exit_ = await times_of(
        rt, clock, lambda runs: runs.failing(errors).retry(Schedule.recurs(2))
    )

    assert times == [0, 0, 0]
    assert exit_ == Failure(Cause((Fail(errors[2]),)))


@pytest.mark.spec("SD2")
async def test_retry_waits_as_the_schedule_says(clock: TestClock, rt: fb.Runtime) -> None:
    backoff = Schedule.exponential(ms(100)).up_to(4)

    times, exit_ = await times_of(
        rt, clock, lambda runs: runs.failing(Boom() for _ in range(9)).retry(backoff)
    )

    assert times == [0, 100, 300, 700, 1500]
    assert isinstance(exit_, Failure)


@pytest.mark.spec("SD2")
async def test_a_retry_that_succeeds_gives_the_value(clock: TestClock, rt: fb.Runtime) -> None:
    times, exit_ = await times_of(
        rt, clock, lambda runs: runs.failing([Boom(), Boom()]).retry(Schedule.spaced(ms(10)))
    )

    assert times == [0, 10, 20]
    assert exit_ == Success(3)


@pytest.mark.spec("SD2")
async def test_retry_times(clock: TestClock, rt: fb.Runtime) -> None:
    errors = [Boom("e1"), Boom("e2"), Boom("e3")]

    times, exit_ = await times_of(rt, clock, lambda runs: runs.failing(errors).retry(times=1))

    assert times == [0, 0]
    assert exit_ == Failure(Cause((Fail(errors[1]),)))


@pytest.mark.spec("SD5")
async def test_retry_until_an_error_says_so(clock: TestClock, rt: fb.Runtime) -> None:
    """It fails with that error."""
    errors = [Boom(1), Boom(2), Boom(3), Boom(4)]

    times, exit_ = await times_of(
        rt, clock, lambda runs: runs.failing(errors).retry(until=lambda e: e.args[0] == 3)
    )

    assert times == [0, 0, 0]
    assert exit_ == Failure(Cause((Fail(errors[2]),)))


@pytest.mark.spec("SD5")
async def test_retry_while_an_error_says_so(clock: TestClock, rt: fb.Runtime) -> None:
    """Together with a schedule and a number, whichever ends first."""
    errors = [Boom(1), Boom(2), Boom(3), Boom(4)]

    times, exit_ = await times_of(
        rt,
        clock,
        lambda runs: runs.failing(errors).retry(
            Schedule.spaced(ms(10)), times=9, while_=lambda e: e.args[0] < 2
        ),
    )

    assert times == [0, 10]
    assert exit_ == Failure(Cause((Fail(errors[1]),)))


@pytest.mark.spec("SD5")
async def test_a_schedule_of_a_retry_is_told_the_error(clock: TestClock, rt: fb.Runtime) -> None:
    """A server that says when to come back is obeyed."""

    class Busy(Exception):
        def __init__(self, retry_after: float) -> None:
            super().__init__(retry_after)
            self.retry_after = retry_after

    def run(runs: Runs) -> Effect[int, Busy]:
        return runs.counting().flat_map(
            lambda n: Effect.succeed(n) if n == 3 else Effect.fail(Busy(ms(40) * n))
        )

    obedient = Schedule.forever().for_input(Busy).modify_delay(lambda m: m.input.retry_after)
    times, exit_ = await times_of(rt, clock, lambda runs: run(runs).retry(obedient))

    assert times == [0, 40, 120]
    assert exit_ == Success(3)


@pytest.mark.spec("SD5")
async def test_a_defect_is_not_retried(clock: TestClock, rt: fb.Runtime) -> None:
    boom = Boom()

    times, exit_ = await times_of(
        rt, clock, lambda runs: runs.counting().flat_map(lambda _: Effect.die(boom)).retry(times=5)
    )

    assert times == [0]
    assert exit_ == Failure(Cause((Die(boom),)))


@pytest.mark.spec("SD5", "EX3")
async def test_a_failure_beside_a_defect_is_not_retried(clock: TestClock, rt: fb.Runtime) -> None:
    """Nothing may hide the defect."""
    boom, broken = Boom(), Boom()
    both = Effect.fail_cause(Cause((Fail(boom), Die(broken))))

    times, exit_ = await times_of(
        rt, clock, lambda runs: runs.counting().flat_map(lambda _: both).retry(times=5)
    )

    assert times == [0]
    assert exit_ == Failure(Cause((Die(boom), Die(broken))))


@pytest.mark.spec("SD5")
async def test_an_interrupt_of_its_own_making_is_not_retried(
    clock: TestClock, rt: fb.Runtime
) -> None:
    times, exit_ = await times_of(
        rt,
        clock,
        lambda runs: runs.counting().flat_map(lambda _: Effect.interrupt()).retry(times=5),
    )

    assert times == [0]
    assert isinstance(exit_, Failure)
    assert exit_.failure().has_interrupts_only


@pytest.mark.spec("SD5", "WI5")
@pytest.mark.parametrize("at", [0.0, 0.5])
async def test_an_interrupt_from_outside_ends_a_retry(
    at: float, clock: TestClock, rt: fb.Runtime
) -> None:
    """In a run, and in the wait between two."""
    runs = Runs(clock)
    failing = runs.counting().flat_map(lambda _: fb.sleep(ms(100))).flat_map(_fail)
    fiber = rt.run_fork(failing.retry(Schedule.spaced(10)))

    await rt.run(clock.adjust(at))
    fiber.interrupt_unsafe(by=7)
    await rt.run(clock.adjust(60))

    assert runs.times == [0]
    assert fiber.poll() == Failure(Cause((Interrupt(7),)))


@pytest.mark.spec("SD5", "WI5")
async def test_a_run_that_fails_while_it_is_interrupted_is_not_retried(
    clock: TestClock, rt: fb.Runtime
) -> None:
    """A recovery that is skipped drops the failure, as IN8 has it."""
    runs = Runs(clock)
    masked = fb.sleep(1).flat_map(_fail).uninterruptible()
    fiber = rt.run_fork(runs.counting().flat_map(lambda _: masked).retry(times=5))

    fiber.interrupt_unsafe(by=7)
    await rt.run(clock.adjust(60))

    assert runs.times == [0]
    assert fiber.poll() == Failure(Cause((Interrupt(7),)))


@pytest.mark.spec("SD5")
@pytest.mark.parametrize("at", [0.05, 0.5])
async def test_an_interrupt_ends_a_repeat(at: float, clock: TestClock, rt: fb.Runtime) -> None:
    """In a run, and in the wait between two; its finalizer runs."""
    log = list[str]()
    ended = Effect.sync(lambda: log.append("ended"))
    fiber = rt.run_fork(fb.sleep(ms(100)).repeat(Schedule.spaced(10)).ensuring(ended))

    await rt.run(clock.adjust(at))
    fiber.interrupt_unsafe(by=7)

    assert log == ["ended"]
    assert fiber.poll() == Failure(Cause((Interrupt(7),)))


@pytest.mark.spec("SD5", "IN23")
async def test_a_masked_retry_goes_on_to_its_end(clock: TestClock, rt: fb.Runtime) -> None:
    """Then the interrupt lands."""
    runs = Runs(clock)
    retried = runs.failing([Boom(), Boom()]).retry(Schedule.spaced(1)).uninterruptible()
    fiber = rt.run_fork(retried)

    fiber.interrupt_unsafe(by=7)
    await rt.run(clock.adjust(60))

    assert runs.times == [0, 1000, 2000]
    assert fiber.poll() == Failure(Cause((Interrupt(7),)))


@pytest.mark.spec("SD5", "PD1")
async def test_a_retry_in_the_cleanup_of_an_interrupted_body(
    clock: TestClock, rt: fb.Runtime
) -> None:
    """The interrupt is delivered already: the cleanup may try again."""
    runs = Runs(clock)

    @fb.effect
    async def body() -> None:
        try:
            await Effect.never()
        finally:
            await runs.failing([Boom()]).retry(Schedule.spaced(1)).or_die()

    fiber = rt.run_fork(body())
    fiber.interrupt_unsafe(by=7)
    await rt.run(clock.adjust(5))

    assert runs.times == [0, 1000]
    assert fiber.poll() == Failure(Cause((Interrupt(7),)))


# ---- SD5: retry_or_else


@pytest.mark.spec("SD5")
async def test_retry_or_else_gets_the_last_error_and_output(
    clock: TestClock, rt: fb.Runtime
) -> None:
    errors = [Boom("e1"), Boom("e2"), Boom("e3")]

    times, exit_ = await times_of(
        rt,
        clock,
        lambda runs: runs.failing(errors).retry_or_else(
            Schedule.recurs(2), lambda error, output: Effect.succeed((error, output))
        ),
    )

    assert times == [0, 0, 0]
    assert exit_ == Success((errors[2], 2))


@pytest.mark.spec("SD5")
async def test_retry_or_else_may_fail_otherwise(clock: TestClock, rt: fb.Runtime) -> None:
    """With an effect or an exit."""
    other = Boom("other")

    def with_effect(error: Boom, output: int) -> Effect[Never, Boom]:
        return Effect.fail(other)

    def with_exit(error: Boom, output: int) -> fb.Exit[int, Boom]:
        return Failure(Cause((Fail(other),)))

    for or_else in (with_effect, with_exit):
        _, exit_ = await times_of(
            rt,
            clock,
            lambda runs, or_else=or_else: (  # type: ignore[misc]  # mypy infers no lambda with a default
                runs.failing([Boom()]).retry_or_else(Schedule.recurs(0), or_else)
            ),
        )
        assert exit_ == Failure(Cause((Fail(other),)))


@pytest.mark.spec("SD5")
async def test_retry_or_else_of_a_success_is_the_value(clock: TestClock, rt: fb.Runtime) -> None:
    _, exit_ = await times_of(
        rt,
        clock,
        lambda runs: runs.failing([Boom()]).retry_or_else(
            Schedule.recurs(1), lambda _error, _output: Effect.succeed(-1)
        ),
    )

    assert exit_ == Success(2)


# ---- an effect is a value


@pytest.mark.spec("SD1")
async def test_each_run_of_a_repeat_starts_its_schedule_afresh(
    clock: TestClock, rt: fb.Runtime
) -> None:
    """Two fibers that run it at once don't share its state either."""
    runs = Runs(clock)
    repeated = runs.counting().repeat(Schedule.fibonacci(ms(100)).up_to(3))

    await rt.run(fb.all_([repeated, repeated], concurrency=2).fork_detach())
    await rt.run(clock.adjust(10))

    assert runs.times == [0, 0, 100, 100, 200, 200, 400, 400]


@pytest.mark.spec("SD1")
def test_a_repeat_in_a_plain_task() -> None:
    """On the live clock; a repetition without a delay gives the loop a turn."""
    log = list[str]()

    async def main() -> None:
        asyncio.get_running_loop().call_soon(log.append, "loop")
        await Effect.sync(lambda: log.append("run")).repeat(times=2)

    asyncio.run(main())

    assert log[0] == "run"
    assert log.index("loop") < 3


@pytest.mark.spec("SD1")
def test_a_repeat_without_a_delay_can_be_run_without_a_loop() -> None:
    """A turn of the loop is nothing to wait for (PD15)."""
    assert fb.run_sync(Effect.succeed(5).repeat(Schedule.recurs(3))) == 3


@pytest.mark.slow
@pytest.mark.spec("SD1")
async def test_100_000_rounds_are_flat(clock: TestClock, rt: fb.Runtime) -> None:
    """In memory and in depth, with every kind of step."""

    @fb.effect
    async def run() -> int:
        return 1

    schedule = Schedule.max(
        Schedule.recurs(100_000),
        Schedule.forever().concat(Schedule.forever()).tap(lambda _: Effect.succeed(None)),
        Schedule.during(1).while_(lambda _: Effect.succeed(True)),
    )

    async def rounds(most: int) -> None:
        assert await rt.run(run().repeat(schedule.up_to(most))) == 0.0

    await rounds(100)
    few = await peak_bytes(lambda: rounds(1_000))
    many = await peak_bytes(lambda: rounds(10_000))
    await rt.run(run().repeat(Schedule.recurs(100_000)))

    assert many < few + 20_000


@pytest.mark.spec("SD2")
async def test_100_000_retries_are_flat(rt: fb.Runtime) -> None:
    """The chain of errors is not kept either."""
    boom = Boom()

    @fb.effect(raises=Boom)
    async def run() -> None:
        raise boom

    few = await peak_bytes(lambda: rt.run(run().retry(times=500).ignore()))
    many = await peak_bytes(lambda: rt.run(run().retry(times=5_000).ignore()))
    await rt.run(run().retry(times=100_000).ignore())

    assert many < few + 20_000


# ---- PD18: bad arguments


@pytest.mark.spec("PD18")
@pytest.mark.parametrize(
    ("method", "args", "options"),
    [
        ("repeat", (), {}),
        ("retry", (), {}),
        ("repeat", (3,), {}),
        ("retry", (3,), {}),
        ("retry_or_else", (None, Effect.succeed), {}),
        ("repeat", (), {"times": -1}),
        ("retry", (), {"times": 1.5}),
        ("retry", (), {"times": True}),
    ],
)
def test_bad_arguments_are_a_value_error(
    method: str, args: tuple[object, ...], options: dict[str, object]
) -> None:
    """At the call, not when it runs."""
    call = getattr(Effect.succeed(1), method)

    with pytest.raises(ValueError):
        call(*args, **options)


def _fail(_: object) -> Effect[None, Boom]:
    return Effect.fail(Boom())
