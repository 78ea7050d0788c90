"""PubSub: every item to everyone who has subscribed."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from typing import Any, Final, Generic, Never, TypeVar, final

from fibers.cause import Cause, Interrupt
from fibers.effect import Effect
from fibers.exit import succeeded
from fibers.resource import acquire_release
from fibers.sync.checks import checked_count
from fibers.sync.deferred import Deferred
from fibers.sync.line import Line
from fibers.sync.one_loop import OneLoop
from fibers.sync.sink import Sink, Strategy
from fibers.sync.source import Source

A = TypeVar("A")
B = TypeVar("B")

_SHUT_DOWN: Final[Cause[Never]] = Cause((Interrupt(None),))


class _Entry(Generic[A]):
    """A published item, and how many subscriptions have not taken it yet."""

    __slots__ = ("item", "left")

    def __init__(self, item: A, left: int) -> None:
        self.item = item
        self.left = left


@final
class PubSub(OneLoop, Sink[A], Generic[A]):
    """What is published goes to every subscription that exists by then.

        prices: PubSub[Price] = PubSub.bounded(16)

        @effect
        async def watch() -> None:
            async for price in await prices.subscribe():
                show(price)

        await scoped(watch()).fork_child()

    ``bounded(n)`` makes publishers wait for the slowest subscription, ``dropping(n)`` refuses what
    there is no room for, ``sliding(n)`` takes the oldest from those that are behind,
    ``unbounded()`` has no limit. Without a subscription an item is gone, except that a new
    subscription begins with the last ``replay`` of them. An interrupted fiber has published or
    taken nothing (PI5). One event loop at a time uses it; a second one gets a RuntimeError.
    """

    __slots__ = (
        "__weakref__",
        "_begin",
        "_capacity",
        "_down",
        "_ended",
        "_givers",
        "_log",
        "_replay",
        "_strategy",
        "_subscriptions",
    )

    def __init__(
        self, capacity: float = math.inf, *, strategy: Strategy = "suspend", replay: int = 0
    ) -> None:
        super().__init__()
        if strategy not in ("suspend", "dropping", "sliding"):
            raise ValueError(
                f'strategy must be "suspend", "dropping" or "sliding", not {strategy!r}'
            )
        if capacity != math.inf:
            checked_count(capacity, "the capacity of a PubSub")
        self._capacity = capacity
        self._strategy: Strategy = strategy
        self._replay: deque[A] = deque(
            maxlen=checked_count(replay, "the replay of a PubSub", least=0)
        )
        # What somebody has not taken yet, and the running number of its first entry.
        self._log: deque[_Entry[A]] = deque()
        self._begin = 0
        self._subscriptions: dict[Subscription[A], None] = {}
        self._givers = Line()
        self._down = False
        self._ended: Deferred[None] = Deferred()

    # ------------------------------------------------------------------ make, as Queue does

    @staticmethod
    def bounded(capacity: int, *, replay: int = 0) -> PubSub[B]:  # pyright: ignore[reportInvalidTypeVarUse]  # inferred from where it is assigned
        """Publishers wait for the slowest subscription. ValueError for less than 1."""
        return PubSub(checked_count(capacity, "the capacity of a PubSub"), replay=replay)

    @staticmethod
    def unbounded(*, replay: int = 0) -> PubSub[B]:  # pyright: ignore[reportInvalidTypeVarUse]  # inferred from where it is assigned
        """There is always room."""
        return PubSub(replay=replay)

    @staticmethod
    def dropping(capacity: int, *, replay: int = 0) -> PubSub[B]:  # pyright: ignore[reportInvalidTypeVarUse]  # inferred from where it is assigned
        """What there is no room for reaches nobody: ``publish`` gives False."""
        checked_count(capacity, "the capacity of a PubSub")
        return PubSub(capacity, strategy="dropping", replay=replay)

    @staticmethod
    def sliding(capacity: int, *, replay: int = 0) -> PubSub[B]:  # pyright: ignore[reportInvalidTypeVarUse]  # inferred from where it is assigned
        """A subscription that is more than ``capacity`` items behind loses the oldest."""
        checked_count(capacity, "the capacity of a PubSub")
        return PubSub(capacity, strategy="sliding", replay=replay)

    # ------------------------------------------------------------------ publish

    def publish(self, item: A) -> Effect[bool, Never]:
        """Publish ``item``, waiting for room where it is bounded. False if it was refused: there is
        no room (dropping), or it is shut down. True where nobody has subscribed.
        """
        return self._give((item,), _nothing_left)

    def publish_all(self, items: Iterable[A]) -> Effect[bool, Never]:
        """Publish all, in order. False if one was refused, and with it all that follow."""
        return self._give(items, _nothing_left)

    def publish_unsafe(self, item: A) -> bool:
        """``publish`` as a plain call that can't wait, in the PubSub's own loop: where ``publish``
        would wait for room it is False too.
        """
        return self._give_at_once(item)

    # ------------------------------------------------------------------ subscribe

    def subscribe(self) -> Effect[Subscription[A], Never]:
        """A subscription that ends when the scope in context closes."""
        return acquire_release(Effect.sync(self._subscribe), lambda own, _: Effect.sync(own._close))

    def _subscribe(self) -> Subscription[A]:
        self._here()
        own = Subscription(self)
        self._subscriptions[own] = None
        return own

    # ------------------------------------------------------------------ looking, ending

    def size(self) -> Effect[int, Never]:
        """How many items some subscription has not taken yet."""
        return Effect.sync(self.size_unsafe)

    def size_unsafe(self) -> int:
        """``size`` as a plain call."""
        return len(self._log)

    def is_full(self) -> Effect[bool, Never]:
        """Whether a publisher would have to wait, be refused, or take from the slowest."""
        return Effect.sync(lambda: len(self._log) >= self._capacity)

    def is_shutdown(self) -> Effect[bool, Never]:
        """Whether it has been shut down."""
        return Effect.sync(lambda: self._down)

    def await_shutdown(self) -> Effect[None, Never]:
        """Wait until it has been shut down."""
        return self._ended.await_()

    def shutdown(self) -> Effect[bool, Never]:
        """End it: every take fails with an Interrupt by nobody, every publish gives False, those
        that wait included. False if it was shut down before.
        """
        return Effect.sync(self.shutdown_unsafe)

    def shutdown_unsafe(self) -> bool:
        """``shutdown`` as a plain call, in the PubSub's own loop."""
        self._here()
        if self._down:
            return False
        self._down = True
        self._begin += len(self._log)
        self._log.clear()
        self._replay.clear()
        for own in self._subscriptions:
            own._takers.call_all()
        self._givers.call_all()
        self._ended.done_unsafe(succeeded(None))
        return True

    # ------------------------------------------------------------------ the log

    @property
    def _end(self) -> int:
        return self._begin + len(self._log)

    def _pass(self, begin: int, end: int) -> None:
        """A subscription has done with the entries of these numbers."""
        log, at = self._log, self._begin
        for number in range(begin, end):
            log[number - at].left -= 1
        while log and not log[0].left:
            log.popleft()
            self._begin += 1
        self._call_giver()

    # ------------------------------------------------------------------ as Sink

    def _refuses(self, *, called: bool) -> bool:
        return self._down

    def _room(self) -> float:
        if not self._subscriptions:
            return math.inf
        return self._capacity - len(self._log)

    def _put(self, item: A) -> None:
        self._replay.append(item)
        if not self._subscriptions:
            return
        if self._strategy == "sliding" and len(self._log) >= self._capacity:
            self._log.popleft()
            self._begin += 1
        self._log.append(_Entry(item, len(self._subscriptions)))

    def _settle(self) -> None:
        for own in self._subscriptions:
            own._takers.call(own._held())
        self._call_giver()

    def __repr__(self) -> str:
        state = "shut down, " if self._down else ""
        return f"<PubSub {state}{len(self._subscriptions)} subscribed, {len(self._log)} to take>"


