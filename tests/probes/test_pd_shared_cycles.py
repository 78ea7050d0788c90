"""Probes PD9: what runs once for many, and would wait for itself, says so instead of waiting."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

import fibers as fb
from fibers import Cache, Effect, FiberDeadlockError, Layer, RcMap, RcRef, Tag
from tests.probes.kit_e import cause_of, pass_time

if TYPE_CHECKING:
    from fibers.testing import TestClock

Before: TypeAlias = Effect[None]

# At once: the second is asked in the first segment of the first, which nobody has joined by then.
MOMENTS = {"at once": Effect.succeed(None), "later": Effect.yield_now(), "at last": fb.sleep(1)}


def two_cached(before: Before) -> Effect[Any, Any]:
    """Two effects that run once each and need each other."""
    made: list[Effect[Any, Any]] = []

    def needs(index: int) -> Effect[Effect[Any, Any]]:
        return before.flat_map(lambda _: made[index]).cached()

    both = needs(1).zip(needs(0)).tap(lambda pair: Effect.sync(lambda: made.extend(pair)))
    return both.flat_map(lambda pair: pair[0])


def two_keys(before: Before) -> Effect[Any, Any]:
    """Two lookups of a cache that ask for each other's key."""
    made: list[Cache[int, Any, Any]] = []

    def lookup(key: int) -> Effect[Any, Any]:
        return before.flat_map(lambda _: made[0].get(1 - key))

    cache = Cache.make(lookup, capacity=9).tap(lambda it: Effect.sync(lambda: made.append(it)))
    return cache.flat_map(lambda it: it.get(0))


def two_resources(before: Before) -> Effect[Any, Any]:
    """The same of a map of shared resources."""
    made: list[RcMap[int, Any, Any]] = []

    def lookup(key: int) -> Effect[Any, Any]:
        return before.flat_map(lambda _: made[0].get(1 - key))

    resources = RcMap.make(lookup).tap(lambda it: Effect.sync(lambda: made.append(it)))
    return fb.scoped(resources.flat_map(lambda it: fb.scoped(it.get(0))))


def two_references(before: Before) -> Effect[Any, Any]:
    """The same of two references."""
    made: list[RcRef[Any, Any]] = []

    def needs(index: int) -> Effect[RcRef[Any, Any]]:
        return RcRef.make(before.flat_map(lambda _: made[index].get()))

    both = needs(1).zip(needs(0)).tap(lambda pair: Effect.sync(lambda: made.extend(pair)))
    return fb.scoped(both.flat_map(lambda pair: fb.scoped(pair[0].get())))


def two_layers(before: Before) -> Effect[Any, Any]:
    """The same of two layers, whose builds provide each other."""
    first, second = Tag[Any]("first"), Tag[Any]("second")
    layers: list[Layer[Any, Any]] = []
    layers.append(Layer.effect(first, before.flat_map(lambda _: second.provide(layers[1]))))
    layers.append(Layer.effect(second, before.flat_map(lambda _: first.provide(layers[0]))))
    return first.provide(layers[0])


CYCLES: list[Callable[[Before], Effect[Any, Any]]] = [
    two_cached,
    two_keys,
    two_resources,
    two_references,
    two_layers,
]


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("cycle", CYCLES, ids=lambda cycle: cycle.__name__)
@pytest.mark.spec("PD9")
async def test_two_that_need_each_other_are_a_deadlock(
    rt: fb.Runtime, clock: TestClock, cycle: Callable[[Before], Effect[Any, Any]], moment: str
) -> None:
    """Whenever the second asks; left alone, not even an interrupt would end the two."""
    fiber = rt.run_fork(cycle(MOMENTS[moment])).ignore_failure()
    await pass_time(rt, clock)

    (defect,) = cause_of(fiber.poll()).defects
    assert isinstance(defect, FiberDeadlockError)


GROUPS: dict[str, Callable[[Effect[Any, Any]], Effect[Any, Any]]] = {
    "timeout": lambda eff: eff.timeout(1_000),
    "race_first": lambda eff: fb.race_first(eff, fb.sleep(1_000)),
    "all": lambda eff: fb.all_([eff, Effect.yield_now()], concurrency=2),
    "zip": lambda eff: eff.zip(Effect.yield_now(), concurrent=True),
    "nested": lambda eff: fb.for_each([eff], lambda it: it.timeout(1_000), concurrency=2),
}


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.spec("PD9", "PI12")
async def test_a_lookup_that_asks_for_itself_out_of_a_group_is_a_deadlock(
    rt: fb.Runtime, clock: TestClock, group: str, moment: str
) -> None:
    """The group will wait for the fiber that asks, whose first segment may still run."""
    made: list[Cache[str, Any, Any]] = []

    def lookup(key: str) -> Effect[Any, Any]:
        return GROUPS[group](MOMENTS[moment].flat_map(lambda _: made[0].get(key)))

    cache = Cache.make(lookup, capacity=9).tap(lambda it: Effect.sync(lambda: made.append(it)))
    fiber = rt.run_fork(cache.flat_map(lambda it: it.get("k"))).ignore_failure()
    await pass_time(rt, clock)

    (defect,) = cause_of(fiber.poll()).defects
    assert isinstance(defect, FiberDeadlockError)


@pytest.mark.spec("PD9", "PI12")
async def test_a_deadlock_names_the_key_that_is_asked_for_twice(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """A cycle of three keys is found by that alone."""
    fiber = rt.run_fork(two_keys(MOMENTS["later"])).ignore_failure()
    await pass_time(rt, clock)

    (defect,) = cause_of(fiber.poll()).defects
    assert "would wait for itself: the lookup of 0, in fiber #" in str(defect)


@pytest.mark.spec("PD9", "PI12")
async def test_a_child_of_a_lookup_may_wait_for_it(rt: fb.Runtime, clock: TestClock) -> None:
    """A lookup that ends interrupts what it has forked: it does not wait for that."""
    made: list[Cache[str, int, Any]] = []
    log: list[str] = []

    def lookup(key: str) -> Effect[int]:
        asking = made[0].get(key).on_interrupt(lambda _: Effect.sync(lambda: log.append("ended")))
        return (
            asking.ignore()
            .fork_child(start_immediately=True)
            .flat_map(lambda _: fb.sleep(1))
            .map(lambda _: 7)
        )

    cache = Cache.make(lookup, capacity=9).tap(lambda it: Effect.sync(lambda: made.append(it)))
    fiber = rt.run_fork(cache.flat_map(lambda it: it.get("k")))
    await pass_time(rt, clock)

    assert fiber.poll() == fb.Success(7)
    assert log == ["ended"]


@pytest.mark.spec("PD9", "PI10")
async def test_a_lookup_that_asks_for_itself_leaves_no_reference(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """One that it held on itself would keep it for ever."""
    made: list[RcMap[str, Any, Any]] = []

    def lookup(key: str) -> Effect[Any, Any]:
        return made[0].get(key).exit()

    resources = RcMap.make(lookup).tap(lambda it: Effect.sync(lambda: made.append(it)))
    keys = resources.flat_map(lambda it: fb.scoped(it.get("k")).flat_map(lambda _: it.keys()))
    fiber = rt.run_fork(fb.scoped(keys))
    await pass_time(rt, clock)

    assert fiber.poll() == fb.Success([])
