"""Probes PI11: Pool, a bounded number of resources that are lent."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest
from returns.result import Success

import fibers as fb
from fibers import Die, Effect, Fail, Pool, Scope
from tests.probes.kit_e import Boom, Defect, cause_of, failed, interrupted, pass_time, peek
from tests.probes.kit_owned import SEEDS, Counted, held, make_in, storm, waiting_fibers

if TYPE_CHECKING:
    import random

    from fibers.testing import TestClock

BOOM = Boom("boom")


@pytest.fixture
async def scope(rt: fb.Runtime, clock: TestClock) -> AsyncIterator[Scope]:
    """The scope that owns the pool of a test."""
    scope = Scope()
    yield scope
    closing = rt.run_fork(scope.close())
    await pass_time(rt, clock)
    assert closing.poll() == Success(None)


@pytest.fixture
def made() -> Counted:
    """Resources that are there at once."""
    return Counted()


async def lease(rt: fb.Runtime, pool: Pool[int, Any]) -> tuple[int, Scope]:
    """An item, and the scope that holds it."""
    user = Scope()
    return await rt.run(user.provide(pool.get())), user


# ---- making


@pytest.mark.spec("PI11")
async def test_a_pool_makes_its_least_number_of_items_in_the_background(
    rt: fb.Runtime, clock: TestClock, scope: Scope
) -> None:
    """All at once; making the pool does not wait for them."""
    made = Counted(acquire_seconds=1)
    await make_in(rt, scope, Pool.make(made.acquire(), size=3))
    at_once = made.acquired

    await pass_time(rt, clock, 1)

    assert (at_once, made.acquired) == (0, 3)


@pytest.mark.spec("PI11")
async def test_a_pool_grows_as_items_are_asked_for(
    rt: fb.Runtime, scope: Scope, made: Counted
) -> None:
    """Up to its greatest number."""
    pool = await make_in(rt, scope, Pool.make_with_ttl(made.acquire(), min=0, max=2))
    before = made.acquired

    (first, user_1), (second, user_2) = [await lease(rt, pool) for _ in range(2)]

    assert before == 0
    assert (first, second) == (1, 2)
    await rt.run(user_1.close())
    await rt.run(user_2.close())


@pytest.mark.spec("PI11")
async def test_a_pool_that_is_all_lent_makes_who_asks_wait(
    rt: fb.Runtime, clock: TestClock, scope: Scope, made: Counted
) -> None:
    """For the first item that comes back: item 1 here."""
    pool = await make_in(rt, scope, Pool.make_with_ttl(made.acquire(), min=0, max=2))
    (_, user_1), (_, user_2) = [await lease(rt, pool) for _ in range(2)]
    third = rt.run_fork(held(pool.get(), 1))
    await pass_time(rt, clock)
    waiting = third.poll()

    await rt.run(user_1.close())
    await pass_time(rt, clock)

    assert waiting is None
    assert third.poll() == Success(1)
    assert made.acquired == 2
    await rt.run(user_2.close())


@pytest.mark.spec("PI11")
async def test_items_are_lent_again_in_the_order_in_which_they_came_back(
    rt: fb.Runtime, scope: Scope, made: Counted
) -> None:
    """Item 1 first, where it was back first."""
    pool = await make_in(rt, scope, Pool.make(made.acquire(), size=2))
    (_, user_1), (_, user_2) = [await lease(rt, pool) for _ in range(2)]
    await rt.run(user_1.close())
    await rt.run(user_2.close())

    again = [await rt.run(fb.scoped(pool.get())) for _ in range(3)]

    assert again == [1, 2, 1]
    assert made.log == ["+1", "+2"]


@pytest.mark.spec("PI11")
async def test_those_that_wait_are_served_in_their_order(
    rt: fb.Runtime, clock: TestClock, scope: Scope, made: Counted
) -> None:
    """One after another, each for a second here."""
    log: list[int] = []
    pool = await make_in(rt, scope, Pool.make(made.acquire(), size=1))

    def user(n: int) -> Effect[None, Any]:
        return pool.use(lambda _: fb.sleep(1)).map(lambda _: log.append(n))

    for n in range(4):
        rt.run_fork(user(n))
    await pass_time(rt, clock, 3.5)

    assert log == [0, 1, 2]


@pytest.mark.spec("PI11")
async def test_an_item_may_be_lent_to_several_at_a_time(
    rt: fb.Runtime, clock: TestClock, scope: Scope, made: Counted
) -> None:
    """To as many as ``concurrency`` says."""
    pool = await make_in(rt, scope, Pool.make_with_ttl(made.acquire(), min=0, max=2, concurrency=2))
    users = [rt.run_fork(held(pool.get(), 1)) for _ in range(5)]

    await pass_time(rt, clock, 1)
    first = [peek(user) for user in users]
    await pass_time(rt, clock, 1)

    assert first[4] == "PENDING"
    assert sorted(first[:4]) == ["ok(1)", "ok(1)", "ok(2)", "ok(2)"]
    assert users[4].poll() == Success(1)
    assert made.acquired == 2


@pytest.mark.spec("PI11")
async def test_a_low_target_utilization_makes_items_before_they_are_needed(
    rt: fb.Runtime, clock: TestClock, scope: Scope, made: Counted
) -> None:
    """At one half there is one free for each that is lent."""
    pool = await make_in(
        rt,
        scope,
        Pool.make_with_ttl(made.acquire(), min=0, max=10, target_utilization=0.5),
    )

    _, user = await lease(rt, pool)
    await pass_time(rt, clock)

    assert made.acquired == 2
    await rt.run(user.close())


# ---- using


@pytest.mark.spec("PI11")
async def test_use_lends_an_item_for_as_long_as_the_effect_runs(
    rt: fb.Runtime, clock: TestClock, scope: Scope, made: Counted
) -> None:
    """Without a scope, and whatever becomes of the effect."""
    pool = await make_in(rt, scope, Pool.make(made.acquire(), size=1))
    broken = Defect("broken")

    def breaking(_: int) -> Effect[int]:
        raise broken

    exits = [
        await rt.run(pool.use(lambda n: Effect.succeed(n + 10)).exit()),
        await rt.run(pool.use(lambda _: Effect.fail(BOOM)).exit()),
        await rt.run(pool.use(breaking).exit()),
    ]
    interrupted_one = rt.run_fork(pool.use(lambda _: fb.sleep(9)))
    await rt.run(interrupted_one.interrupt())
    last = await rt.run(pool.use(Effect.succeed))

    assert exits[0] == Success(11)
    assert exits[1] == failed(Fail(BOOM))
    assert exits[2] == failed(Die(broken))
    assert last == 1
    assert made.log == ["+1"]


@pytest.mark.spec("PI11")
async def test_a_get_without_a_scope_takes_nothing(
    rt: fb.Runtime, scope: Scope, made: Counted
) -> None:
    """It is a defect that says what is missing."""
    pool = await make_in(rt, scope, Pool.make(made.acquire(), size=1))

    exit_ = await rt.run(pool.get().exit())

    assert "Scope" in str(exit_)
    assert await rt.run(pool.use(Effect.succeed)) == 1


@pytest.mark.spec("PI11")
async def test_an_interrupted_waiter_leaves_its_place(
    rt: fb.Runtime, clock: TestClock, scope: Scope, made: Counted
) -> None:
    """The next one in line gets the item."""
    pool = await make_in(rt, scope, Pool.make(made.acquire(), size=1))
    _, user = await lease(rt, pool)
    first, second = [rt.run_fork(pool.use(Effect.succeed)) for _ in range(2)]

    await rt.run(first.interrupt(by=9))
    await rt.run(user.close())
    await pass_time(rt, clock)

    assert first.poll() == interrupted(9)
    assert second.poll() == Success(1)


@pytest.mark.spec("PI11")
async def test_an_item_that_arrives_with_the_interrupt_goes_to_the_next(
    rt: fb.Runtime, clock: TestClock, scope: Scope, made: Counted
) -> None:
    """In the same tick: given back to it, and interrupted before it could go on."""
    pool = await make_in(rt, scope, Pool.make(made.acquire(), size=1))
    _, user = await lease(rt, pool)
    first, second = [rt.run_fork(pool.use(Effect.succeed)) for _ in range(2)]

    rt.run_fork(user.close().flat_map(lambda _: Effect.sync(lambda: first.interrupt_unsafe(by=9))))
    await pass_time(rt, clock)

    assert first.poll() == interrupted(9)
    assert second.poll() == Success(1)
    assert await rt.run(pool.use(Effect.succeed)) == 1


@pytest.mark.spec("PI11")
async def test_ten_thousand_interrupted_waiters_leave_nothing(
    rt: fb.Runtime, scope: Scope, made: Counted
) -> None:
    """No place in the line, no item too many."""
    pool = await make_in(rt, scope, Pool.make(made.acquire(), size=1))
    _, user = await lease(rt, pool)
    for _ in range(10_000):
        rt.run_fork(fb.scoped(pool.get())).interrupt_unsafe()

    assert repr(pool) == "<Pool of 1, 0 available, 0 waiting>"
    assert waiting_fibers() == []
    await rt.run(user.close())
    assert repr(pool) == "<Pool of 1, 1 available, 0 waiting>"


# ---- failing


@pytest.mark.spec("PI11")
@pytest.mark.parametrize("seconds", [0.0, 1.0])
async def test_a_failed_first_acquire_is_retried_by_the_first_get(
    rt: fb.Runtime, clock: TestClock, scope: Scope, seconds: float
) -> None:
    """Whether it had failed by then or does while the get waits."""
    made, left = Counted(), iter([True])
    attempt = fb.sleep(seconds).flat_map(
        lambda _: Effect.fail(BOOM) if next(left, False) else made.acquire()
    )
    pool = await make_in(rt, scope, Pool.make(attempt, size=1))

    got = rt.run_fork(fb.scoped(pool.get()))
    await pass_time(rt, clock)

    assert got.poll() == Success(1)


@pytest.mark.spec("PI11")
async def test_an_item_that_cannot_be_made_fails_the_get_that_it_was_made_for(
    rt: fb.Runtime, clock: TestClock, scope: Scope
) -> None:
    """Each get tries for itself, and none exhausts the pool."""
    count: list[int] = []

    def attempt() -> Effect[int, Boom]:
        count.append(1)
        return Effect.fail(Boom(f"{len(count)}"))

    pool = await make_in(rt, scope, Pool.make_with_ttl(Effect.suspend(attempt), min=0, max=1))

    users = [rt.run_fork(fb.scoped(pool.get()).exit()) for _ in range(3)]
    await pass_time(rt, clock)
    errors = [str(cause_of(await user).squash()) for user in users]

    assert errors == ["1", "2", "3"]
    assert len(count) == 3


@pytest.mark.spec("PI11")
async def test_what_a_failed_acquire_had_acquired_is_released(
    rt: fb.Runtime, scope: Scope, made: Counted
) -> None:
    """Before the failure is told."""
    half = made.acquire().flat_map(lambda _: Effect.fail(BOOM))
    pool = await make_in(rt, scope, Pool.make_with_ttl(half, min=0, max=1))

    exit_ = await rt.run(fb.scoped(pool.get()).exit())

    assert exit_ == failed(Fail(BOOM))
    assert made.log == ["+1", "-1"]


@pytest.mark.spec("PI11")
async def test_an_acquire_that_interrupts_itself_fails_the_get_with_it(
    rt: fb.Runtime, clock: TestClock, scope: Scope
) -> None:
    """It is not tried for ever."""
    pool = await make_in(rt, scope, Pool.make_with_ttl(Effect.interrupt(), min=0, max=1))

    got = rt.run_fork(fb.scoped(pool.get()))
    await pass_time(rt, clock)

    assert peek(got).startswith("I(")


# ---- invalidating and ageing


@pytest.mark.spec("PI11")
async def test_an_invalidated_item_is_released_and_replaced(
    rt: fb.Runtime, clock: TestClock, scope: Scope, made: Counted
) -> None:
    """At once, where nobody uses it; an unknown one is no error."""
    pool = await make_in(rt, scope, Pool.make(made.acquire(), size=2))
    await pass_time(rt, clock)

    await rt.run(pool.invalidate(1))
    await rt.run(pool.invalidate(99))
    released = list(made.log)
    await pass_time(rt, clock)

    assert released[:3] == ["+1", "+2", "-1"]
    assert made.log == ["+1", "+2", "-1", "+3"]


@pytest.mark.spec("PI11")
async def test_an_invalidated_item_in_use_goes_when_it_is_back(
    rt: fb.Runtime, clock: TestClock, scope: Scope, made: Counted
) -> None:
    """Until then it takes a place: there are never more than the greatest number."""
    pool = await make_in(rt, scope, Pool.make(made.acquire(), size=1))
    item, user = await lease(rt, pool)
    waiting = rt.run_fork(fb.scoped(pool.get()))

    await rt.run(pool.invalidate(item))
    await pass_time(rt, clock)
    before = (list(made.log), waiting.poll())
    await rt.run(user.close())
    await pass_time(rt, clock)

    assert before == (["+1"], None)
    assert made.log == ["+1", "-1", "+2"]
    assert waiting.poll() == Success(2)


@pytest.mark.spec("PI11")
async def test_a_pool_shrinks_to_its_least_number_when_items_are_not_used(
    rt: fb.Runtime, clock: TestClock, scope: Scope, made: Counted
) -> None:
    """After the time to live since their last use."""
    pool = await make_in(
        rt, scope, Pool.make_with_ttl(made.acquire(), min=1, max=3, time_to_live=10)
    )
    users = [rt.run_fork(held(pool.get(), 1)) for _ in range(3)]
    await pass_time(rt, clock, 1)
    assert [user.poll() is None for user in users] == [False] * 3

    await pass_time(rt, clock, 9)
    before = made.live
    await pass_time(rt, clock, 1)

    assert (before, made.live) == (3, 1)
    assert made.acquired == 3


@pytest.mark.spec("PI11")
async def test_a_pool_of_its_least_number_waits_for_no_time_to_pass(
    rt: fb.Runtime, clock: TestClock, scope: Scope, made: Counted
) -> None:
    """Nothing could go."""
    pool = await make_in(
        rt, scope, Pool.make_with_ttl(made.acquire(), min=1, max=1, time_to_live=10)
    )

    await rt.run(pool.use(Effect.succeed))
    await pass_time(rt, clock, 0)

    assert waiting_fibers() == []


@pytest.mark.spec("PI11")
async def test_a_use_begins_the_time_to_live_again(
    rt: fb.Runtime, clock: TestClock, scope: Scope, made: Counted
) -> None:
    """An item that is used now and then is kept."""
    pool = await make_in(
        rt, scope, Pool.make_with_ttl(made.acquire(), min=0, max=1, time_to_live=10)
    )
    for _ in range(5):
        await rt.run(pool.use(Effect.succeed))
        await pass_time(rt, clock, 9)
    kept = list(made.log)
    await pass_time(rt, clock, 1)

    assert kept == ["+1"]
    assert made.log == ["+1", "-1"]


@pytest.mark.spec("PI11")
async def test_an_item_nobody_came_for_goes_after_its_time_too(
    rt: fb.Runtime, clock: TestClock, scope: Scope
) -> None:
    """The one that it was made for was interrupted."""
    made = Counted(acquire_seconds=1)
    pool = await make_in(
        rt, scope, Pool.make_with_ttl(made.acquire(), min=0, max=1, time_to_live=10)
    )
    user = rt.run_fork(fb.scoped(pool.get()))
    await rt.run(user.interrupt())

    await pass_time(rt, clock, 1)
    live = made.live
    await pass_time(rt, clock, 10)

    assert (live, made.live) == (1, 0)


@pytest.mark.spec("PI11")
async def test_by_creation_an_item_is_replaced_when_it_is_old(
    rt: fb.Runtime, clock: TestClock, scope: Scope, made: Counted
) -> None:
    """Whether it is used or not; one in use goes when it is back."""
    pool = await make_in(
        rt,
        scope,
        Pool.make_with_ttl(
            made.acquire(), min=2, max=2, time_to_live=10, time_to_live_strategy="creation"
        ),
    )
    await pass_time(rt, clock, 0)
    rt.run_fork(held(pool.get(), 15))

    await pass_time(rt, clock, 10)
    at_ten = list(made.log)
    await pass_time(rt, clock, 5)

    assert at_ten == ["+1", "+2", "-2", "+3"]
    assert made.log == ["+1", "+2", "-2", "+3", "-1", "+4"]


# ---- closing


@pytest.mark.spec("PI11")
async def test_the_close_waits_for_what_is_lent_and_then_interrupts_those_that_wait(
    rt: fb.Runtime, clock: TestClock, made: Counted
) -> None:
    """Idle items are released at once; who comes now is interrupted at once."""
    scope = Scope()
    pool = await make_in(rt, scope, Pool.make(made.acquire(), size=2, concurrency=1))
    (_, user_1), (_, user_2) = [await lease(rt, pool) for _ in range(2)]
    waiting = rt.run_fork(fb.scoped(pool.get()))
    await rt.run(user_2.close())
    await pass_time(rt, clock)
    waiting_2, blocked = await lease(rt, pool), rt.run_fork(fb.scoped(pool.get()))

    closing = rt.run_fork(scope.close())
    late = rt.run_fork(fb.scoped(pool.get()))
    await pass_time(rt, clock)
    before = (peek(closing), peek(blocked), late.poll())
    await rt.run(user_1.close())
    await pass_time(rt, clock)
    half = peek(closing)
    await rt.run(waiting_2[1].close())
    await pass_time(rt, clock)

    assert waiting.poll() == Success(2)
    assert before == ("PENDING", "PENDING", interrupted(late.id))
    assert half == "PENDING"
    assert closing.poll() == Success(None)
    assert blocked.poll() == interrupted(blocked.id)
    assert made.live == 0


@pytest.mark.spec("PI11")
async def test_the_close_releases_idle_items(
    rt: fb.Runtime, clock: TestClock, made: Counted
) -> None:
    """Each, also where a release fails; the failures are those of the close."""
    scope = Scope()
    bad = fb.acquire_release(Effect.succeed(0), lambda _, __: Effect.die(BOOM))
    attempts = iter([made.acquire(), bad, made.acquire()])
    await make_in(rt, scope, Pool.make(Effect.suspend(lambda: next(attempts)), size=3))
    await pass_time(rt, clock)

    exit_ = await rt.run(scope.close().exit())

    assert exit_ == failed(Die(BOOM))
    assert (made.acquired, made.live) == (2, 0)


@pytest.mark.spec("PI11")
async def test_the_close_ends_an_acquire_under_way(
    rt: fb.Runtime, clock: TestClock, made: Counted
) -> None:
    """What it had acquired is released; who waited for it is interrupted."""
    scope = Scope()
    slow = made.acquire().tap(lambda _: fb.sleep(9))
    pool = await make_in(rt, scope, Pool.make_with_ttl(slow, min=0, max=1))
    waiting = rt.run_fork(fb.scoped(pool.get()))
    await pass_time(rt, clock, 1)

    await rt.run(scope.close())
    await pass_time(rt, clock)

    assert made.log == ["+1", "-1"]
    assert waiting.poll() == interrupted(waiting.id)


@pytest.mark.spec("PI11")
async def test_an_acquire_that_can_not_be_interrupted_delays_the_close(
    rt: fb.Runtime, clock: TestClock, made: Counted
) -> None:
    """What it acquires is released, and who waited for it is interrupted."""
    scope = Scope()
    slow = fb.sleep(1).flat_map(lambda _: made.acquire()).uninterruptible()
    pool = await make_in(rt, scope, Pool.make_with_ttl(slow, min=0, max=1))
    waiting = rt.run_fork(fb.scoped(pool.get()))
    await pass_time(rt, clock, 0.5)

    closing = rt.run_fork(scope.close())
    at_once = closing.poll()
    await pass_time(rt, clock)

    assert at_once is None
    assert closing.poll() == Success(None)
    assert made.log == ["+1", "-1"]
    assert waiting.poll() == interrupted(waiting.id)


@pytest.mark.spec("PI11", "SO6")
async def test_an_acquire_may_close_the_scope_of_its_pool(
    rt: fb.Runtime, clock: TestClock, made: Counted
) -> None:
    """What it makes then is released; who waited for it is interrupted."""
    scope = Scope()
    closing = scope.close().flat_map(lambda _: made.acquire())
    pool = await make_in(rt, scope, Pool.make_with_ttl(closing, min=0, max=1))

    waiting = rt.run_fork(fb.scoped(pool.get()))
    await pass_time(rt, clock)

    assert scope.state == "closed"
    assert made.log == ["+1", "-1"]
    assert waiting.poll() == interrupted(waiting.id)


@pytest.mark.spec("PI11")
async def test_a_pool_in_the_scope_of_its_user_closes(
    rt: fb.Runtime, clock: TestClock, made: Counted
) -> None:
    """The lease was added later, and ends first."""
    body = Pool.make(made.acquire(), size=1).flat_map(lambda pool: pool.get())

    fiber = rt.run_fork(fb.scoped(body))
    await pass_time(rt, clock)

    assert fiber.poll() == Success(1)
    assert made.live == 0


@pytest.mark.spec("PI11", "PD18")
@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"min": 0, "max": 0}, "max must be a positive int"),
        ({"min": -1, "max": 1}, "min must be an int of at least 0"),
        ({"min": 2, "max": 1}, "min must not be greater than max"),
        ({"min": 0, "max": 1, "concurrency": 0}, "concurrency must be a positive int"),
        ({"min": 0, "max": 1, "time_to_live": -1}, "time_to_live must not be negative"),
        ({"min": 0, "max": 1, "time_to_live_strategy": "x"}, "time_to_live_strategy must be"),
        ({"min": 0, "max": 1, "target_utilization": 0}, "target_utilization must be from 0.1"),
    ],
)
def test_numbers_out_of_range_are_refused(how: dict[str, Any], says: str) -> None:
    """Where the pool is made."""
    with pytest.raises(ValueError, match=says):
        Pool.make_with_ttl(Effect.succeed(1), **how)


@pytest.mark.spec("PI11", "PD18")
def test_the_size_of_a_pool_is_a_positive_int() -> None:
    """Where the pool is made."""
    with pytest.raises(ValueError, match="size must be a positive int"):
        Pool.make(Effect.succeed(1), size=0)


# ---- sweeps


def now_and_then_failing(made: Counted) -> Effect[int, Any]:
    """Resources of which every fourth attempt fails."""
    attempts = itertools.count(1)
    return Effect.suspend(lambda: Effect.fail(BOOM) if next(attempts) % 4 == 0 else made.acquire())


class Borrowers:
    """Users of a pool, who know how many use an item at a time."""

    def __init__(self, pool: Pool[int, Any], made: Counted, concurrency: int) -> None:
        self.pool = pool
        self.made = made
        self.concurrency = concurrency
        self.using: dict[int, int] = {}
        self.wrong: list[str] = []

    def enter(self, item: int) -> None:
        self.using[item] = self.using.get(item, 0) + 1
        if self.using[item] > self.concurrency:
            self.wrong.append(f"{self.using[item]} use {item}")
        if f"-{item}" in self.made.log:
            self.wrong.append(f"{item} is released")

    def leave(self, item: int) -> None:
        self.using[item] -= 1

    def work(self, dice: random.Random) -> Effect[Any, Any]:
        hold = fb.sleep(dice.choice([0, 0.5]))

        def use(item: int) -> Effect[Any, Any]:
            spoil = self.pool.invalidate(item) if dice.random() < 0.2 else Effect.succeed(None)
            return fb.acquire_use_release(
                Effect.sync(lambda: self.enter(item)),
                lambda _: hold.flat_map(lambda _: spoil),
                lambda _, __: Effect.sync(lambda: self.leave(item)),
            )

        if dice.random() < 0.5:
            return self.pool.use(use)
        return fb.scoped(self.pool.get().flat_map(use))


@pytest.mark.spec("PI11", "AT11")
@pytest.mark.parametrize("block", range(6))
@pytest.mark.parametrize("strategy", ["usage", "creation"])
async def test_no_item_is_lost_or_lent_twice_whenever_users_are_interrupted(
    rt: fb.Runtime, clock: TestClock, block: int, strategy: Any
) -> None:
    """Over many seeds: never too many, never a released one, and all released at the end."""
    for seed in SEEDS[block::6]:
        scope, concurrency = Scope(), 1 + seed % 2
        made = Counted(acquire_seconds=seed % 2, release_seconds=seed % 3 / 2)
        pool = await make_in(
            rt,
            scope,
            Pool.make_with_ttl(
                now_and_then_failing(made),
                min=seed % 2,
                max=2,
                concurrency=concurrency,
                time_to_live=1 + seed % 3,
                time_to_live_strategy=strategy,
            ),
        )
        users = Borrowers(pool, made, concurrency)

        await storm(rt, clock, seed, users.work)
        too_many = made.live > 2
        closing = rt.run_fork(scope.close())
        await pass_time(rt, clock)

        assert peek(closing) == "ok(None)", seed
        assert not too_many, seed
        assert made.live == 0, seed
        assert users.wrong == [], seed


@pytest.mark.spec("PI11", "AT11")
@pytest.mark.parametrize("seed", range(60))
async def test_a_pool_that_closes_under_its_users_loses_nothing(
    rt: fb.Runtime, clock: TestClock, seed: int
) -> None:
    """At a random moment."""
    scope, made = Scope(), Counted(acquire_seconds=seed % 2, release_seconds=seed % 3 / 2)
    pool = await make_in(
        rt, scope, Pool.make_with_ttl(made.acquire(), min=seed % 2, max=2, time_to_live=1)
    )
    users = Borrowers(pool, made, 1)

    def work(dice: random.Random) -> Effect[Any, Any]:
        return scope.close() if dice.random() < 0.1 else users.work(dice)

    await storm(rt, clock, seed, work, users=16)
    closing = rt.run_fork(scope.close())
    await pass_time(rt, clock)

    assert peek(closing) == "ok(None)"
    assert made.live == 0
    assert users.wrong == []


@pytest.mark.spec("PI11")
async def test_a_pool_made_in_a_closed_scope_makes_nothing(rt: fb.Runtime, made: Counted) -> None:
    """Nobody would release it."""
    scope = Scope()
    await rt.run(scope.close())

    pool = await make_in(rt, scope, Pool.make(made.acquire(), size=1))
    exit = await rt.run_exit(fb.scoped(pool.get()))

    assert cause_of(exit).has_interrupts_only
    assert made.acquired == 0
