"""Probes AT6-AT12: tasks, wake-ups, generators and resources that asyncio loses or leaves alone."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import gc
import random
import sys
import weakref
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import pytest
from returns.result import Failure, Success

import fibers as fb
from fibers import Die, Effect
from tests.loops import every_loop
from tests.probes.kit_f import (
    Boom,
    cause_of,
    endless,
    failed,
    inner_task,
    interrupted,
    is_face_of,
    new_gate,
    note,
    parked,
    running_fiber,
    turns,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

pytestmark = pytest.mark.lifecycle


# ---- AT6: eager tasks


def start_tasks_eagerly() -> None:
    """From here on the loop's tasks start inside create_task, where this Python can."""
    if sys.version_info >= (3, 12):

        def factory(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> Any:
            # uvloop hands eager_start over, which 3.13.0's own eager factory doesn't know.
            options["eager_start"] = True
            return asyncio.Task(coro, loop=loop, **options)

        asyncio.get_running_loop().set_task_factory(factory)


async def fails() -> None:
    raise Boom


@pytest.mark.spec("AT6")
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("waits", [False, True])
@every_loop
async def test_a_task_that_fails_before_its_group_knows_it_is_reported_by_the_group(
    waits: bool, masked: bool
) -> None:
    """The group raises its error, cancels what the body awaits, and leaves the body usable."""
    start_tasks_eagerly()
    log = list[str]()

    async def body() -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(fails())
                log.append("created")
                if waits:
                    await asyncio.get_running_loop().create_future()
                    log.append("not cancelled")
        except* Boom as raised:
            log.append(f"{len(raised.exceptions)} failed")
        await turns(2)
        log.append(f"cancelling {inner_task().cancelling()}")

    effect = Effect.promise(body)
    exit = await fb.run_fork(effect.uninterruptible() if masked else effect).exit()

    assert exit == Success(None)
    assert log == ["created", "1 failed", "cancelling 0"]


@pytest.mark.spec("AT6", "PD12")
@every_loop
async def test_an_effect_in_an_eager_task_is_a_fiber_of_that_task() -> None:
    """The task starts inside a fiber's step, and its effects are not that fiber's."""
    start_tasks_eagerly()
    seen = list[object]()

    async def child() -> None:
        seen.append(fb.current_fiber() is None or sys.version_info < (3, 12))
        seen.append((await Effect.sync(running_fiber)).id)

    async def body() -> int:
        async with asyncio.TaskGroup() as group:
            group.create_task(child())
        return running_fiber().id

    mine = await fb.run_fork(Effect.promise(body))

    assert seen[0] is True
    assert seen[1] != mine


# ---- AT7: wake-ups


class Woken:
    """Two waiters for one thing of asyncio's, and how one of them is woken."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.condition = asyncio.Condition()
        self.queue = asyncio.Queue[int](1)
        self.lock = asyncio.Lock()
        self.semaphore = asyncio.Semaphore(1)

    async def prepare(self) -> None:
        if self.kind == "Queue.put":
            self.queue.put_nowait(0)
        elif self.kind == "Lock":
            await self.lock.acquire()
        elif self.kind == "Semaphore":
            await self.semaphore.acquire()

    async def wait(self) -> None:
        if self.kind == "Condition":
            async with self.condition:
                await self.condition.wait()
        elif self.kind == "Queue.get":
            await self.queue.get()
        elif self.kind == "Queue.put":
            await self.queue.put(1)
        elif self.kind == "Lock":
            async with self.lock:
                pass
        else:
            async with self.semaphore:
                pass

    async def wake_one(self) -> None:
        if self.kind == "Condition":
            async with self.condition:
                self.condition.notify(1)
        elif self.kind == "Queue.get":
            self.queue.put_nowait(1)
        elif self.kind == "Queue.put":
            self.queue.get_nowait()
        elif self.kind == "Lock":
            self.lock.release()
        else:
            self.semaphore.release()


WAKE_UPS = ["Condition", "Queue.get", "Queue.put", "Lock", "Semaphore"]


@pytest.mark.spec("AT7")
@pytest.mark.parametrize("ask", ["interrupt_unsafe", "cancel", "inner cancel", "timeout"])
@pytest.mark.parametrize("kind", WAKE_UPS)
@every_loop
async def test_a_wake_up_of_a_waiter_that_is_cancelled_in_that_tick_is_passed_on(
    kind: str, ask: str
) -> None:
    """One was woken for one thing: if the first doesn't take it, the second does."""
    woken = Woken(kind)
    await woken.prepare()
    log, tasks, limits = list[str](), list[asyncio.Task[Any]](), list[asyncio.Timeout]()

    async def body(name: str) -> None:
        tasks.append(inner_task())
        try:
            async with asyncio.timeout(None) as limit:
                limits.append(limit)
                await woken.wait()
        except TimeoutError:
            log.append(f"{name} timed out")
            return
        log.append(f"{name} woken")

    first = fb.run_fork(Effect.promise(lambda: body("first")))
    second = fb.run_fork(Effect.promise(lambda: body("second")))
    await turns()
    await woken.wake_one()
    if ask == "inner cancel":
        tasks[0].cancel()
    elif ask == "timeout":
        # What its timer does.
        limits[0]._on_timeout()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]  # in this very tick; a timer would come one later
    else:
        getattr(first, ask)()
    await turns()
    ended = second.done()
    second.interrupt_unsafe()
    await turns()

    assert first.done()
    # A cancel() through the queue comes behind the wake-up, which the first has taken then.
    assert "second woken" in log or "first woken" in log
    assert ended is ("second woken" in log)