@final
class Subscription(Source[A, Never], Generic[A]):
    """One subscriber's view of a PubSub; made by ``PubSub.subscribe``.

    It takes, polls and is iterated like a Queue: ``async for`` over it ends by an interrupt only,
    for a PubSub has no Done. Its takes fail with an Interrupt by nobody after ``shutdown`` and
    after the end of its scope.
    """

    __slots__ = ("__weakref__", "_at", "_backlog", "_closed", "_hub")

    def __init__(self, hub: PubSub[A]) -> None:
        super().__init__()
        self._hub = hub
        self._at = hub._end
        # Of before its time: the replay.
        self._backlog: deque[A] = deque(hub._replay)
        self._closed = False

    def _close(self) -> None:
        if self._closed:
            return
        self._closed = True
        hub = self._hub
        del hub._subscriptions[self]
        self._takers.call_all()
        self._backlog.clear()
        begin, self._at = self._place(), hub._end
        hub._pass(begin, self._at)

    def _place(self) -> int:
        """The number of the next entry; those that slid away are passed over."""
        return max(self._at, self._hub._begin)

    # ------------------------------------------------------------------ as Source

    def _here(self) -> None:
        self._hub._here()

    def _held(self) -> int:
        if self._closed:
            return 0
        return len(self._backlog) + self._hub._end - self._place()

    def _first(self) -> A:
        if self._backlog:
            return self._backlog[0]
        return self._hub._log[self._place() - self._hub._begin].item

    def _grab(self, n: int) -> list[A]:
        hub, backlog = self._hub, self._backlog
        items = [backlog.popleft() for _ in range(min(n, len(backlog)))]
        begin = self._place()
        self._at = begin + n - len(items)
        at = hub._begin
        items += [hub._log[number - at].item for number in range(begin, self._at)]
        hub._pass(begin, self._at)
        return items

    def _put_back(self, items: list[A]) -> None:
        if not self._closed and not self._hub._down:
            self._backlog.extendleft(reversed(items))

    def _ended_by(self) -> Cause[Never] | None:
        return _SHUT_DOWN if self._closed or self._hub._down else None

    def _worth(self, least: int) -> int:
        capacity = self._hub._capacity
        return least if least <= capacity else int(capacity)

    def _settle(self) -> None:
        self._takers.call(self._held())

    def __repr__(self) -> str:
        return f"<Subscription {'ended' if self._ended_by() else f'{self._held()} to take'}>"


def _nothing_left(rest: deque[Any]) -> bool:
    return not rest


__all__ = ["PubSub", "Subscription"]
