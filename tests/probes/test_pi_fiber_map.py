"""Probes PI9: FiberMap, one fiber a key, and FiberHandle, one fiber."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
from returns.maybe import Nothing, Some
from returns.result import Success

import fibers as fb
from fibers import Effect, Fail, Fiber, FiberHandle, FiberMap, Scope
from tests.probes.kit_e import Boom, chain, failed, interrupted, pass_time, peek, say
from tests.probes.kit_owned import SEEDS, farewell, make_in, storm

if TYPE_CHECKING:
    import random

    from fibers.testing import TestClock

BOOM = Boom("boom")


class Slot:
    """One slot of a map, or a handle: what both do alike is probed on both."""

    def __init__(self, owner: FiberMap[str] | FiberHandle, closer: int | None) -> None:
        self.owner = owner
        # Whose name the close interrupts in; None: the closing fiber's.
        self.closer = closer

    def run(self, eff: Effect[Any, Any], **how: bool) -> Effect[Fiber[Any, Any]]:
        owner = self.owner
        if isinstance(owner, FiberHandle):
            return owner.run(eff, **how)
        return owner.run("k", eff, **how)

    def set(self, fiber: Fiber[Any, Any], **how: bool) -> Effect[None]:
        owner = self.owner
        if isinstance(owner, FiberHandle):
            return owner.set(fiber, **how)
        return owner.set("k", fiber, **how)

    def get(self) -> Any:
        owner = self.owner
        return owner.get() if isinstance(owner, FiberHandle) else owner.get("k")


MakeSlot: TypeAlias = "Callable[[fb.Runtime, Scope], Any]"


async def in_a_map(rt: fb.Runtime, scope: Scope) -> Slot:
    return Slot(await make_in(rt, scope, FiberMap.make()), None)


async def in_a_handle(rt: fb.Runtime, scope: Scope) -> Slot:
    return Slot(await make_in(rt, scope, FiberHandle.make()), -1)


@pytest.fixture
async def scope(rt: fb.Runtime) -> AsyncIterator[Scope]:
    """The scope that owns what a test makes."""
    scope = Scope()
    yield scope
    await rt.run(scope.close())


@pytest.fixture(params=[in_a_map, in_a_handle], ids=["map", "handle"])
async def slot(request: pytest.FixtureRequest, rt: fb.Runtime, scope: Scope) -> Slot:
    """An empty slot of either kind."""
    make: MakeSlot = request.param
    made: Slot = await make(rt, scope)
    return made


@pytest.fixture
async def jobs(rt: fb.Runtime, scope: Scope) -> FiberMap[str]:
    """An empty map."""
    return await make_in(rt, scope, FiberMap.make())


# ---- replacing


@pytest.mark.spec("PI9")
async def test_a_new_fiber_starts_before_the_former_one_is_interrupted(
    rt: fb.Runtime, slot: Slot
) -> None:
    """Both before ``run`` gives the new one."""
    log: list[str] = []
    await rt.run(slot.run(farewell(log, "old")))

    await rt.run(slot.run(farewell(log, "new")).flat_map(lambda _: say(log, "caller")))

    assert log == ["+old", "+new", "-old", "caller"]


@pytest.mark.spec("PI9")
async def test_the_former_fiber_is_interrupted_by_minus_one_and_not_awaited(
    rt: fb.Runtime, clock: TestClock, slot: Slot
) -> None:
    """Its finalizer goes on while the caller does."""
    log: list[str] = []
    old = await rt.run(slot.run(farewell(log, "old", 1)))

    new = await rt.run(slot.run(Effect.never()))
    at_once = old.poll()
    await pass_time(rt, clock)

    assert at_once is None
    assert old.poll() == interrupted(-1, reason="replaced")
    assert slot.get() == Some(new)


@pytest.mark.spec("PI9")
async def test_the_end_of_a_former_fiber_leaves_the_new_one_in_place(
    rt: fb.Runtime, clock: TestClock, slot: Slot
) -> None:
    """Also where it ends much later."""
    await rt.run(slot.run(farewell([], "old", 5)))
    new = await rt.run(slot.run(Effect.never()))

    await pass_time(rt, clock)

    assert slot.get() == Some(new)


@pytest.mark.spec("PI9")
async def test_a_new_fiber_that_ends_at_once_ends_the_former_one_too(
    rt: fb.Runtime, clock: TestClock, slot: Slot
) -> None:
    """The slot is empty then, whenever the former one ends."""
    old = await rt.run(slot.run(farewell([], "old", 5)))

    new = await rt.run(slot.run(Effect.succeed(1)))
    at_once = (new.poll(), slot.get())
    await pass_time(rt, clock)

    assert at_once == (Success(1), Nothing)
    assert old.poll() == interrupted(-1, reason="replaced")


@pytest.mark.spec("PI9")
async def test_a_fiber_may_replace_itself(rt: fb.Runtime, slot: Slot) -> None:
    """It is interrupted right after the start of the other."""
    log: list[str] = []
    again = slot.run(farewell(log, "new")).flat_map(lambda _: say(log, "no"))
    old = await rt.run(slot.run(Effect.yield_now().flat_map(lambda _: again)))

    await rt.run(old.exit())

    assert log == ["+new"]
    assert peek(old) == "I(-1)"


@pytest.mark.spec("PI9")
async def test_a_running_fiber_can_be_set(rt: fb.Runtime, slot: Slot) -> None:
    """In the place of the former one; set twice it stays."""
    old = await rt.run(slot.run(Effect.never()))
    fiber: Fiber[None, Any] = rt.run_fork(Effect.never())

    await rt.run(chain(slot.set(fiber), slot.set(fiber)))

    assert old.poll() == interrupted(-1, reason="replaced")
    assert fiber.poll() is None
    assert slot.get() == Some(fiber)


@pytest.mark.spec("PI9")
async def test_ten_thousand_replaced_fibers_leave_nothing(rt: fb.Runtime, slot: Slot) -> None:
    """Only the last one is there."""
    for _ in range(10_000):
        await rt.run(slot.run(Effect.never()))
    last = await rt.run(slot.run(Effect.never()))

    assert slot.get() == Some(last)
    assert await rt.run(slot.owner.size()) == 1
    assert not slot.owner._leaving


# ---- only_if_missing


@pytest.mark.spec("PI9")
async def test_only_if_missing_starts_nothing_where_a_fiber_is_alive(
    rt: fb.Runtime, slot: Slot
) -> None:
    """It gives a fiber that has been interrupted, the same one each time."""
    log: list[str] = []
    there = await rt.run(slot.run(Effect.never()))

    given = [await rt.run(slot.run(say(log, "ran"), only_if_missing=True)) for _ in range(2)]

    assert log == []
    assert slot.get() == Some(there)
    assert given[0] is given[1]
    assert given[0].poll() == interrupted(-1, reason="already running")


@pytest.mark.spec("PI9")
async def test_only_if_missing_starts_where_none_is_alive(rt: fb.Runtime, slot: Slot) -> None:
    """Or none any more."""
    await rt.run(slot.run(Effect.succeed(1), only_if_missing=True))

    fiber = await rt.run(slot.run(Effect.never(), only_if_missing=True))

    assert slot.get() == Some(fiber)


@pytest.mark.spec("PI9")
async def test_set_only_if_missing_interrupts_the_fiber_that_is_not_wanted(
    rt: fb.Runtime, slot: Slot
) -> None:
    """The new one, by -1."""
    there = await rt.run(slot.run(Effect.never()))
    fiber: Fiber[None, Any] = rt.run_fork(Effect.never())

    await rt.run(slot.set(fiber, only_if_missing=True))

    assert fiber.poll() == interrupted(-1, reason="already running")
    assert slot.get() == Some(there)


# ---- closing


@pytest.mark.spec("PI9", "PI7")
async def test_close_interrupts_and_awaits(
    rt: fb.Runtime, clock: TestClock, scope: Scope, slot: Slot
) -> None:
    """In the name of the closing fiber for a map, by -1 for a handle; then join ends."""
    log: list[str] = []
    fiber = await rt.run(slot.run(farewell(log, "a", 1)))
    joined = rt.run_fork(slot.owner.join().flat_map(lambda _: say(log, "joined")))

    closer = rt.run_fork(scope.close())
    await pass_time(rt, clock)

    by = closer.id if slot.closer is None else slot.closer
    assert fiber.poll() == interrupted(by, reason="scope closed")
    assert log == ["+a", "-a", "joined"]
    assert joined.poll() == Success(None)


@pytest.mark.spec("PI9", "PI7")
async def test_close_waits_for_replaced_fibers_that_have_not_ended_yet(
    rt: fb.Runtime, clock: TestClock, scope: Scope, slot: Slot
) -> None:
    """Nobody else does; they were interrupted once, when they were replaced."""
    log: list[str] = []
    old = await rt.run(slot.run(farewell(log, "old", 2)))
    await rt.run(slot.run(farewell(log, "new", 1)))
    rt.run_fork(scope.close().flat_map(lambda _: say(log, "closed")))

    await pass_time(rt, clock)

    assert log == ["+old", "+new", "-new", "-old", "closed"]
    assert old.poll() == interrupted(-1, reason="replaced")


@pytest.mark.spec("PI9", "PI7")
async def test_close_waits_for_a_fiber_that_came_too_late(
    rt: fb.Runtime, clock: TestClock, scope: Scope, slot: Slot
) -> None:
    """Its first segment filled the slot that had to be empty for it."""
    log: list[str] = []
    late = slot.run(Effect.never()).flat_map(lambda _: farewell(log, "late", 1))
    fiber = await rt.run(slot.run(late, only_if_missing=True))
    rt.run_fork(scope.close().flat_map(lambda _: say(log, "closed")))

    await pass_time(rt, clock)

    assert fiber.poll() == interrupted(-1, reason="already running")
    assert log == ["+late", "-late", "closed"]


@pytest.mark.spec("PI9", "PI7")
async def test_close_ends_a_fiber_that_has_two_keys_and_lost_one(
    rt: fb.Runtime, clock: TestClock, scope: Scope, jobs: FiberMap[str]
) -> None:
    """And the others."""
    log: list[str] = []
    twice = await rt.run(jobs.run("a", farewell(log, "twice", 1)))
    await rt.run(jobs.set("b", twice))
    await rt.run(jobs.run("c", farewell(log, "other")))
    await rt.run(jobs.run("a", farewell(log, "new")))
    closing = rt.run_fork(scope.close())

    await pass_time(rt, clock)

    assert closing.poll() == Success(None)
    assert sorted(log) == ["+new", "+other", "+twice", "-new", "-other", "-twice"]
    assert twice.poll() == interrupted(-1, reason="replaced")


@pytest.mark.spec("PI9", "PI7")
async def test_run_on_a_closed_one_fails_the_caller_with_an_interrupt(
    rt: fb.Runtime, scope: Scope, slot: Slot
) -> None:
    """Nothing is started; the caller can catch it."""
    log: list[str] = []
    await rt.run(scope.close())

    caller = rt.run_fork(slot.run(say(log, "ran")).exit())
    exit_ = await caller

    assert log == []
    assert exit_ == interrupted(caller.id, reason="scope closed")


@pytest.mark.spec("PI9", "PI7")
async def test_set_on_a_closed_one_interrupts_the_fiber(
    rt: fb.Runtime, scope: Scope, slot: Slot
) -> None:
    """By -1."""
    fiber: Fiber[None, Any] = rt.run_fork(Effect.never())
    await rt.run(scope.close())

    await rt.run(slot.set(fiber))

    assert fiber.poll() == interrupted(-1, reason="scope closed")


# ---- join, clear


@pytest.mark.spec("PI9", "PI7")
async def test_a_replaced_fiber_fails_no_join(rt: fb.Runtime, slot: Slot) -> None:
    """Not even one whose interruption is propagated: it was the owner's own. A failure does."""
    joined = rt.run_fork(slot.owner.join().exit())
    await rt.run(slot.run(Effect.never(), propagate_interruption=True))
    await rt.run(slot.run(Effect.never()))
    early = joined.poll()

    await rt.run(slot.run(Effect.fail(BOOM)))

    assert early is None
    assert await joined == failed(Fail(BOOM))


