"""Handoff: parts pass from the provider's fiber to the pump one at a time (BT4).

The giver goes on when its part was taken, so a provider is never ahead of the pump by more than the
part in its hand, and what comes after an abort is dropped here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast, final

from fibers import Effect

from .model.parts import ProviderPart, UnknownPart


@final
class EndOfParts:
    """The provider's iterator is over."""

    __slots__ = ()


END: Final = EndOfParts()

_EMPTY: Final = object()
"""No part is in the place. A mark of its own: what a provider yields may be None."""

Resume = Callable[[Any], None]


@final
class Handoff:
    """A place for one part, between one giver and one taker."""

    __slots__ = ("_closed", "_ended", "_failure", "_giver", "_item", "_taker")

    def __init__(self) -> None:
        self._item: object = _EMPTY
        self._giver: Resume | None = None
        self._taker: Resume | None = None
        self._failure: Exception | None = None
        self._ended = False
        self._closed = False

    @property
    def closed(self) -> bool:
        return self._closed

    async def give(self, part: ProviderPart | UnknownPart) -> bool:
        """Hand ``part`` over and wait until it is taken. False: nobody takes any more."""
        if self._closed:
            return False
        self._item = part
        self._wake_taker()
        if self._item is not _EMPTY:
            await Effect.callback(self._wait_as_giver)
        return not self._closed

    async def take(self) -> ProviderPart | UnknownPart | EndOfParts:
        """The next part; END at the end, or when closed. Raises what the provider raised."""
        while True:
            if self._closed:
                return END
            if self._item is not _EMPTY:
                part = cast("ProviderPart | UnknownPart", self._item)
                self._item = _EMPTY
                self._wake_giver()
                return part
            if self._failure is not None:
                raise self._failure
            if self._ended:
                return END
            await Effect.callback(self._wait_as_taker)

    def end(self, failure: Exception | None = None) -> None:
        """No more parts: the iterator is over, or it raised ``failure``."""
        self._ended = True
        self._failure = failure
        self._wake_taker()

    def close(self) -> None:
        """The stream stops: nothing is handed over from now on, and nobody waits here."""
        self._closed = True
        self._item = _EMPTY
        self._wake_taker()
        self._wake_giver()

    def _wake_giver(self) -> None:
        if self._giver is not None:
            giver, self._giver = self._giver, None
            giver(Effect.succeed(None))

    def _wake_taker(self) -> None:
        if self._taker is not None:
            taker, self._taker = self._taker, None
            taker(Effect.succeed(None))

    def _wait_as_giver(self, resume: Resume) -> None:
        self._giver = resume

    def _wait_as_taker(self, resume: Resume) -> None:
        self._taker = resume
