"""What both checkers have to refuse about what owns fibers and resources: the marked lines."""

from __future__ import annotations

from fibers import Cache, Effect, FiberMap, FiberSet, Pool, RcMap, ScopedRef
from tests.typing.kit import NotFound, User, load


async def a_member_is_an_effect(members: FiberSet) -> None:
    await members.run(1)  # rejected: arg-type, reportArgumentType


async def a_key_of_a_map_has_its_type(jobs: FiberMap[str]) -> None:
    await jobs.run(1, load("u1"))  # rejected: arg-type, reportArgumentType


async def a_key_of_a_cache_has_its_type(users: Cache[str, User, NotFound]) -> None:
    await users.get(1)  # rejected: arg-type, reportArgumentType


async def a_value_of_a_cache_has_its_type(users: Cache[str, User, NotFound]) -> None:
    await users.set("u1", "ada")  # rejected: arg-type, reportArgumentType


async def a_lookup_takes_a_key(number: Effect[int]) -> None:
    await RcMap.make(number)  # rejected: call-overload, reportArgumentType


async def a_cache_says_how_much_it_keeps() -> None:
    await Cache.make(load)  # rejected: call-arg, reportCallIssue


async def a_new_value_has_the_type_of_the_old(ref: ScopedRef[User]) -> None:
    await ref.set(Effect.succeed(1))  # rejected: arg-type, reportArgumentType


async def an_item_has_its_type(pool: Pool[User, NotFound]) -> None:
    def double(n: int) -> Effect[int]:
        return Effect.succeed(2 * n)

    await pool.use(double)  # rejected: arg-type, reportArgumentType


async def a_strategy_has_a_name(acquire: Effect[User]) -> None:
    await Pool.make_with_ttl(
        acquire,
        min=0,
        max=1,
        time_to_live_strategy="x",  # rejected: arg-type, reportArgumentType
    )
