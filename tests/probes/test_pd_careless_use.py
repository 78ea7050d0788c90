"""Probes PD18: careless use of primitives, resources, schedules and clocks is told, and at the call
where that is possible.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

import pytest

import fibers as fb
from fibers import (
    Cache,
    Cause,
    Deferred,
    Effect,
    Fail,
    FiberMap,
    FiberSet,
    Latch,
    Layer,
    Pool,
    Queue,
    RcMap,
    RcRef,
    Resource,
    Schedule,
    Scope,
    ScopedRef,
    Semaphore,
    Tag,
)
from fibers.app import AppScope, Shutdown, Startup, occupy
from fibers.testing import TestClock
from tests.probes.kit_e import Boom, cause_of
from tests.probes.kit_owned import make_in

NO_EFFECT: Any = 5


class Silent(Exception):
    """It can't say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


async def _says_no(_: object) -> bool:
    """What should have been decorated."""
    return False


# Any type checker refuses it as it is.
says_no: Any = _says_no


MISPLACED: dict[str, Callable[[], object]] = {
    "Semaphore.with_permits": lambda: Semaphore(1).with_permits(1)(NO_EFFECT),
    "Semaphore.with_permits_if_available": lambda: Semaphore(1).with_permits_if_available(1)(
        NO_EFFECT
    ),
    "Latch.when_open": lambda: Latch().when_open(NO_EFFECT),
    "Deferred.complete": lambda: Deferred[int]().complete(NO_EFFECT),
    "Deferred.complete_with": lambda: Deferred[int]().complete_with(NO_EFFECT),
    "Deferred.into": lambda: Deferred.into(NO_EFFECT, Deferred[int]()),
    "Queue.into": lambda: Queue.into(NO_EFFECT, Queue[int, fb.Done]()),
    "Pool.make": lambda: Pool.make(NO_EFFECT, size=1),
    "RcRef.make": lambda: RcRef.make(NO_EFFECT),
    "ScopedRef.from_acquire": lambda: ScopedRef.from_acquire(NO_EFFECT),
    "Resource.manual": lambda: Resource.manual(NO_EFFECT),
    "to_async_iterable": lambda: fb.to_async_iterable(NO_EFFECT),
}


@pytest.mark.parametrize("call", MISPLACED.values(), ids=list(MISPLACED))
@pytest.mark.spec("PD18")
def test_what_takes_an_effect_takes_nothing_else(call: Callable[[], object]) -> None:
    """It would show where the effect is run, which may be elsewhere and later."""
    with pytest.raises(TypeError, match="takes an Effect, not 5"):
        call()


OTHERS: dict[str, tuple[Callable[[], object], str]] = {
    "Deferred.done": (lambda: Deferred[int]().done(NO_EFFECT), "takes an Exit"),
    "Deferred.done_unsafe": (lambda: Deferred[int]().done_unsafe(NO_EFFECT), "takes an Exit"),
    "Deferred.fail_cause": (lambda: Deferred[int]().fail_cause(NO_EFFECT), "takes a Cause"),
    "Queue.fail_cause": (lambda: Queue[int]().fail_cause(NO_EFFECT), "takes a Cause"),
    "Queue.fail_cause_unsafe": (lambda: Queue[int]().fail_cause_unsafe(NO_EFFECT), "a Cause"),
    "RcMap.make": (lambda: RcMap.make(NO_EFFECT), "takes a function of the key"),
    "Cache.make": (lambda: Cache.make(NO_EFFECT, capacity=1), "takes a function of the key"),
    "Schedule.concat": (lambda: Schedule.forever().concat(NO_EFFECT), "takes schedules"),
    "Schedule.max": (lambda: Schedule.forever().max(NO_EFFECT), "takes schedules"),
    "Schedule.min": (lambda: Schedule.min(NO_EFFECT), "takes schedules"),
    "Schedule.cron": (lambda: Schedule.cron(NO_EFFECT), "a text of five fields"),
    "from_async_iterable": (lambda: fb.from_async_iterable(NO_EFFECT), "an async iterable"),
    "occupy in a scope": (lambda: occupy(NO_EFFECT), "takes the AppScope"),
    "occupy by anything": (lambda: occupy(AppScope(), NO_EFFECT), "5 is none"),
}


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.spec("PD18")
def test_a_call_says_what_it_takes(name: str) -> None:
    """And what it got."""
    call, words = OTHERS[name]

    with pytest.raises(TypeError, match=words):
        call()


