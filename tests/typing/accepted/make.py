"""Effects made from values, functions, coroutines and callbacks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Never, assert_type

import fibers as fb
from fibers import Cause, Effect, Exit, UnknownError
from tests.typing.kit import Denied, NotFound, User, heeding, plain


def not_found(exc: Exception) -> NotFound:
    return NotFound(exc)


def values_and_failures(cause: Cause[NotFound], user: User) -> None:
    assert_type(Effect.succeed(user), Effect[User, Never])
    assert_type(Effect.fail(NotFound()), Effect[Never, NotFound])
    assert_type(Effect.die(ValueError()), Effect[Never, Never])
    assert_type(Effect.fail_cause(cause), Effect[Never, NotFound])
    assert_type(Effect.sync(lambda: 1), Effect[int, Never])
    assert_type(Effect.never(), Effect[Never, Never])
    assert_type(Effect.interrupt(), Effect[Never, Never])
    assert_type(Effect.yield_now(), Effect[None, Never])
    assert_type(fb.sleep(1.0), Effect[None, Never])


def an_exit_back_into_an_effect(exit_: Exit[User, NotFound]) -> None:
    assert_type(Effect.from_exit(exit_), Effect[User, NotFound])


def made_when_it_runs(load: Effect[User, NotFound], exit_: Exit[User, Denied]) -> None:
    assert_type(Effect.suspend(lambda: load), Effect[User, NotFound])
    assert_type(Effect.suspend(lambda: exit_), Effect[User, Denied])


def a_promise_has_no_typed_error(future: asyncio.Future[User]) -> None:
    assert_type(Effect.promise(plain), Effect[User, Never])
    assert_type(Effect.promise(lambda: future), Effect[User, Never])
    assert_type(Effect.promise(heeding, signal=True), Effect[User, Never])


def a_tried_promise_fails_with_what_catch_makes() -> None:
    assert_type(Effect.try_promise(plain), Effect[User, UnknownError])
    assert_type(Effect.try_promise(plain, catch=not_found), Effect[User, NotFound])
    assert_type(Effect.try_promise(plain, catch=lambda exc: Denied(exc)), Effect[User, Denied])
    assert_type(Effect.try_promise(heeding, signal=True), Effect[User, UnknownError])
    assert_type(Effect.try_promise(heeding, catch=not_found, signal=True), Effect[User, NotFound])


def a_callback_takes_its_types_from_register() -> None:
    def register(
        resume: Callable[[Exit[int, NotFound] | Effect[int, NotFound]], None],
    ) -> Effect[Any, Never] | None:
        resume(Effect.succeed(1))
        return None

    assert_type(Effect.callback(register), Effect[int, NotFound])
    wanted: Effect[int, Denied] = Effect.callback(lambda resume: resume(Effect.fail(Denied())))
    assert_type(wanted, Effect[int, Denied])


def restore_keeps_the_type_of_what_it_is_given(
    connect: Effect[str, NotFound], use: Effect[User, Denied]
) -> None:
    assert_type(
        Effect.uninterruptible_mask(lambda restore: restore(connect)), Effect[str, NotFound]
    )
    assert_type(
        Effect.uninterruptible_mask(
            lambda restore: restore(connect).flat_map(lambda _: restore(use))
        ),
        Effect[User, NotFound | Denied],
    )


def restore_can_be_named_by_a_plain_callable(work: Effect[int, NotFound]) -> None:
    def masked(
        restore: Callable[[Effect[int, NotFound]], Effect[int, NotFound]],
    ) -> Effect[int, NotFound]:
        return restore(work)

    assert_type(Effect.uninterruptible_mask(masked), Effect[int, NotFound])
