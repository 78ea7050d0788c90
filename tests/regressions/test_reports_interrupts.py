"""Reports from users of comparable runtimes: interrupts, finalizers that fail, and waiting.

Each is tested as a kind of fault: in every form in which it could come, on each kind of loop.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import random
from typing import TYPE_CHECKING, Any, Final, Literal

import pytest
from returns.result import Failure, Success

import fibers as fb
from fibers import Die, Effect, Fail, Interrupt
from fibers.app import close_bounded
from fibers.testing import TestClock
from tests.loops import every_loop
from tests.probes.kit_f import (
    Boom,
    cause_of,
    endless,
    failed,
    failing,
    inner_task,
    interrupted,
    interruptors,
    new_gate,
    note,
    parked,
    running_fiber,
    turns,
    wait_for,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    Eff = Effect[Any, Any]

pytestmark = pytest.mark.lifecycle

Strategy = Literal["sequential", "parallel"]
STRATEGIES: Final[tuple[Strategy, ...]] = ("sequential", "parallel")
SEEDS: Final = 1000


# ---- H03: a fiber that interrupts itself while it runs


def by_plain_call() -> Eff:
    return Effect.sync(lambda: running_fiber().interrupt_unsafe())


def by_effect() -> Eff:
    return Effect.suspend(lambda: running_fiber().interrupt())


def by_interrupt_all() -> Eff:
    def all_of_us() -> Iterator[fb.Fiber[Any, Any]]:
        yield running_fiber()

    return Effect.suspend(lambda: fb.Fiber.interrupt_all(all_of_us()))


def by_a_closed_scope() -> Eff:
    async def close_and_join_it() -> None:
        scope = fb.Scope()
        await scope.close()
        running_fiber().run_in(scope)

    return Effect.promise(close_and_join_it)


def by_a_fiber_it_starts() -> Eff:
    def start() -> None:
        me = running_fiber()
        fb.run_fork(Effect.sync(me.interrupt_unsafe))

    return Effect.sync(start)


def by_a_callback() -> Eff:
    def register(resume: Callable[[fb.Exit[None, Any]], None]) -> None:
        running_fiber().interrupt_unsafe()
        resume(Success(None))

    return Effect.callback(register)


SELF_INTERRUPTS: Final = {
    f.__name__: f
    for f in (
        by_plain_call,
        by_effect,
        by_interrupt_all,
        by_a_closed_scope,
        by_a_fiber_it_starts,
        by_a_callback,
    )
}


@pytest.mark.spec("H03", "WI2")
@pytest.mark.parametrize("waits_first", [False, True])
@pytest.mark.parametrize("place", ["effect", "body", "finally", "for_each"])
@pytest.mark.parametrize("how", SELF_INTERRUPTS)
@every_loop
async def test_a_fiber_that_interrupts_itself_ends_interrupted_and_finalizes_once(
    how: str, place: str, waits_first: bool
) -> None:
    """Never with a success, though nothing is left to wait for."""
    log = list[str]()
    interrupting = SELF_INTERRUPTS[how]()
    before: Eff = Effect.yield_now() if waits_first else Effect.succeed(None)

    async def body() -> int:
        await before
        if place == "finally":
            try:
                return 1
            finally:
                await interrupting
        await interrupting
        return 42

    if place == "effect":
        work: Eff = before.flat_map(lambda _: interrupting).map(lambda _: 42)
    elif place == "for_each":
        work = fb.for_each([before, interrupting], lambda step: step)
    else:
        work = Effect.promise(body)
    fiber = fb.run_fork(work.ensuring(note(log, "finalized")))
    exit = await fiber.exit()

    assert cause_of(exit).has_interrupts_only
    assert log == ["finalized"]


@pytest.mark.spec("H03", "FL14")
@pytest.mark.parametrize("by", [None, 99])
@pytest.mark.parametrize("given", ["generator", "list", "iterator", "set"])
@every_loop
async def test_interrupt_all_waits_for_everyone_in_any_iterable(given: str, by: int | None) -> None:
    """A one-shot iterable is read once, not used up by the signalling."""
    log = list[str]()
    slow = [parked_slowly(log, str(n)) for n in range(3)]
    fibers = [fb.run_fork(eff) for eff in slow]
    iterables: dict[str, Any] = {
        "generator": (fiber for fiber in fibers),
        "list": fibers,
        "iterator": iter(fibers),
        "set": set(fibers),
    }
    await fb.Fiber.interrupt_all(iterables[given], by=by)

    assert [interruptors(fiber.poll()) for fiber in fibers] == [[by]] * 3
    assert sorted(log) == ["0", "1", "2"]


def parked_slowly(log: list[str], name: str) -> Eff:
    """Waits for ever; its finalizer takes some turns."""
    last = Effect.promise(lambda: turns(3)).flat_map(lambda _: note(log, name))
    return endless().on_interrupt(lambda _: last)


# ---- H09: a finalizer that fails after an interrupt


def raises(error: Exception) -> Callable[..., Any]:
    def call(*_: object) -> Any:
        raise error

    return call


async def raises_in_finally(error: Exception) -> None:
    try:
        await fb.sleep(1)
    finally:
        raise error


async def raises_in_except(error: Exception) -> None:
    try:
        await asyncio.get_running_loop().create_future()
    except asyncio.CancelledError:
        await Effect.yield_now()
        raise error from None


LATE_FAILURES: Final[dict[str, Callable[[Exception], Eff]]] = {
    "on_interrupt's callback": lambda e: fb.sleep(1).on_interrupt(raises(e)),
    "on_interrupt's effect": lambda e: fb.sleep(1).on_interrupt(lambda _: Effect.die(e)),
    "on_interrupt's effect, later": lambda e: fb.sleep(1).on_interrupt(
        lambda _: Effect.yield_now().flat_map(raises(e))
    ),
    "ensuring": lambda e: fb.sleep(1).ensuring(Effect.sync(raises(e))),
    "on_exit": lambda e: fb.sleep(1).on_exit(raises(e)),
    "a release": lambda e: fb.acquire_use_release(
        Effect.succeed(1), lambda _: fb.sleep(1), raises(e)
    ),
    "a scope's finalizer": lambda e: fb.scoped(
        fb.add_finalizer(raises(e)).flat_map(lambda _: fb.sleep(1))
    ),
    "a callback's cleanup": lambda e: Effect.callback(lambda resume: Effect.die(e)),
    "a finally": lambda e: Effect.promise(lambda: raises_in_finally(e)),
    "an except": lambda e: Effect.promise(lambda: raises_in_except(e)),
}


@pytest.mark.spec("H09", "FI8")
@pytest.mark.parametrize("form", LATE_FAILURES)
@every_loop
async def test_a_cleanup_that_fails_leaves_interrupt_and_error_in_the_cause(form: str) -> None:
    """For whoever joins as well: neither hides the other."""
    error = RuntimeError("in the cleanup")
    fiber = fb.run_fork(LATE_FAILURES[form](error))
    await turns(1)
    await fiber.interrupt(by=7)
    joined = await fiber.join().exit()

    assert set(cause_of(joined).reasons) == {Interrupt(7), Die(error)}
    assert fiber.poll() == joined


# ---- H11: what can't be interrupted


def stuck_in_a_region(never: Eff) -> Eff:
    async def body() -> None:
        with fb.uninterruptible():
            await never

    return Effect.promise(body)


def stuck_in_a_masked_finally(never: Eff) -> Eff:
    async def body() -> None:
        try:
            await turns(1)
        finally:
            await never

    return Effect.promise(body).uninterruptible()


def stuck_in_a_masked_body(never: Eff) -> Eff:
    async def body() -> None:
        await never

    return Effect.promise(body).uninterruptible()


MASKED: Final[dict[str, Callable[[Eff], Eff]]] = {
    "a masked effect": lambda never: never.uninterruptible(),
    "a masked body": stuck_in_a_masked_body,
    "a region": stuck_in_a_region,
    "a finally under a mask": stuck_in_a_masked_finally,
    "a mask's function": lambda never: Effect.uninterruptible_mask(lambda restore: never),
    "a finalizer": lambda never: Effect.succeed(1).ensuring(never),
}


@pytest.mark.spec("H11", "VA3")
@pytest.mark.parametrize("with_finalizer", [False, True])
@pytest.mark.parametrize("form", MASKED)
@every_loop
async def test_the_wait_for_what_never_ends_is_bounded_and_warned_of(
    form: str, with_finalizer: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """interrupt() waits on; a bounded close gives up at its bound, once, whatever finalizers there
    are. (The test opens the gate in the end, or its loop could not be left.)
    """
    scope, gate, log = fb.Scope("parallel"), new_gate(), list[str]()
    effect = MASKED[form](wait_for(gate))
    if with_finalizer:
        effect = effect.ensuring(note(log, "finalizer"))
        await scope.add_finalizer(lambda _: note(log, "scope's finalizer"))
    stuck = scope.fork(effect, start_immediately=True)
    interrupting = fb.run_fork(stuck.interrupt())
    await turns()
    waits = not interrupting.done()
    with caplog.at_level(logging.WARNING, "fibers.app"):
        closed = await close_bounded(scope, 0.01)
    alive = stuck.poll() is None
    gate.set_result(1)
    await interrupting.exit()

    assert waits
    assert alive
    assert not closed
    assert len([r for r in caplog.records if r.levelno == logging.WARNING]) == 1
    assert f"#{stuck.id}" in caplog.text
    assert log == (["scope's finalizer", "finalizer"] if with_finalizer else [])


# ---- H12: finalizers that wait for each other


def interrupt_all_of(fibers: list[fb.Fiber[Any, Any]]) -> Eff:
    return fb.Fiber.interrupt_all(fibers)


def close_of(fibers: list[fb.Fiber[Any, Any]]) -> Eff:
    scope = fb.Scope("parallel")
    for fiber in fibers:
        fiber.run_in(scope)
    return scope.close()


@pytest.mark.spec("H12", "FL13", "SO2")
@pytest.mark.parametrize("end", [interrupt_all_of, close_of])
@pytest.mark.parametrize("count", [2, 3, 10])
@pytest.mark.parametrize("upwards", [True, False])
@every_loop
async def test_finalizers_that_await_each_other_end_because_all_are_signalled_first(
    upwards: bool, count: int, end: Callable[[list[fb.Fiber[Any, Any]]], Eff]
) -> None:
    """A chain of any length, in either order: nobody is awaited before everybody is signalled."""
    log = list[str]()
    fibers = list[fb.Fiber[Any, Any]]()

    def last(n: int, _: frozenset[int]) -> Eff:
        after = n + 1 if upwards else n - 1
        waiting: Eff = fibers[after].exit() if 0 <= after < count else Effect.succeed(None)
        return note(log, f"signal {n}").flat_map(lambda _: waiting).map(lambda _: None)

    for n in range(count):
        fibers.append(fb.run_fork(endless().on_interrupt(functools.partial(last, n))))
    await asyncio.wait_for(fb.run_fork(end(fibers)), 5)

    assert sorted(log) == sorted(f"signal {n}" for n in range(count))
    assert all(cause_of(fiber.poll()).has_interrupts_only for fiber in fibers)


@pytest.mark.spec("H12", "WI8")
@every_loop
async def test_children_whose_finalizers_await_each_other_end_with_their_parent() -> None:
    """Supervision signals all of them before it awaits one."""
    log = list[str]()

    async def parent() -> None:
        second = list[fb.Fiber[Any, Any]]()
        waiting = Effect.suspend(lambda: second[0].exit())
        await (
            endless()
            .on_interrupt(lambda _: waiting.flat_map(lambda _: note(log, "first")))
            .fork_child(start_immediately=True)
        )
        second.append(await parked(log, "second").fork_child(start_immediately=True))

    await asyncio.wait_for(fb.run_fork(Effect.promise(parent)).exit(), 5)

    assert log == ["second", "first"]


@pytest.mark.spec("H12", "LY4")
@every_loop
async def test_a_dispose_of_fibers_whose_finalizers_await_each_other_ends() -> None:
    """The runtime's own scope is a parallel one."""
    runtime, log = fb.Runtime(), list[str]()
    second = list[fb.Fiber[Any, Any]]()
    waiting = Effect.suspend(lambda: second[0].exit())
    runtime.run_fork(
        endless().on_interrupt(lambda _: waiting.flat_map(lambda _: note(log, "first")))
    )
    second.append(runtime.run_fork(parked(log, "second")))
    await asyncio.wait_for(runtime.dispose(), 5)

    assert log == ["second", "first"]