@pytest.mark.spec("PI9", "PI7")
async def test_a_propagated_interruption_by_somebody_else_fails_join(
    rt: fb.Runtime, slot: Slot
) -> None:
    """As in a set."""
    fiber = await rt.run(slot.run(Effect.never(), propagate_interruption=True))

    await rt.run(fiber.interrupt(by=9))

    assert await rt.run(slot.owner.join().exit()) == interrupted(9)


@pytest.mark.spec("PI9", "PI7")
async def test_clear_interrupts_by_minus_one_and_waits(
    rt: fb.Runtime, clock: TestClock, slot: Slot
) -> None:
    """Then it is empty, and open."""
    log: list[str] = []
    fiber = await rt.run(slot.run(farewell(log, "a", 1)))
    rt.run_fork(slot.owner.clear().flat_map(lambda _: say(log, "cleared")))

    await pass_time(rt, clock)

    assert log == ["+a", "-a", "cleared"]
    assert fiber.poll() == interrupted(-1, reason="cleared")
    assert slot.get() == Nothing


@pytest.mark.spec("PI9", "PI7")
async def test_await_empty_waits_for_the_fiber(
    rt: fb.Runtime, clock: TestClock, slot: Slot
) -> None:
    """And is not held up where none is alive."""
    await rt.run(slot.owner.await_empty())
    await rt.run(slot.run(fb.sleep(1)))
    waiting = rt.run_fork(slot.owner.await_empty())

    await pass_time(rt, clock, 0.5)
    early = waiting.poll()
    await pass_time(rt, clock, 0.5)

    assert early is None
    assert waiting.poll() == Success(None)


