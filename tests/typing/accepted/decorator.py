"""What `@effect` makes of a coroutine function, and what an await of it gives."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Never, assert_type

import fibers as fb
from fibers import Effect
from tests.typing.kit import E1, E2, E3, E4, E5, E6, E7, E8, Denied, NotFound, User, load


@fb.effect
async def count() -> int:
    return 1


@fb.effect(raises=(NotFound,))
async def one() -> int:
    return 1


@fb.effect(raises=(NotFound, Denied))
async def two() -> int:
    return 2


@fb.effect(raises=(E1, E2, E3))
async def three() -> int:
    return 3


@fb.effect(raises=(E1, E2, E3, E4))
async def four() -> int:
    return 4


@fb.effect(raises=(E1, E2, E3, E4, E5))
async def five() -> int:
    return 5


@fb.effect(raises=(E1, E2, E3, E4, E5, E6))
async def six() -> int:
    return 6


@fb.effect(raises=(E1, E2, E3, E4, E5, E6, E7))
async def seven() -> int:
    return 7


@fb.effect(raises=(E1, E2, E3, E4, E5, E6, E7, E8))
async def eight() -> int:
    return 8


def declared_errors() -> None:
    assert_type(count(), Effect[int, Never])
    assert_type(one(), Effect[int, NotFound])
    assert_type(two(), Effect[int, NotFound | Denied])
    assert_type(three(), Effect[int, E1 | E2 | E3])
    assert_type(four(), Effect[int, E1 | E2 | E3 | E4])
    assert_type(five(), Effect[int, E1 | E2 | E3 | E4 | E5])
    assert_type(six(), Effect[int, E1 | E2 | E3 | E4 | E5 | E6])
    assert_type(seven(), Effect[int, E1 | E2 | E3 | E4 | E5 | E6 | E7])
    assert_type(eight(), Effect[int, E1 | E2 | E3 | E4 | E5 | E6 | E7 | E8])


def the_parameters_stay() -> None:
    assert_type(load("u1", fresh=True), Effect[User, NotFound])
    named: Callable[[str], Effect[User, NotFound]] = load
    assert_type(named("u1"), Effect[User, NotFound])


def an_effect_without_an_error_type_fails_with_nothing(work: Effect[int]) -> None:
    assert_type(work, Effect[int, Never])


async def an_await_gives_the_value() -> None:
    assert_type(await count(), int)
    assert_type(await load("u1"), User)
    assert_type(await two(), int)


def a_decorated_function_of_others(plain: Callable[[str], Awaitable[User]]) -> None:
    assert_type(fb.effect(plain)("u1"), Effect[User, Never])
    assert_type(fb.effect(raises=NotFound)(plain)("u1"), Effect[User, NotFound])


class Repository:
    """Methods can be effects."""

    @fb.effect(raises=NotFound)
    async def load(self, user_id: str) -> User:
        raise NotFound(user_id)


def a_method(repository: Repository) -> None:
    assert_type(repository.load("u1"), Effect[User, NotFound])
