"""Leaving a future that others wait for too: the callbacks of many are taken off in one pass.

``remove_done_callback`` looks through all callbacks of a future, so ten thousand fibers that stop
waiting for the same one would look at fifty million. They leave in the next turn of the loop,
together. A callback that is still there does nothing: its fiber waits no longer.
"""

from __future__ import annotations

import asyncio
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Callable

    Callback = Callable[[Any], object]

_leaving: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, list[tuple[Any, Callback]]] = (
    weakref.WeakKeyDictionary()
)


def leave(loop: asyncio.AbstractEventLoop, future: Any, callback: Callback) -> None:
    """Take ``callback`` off ``future`` in the loop's next turn. One bound method a waiter."""
    waiting = _leaving.get(loop)
    if waiting is None:
        waiting = _leaving[loop] = []
    if not waiting:
        loop.call_soon(_take_off, waiting)
    waiting.append((future, callback))


def _take_off(waiting: list[tuple[Any, Callback]]) -> None:
    together: dict[int, tuple[Any, list[Callback]]] = {}
    for future, callback in waiting:
        together.setdefault(id(future), (future, []))[1].append(callback)
    waiting.clear()
    for future, callbacks in together.values():
        leaver = callbacks[0] if len(callbacks) == 1 else _AnyOf(callbacks)
        # A callback of somebody else that can't be compared: ours stay, and do nothing.
        with suppress(Exception):
            future.remove_done_callback(leaver)


class _AnyOf:
    """Equal to each of some bound methods: asyncio removes every callback that equals its
    argument.
    """

    __slots__ = ("_owners",)

    def __init__(self, callbacks: list[Callback]) -> None:
        self._owners = {id(getattr(callback, "__self__", None)) for callback in callbacks}

    # No hash: it is equal to things with different ones.
    @override
    def __eq__(self, other: object) -> bool:
        return id(getattr(other, "__self__", None)) in self._owners
