"""Scopes, resources and regions."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from typing import Any, Literal, Never, assert_type

import fibers as fb
from fibers import Effect, Exit, Scope
from tests.typing.kit import Denied, NotFound, User


class Connection:
    """What is acquired and released."""

    async def close(self) -> None: ...


def a_scope(scope: Scope, work: Effect[int, NotFound]) -> None:
    assert_type(scope.use(work), Effect[int, NotFound])
    assert_type(scope.provide(work), Effect[int, NotFound])
    assert_type(scope.close(reason="enough"), Effect[None, Never])
    assert_type(scope.fork_scope("parallel"), Scope)
    assert_type(scope.state, Literal["empty", "open", "closed"])
    assert_type(scope.finalizer_count, int)
    assert_type(fb.scoped(work), Effect[int, NotFound])
    assert_type(fb.current_scope(), Effect[Scope, Never])


async def a_scope_around_a_block() -> None:
    async with Scope("parallel", name="requests") as scope:
        assert_type(scope, Scope)
    async with fb.Scope() as other:
        await other.close()


def a_finalizer_may_be_an_effect_an_exit_an_awaitable_or_nothing(
    scope: Scope, connection: Connection, future: asyncio.Future[int]
) -> None:
    assert_type(
        scope.add_finalizer(lambda _: Effect.promise(connection.close)), Effect[None, Never]
    )
    assert_type(scope.add_finalizer(lambda _: fb.Success(None)), Effect[None, Never])
    assert_type(scope.add_finalizer(lambda _: connection.close()), Effect[None, Never])
    assert_type(scope.add_finalizer(lambda _: future), Effect[None, Never])
    assert_type(scope.add_finalizer(lambda _: None), Effect[None, Never])
    assert_type(fb.add_finalizer(lambda _: Effect.succeed(1)), Effect[None, Never])


def acquire(connect: Effect[Connection, NotFound]) -> None:
    def release(connection: Connection, exit_: Exit[Any, Any]) -> Effect[None]:
        return Effect.promise(connection.close)

    assert_type(fb.acquire_release(connect, release), Effect[Connection, NotFound])
    assert_type(
        fb.acquire_release(
            connect, lambda connection, _: Effect.promise(connection.close), interruptible=True
        ),
        Effect[Connection, NotFound],
    )


def acquire_and_use(connect: Effect[Connection, NotFound], user: Effect[User, Denied]) -> None:
    def use(connection: Connection) -> Effect[User, Denied]:
        return user.map(lambda u: u)

    def use_later(connection: Connection) -> Exit[User, Denied]:
        raise NotImplementedError(connection)

    def release(connection: Connection, exit_: Exit[User, Denied]) -> Effect[None]:
        return Effect.promise(connection.close)

    assert_type(fb.acquire_use_release(connect, use, release), Effect[User, NotFound | Denied])
    assert_type(
        fb.acquire_use_release(connect, use_later, release), Effect[User, NotFound | Denied]
    )
    assert_type(
        fb.acquire_use_release(
            connect, lambda _: user, lambda connection, _: Effect.promise(connection.close)
        ),
        Effect[User, NotFound | Denied],
    )


def a_region_in_a_body() -> None:
    with fb.uninterruptible() as restore:
        assert_type(restore(), AbstractContextManager[None])
        with restore():
            pass
