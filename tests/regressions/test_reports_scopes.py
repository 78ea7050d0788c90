"""Reports from users of comparable runtimes: scopes, their finalizers, and who is forked into them.

Each is tested as a kind of fault: in every form in which it could come, on each kind of loop.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
import warnings
from typing import TYPE_CHECKING, Any, Final, Literal

import pytest
from returns.result import Success

import fibers as fb
from fibers import Die, Effect
from fibers.loop.queue import queue_of
from tests.loops import every_loop
from tests.probes.kit_f import (
    cause_of,
    endless,
    failed,
    interrupted,
    new_gate,
    note,
    parked,
    turns,
)

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.lifecycle

Strategy = Literal["sequential", "parallel"]
STRATEGIES: Final[tuple[Strategy, ...]] = ("sequential", "parallel")
SHORT_SECONDS: Final = 1.0


class Defect(Exception):
    """What a finalizer raises."""


# ---- H01: a finalizer that raises while it builds its effect


@pytest.mark.spec("H01", "SO4")
@pytest.mark.parametrize("broken", [0, 1, 2])
@pytest.mark.parametrize("given", ["success", "failure", "interrupt"])
@pytest.mark.parametrize("strategy", STRATEGIES)
@every_loop
async def test_a_finalizer_that_raises_while_it_is_built_stops_no_other_and_is_told_once(
    strategy: Strategy, given: str, broken: int
) -> None:
    """Whichever of three it is: the other two see the exit, a second close does nothing."""
    exits: dict[str, fb.Exit[Any, Any]] = {
        "success": Success(1),
        "failure": failed(fb.Fail(ValueError("given"))),
        "interrupt": interrupted(5),
    }
    scope, defect, seen = fb.Scope(strategy), Defect(), list[tuple[int, object]]()

    def finalizer(n: int) -> Callable[[fb.Exit[Any, Any]], Effect[None, Any]]:
        def build(exit: fb.Exit[Any, Any]) -> Effect[None, Any]:
            if n == broken:
                raise defect
            return Effect.sync(lambda: seen.append((n, exit)))

        return build

    for n in range(3):
        await scope.add_finalizer(finalizer(n))
    first = await scope.close(exits[given]).exit()
    second = await scope.close().exit()

    assert first == failed(Die(defect))
    assert second == Success(None)
    assert seen == [(n, exits[given]) for n in (2, 1, 0) if n != broken]


@pytest.mark.spec("H01")
@pytest.mark.parametrize("how", ["release", "on_exit", "ensuring's effect", "a coroutine"])
@pytest.mark.parametrize("strategy", STRATEGIES)
@every_loop
async def test_any_form_of_finalizer_may_raise_and_stops_no_other(
    strategy: Strategy, how: str
) -> None:
    """A release function, a callback inside the finalizer's effect, a coroutine function."""
    scope, defect, log = fb.Scope(strategy), Defect(), list[str]()

    def raises(*_: object) -> Any:
        raise defect

    async def raises_later() -> None:
        await asyncio.sleep(0)
        raise defect

    await scope.add_finalizer(lambda _: note(log, "first"))
    if how == "release":
        await scope.provide(fb.acquire_release(Effect.succeed(1), raises))
    elif how == "on_exit":
        await scope.add_finalizer(lambda _: Effect.succeed(1).on_exit(raises))
    elif how == "ensuring's effect":
        await scope.add_finalizer(lambda _: Effect.succeed(1).ensuring(Effect.sync(raises)))
    else:
        await scope.add_finalizer(lambda _: raises_later())
    await scope.add_finalizer(lambda _: note(log, "last"))
    exit = await scope.close().exit()

    assert exit == failed(Die(defect))
    assert log == ["last", "first"]


# ---- H05: nothing is left behind

ROUNDS: Final = 100_000
# 2 MB in blocks of the allocator's largest size.
MEMORY_BLOCKS: Final = 2 * 1024 * 1024 // 512


@pytest.mark.spec("H05", "PD13")
@pytest.mark.slow
@pytest.mark.parametrize("end", ["finish", "interrupt"])
@pytest.mark.parametrize("start_immediately", [True, False])
@every_loop
async def test_a_hundred_thousand_fibers_leave_nothing_in_their_scope(
    start_immediately: bool, end: str
) -> None:
    """Forked and ended at once: no finalizer is left before the close, and memory is flat."""
    scope = fb.Scope()
    effect = endless() if end == "interrupt" else Effect.yield_now()

    async def rounds(count: int) -> None:
        for _ in range(count):
            fiber = await effect.fork_in(scope, start_immediately=start_immediately)
            if end == "interrupt":
                fiber.interrupt_unsafe()
            else:
                await fiber.join()

    await fb.run_fork(Effect.promise(lambda: rounds(1000)))
    gc.collect()
    before = sys.getallocatedblocks()
    await fb.run_fork(Effect.promise(lambda: rounds(ROUNDS)))
    gc.collect()
    grown = sys.getallocatedblocks() - before
    held = scope.finalizer_count
    live = len(queue_of(asyncio.get_running_loop()).live)
    await scope.close()

    assert held == 0
    assert live <= 1  # who runs this
    assert grown < MEMORY_BLOCKS


