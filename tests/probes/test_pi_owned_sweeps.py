"""Probes PI7 to PI12 at every point where an interrupt can land: what was begun is ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import pytest

import fibers as fb
from fibers import (
    Cache,
    Effect,
    FiberHandle,
    FiberMap,
    FiberSet,
    Pool,
    RcMap,
    RcRef,
    Resource,
    ScopedRef,
)
from fibers.testing import Case, sweep
from tests.probes.kit_e import Boom, chain
from tests.probes.kit_owned import Counted, held

World: TypeAlias = "Callable[[Counted], Effect[Any, Any]]"

BOOM = Boom("boom")


def at_once(*effects: Effect[Any, Any]) -> Effect[Any, Any]:
    """All at a time, whatever becomes of one."""
    return fb.all_(effects, concurrency="unbounded", mode="result")


def member(made: Counted, seconds: float = 1.0) -> Effect[Any, Any]:
    """Work that holds a resource for as long as it runs."""
    return held(made.acquire(), seconds)


# ---- worlds: each in a scope of its own, which closes at the end


def a_set(made: Counted) -> Effect[Any, Any]:
    def use(members: FiberSet) -> Effect[Any, Any]:
        return chain(
            members.run(member(made)),
            members.run(member(made, 9)),
            fb.sleep(1),
            members.clear(),
            members.run(member(made)),
            members.await_empty(),
            members.run(member(made, 9)),
        )

    return FiberSet.make().flat_map(use)


def a_map(made: Counted) -> Effect[Any, Any]:
    def use(jobs: FiberMap[str]) -> Effect[Any, Any]:
        return chain(
            jobs.run("a", member(made)),
            jobs.run("a", member(made)),
            jobs.run("a", member(made), only_if_missing=True),
            jobs.run("b", member(made)),
            jobs.remove("a"),
            fb.sleep(1),
            jobs.run("b", member(made)),
        )

    return FiberMap.make().flat_map(use)


def a_handle(made: Counted) -> Effect[Any, Any]:
    def use(handle: FiberHandle) -> Effect[Any, Any]:
        return at_once(
            handle.run(member(made)), handle.run(member(made)), handle.run(member(made))
        ).flat_map(lambda _: handle.await_empty())

    return FiberHandle.make().flat_map(use)


def a_reference(made: Counted) -> Effect[Any, Any]:
    def use(ref: RcRef[int, Any]) -> Effect[Any, Any]:
        users = [held(ref.get(), 1), held(ref.get(), 2), fb.sleep(1).flat_map(lambda _: ref.get())]
        return at_once(*users).flat_map(lambda _: held(ref.get(), 1))

    return RcRef.make(made.acquire(), idle_time_to_live=1).flat_map(use)


def references_by_key(made: Counted) -> Effect[Any, Any]:
    def use(shared: RcMap[str, int, Any]) -> Effect[Any, Any]:
        return at_once(
            held(shared.get("a"), 1),
            held(shared.get("a"), 2),
            held(shared.get("b"), 1),
            fb.sleep(1).flat_map(lambda _: shared.invalidate("a")),
            fb.sleep(1).flat_map(lambda _: held(shared.get("a"), 1)),
        ).flat_map(lambda _: chain(fb.sleep(0.5), shared.touch("a"), fb.sleep(2)))

    return RcMap.make(made.acquire, idle_time_to_live=1).flat_map(use)


def a_resource_in_a_variable(made: Counted) -> Effect[Any, Any]:
    half = made.acquire().flat_map(lambda _: Effect.fail(BOOM))

    def use(ref: ScopedRef[int]) -> Effect[Any, Any]:
        return at_once(ref.set(made.acquire()), ref.set(half), ref.set(made.acquire()))

    return ScopedRef.from_acquire(made.acquire()).flat_map(use)


def a_resource_that_is_refreshed(made: Counted) -> Effect[Any, Any]:
    def use(resource: Resource[int, Any]) -> Effect[Any, Any]:
        return chain(fb.sleep(2.5), resource.refresh(), resource.get())

    return Resource.auto(made.acquire(), 1).flat_map(use)


def a_pool(made: Counted) -> Effect[Any, Any]:
    def use(pool: Pool[int, Any]) -> Effect[Any, Any]:
        return at_once(
            pool.use(lambda _: fb.sleep(1)),
            held(pool.get(), 1),
            pool.use(lambda item: pool.invalidate(item)),
            held(pool.get(), 1),
            held(pool.get().timeout_option(0.5), 1),
        ).flat_map(lambda _: fb.sleep(2))

    acquire = Effect.suspend(lambda: Effect.fail(BOOM) if made.acquired == 1 else made.acquire())
    return Pool.make_with_ttl(acquire, min=1, max=2, time_to_live=1).flat_map(use)


def a_cache(made: Counted) -> Effect[Any, Any]:
    def lookup(_: str) -> Effect[int, Any]:
        return held(made.acquire(), 1)

    def use(cache: Cache[str, int, Any]) -> Effect[Any, Any]:
        return at_once(
            cache.get("a"),
            cache.get("a").timeout_option(0.5),
            cache.get_option("a"),
            cache.refresh("a"),
            cache.get("b"),
        ).flat_map(lambda _: cache.get("a"))

    return Cache.make(lookup, capacity=1).flat_map(use)


def a_cached_effect(made: Counted) -> Effect[Any, Any]:
    work = held(made.acquire(), 1)
    return work.cached_with_ttl(5).flat_map(
        lambda cached: at_once(cached, cached.timeout_option(0.5)).flat_map(lambda _: cached)
    )


WORLDS: dict[str, list[World]] = {
    "PI7": [a_set],
    "PI9": [a_map, a_handle],
    "PI10": [
        a_reference,
        references_by_key,
        a_resource_in_a_variable,
        a_resource_that_is_refreshed,
    ],
    "PI11": [a_pool],
    "PI12": [a_cache, a_cached_effect],
}


@pytest.mark.parametrize("release_seconds", [0.0, 0.5], ids=["at once", "slowly"])
@pytest.mark.parametrize(
    "world",
    [
        pytest.param(world, id=world.__name__, marks=pytest.mark.spec(spec_id))
        for spec_id, worlds in WORLDS.items()
        for world in worlds
    ],
)
def test_an_interrupt_at_any_point_leaves_nothing(world: World, release_seconds: float) -> None:
    """Each resource is released once, and no fiber is left."""

    def case() -> Case:
        made = Counted(acquire_seconds=0.25, release_seconds=release_seconds)

        def nothing_is_left(_: object) -> None:
            assert made.live == 0, made.log

        return fb.scoped(world(made)), nothing_is_left

    report = sweep(case)

    assert report.interrupted > 40
