"""Slots: how many children of one turn run at a time."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import final

import fibers as fb
from fibers import Effect

from ..model.errors import TurnError


@final
class Slots:
    """So many slots. Who waits gets them in the order of coming."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._taken = 0
        self._waiting: deque[Slot] = deque()

    @property
    def available(self) -> int:
        return self.limit - self._taken

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def slot(self) -> Slot:
        """A slot that is not held yet."""
        return Slot(self)


@final
class Slot:
    """One slot for one child. ``release`` can be called at any time and any number of times: a slot
    is given back once, and one that was never held not at all.
    """

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._is_held = False
        self._granted = asyncio.Event()

    @property
    def is_held(self) -> bool:
        return self._is_held

    def acquire(self, timeout_seconds: float) -> Effect[None, TurnError]:
        """Wait for it, so long at most. Fails with "concurrency_timeout"; an interrupted waiter
        holds nothing once it has called ``release``.
        """
        return self._acquire(timeout_seconds)

    @fb.effect(raises=TurnError)
    async def _acquire(self, timeout_seconds: float) -> None:
        slots = self._slots
        if slots.available > 0 and not slots._waiting:
            self._grant()
            return
        slots._waiting.append(self)
        await fb.race_first(Effect.promise(self._granted.wait), fb.sleep(timeout_seconds))
        # Not who won, but whether it is held: both may have happened.
        if not self._is_held:
            slots._waiting.remove(self)
            raise TurnError(
                "concurrency_timeout",
                f"{slots.limit} subturns run already, and none ended in {timeout_seconds:g} s",
                "Wait for one of them, or raise max_children.",
            )

    def release(self) -> None:
        slots = self._slots
        if self in slots._waiting:
            slots._waiting.remove(self)
        if not self._is_held:
            return
        self._is_held = False
        slots._taken -= 1
        if slots._waiting and slots.available > 0:
            slots._waiting.popleft()._grant()

    def _grant(self) -> None:
        self._slots._taken += 1
        self._is_held = True
        self._granted.set()