# ---- AT8: shield


@pytest.mark.spec("AT8")
@every_loop
async def test_what_shield_detaches_is_still_owned_by_its_scope() -> None:
    """The body is interrupted, the shielded fiber goes on, and its scope ends it."""
    scope, log = fb.Scope(), list[str]()
    shielded = scope.fork(parked(log, "ended by its scope"), start_immediately=True)

    async def body() -> None:
        await asyncio.shield(shielded)

    fiber = fb.run_fork(Effect.promise(body))
    fiber.interrupt_unsafe()
    alive = shielded.poll() is None and scope.finalizer_count == 1
    await scope.close()

    assert fiber.poll() == interrupted(None)
    assert alive
    assert log == ["ended by its scope"]


@pytest.mark.spec("AT8")
@every_loop
async def test_the_failure_of_what_shield_detached_lands_in_a_cause() -> None:
    """asyncio would drop it: shield looks at it and says nothing. Here it is the fiber's exit."""
    scope, gate, boom = fb.Scope(), new_gate(), Boom()
    late = Effect.promise(lambda: gate).flat_map(lambda _: Effect.die(boom))
    shielded = scope.fork(late, start_immediately=True)

    async def body() -> None:
        await asyncio.shield(shielded)

    fb.run_fork(Effect.promise(body)).interrupt_unsafe()
    gate.set_result(1)

    assert await shielded.exit() == failed(Die(boom))


@pytest.mark.spec("AT8")
@every_loop
async def test_a_coroutine_that_shield_detaches_has_an_owner_with_the_task_factory() -> None:
    """Its task is a fiber of the factory's scope: the close cancels it and waits for it."""
    scope, log = fb.Scope(), list[str]()
    asyncio.get_running_loop().set_task_factory(fb.task_factory(scope=scope))

    async def detached() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await turns(2)
            log.append("ended by its scope")

    async def body() -> None:
        await asyncio.shield(detached())

    fiber = fb.run_fork(Effect.promise(body))
    await turns(2)
    fiber.interrupt_unsafe()
    held = scope.finalizer_count
    await scope.close()
    asyncio.get_running_loop().set_task_factory(None)

    assert held == 1
    assert log == ["ended by its scope"]


@pytest.mark.spec("AT8")
@every_loop
async def test_a_child_behind_a_shield_ends_with_its_parent() -> None:
    """Supervision owns it: the parent's exit waits for its finalizer."""
    log = list[str]()

    async def body() -> None:
        child = await parked(log, "child ended").fork_child(start_immediately=True)
        await asyncio.shield(child)

    await fb.run_fork(Effect.promise(body)).interrupt()

    assert log == ["child ended"]


# ---- AT9: fire and forget


def awaits_a_future() -> Effect[None, Any]:
    async def body() -> None:
        await asyncio.get_running_loop().create_future()

    return Effect.promise(body)