# ---- H07, H17, H18, H23: every way to fork


def by_fork_in(eff: Effect[Any, Any], scope: fb.Scope, now: bool) -> Effect[Any, Any]:
    return eff.fork_in(scope, start_immediately=now)


def by_fork_scoped(eff: Effect[Any, Any], scope: fb.Scope, now: bool) -> Effect[Any, Any]:
    return scope.provide(eff.fork_scoped(start_immediately=now))


def by_plain_call(eff: Effect[Any, Any], scope: fb.Scope, now: bool) -> Effect[Any, Any]:
    return Effect.sync(lambda: scope.fork(eff, start_immediately=now))


def by_run_in(eff: Effect[Any, Any], scope: fb.Scope, now: bool) -> Effect[Any, Any]:
    return eff.fork_detach(start_immediately=now).map(lambda fiber: fiber.run_in(scope))


FORKS: Final = {f.__name__: f for f in (by_fork_in, by_fork_scoped, by_plain_call, by_run_in)}


def under_a_mask(fork: Effect[Any, Any]) -> Effect[Any, Any]:
    return fork.uninterruptible()


def in_an_acquire(fork: Effect[Any, Any]) -> Effect[Any, Any]:
    return fb.acquire_use_release(fork, Effect.succeed, lambda _, exit_: Effect.succeed(None))


def in_a_release(fork: Effect[Any, Any]) -> Effect[Any, Any]:
    made = list[Any]()
    released = fork.map(made.append)
    nothing: Effect[int, Any] = Effect.succeed(1)
    used: Effect[Any, Any] = fb.acquire_use_release(
        nothing, lambda _: nothing, lambda _, exit_: released
    )
    return used.map(lambda _: made[0])


def in_a_finalizer(fork: Effect[Any, Any]) -> Effect[Any, Any]:
    made = list[Any]()
    return Effect.succeed(1).ensuring(fork.map(made.append)).map(lambda _: made[0])


def in_a_region(fork: Effect[Any, Any]) -> Effect[Any, Any]:
    async def body() -> Any:
        with fb.uninterruptible():
            return await fork

    return Effect.promise(body)


def in_a_hole(fork: Effect[Any, Any]) -> Effect[Any, Any]:
    return fork.interruptible().uninterruptible()


REGIONS: Final = {
    f.__name__: f
    for f in (under_a_mask, in_an_acquire, in_a_release, in_a_finalizer, in_a_region, in_a_hole)
}


@pytest.mark.spec("H07", "WI7")
@pytest.mark.parametrize("now", [True, False])
@pytest.mark.parametrize("fork", FORKS)
@pytest.mark.parametrize("place", REGIONS)
@pytest.mark.parametrize("strategy", STRATEGIES)
@every_loop
async def test_a_fork_from_a_masked_place_can_be_interrupted_by_its_scope(
    strategy: Strategy, place: str, fork: str, now: bool
) -> None:
    """It doesn't inherit the mask: the close ends it, and is not held up."""
    scope, log = fb.Scope(strategy), list[str]()
    forking = FORKS[fork](parked(log, "interrupted"), scope, now)
    fiber: fb.Fiber[Any, Any] = await fb.run_fork(REGIONS[place](forking))
    await turns(3)
    before = time.monotonic()
    await scope.close()

    assert time.monotonic() - before < SHORT_SECONDS
    assert cause_of(fiber.poll()).has_interrupts_only
    assert log == ["interrupted"]


@pytest.mark.spec("H17", "FO1", "FO2")
@pytest.mark.parametrize("body", [True, False])
@pytest.mark.parametrize("now", [True, False])
@pytest.mark.parametrize("fork", FORKS)
@pytest.mark.parametrize("strategy", STRATEGIES)
@every_loop
async def test_a_fork_into_a_closed_scope_ends_interrupted_and_leaves_nothing_alive(
    strategy: Strategy, fork: str, now: bool, body: bool
) -> None:
    """Whoever kept a handle to a closed scope: what he forks fails closed. What has started runs
    its on_interrupt, what has not runs nothing.
    """
    scope, log = fb.Scope(strategy), list[str]()
    await scope.close()

    async def waits() -> None:
        try:
            log.append("started")
            await asyncio.get_running_loop().create_future()
        finally:
            log.append("interrupted")

    started = note(log, "started").flat_map(lambda _: parked(log, "interrupted"))
    forking = FORKS[fork](Effect.promise(waits) if body else started, scope, now)
    fiber: fb.Fiber[Any, Any] = await fb.run_fork(forking)
    at_once = fiber.poll()
    await turns()

    assert cause_of(at_once).has_interrupts_only
    assert log == (["started", "interrupted"] if now else [])
    assert list(queue_of(asyncio.get_running_loop()).live) == []
    assert scope.finalizer_count == 0


