"""A store of records under weather: it fails, breaks, hangs, or fails after all was written."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final, Literal, final

import fibers as fb
from fibers import Effect
from turns import TurnError, TurnRecord
from turns.handles.store import LoadedRecords, TurnStore

Weather = Literal["fair", "fails", "breaks", "hangs", "fails late", "breaks at once"]

REFUSED: Final = TurnError("store", "the disk says no", "Try again.")


@final
class Weathered(TurnStore):
    """``weather`` is that of so many calls; what hangs goes on once it is cleared."""

    def __init__(self, inner: TurnStore) -> None:
        self._inner = inner
        self.weather: Weather = "fair"
        self._calls_left = 0
        self.met: Counter[str] = Counter()
        """How many calls met each weather but the fair one."""
        self.in_doubt: set[str] = set()
        """Handles whose last write was made although it failed."""
        self._clears = asyncio.Event()

    def turn(self, weather: Weather, calls: int) -> None:
        """The next calls meet this weather; those that hang go on hanging."""
        self.weather, self._calls_left = weather, calls

    def clear(self) -> None:
        """All that hangs goes on, and from now on all is done."""
        self.weather = "fair"
        self._clears.set()
        self._clears = asyncio.Event()

    def write(self, record: TurnRecord) -> Effect[None, TurnError]:
        met = self._meets()
        if met == "breaks at once":
            raise RuntimeError("the store broke before it gave an effect")
        return self._write(record, met)

    @fb.effect(raises=TurnError)
    async def _write(self, record: TurnRecord, met: Weather) -> None:
        await self._passed(met)
        await self._inner.write(record)
        if met == "fails late":
            self.in_doubt.add(record.handle_id)
            raise REFUSED
        self.in_doubt.discard(record.handle_id)

    @fb.effect(raises=TurnError)
    async def load(self) -> LoadedRecords:
        await self._passed(self._meets())
        return await self._inner.load()

    def _meets(self) -> Weather:
        met = self.weather
        if met != "fair":
            self.met[met] += 1
            self._calls_left -= 1
            if self._calls_left == 0:
                self.weather = "fair"
        return met

    async def _passed(self, met: Weather) -> None:
        match met:
            case "fails":
                raise REFUSED
            case "breaks":
                raise RuntimeError("the store broke")
            case "hangs":
                await self._clears.wait()
            case _:
                pass
