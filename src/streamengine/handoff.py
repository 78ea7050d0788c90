"""Handoff: parts pass from the provider's fiber to the pump one at a time (BT4).

The giver goes on when its part was taken, so a provider is never ahead of the pump by more than the
part in its hand, and what comes after an abort is dropped here.

Nearly all parts are deltas, whose handling waits for nothing. Where the taker waits for the next
part anyway, such a part is handled in the call that gives it: a switch to the taker and one back
would cost more than the handling. That changes neither the order nor who is ahead of whom.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias, cast, final

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

AtOnce: TypeAlias = Callable[[ProviderPart | UnknownPart], bool]
"""Handles a part for the taker, if that takes no wait; False: the taker has to."""

_AT_ONCE_PARTS: Final = 32
"""After so many parts without a switch the loop has a turn: a provider that never waits must not
keep it from everybody else."""


def _nothing_at_once(_part: object) -> bool:
    return False


@final
class Handoff:
    """A place for one part, between one giver and one taker.

    ``at_once`` is called only while the taker waits, and not after a close.
    """

    __slots__ = ("_at_once", "_closed", "_count", "_ended", "_failure", "_giver", "_item", "_taker")

    def __init__(self, at_once: AtOnce = _nothing_at_once) -> None:
        self._at_once = at_once
        self._count = 0
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
        """Hand ``part`` over and wait until it is taken. False: nobody takes any more. Raises what
        ``at_once`` raises.
        """
        if self._closed:
            return False
        if self._taker is not None and self._at_once(part):
            self._count += 1
            if self._count == _AT_ONCE_PARTS:
                self._count = 0
                await Effect.yield_now()
            return not self._closed
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

    def _wait_as_taker(self, resume: Resume) -> Effect[None]:
        self._taker = resume
        return Effect.sync(self._nobody_takes)

    def _nobody_takes(self) -> None:
        # The taker was interrupted: nothing is handled for it from now on.
        self._taker = None