@pytest.mark.spec("H23", "AT12")
@pytest.mark.parametrize("asked", ["interrupt", "interrupt_unsafe", "cancel"])
@pytest.mark.parametrize("now", [True, False])
@pytest.mark.parametrize("fork", FORKS)
@every_loop
async def test_a_fiber_interrupted_right_after_its_fork_is_over_before_interrupt_returns(
    fork: str, now: bool, asked: str
) -> None:
    """Not started: nothing of it runs. Started: it ran to its first wait, and its finalizers are
    done. Its observers have heard and its scope has forgotten it, either way.
    """
    scope, log = fb.Scope(), list[str]()
    slowly: Effect[Any, Any] = parked(log, "finalizer").ensuring(Effect.yield_now())
    started: Effect[Any, Any] = note(log, "started")
    effect: Effect[Any, Any] = started.zip(slowly)

    async def body() -> None:
        fiber: fb.Fiber[Any, Any] = await FORKS[fork](effect, scope, now)
        fiber.add_observer(lambda _: log.append("observer"))
        if asked == "interrupt":
            await fiber.interrupt()
        elif asked == "cancel":
            fiber.cancel()
            await fiber.exit()
        else:
            fiber.interrupt_unsafe()
            await fiber.exit()
        log.append("returned")
        assert scope.finalizer_count == 0

    # cancel() goes through the queue: a fiber that was not started may start before it.
    await fb.run_fork(Effect.promise(body))

    ran = ["started", "finalizer", "observer", "returned"]
    allowed = [ran] if now else [["observer", "returned"]]
    if asked == "cancel":
        allowed.append(ran)
    assert log in allowed


# ---- H14: a scope that closes while something is forked into it

CLOSERS: Final[dict[str, Callable[[fb.Scope], Effect[Any, Any]]]] = {
    "itself": lambda scope: scope.close(),
    "run_sync": lambda scope: Effect.sync(lambda: fb.run_sync(scope.close())),
    "a fiber it starts": lambda scope: scope.close().fork_detach(start_immediately=True),
    "a fiber it joins": lambda scope: (
        scope.close().fork_detach(start_immediately=True).flat_map(lambda fiber: fiber.join())
    ),
    "a child": lambda scope: scope.close().fork_child(start_immediately=True),
    "a plain call": lambda scope: Effect.sync(lambda: fb.run_fork(scope.close())),
}


@pytest.mark.spec("H14", "FO2")
@pytest.mark.parametrize("closer", CLOSERS)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("fork", ["by_fork_in", "by_fork_scoped", "by_plain_call"])
@pytest.mark.parametrize("strategy", STRATEGIES)
@every_loop
async def test_a_scope_that_closes_between_fork_and_registration_lets_nothing_live_on(
    strategy: Strategy, fork: str, masked: bool, closer: str
) -> None:
    """The first segment of the fork closes the scope: the barrier stands between the two."""
    scope, log = fb.Scope(strategy), list[str]()
    first_segment = CLOSERS[closer](scope)
    if masked:
        first_segment = first_segment.uninterruptible()
    effect = first_segment.flat_map(lambda _: parked(log, "interrupted"))
    fiber: fb.Fiber[Any, Any] = await fb.run_fork(FORKS[fork](effect, scope, True))
    at_once = fiber.poll()
    await turns()

    assert cause_of(at_once).has_interrupts_only
    assert log in (["interrupted"], [])
    assert scope.finalizer_count == 0
    assert list(queue_of(asyncio.get_running_loop()).live) == []


# ---- H18: who closes the scope that he is in


def closes_itself(scope: fb.Scope) -> Effect[Any, Any]:
    return scope.close()


def child_closes(scope: fb.Scope) -> Effect[Any, Any]:
    return scope.close().fork_child().flat_map(lambda child: child.join())


def helper_closes(scope: fb.Scope) -> Effect[Any, Any]:
    return Effect.suspend(lambda: fb.run_fork(scope.close()).join())


def task_closes(scope: fb.Scope) -> Effect[Any, Any]:
    async def close() -> None:
        await scope.close()

    async def body() -> None:
        await asyncio.create_task(close())

    return Effect.promise(body)


def group_closes(scope: fb.Scope) -> Effect[Any, Any]:
    async def close() -> None:
        await scope.close()

    async def body() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(close())

    return Effect.promise(body)