# ---- H24: the tick of the acquire


class Counted:
    """What was acquired and released, over many rounds."""

    def __init__(self) -> None:
        self.open = 0
        self.acquired = 0

    def acquire(self, at: asyncio.Future[int]) -> Eff:
        def take(_: object) -> Counted:
            self.open += 1
            self.acquired += 1
            return self

        return Effect.promise(lambda: at).map(take)

    def release(self, *_: object) -> Eff:
        def give_back() -> None:
            self.open -= 1

        return Effect.sync(give_back)


def used(held: Counted, at: asyncio.Future[int]) -> Eff:
    return fb.acquire_use_release(held.acquire(at), lambda _: endless(), held.release)


def scoped(held: Counted, at: asyncio.Future[int]) -> Eff:
    return fb.scoped(
        fb.acquire_release(held.acquire(at), held.release).flat_map(lambda _: endless())
    )


def interruptible_acquire(held: Counted, at: asyncio.Future[int]) -> Eff:
    acquired = fb.acquire_release(held.acquire(at), held.release, interruptible=True)
    return fb.scoped(acquired.flat_map(lambda _: endless()))


def worker(held: Counted, at: asyncio.Future[int]) -> Eff:
    return fb.all_([used(held, at), used(held, at)], concurrency=2)


def racer(held: Counted, at: asyncio.Future[int]) -> Eff:
    return fb.race(used(held, at), endless())


