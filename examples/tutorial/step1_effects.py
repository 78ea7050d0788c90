"""Step 1: one function becomes an effect. Its callers stay as they are.

``@effect`` is put on ``quote`` and nothing else changes: an effect is awaited like a coroutine, in
a plain task too. What it may fail with stands in its type now: mypy and pyright know that ``quote``
fails with UnknownSymbol or VenueDown, and that ``quote_or_guess`` only with UnknownSymbol.
"""

from __future__ import annotations

import asyncio

import fibers as fb
from examples.tutorial.world import UnknownSymbol, VenueDown, World
from fibers import Effect


class Quotes:
    """As before; ``quote`` is an effect."""

    def __init__(self, world: World) -> None:
        self.world = world

    @fb.effect(raises=(UnknownSymbol, VenueDown))
    async def quote(self, symbol: str) -> int:
        return await self.world.price("quick", symbol)

    def quote_or_guess(self, symbol: str) -> Effect[int, UnknownSymbol]:
        """A venue that is down is handled here, once; what is left stands in the type."""
        return self.quote(symbol).catch(guess)


def guess(error: UnknownSymbol | VenueDown) -> Effect[int, UnknownSymbol]:
    return Effect.succeed(40) if isinstance(error, VenueDown) else Effect.fail(error)


async def handler(service: Quotes, symbol: str) -> str:
    """A coroutine of the service that nobody has touched."""
    try:
        return f"{symbol} costs {await service.quote_or_guess(symbol)}"
    except UnknownSymbol as unknown:
        return f"nobody trades {unknown}"


async def main() -> None:
    world = World()
    service = Quotes(world)
    print(await handler(service, "ada"))
    print(await handler(service, "eve"))
    world.broken_venues.add("quick")
    print(await handler(service, "ada"))


if __name__ == "__main__":
    asyncio.run(main())