def worker_closes(scope: fb.Scope) -> Effect[Any, Any]:
    return fb.all_([scope.close(), Effect.yield_now()], concurrency="unbounded")


def racer_closes(scope: fb.Scope) -> Effect[Any, Any]:
    return fb.race(scope.close(), endless())


def finalizer_closes(scope: fb.Scope) -> Effect[Any, Any]:
    return Effect.succeed(1).ensuring(scope.close().or_die())


INSIDERS: Final = {
    f.__name__: f
    for f in (
        closes_itself,
        child_closes,
        helper_closes,
        task_closes,
        group_closes,
        worker_closes,
        racer_closes,
        finalizer_closes,
    )
}


@pytest.mark.spec("H18", "SO6")
@pytest.mark.parametrize("insider", INSIDERS)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("strategy", STRATEGIES)
@every_loop
async def test_a_fiber_may_close_the_scope_that_it_is_in(
    strategy: Strategy, masked: bool, insider: str
) -> None:
    """Itself or through those it waits for: no deadlock, the others end, the scope is closed."""
    scope, log = fb.Scope(strategy), list[str]()
    other = scope.fork(parked(log, "other ended"), start_immediately=True)
    await turns(1)
    effect = INSIDERS[insider](scope)
    fiber = scope.fork(effect.uninterruptible() if masked else effect)
    await asyncio.wait_for(fiber.exit(), SHORT_SECONDS)
    await asyncio.wait_for(other.exit(), SHORT_SECONDS)
    late = scope.fork(note(log, "late ran"))

    assert scope.state == "closed"
    assert log == ["other ended"]
    assert cause_of(late.poll()).has_interrupts_only


# ---- H28 (c): ten thousand at once


@pytest.mark.spec("H28", "VF7")
@pytest.mark.parametrize("state", ["not started", "body", "effect", "future"])
@pytest.mark.parametrize("strategy", STRATEGIES)
@every_loop
async def test_ten_thousand_pending_fibers_are_closed_in_under_a_second(
    strategy: Strategy, state: str
) -> None:
    """Without a warning of a coroutine that was never awaited."""
    scope, gate = fb.Scope(strategy), new_gate()

    async def body() -> None:
        await endless()

    async def on_a_future() -> None:
        await asyncio.get_running_loop().create_future()

    kinds: dict[str, Callable[[], Effect[Any, Any]]] = {
        "not started": lambda: Effect.promise(body),
        "body": lambda: Effect.promise(body),
        "effect": lambda: Effect.promise(lambda: gate),
        "future": lambda: Effect.promise(on_a_future),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(10_000):
            scope.fork(kinds[state](), start_immediately=state != "not started")
        gc.disable()  # a collection in the middle would be timed as well
        try:
            before = time.process_time()
            await scope.close()
            took = time.process_time() - before
        finally:
            gc.enable()
        gc.collect()

    assert scope.finalizer_count == 0
    # What a tracer takes of it is not ours to bound (`make coverage`).
    assert took < SHORT_SECONDS or sys.gettrace() is not None
    assert running_fibers() == 0


def running_fibers() -> int:
    """How many fibers of this loop are alive."""
    return len(queue_of(asyncio.get_running_loop()).live)


# ---- H28 (a): a closer that is cancelled

WAYS_TO_CLOSE: Final = ("a task", "a fiber", "a block in a task", "a block in a fiber")


@pytest.mark.spec("H28", "SO7", "PD12")
@pytest.mark.parametrize("way", WAYS_TO_CLOSE)
@pytest.mark.parametrize("strategy", STRATEGIES)
@every_loop
async def test_a_closer_cancelled_while_it_waits_ends_cancelled_and_the_close_finishes(
    strategy: Strategy, way: str
) -> None:
    """Every finalizer runs to its end, and the cancel is not swallowed."""
    scope, gate, log = fb.Scope(strategy), new_gate(), list[str]()
    await scope.add_finalizer(lambda _: note(log, "first"))
    slow = Effect.promise(lambda: gate).flat_map(lambda _: note(log, "slow"))
    await scope.add_finalizer(lambda _: slow)
    await scope.add_finalizer(lambda _: note(log, "last"))

    async def close() -> None:
        if "block" in way:
            async with scope:
                pass
        else:
            await scope.close()
        log.append("closer went on")
        await asyncio.sleep(0)
        log.append("closer was not cancelled")

    closer: Any = (
        fb.run_fork(Effect.promise(close)) if "fiber" in way else asyncio.create_task(close())
    )
    await turns(3)
    closer.cancel()
    await turns(3)
    gate.set_result(1)
    await asyncio.wait([closer])

    assert closer.cancelled()
    assert [line for line in log if "closer" not in line] == (
        ["last", "slow", "first"] if strategy == "sequential" else ["last", "first", "slow"]
    )
    assert "closer was not cancelled" not in log
