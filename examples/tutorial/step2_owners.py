"""Step 2: everything in flight gets an owner.

The two tasks of step 0 become fibers of one scope. Closing it interrupts what runs, waits until
each has cleaned up, and then nothing is left: no half line, no open connection. The line in the
ledger is a region that can't be interrupted: it is finished first.
"""

from __future__ import annotations

import asyncio

import fibers as fb
from examples.tutorial.world import UnknownSymbol, VenueDown, World


class Quotes:
    """Its fibers live in the scope that it is given."""

    def __init__(self, world: World, scope: fb.Scope) -> None:
        self.world = world
        self.scope = scope
        self.latest: dict[str, int] = {}

    def start(self) -> None:
        self.scope.fork(self._refresh())

    @fb.effect(raises=(UnknownSymbol, VenueDown))
    async def quote(self, symbol: str) -> int:
        price = await self.world.price("quick", symbol)
        await self._note(f"{symbol} {price}").fork_in(self.scope, start_immediately=True)
        return price

    @fb.effect
    async def _note(self, line: str) -> None:
        with fb.uninterruptible():
            await self.world.write(line)

    @fb.effect
    async def _refresh(self) -> None:
        while True:
            self.latest["ada"] = await self.world.price("slow", "ada")


async def main() -> None:
    world = World()
    async with fb.Scope("parallel", name="quotes") as scope:
        service = Quotes(world, scope)
        service.start()
        print("ada costs", await service.quote("ada"))
        print("in flight:", scope.finalizer_count)
    print("ledger:", world.ledger)
    print("open connections:", world.open_connections)


if __name__ == "__main__":
    asyncio.run(main())
