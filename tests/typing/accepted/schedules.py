"""What `repeat`, `retry` and the combinators of a Schedule give."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Never, assert_type

from fibers import CurrentMetadata, Effect, Schedule, ScheduleDone, ScheduleMetadata
from tests.typing.kit import Denied, NotFound, User, load


def made() -> None:
    assert_type(Schedule.recurs(3), Schedule[int, object, Never])
    assert_type(Schedule.spaced(timedelta(seconds=1)), Schedule[int])
    assert_type(Schedule.exponential(0.1), Schedule[float])
    assert_type(Schedule.during(60), Schedule[float])


def a_schedule_alone_gives_its_output(may: Effect[User, NotFound]) -> None:
    assert_type(may.repeat(Schedule.recurs(3)), Effect[int, NotFound])
    assert_type(may.repeat(Schedule.exponential(1)), Effect[float, NotFound])


def with_a_limit_it_is_the_last_value(may: Effect[User, NotFound]) -> None:
    assert_type(may.repeat(times=3), Effect[User, NotFound])
    assert_type(may.repeat(Schedule.spaced(1), times=3), Effect[User, NotFound])
    assert_type(may.repeat(until=lambda user: user.name == "ada"), Effect[User, NotFound])
    assert_type(
        may.repeat(while_=lambda user: Effect.succeed(bool(user.name))), Effect[User, NotFound]
    )


def what_cannot_fail_still_cannot(work: Effect[int]) -> None:
    assert_type(work.repeat(Schedule.recurs(3)), Effect[int, Never])
    assert_type(work.repeat(times=3), Effect[int, Never])


def retry_keeps_value_and_error(may: Effect[User, NotFound]) -> None:
    assert_type(may.retry(Schedule.recurs(3)), Effect[User, NotFound])
    assert_type(may.retry(times=3), Effect[User, NotFound])
    assert_type(may.retry(until=lambda error: error.user_id == "u1"), Effect[User, NotFound])
    assert_type(
        may.retry(Schedule.spaced(1), times=3, while_=lambda error: bool(error.user_id)),
        Effect[User, NotFound],
    )


def retry_or_else_has_the_error_of_the_other(may: Effect[User, NotFound]) -> None:
    assert_type(
        may.retry_or_else(Schedule.recurs(3), lambda error, n: Effect.succeed((error, n))),
        Effect[User | tuple[NotFound, int], Never],
    )
    assert_type(
        may.retry_or_else(Schedule.recurs(3), lambda error, n: load(error.user_id)),
        Effect[User, NotFound],
    )


def a_schedule_that_may_fail_adds_its_error(
    may: Effect[User, NotFound], schedule: Schedule[str, object, Denied]
) -> None:
    assert_type(may.repeat(schedule), Effect[str, NotFound | Denied])
    assert_type(may.repeat(schedule, times=3), Effect[User, NotFound | Denied])
    assert_type(may.retry(schedule), Effect[User, NotFound | Denied])
    assert_type(schedule.concat(Schedule.recurs(1)), Schedule[str | int, object, Denied])
    assert_type(schedule.max(Schedule.recurs(1)), Schedule[float, object, Denied])


def combined() -> None:
    recurs, backoff = Schedule.recurs(3), Schedule.exponential(0.1)
    assert_type(Schedule.max(recurs, backoff), Schedule[float, object, Never])
    assert_type(recurs.min(backoff, backoff), Schedule[float, object, Never])
    assert_type(recurs.concat(backoff), Schedule[int | float, object, Never])
    assert_type(backoff.jittered().up_to(3), Schedule[float, object, Never])


def changed(may: Effect[int, NotFound]) -> None:
    recurs = Schedule.recurs(3)
    assert_type(recurs.map(lambda m: str(m.output)), Schedule[str, object, Never])
    assert_type(recurs.map(lambda m: Effect.succeed(m.output)), Schedule[int, object, Never])
    assert_type(recurs.map(lambda m: may), Schedule[int, object, NotFound])
    assert_type(recurs.while_(lambda m: m.output < 2), Schedule[int, object, Never])
    assert_type(recurs.tap(lambda m: may), Schedule[int, object, NotFound])
    assert_type(recurs.modify_delay(lambda m: m.duration * 2), Schedule[int, object, Never])
    assert_type(recurs.add_delay(lambda m: timedelta(1)), Schedule[int, object, Never])


def an_input_that_is_known(may: Effect[User, NotFound]) -> None:
    for_errors = Schedule.recurs(3).for_input(NotFound)
    assert_type(for_errors, Schedule[int, NotFound, Never])
    assert_type(for_errors.map(lambda m: m.input.user_id), Schedule[str, NotFound, Never])
    assert_type(for_errors.passthrough(), Schedule[NotFound, NotFound, Never])
    assert_type(
        may.retry(for_errors.while_(lambda m: m.input.user_id != "")), Effect[User, NotFound]
    )


def of_ones_own() -> None:
    def step(now: float, error: NotFound) -> tuple[str, float] | ScheduleDone[str]:
        return ScheduleDone("over") if now > 60 else (error.user_id, 1.0)

    assert_type(Schedule.from_step(lambda: step), Schedule[str, NotFound, Never])


async def metadata() -> None:
    assert_type(await CurrentMetadata, ScheduleMetadata[Any, Any])
    m: ScheduleMetadata[int, NotFound] = ScheduleMetadata(NotFound(), 1, 0.5, 1, 0, 0, 0, 0)
    assert_type(m.output, int)
    assert_type(m.input, NotFound)
    assert_type(m.elapsed_since_previous, float)
