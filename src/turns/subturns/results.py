"""Results of children on their way to the parent: each is delivered or orphaned, exactly once."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Literal, final

import fibers as fb
from fibers import Effect

from ..events import OrphanReason
from .config import SubturnResult

Outcome = Literal["delivered"] | OrphanReason


@final
class Delivery:
    """One result on its way. ``tell`` is called with what became of it, once, at that moment."""

    def __init__(self, result: SubturnResult, tell: Callable[[Outcome], None]) -> None:
        self.result = result
        self._tell = tell
        self._settled = asyncio.Event()
        self.outcome: Outcome | None = None

    def settle(self, outcome: Outcome) -> None:
        """Only the first call counts."""
        if self.outcome is None:
            self.outcome = outcome
            self._settled.set()
            self._tell(outcome)

    def wait(self) -> Effect[bool]:
        """Wait until it is settled."""
        return Effect.promise(self._settled.wait)


@final
class Results:
    """What a turn has not looked at yet: so many results, and those that wait for room.

    It is closed by the end of the turn and never by who puts something in: what comes later is an
    orphan, what waits becomes one.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._ready: deque[SubturnResult] = deque()
        self._waiting: deque[Delivery] = deque()
        self._is_closed = False
        self.on_delivered: Callable[[], object] = _nothing
        """Told when there is one more to look at."""

    def __len__(self) -> int:
        return len(self._ready)

    @property
    def waiting(self) -> int:
        """How many wait for room."""
        return len(self._waiting)

    def put(self, delivery: Delivery) -> None:
        """Take it, have it wait for room, or let it be an orphan. A plain call."""
        if self._is_closed:
            delivery.settle("parent_finished")
        elif len(self._ready) < self._capacity:
            self._take_in(delivery)
        else:
            self._waiting.append(delivery)

    def take(self) -> SubturnResult | None:
        """The oldest result; None where there is none. Who waits longest moves up."""
        if not self._ready:
            return None
        result = self._ready.popleft()
        if self._waiting:
            self._take_in(self._waiting.popleft())
        return result

    def give_up(self, delivery: Delivery) -> None:
        """It waits no longer; nothing where it doesn't."""
        if delivery in self._waiting:
            self._waiting.remove(delivery)
            delivery.settle("interrupted")

    def close(self) -> None:
        """The turn has ended: nothing is taken any more, and nobody waits. Can be repeated."""
        self._is_closed = True
        while self._waiting:
            self._waiting.popleft().settle("parent_finished_waiting")

    def _take_in(self, delivery: Delivery) -> None:
        self._ready.append(delivery.result)
        delivery.settle("delivered")
        self.on_delivered()


def _nothing() -> None:
    return None


@fb.effect
async def deliver(results: Results | None, delivery: Delivery) -> None:
    """Put it in, and wait for room until the turn ends. Afterwards it is settled, whatever happens:
    also where this is interrupted, or the queue breaks. ``results`` None: nobody is there.
    """
    if results is None:
        delivery.settle("parent_finished")
        return
    try:
        results.put(delivery)
        if delivery.outcome is None:
            await delivery.wait()
    except Exception:  # noqa: BLE001  # whatever broke: the result must not be lost in silence
        delivery.settle("panic")
    finally:
        results.give_up(delivery)