# What nothing but the fiber itself refers to.
LONELY: dict[str, Callable[[], Effect[Any, Any]]] = {
    "never": endless,
    "a future of its own": awaits_a_future,
    "a promise of its own": lambda: Effect.promise(asyncio.get_running_loop().create_future),
    "a callback that nobody kept": lambda: Effect.callback(lambda resume: None),
}

FORKS: dict[str, Callable[[Effect[Any, Any]], Awaitable[Any]]] = {
    "run_fork": lambda eff: Effect.sync(lambda: fb.run_fork(eff)),
    "fork_detach": lambda eff: eff.fork_detach(start_immediately=True),
    "a scope nobody kept": lambda eff: eff.fork_in(fb.Scope(), start_immediately=True),
    "deferred": lambda eff: eff.fork_detach(),
}


@pytest.mark.spec("AT9", "PD13")
@pytest.mark.parametrize("waits", LONELY)
@pytest.mark.parametrize("forked", FORKS)
@every_loop
async def test_a_fiber_that_nobody_kept_lives_until_it_has_ended(forked: str, waits: str) -> None:
    """A task of asyncio's in its place is only weakly held, and may vanish."""
    log = list[str]()

    async def fork() -> weakref.ref[Any]:
        effect = LONELY[waits]().on_interrupt(lambda _: note(log, "interrupted"))
        return weakref.ref(await FORKS[forked](effect))

    fiber = await asyncio.create_task(fork())
    await turns()
    gc.collect()
    alive = fiber()
    assert alive is not None
    alive.interrupt_unsafe()
    await turns()
    del alive
    gc.collect()

    assert log == ["interrupted"]
    assert fiber() is None


# ---- AT10: async generators

place = contextvars.ContextVar("place", default="outside")


@pytest.mark.spec("AT10")
@pytest.mark.parametrize("end", ["break", "error", "interrupt", "inner cancel"])
@every_loop
async def test_a_generator_is_closed_in_the_fiber_and_context_that_consumes_it(end: str) -> None:
    """Under aclosing: its finally runs before the body goes on, in the same fiber and Context."""
    log, tasks = list[str](), list[asyncio.Task[Any]]()

    async def numbers() -> AsyncGenerator[int, None]:
        me = running_fiber()
        try:
            yield 1
            await asyncio.get_running_loop().create_future()
        finally:
            await Effect.yield_now()
            same = fb.current_fiber() is me and is_face_of(inner_task(), me)
            log.append(f"closed in {place.get()}, same fiber: {same}")

    async def body() -> None:
        place.set("the body")
        tasks.append(inner_task())
        try:
            async with aclosing(numbers()) as stream:
                async for _ in stream:
                    if end == "break":
                        break
                    if end == "error":
                        raise Boom
        finally:
            log.append("left")

    fiber = fb.run_fork(Effect.promise(body)).ignore_failure()
    await turns()
    if end == "interrupt":
        fiber.interrupt_unsafe()
    elif end == "inner cancel":
        tasks[0].cancel()
    await fiber.exit()

    assert log == ["closed in the body, same fiber: True", "left"]


# ---- AT11: acquired == released

SEEDS = 1000


class Counted:
    """A resource that knows how often it was acquired and released."""

    def __init__(self) -> None:
        self.acquired = 0
        self.released = 0
        # Called in the step in which it is acquired.
        self.while_acquired: list[Callable[[], object]] = []

    def acquire(self, rng: random.Random) -> Effect[int, Any]:
        """Take some turns, then the resource; it is acquired in the tick in which it is given."""
        pauses = rng.randrange(3)

        async def acquire() -> int:
            await turns(pauses)
            self.acquired += 1
            for call in self.while_acquired:
                call()
            return self.acquired

        return Effect.promise(acquire)

    def release(self, *_: object) -> Effect[None, Any]:
        def release() -> None:
            self.released += 1

        return Effect.sync(release)


def used(resource: Counted, rng: random.Random) -> Effect[Any, Any]:
    return fb.acquire_use_release(resource.acquire(rng), lambda _: endless(), resource.release)


def scoped(resource: Counted, rng: random.Random) -> Effect[Any, Any]:
    held = fb.acquire_release(resource.acquire(rng), resource.release)
    return fb.scoped(held.flat_map(lambda _: endless()))


