"""The taking side, which a Queue and a Subscription share."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, Generic, Never

from returns.maybe import Maybe, Nothing, Some
from typing_extensions import TypeVar

from fibers.effect import Effect
from fibers.loop.protocol import FAIL
from fibers.sync.checks import checked_count
from fibers.sync.done import Done
from fibers.sync.line import WAIT, Attempt, Line
from fibers.sync.one_loop import OneLoop

if TYPE_CHECKING:
    from fibers.cause import Cause
    from fibers.loop.run_loop import FiberCore

A = TypeVar("A")
E = TypeVar("E", bound=Exception, default=Never)


class Source(OneLoop, Generic[A, E]):
    """Where items can be taken, in order, by any number of fibers.

    An item leaves the source in the step of the fiber that gets it: an interrupted taker has taken
    nothing. Items that are set aside for a taker on its way (see ``line``) are not for others.
    """

    __slots__ = ("_takers",)

    def __init__(self) -> None:
        super().__init__()
        self._takers = Line()

    # ------------------------------------------------------------------ what a source is made of

    def _held(self) -> int:
        """How many items are there."""
        raise NotImplementedError

    def _grab(self, n: int) -> list[A]:
        """Take out the first ``n`` of them."""
        raise NotImplementedError

    def _first(self) -> A:
        """The first of them, which stays."""
        raise NotImplementedError

    def _put_back(self, items: list[A]) -> None:
        """These were grabbed, and nobody was given them: they are the first again."""
        raise NotImplementedError

    def _ended_by(self) -> Cause[E] | None:
        """Why nothing will ever come again and nothing is left."""
        raise NotImplementedError

    def _worth(self, least: int) -> int:
        """How many items a taker that wants ``least`` can be given at once at best."""
        raise NotImplementedError

    def _settle(self) -> None:
        """Something changed: call whoever can go on now."""
        raise NotImplementedError

    def _from_giver(self) -> Maybe[A]:
        """An item straight from a fiber that waits to put it in, where that is possible."""
        return Nothing

    # ------------------------------------------------------------------ waiting for items

    def take(self) -> Effect[A, E]:
        """The next item, waiting for it. Takers get items in the order in which they came."""
        return _Take(self, 1, 1, _only)

    def take_all(self) -> Effect[list[A], E]:
        """All items that are there, waiting for at least one."""
        return _Take(self, 1, math.inf, _all)

    def take_n(self, n: int) -> Effect[list[A], E]:
        """``take_between(n, n)``."""
        return self.take_between(n, n)

    def take_between(self, least: int, most: int) -> Effect[list[A], E]:
        """At most ``most`` items, waiting until ``least`` are there, or as many as there can be:
        the capacity, or what is left when no more will come. ValueError unless 1 <= least <= most.
        """
        checked_count(least, "the number of items to take")
        checked_count(most, "the most items to take", least=least)
        return _Take(self, least, most, _all)

    def peek(self) -> Effect[A, E]:
        """The next item, waiting for it and leaving it there."""
        return _Peek(self)

    def __aiter__(self) -> AsyncIterator[A]:
        """``async for item in source``: takes one by one and ends at Done. Other failures are
        raised. What has not been taken when the loop is left stays.
        """
        return _Items(self)

    # ------------------------------------------------------------------ not waiting

    def poll(self) -> Effect[Maybe[A], Never]:
        """The next item if there is one for whoever asks, else Nothing."""
        return Effect.sync(self.poll_unsafe)

    def poll_unsafe(self) -> Maybe[A]:
        """``poll`` as a plain call, in the source's own loop."""
        self._here()
        if self._held() <= self._takers.set_aside:
            return self._from_giver()
        [item] = self._grab(1)
        self._settle()
        return Some(item)

    def size(self) -> Effect[int, Never]:
        """How many items are there."""
        return Effect.sync(self._held)

    def size_unsafe(self) -> int:
        """``size`` as a plain call."""
        return self._held()


def _only(items: list[Any]) -> Any:
    return items[0]


def _all(items: list[Any]) -> Any:
    return items


class _FromSource(Attempt, Effect[Any, Any]):
    """What takes and what only looks: both wait in the line of takers."""

    __slots__ = ("source",)

    source: Source[Any, Any]

    def _ev(self, fiber: FiberCore) -> Any:
        return self.source._takers.run(fiber, self)

    def _over(self, fiber: FiberCore) -> bool:
        cause = self.source._ended_by()
        if cause is None:
            return False
        fiber._cause = cause
        return True

    def _settle(self, *, called: bool) -> None:
        self.source._settle()

    def _name(self) -> str:
        return f"an item of {self.source!r}"


class _Take(_FromSource):
    __slots__ = ("give", "least", "most")

    def __init__(
        self,
        source: Source[Any, Any],
        least: int,
        most: float,
        give: Callable[[list[Any]], Any],
    ) -> None:
        self.source = source
        self.least = least
        self.most = most
        self.give = give

    def _need(self) -> int:
        return self.source._worth(self.least)

    def _try(self, fiber: FiberCore, *, called: bool) -> Any:
        source = self.source
        source._here()
        if self._over(fiber):
            return FAIL
        aside = source._takers.set_aside
        there = source._held() - aside
        # A newcomer stands behind those that were called: the first items are theirs.
        if there < self._need() or (aside and not called):
            return WAIT
        items = source._grab(there if there < self.most else int(self.most))
        source._settle()
        return self.give(items)

    def _undo(self, outcome: Any) -> None:
        self.source._put_back([outcome] if self.give is _only else outcome)
        self.source._settle()


class _Peek(_FromSource):
    __slots__ = ()

    def __init__(self, source: Source[Any, Any]) -> None:
        self.source = source

    def _try(self, fiber: FiberCore, *, called: bool) -> Any:
        source = self.source
        source._here()
        if self._over(fiber):
            return FAIL
        if not source._held():
            return WAIT
        first = source._first()
        if called:
            source._settle()  # what was set aside for this look is there for a taker
        return first


class _Items(AsyncIterator[A]):
    __slots__ = ("source",)

    def __init__(self, source: Source[A, Any]) -> None:
        self.source = source

    async def __anext__(self) -> A:
        try:
            return await self.source.take()
        except Done:
            raise StopAsyncIteration from None
