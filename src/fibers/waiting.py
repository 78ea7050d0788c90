"""Who waits for whom: through joins, scopes, groups, plain tasks and gather (SO6).

A close must not wait for a fiber that waits for the close. What is followed: joins, groups and
supervision; the future a plain task is suspended on; what gather, wait, wait_for and a TaskGroup of
asyncio's wait for. Through anything else (an Event, a Queue) the bound of the close decides.
"""

from __future__ import annotations

from typing import Any

from fibers.loop import hooks
from fibers.loop.hosted_task import HostedTask
from fibers.loop.protocol import Wait
from fibers.loop.run_loop import ENDED, FiberCore


def leads_to(start: FiberCore, closer: FiberCore) -> bool:
    """Can ``start`` not end before ``closer`` has?"""
    task = closer._task
    if not closer._observers and task is None and not isinstance(closer._owner, FiberCore):
        return start is closer  # nobody waits for it
    seen: set[int] = set()
    todo: list[Any] = [start]
    while todo:
        at = todo.pop()
        if at is closer or (task is not None and at is task):
            return True
        if id(at) in seen:
            continue
        seen.add(id(at))
        todo.extend(_next_after(at))
    return False


def _next_after(at: Any) -> list[Any]:
    if isinstance(at, FiberCore):
        if at._state == ENDED:
            return []
        # Children too: supervision makes a fiber wait for them when it ends, if not yet.
        ahead: list[Any] = list(at._children or ())
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
    ahead = hooks.gathered_by(at)
    waited = hooks.waited_for_by(at)
    if waited is not None:
        ahead.append(waited)
        ahead.extend(hooks.awaited_in(at.get_coro()))
    return ahead
