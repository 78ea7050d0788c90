"""Step 0: the service as it is, plain coroutines and tasks.

It works, until something goes wrong while something is in flight. The end of this program shows
what a shutdown leaves.
"""

from __future__ import annotations

import asyncio

from examples.tutorial.world import World


class Quotes:
    """Answers with the best price, and writes each answer into the ledger."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.latest: dict[str, int] = {}
        self._refresher: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._refresher = asyncio.create_task(self._refresh())

    async def stop(self) -> None:
        if self._refresher is not None:
            self._refresher.cancel()

    async def quote(self, symbol: str) -> int:
        price = await self.world.price("quick", symbol)
        # Nobody waits for it, nobody holds it, nobody hears of its failure.
        asyncio.create_task(self.world.write(f"{symbol} {price}"))  # noqa: RUF006  # the fault to show
        return price

    async def _refresh(self) -> None:
        while True:
            self.latest["ada"] = await self.world.price("slow", "ada")


async def main() -> None:
    world = World()
    service = Quotes(world)
    service.start()
    print("ada costs", await service.quote("ada"))
    await service.stop()
    print("ledger:", world.ledger)
    print("open connections:", world.open_connections)


if __name__ == "__main__":
    asyncio.run(main())
