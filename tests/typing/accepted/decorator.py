"""What `@effect` makes of a coroutine function, and what an await of it gives."""

from __future__ import annotations

from collections.abc import Callable
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


@fb.effect(raises=(E1, E2, E3, E4, E5, E6, E7, E8))
async def eight() -> int:
    return 8


def declared_errors() -> None:
    assert_type(count(), Effect[int, Never])
    assert_type(one(), Effect[int, NotFound])
    assert_type(two(), Effect[int, NotFound | Denied])
    assert_type(three(), Effect[int, E1 | E2 | E3])
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


class Repository:
    """Methods can be effects."""

    @fb.effect(raises=NotFound)
    async def load(self, user_id: str) -> User:
        raise NotFound(user_id)


def a_method(repository: Repository) -> None:
    assert_type(repository.load("u1"), Effect[User, NotFound])
