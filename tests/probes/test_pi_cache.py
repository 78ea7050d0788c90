"""Probes PI12: Cache, and an effect that remembers its outcome."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from returns.maybe import Nothing, Some
from returns.result import Success

import fibers as fb
from fibers import Cache, Die, Effect, Fail, FiberDeadlockError, FiberSet, Interrupt, Scope, Tag
from tests.probes.kit_e import (
    Boom,
    Defect,
    cause_of,
    chain,
    failed,
    interrupted,
    pass_time,
    peek,
    say,
)
from tests.probes.kit_f import unhandled_failures
from tests.probes.kit_owned import SEEDS, Counted, storm, waiting_fibers

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from fibers.testing import TestClock

BOOM = Boom("boom")


class Lookups:
    """Lookups that take time, counted, with a log of their ends."""

    def __init__(self, seconds: float = 0.0, farewell_seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.farewell_seconds = farewell_seconds
        self.log: list[str] = []
        self.count = 0

    def look(self, key: str = "") -> Effect[str, Any]:
        """Gives the key and the number of this lookup."""

        def begin() -> str:
            self.count += 1
            self.log.append(f"{key}{self.count}")
            return f"{key}{self.count}"

        def end(name: str) -> Effect[None, Any]:
            return chain(fb.sleep(self.farewell_seconds), say(self.log, f"{name} interrupted"))

        return Effect.sync(begin).flat_map(
            lambda name: (
                fb.sleep(self.seconds).map(lambda _: name).on_interrupt(lambda _: end(name))
            )
        )


async def cache_of(
    rt: fb.Runtime, lookup: Callable[[str], Effect[Any, Any]], **how: Any
) -> Cache[str, Any, Any]:
    how.setdefault("capacity", "unbounded")
    made: Effect[Cache[str, Any, Any]] = Cache.make(lookup, **how)
    return await rt.run(made)


# ---- Cache: one lookup for all


@pytest.mark.spec("PI12")
async def test_a_key_is_looked_up_once(rt: fb.Runtime) -> None:
    """Each key has its own outcome."""
    lookups = Lookups()
    cache = await cache_of(rt, lookups.look)

    values = [await rt.run(cache.get(key)) for key in "aba"]

    assert values == ["a1", "b2", "a1"]


@pytest.mark.spec("PI12")
async def test_concurrent_getters_share_one_lookup(rt: fb.Runtime, clock: TestClock) -> None:
    """All that come while it is under way."""
    lookups = Lookups(1)
    cache = await cache_of(rt, lookups.look)
    getters = [rt.run_fork(cache.get("a")) for _ in range(3)]

    await pass_time(rt, clock)

    assert [getter.poll() for getter in getters] == [Success("a1")] * 3
    assert lookups.log == ["a1"]


@pytest.mark.spec("PI12")
async def test_an_interrupted_getter_leaves_the_lookup_to_the_others(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """Also the one that started it."""
    lookups = Lookups(1)
    cache = await cache_of(rt, lookups.look)
    first, second = [rt.run_fork(cache.get("a")) for _ in range(2)]

    await rt.run(first.interrupt(by=9))
    await pass_time(rt, clock)

    assert first.poll() == interrupted(9)
    assert second.poll() == Success("a1")
    assert lookups.log == ["a1"]


@pytest.mark.spec("PI12")
async def test_the_last_interrupted_getter_interrupts_the_lookup_and_waits_for_its_end(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """Nothing of it is kept."""
    lookups = Lookups(5, farewell_seconds=1)
    cache = await cache_of(rt, lookups.look)
    first, second = [rt.run_fork(cache.get("a")) for _ in range(2)]
    await rt.run(first.interrupt())
    second.interrupt_unsafe(by=9)

    await pass_time(rt, clock, 0.5)
    early = second.poll()
    known = await rt.run(cache.has("a"))
    await pass_time(rt, clock, 0.5)

    assert early is None
    assert known is False
    assert second.poll() == interrupted(9)
    assert lookups.log == ["a1", "a1 interrupted"]


@pytest.mark.spec("PI12", "PD8")
async def test_a_defect_in_the_end_of_an_unwanted_lookup_is_reported(rt: fb.Runtime) -> None:
    """Nobody waits for it any more, so it goes to the hook."""
    never: Effect[str, Any] = Effect.never()
    cache = await cache_of(rt, lambda _: never.on_interrupt(lambda _: Effect.die(Defect("end"))))

    with unhandled_failures() as seen:
        getter = rt.run_fork(cache.get("a"))
        await rt.run(getter.interrupt(by=9))

    assert getter.poll() == interrupted(9)
    assert [str(d) for _, cause in seen for d in cause.defects] == ["end"]


@pytest.mark.spec("PI12")
async def test_who_comes_while_an_unwanted_lookup_ends_starts_another(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """It gets nothing of the interrupted one."""
    lookups = Lookups(1, farewell_seconds=5)
    cache = await cache_of(rt, lookups.look)
    first = rt.run_fork(cache.get("a"))
    first.interrupt_unsafe()

    second = rt.run_fork(cache.get("a"))
    await pass_time(rt, clock)

    assert second.poll() == Success("a2")


@pytest.mark.spec("PI12")
async def test_a_lookup_that_interrupts_its_only_getter_is_interrupted_itself(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """Nobody wants its outcome, so it is not kept."""
    gate: fb.Deferred[str] = fb.Deferred()

    def lookup(_: str) -> Effect[str, Any]:
        # A finalizer of its last step: the outcome stands, the getter is told in the same tick.
        return gate.await_().ensuring(Effect.sync(lambda: getter.interrupt_unsafe(by=9)))

    cache = await cache_of(rt, lookup)
    getter = rt.run_fork(cache.get("a"))

    gate.done_unsafe(Success("there"))
    await pass_time(rt, clock)

    assert getter.poll() == interrupted(9)
    assert await rt.run(cache.has("a")) is False


@pytest.mark.spec("PI12")
@pytest.mark.parametrize("outcome", [Success("there"), failed(Fail(BOOM))])
async def test_an_outcome_that_came_before_the_interrupt_is_kept(
    rt: fb.Runtime, clock: TestClock, outcome: Any
) -> None:
    """Nobody got it, but the lookup has ended; nobody is told of a failure either."""
    gate: fb.Deferred[str, Boom] = fb.Deferred()
    cache = await cache_of(rt, lambda _: gate.await_())
    getter = rt.run_fork(cache.get("a"))
    interrupter = rt.run_fork(gate.await_().exit().map(lambda _: getter.interrupt_unsafe(by=9)))

    with unhandled_failures() as seen:
        gate.done_unsafe(outcome)
        await pass_time(rt, clock)

    assert interrupter.poll() == Success(None)
    assert cause_of(getter.poll()).interruptors == {9}
    assert seen == []
    assert await rt.run(cache.get("a").exit()) == outcome


@pytest.mark.spec("PI12")
async def test_a_getter_in_a_body_under_a_timeout_leaves_too(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """``timeout`` ends a wait like any interrupt does."""
    lookups = Lookups(9)
    cache = await cache_of(rt, lookups.look)
    getter = rt.run_fork(cache.get("a").timeout_option(1))

    await pass_time(rt, clock, 1)

    assert getter.poll() == Success(Nothing)
    assert lookups.log == ["a1", "a1 interrupted"]


@pytest.mark.spec("PI12")
async def test_a_lookup_that_interrupts_itself_is_no_answer(rt: fb.Runtime) -> None:
    """Those that wait see the Interrupt; the next one looks again."""
    answers = iter([Effect.interrupt(), Effect.succeed(2)])
    cache = await cache_of(rt, lambda _: next(answers))

    first = await rt.run(cache.get("a").exit())
    second = await rt.run(cache.get("a"))

    assert [type(r) for r in cause_of(first).reasons] == [Interrupt]
    assert second == 2


@pytest.mark.spec("PI12", "PD9")
async def test_a_lookup_that_asks_for_its_own_key_is_an_error(rt: fb.Runtime) -> None:
    """It would wait for itself."""
    caches: list[Cache[str, Any, Any]] = []
    cache = await cache_of(rt, lambda key: caches[0].get(key))
    caches.append(cache)

    exit_ = await rt.run(cache.get("a").exit())

    (reason,) = cause_of(exit_).reasons
    assert isinstance(reason, Die)
    assert isinstance(reason.defect, FiberDeadlockError)


# ---- Cache: what is kept


@pytest.mark.spec("PI12")
async def test_failures_are_cached(rt: fb.Runtime) -> None:
    """The very error for all; the hook for unhandled failures hears nothing."""
    lookups = Lookups()
    cache = await cache_of(rt, lambda key: lookups.look(key).flat_map(lambda _: Effect.fail(BOOM)))

    with unhandled_failures() as seen:
        exits = [await rt.run(cache.get("a").exit()) for _ in range(2)]

    assert exits == [failed(Fail(BOOM))] * 2
    assert lookups.count == 1
    assert seen == []


@pytest.mark.spec("PI12")
async def test_a_lookup_that_raises_is_a_cached_defect(rt: fb.Runtime) -> None:
    """Before it makes an effect."""
    calls: list[str] = []

    def lookup(key: str) -> Effect[Any, Any]:
        calls.append(key)
        raise Defect("broken")

    cache = await cache_of(rt, lookup)
    exits = [await rt.run(cache.get("a").exit()) for _ in range(2)]

    assert [str(cause_of(exit_).squash()) for exit_ in exits] == ["broken", "broken"]
    assert calls == ["a"]


@pytest.mark.spec("PI12")
async def test_the_key_that_was_used_longest_ago_goes_first(rt: fb.Runtime) -> None:
    """A get is a use."""
    lookups = Lookups()
    cache = await cache_of(rt, lookups.look, capacity=2)
    for key in "abac":
        await rt.run(cache.get(key))

    assert await rt.run(cache.keys()) == ["a", "c"]
    assert await rt.run(cache.size()) == 2
    assert await rt.run(cache.get("b")) == "b4"


@pytest.mark.spec("PI12")
async def test_a_lookup_that_was_pushed_out_still_answers_those_that_wait(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """It is not kept."""
    lookups = Lookups(1)
    cache = await cache_of(rt, lookups.look, capacity=1)
    getters = [rt.run_fork(cache.get(key)) for key in "ab"]

    await pass_time(rt, clock)

    assert [getter.poll() for getter in getters] == [Success("a1"), Success("b2")]
    assert await rt.run(cache.keys()) == ["b"]


@pytest.mark.spec("PI12")
async def test_an_outcome_lives_from_its_moment_on(rt: fb.Runtime, clock: TestClock) -> None:
    """The time that the lookup takes does not count."""
    lookups = Lookups(5)
    cache = await cache_of(rt, lookups.look, time_to_live=10)
    rt.run_fork(cache.get("a"))
    await pass_time(rt, clock, 5)

    await pass_time(rt, clock, 9)
    kept = await rt.run(cache.has("a"))
    await pass_time(rt, clock, 1)
    again = rt.run_fork(cache.get("a"))
    await pass_time(rt, clock, 5)

    assert kept is True
    assert again.poll() == Success("a2")


@pytest.mark.spec("PI12")
async def test_the_time_to_live_may_depend_on_the_exit_and_the_key(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """Here failures are not kept, and one key for a shorter time."""
    lookups = Lookups()

    def lookup(key: str) -> Effect[str, Boom]:
        value = lookups.look(key)
        return value.flat_map(lambda _: Effect.fail(BOOM)) if key == "bad" else value

    def seconds(exit_: fb.Exit[str, Boom], key: str) -> float:
        return (1 if key == "a" else 5) if isinstance(exit_, Success) else 0

    cache = await cache_of(rt, lookup, time_to_live=seconds)
    for key in ("a", "b", "bad", "bad"):
        await rt.run(cache.get(key).exit())
    counted = lookups.count
    await pass_time(rt, clock, 1)

    assert counted == 4
    assert await rt.run(cache.keys()) == ["b"]


@pytest.mark.spec("PI12")
async def test_a_time_to_live_that_raises_is_a_defect_and_keeps_nothing(
    rt: fb.Runtime,
) -> None:
    """Nobody waits for ever."""

    def raising(exit_: object, key: object) -> float:
        raise Defect(f"{key}")

    cache = await cache_of(rt, Lookups().look, time_to_live=raising)

    exit_ = await rt.run(cache.get("a").exit())

    assert [type(e) for e in cause_of(exit_).defects] == [Defect]
    assert await rt.run(cache.size()) == 0


@pytest.mark.spec("PI12")
async def test_values_can_be_set_and_forgotten(rt: fb.Runtime) -> None:
    """By key, all, or where the value is not wanted any more."""
    lookups = Lookups()
    cache = await cache_of(rt, lookups.look)
    await rt.run(cache.set("a", "set"))
    was_set = await rt.run(cache.get("a"))

    await rt.run(cache.invalidate("a"))
    looked_up = await rt.run(cache.get("a"))
    answers = [
        await rt.run(cache.invalidate_when("a", lambda value: value == "other")),
        await rt.run(cache.invalidate_when("a", lambda value: value == "a1")),
        await rt.run(cache.invalidate_when("a", lambda _: True)),
    ]
    await rt.run(cache.get("b"))
    entries = await rt.run(cache.entries())
    await rt.run(cache.invalidate_all())

    assert (was_set, looked_up) == ("set", "a1")
    assert answers == [False, True, False]
    assert entries == [("b", "b2")]
    assert await rt.run(cache.size()) == 0


@pytest.mark.spec("PI12")
async def test_a_lookup_that_was_forgotten_answers_those_that_wait_and_nobody_else(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """What was set meanwhile stays."""
    lookups = Lookups(1)
    cache = await cache_of(rt, lookups.look)
    old = rt.run_fork(cache.get("a"))

    await rt.run(cache.invalidate("a"))
    new = rt.run_fork(cache.get("a"))
    await rt.run(cache.set("a", "set"))
    await pass_time(rt, clock)

    assert (peek(old), peek(new)) == ("ok(a1)", "ok(a2)")
    assert await rt.run(cache.get("a")) == "set"


@pytest.mark.spec("PI12")
async def test_get_option_waits_for_a_lookup_but_starts_none(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """get_success does not even wait."""
    lookups = Lookups(1)
    cache = await cache_of(rt, lookups.look)
    unknown = await rt.run(cache.get_option("a"))
    rt.run_fork(cache.get("a"))

    option = rt.run_fork(cache.get_option("a"))
    success = await rt.run(cache.get_success("a"))
    await pass_time(rt, clock)

    assert (unknown, success) == (Nothing, Nothing)
    assert option.poll() == Success(Some("a1"))
    assert await rt.run(cache.get_success("a")) == Some("a1")


@pytest.mark.spec("PI12")
async def test_refresh_keeps_what_is_known_until_the_new_outcome_is_there(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """An interrupted one changes nothing; of an unknown key it is a get."""
    lookups = Lookups(1)
    cache = await cache_of(rt, lookups.look)
    first = rt.run_fork(cache.refresh("a"))
    await pass_time(rt, clock)
    interrupted_one = rt.run_fork(cache.refresh("a"))
    await rt.run(interrupted_one.interrupt())

    second = rt.run_fork(cache.refresh("a"))
    meanwhile = await rt.run(cache.get("a"))
    await pass_time(rt, clock)

    assert first.poll() == Success("a1")
    assert meanwhile == "a1"
    assert second.poll() == Success("a3")
    assert await rt.run(cache.get("a")) == "a3"


@pytest.mark.spec("PI12")
async def test_what_a_lookup_acquires_is_not_bound_to_the_scope_of_the_getter(
    rt: fb.Runtime,
) -> None:
    """It belongs to the scope in which the cache was made."""
    made, scope = Counted(), Scope()
    cache: Cache[str, int, Any] = await rt.run(scope.provide(Cache.make(made.acquire, capacity=10)))

    await rt.run(fb.scoped(cache.get("a")))
    after_getter = made.live
    await rt.run(scope.close())

    assert (after_getter, made.live) == (1, 0)


@pytest.mark.spec("PI12")
async def test_a_lookup_has_the_services_of_its_getter_and_of_the_maker(rt: fb.Runtime) -> None:
    """The getter's, where both have one."""
    near, far = Tag[str]("near"), Tag[str]("far")
    both = near.zip(far)

    def lookup(_: str) -> Effect[tuple[str, str]]:
        return both

    cache = await rt.run(
        Cache.make(lookup, capacity=10)
        .provide_service(far, "maker's")
        .provide_service(near, "maker's")
    )

    value = await rt.run(cache.get("a").provide_service(near, "getter's"))

    assert value == ("getter's", "maker's")


