"""Who waits for whom: through joins, scopes, groups, plain tasks and gather (SO6).

A close must not wait for a fiber that waits for the close. Only what asyncio itself tells is
followed: the future a task is suspended on, and what a gather gathers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fibers.loop import hooks
from fibers.loop.protocol import Wait
from fibers.loop.run_loop import ENDED, FiberCore

if TYPE_CHECKING:
    from collections.abc import Iterable


def waiters_for(closer: FiberCore, candidates: Iterable[FiberCore]) -> set[FiberCore]:
    """Those of ``candidates`` that can't end before ``closer`` has, itself included."""
    found: set[FiberCore] = {closer}
    if not closer._observers and closer._task is None:
        return found
    for candidate in candidates:
        if candidate not in found and _leads_to(candidate, closer):
            found.add(candidate)
    return found


def _leads_to(start: FiberCore, closer: FiberCore) -> bool:
    seen: set[int] = set()
    todo: list[Any] = [start]
    while todo:
        at = todo.pop()
        if at is closer or (closer._task is not None and at is closer._task):
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
        wait = at._wait
        if wait is None:
            return []
        return list(wait._waits_for()) if isinstance(wait, Wait) else [wait]
    waited = hooks.waited_for_by(at)
    return [*hooks.gathered_by(at), *([] if waited is None else [waited])]