def timed(held: Counted, at: asyncio.Future[int]) -> Eff:
    return used(held, at).timeout(60)


def in_wait_for(held: Counted, at: asyncio.Future[int]) -> Eff:
    async def body() -> None:
        await asyncio.wait_for(fb.run_fork(used(held, at)), 60)

    return Effect.promise(body)


ACQUIRERS: Final = {
    f.__name__: f for f in (used, scoped, interruptible_acquire, worker, racer, timed, in_wait_for)
}


@pytest.mark.spec("H24", "AT11")
@pytest.mark.parametrize("acquirer", ACQUIRERS)
@every_loop
async def test_a_resource_given_in_the_tick_of_the_interrupt_is_not_lost(acquirer: str) -> None:
    """1000 seeds: given before, after or with the interrupt, by the queue or at once."""
    held = Counted()
    for seed in range(SEEDS):
        rng, at = random.Random(seed), new_gate()
        fiber = fb.run_fork(ACQUIRERS[acquirer](held, at)).ignore_failure()
        loop = asyncio.get_running_loop()
        ask = fiber.cancel if rng.random() < 0.3 else fiber.interrupt_unsafe
        steps: list[Callable[[], object]] = [functools.partial(at.set_result, 1), ask]
        rng.shuffle(steps)
        for step in steps:
            if rng.random() < 0.5:
                loop.call_soon(step)
            else:
                step()
        exit = await fiber.exit()
        await turns(3)

        assert isinstance(exit, Failure), seed
        assert held.open == 0, seed
    assert held.acquired > 0