@pytest.mark.spec("PI12")
async def test_a_second_event_loop_is_refused(rt: fb.Runtime) -> None:
    """The state has no lock; a set of fibers says the same."""
    cache = await cache_of(rt, Lookups().look)
    scope = Scope()
    members = await rt.run(scope.provide(FiberSet.make()))
    await rt.run(chain(cache.get("a"), members.run(Effect.succeed(1))))

    def elsewhere(eff: Effect[Any, Any]) -> Any:
        return asyncio.to_thread(fb.run_exit, eff)

    exits = [await elsewhere(cache.get("a")), await elsewhere(members.run(Effect.succeed(1)))]

    texts = [str(cause_of(exit_).squash()) for exit_ in exits]
    assert ["is in use by another event loop" in text for text in texts] == [True, True]


@pytest.mark.spec("PI12", "PD18")
@pytest.mark.parametrize("capacity", [0, -1, True, 2.5, "many"])
def test_the_capacity_of_a_cache_is_a_positive_int_or_unbounded(capacity: Any) -> None:
    """Said where the cache is made."""
    with pytest.raises(ValueError, match="capacity must be a positive int"):
        Cache.make(Lookups().look, capacity=capacity)


@pytest.mark.spec("PI12", "PD18")
def test_a_time_to_live_is_not_negative() -> None:
    """Of a cache and of a cached effect."""
    with pytest.raises(ValueError, match="time_to_live must not be negative"):
        Cache.make(Lookups().look, capacity=1, time_to_live=-1)
    with pytest.raises(ValueError, match="time_to_live must not be negative"):
        Effect.succeed(1).cached_with_ttl(-1)


