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


# ---- what is none of an effect's business: Python says it, of an `Effect`


def _attribute() -> None:
    cast("Any", one()).name  # noqa: B018  # it is what raises


async def _entered() -> None:
    async with cast("Any", one()):
        pass


async def _iterated() -> None:
    async for _ in cast("Any", one()):
        pass


FORGOTTEN: dict[str, Callable[[], Any]] = {
    "its value's attribute": _attribute,
    "its value as a number": lambda: cast("Any", one()) + 1,
    "its value called": lambda: cast("Any", one())(),
    "its value by a key": lambda: cast("Any", one().map(str))[0],
    "entered": lambda: asyncio.run(_entered()),
    "iterated": lambda: asyncio.run(_iterated()),
    "of another kind": lambda: cast("Any", fb.sleep(1)).seconds,
}


@pytest.mark.parametrize("use", FORGOTTEN.values(), ids=FORGOTTEN)
def test_a_forgotten_await_is_told_of_an_effect(use: Callable[[], Any]) -> None:
    """Not of a class that nobody outside knows."""
    with pytest.raises((TypeError, AttributeError), match=r"\bEffect\b") as raised:
        use()

    assert "_" not in str(raised.value).replace("__aiter__", "")


def test_a_dump_still_tells_nodes_apart() -> None:
    """They are called alike for Python's messages only."""
    assert repr(fb.sleep(1)) == "<Effect Sleep>"
    assert "Map" in repr(Effect.succeed(1).map(str))
    assert type(fb.sleep(1)).__qualname__ != type(one()).__qualname__


# ---- one thing for another


async def _run_main() -> None:
    fb.run_main(one())


async def _run() -> None:
    fb.run(one())


async def _queue_of_two_loops() -> None:
    queue: fb.Queue[int] = fb.Queue.unbounded()

    async def take() -> None:
        await queue.take()

    fiber = fb.run_fork(queue.take())
    try:
        await asyncio.to_thread(lambda: asyncio.run(take()))
    finally:
        await fiber.interrupt()


effect_of_anything: Any = fb.effect
promise_of_anything: Any = Effect.promise

MISTAKES: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "awaited where no loop runs": (
        lambda: list(cast("Any", one()).__await__()),
        RuntimeError,
        r"awaited where no event loop runs: use fb\.run\(effect\)",
    ),
    "forked where no loop runs": (
        lambda: fb.Scope().fork(one()),
        RuntimeError,
        r"no running event loop: fork inside asyncio, or start with fb\.run\(effect\)",
    ),
    "forked into no scope": (
        lambda: fb.run(one().fork_in(cast("Any", None))),
        TypeError,
        "fork_in takes a Scope, not None",
    ),
    "forked where no scope is given": (
        lambda: fb.run(one().fork_scoped()),
        LookupError,
        r"fibers\.Scope\. Needed by .* Run inside scoped\(\.\.\.\) or scope\.use\(\.\.\.\)",
    ),
    "a loop in a loop": (
        lambda: asyncio.run(_run()),
        RuntimeError,
        r"run\(\) inside a running event loop: await the effect instead",
    ),
    "a program in a loop": (
        lambda: asyncio.run(_run_main()),
        RuntimeError,
        r"run_main\(\) inside a running event loop: await the effect instead",
    ),
    "a second loop": (
        lambda: asyncio.run(_queue_of_two_loops()),
        RuntimeError,
        "in use by another event loop: give each loop its own",
    ),
    "errors without raises=": (
        lambda: effect_of_anything(KeyError),
        TypeError,
        r"not the error KeyError: write @effect\(raises=KeyError\)",
    ),
    "a plain value where an effect belongs": (
        lambda: fb.run(one().flat_map(cast("Any", int))),
        TypeError,
        r"expected an Effect or an Exit, got int: Effect\.succeed\(\.\.\.\) makes one of it",
    ),
    "a promise of a plain function": (
        lambda: fb.run(promise_of_anything(lambda: 3)),
        TypeError,
        "Effect.promise returned 3, which can't be awaited: .* Effect.sync for a plain function",
    ),
    "a service that nobody gives": (
        lambda: fb.run(Number),
        LookupError,
        r"a number that somebody forgot\. Needed by .* use \.provide_service\(tag, impl\)",
    ),
}


@pytest.mark.parametrize(("make", "kind", "said"), MISTAKES.values(), ids=MISTAKES)
def test_the_message_names_the_thing_and_the_way_out(
    make: Callable[[], Any], kind: type[Exception], said: str
) -> None:
    with pytest.raises(kind, match=said) as raised:
        make()

    assert "\n" not in str(raised.value)
