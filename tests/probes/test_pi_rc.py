"""Probes PI10: RcRef and RcMap, resources that are shared and counted."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

import pytest
from returns.result import Success

import fibers as fb
from fibers import (
    Die,
    Effect,
    ExceededCapacityError,
    Fail,
    FiberDeadlockError,
    RcMap,
    RcRef,
    Scope,
)
from tests.probes.kit_e import Boom, cause_of, failed, interrupted, pass_time, peek
from tests.probes.kit_owned import SEEDS, Counted, held, make_in, storm, waiting_fibers

if TYPE_CHECKING:
    import random

    from fibers.testing import TestClock

BOOM = Boom("boom")


@pytest.fixture
async def scope(rt: fb.Runtime) -> AsyncIterator[Scope]:
    """The scope that owns the map or reference of a test."""
    scope = Scope()
    yield scope
    await rt.run(scope.close())


@pytest.fixture
def made() -> Counted:
    """Resources that are there at once."""
    return Counted()


def always(lookup: Effect[int, Any]) -> Callable[[str], Effect[int, Any]]:
    """The same lookup for each key."""
    return lambda _: lookup


def itself(key: str) -> Effect[str]:
    """A lookup that has nothing to look up."""
    return Effect.succeed(key)


async def open_scope(rt: fb.Runtime, get: Effect[Any, Any]) -> Scope:
    """A scope of a user that has got something."""
    user = Scope()
    await rt.run(user.provide(get))
    return user


def failing_first(made: Counted, times: int = 1) -> Effect[int, Boom]:
    """Resources of which the first attempts fail."""
    left = iter([True] * times)
    return Effect.suspend(lambda: Effect.fail(BOOM) if next(left, False) else made.acquire())


# ---- RcRef


@pytest.mark.spec("PI10")
async def test_a_reference_is_acquired_at_the_first_get_and_shared(
    rt: fb.Runtime, scope: Scope, made: Counted
) -> None:
    """Not when it is made."""
    ref = await make_in(rt, scope, RcRef.make(made.acquire()))
    before = made.acquired

    users = [await open_scope(rt, ref.get()) for _ in range(2)]

    assert before == 0
    assert made.log == ["+1"]
    for user in users:
        await rt.run(user.close())


@pytest.mark.spec("PI10")
async def test_a_reference_is_released_after_the_last_user(
    rt: fb.Runtime, scope: Scope, made: Counted
) -> None:
    """The next one acquires anew."""
    ref = await make_in(rt, scope, RcRef.make(made.acquire()))
    first, second = [await open_scope(rt, ref.get()) for _ in range(2)]

    await rt.run(first.close())
    one_left = list(made.log)
    await rt.run(second.close())
    again = await rt.run(fb.scoped(ref.get()))

    assert one_left == ["+1"]
    assert again == 2
    assert made.log == ["+1", "-1", "+2", "-2"]


@pytest.mark.spec("PI10")
async def test_concurrent_getters_share_one_acquire(
    rt: fb.Runtime, clock: TestClock, scope: Scope
) -> None:
    """All that come while it is on its way."""
    made = Counted(acquire_seconds=1)
    ref = await make_in(rt, scope, RcRef.make(made.acquire()))
    users = [rt.run_fork(fb.scoped(ref.get())) for _ in range(3)]

    await pass_time(rt, clock)

    assert [user.poll() for user in users] == [Success(1)] * 3
    assert made.log == ["+1", "-1"]


@pytest.mark.spec("PI10")
async def test_an_interrupted_first_getter_leaves_the_acquire_to_the_others(
    rt: fb.Runtime, clock: TestClock, scope: Scope
) -> None:
    """It runs in a fiber of its own."""
    made = Counted(acquire_seconds=1)
    ref = await make_in(rt, scope, RcRef.make(made.acquire()))
    first, second = [rt.run_fork(fb.scoped(ref.get())) for _ in range(2)]

    await rt.run(first.interrupt(by=9))
    await pass_time(rt, clock)

    assert first.poll() == interrupted(9)
    assert second.poll() == Success(1)
    assert made.log == ["+1", "-1"]


@pytest.mark.spec("PI10")
async def test_the_last_interrupted_getter_ends_the_acquire(
    rt: fb.Runtime, clock: TestClock, scope: Scope
) -> None:
    """Nothing is made that nobody wants."""
    made = Counted(acquire_seconds=1)
    ref = await make_in(rt, scope, RcRef.make(made.acquire()))
    users = [rt.run_fork(fb.scoped(ref.get())) for _ in range(2)]

    for user in users:
        await rt.run(user.interrupt())
    await pass_time(rt, clock)

    assert made.log == []


@pytest.mark.spec("PI10")
async def test_a_get_that_is_interrupted_gives_back_though_its_scope_stays_open(
    rt: fb.Runtime, clock: TestClock, scope: Scope
) -> None:
    """And leaves no finalizer there."""
    made = Counted(acquire_seconds=1)
    ref = await make_in(rt, scope, RcRef.make(made.acquire()))
    user = Scope()
    fiber = rt.run_fork(user.provide(ref.get()))

    await rt.run(fiber.interrupt())
    await pass_time(rt, clock)

    assert user.state == "empty"
    assert made.log == []


@pytest.mark.spec("PI10")
async def test_an_idle_reference_is_kept_for_its_time_to_live(
    rt: fb.Runtime, clock: TestClock, scope: Scope, made: Counted
) -> None:
    """A new get in time stops the timer, and the time begins again after it."""
    ref = await make_in(rt, scope, RcRef.make(made.acquire(), idle_time_to_live=10))

    await rt.run(fb.scoped(ref.get()))
    await pass_time(rt, clock, 9)
    await rt.run(fb.scoped(ref.get()))
    await pass_time(rt, clock, 9)
    kept = list(made.log)
    await pass_time(rt, clock, 1)

    assert kept == ["+1"]
    assert made.log == ["+1", "-1"]


@pytest.mark.spec("PI10")
async def test_a_get_cancels_the_timer_of_an_idle_reference(
    rt: fb.Runtime, clock: TestClock, scope: Scope, made: Counted
) -> None:
    """While somebody holds it nothing waits for time to pass, and it outlives the time to live."""
    ref = await make_in(rt, scope, RcRef.make(made.acquire(), idle_time_to_live=10))
    await rt.run(fb.scoped(ref.get()))
    await pass_time(rt, clock, 0)
    while_idle = len(waiting_fibers())

    user = await open_scope(rt, ref.get())
    while_held = len(waiting_fibers())
    await pass_time(rt, clock, 60)

    assert (while_idle, while_held) == (1, 0)
    assert made.log == ["+1"]
    await rt.run(user.close())


@pytest.mark.spec("PI10")
async def test_get_after_the_close_is_an_interrupt(
    rt: fb.Runtime, scope: Scope, made: Counted
) -> None:
    """Catchable, by the fiber itself."""
    ref = await make_in(rt, scope, RcRef.make(made.acquire()))
    await rt.run(scope.close())

    fiber = rt.run_fork(fb.scoped(ref.get()).exit())

    assert await fiber == interrupted(fiber.id)


@pytest.mark.spec("PI10")
async def test_the_close_releases_what_is_idle_and_what_is_held(
    rt: fb.Runtime, scope: Scope, made: Counted
) -> None:
    """A user's later close releases nothing twice."""
    ref = await make_in(rt, scope, RcRef.make(made.acquire(), idle_time_to_live=10))
    user = await open_scope(rt, ref.get())

    await rt.run(scope.close())
    closed = list(made.log)
    await rt.run(user.close())

    assert closed == made.log == ["+1", "-1"]


