"""What owns fibers and resources: sets, maps, handles, references, pools, caches."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Never, assert_type

from returns.maybe import Maybe

import fibers as fb
from fibers import (
    Cache,
    Effect,
    ExceededCapacityError,
    Exit,
    Fiber,
    FiberHandle,
    FiberMap,
    FiberSet,
    Pool,
    RcMap,
    RcRef,
    Resource,
    Schedule,
    ScopedRef,
)
from tests.typing.kit import Denied, NotFound, User, load


async def fibers_in_a_set(work: Effect[int, NotFound]) -> None:
    members = await FiberSet.make()
    assert_type(members, FiberSet)
    assert_type(await members.run(work), Fiber[int, NotFound])
    assert_type(members.run(work, propagate_interruption=True), Effect[Fiber[int, NotFound]])
    assert_type(members.add(fb.run_fork(work)), Effect[None])
    assert_type(members.join(), Effect[None, Exception])
    assert_type(members.await_empty(), Effect[None])
    assert_type(members.clear(), Effect[None])
    assert_type(members.size(), Effect[int])
    for member in members:
        assert_type(member, Fiber[Any, Any])


async def fibers_in_a_map(work: Effect[int, NotFound]) -> None:
    jobs: FiberMap[str] = await FiberMap.make()
    assert_type(await jobs.run("a", work, only_if_missing=True), Fiber[int, NotFound])
    assert_type(jobs.set("a", fb.run_fork(work)), Effect[None])
    assert_type(jobs.get("a"), Maybe[Fiber[Any, Any]])
    assert_type(jobs.remove("a"), Effect[None])
    assert_type(jobs.size(), Effect[int])
    assert_type(jobs.clear(), Effect[None])
    assert_type(jobs.join(), Effect[None, Exception])
    assert_type(jobs.await_empty(), Effect[None])
    for key, fiber in jobs:
        assert_type(key, str)
        assert_type(fiber, Fiber[Any, Any])


async def a_fiber_in_a_handle(work: Effect[int, NotFound]) -> None:
    handle = await FiberHandle.make()
    assert_type(handle, FiberHandle)
    assert_type(await handle.run(work), Fiber[int, NotFound])
    assert_type(handle.get(), Maybe[Fiber[Any, Any]])
    assert_type(handle.set(fb.run_fork(work)), Effect[None])
    assert_type(handle.clear(), Effect[None])
    assert_type(handle.await_empty(), Effect[None])
    assert_type(handle.join(), Effect[None, Exception])


async def a_counted_reference(acquire: Effect[User, NotFound]) -> None:
    ref = await RcRef.make(acquire, idle_time_to_live=timedelta(seconds=1))
    assert_type(ref, RcRef[User, NotFound])
    assert_type(ref.get(), Effect[User, NotFound])
    assert_type(ref.invalidate(), Effect[None])


async def counted_references_by_key() -> None:
    def by_name(name: str) -> float:
        return len(name)

    users = await RcMap.make(load, idle_time_to_live=by_name)
    assert_type(users, RcMap[str, User, NotFound])
    assert_type(users.get("u1"), Effect[User, NotFound])
    assert_type(users.keys(), Effect[list[str]])
    few = await RcMap.make(load, capacity=2)
    assert_type(few.get("u1"), Effect[User, NotFound | ExceededCapacityError])


async def a_resource_in_a_variable(acquire: Effect[User, NotFound]) -> None:
    ref = await ScopedRef.from_acquire(acquire)
    assert_type(ScopedRef.from_acquire(acquire), Effect[ScopedRef[User], NotFound])
    assert_type(ref.get(), Effect[User])
    assert_type(ref.set(acquire), Effect[None, NotFound])
    assert_type(await ScopedRef.make(lambda: 1), ScopedRef[int])


async def a_resource_that_is_refreshed(acquire: Effect[User, NotFound]) -> None:
    assert_type(await Resource.manual(acquire), Resource[User, NotFound])
    resource = await Resource.auto(acquire, Schedule.spaced(60))
    assert_type(resource.get(), Effect[User, NotFound])
    assert_type(resource.refresh(), Effect[None, NotFound])
    assert_type(await Resource.auto(acquire, timedelta(minutes=1)), Resource[User, NotFound])


async def a_pool(acquire: Effect[User, NotFound]) -> None:
    pool = await Pool.make(acquire, size=3)
    assert_type(pool, Pool[User, NotFound])
    assert_type(pool.get(), Effect[User, NotFound])

    def name_of(user: User) -> Effect[str, Denied]:
        return Effect.succeed(user.name)

    assert_type(pool.use(name_of), Effect[str, NotFound | Denied])
    assert_type(pool.invalidate(User("ada")), Effect[None])
    growing = Pool.make_with_ttl(
        acquire, min=0, max=3, time_to_live=60, time_to_live_strategy="creation"
    )
    assert_type(growing, Effect[Pool[User, NotFound]])


async def a_cache() -> None:
    def by_exit(exit_: Exit[User, NotFound], key: str) -> float:
        return 60 if isinstance(exit_, fb.Success) else 0

    users = await Cache.make(load, capacity="unbounded", time_to_live=by_exit)
    assert_type(users, Cache[str, User, NotFound])
    assert_type(users.get("u1"), Effect[User, NotFound])
    assert_type(users.get_option("u1"), Effect[Maybe[User], NotFound])
    assert_type(users.get_success("u1"), Effect[Maybe[User]])
    assert_type(users.refresh("u1"), Effect[User, NotFound])
    assert_type(users.set("u1", User("ada")), Effect[None])
    assert_type(users.invalidate_when("u1", lambda user: user.name == ""), Effect[bool])
    assert_type(users.entries(), Effect[list[tuple[str, User]]])


async def a_remembered_outcome(work: Effect[int, NotFound]) -> None:
    assert_type(work.cached(), Effect[Effect[int, NotFound], Never])
    assert_type(await work.cached_with_ttl(timedelta(minutes=1)), Effect[int, NotFound])
    cached, forget = await work.cached_invalidate_with_ttl(60)
    assert_type(cached, Effect[int, NotFound])
    assert_type(forget, Effect[None])