@pytest.mark.spec("H24", "TR5")
@pytest.mark.parametrize("limited", ["timeout", "timeout_option", "race"])
@every_loop
async def test_a_resource_acquired_at_its_deadline_is_released(limited: str) -> None:
    """Virtual time: the acquire and the timeout are due at the same instant."""
    clock, held = TestClock(), Counted()
    runtime = fb.Runtime(clock=clock)
    for seconds in (1.0, 2.0, 3.0):
        acquire = fb.sleep(2).flat_map(lambda _: held.acquire(done()))
        using = fb.acquire_use_release(acquire, lambda _: fb.sleep(1), held.release)
        limits: dict[str, Eff] = {
            "timeout": using.timeout(seconds),
            "timeout_option": using.timeout_option(seconds),
            "race": fb.race_first(using, fb.sleep(seconds)),
        }
        fiber = runtime.run_fork(limits[limited]).ignore_failure()
        await runtime.run(clock.adjust(10))

        assert fiber.done()
        assert held.open == 0
    await runtime.dispose()

    assert held.acquired == 3


def done() -> asyncio.Future[int]:
    gate = new_gate()
    gate.set_result(1)
    return gate


# ---- H25: somebody else's interrupt


async def by_await(fiber: fb.Fiber[Any, Any]) -> None:
    await fiber


async def by_join(fiber: fb.Fiber[Any, Any]) -> None:
    await fiber.join()


async def by_join_all(fiber: fb.Fiber[Any, Any]) -> None:
    await fb.Fiber.join_all([fiber])


async def by_a_mapped_join(fiber: fb.Fiber[Any, Any]) -> None:
    await fiber.join().map(lambda _: None).ensuring(Effect.yield_now())


