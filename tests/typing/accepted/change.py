"""The combinators: what they make of the value's and of the error's type."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Never, assert_type

from returns.maybe import Maybe

from fibers import Cause, CauseError, Effect, Exit
from tests.typing.kit import Denied, NotFound, User


def save(user: User) -> Effect[int, Denied]:
    return Effect.succeed(len(user.name))


def exit_of(user: User) -> Exit[int, Denied]:
    raise NotImplementedError(user)


def values(load: Effect[User, NotFound], other: Effect[str, Denied]) -> None:
    assert_type(load.map(lambda user: user.name), Effect[str, NotFound])
    assert_type(load.flat_map(save), Effect[int, NotFound | Denied])
    assert_type(load.flat_map(lambda user: save(user)), Effect[int, NotFound | Denied])
    assert_type(load.flat_map(exit_of), Effect[int, NotFound | Denied])
    assert_type(load.tap(lambda user: Effect.succeed(user)), Effect[User, NotFound])
    assert_type(load.tap(save), Effect[User, NotFound | Denied])
    assert_type(load.zip(other), Effect[tuple[User, str], NotFound | Denied])
    assert_type(load.zip(other, concurrent=True), Effect[tuple[User, str], NotFound | Denied])
    assert_type(load.forever(), Effect[Never, NotFound])


def what_cannot_fail_adds_no_error(count: Effect[int]) -> None:
    assert_type(count.flat_map(lambda n: Effect.succeed(str(n))), Effect[str, Never])
    assert_type(count.zip(count), Effect[tuple[int, int], Never])


def recoveries(load: Effect[User, NotFound], two: Effect[int, NotFound | Denied]) -> None:
    assert_type(load.catch(lambda e: Effect.succeed(e.user_id)), Effect[User | str, Never])
    assert_type(load.catch(lambda e: Effect.fail(Denied(e.user_id))), Effect[User, Denied])
    assert_type(
        load.catch_cause(lambda cause: Effect.succeed(cause)), Effect[User | Cause[NotFound], Never]
    )
    assert_type(
        load.catch_defect(lambda defect: Effect.succeed(defect)),
        Effect[User | BaseException, NotFound],
    )
    assert_type(
        two.catch_if(lambda e: isinstance(e, Denied), lambda _e: Effect.succeed(None)),
        Effect[int | None, NotFound | Denied],
    )


def a_caught_tag_stays_in_the_error_type(two: Effect[int, NotFound | Denied]) -> None:
    """Python has no type for "this union without NotFound": catch() names all that is left."""

    def name(error: NotFound) -> Effect[str]:
        return Effect.succeed(error.user_id)

    def again(error: NotFound) -> Effect[str, ValueError]:
        return Effect.fail(ValueError(error.user_id))

    assert_type(two.catch_tag(NotFound, name), Effect[int | str, NotFound | Denied])
    assert_type(two.catch_tag(NotFound, again), Effect[int | str, NotFound | Denied | ValueError])


def both_types_of_an_error_can_be_caught(two: Effect[int, NotFound | Denied]) -> None:
    def either(error: NotFound | Denied) -> Effect[str]:
        return Effect.succeed(str(error))

    assert_type(two.catch(either), Effect[int | str, Never])


def errors(load: Effect[User, NotFound]) -> None:
    assert_type(load.map_error(lambda e: Denied(e.user_id)), Effect[User, Denied])
    assert_type(load.or_die(), Effect[User, Never])
    assert_type(load.ignore(), Effect[None, Never])
    assert_type(load.sandbox(), Effect[User, CauseError[NotFound]])


def ways_out(load: Effect[User, NotFound]) -> None:
    assert_type(load.exit(), Effect[Exit[User, NotFound], Never])
    assert_type(
        load.match(on_success=lambda user: user.name, on_failure=lambda e: len(e.user_id)),
        Effect[str | int, Never],
    )


def finalizers(load: Effect[User, NotFound], log: Effect[Any]) -> None:
    def on_exit(exit_: Exit[User, NotFound]) -> Effect[None]:
        return Effect.succeed(None)

    assert_type(load.on_exit(on_exit), Effect[User, NotFound])
    assert_type(load.on_interrupt(lambda ids: Effect.succeed(max(ids))), Effect[User, NotFound])
    assert_type(load.on_error(lambda cause: Effect.succeed(cause)), Effect[User, NotFound])
    assert_type(load.ensuring(log), Effect[User, NotFound])


def regions(load: Effect[User, NotFound]) -> None:
    assert_type(load.interruptible(), Effect[User, NotFound])
    assert_type(load.uninterruptible(), Effect[User, NotFound])
    assert_type(load.await_all_children(), Effect[User, NotFound])


def time(load: Effect[User, NotFound]) -> None:
    assert_type(load.timeout(1.5), Effect[User, NotFound | TimeoutError])
    assert_type(load.timeout(timedelta(seconds=1)), Effect[User, NotFound | TimeoutError])
    assert_type(load.timeout_option(1), Effect[Maybe[User], NotFound])
    assert_type(load.timeout_or_else(1, lambda: Effect.succeed(0)), Effect[User | int, NotFound])
    assert_type(
        load.timeout_or_else(1, lambda: Effect.fail(Denied())), Effect[User, NotFound | Denied]
    )


def covariant_in_the_value(work: Effect[bool, NotFound]) -> Effect[int, NotFound]:
    return work


def covariant_in_the_error(work: Effect[int, NotFound]) -> Effect[int, NotFound | Denied]:
    return work


def what_cannot_fail_fits_wherever_something_may(work: Effect[int]) -> Effect[object, Exception]:
    return work
