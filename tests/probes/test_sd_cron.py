"""Probes SD: times of day."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from freezegun import freeze_time

import fibers as fb
from fibers import Effect, Schedule
from fibers.testing import TestClock, TestLoop

BERLIN = ZoneInfo("Europe/Berlin")


async def first_times(
    rt: fb.Runtime, clock: TestClock, schedule: Schedule[datetime], count: int
) -> list[datetime]:
    """The times for which the first ``count`` repetitions waited."""
    times: list[datetime] = []
    due = schedule.up_to(count).tap(lambda m: Effect.sync(lambda: times.append(m.output)))
    fiber = rt.run_fork(Effect.succeed(None).repeat(due))
    await rt.run(clock.adjust(400 * 86_400))
    await fiber
    return times


@freeze_time("2026-03-28 01:59:30", real_asyncio=True)
async def test_it_waits_for_each_time_that_the_expression_names(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """Half a minute to the first, then hour by hour, on the clock in context."""
    starts: list[float] = []
    run = Effect.sync(lambda: starts.append(clock.now()))
    fiber = rt.run_fork(run.repeat(Schedule.cron("0 * * * *", UTC).up_to(3)))

    await rt.run(clock.adjust(3 * 3600))

    assert starts == [0, 30, 3630, 7230]
    assert fiber.done()


@freeze_time("2026-03-28 12:00:00", real_asyncio=True)
async def test_a_time_that_daylight_saving_skips_comes_once(
    rt: fb.Runtime, clock: TestClock
) -> None:
    times = await first_times(rt, clock, Schedule.cron("30 2 * * *", BERLIN), 2)

    assert [t.isoformat() for t in times[:2]] == [
        "2026-03-29T03:00:00+02:00",
        "2026-03-30T02:30:00+02:00",
    ]


def test_virtual_time_takes_the_date_along() -> None:
    """On a TestLoop too, where the clock is the live one."""
    import asyncio

    async def main() -> float:
        loop = asyncio.get_running_loop()
        await Effect.succeed(None).repeat(Schedule.cron("0 0 * * *", UTC).up_to(10))
        return loop.time()

    with asyncio.Runner(loop_factory=TestLoop) as runner:
        assert 9 * 86_400 <= runner.run(main()) <= 10 * 86_400


@pytest.mark.parametrize("expression", ["", "61 * * * *", "* * *", "0 0 31 2 *", "x"])
def test_what_is_no_expression_is_refused(expression: str) -> None:
    with pytest.raises(ValueError, match="not a cron expression"):
        Schedule.cron(expression)


def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cronsim", None)

    with pytest.raises(ModuleNotFoundError, match=r"fiberscope\[cron\]"):
        Schedule.cron("* * * * *")


async def test_an_expression_without_a_time_ends_at_once(rt: fb.Runtime) -> None:
    """A last of February that is a fifth Monday: there is none within the reach of the library."""
    runs = list[int]()
    run = Effect.sync(lambda: runs.append(1))

    last = await rt.run(run.repeat(Schedule.cron("0 0 */31 2 MON#5", UTC)))

    assert runs == [1]
    assert last is None
