"""Step 4: services come from outside.

The service asks its context for the venues instead of holding them, so that a test gives it other
ones and a clock that stands still. A layer says how a service is made and released; a Runtime
builds the layers once, for plain code that calls into effects.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

import fibers as fb
from examples.tutorial.world import VenueDown, World
from fibers import Effect, Layer, Runtime, Tag
from fibers.testing import TestClock


class Venues(Protocol):
    """Where prices come from."""

    async def price(self, venue: str, symbol: str) -> int: ...


VenuesTag = Tag[Venues]("venues")


@fb.effect(raises=VenueDown)
async def best(symbol: str) -> int:
    """The first price that comes."""
    venues = await VenuesTag
    return await fb.race(
        Effect.promise(lambda: venues.price("slow", symbol)),
        Effect.promise(lambda: venues.price("quick", symbol)),
    )


async def open_world() -> World:
    print("world opened")
    return World()


def close_world(world: World, exit: fb.Exit[object, Exception]) -> Effect[None]:
    return Effect.sync(lambda: print("world closed, open connections:", world.open_connections))


the_world: Effect[World] = fb.acquire_release(Effect.promise(open_world), close_world)
live = Layer.scoped(VenuesTag, the_world)


class SleepyVenues:
    """For tests: a minute for each answer, on the clock in context."""

    async def price(self, venue: str, symbol: str) -> int:
        await fb.sleep(60)
        return 1


async def main() -> None:
    runtime = Runtime(live)
    print("ada costs", await runtime.run(best("ada")))
    print("bob costs", await runtime.run(best("bob")))
    await runtime.dispose()

    clock = TestClock()
    test = Runtime(Layer.succeed(VenuesTag, SleepyVenues()), clock=clock)
    fiber = test.run_fork(best("ada"))
    await test.run(clock.adjust(60))
    print("in the test:", await fiber, "after", clock.now(), "virtual seconds")
    await test.dispose()


if __name__ == "__main__":
    asyncio.run(main())
