"""The world around the tutorial's service: two venues that quote prices, and a ledger on a disk.

Plain coroutines, as a client library has them. Nothing of it changes from step to step.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

PRICES = {"ada": 42, "bob": 7}


class UnknownSymbol(Exception):
    """Nobody trades it."""


class VenueDown(Exception):
    """The venue doesn't answer today."""


class World:
    """Counts what the service holds, so that a step can print what it left behind."""

    def __init__(self) -> None:
        self.open_connections = 0
        self.ledger: list[str] = []
        self.broken_venues: set[str] = set()

    @asynccontextmanager
    async def connect(self, venue: str) -> AsyncGenerator[str]:
        """A connection to ``venue``; closing it takes a moment."""
        self.open_connections += 1
        try:
            yield venue
        finally:
            await asyncio.sleep(0.01)
            self.open_connections -= 1

    async def price(self, venue: str, symbol: str) -> int:
        """What ``venue`` asks for ``symbol``. The slow one takes its time."""
        async with self.connect(venue):
            await asyncio.sleep(0.5 if venue == "slow" else 0.02)
            if venue in self.broken_venues:
                raise VenueDown(venue)
            if symbol not in PRICES:
                raise UnknownSymbol(symbol)
            return PRICES[symbol]

    async def write(self, line: str) -> None:
        """Append to the ledger. Half of the line is on the disk before the other half."""
        self.ledger.append(line + " ...")
        await asyncio.sleep(0.05)
        self.ledger[-1] = line
