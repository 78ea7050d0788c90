"""What both checkers have to refuse about schedules, generator bodies and async iteration."""

from __future__ import annotations

from collections.abc import AsyncIterator

import fibers as fb
from fibers import Effect, EffectGen, Schedule
from tests.typing.kit import Denied, NotFound, User, load

# ---- generator bodies


@fb.effect
def an_undeclared_error() -> EffectGen[User, Denied]:
    return (yield from load("u1"))  # rejected: misc, reportReturnType


@fb.effect
def an_error_where_none_is_declared() -> EffectGen[User]:
    return (yield from load("u1"))  # rejected: misc, reportReturnType


@fb.effect
def one_of_two_declared(check: Effect[bool, Denied]) -> EffectGen[User, NotFound]:
    yield from check  # rejected: misc, reportReturnType
    return (yield from load("u1"))


@fb.effect
def an_error_of_a_helper(helper: EffectGen[User, NotFound]) -> EffectGen[User]:
    return (yield from helper)  # rejected: misc, reportReturnType


@fb.effect
def another_value() -> EffectGen[str, NotFound]:
    return (yield from load("u1"))  # rejected: return-value, reportReturnType


@fb.effect
def no_effect_to_yield_from() -> EffectGen[int]:
    yield from [1, 2]  # rejected: misc, reportReturnType
    return 1


def what_a_generator_may_fail_with() -> Effect[User]:
    @fb.effect
    def body() -> EffectGen[User, NotFound]:
        return (yield from load("u1"))

    return body()  # rejected: return-value, reportReturnType


def raises_on_a_generator() -> None:
    def body() -> EffectGen[User, NotFound]:
        return (yield from load("u1"))

    fb.effect(raises=NotFound)(body)  # rejected: arg-type, reportArgumentType


# ---- schedules


def a_number_of_times_is_no_schedule(work: Effect[int]) -> None:
    work.repeat(3)  # rejected: call-overload, reportArgumentType


def a_retry_of_a_number(may: Effect[int, NotFound]) -> None:
    may.retry(3)  # rejected: arg-type, reportArgumentType


def a_schedule_for_another_input(may: Effect[int, NotFound]) -> None:
    for_denied = Schedule.recurs(3).for_input(Denied)
    may.retry(for_denied)  # rejected: arg-type, reportArgumentType


def a_predicate_of_another_error(may: Effect[int, NotFound]) -> None:
    def wanted(error: Denied) -> bool:
        return bool(error.rule)

    may.retry(while_=wanted)  # rejected: arg-type, reportArgumentType


def the_output_is_not_the_value(work: Effect[User]) -> Effect[User]:
    return work.repeat(Schedule.recurs(3))  # rejected: arg-type, reportReturnType


def a_retried_error_does_not_get_lost(may: Effect[int, NotFound]) -> Effect[int]:
    return may.retry(times=3)  # rejected: return-value, reportReturnType


def the_error_of_a_schedule_does_not_get_lost(
    work: Effect[int], schedule: Schedule[int, object, Denied]
) -> Effect[int]:
    return work.repeat(schedule)  # rejected: arg-type, reportReturnType


# ---- async iteration


def a_callback_to_a_plain_value(items: AsyncIterator[int]) -> None:
    fb.for_each_async(items, lambda n: n + 1)  # rejected: arg-type, reportArgumentType


def an_error_of_the_loop_does_not_get_lost(items: AsyncIterator[str]) -> Effect[list[User]]:
    return fb.for_each_async(items, load)  # rejected: arg-type, reportReturnType


def a_close_that_may_fail(pull: Effect[int], last: Effect[None, NotFound]) -> None:
    fb.to_async_iterable(pull, on_close=lambda _: last)  # rejected: arg-type, reportArgumentType