@pytest.mark.spec("PI10")
async def test_invalidate_keeps_the_value_alive_for_those_that_hold_it(
    rt: fb.Runtime, scope: Scope, made: Counted
) -> None:
    """The next get acquires another."""
    ref = await make_in(rt, scope, RcRef.make(made.acquire(), idle_time_to_live=10))
    user = await open_scope(rt, ref.get())

    await rt.run(ref.invalidate())
    other = await open_scope(rt, ref.get())
    both = list(made.log)
    await rt.run(user.close())

    assert both == ["+1", "+2"]
    assert made.log == ["+1", "+2", "-1"]
    await rt.run(other.close())


@pytest.mark.spec("PI10")
async def test_invalidate_releases_what_is_idle(
    rt: fb.Runtime, clock: TestClock, scope: Scope, made: Counted
) -> None:
    """At once, before it returns."""
    ref = await make_in(rt, scope, RcRef.make(made.acquire(), idle_time_to_live=10))
    await rt.run(fb.scoped(ref.get()))
    await pass_time(rt, clock, 0)

    await rt.run(ref.invalidate())

    assert made.log == ["+1", "-1"]
    assert waiting_fibers() == []  # its timer


@pytest.mark.spec("PI10")
async def test_a_failed_acquire_of_a_reference_is_tried_again_by_the_next_get(
    rt: fb.Runtime, scope: Scope, made: Counted
) -> None:
    """Also in the same scope."""
    ref = await make_in(rt, scope, RcRef.make(failing_first(made), idle_time_to_live=10))
    user = Scope()

    first = await rt.run(user.provide(ref.get()).exit())
    second = await rt.run(user.provide(ref.get()).exit())

    assert first == failed(Fail(BOOM))
    assert second == Success(1)
    await rt.run(user.close())


