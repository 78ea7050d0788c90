"""What both checkers have to refuse about effects: the marked lines, and no other."""

from __future__ import annotations

from typing import Any

import fibers as fb
from fibers import Effect
from tests.typing.kit import (
    E1,
    E2,
    E3,
    E4,
    E5,
    E6,
    E7,
    E8,
    E9,
    Denied,
    NotFound,
    User,
    heeding,
    load,
    plain,
)


async def an_await_gives_no_other_type(work: Effect[int]) -> None:
    text: str = await work  # rejected: assignment, reportAssignmentType
    text.upper()


async def an_effect_is_not_its_value() -> str:
    return load("u1").name  # rejected: attr-defined, reportAttributeAccessIssue


def the_parameters_are_checked() -> None:
    load(1)  # rejected: arg-type, reportArgumentType


# ---- raises=


def a_union_in_raises() -> None:
    @fb.effect(raises=NotFound | Denied)  # rejected: operator, reportCallIssue
    async def body() -> None: ...


def an_instance_in_raises() -> None:
    fb.effect(raises=NotFound())  # rejected: call-overload, reportCallIssue


def no_exception_class_in_raises() -> None:
    fb.effect(raises=KeyboardInterrupt)  # rejected: type-var, reportArgumentType


def nine_classes_in_raises() -> None:
    nine = (E1, E2, E3, E4, E5, E6, E7, E8, E9)
    fb.effect(raises=nine)  # rejected: arg-type, reportCallIssue


def no_coroutine_function() -> None:
    def length(text: str) -> int:
        return len(text)

    fb.effect(length)  # rejected: arg-type, reportArgumentType


# ---- the error type


def what_may_fail_is_not_what_can_not(may: Effect[int, NotFound]) -> Effect[int]:
    return may  # rejected: return-value, reportReturnType


def an_error_does_not_get_lost(both: Effect[int, NotFound | Denied]) -> Effect[int, NotFound]:
    return both  # rejected: return-value, reportReturnType


def a_caught_error_is_gone(may: Effect[int, NotFound]) -> Effect[int, NotFound]:
    def again(error: NotFound) -> Effect[int, Denied]:
        return Effect.fail(Denied(error.user_id))

    return may.catch(again)  # rejected: arg-type, reportReturnType


def only_an_exception_is_an_error() -> None:
    Effect.fail("no")  # rejected: type-var, reportArgumentType


# ---- callbacks


def map_of_another_type(work: Effect[int]) -> None:
    def upper(text: str) -> str:
        return text.upper()

    work.map(upper)  # rejected: arg-type, reportArgumentType


def flat_map_to_a_plain_value(work: Effect[int]) -> None:
    work.flat_map(lambda n: n + 1)  # rejected: arg-type, reportArgumentType


def catch_of_another_error(may: Effect[int, NotFound]) -> None:
    def recover(error: Denied) -> Effect[int]:
        return Effect.succeed(len(error.rule))

    may.catch(recover)  # rejected: arg-type, reportArgumentType


def catch_of_one_error_of_two(both: Effect[int, NotFound | Denied]) -> None:
    def recover(error: NotFound) -> Effect[int]:
        return Effect.succeed(len(error.user_id))

    both.catch(recover)  # rejected: arg-type, reportArgumentType


def catch_to_a_plain_value(may: Effect[int, NotFound]) -> None:
    may.catch(lambda e: e.user_id)  # rejected: arg-type, reportArgumentType


def catch_tag_with_a_callback_for_another(may: Effect[int, NotFound]) -> None:
    def recover(error: Denied) -> Effect[int]:
        return Effect.succeed(len(error.rule))

    may.catch_tag(NotFound, recover)  # rejected: arg-type, reportArgumentType


def map_error_to_no_exception(may: Effect[int, NotFound]) -> None:
    may.map_error(lambda e: e.user_id)  # rejected: type-var, reportArgumentType


def a_finalizer_that_may_fail(work: Effect[int], last: Effect[None, NotFound]) -> None:
    work.ensuring(last)  # rejected: arg-type, reportArgumentType


def an_exit_finalizer_that_may_fail(work: Effect[int], last: Effect[None, NotFound]) -> None:
    work.on_exit(lambda _: last)  # rejected: arg-type, reportArgumentType


def an_interrupt_finalizer_that_may_fail(work: Effect[int], last: Effect[Any, NotFound]) -> None:
    work.on_interrupt(lambda _: last)  # rejected: arg-type, reportArgumentType


# ---- promises


def a_coroutine_instead_of_a_thunk() -> None:
    Effect.promise(plain())  # rejected: call-overload, reportArgumentType


def a_thunk_with_a_signal_that_nobody_gives() -> None:
    Effect.promise(heeding)  # rejected: arg-type, reportArgumentType


def a_thunk_without_a_signal_that_gets_one() -> None:
    Effect.promise(plain, signal=True)  # rejected: call-overload, reportArgumentType


def catch_that_makes_no_exception() -> None:
    Effect.try_promise(plain, catch=str)  # rejected: type-var, reportArgumentType


# ---- the rest


def a_duration_in_words(work: Effect[int]) -> None:
    work.timeout("1 s")  # rejected: arg-type, reportArgumentType


def a_service_of_another_type(work: Effect[int], tag: fb.Tag[User]) -> None:
    work.provide_service(tag, "ada")  # rejected: misc, reportArgumentType
