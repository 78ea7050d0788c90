"""Hearing of a fiber's end, also from another loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fibers.loop.states import ENDED

if TYPE_CHECKING:
    from fibers.loop.run_loop import FiberCore


class Observer:
    """Called when a fiber ends. Fibers that wait and user callbacks are both observers."""

    __slots__ = ()

    def _fiber_done(self, fiber: FiberCore) -> None:
        raise NotImplementedError


class _Remote(Observer):
    """An observer in another loop than the fiber that it observes: told there (AT16)."""

    __slots__ = ("loop", "observer")

    def __init__(self, observer: Observer, loop: Any) -> None:
        self.observer = observer
        self.loop = loop

    def _fiber_done(self, fiber: FiberCore) -> None:
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.observer._fiber_done, fiber)


def watch(target: FiberCore, observer: Observer, waiter: FiberCore) -> None:
    """Tell ``observer``, in ``waiter``'s loop, when ``target`` has ended."""
    if target._queue.loop is waiter._queue.loop:
        target._watch(observer)
        return
    remote = _Remote(observer, waiter._queue.loop)

    def begin() -> None:
        if target._state == ENDED:
            remote._fiber_done(target)
        else:
            target._watch(remote)

    target._elsewhere(begin)


def unwatch(target: FiberCore, observer: Observer, waiter: FiberCore) -> None:
    """Undo ``watch``."""
    if target._queue.loop is waiter._queue.loop:
        target._unwatch(observer)
        return

    def end() -> None:
        for at in target._observers or ():
            if isinstance(at, _Remote) and at.observer is observer:
                target._unwatch(at)
                return

    target._elsewhere(end)
