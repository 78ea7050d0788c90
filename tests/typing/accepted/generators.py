"""What `@effect` makes of a generator function, and what `yield from` gives."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Never, assert_type

import fibers as fb
from fibers import Effect, EffectGen
from tests.typing.kit import Denied, NotFound, User, load


@fb.effect
def greet(user_id: str, *, loud: bool = False) -> EffectGen[str, NotFound]:
    user = yield from load(user_id)
    assert_type(user, User)
    return user.name.upper() if loud else user.name


@fb.effect
def cannot_fail() -> EffectGen[int]:
    yield from fb.sleep(1)
    return 1


@fb.effect
def two_errors(check: Effect[bool, Denied]) -> EffectGen[str, NotFound | Denied]:
    allowed = yield from check
    assert_type(allowed, bool)
    return (yield from greet("u1"))


@fb.effect
def caught() -> EffectGen[str]:
    return (yield from greet("u1").catch(lambda _: Effect.succeed("nobody")))


@fb.effect
def fails_itself(user_id: str) -> EffectGen[User, Denied]:
    if not user_id:
        yield from Effect.fail(Denied())
    return User(user_id)


def part() -> EffectGen[int, Denied]:
    yield from fails_itself("u1")
    return 1


@fb.effect
def of_parts() -> EffectGen[int, Denied]:
    count = yield from part()
    assert_type(count, int)
    return count


def the_declared_errors() -> None:
    assert_type(greet("u1", loud=True), Effect[str, NotFound])
    assert_type(cannot_fail(), Effect[int, Never])
    assert_type(two_errors(Effect.succeed(True)), Effect[str, NotFound | Denied])
    assert_type(caught(), Effect[str, Never])
    assert_type(fails_itself("u1"), Effect[User, Denied])
    assert_type(of_parts(), Effect[int, Denied])


def the_parameters_stay() -> None:
    named: Callable[[str], Effect[str, NotFound]] = greet
    assert_type(named("u1"), Effect[str, NotFound])


def the_alias_is_a_generator(body: EffectGen[int, Denied]) -> None:
    assert_type(body, Generator[Effect[Any, Denied], Any, int])


@fb.effect
def tags_and_fibers(tag: fb.Tag[User], fiber: fb.Fiber[int, Denied]) -> EffectGen[str, Denied]:
    user = yield from tag
    assert_type(user, User)
    count = yield from fiber.join()
    assert_type(count, int)
    return user.name


class Repository:
    """Methods can be generators."""

    @fb.effect
    def load(self, user_id: str) -> EffectGen[User, NotFound]:
        return (yield from load(user_id))


def a_method(repository: Repository) -> None:
    assert_type(repository.load("u1"), Effect[User, NotFound])