def ensured(resource: Counted, rng: random.Random) -> Effect[Any, Any]:
    acquire = resource.acquire(rng)
    return Effect.uninterruptible_mask(
        lambda restore: acquire.flat_map(lambda _: restore(endless()).ensuring(resource.release()))
    )


def region(resource: Counted, rng: random.Random) -> Effect[Any, Any]:
    acquire = resource.acquire(rng)

    async def body() -> None:
        with fb.uninterruptible() as restore:
            await acquire
            try:
                with restore():
                    await endless()
            finally:
                await resource.release()

    return Effect.promise(body)


ACQUIRERS = {f.__name__: f for f in (used, scoped, ensured, region)}


@pytest.mark.spec("AT11")
@pytest.mark.parametrize("acquirer", ACQUIRERS)
@every_loop
async def test_what_is_acquired_in_the_tick_of_the_interrupt_is_released(acquirer: str) -> None:
    """Over 1000 seeds: acquires of some turns; interrupts and cancels after some turns, or from
    inside of the very step that acquires.
    """
    scope = fb.Scope()
    for seed in range(SEEDS):
        rng, resource = random.Random(seed), Counted()
        fiber = scope.fork(ACQUIRERS[acquirer](resource, rng))
        ask = fiber.interrupt_unsafe if rng.random() < 0.5 else fiber.cancel
        if rng.random() < 0.5:
            resource.while_acquired.append(ask)
        else:
            await turns(rng.randrange(4))
            ask()
        exit = await fiber.exit()

        assert isinstance(exit, Failure), seed
        assert cause_of(exit).has_interrupts_only, seed
        assert resource.acquired == resource.released, seed


@pytest.mark.spec("AT11")
@pytest.mark.parametrize("kind", ["Lock", "Semaphore"])
@every_loop
async def test_a_lock_of_asyncios_given_in_the_tick_of_the_interrupt_is_free_again(
    kind: str,
) -> None:
    """Over 1000 seeds: `async with` in bodies, holders and waiters interrupted at random."""
    for seed in range(SEEDS):
        rng = random.Random(seed)
        lock = asyncio.Lock() if kind == "Lock" else asyncio.Semaphore(1)
        fibers = [fb.run_fork(Effect.promise(functools.partial(_held, lock))) for _ in range(3)]
        for fiber in rng.sample(fibers, k=2):
            await turns(rng.randrange(3))
            fiber.interrupt_unsafe()
        await fb.Fiber.await_all(fibers)

        assert not lock.locked(), seed


async def _held(lock: asyncio.Lock | asyncio.Semaphore) -> None:
    async with lock:
        await turns(2)


# ---- AT12: before the first step


@pytest.mark.spec("AT12")
@pytest.mark.parametrize("ask", ["interrupt", "interrupt_unsafe"])
@every_loop
async def test_observers_and_scope_of_a_never_started_fiber_hear_of_it_before_interrupt_returns(
    ask: str,
) -> None:
    """Nothing of it runs; observer, scope and exit are all done with it."""
    scope, log = fb.Scope(), list[str]()
    fiber = scope.fork(note(log, "ran").on_exit(lambda _: note(log, "its on_exit ran")))
    fiber.add_observer(lambda _: log.append("observer"))
    held = scope.finalizer_count
    if ask == "interrupt":
        await fiber.interrupt()
    else:
        fiber.interrupt_unsafe()
    log.append("interrupt returned")

    assert (held, scope.finalizer_count) == (1, 0)
    assert log == ["observer", "interrupt returned"]


@pytest.mark.spec("AT12")
@pytest.mark.parametrize("strategy", ["sequential", "parallel"])
@every_loop
async def test_a_close_before_the_first_step_runs_the_scopes_finalizers(strategy: Any) -> None:
    """The fiber never starts, its observers hear of it, and the finalizers run as ever."""
    scope, log = fb.Scope(strategy), list[str]()
    await scope.add_finalizer(lambda _: note(log, "finalizer"))
    fiber = scope.fork(note(log, "ran"))
    fiber.add_observer(lambda _: log.append("observer"))
    await scope.close()

    assert fiber.done()
    assert log == ["observer", "finalizer"]