# ---- RcMap


@pytest.mark.spec("PI10")
async def test_a_map_shares_by_key(rt: fb.Runtime, scope: Scope, made: Counted) -> None:
    """Each key is acquired once and released after its last user."""
    shared = await make_in(rt, scope, RcMap.make(made.acquire))
    a1, a2, b = [await open_scope(rt, shared.get(key)) for key in "aab"]

    assert made.log == ["+a1", "+b2"]
    assert await rt.run(shared.keys()) == ["a", "b"]
    await rt.run(a1.close())
    await rt.run(b.close())
    assert made.log == ["+a1", "+b2", "-b2"]
    assert await rt.run(shared.has("b")) is False
    await rt.run(a2.close())
    assert made.log == ["+a1", "+b2", "-b2", "-a1"]


@pytest.mark.spec("PI10")
async def test_concurrent_gets_of_a_key_share_one_lookup(
    rt: fb.Runtime, clock: TestClock, scope: Scope
) -> None:
    """Another key has its own, at the same time."""
    made = Counted(acquire_seconds=1)
    shared = await make_in(rt, scope, RcMap.make(made.acquire))
    users = [rt.run_fork(held(shared.get(key), 1)) for key in "aab"]

    await pass_time(rt, clock, 1)

    assert made.log == ["+a1", "+b2"]
    await pass_time(rt, clock, 1)
    assert [peek(user) for user in users] == ["ok(1)", "ok(1)", "ok(2)"]


@pytest.mark.spec("PI10")
async def test_a_map_refuses_keys_beyond_its_capacity(
    rt: fb.Runtime, clock: TestClock, scope: Scope, made: Counted
) -> None:
    """Those that are idle count; a key that is there is no new one."""
    shared = await make_in(rt, scope, RcMap.make(made.acquire, capacity=2, idle_time_to_live=10))
    for key in "aab":
        await rt.run(fb.scoped(shared.get(key)))

    refused = cause_of(await rt.run(fb.scoped(shared.get("c")).exit())).squash()
    await pass_time(rt, clock, 10)
    later = await rt.run(fb.scoped(shared.get("c")))

    assert isinstance(refused, ExceededCapacityError)
    assert refused.capacity == 2
    assert later == 3


@pytest.mark.spec("PI10")
async def test_the_idle_time_may_depend_on_the_key(
    rt: fb.Runtime, clock: TestClock, scope: Scope, made: Counted
) -> None:
    """It is asked for when the key comes in."""

    def seconds(key: str) -> float:
        return 1 if key == "a" else 5

    shared = await make_in(rt, scope, RcMap.make(made.acquire, idle_time_to_live=seconds))
    for key in "ab":
        await rt.run(fb.scoped(shared.get(key)))

    await pass_time(rt, clock, 1)
    first = list(made.log)
    await pass_time(rt, clock, 4)

    assert first == ["+a1", "+b2", "-a1"]
    assert made.log == ["+a1", "+b2", "-a1", "-b2"]