@pytest.mark.spec("PI12")
async def test_ten_thousand_interrupted_getters_leave_nothing(rt: fb.Runtime) -> None:
    """No entry, no lookup."""
    lookups = Lookups(1)
    cache = await cache_of(rt, lookups.look)
    for n in range(10_000):
        fiber = rt.run_fork(cache.get(str(n % 100)))
        fiber.interrupt_unsafe()

    assert await rt.run(cache.size()) == 0
    assert waiting_fibers() == []
    assert lookups.count == 10_000


@pytest.mark.spec("PI12")
@pytest.mark.parametrize("block", range(6))
async def test_a_getter_gets_its_answer_whatever_befalls_the_others(
    rt: fb.Runtime, clock: TestClock, block: int
) -> None:
    """Over many seeds: who is not interrupted gets a value; every lookup ends."""
    for seed in SEEDS[block::6]:
        lookups = Lookups(seed % 3 / 2, farewell_seconds=seed % 2)
        cache = await cache_of(rt, lookups.look, capacity=1 + seed % 2, time_to_live=seed % 4 / 2)
        poisoned: list[str] = []

        def getter(
            dice: random.Random, cache: Any = cache, poisoned: list[str] = poisoned
        ) -> Effect[Any, Any]:
            ask = dice.choice([cache.get, cache.get, cache.refresh])
            get: Effect[str, Any] = ask(dice.choice("ab"))
            # Runs for an interrupt that comes out of the get and is not the getter's own.
            caught = get.catch_cause(lambda cause: say(poisoned, str(cause)))
            then = cache.invalidate("a") if dice.random() < 0.2 else Effect.succeed(None)
            return caught.flat_map(lambda _: then)

        await storm(rt, clock, seed, getter)

        assert poisoned == [], seed
        assert waiting_fibers() == [], seed