async def by_a_masked_join(fiber: fb.Fiber[Any, Any]) -> None:
    await fiber.join().uninterruptible()


async def by_a_body_that_joins(fiber: fb.Fiber[Any, Any]) -> None:
    await Effect.promise(lambda: by_await(fiber))


JOINS: Final = {
    f.__name__: f
    for f in (
        by_await,
        by_join,
        by_join_all,
        by_a_mapped_join,
        by_a_masked_join,
        by_a_body_that_joins,
    )
}


@pytest.mark.spec("H25", "PD14")
@pytest.mark.parametrize("ended_before", [False, True])
@pytest.mark.parametrize("in_a_fiber", [True, False])
@pytest.mark.parametrize("join", JOINS)
@every_loop
async def test_who_joins_an_interrupted_fiber_is_told_and_not_cancelled(
    join: str, in_a_fiber: bool, ended_before: bool
) -> None:
    """FiberInterrupted, an error like others; cancelling() stays 0 and the joiner goes on."""
    log, target = list[str](), fb.run_fork(endless())

    async def joiner() -> None:
        try:
            await JOINS[join](target)
        except fb.FiberInterrupted as exc:
            log.append(f"told: {[r.by for r in exc.cause.reasons if isinstance(r, Interrupt)]}")
        log.append(f"cancelling {inner_task().cancelling()}")
        await asyncio.sleep(0)
        log.append("went on")

    if ended_before:
        target.interrupt_unsafe(by=4)
    waiting: Any = (
        fb.run_fork(Effect.promise(joiner)) if in_a_fiber else asyncio.create_task(joiner())
    )
    await turns(2)
    target.interrupt_unsafe(by=4)
    await waiting

    assert log == ["told: [4]", "cancelling 0", "went on"]


@pytest.mark.spec("H25", "FL4")
@every_loop
async def test_who_asks_for_the_exit_of_an_interrupted_fiber_gets_a_value() -> None:
    """No exception at all."""
    target = fb.run_fork(endless())
    asking = fb.run_fork(target.exit())
    target.interrupt_unsafe(by=4)

    assert await asking == interrupted(4)


# ---- H28 (b): joining what has ended


@pytest.mark.spec("H28", "FL6")
@pytest.mark.parametrize("join", ["await", "join", "exit", "result", "gather", "wait_for"])
@pytest.mark.parametrize("kind", ["succeed", "body", "slow body"])
@every_loop
async def test_a_join_of_an_ended_fiber_gives_its_value_ten_times_of_ten(
    kind: str, join: str
) -> None:
    """However it is asked, and how often."""

    async def body() -> int:
        if kind == "slow body":
            await turns(2)
        return 5

    fiber = fb.run_fork(Effect.succeed(5) if kind == "succeed" else Effect.promise(body))
    await fiber.exit()
    asks: dict[str, Callable[[], Awaitable[Any]]] = {
        "await": lambda: fiber,
        "join": fiber.join,
        "exit": lambda: fiber.exit().map(lambda ended: ended.unwrap()),
        "result": lambda: Effect.sync(fiber.result),
        "gather": lambda: _first_of(asyncio.gather(fiber)),
        "wait_for": lambda: asyncio.wait_for(fiber, 60),
    }

    assert [await asks[join]() for _ in range(10)] == [5] * 10


async def _first_of(values: Awaitable[tuple[int]]) -> int:
    return (await values)[0]


# ---- H30: an error, then a cancel in its cleanup

AFTER_AN_ERROR: Final[dict[str, Callable[[Eff, Eff], Eff]]] = {
    "ensuring": lambda eff, cleanup: eff.ensuring(cleanup),
    "on_exit": lambda eff, cleanup: eff.on_exit(lambda _: cleanup),
    "a release": lambda eff, cleanup: fb.acquire_use_release(
        Effect.succeed(1), lambda _: eff, lambda _, exit_: cleanup
    ),
    "a scope": lambda eff, cleanup: fb.scoped(
        fb.add_finalizer(lambda _: cleanup).flat_map(lambda _: eff)
    ),
    "a child's finalizer": lambda eff, cleanup: (
        endless().ensuring(cleanup).fork_child(start_immediately=True).flat_map(lambda _: eff)
    ),
}


