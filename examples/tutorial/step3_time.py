"""Step 3: several at once, and time.

Both venues are asked, the first price wins, the loser is interrupted and has closed its connection
before the answer comes back. A time-out bounds the whole; a schedule tries a venue that is down
again. None of this needs a line of clean-up code.
"""

from __future__ import annotations

import asyncio

import fibers as fb
from examples.tutorial.world import VenueDown, World
from fibers import Effect, Schedule


class Quotes:
    """Asks all venues at once."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.asked = 0

    @fb.effect(raises=VenueDown)
    async def ask(self, venue: str, symbol: str) -> tuple[str, int]:
        self.asked += 1
        return venue, await self.world.price(venue, symbol)

    def best(self, symbol: str) -> Effect[tuple[str, int], VenueDown | TimeoutError]:
        return fb.race(self.ask("slow", symbol), self.ask("quick", symbol)).timeout(2)

    def patient(self, symbol: str) -> Effect[tuple[str, int], VenueDown]:
        return self.ask("quick", symbol).retry(Schedule.exponential(0.01).up_to(times=2))


async def main() -> None:
    world = World()
    service = Quotes(world)
    print("best:", await service.best("ada"), "open connections:", world.open_connections)

    slow = service.ask("slow", "ada").timeout(0.05)
    print("too slow:", await slow.exit(), "open connections:", world.open_connections)

    world.broken_venues.add("quick")
    service.asked = 0
    print("down:", await service.patient("ada").exit(), "asked:", service.asked)


if __name__ == "__main__":
    asyncio.run(main())