# ---- keys


@pytest.mark.spec("PI9")
async def test_each_key_has_its_own_fiber(rt: fb.Runtime, jobs: FiberMap[str]) -> None:
    """A new one for one key leaves the others alone; the keys can be looked at."""
    a = await rt.run(jobs.run("a", Effect.never()))
    b = await rt.run(jobs.run("b", Effect.never()))

    assert await rt.run(jobs.size()) == 2
    assert (jobs.get("a"), jobs.get("b"), jobs.get("c")) == (Some(a), Some(b), Nothing)
    assert (jobs.has("a"), "b" in jobs, jobs.has("c")) == (True, True, False)
    assert list(jobs) == [("a", a), ("b", b)]


@pytest.mark.spec("PI9")
async def test_a_fiber_that_ends_frees_its_key(
    rt: fb.Runtime, clock: TestClock, jobs: FiberMap[str]
) -> None:
    """However it ends."""
    await rt.run(jobs.run("a", fb.sleep(1)))
    failing = await rt.run(jobs.run("b", fb.sleep(1).flat_map(lambda _: Effect.fail(BOOM))))
    failing.ignore_failure()

    await pass_time(rt, clock)

    assert (jobs.has("a"), jobs.has("b")) == (False, False)
    assert await rt.run(jobs.size()) == 0


