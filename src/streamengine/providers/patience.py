"""Patience: waiting for the other side, which an abort or a bound ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar, final

from fibers import AbortSignal

T = TypeVar("T")


class Aborted(Exception):
    """The signal of the stream was aborted while somebody waited for the other side."""


class OutOfPatience(Exception):
    """The other side did nothing for as long as it had."""


@final
class Patience:
    """The waits of one stream, one at a time. ``close()`` lets go of the signal."""

    def __init__(self, signal: AbortSignal) -> None:
        self._signal = signal
        self._bound: asyncio.Timeout | None = None
        self.close: Callable[[], None] = signal.add_listener(self._hurry)

    async def within(self, seconds: float | None, work: Awaitable[T]) -> T:
        """What ``work`` gives. Raises Aborted, OutOfPatience, or what ``work`` raises."""
        bound = asyncio.timeout(seconds)
        try:
            async with bound:
                self._bound = bound
                if self._signal.aborted:
                    self._hurry(None)
                return await work
        except TimeoutError:
            if not bound.expired():
                raise  # its own
        except Exception:
            # Whoever is stopped may well fail on the way out.
            if not self._signal.aborted:
                raise
        finally:
            self._bound = None
        raise Aborted if self._signal.aborted else OutOfPatience

    def _hurry(self, _reason: object) -> None:
        if self._bound is not None:
            self._bound.reschedule(asyncio.get_running_loop().time())