@pytest.mark.parametrize("step", [5, ("listen",), (5, print), ("listen", None)])
@pytest.mark.spec("PD18", "VI1")
def test_a_step_is_a_name_and_a_function(step: Any) -> None:
    """Of a start, and of a teardown, where it would show at the worst moment."""
    with pytest.raises(TypeError, match="startup step"):
        Startup([step])
    with pytest.raises(TypeError, match="shutdown step"):
        Shutdown(AppScope(), [step])


@pytest.mark.spec("PD18", "VI1")
def test_a_step_that_was_called_already_is_refused() -> None:
    """The brackets are one too many; its coroutine is closed."""
    called: Any = says_no(None)

    with pytest.raises(TypeError, match="'listen' takes a function that is called at its turn"):
        Startup([("listen", called)])
    assert called.cr_frame is None


@pytest.mark.parametrize("seconds", [-1.0, math.inf, math.nan])
@pytest.mark.spec("PD18")
def test_virtual_time_moves_forward_by_a_finite_span(seconds: float) -> None:
    """To an endless one there is no end."""
    with pytest.raises(ValueError, match=r"adjust\(\) moves time by"):
        TestClock().adjust(seconds)


@pytest.mark.parametrize("seconds", [math.inf, math.nan])
@pytest.mark.spec("PD18")
def test_virtual_time_is_a_finite_one(seconds: float) -> None:
    """Back is allowed, nowhere isn't."""
    with pytest.raises(ValueError, match="takes a finite time"):
        TestClock().set_time(seconds)
    with pytest.raises(ValueError, match="not NaN"):
        TestClock().sleep(math.nan)


# ---------------------------------------------------------------------------- async callbacks


def counted(runs: list[int]) -> Effect[int]:
    """A run; the fifth is one that nothing should have led to."""

    def run() -> int:
        runs.append(len(runs))
        assert len(runs) < 5
        return runs[-1]

    return Effect.sync(run)


VERDICTS: dict[str, Callable[[Effect[Any, Any]], Effect[Any, Any]]] = {
    "while_": lambda eff: eff.repeat(while_=says_no),
    "until": lambda eff: eff.repeat(until=says_no),
    "Schedule.while_": lambda eff: eff.repeat(Schedule.forever().while_(says_no)),
    "Schedule.tap": lambda eff: eff.repeat(Schedule.recurs(2).tap(says_no)),
    "Schedule.map": lambda eff: eff.repeat(Schedule.recurs(2).map(says_no)),
}


@pytest.mark.parametrize("name", VERDICTS)
@pytest.mark.spec("PD18", "SD5")
async def test_an_async_callback_of_a_repeat_is_a_defect(name: str) -> None:
    """A coroutine is no verdict: taken for one it says yes for ever, and runs nothing."""
    runs: list[int] = []

    (defect,) = cause_of(await VERDICTS[name](counted(runs)).exit()).defects

    assert isinstance(defect, TypeError)
    assert "got a coroutine: decorate the function with @effect" in str(defect)
    assert runs == [0]


@pytest.mark.spec("PD18", "SD5")
async def test_an_async_predicate_of_a_retry_is_a_defect() -> None:
    """The error that it was to judge is not retried."""
    failing: Effect[int, Boom] = Effect.fail(Boom("boom"))

    (defect,) = cause_of(await failing.retry(while_=says_no).exit()).defects

    assert isinstance(defect, TypeError)


@pytest.mark.spec("PD18", "PI12")
async def test_an_async_predicate_of_a_catch_is_a_defect() -> None:
    """As a verdict, a coroutine would catch everything."""
    caught = Effect.fail(Boom("x")).catch_if(says_no, lambda _: Effect.succeed(1))

    assert "got a coroutine" in str(await caught.exit())