@pytest.mark.spec("H30", "AT19", "IN7")
@pytest.mark.parametrize("ask", ["interrupt_unsafe", "cancel", "scope"])
@pytest.mark.parametrize("form", AFTER_AN_ERROR)
@every_loop
async def test_an_error_is_kept_when_the_fiber_is_cancelled_while_it_cleans_up(
    form: str, ask: str
) -> None:
    """Error first, interrupt behind it, and the cleanup ends."""
    boom, gate, log, scope = Boom(), new_gate(), list[str](), fb.Scope()
    cleanup = wait_for(gate).flat_map(lambda _: note(log, "cleaned up"))
    fiber = scope.fork(AFTER_AN_ERROR[form](failing(boom), cleanup), start_immediately=True)
    await turns(2)
    closing = fb.run_fork(scope.close()) if ask == "scope" else None
    if closing is None:
        getattr(fiber, ask)()
    await turns(2)
    gate.set_result(1)
    exit = await fiber.exit()
    by = None if closing is None else closing.id
    reason = None if closing is None else "scope closed"

    assert log == ["cleaned up"]
    assert exit == failed(Fail(boom), Interrupt(by, reason))


@pytest.mark.spec("H30", "AT19")
@pytest.mark.parametrize("around", ["timeout", "group", "anyio scope", "scope"])
@every_loop
async def test_a_cancel_that_reached_nobody_invents_no_interrupt(around: str) -> None:
    """The region is cancelled while nothing in it waits any more: its value stands."""
    anyio = pytest.importorskip("anyio")
    log = list[str]()

    async def body() -> int:
        if around == "timeout":
            async with asyncio.timeout(None) as limit:  # noqa: ASYNC100  # that nothing waits in it is the subject
                limit.reschedule(0)
            log.append(f"expired {limit.expired()}")
        elif around == "group":
            async with asyncio.TaskGroup() as group:
                task = group.create_task(asyncio.sleep(0))
                task.cancel()
        elif around == "anyio scope":
            with anyio.CancelScope() as scope:
                scope.cancel()
            log.append(f"caught {scope.cancelled_caught}")
        else:
            async with fb.Scope() as mine:
                mine.fork(endless())
        await turns(2)
        log.append(f"cancelling {inner_task().cancelling()}")
        return 7

    exit = await fb.run_fork(Effect.promise(body)).exit()

    assert exit == Success(7)
    assert log[-1] == "cancelling 0"
    assert "expired True" not in log
    assert "caught True" not in log


@pytest.mark.spec("H30", "AT22")
@pytest.mark.parametrize("first", ["inner", "outer"])
@pytest.mark.parametrize("inner", ["timeout", "group", "anyio scope"])
@every_loop
async def test_when_inner_and_outer_are_both_cancelled_the_outer_cancel_is_raised_again(
    inner: str, first: str
) -> None:
    """The inner region takes its own cancel only; behind it nothing runs on."""
    anyio = pytest.importorskip("anyio")
    log = list[str]()
    cancel_inner = list[Any]()

    async def body() -> None:
        try:
            if inner == "timeout":
                async with asyncio.timeout(None) as limit:
                    cancel_inner.append(lambda: limit.reschedule(0))
                    await asyncio.get_running_loop().create_future()
            elif inner == "group":
                async with asyncio.TaskGroup() as group:
                    gate = new_gate()
                    group.create_task(_fails_at(gate))
                    cancel_inner.append(lambda: gate.set_result(1))
                    await asyncio.get_running_loop().create_future()
            else:
                with anyio.CancelScope() as scope:
                    cancel_inner.append(scope.cancel)
                    await asyncio.get_running_loop().create_future()
        except (TimeoutError, ExceptionGroup):
            log.append("inner ended")
        await asyncio.get_running_loop().create_future()
        log.append("went on")

    fiber = fb.run_fork(Effect.promise(body))
    await turns(2)
    steps: list[Callable[[], object]] = [cancel_inner[0], lambda: fiber.cancel("outer")]
    if first == "outer":
        steps.reverse()
    for step in steps:
        step()
    await turns()

    assert fiber.done()
    assert "went on" not in log
    assert Interrupt(None, "outer") in cause_of(fiber.poll()).reasons
    assert cause_of(fiber.poll()).has_interrupts_only


async def _fails_at(gate: asyncio.Future[int]) -> None:
    await gate
    raise Boom
