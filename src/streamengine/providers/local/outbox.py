"""Outbox: from the model's thread to a coroutine of a loop, bounded."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar, final

T = TypeVar("T")


@final
class Outbox(Generic[T]):
    """One thread puts, one coroutine gets.

    The thread looks at ``has_room`` before it works for another item; nothing blocks it, as it has
    others to serve. ``on_room`` is called, on the loop, when there is room again.
    """

    def __init__(self, room: int, on_room: Callable[[], None]) -> None:
        """``room``: how many items may wait. Made on the thread of the running loop."""
        self._room = room
        self._on_room = on_room
        self._loop = asyncio.get_running_loop()
        self._items: deque[T] = deque()
        self._news = asyncio.Event()
        self._closed = False

    # ---- the thread's side

    @property
    def has_room(self) -> bool:
        return len(self._items) < self._room

    def put(self, item: T) -> bool:
        """Hand ``item`` over. False: the loop is gone, and with it whoever would get it."""
        self._items.append(item)
        try:
            self._loop.call_soon_threadsafe(self._news.set)
        except RuntimeError:
            return False
        return True

    # ---- the loop's side

    async def get(self) -> T | None:
        """The next item; None once it is closed, whatever is left."""
        while not self._items and not self._closed:
            # What the thread puts between these two lines sets the event only after them.
            self._news.clear()
            await self._news.wait()
        if self._closed:
            return None
        item = self._items.popleft()
        if len(self._items) == self._room - 1:
            self._on_room()
        return item

    def close(self) -> None:
        """Nobody gets any more; who waits in ``get`` is woken."""
        self._closed = True
        self._news.set()