@pytest.mark.spec("PI10")
async def test_touch_starts_the_idle_time_again(
    rt: fb.Runtime, clock: TestClock, scope: Scope, made: Counted
) -> None:
    """Only of what is idle; other keys are no error."""
    shared = await make_in(rt, scope, RcMap.make(made.acquire, idle_time_to_live=10))
    await rt.run(fb.scoped(shared.get("a")))

    await pass_time(rt, clock, 9)
    await rt.run(shared.touch("a"))
    await rt.run(shared.touch("none"))
    await pass_time(rt, clock, 9)
    kept = list(made.log)
    await pass_time(rt, clock, 1)

    assert kept == ["+a1"]
    assert made.log == ["+a1", "-a1"]


@pytest.mark.spec("PI10")
async def test_an_idle_time_without_end_keeps_until_the_close(
    rt: fb.Runtime, clock: TestClock, scope: Scope, made: Counted
) -> None:
    """No timer runs."""
    shared = await make_in(rt, scope, RcMap.make(made.acquire, idle_time_to_live=float("inf")))
    await rt.run(fb.scoped(shared.get("a")))

    await pass_time(rt, clock, 1e6)
    kept = list(made.log)
    await rt.run(scope.close())

    assert kept == ["+a1"]
    assert made.log == ["+a1", "-a1"]


@pytest.mark.spec("PI10")
async def test_invalidate_forgets_a_key_and_leaves_it_to_its_users(
    rt: fb.Runtime, scope: Scope, made: Counted
) -> None:
    """A place is free at once."""
    shared = await make_in(rt, scope, RcMap.make(made.acquire, capacity=1))
    user = await open_scope(rt, shared.get("a"))

    await rt.run(shared.invalidate("a"))
    other = await open_scope(rt, shared.get("a"))
    await rt.run(user.close())

    assert made.log == ["+a1", "+a2", "-a1"]
    assert await rt.run(shared.keys()) == ["a"]
    await rt.run(other.close())


@pytest.mark.spec("PI10")
async def test_a_failed_lookup_is_kept_while_it_is_held_and_then_tried_again(
    rt: fb.Runtime, scope: Scope, made: Counted
) -> None:
    """An idle time does not keep it longer."""
    lookup = failing_first(made)
    shared = await make_in(rt, scope, RcMap.make(always(lookup), idle_time_to_live=10))
    user = Scope()

    exits = [await rt.run(user.provide(shared.get("a")).exit()) for _ in range(2)]
    await rt.run(user.close())
    again = await rt.run(fb.scoped(shared.get("a")).exit())

    assert exits == [failed(Fail(BOOM))] * 2
    assert again == Success(1)


@pytest.mark.spec("PI10")
async def test_a_lookup_that_fails_releases_what_it_acquired_before(
    rt: fb.Runtime, scope: Scope, made: Counted
) -> None:
    """When nobody holds the failure any more."""
    lookup = made.acquire().flat_map(lambda _: Effect.fail(BOOM))
    shared = await make_in(rt, scope, RcMap.make(always(lookup)))

    exit_ = await rt.run(fb.scoped(shared.get("a")).exit())

    assert exit_ == failed(Fail(BOOM))
    assert made.log == ["+1", "-1"]


@pytest.mark.spec("PI10")
async def test_a_closed_map_interrupts(rt: fb.Runtime, scope: Scope, made: Counted) -> None:
    """``get`` and ``keys``; it knows no key, and invalidate and touch do nothing."""
    shared = await make_in(rt, scope, RcMap.make(made.acquire))
    await rt.run(scope.close())

    gets = rt.run_fork(fb.scoped(shared.get("a")).exit())
    asks = rt.run_fork(shared.keys().exit())

    assert await gets == interrupted(gets.id)
    assert await asks == interrupted(asks.id)
    assert await rt.run(shared.has("a")) is False
    await rt.run(shared.invalidate("a"))
    await rt.run(shared.touch("a"))
    assert made.log == []


