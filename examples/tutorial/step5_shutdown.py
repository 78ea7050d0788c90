"""Step 5: the application is an effect, and its end is part of it.

``run_main`` runs it until it ends or a signal comes: the first Ctrl-C or SIGTERM ends it
gracefully, a second one at once. Everything in flight lives in one app scope. Its close is the
first step of the teardown, bounded, while the stores that the finalizers write to still work.

With ``--demo`` the program sends itself the signal; without, stop it with Ctrl-C.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import fibers as fb
from examples.tutorial.world import UnknownSymbol, VenueDown, World
from fibers import Effect
from fibers.app import AppScope, Shutdown


class Quotes:
    """The service of step 2, with a scope that is the app's."""

    def __init__(self, world: World, scope: fb.Scope) -> None:
        self.world = world
        self.scope = scope
        self.latest: dict[str, int] = {}

    def start(self) -> None:
        refresh = self._refresh().on_interrupt(
            lambda _: Effect.sync(lambda: print("refresher: interrupted"))
        )
        self.scope.fork(refresh)

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


@fb.effect
async def app(demo: bool) -> None:
    world = World()
    scope = AppScope()
    service = Quotes(world, scope)

    async def close_ledger() -> None:
        print("ledger closed with", world.ledger)

    shutdown = Shutdown(scope, [("ledger", close_ledger)])
    service.start()
    try:
        print("ada costs", await service.quote("ada"))
        if demo:
            os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.Event().wait()
    finally:
        await shutdown.dispose()
        print("open connections:", world.open_connections)


if __name__ == "__main__":
    fb.run_main(app("--demo" in sys.argv))
