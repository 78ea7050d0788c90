"""Ending other fibers: all signalled, then all awaited; children before their parent's exit."""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Any

from fibers.cause import landed
from fibers.loop.observing import Observer, unwatch, watch
from fibers.loop.protocol import SWITCH, Frame, Node, Wait
from fibers.loop.states import ENDED, SHALLOW_CALLS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fibers.cause import Cause, Interrupt
    from fibers.loop.run_loop import FiberCore


class EndFibers(Node, Wait, Observer):
    """Interrupt all of ``targets`` in order, then wait for all: everyone is signalled before
    anyone is awaited. One object is node, wait and observer of one evaluation.
    """

    __slots__ = ("again", "at", "leads_to", "left", "targets", "waiter", "why")

    waiter: FiberCore | None

    def __init__(
        self,
        targets: list[FiberCore],
        why: Interrupt,
        *,
        again: bool = False,
        leads_to: Callable[[FiberCore, FiberCore], bool] | None = None,
    ) -> None:
        self.targets: list[FiberCore] = targets
        self.why: Interrupt = why
        self.again: bool = again
        # For a close: does a target wait for the closer? Then it is signalled and not awaited, also
        # where it begins to wait later (SO6).
        self.leads_to: Callable[[FiberCore, FiberCore], bool] | None = leads_to
        self.at: int = 0
        self.left: int = 0

    def _ev(self, fiber: FiberCore) -> Any:
        try:
            return SWITCH if self._signal(fiber) else self._await_all(fiber)
        finally:
            del self, fiber  # see FiberCore._drive

    def _signal(self, fiber: FiberCore) -> bool:
        """Ask all that were not asked yet. True: one of them has to run first."""
        queue = fiber._queue
        loop = queue.loop
        why = self.why
        again = self.again
        targets = self.targets
        target: FiberCore | None = None
        try:
            while self.at < len(targets):
                target = targets[self.at]
                self.at += 1
                if target._queue.loop is not loop:
                    # Asked for there: its mask may be another by then.
                    target._elsewhere(functools.partial(target._interrupt_here, why, again))
                elif queue.depth < SHALLOW_CALLS:
                    target._interrupt_here(why, again)
                elif target._ask(why, again) and target is not fiber and target._cut_loose():
                    fiber._cont = self
                    fiber._switch = target
                    return True
            return False
        finally:
            del self, fiber, target, targets  # see FiberCore._drive

    def _await_all(self, fiber: FiberCore) -> Any:
        self.waiter = fiber
        for target in self.targets:
            if target._state == ENDED or target is fiber:
                continue
            if self.leads_to is not None:
                if self.leads_to(target, fiber):
                    continue
                rare = target._own_rare()
                rare.closing = (*(rare.closing or ()), self)
            self.left += 1
            watch(target, self, fiber)
        if not self.left:
            return None
        return fiber._suspend(self)

    def _fiber_done(self, fiber: FiberCore) -> None:
        self.left -= 1
        if not self.left and self.waiter is not None:
            self.waiter._wake(None)

    def let_go(self, target: FiberCore) -> None:
        """``target`` suspends: if it waits for the closer now, it is no longer awaited."""
        waiter = self.waiter
        if waiter is None or self.leads_to is None or not self.leads_to(target, waiter):
            return
        rare = target._own_rare()
        rare.closing = tuple(c for c in rare.closing or () if c is not self) or None
        unwatch(target, self, waiter)
        self._fiber_done(target)

    def _abandon(self, fiber: FiberCore) -> None:
        self.waiter = None
        for target in self.targets:
            unwatch(target, self, fiber)

    def _waits_for(self) -> Iterable[Any]:
        return [t for t in self.targets if t._state != ENDED]

    def _label(self) -> str:
        ids = ", ".join(f"#{t.id}" for t in self.targets if t._state != ENDED)
        return f"the end of {ids}"


class EndOfParent(Frame):
    """The fiber's outcome, withheld until its children are done (WI8)."""

    __slots__ = ("asked", "ok", "result")

    def __init__(self, fiber: FiberCore, ok: bool, result: Any) -> None:
        self.ok: bool = ok
        self.result: Any = result
        self.asked: Cause[Any] | None = fiber._icause

    def _val(self, fiber: FiberCore, value: Any) -> Any:
        if fiber._icause is not self.asked and not fiber._base_mask:
            # Interrupted while it waited: a success becomes I, a failure keeps its cause.
            own = fiber._own_cause()
            self.result = own if self.ok else landed(self.result, own)
            self.ok = False
        return fiber._end(self.ok, self.result)

    def _err(self, fiber: FiberCore, cause: Cause[Any]) -> Any:
        # The wait is masked: nothing can land in it.
        raise AssertionError(f"waiting can't fail: {cause}")  # pragma: no cover  # said, not run


class Unheard:
    """Failed fibers that nobody has looked at yet, held weakly: their owner reports those that are
    still there when it ends (PD8).
    """

    __slots__ = ("_fibers",)

    def __init__(self) -> None:
        self._fibers: weakref.WeakSet[FiberCore] = weakref.WeakSet()

    def add(self, fiber: FiberCore) -> None:
        """Keep an eye on ``fiber``, which has failed."""
        self._fibers.add(fiber)

    def report(self) -> None:
        """Hand those that are still there to the hook, oldest first."""
        for fiber in sorted(self._fibers, key=lambda f: f.id):
            fiber._report()
