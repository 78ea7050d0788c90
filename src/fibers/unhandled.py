"""What happens to a failure that nobody handles: one call of one hook (PD8)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from fibers.misplaced import check_function

if TYPE_CHECKING:
    from collections.abc import Callable

    from fibers.cause import Cause
    from fibers.fiber import Fiber

_log = logging.getLogger("fibers")


def log_unhandled(fiber: Fiber[Any, Any], cause: Cause[Any]) -> None:
    """The default hook: one ERROR record that names the failure, the fork site and the way out."""
    _log.error(
        "unhandled failure of fiber #%d, forked at %s: %s\n"
        "To handle it: join the fiber, read its exit, or catch inside; "
        "fiber.ignore_failure() if nobody should.\n%s",
        fiber.id,
        fiber.forked_at,
        cause,
        cause.pretty(),
    )


_hook: Callable[[Fiber[Any, Any], Cause[Any]], None] = log_unhandled


def set_unhandled_failure_hook(
    f: Callable[[Fiber[Any, Any], Cause[Any]], None] | None,
) -> None:
    """Call ``f(fiber, cause)`` for each failure that nobody handles; None: the default, which logs
    one ERROR record to the logger "fibers". Exactly once a fiber: when its last reference goes, or
    when its owner ends, whichever is first (PD8).
    """
    if f is not None:
        check_function(f, "set_unhandled_failure_hook")
    global _hook
    _hook = log_unhandled if f is None else f


def report(fiber: Fiber[Any, Any], cause: Cause[Any]) -> None:
    """Call the hook. It never raises: it runs where a fiber ends or is collected."""
    try:
        _hook(fiber, cause)
    except BaseException:  # noqa: BLE001  # as in Python's own finalizers: told, never raised
        _log.exception("the unhandled-failure hook raised; the failure was: %s", cause)