async def test_an_async_predicate_invalidates_nothing() -> None:
    """Of a cache: the value that it was to judge stays."""

    def lookup(key: str) -> Effect[str]:
        return Effect.succeed(key)

    cache = await Cache.make(lookup, capacity=1)
    await cache.get("k")

    (defect,) = cause_of(await cache.invalidate_when("k", says_no).exit()).defects

    assert isinstance(defect, TypeError)
    assert await cache.has("k")


# ---------------------------------------------------------------------------- keys, members


@pytest.mark.spec("PD18", "PI9")
async def test_a_key_that_is_none_starts_nothing(rt: fb.Runtime) -> None:
    """Its fiber would run without an owner, and outlive the scope."""
    started: list[str] = []
    key: Any = ["no", "key"]
    async with Scope() as scope:
        jobs: FiberMap[Any] = await make_in(rt, scope, FiberMap.make())

        with pytest.raises(TypeError, match="unhashable"):
            await jobs.run(key, Effect.sync(lambda: started.append("job")))

    assert started == []


@pytest.mark.spec("PD18", "PI7")
async def test_a_set_takes_in_fibers_and_runs_effects(rt: fb.Runtime) -> None:
    """An effect is none of the first, a coroutine none of the second."""
    async with Scope() as scope:
        members = await make_in(rt, scope, FiberSet.make())
        job: Any = Effect.succeed(1)
        coroutine: Any = says_no(None)

        with pytest.raises(TypeError, match=r"FiberSet takes in a Fiber.*start an effect with run"):
            members.add(job)
        with pytest.raises(TypeError, match=r"FiberSet.run takes an Effect, not a coroutine"):
            members.run(coroutine)


# ---------------------------------------------------------------------------- what can't be said


@pytest.mark.spec("EX7")
def test_an_error_without_words_can_be_reported() -> None:
    """Who reports a failure must not fail himself: a teardown logs them one after another."""
    cause = Cause((Fail(Silent()),))

    assert str(cause) == "Cause([Fail(Silent(<str() failed>))])"
    assert cause.pretty().startswith("Fail: Silent(<str() failed>)\n")


@pytest.mark.spec("VA14", "VA11")
async def test_a_step_that_fails_without_words_stops_no_teardown(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its failure is logged, and the next step runs."""
    ran: list[str] = []

    async def fail() -> None:
        raise Silent

    async def work() -> None:
        ran.append("second")

    with caplog.at_level(logging.INFO, "fibers.app"):
        await Shutdown(AppScope(), [("first", fail), ("second", work)]).dispose()

    assert ran == ["second"]
    assert "[shutdown] first failed" in caplog.text


class Mute:
    """An occupant that can't say what it has in flight, nor why."""

    name = "two\nlines"

    def start(self, scope: Scope) -> Effect[None]:
        return Effect.succeed(None)

    def describe(self) -> dict[str, object]:
        raise Silent


async def test_an_occupant_that_fails_without_words_spoils_no_dump() -> None:
    """And whatever its name is, it has one line."""
    scope = AppScope()
    await occupy(scope, Mute())

    assert "occupant two\\nlines: describe() raised Silent: <str() failed>" in fb.dump()
    await scope.close()


@pytest.mark.spec("LY4", "PD8")
async def test_what_a_disposed_runtime_refuses_is_told_to_who_asked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """And to nobody else: it is no failure that nobody handles."""
    runtime = fb.Runtime()
    await runtime.dispose()

    with caplog.at_level(logging.ERROR, "fibers"):
        exit_ = await runtime.run_exit(Effect.succeed(1))
        with pytest.raises(RuntimeError, match="Runtime disposed"):
            await runtime.run(Effect.succeed(1))

    (defect,) = cause_of(exit_).defects
    assert str(defect) == "Runtime disposed"
    assert caplog.records == []


@pytest.mark.spec("LY1")
def test_a_layer_of_a_long_chain_knows_what_it_begins_with() -> None:
    """However long: it is not one of Python's stack."""
    first = Tag[int]("first")
    chain: Effect[int] = first
    for _ in range(20_000):
        chain = chain.map(abs)

    assert Layer.effect(Tag[int]("last"), chain).needs == {"first"}
