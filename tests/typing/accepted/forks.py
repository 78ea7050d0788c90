"""Fibers: how they are made, and what is read off them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Never, assert_type

import fibers as fb
from fibers import Cause, Effect, Exit, Failure, Fiber, Scope, Success
from tests.typing.kit import Denied, NotFound, User


def forks(load: Effect[User, NotFound], scope: Scope) -> None:
    assert_type(load.fork_child(), Effect[Fiber[User, NotFound], Never])
    assert_type(load.fork_child(start_immediately=True), Effect[Fiber[User, NotFound], Never])
    assert_type(load.fork_in(scope, uninterruptible=True), Effect[Fiber[User, NotFound], Never])
    assert_type(load.fork_detach(uninterruptible="inherit"), Effect[Fiber[User, NotFound], Never])
    assert_type(load.fork_scoped(), Effect[Fiber[User, NotFound], Never])
    assert_type(scope.fork(load, start_immediately=True), Fiber[User, NotFound])


async def an_awaited_fork_gives_the_fiber(load: Effect[User, NotFound], scope: Scope) -> None:
    fiber = await load.fork_in(scope)
    assert_type(fiber, Fiber[User, NotFound])
    assert_type(await fiber, User)


@fb.effect(raises=NotFound)
async def a_body_that_forks(load: Effect[User, NotFound]) -> str:
    fiber = await load.fork_child()
    match await fiber.exit():
        case Success(user):
            assert_type(user, User)
            return user.name
        case Failure(cause):
            assert_type(cause, Cause[NotFound])
    return (await fiber.join()).name


def a_fiber(fiber: Fiber[User, NotFound]) -> None:
    assert_type(fiber.id, int)
    assert_type(fiber.join(), Effect[User, NotFound])
    assert_type(fiber.exit(), Effect[Exit[User, NotFound], Never])
    assert_type(fiber.poll(), Exit[User, NotFound] | None)
    assert_type(fiber.interrupt(reason="enough"), Effect[None, Never])
    assert_type(fiber.ignore_failure(), Fiber[User, NotFound])
    assert_type(fiber.run_in(Scope()), Fiber[User, NotFound])
    assert_type(fiber.cancel(), bool)
    assert_type(fiber.result(), User)


def an_observer_gets_the_exit(fiber: Fiber[User, NotFound]) -> None:
    def observe(exit_: Exit[User, NotFound]) -> None:
        raise NotImplementedError(exit_)

    assert_type(fiber.add_observer(observe), Callable[[], None])


def many(fibers: list[Fiber[User, NotFound]]) -> None:
    assert_type(Fiber.join_all(fibers), Effect[list[User], NotFound])
    assert_type(Fiber.await_all(fibers), Effect[list[Exit[User, NotFound]], Never])
    assert_type(Fiber.interrupt_all(fibers, reason="enough"), Effect[None, Never])
    assert_type(Fiber.join_all(fiber for fiber in fibers), Effect[list[User], NotFound])


async def asyncio_takes_a_fiber(fiber: Fiber[User, NotFound], other: Fiber[int, Denied]) -> None:
    assert_type(await asyncio.gather(fiber, other), tuple[User, int])
    assert_type(await asyncio.wait_for(fiber, 1), User)


def covariant_in_the_value(fiber: Fiber[bool, NotFound]) -> Fiber[int, NotFound]:
    return fiber


def covariant_in_the_error(fiber: Fiber[int, NotFound]) -> Fiber[int, NotFound | Denied]:
    return fiber


def any_fiber(fiber: Fiber[User, NotFound]) -> Fiber[Any, Any]:
    assert_type(fb.current_fiber(), Fiber[Any, Any] | None)
    return fiber
