"""A thing of the wrong kind is refused at the call that it was given to, by name, with what came.

A coroutine is the most frequent one: it is closed, so that nothing says "never awaited" as well
(warnings are errors here).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any, cast

import pytest

import fibers as fb
from fibers import Effect, Layer, Schedule
from fibers.app import AppScope, Shutdown, Watchdog

# Of no type: what it is about is what type checkers refuse.
one: Any = Effect.succeed(1)
sched: Any = Schedule.recurs(1)
api: Any = fb
tag: Any = fb.Tag[int]("number")
layer: Any = Layer.succeed(tag, 1)


def _nothing(*_: object) -> Any:
    return None


EFFECT: dict[str, Callable[[Any], Any]] = {
    "run_callback": lambda x: api.run_callback(x, on_exit=_nothing),
    "run_fork": api.run_fork,
    "Scope.fork": lambda x: api.Scope().fork(x),
    "Scope.fork ": lambda x: api.Scope().fork(x, start_immediately=True),
    "Scope.use": lambda x: api.Scope().use(x),
    "Scope.provide": lambda x: api.Scope().provide(x),
    "scoped": api.scoped,
    "zip": one.zip,
    "zip ": lambda x: one.zip(x, concurrent=True),
    "ensuring": one.ensuring,
    "acquire_release": lambda x: api.acquire_release(x, _nothing),
    "acquire_use_release": lambda x: api.acquire_use_release(x, _nothing, _nothing),
    "Deferred.complete": lambda x: api.Deferred().complete(x),
    "Deferred.complete_with": lambda x: api.Deferred().complete_with(x),
    "Deferred.into": lambda x: api.Deferred.into(x, api.Deferred()),
    "when_open": lambda x: api.Latch().when_open(x),
    "Queue.into": lambda x: api.Queue.into(x, api.Queue.unbounded()),
    "with_permit": lambda x: api.Semaphore(1).with_permit(x),
    "Pool.make": lambda x: api.Pool.make(x, size=1),
    "RcRef.make": api.RcRef.make,
    "Resource.manual": api.Resource.manual,
    "Resource.auto": lambda x: api.Resource.auto(x, sched),
    "ScopedRef.from_acquire": api.ScopedRef.from_acquire,
    "to_async_iterable": api.to_async_iterable,
}

EFFECTS: dict[str, Callable[[Any], Any]] = {
    "race": lambda x: api.race(one, x),
    "race_first": lambda x: api.race_first(one, x),
    "race_all": lambda x: api.race_all([one, x]),
    "race_all_first": lambda x: api.race_all_first([one, x]),
    "all_": lambda x: api.all_([one, x]),
    "all_ ": lambda x: api.all_({"a": x}, concurrency=2, mode="result"),
}

FIBERS: dict[str, Callable[[Any], Any]] = {
    "Fiber.join_all": lambda x: api.Fiber.join_all([x]),
    "Fiber.await_all": lambda x: api.Fiber.await_all([x]),
    "Fiber.interrupt_all": lambda x: api.Fiber.interrupt_all([x]),
}

ITERABLE: dict[str, Callable[[Any], Any]] = {
    "race_all": api.race_all,
    "race_all_first": api.race_all_first,
    "all_": api.all_,
    "Fiber.join_all": api.Fiber.join_all,
    "Fiber.await_all": api.Fiber.await_all,
    "Fiber.interrupt_all": api.Fiber.interrupt_all,
    "for_each": lambda x: api.for_each(x, _nothing),
}

FUNCTION: dict[str, Callable[[Any], Any]] = {
    **{
        name: getattr(one, name)
        for name in (
            "map",
            "flat_map",
            "tap",
            "catch",
            "catch_cause",
            "catch_defect",
            "map_error",
            "on_exit",
            "on_interrupt",
            "on_error",
        )
    },
    **{
        f"Effect.{name}": getattr(Effect, name)
        for name in ("sync", "suspend", "callback", "uninterruptible_mask")
    },
    "catch_if": lambda x: one.catch_if(x, _nothing),
    "catch_if ": lambda x: one.catch_if(_nothing, x),
    "catch_tag": lambda x: one.catch_tag(ValueError, x),
    "match": lambda x: one.match(on_success=x, on_failure=_nothing),
    "match ": lambda x: one.match(on_success=_nothing, on_failure=x),
    "timeout_or_else": lambda x: one.timeout_or_else(1, x),
    "repeat": lambda x: one.repeat(until=x),
    "repeat ": lambda x: one.repeat(while_=x),
    "retry": lambda x: one.retry(until=x),
    "retry ": lambda x: one.retry(while_=x),
    "retry_or_else": lambda x: one.retry_or_else(sched, x),
    "try_promise": lambda x: api.Effect.try_promise(_nothing, catch=x),
    "acquire_release": lambda x: api.acquire_release(one, x),
    "acquire_use_release": lambda x: api.acquire_use_release(one, x, _nothing),
    "acquire_use_release ": lambda x: api.acquire_use_release(one, _nothing, x),
    "Scope.add_finalizer": lambda x: api.Scope().add_finalizer(x),
    "add_finalizer": api.add_finalizer,
    "for_each": lambda x: api.for_each([1], x),
    "for_each_async": lambda x: api.for_each_async(_nothing, x),
    "run_callback": lambda x: api.run_callback(one, on_exit=x),
    "set_unhandled_failure_hook": api.set_unhandled_failure_hook,
    "add_observer": lambda x: api.run_fork(one).add_observer(x),
    "add_done_callback": lambda x: api.run_fork(one).add_done_callback(x),
    "add_listener": lambda x: api.AbortController().signal.add_listener(x),
    "Deferred.sync": lambda x: api.Deferred().sync(x),
    "ScopedRef.make": api.ScopedRef.make,
    **{
        f"SubscriptionRef.{name}": getattr(cast("Any", fb.SubscriptionRef(1)), name)
        for name in (
            "update",
            "get_and_update",
            "update_and_get",
            "update_effect",
            "modify",
            "modify_effect",
        )
    },
    "Schedule.from_step": api.Schedule.from_step,
    "Schedule.while_": sched.while_,
    "Schedule.map": sched.map,
    "Schedule.tap": sched.tap,
    "Schedule.modify_delay": sched.modify_delay,
    "Schedule.add_delay": sched.add_delay,
    "Schedule.jittered": lambda x: sched.jittered(random=x),
    "Cache.make": lambda x: api.Cache.make(x, capacity=1),
    "RcMap.make": api.RcMap.make,
    "Shutdown.on_begin": lambda x: Shutdown(AppScope(), ()).on_begin(x),
    "Watchdog": lambda x: Watchdog(on_block=x),
    "to_async_iterable": lambda x: api.to_async_iterable(one, on_close=x),
}

OTHER: dict[str, Callable[[Any], Any]] = {
    "Effect.fail": Effect.fail,
    "Effect.die": Effect.die,
    "Effect.fail_cause": Effect.fail_cause,
    "Deferred.fail_cause": lambda x: api.Deferred().fail_cause(x),
    "Deferred.done": lambda x: api.Deferred().done(x),
    "Deferred.into": lambda x: api.Deferred.into(one, x),
    "Queue.into": lambda x: api.Queue.into(one, x),
    "Scope.close": lambda x: api.Scope().close(x),
    "fork_in": one.fork_in,
    "run_in": lambda x: api.run_fork(Effect.succeed(1)).run_in(x),
    "catch_tag": lambda x: one.catch_tag(x, _nothing),
    "provide_service": lambda x: one.provide_service(x, 1),
    "concat": sched.concat,
    "max": sched.max,
    "min": sched.min,
}


async def plain() -> int:
    return 1


def _gives_a_coroutine(*_: object) -> Any:
    return plain()


def coroutine() -> Any:
    return plain()


async def _in_a_loop(call: Callable[[Any], Any], given: Any) -> None:
    call(given)


def _said(call: Callable[[Any], Any], given: Any) -> str:
    """What the TypeError says; else what happened instead."""
    try:
        asyncio.run(_in_a_loop(call, given))
    except TypeError as exc:
        return str(exc)
    except Exception as exc:  # told, with all the others
        return f"!! {exc!r}"
    return "!! nothing"


TABLES = {
    "an effect": EFFECT,
    "effects": EFFECTS,
    "fibers": FIBERS,
    "an iterable": ITERABLE,
    "a function": FUNCTION,
    "something else": OTHER,
}


@pytest.mark.parametrize("wanted", TABLES)
@pytest.mark.parametrize("what", ["5", "a coroutine"])
def test_the_wrong_kind_is_refused_by_name_with_what_came(wanted: str, what: str) -> None:
    said = {
        name: _said(call, 5 if what == "5" else coroutine())
        for name, call in TABLES[wanted].items()
    }

    assert {n: told for n, told in said.items() if n.strip() not in told or what not in told} == {}


@pytest.mark.parametrize("wanted", ["an effect", "effects"])
def test_instead_of_an_effect_a_coroutine_says_how_it_becomes_one(wanted: str) -> None:
    said = {name: _said(call, coroutine()) for name, call in TABLES[wanted].items()}

    assert {n: told for n, told in said.items() if "decorate the function" not in told} == {}


@pytest.mark.parametrize("name", ["race_all", "race_all_first", "all_"])
def test_one_effect_is_no_iterable_of_effects(name: str) -> None:
    assert f"{name} takes an iterable of effects" in _said(ITERABLE[name], one)


@pytest.mark.parametrize("name", ["fork_in", "run_in"])
async def test_a_class_is_no_scope_yet(name: str) -> None:
    """It has all the methods, and no place for a fiber."""
    with pytest.raises(TypeError, match=rf"^{name} takes a Scope, not .*: Scope\(\)$"):
        OTHER[name](api.Scope)


def test_all_coroutines_of_a_list_are_closed() -> None:
    assert "not a coroutine" in _said(api.all_, [coroutine(), coroutine(), one])


def test_what_an_iterable_raises_itself_passes() -> None:
    def effects() -> Generator[Any]:
        yield one
        raise TypeError("its own")

    with pytest.raises(TypeError, match=r"^its own$"):
        api.all_(effects())


def _completed(f: Any) -> Any:
    deferred = api.Deferred()
    return fb.all_([deferred.sync(f), deferred.await_()])


PLAIN: dict[str, Callable[[Any], Any]] = {
    **{
        f"SubscriptionRef.{name}": getattr(api.SubscriptionRef(1), name)
        for name in ("update", "get_and_update", "update_and_get", "modify")
    },
    "Deferred.sync": _completed,
    "ScopedRef.make": lambda f: fb.scoped(api.ScopedRef.make(f)),
}


@pytest.mark.parametrize("name", PLAIN)
def test_an_async_function_where_a_plain_one_belongs_is_a_defect(name: str) -> None:
    """It would be the value otherwise, a coroutine that nobody awaits."""
    with pytest.raises(TypeError, match=f"{name}.* takes a plain function, not .* coroutine"):
        fb.run(PLAIN[name](_gives_a_coroutine))
