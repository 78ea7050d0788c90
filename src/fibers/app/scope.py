"""AppScope, the root of what is alive, and its bounded close (VA3, VA4, SO7)."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Final

from returns.maybe import Nothing
from returns.result import Failure

from fibers.app import collector
from fibers.app.budget import SCOPE_CLOSE_TIMEOUT_SECONDS
from fibers.dump import describe, known_scopes
from fibers.duration import Duration, checked_seconds, text_of
from fibers.loop.run_loop import FiberCore
from fibers.loop.states import ENDED
from fibers.runtime import run_fork
from fibers.scope import Scope

if TYPE_CHECKING:
    from fibers.app.occupant import Occupant
    from fibers.fiber import Fiber

log: logging.Logger = logging.getLogger("fibers.app")

SYSTEM: Final = "system"
NAMED_STILL_ALIVE: Final = 50
"""Fibers that the warning of a close names; the rest is counted."""


class AppScope(Scope):
    """The one scope of an application: parallel, and its interrupts say "system".

    An occupant forks its work here. A teardown closes it before anything else, so that what runs
    in it can still store and tell.
    """

    __slots__ = ("_occupants",)

    def __init__(self, *, name: str = "AppScope") -> None:
        super().__init__("parallel", name=name)
        self._reason = SYSTEM
        self._occupants: dict[str, Occupant] = {}
        # A dump shows it also while nothing runs in it.
        known_scopes.add(self)


async def close_bounded(scope: Scope, timeout: Duration = SCOPE_CLOSE_TIMEOUT_SECONDS) -> bool:
    """Close ``scope``, and wait at most ``timeout`` (timedelta or seconds) for it.

    True: closed in time, or closed before. False: the wait was given up, with one warning that
    names each fiber still alive; the finalizers go on. Never raises for what they do.

    Meanwhile the garbage collector makes no pass by itself: a close makes much that is new, and
    each pass would look at all that is alive to find hardly anything.
    """
    seconds = checked_seconds(timeout, "a close's bound")
    name = scope.name or type(scope).__name__
    if scope.state == "closed":
        log.info("[shutdown] %s closed {ms: 0, before}", name)
        return True
    started = time.perf_counter()
    with collector.paused():
        # Detached: the bound abandons the wait, never the finalizer.
        closing = run_fork(scope.close())
        outcome = await closing.exit().timeout_option(seconds)
    ms = (time.perf_counter() - started) * 1000
    if outcome == Nothing:
        log.warning(
            "[shutdown] %s teardown timed out after %s; finalizers continue. Still alive:\n%s",
            name,
            text_of(seconds),
            "\n".join(f"  {line}" for line in still_alive(scope, closing)),
        )
        closing.ignore_failure()
    else:
        exit_ = outcome.unwrap()
        if isinstance(exit_, Failure):
            log.warning("[shutdown] %s: a finalizer failed\n%s", name, exit_.failure().pretty())
    log.info("[shutdown] %s closed {ms: %.0f}", name, ms)
    return outcome != Nothing


def still_alive(scope: Scope, closing: Fiber[Any, Any]) -> list[str]:
    """What holds up ``closing``, a close of ``scope``: a line each, with where it waits."""
    alive = [e for e in scope._entries if isinstance(e, FiberCore) and e._state != ENDED]
    lines = [f"{describe(fiber)}; holds up the close" for fiber in alive[:NAMED_STILL_ALIVE]]
    if len(alive) > len(lines):
        lines.append(f"... and {len(alive) - len(lines):,} more; dump() groups what is alike")
    return lines or [describe(closing)]
