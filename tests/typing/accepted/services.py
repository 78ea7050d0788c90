"""Services: a tag is an effect that gives what is provided for it."""

from __future__ import annotations

from typing import Never, Protocol, assert_type

import fibers as fb
from fibers import Clock, Effect, Tag
from fibers.testing import TestClock
from tests.typing.kit import NotFound, User


class Users(Protocol):
    """A service."""

    def load(self, user_id: str) -> Effect[User, NotFound]: ...


class Memory:
    """One that satisfies it."""

    def load(self, user_id: str) -> Effect[User, NotFound]:
        return Effect.succeed(User(user_id))


UsersTag = Tag[Users]("users")
LimitTag = Tag("limit", 10)


async def an_awaited_tag_gives_the_service() -> None:
    assert_type(await UsersTag, Users)
    assert_type(await LimitTag, int)


def a_tag_is_an_effect(tag: Tag[User]) -> Effect[User, Never]:
    assert_type(tag.flat_map(lambda user: Effect.succeed(user.name)), Effect[str, Never])
    return tag


def provided(load: Effect[User, NotFound]) -> None:
    assert_type(load.provide_service(UsersTag, Memory()), Effect[User, NotFound])
    assert_type(load.provide_service(LimitTag, 3), Effect[User, NotFound])


def clocks() -> list[Clock]:
    assert_type(fb.current_clock(), Effect[Clock, Never])
    return [TestClock()]