@pytest.mark.spec("PI10")
async def test_the_close_of_a_map_interrupts_a_lookup_under_way(
    rt: fb.Runtime, clock: TestClock, scope: Scope, made: Counted
) -> None:
    """Those that wait see its Interrupt; what it had acquired is released after it has ended."""
    log = made.log
    rest = fb.sleep(9).on_exit(lambda _: Effect.sync(lambda: log.append("lookup ended")))
    lookup = (
        fb.sleep(0.5).flat_map(lambda _: made.acquire()).flat_map(lambda n: rest.map(lambda _: n))
    )
    shared = await make_in(rt, scope, RcMap.make(always(lookup)))
    user = rt.run_fork(fb.scoped(shared.get("a")))
    await pass_time(rt, clock, 1)

    closer = rt.run_fork(scope.close())
    await pass_time(rt, clock, 1)

    assert log == ["+1", "lookup ended", "-1"]
    assert user.poll() == interrupted(closer.id, reason="scope closed")


@pytest.mark.spec("PI10")
async def test_a_user_without_a_scope_is_told_so(rt: fb.Runtime, scope: Scope) -> None:
    """And nothing is looked up."""
    made = Counted()
    shared = await make_in(rt, scope, RcMap.make(made.acquire))

    exit_ = await rt.run(shared.get("a").exit())

    assert "Scope" in str(cause_of(exit_).squash())
    assert made.log == []


@pytest.mark.spec("PI10")
async def test_a_get_into_a_closed_scope_is_an_interrupt(
    rt: fb.Runtime, scope: Scope, made: Counted
) -> None:
    """There would be nobody to give it back."""
    shared = await make_in(rt, scope, RcMap.make(made.acquire))
    user = Scope()
    await rt.run(user.close())

    fiber = rt.run_fork(user.provide(shared.get("a")).exit())

    assert await fiber == interrupted(fiber.id)
    assert made.log == []
    assert await rt.run(shared.keys()) == []


@pytest.mark.spec("PI10", "PD9")
async def test_a_lookup_that_asks_for_its_own_key_is_an_error(rt: fb.Runtime, scope: Scope) -> None:
    """It would wait for itself."""
    maps: list[RcMap[str, int, Any]] = []

    def again(key: str) -> Effect[int, Any]:
        return maps[0].get(key)

    shared = await make_in(rt, scope, RcMap.make(again))
    maps.append(shared)

    exit_ = await rt.run(fb.scoped(shared.get("a")).exit())

    (reason,) = cause_of(exit_).reasons
    assert isinstance(reason, Die)
    assert isinstance(reason.defect, FiberDeadlockError)


@pytest.mark.spec("PI10")
async def test_a_resource_is_not_bound_to_the_scope_of_its_first_user(
    rt: fb.Runtime, scope: Scope, made: Counted
) -> None:
    """A second user still has it when the first one's scope has closed."""
    shared = await make_in(rt, scope, RcMap.make(made.acquire))
    first, second = [await open_scope(rt, shared.get("a")) for _ in range(2)]

    await rt.run(first.close())

    assert made.live == 1
    await rt.run(second.close())
    assert made.live == 0


@pytest.mark.spec("PI10")
async def test_a_release_that_fails_is_told_to_the_last_user(rt: fb.Runtime, scope: Scope) -> None:
    """Whose close releases it."""
    lookup: Effect[int, Any] = fb.acquire_release(Effect.succeed(1), lambda _, __: Effect.die(BOOM))
    shared = await make_in(rt, scope, RcMap.make(always(lookup)))

    assert await rt.run(fb.scoped(shared.get("a")).exit()) == failed(Die(BOOM))


@pytest.mark.spec("PI10")
async def test_ten_thousand_keys_that_nobody_holds_leave_nothing(
    rt: fb.Runtime, scope: Scope, made: Counted
) -> None:
    """Neither in the map nor in its scope."""
    shared = await make_in(rt, scope, RcMap.make(made.acquire))
    for n in range(10_000):
        await rt.run(fb.scoped(shared.get(str(n))))

    assert made.live == 0
    assert await rt.run(shared.keys()) == []
    assert shared._scope.finalizer_count == 1  # the map's own


