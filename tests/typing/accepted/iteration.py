"""Async iteration, out of effects and into them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Never, assert_type

import fibers as fb
from fibers import Effect
from tests.typing.kit import Denied, NotFound, User, load


async def out_of_effects(
    pull: Effect[User, NotFound | StopAsyncIteration], endless: Effect[User]
) -> None:
    assert_type(fb.to_async_iterable(endless), AsyncGenerator[User, None])
    async for user in fb.to_async_iterable(pull, on_close=lambda exit_: Effect.succeed(exit_)):
        assert_type(user, User)


async def out_of_effects_and_closed(pull: Effect[User, StopAsyncIteration]) -> None:
    async with aclosing(fb.to_async_iterable(pull)) as users:
        assert_type(users, AsyncGenerator[User, None])
        assert_type(await anext(users), User)


def denied(error: Exception) -> Denied:
    return Denied(str(error))


async def numbers() -> AsyncGenerator[int, None]:
    yield 1


def into_effects(items: AsyncIterator[int]) -> None:
    assert_type(fb.for_each_async(items, Effect.succeed), Effect[list[int], Never])
    assert_type(fb.for_each_async(numbers, lambda n: load(str(n))), Effect[list[User], NotFound])
    assert_type(
        fb.for_each_async(items, lambda n: load(str(n)), discard=True), Effect[None, NotFound]
    )
    assert_type(
        fb.for_each_async(items, lambda n: load(str(n)), catch=denied),
        Effect[list[User], NotFound | Denied],
    )


async def a_pull(items: AsyncIterator[int]) -> None:
    pull = await fb.from_async_iterable(items)
    assert_type(pull, Effect[int, StopAsyncIteration])
    other = await fb.from_async_iterable(numbers, catch=denied)
    assert_type(other, Effect[int, Denied | StopAsyncIteration])