@pytest.mark.spec("PI9")
async def test_remove_interrupts_the_fiber_of_a_key_and_waits(
    rt: fb.Runtime, clock: TestClock, jobs: FiberMap[str]
) -> None:
    """By -1; other keys stay, and a key without a fiber is no error."""
    log: list[str] = []
    a = await rt.run(jobs.run("a", farewell(log, "a", 1)))
    b = await rt.run(jobs.run("b", Effect.never()))
    removing = chain(jobs.remove("a"), jobs.remove("none"), say(log, "removed"))
    rt.run_fork(removing)

    await pass_time(rt, clock)

    assert log == ["+a", "-a", "removed"]
    assert a.poll() == interrupted(-1, reason="cleared")
    assert list(jobs) == [("b", b)]


class Jobs:
    """Jobs of a map, counted by key while they are alive."""

    def __init__(self, jobs: FiberMap[str]) -> None:
        self.jobs = jobs
        self.alive = {"a": 0, "b": 0}

    def job(self, key: str, seconds: float) -> Effect[None, Any]:
        def count(by: int) -> Effect[None, Any]:
            return Effect.sync(lambda: self.alive.update({key: self.alive[key] + by}))

        return fb.acquire_use_release(
            count(1), lambda _: fb.sleep(seconds), lambda _, __: count(-1)
        )

    def caller(self, dice: random.Random) -> Effect[Any, Any]:
        key, missing = dice.choice("ab"), dice.random() < 0.3
        run = self.jobs.run(key, self.job(key, dice.choice([0, 0.5, 1e6])), only_if_missing=missing)
        then = self.jobs.remove(key) if dice.random() < 0.2 else Effect.succeed(None)
        return fb.sleep(dice.choice([0, 0.5])).flat_map(lambda _: run).flat_map(lambda _: then)


