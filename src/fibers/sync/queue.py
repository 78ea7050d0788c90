"""Queue: items handed from fibers to fibers, with an end."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, Generic, Never, final, overload

from returns.maybe import Maybe, Nothing
from returns.result import Success
from typing_extensions import TypeVar

from fibers.cause import Cause, Fail, Interrupt
from fibers.effect import Effect, _Access
from fibers.exit import succeeded
from fibers.misplaced import check_effect, check_kind
from fibers.sync.checks import checked_cause, checked_count
from fibers.sync.deferred import Deferred
from fibers.sync.done import Done
from fibers.sync.line import Line
from fibers.sync.sink import Sink, Strategy
from fibers.sync.source import Source

if TYPE_CHECKING:
    from fibers.exit import Exit

A = TypeVar("A")
E = TypeVar("E", bound=Exception, default=Never)
B = TypeVar("B")
F = TypeVar("F", bound=Exception)
G = TypeVar("G", bound=Exception, default=Never)

_END: Final[Cause[Done]] = Cause((Fail(Done(), None, "Queue.end"),))

_OPEN: Final = "open"
_CLOSING: Final = "closing"
_DONE: Final = "done"


@final
class Queue(Source[A, E], Sink[A], Generic[A, E]):
    """First in, first out, between any number of fibers.

        lines: Queue[str, Done] = Queue.bounded(100)
        await Queue.into(read_lines(lines), lines).fork_child()
        async for line in lines:
            ...

    ``bounded(n)`` makes those who offer wait for room, ``dropping(n)`` refuses what there is no
    room for, ``sliding(n)`` drops the oldest, ``unbounded()`` has no limit; ``bounded(0)`` hands
    each item to a fiber that waits for one (a rendezvous). ``E`` is what takers may fail with:
    ``Done`` where ``end`` is used.

    After ``end``, ``fail``, ``fail_cause`` or ``interrupt`` new offers give False; what is there,
    and what waited for room, is still taken; then every take fails. ``shutdown`` drops it all.
    An interrupted fiber has offered or taken nothing (PI4). One event loop at a time uses a queue;
    a second one gets a RuntimeError.
    """

    __slots__ = (
        "__weakref__",
        "_capacity",
        "_cause",
        "_dropped",
        "_ended",
        "_givers",
        "_items",
        "_state",
        "_strategy",
    )

    def __init__(self, capacity: float = math.inf, *, strategy: Strategy = "suspend") -> None:
        super().__init__()
        if strategy not in ("suspend", "dropping", "sliding"):
            raise ValueError(
                f'strategy must be "suspend", "dropping" or "sliding", not {strategy!r}'
            )
        if capacity != math.inf:
            least = 0 if strategy == "suspend" else 1
            checked_count(capacity, "the capacity of a Queue", least=least)
        self._capacity = capacity
        self._strategy: Strategy = strategy
        self._items: deque[A] = deque()
        self._givers = Line()
        self._state = _OPEN
        self._dropped = False
        self._cause: Cause[E] = Cause()
        self._ended: Deferred[None, E] = Deferred()

    # ------------------------------------------------------------------ make
    # Static, with type variables of their own: the annotation of what they are assigned to decides.
    # A class method's are those of the class, which pyright takes for unknown here.

    @staticmethod
    def bounded(capacity: int) -> Queue[B, G]:  # pyright: ignore[reportInvalidTypeVarUse]  # inferred from where it is assigned
        """Who offers waits for room; 0: for a fiber that takes. ValueError for less."""
        return Queue(checked_count(capacity, "the capacity of a Queue", least=0))

    @staticmethod
    def unbounded() -> Queue[B, G]:  # pyright: ignore[reportInvalidTypeVarUse]  # inferred from where it is assigned
        """There is always room."""
        return Queue()

    @staticmethod
    def dropping(capacity: int) -> Queue[B, G]:  # pyright: ignore[reportInvalidTypeVarUse]  # inferred from where it is assigned
        """An offer that there is no room for gives False. ValueError for less than 1."""
        return Queue(checked_count(capacity, "the capacity of a Queue"), strategy="dropping")

    @staticmethod
    def sliding(capacity: int) -> Queue[B, G]:  # pyright: ignore[reportInvalidTypeVarUse]  # inferred from where it is assigned
        """The oldest item makes room for the new one. ValueError for less than 1."""
        return Queue(checked_count(capacity, "the capacity of a Queue"), strategy="sliding")

    # ------------------------------------------------------------------ offer

    def offer(self, item: A) -> Effect[bool, Never]:
        """Put ``item`` in, waiting for room where the queue is bounded. False if it was refused:
        there is no room (dropping), or no more is accepted.
        """
        return self._give((item,), _nothing_left)

    def offer_all(self, items: Iterable[A]) -> Effect[list[A], Never]:
        """Put all in, in order; gives those that were refused."""
        return self._give(items, list)

    def offer_unsafe(self, item: A) -> bool:
        """``offer`` as a plain call that can't wait, in the queue's own loop: where ``offer`` would
        wait for room it is False too.
        """
        return self._give_at_once(item)

    # ------------------------------------------------------------------ take; see Source

    def clear(self) -> Effect[list[A], E]:
        """Take all items that are there, without waiting: maybe none. Fails where a take would,
        except with Done.
        """
        return Effect.suspend(self._clear)

    def _clear(self) -> Effect[list[A], E]:
        self._here()
        if self._state == _DONE and not _is_end(self._cause):
            return Effect.fail_cause(self._cause)
        items = self._grab(len(self._items))
        self._settle()
        return Effect.succeed(items)

    # Done alone first: both checkers would solve F | Done with F = Done.
    @overload
    def collect(self: Queue[B, Done]) -> Effect[list[B], Never]: ...
    @overload
    def collect(self: Queue[B, F | Done]) -> Effect[list[B], F]: ...
    def collect(self: Queue[Any, Any]) -> Effect[list[Any], Any]:
        """Take until Done; gives all items. ``Done`` must be part of the queue's ``E``."""

        def collect() -> Effect[list[Any], Any]:
            got: list[Any] = []

            def more(items: list[Any]) -> Effect[Never, Any]:
                got.extend(items)
                return self.take_all().flat_map(more)

            return more([]).catch_tag(Done, lambda _: Effect.succeed(got))

        return Effect.suspend(collect)

    # ------------------------------------------------------------------ looking

    def is_full(self) -> Effect[bool, Never]:
        """Whether there is no room without a taker."""
        return Effect.sync(self.is_full_unsafe)

    def is_full_unsafe(self) -> bool:
        """``is_full`` as a plain call."""
        return len(self._items) >= self._capacity

    @overload
    def await_(self: Queue[Any, Done]) -> Effect[None, Never]: ...
    @overload
    def await_(self: Queue[Any, F | Done]) -> Effect[None, F]: ...
    @overload
    def await_(self) -> Effect[None, E]: ...
    def await_(self) -> Effect[None, Any]:
        """Wait until it has ended and everything was taken; fails as the queue did, except with
        Done.
        """
        return self._ended.await_()

    # ------------------------------------------------------------------ ending

    def end(self: Queue[Any, F | Done]) -> Effect[bool, Never]:
        """No more will come: once everything is taken, takers fail with Done. False if it had ended
        before. ``Done`` must be part of the queue's ``E``.
        """
        return Effect.sync(self.end_unsafe)

    def end_unsafe(self: Queue[Any, F | Done]) -> bool:
        """``end`` as a plain call, in the queue's own loop."""
        return self._close(_END)

    def fail(self, error: E) -> Effect[bool, Never]:
        """Like ``end``, with an error of one's own."""
        return Effect.sync(lambda: self._close(Cause((Fail(error, None, "Queue.fail"),))))

    def fail_cause(self, cause: Cause[E]) -> Effect[bool, Never]:
        """Like ``end``, with a whole cause."""
        checked_cause(cause, "Queue.fail_cause")
        return Effect.sync(lambda: self._close(cause))

    def fail_cause_unsafe(self, cause: Cause[E]) -> bool:
        """``fail_cause`` as a plain call, in the queue's own loop."""
        return self._close(checked_cause(cause, "Queue.fail_cause_unsafe"))

    def interrupt(self) -> Effect[bool, Never]:
        """Like ``end``, with an Interrupt by the fiber that runs this."""
        return _Access(lambda fiber: self._close(Cause((Interrupt(fiber.id),))))

    def shutdown(self) -> Effect[bool, Never]:
        """End it now: what is there is dropped, takers fail with an Interrupt by nobody, those who
        wait for room get False, or what they could not put in. False if it had ended before.
        """
        return Effect.sync(self.shutdown_unsafe)

    def shutdown_unsafe(self) -> bool:
        """``shutdown`` as a plain call, in the queue's own loop."""
        self._here()
        if self._state == _DONE:
            self._dropped = True
            return False
        if self._state == _OPEN:
            self._cause = Cause((Interrupt(None),))
        self._items.clear()
        self._dropped = True
        self._finish()
        return True

    @staticmethod
    def into(eff: Effect[B, F], queue: Queue[Any, F | Done]) -> Effect[bool, Never]:
        """Run ``eff``; its success ends ``queue``, its failure or interrupt fails it. Gives False
        if the queue had ended before.
        """
        check_kind(queue, Queue, "Queue.into", "a Queue")
        check_effect(eff, "Queue.into")

        def close(exit_: Exit[B, F]) -> Effect[bool, Never]:
            if isinstance(exit_, Success):
                return queue.end()
            return queue.fail_cause(exit_.failure())

        return Effect.uninterruptible_mask(lambda restore: restore(eff).exit().flat_map(close))

    def _close(self, cause: Cause[E]) -> bool:
        self._here()
        if self._state != _OPEN:
            return False
        self._state = _CLOSING
        self._cause = cause
        self._takers.renew()
        self._settle()
        return True

    def _finish(self) -> None:
        self._state = _DONE
        self._takers.call_all()
        self._givers.call_all()
        self._ended.done_unsafe(
            succeeded(None) if _is_end(self._cause) else Effect.fail_cause(self._cause)
        )

    # ------------------------------------------------------------------ as Source and Sink

    def _held(self) -> int:
        return len(self._items)

    def _first(self) -> A:
        return self._items[0]

    def _grab(self, n: int) -> list[A]:
        take = self._items.popleft
        return [take() for _ in range(n)]

    def _put_back(self, items: list[A]) -> None:
        if self._dropped:
            return
        if self._state == _DONE:
            self._state = _CLOSING  # it was not empty, after all
        self._items.extendleft(reversed(items))

    def _ended_by(self) -> Cause[E] | None:
        if self._state != _DONE:
            return None
        if self._cause is _END:
            # A new one each time: by its traceback an exception holds the body that caught it, and
            # the body may hold the queue.
            end: Cause[Any] = Cause((Fail(Done(), None, "Queue.end"),))
            return end
        return self._cause

    def _worth(self, least: int) -> int:
        if self._state != _OPEN:
            return 1  # there may be less left than it wants
        return least if least <= self._capacity else max(1, int(self._capacity))

    def _from_giver(self) -> Maybe[A]:
        return Nothing if self._capacity else self._take_from_giver()

    def _refuses(self, *, called: bool) -> bool:
        # Who waited before the end is still let in.
        return self._state == _DONE if called else self._state != _OPEN

    def _room(self) -> float:
        # A rendezvous has room for as many as wait for an item, those on their way among them.
        capacity = self._capacity or len(self._takers) + self._takers.set_aside
        return capacity - len(self._items)

    def _put(self, item: A) -> None:
        if self._strategy == "sliding" and len(self._items) >= self._capacity:
            self._items.popleft()
        self._items.append(item)

    def _settle(self) -> None:
        givers = self._givers
        if self._state == _CLOSING and not self._items and not givers and not givers.set_aside:
            self._finish()
            return
        self._takers.call(len(self._items))
        self._call_giver()

    def __repr__(self) -> str:
        return f"<Queue {self._state}, {len(self._items)} of {self._capacity:g}>"


def _nothing_left(rest: deque[Any]) -> bool:
    return not rest


def _is_end(cause: Cause[Any]) -> bool:
    return any(isinstance(r, Fail) and isinstance(r.error, Done) for r in cause.reasons)


__all__ = ["Queue"]