@pytest.mark.spec("PI10", "PD18")
@pytest.mark.parametrize("capacity", [0, -1, True, 1.5])
def test_the_capacity_of_a_map_is_a_positive_int(capacity: Any) -> None:
    """Said where the map is made."""
    with pytest.raises(ValueError, match="capacity must be a positive int"):
        RcMap.make(itself, capacity=capacity)


@pytest.mark.spec("PI10", "PD18")
def test_an_idle_time_is_not_negative() -> None:
    """Of a map and of a reference."""
    with pytest.raises(ValueError, match="idle_time_to_live must not be negative"):
        RcMap.make(itself, idle_time_to_live=-1)
    with pytest.raises(ValueError, match="idle_time_to_live must not be negative"):
        RcRef.make(Effect.succeed(1), idle_time_to_live=-1)


# ---- sweeps


class Users:
    """Users of a map, who look whether what they hold is still there."""

    def __init__(self, shared: RcMap[str, int, Any], made: Counted) -> None:
        self.shared = shared
        self.made = made
        self.held_after_release: list[int] = []

    def look(self, number: int) -> None:
        if any(entry in self.made.log for entry in (f"-a{number}", f"-b{number}")):
            self.held_after_release.append(number)

    def work(self, dice: random.Random) -> Effect[Any, Any]:
        key, hold = dice.choice("ab"), fb.sleep(dice.choice([0, 0.5]))
        use = self.shared.get(key).tap(lambda n: hold.map(lambda _: self.look(n)))
        then = self.shared.invalidate(key) if dice.random() < 0.2 else Effect.succeed(None)
        return fb.scoped(use).flat_map(lambda _: then)


@pytest.mark.spec("PI10", "AT11")
@pytest.mark.parametrize("block", range(6))
@pytest.mark.parametrize("idle", [0.0, 1.0])
async def test_no_resource_is_lost_whenever_its_users_are_interrupted(
    rt: fb.Runtime, clock: TestClock, block: int, idle: float
) -> None:
    """Over many seeds: nobody holds a released one, and all are released at the end."""
    for seed in SEEDS[block::6]:
        scope, made = Scope(), Counted(acquire_seconds=seed % 2, release_seconds=seed % 3 / 2)
        shared = await make_in(rt, scope, RcMap.make(made.acquire, idle_time_to_live=idle))
        users = Users(shared, made)

        await storm(rt, clock, seed, users.work)
        live = made.live
        await rt.run(scope.close())

        assert (live, made.live) == (0, 0), seed
        assert users.held_after_release == [], seed


@pytest.mark.spec("PI10", "AT11")
@pytest.mark.parametrize("seed", range(40))
async def test_no_resource_is_lost_when_the_map_closes_under_its_users(
    rt: fb.Runtime, clock: TestClock, seed: int
) -> None:
    """At a random moment."""
    scope, made = Scope(), Counted(acquire_seconds=seed % 2, release_seconds=seed % 3 / 2)
    shared = await make_in(rt, scope, RcMap.make(made.acquire, idle_time_to_live=seed % 4 / 2))

    def user(dice: random.Random) -> Effect[Any, Any]:
        if dice.random() < 0.1:
            return scope.close()
        return held(shared.get(dice.choice("ab")), dice.choice([0, 0.5]))

    await storm(rt, clock, seed, user, users=16)
    await rt.run(scope.close())

    assert made.live == 0


@pytest.mark.spec("PI10")
async def test_a_map_made_in_a_closed_scope_looks_nothing_up(rt: fb.Runtime, made: Counted) -> None:
    """Nobody would release it."""
    scope = Scope()
    await rt.run(scope.close())

    rc_map = await make_in(rt, scope, RcMap.make(always(made.acquire())))
    exit = await rt.run_exit(fb.scoped(rc_map.get("key")))

    assert cause_of(exit).has_interrupts_only
    assert made.acquired == 0
