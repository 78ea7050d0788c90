"""What a newcomer gets wrong first is refused with a word on how to mend it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

import fibers as fb
from fibers import Effect, Layer, Tag


async def plain() -> int:
    return 1


@fb.effect
async def one() -> int:
    return 1


Number = Tag[int]("a number that somebody forgot")

RUNNERS: dict[str, Callable[[Any], Any]] = {
    "run": fb.run,
    "run with a layer": lambda given: fb.run(given, layer=Layer.succeed(Number, 1)),
    "run_exit": fb.run_exit,
    "run_sync": fb.run_sync,
    "run_main": fb.run_main,
    "Runtime.run": lambda given: asyncio.run(fb.Runtime().run(given)),
    "Runtime.run_exit": lambda given: asyncio.run(fb.Runtime().run_exit(given)),
    "Runtime.run_sync": lambda given: fb.Runtime().run_sync(given),
    "Runtime.run_fork": lambda given: fb.Runtime().run_fork(given),
}


@pytest.mark.parametrize("run", RUNNERS.values(), ids=RUNNERS)
def test_running_a_coroutine_says_how_it_becomes_an_effect(run: Callable[[Any], Any]) -> None:
    """And nothing says "never awaited": warnings are errors here."""
    with pytest.raises(TypeError, match="not a coroutine: decorate the function with @effect"):
        run(plain())


@pytest.mark.parametrize("run", RUNNERS.values(), ids=RUNNERS)
def test_running_a_function_says_that_it_has_to_be_called(run: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match=r"takes an Effect, not <function one at .*>: call it"):
        run(one)


@pytest.mark.parametrize("run", RUNNERS.values(), ids=RUNNERS)
def test_running_a_value_says_what_is_wanted(run: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match=r"takes an Effect, not 3$"):
        run(3)


@pytest.mark.parametrize("what", ["promise", "try_promise"])
def test_a_promise_of_a_coroutine_asks_for_a_function(what: str) -> None:
    make: Callable[[Any], Any] = getattr(Effect, what)

    with pytest.raises(TypeError, match=rf"not coroutine: Effect.{what}\(lambda: ...\)"):
        make(plain())


def test_an_effect_of_a_plain_function_says_what_it_has_to_be() -> None:
    def add(a: int, b: int) -> int:
        return a + b

    decorated: Any = cast("Any", fb.effect)(add)

    with pytest.raises(TypeError, match=r"add.* returned 3, which can't be awaited.*async def"):
        fb.run(decorated(1, 2))


@pytest.mark.parametrize("given", ["1", None], ids=str)
def test_a_duration_that_is_no_number_is_refused(given: Any) -> None:
    with pytest.raises(TypeError, match="a duration is a timedelta or a number of seconds"):
        one().timeout(given)
    with pytest.raises(TypeError, match="a duration is a timedelta or a number of seconds"):
        fb.run(fb.sleep(given))