# ---- Effect.cached


@pytest.mark.spec("PI12")
async def test_a_cached_effect_runs_once(rt: fb.Runtime) -> None:
    """A failure is kept like a value."""
    lookups = Lookups()
    good = await rt.run(lookups.look().cached())
    bad = await rt.run(lookups.look().flat_map(lambda _: Effect.fail(BOOM)).cached())

    values = [await rt.run(good) for _ in range(2)]
    exits = [await rt.run(bad.exit()) for _ in range(2)]

    assert values == ["1", "1"]
    assert exits == [failed(Fail(BOOM))] * 2
    assert lookups.count == 2


@pytest.mark.spec("PI12")
async def test_an_interrupted_first_runner_does_not_poison_the_others(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """The effect runs in a fiber of its own."""
    lookups = Lookups(1)
    cached = await rt.run(lookups.look().cached())
    first, second = [rt.run_fork(cached) for _ in range(2)]

    await rt.run(first.interrupt(by=9))
    await pass_time(rt, clock)

    assert first.poll() == interrupted(9)
    assert second.poll() == Success("1")
    assert lookups.log == ["1"]


@pytest.mark.spec("PI12")
async def test_the_last_interrupted_runner_ends_a_cached_effect(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """The next run is a new one."""
    lookups = Lookups(1)
    cached = await rt.run(lookups.look().cached())
    first = rt.run_fork(cached)
    await rt.run(first.interrupt())

    second = rt.run_fork(cached)
    await pass_time(rt, clock)

    assert lookups.log == ["1", "1 interrupted", "2"]
    assert second.poll() == Success("2")


@pytest.mark.spec("PI12")
async def test_a_cached_effect_that_interrupts_itself_is_no_answer(rt: fb.Runtime) -> None:
    """The next run is a new one."""
    answers = iter([Effect.interrupt(), Effect.succeed(2)])
    cached: Effect[Any] = await rt.run(Effect.suspend(lambda: next(answers)).cached())

    first = await rt.run(cached.exit())
    second = await rt.run(cached)

    assert [type(r) for r in cause_of(first).reasons] == [Interrupt]
    assert second == 2


@pytest.mark.spec("PI12")
async def test_each_run_of_cached_makes_a_memory_of_its_own(rt: fb.Runtime) -> None:
    """It is an effect that gives an effect."""
    lookups = Lookups()
    cached = lookups.look().cached()
    one, other = await rt.run(cached), await rt.run(cached)

    assert [await rt.run(eff) for eff in (one, one, other)] == ["1", "1", "2"]


@pytest.mark.spec("PI12")
async def test_a_cached_effect_with_a_time_to_live_runs_again_after_it(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """Counted from the outcome on."""
    lookups = Lookups(5)
    cached = await rt.run(lookups.look().cached_with_ttl(10))
    first = rt.run_fork(cached)
    await pass_time(rt, clock, 5)
    await pass_time(rt, clock, 9)
    kept = await rt.run(cached)
    await pass_time(rt, clock, 1)
    second = rt.run_fork(cached)
    await pass_time(rt, clock, 5)

    assert (peek(first), kept, peek(second)) == ("ok(1)", "1", "ok(2)")


@pytest.mark.spec("PI12")
async def test_a_cached_effect_can_be_told_to_forget(rt: fb.Runtime, clock: TestClock) -> None:
    """Those that wait for a run under way get its outcome; it is not kept."""
    lookups = Lookups(1)
    cached, forget = await rt.run(lookups.look().cached_invalidate_with_ttl(100))
    first = rt.run_fork(cached)

    await rt.run(forget)
    await pass_time(rt, clock, 1)
    second = rt.run_fork(cached)
    await pass_time(rt, clock, 1)
    kept = await rt.run(cached)
    await rt.run(forget)
    third = rt.run_fork(cached)
    await pass_time(rt, clock)

    assert (peek(first), peek(second), kept, peek(third)) == ("ok(1)", "ok(2)", "2", "ok(3)")


@pytest.mark.spec("PI12")
def test_a_synchronous_cached_effect_needs_no_loop() -> None:
    """The fiber of its own never has to wait."""
    lookups: list[int] = []
    cached = fb.run_sync(Effect.sync(lambda: lookups.append(1)).cached())

    fb.run_sync(cached)
    fb.run_sync(cached)

    assert lookups == [1]


@pytest.mark.spec("PI12")
@pytest.mark.parametrize("block", range(4))
async def test_a_runner_gets_its_answer_whatever_befalls_the_others(
    rt: fb.Runtime, clock: TestClock, block: int
) -> None:
    """Over many seeds: no foreign interrupt comes out of it."""
    for seed in SEEDS[block::4]:
        lookups = Lookups(seed % 3 / 2, farewell_seconds=seed % 2)
        cached, forget = await rt.run(lookups.look().cached_invalidate_with_ttl(seed % 4 / 2))
        poisoned: list[str] = []

        def runner(
            dice: random.Random,
            cached: Effect[str, Any] = cached,
            forget: Effect[None] = forget,
            poisoned: list[str] = poisoned,
        ) -> Effect[Any, Any]:
            caught = cached.catch_cause(lambda cause: say(poisoned, str(cause)))
            then = forget if dice.random() < 0.2 else Effect.succeed(None)
            return caught.flat_map(lambda _: then)

        await storm(rt, clock, seed, runner)

        assert poisoned == [], seed
        assert waiting_fibers() == [], seed


@pytest.mark.spec("PI12")
async def test_leaving_a_forgotten_run_does_not_forget_the_new_one(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """Each run knows its own waiters."""
    log: list[str] = []

    def run() -> Effect[str]:
        name = f"run {len(log) + 1}"
        log.append(name)
        return fb.sleep(5).map(lambda _: name)

    cached, forget = await rt.run(Effect.suspend(run).cached_invalidate_with_ttl(100))
    first = rt.run_fork(cached)
    await rt.run(forget)
    second = rt.run_fork(cached)
    first.interrupt_unsafe(by=7)
    third = rt.run_fork(cached)
    await pass_time(rt, clock)

    assert log == ["run 1", "run 2"]
    assert [second.poll(), third.poll()] == [Success("run 2"), Success("run 2")]
    assert first.poll() == interrupted(7)
