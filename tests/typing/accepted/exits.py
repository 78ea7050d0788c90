"""Exits and causes: what `match` tells apart, and that an exit is a Result of `returns`."""

from __future__ import annotations

from typing import Any, assert_never, assert_type

from returns.result import Result

from fibers import Cause, Die, Exit, Fail, Failure, Interrupt, Success
from tests.typing.kit import Denied, NotFound, User


def match_of_an_exit_is_exhaustive(exit_: Exit[User, NotFound]) -> str:
    match exit_:
        case Success(user):
            assert_type(user, User)
            return user.name
        case Failure(cause):
            assert_type(cause, Cause[NotFound])
            return cause.pretty()
        case _:
            assert_never(exit_)


def match_without_a_default_gives_a_value(exit_: Exit[User, NotFound]) -> int:
    match exit_:
        case Success():
            return 1
        case Failure():
            return 2


def isinstance_tells_the_two_apart(exit_: Exit[User, NotFound]) -> str:
    if isinstance(exit_, Failure):
        assert_type(exit_.failure(), Cause[NotFound])
        return str(exit_.failure())
    assert_type(exit_.unwrap(), User)
    return exit_.unwrap().name


def match_of_a_reason_is_exhaustive(cause: Cause[NotFound]) -> list[str]:
    texts: list[str] = []
    for reason in cause.reasons:
        match reason:
            case Fail(error):
                assert_type(error, NotFound)
                texts.append(error.user_id)
            case Die(defect):
                assert_type(defect, BaseException)
                texts.append(str(defect))
            case Interrupt(by, why):
                assert_type(by, int | None)
                assert_type(why, str | None)
                texts.append(str(by))
            case _:
                assert_never(reason)
    return texts


def an_exit_is_a_result(exit_: Exit[User, NotFound]) -> Result[User, Cause[NotFound]]:
    return exit_


def both_halves_are_exits(user: User, cause: Cause[NotFound]) -> list[Exit[User, NotFound]]:
    return [Success(user), Failure(cause)]


def covariant(exit_: Exit[bool, NotFound]) -> Exit[int, NotFound | Denied]:
    return exit_


def causes(cause: Cause[NotFound], other: Cause[Denied]) -> None:
    assert_type(cause.combine(other), Cause[NotFound | Denied])
    assert_type(cause.map(lambda e: Denied(e.user_id)), Cause[Denied])
    assert_type(cause.failures, tuple[NotFound, ...])
    assert_type(cause.defects, tuple[BaseException, ...])
    assert_type(cause.interruptors, frozenset[int])
    assert_type(cause.squash(), BaseException)
    assert_type(Cause([Fail(NotFound())]), Cause[NotFound])


def a_cause_is_covariant(cause: Cause[NotFound]) -> Cause[NotFound | Denied]:
    return cause


def any_exit(exit_: Exit[User, NotFound]) -> Exit[Any, Any]:
    return exit_
