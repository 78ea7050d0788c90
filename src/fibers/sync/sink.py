"""The giving side, which a Queue and a PubSub share."""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar

from returns.maybe import Maybe, Nothing, Some

from fibers.effect import Effect
from fibers.sync.line import WAIT, Attempt, Line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fibers.loop.run_loop import FiberCore

A = TypeVar("A")

Strategy: TypeAlias = Literal["suspend", "dropping", "sliding"]
"""What happens to an item for which there is no room: its giver waits, it is refused, or the oldest
makes room."""


class Sink(Generic[A]):
    """Where items can be put, in order, by any number of fibers.

    An item goes in in the step of the fiber that puts it: one that is interrupted while it waits
    for room has put nothing more.
    """

    __slots__ = ()

    _givers: Line
    _strategy: Strategy

    def _here(self) -> None:
        """Every operation asks this first: is it this event loop's?"""
        raise NotImplementedError

    def _refuses(self, *, called: bool) -> bool:
        """Whether it takes no more items; from those that waited already (``called``) it may."""
        raise NotImplementedError

    def _room(self) -> float:
        """For how many items there is room."""
        raise NotImplementedError

    def _put(self, item: A) -> None:
        """Put an item in; where the strategy is sliding, the oldest may have to go."""
        raise NotImplementedError

    def _settle(self) -> None:
        """Something changed: call whoever can go on now."""
        raise NotImplementedError

    # ------------------------------------------------------------------ putting items in

    def _give(self, items: Iterable[A], outcome: Callable[[deque[A]], Any]) -> Effect[Any, Any]:
        """Put all in, waiting for room; ``outcome`` of those that were refused is the value."""
        return _Give(self, tuple(items), outcome)

    def _give_at_once(self, item: A) -> bool:
        """Put ``item`` in as a plain call, if nobody has to wait for that."""
        self._here()
        rest = deque((item,))
        if not self._refuses(called=False) and not self._givers.set_aside:
            self._give_now(rest)
        return not rest

    def _give_now(self, rest: deque[A]) -> None:
        """Put in as many as there is room for."""
        room = math.inf if self._strategy == "sliding" else self._room()
        while rest and room >= 1:
            self._put(rest.popleft())
            room -= 1
        self._settle()

    def _take_from_giver(self) -> Maybe[A]:
        """Take an item out of the hands of the first who waits for room.

        Its giver goes on once all it has is gone. Interrupted before that step, it ends interrupted
        although the item was taken: who doesn't wait can't wait for that step either.
        """
        place = self._givers.first()
        if place is None or not isinstance(place.attempt, Giving):
            return Nothing
        rest: deque[A] = place.attempt.rest
        item = rest.popleft()
        if not rest:
            place.call()
        return Some(item)

    def _call_giver(self) -> None:
        """Call the first who waits for room, if there is some. One at a time: it puts in as many as
        it can, and what it gives in a row stays in a row.
        """
        if self._givers and self._room() >= 1:
            self._givers.call(1)


class _Give(Effect[Any, Any]):
    """``items`` on their way into ``sink``; ``outcome`` of those that it refused is the value."""

    __slots__ = ("items", "outcome", "sink")

    def __init__(
        self, sink: Sink[Any], items: tuple[Any, ...], outcome: Callable[[deque[Any]], Any]
    ) -> None:
        self.sink: Sink[Any] = sink
        self.items: tuple[Any, ...] = items
        self.outcome: Callable[[deque[Any]], Any] = outcome

    def _ev(self, fiber: FiberCore) -> Any:
        return self.sink._givers.run(fiber, Giving(self))


class Giving(Attempt):
    """One evaluation: what is still to be put in."""

    __slots__ = ("give", "rest")

    def __init__(self, give: _Give) -> None:
        self.give: _Give = give
        self.rest: deque[Any] = deque(give.items)

    def _try(self, fiber: FiberCore, *, called: bool) -> Any:
        sink, rest = self.give.sink, self.rest
        sink._here()
        if sink._refuses(called=called):
            return self.give.outcome(rest)
        # A newcomer stands behind those that were called.
        if called or not sink._givers.set_aside:
            sink._give_now(rest)
        return WAIT if rest and sink._strategy == "suspend" else self.give.outcome(rest)

    def _settle(self, *, called: bool) -> None:
        self.give.sink._settle()

    def _name(self) -> str:
        return f"room in {self.give.sink!r}"
