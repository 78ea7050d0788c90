"""Who waits for whom: through joins, scopes, groups, plain tasks and gather (SO6).

A close must not wait for a fiber that waits for the close. What is followed: joins, groups and
supervision; the future a plain task is suspended on, and the fiber whose end it waits for; what
gather, wait, wait_for and a TaskGroup of asyncio's or anyio's wait for. Through anything else (an
Event, a Queue) the bound of the close decides.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, final

from fibers.loop import hooks
from fibers.loop.hosted_task import HostedTask
from fibers.loop.observing import Observer
from fibers.loop.protocol import Wait, WillJoin
from fibers.loop.run_loop import FiberCore
from fibers.loop.states import ENDED

if TYPE_CHECKING:
    from collections.abc import Callable


@final
class EndOfFiber(asyncio.Future[None], Observer):
    """What plain code waits on for the end of a fiber; it says which one."""

    def __init__(self, fiber: FiberCore) -> None:
        super().__init__(loop=fiber._queue.loop)
        self.fiber = fiber

    def _fiber_done(self, fiber: FiberCore) -> None:
        if not self.done():
            self.set_result(None)


def leads_to(start: FiberCore, closer: FiberCore) -> bool:
    """Can ``start`` not end before ``closer`` has?"""
    if _is_awaited_by_nobody(closer) and not isinstance(closer._owner, FiberCore):
        return start is closer
    return _reaches(start, _above(closer), _next_after)


def _above(fiber: FiberCore) -> list[Any]:
    """``fiber`` and who goes on only when it has ended, as far as that side knows: the plain task
    of a root, the parent that supervises, whose race or for_each it works for. A task, and a fiber
    that is about to wait, say so themselves only once they are suspended.
    """
    found: list[Any] = [fiber]
    seen = {id(fiber)}
    for at in found:
        if not isinstance(at, FiberCore):
            continue
        # A group watches before it starts, so it comes first; whoever joins is suspended at once.
        first = getattr(at._observers[0], "fiber", None) if at._observers else None
        for waiter in (at._task, at._owner, first):
            known = isinstance(waiter, FiberCore) or (waiter is not None and waiter is at._task)
            if known and id(waiter) not in seen:
                seen.add(id(waiter))
                found.append(waiter)
    return found


def closer_of(fiber: FiberCore) -> FiberCore:
    """In whose name ``fiber`` closes. Finalizers of a parallel close run in fibers of their own:
    whatever these close, the fiber that closes is still the one that called.
    """
    closer: FiberCore | None = fiber._rare.closer
    return fiber if closer is None else closer


def leads_to_close_by(fiber: FiberCore) -> Callable[[FiberCore, FiberCore], bool]:
    """``leads_to`` for a close that ``fiber`` runs, in its own name or another's."""
    closer = closer_of(fiber)
    if closer is fiber:
        return leads_to
    return lambda start, at: leads_to(start, at) or leads_to(start, closer)


def waits_for(start: FiberCore, asker: FiberCore) -> bool:
    """Does ``start`` wait for ``asker``? Then ``asker`` must not wait for ``start`` (PD9).

    Not the same: children don't count. A fiber that ends interrupts those that it has forked, so
    they may wait for it.
    """
    if _is_awaited_by_nobody(asker):
        return start is asker
    return _reaches(start, [asker, asker._task], _awaited_by)


def _is_awaited_by_nobody(fiber: FiberCore) -> bool:
    # In its first segment it may have been started by one that will wait for it.
    return not fiber._observers and fiber._registered and fiber._task is None


def _reaches(start: Any, ends: list[Any], next_after: Callable[[Any], list[Any]]) -> bool:
    wanted = {id(end) for end in ends if end is not None}
    seen: set[int] = set()
    todo: list[Any] = [start]
    while todo:
        at = todo.pop()
        if id(at) in wanted:
            return True
        if id(at) in seen:
            continue
        seen.add(id(at))
        todo.extend(next_after(at))
    return False


def _next_after(at: Any) -> list[Any]:
    if isinstance(at, FiberCore) and at._state != ENDED:
        # Children too: supervision makes a fiber wait for them when it ends, if not yet.
        return [*(at._children or ()), *_awaited_by(at)]
    return _awaited_by(at)


def _awaited_by(at: Any) -> list[Any]:
    if isinstance(at, FiberCore):
        if at._state == ENDED:
            return []
        ahead: list[Any] = []
        if isinstance(at._cont, WillJoin):
            # It has started a fiber, whose first segment runs now, and waits for it after that.
            ahead.append(at._cont.target)
        if isinstance(at._next, Wait):
            # A group that is starting: it will wait for the one whose first segment runs now.
            ahead.extend(at._next._waits_for())
        wait = at._wait
        if wait is not None:
            if isinstance(wait, Wait):
                ahead.extend(wait._waits_for())
            else:
                ahead.append(wait)
                ahead.extend(hooks.awaited_in(at.get_coro()))
        return ahead
    if isinstance(at, HostedTask):
        return [at._ref()]  # its fiber may wait for an effect
    if type(at) is EndOfFiber:
        return [at.fiber]
    ahead = hooks.gathered_by(at)
    waited = hooks.waited_for_by(at)
    if waited is not None:
        ahead.append(waited)
        ahead.extend(hooks.awaited_in(at.get_coro()))
    return ahead