@pytest.mark.spec("PI9")
@pytest.mark.parametrize("block", range(6))
async def test_no_fiber_is_lost_whenever_a_caller_is_interrupted(
    rt: fb.Runtime, clock: TestClock, block: int
) -> None:
    """Over many seeds: at most one a key is alive, and none when the scope has closed."""
    for seed in SEEDS[block::6]:
        scope = Scope()
        jobs = Jobs(await make_in(rt, scope, FiberMap.make()))

        await storm(rt, clock, seed, jobs.caller)
        at_most_one_a_key = max(jobs.alive.values()) <= 1
        await rt.run(scope.close())

        assert at_most_one_a_key, seed
        assert jobs.alive == {"a": 0, "b": 0}, seed


@pytest.mark.spec("PI9")
@pytest.mark.parametrize("wanted", [True, False])
async def test_a_fiber_that_has_ended_can_be_set_and_leaves_nothing(
    rt: fb.Runtime, slot: Slot, wanted: bool
) -> None:
    """With ``only_if_missing`` the one that is alive stays."""
    there = await rt.run(slot.run(Effect.never()))
    ended = rt.run_fork(Effect.succeed(1))
    await rt.run(slot.set(ended, only_if_missing=not wanted))
    left = there.poll()

    assert (left is None) == (not wanted)
    assert slot.get() == (Nothing if wanted else Some(there))


@pytest.mark.spec("PI9", "AT16")
async def test_a_fiber_of_another_loop_that_is_replaced_is_interrupted_there(
    rt: fb.Runtime, slot: Slot
) -> None:
    """In its own thread, by -1 like any other."""
    there, over = list[Fiber[None, Any]](), threading.Event()
    threads = list[int]()

    def elsewhere() -> None:
        async def main() -> None:
            note = Effect.sync(lambda: threads.append(threading.get_ident()))
            there.append(fb.run_fork(Effect.never().ensuring(note)))
            over.set()
            await there[0].exit()

        asyncio.run(main())

    thread = threading.Thread(target=elsewhere)
    thread.start()
    await asyncio.to_thread(over.wait)
    await rt.run(slot.set(there[0]))
    own = await rt.run(slot.run(Effect.never()))
    await asyncio.to_thread(thread.join)

    assert threads == [thread.ident]
    assert there[0].poll() == interrupted(-1, reason="replaced")
    assert slot.get() == Some(own)
