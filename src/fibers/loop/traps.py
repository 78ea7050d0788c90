"""Where asyncio's own code loses a cancel or a wake-up, told by its frames (AT2, AT7).

A TaskGroup, a Condition and wait_for say too little to the task that they run in. What the runtime
has to know to mend it stands in their frames and private attributes, and is read here and nowhere
else. ``tests/canary`` pins each of them.

What was rejected: own versions of the three. People import asyncio's, and so do libraries.
"""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

_TASK_FAILED = cast("Any", asyncio.TaskGroup)._on_task_done.__code__
_GROUP_EXIT = asyncio.TaskGroup.__aexit__.__code__
_WAIT_FOR = asyncio.wait_for.__code__
_CONDITION_WAIT = asyncio.Condition.wait.__code__
_CONDITION_PASSES_ON = hasattr(asyncio.Condition, "_notify")


def _awaits(coro: Any) -> Iterator[Any]:
    """``coro`` and what it awaits, down to the innermost coroutine."""
    at = coro
    while at is not None:
        yield at
        at = getattr(at, "cr_await", None)


def _frame_of(coro: Any, code: Any) -> FrameType | None:
    """The frame in the await chain of ``coro`` that runs ``code``."""
    for at in _awaits(coro):
        frame: FrameType | None = getattr(at, "cr_frame", None)
        if frame is not None and frame.f_code is code:
            return frame
    return None


# ---------------------------------------------------------------------------- TaskGroup


def failing_group(caller: FrameType) -> Any:
    """The TaskGroup that calls from ``caller`` because one of its tasks failed, else None.

    When it raises it tells its parent nothing (3.11, 3.12) or only of its own cancels (3.13): this
    call of ``done()`` is the one sign of it.
    """
    return caller.f_locals["self"] if caller.f_code is _TASK_FAILED else None


def is_group_exit(caller: FrameType) -> bool:
    """Whether a TaskGroup's ``__aexit__`` calls from ``caller``."""
    return caller.f_code is _GROUP_EXIT


def asked_its_parent(group: Any) -> bool:
    """Whether a failing TaskGroup has cancelled its parent."""
    return cast("bool", group._parent_cancel_requested)


def has_raised(group: Any) -> bool:
    """Whether a failing TaskGroup is over, because it raised the errors of its tasks."""
    return group._errors is None


def cancel_held_by(group: Any, coro: Any) -> BaseException | None:
    """The CancelledError with which ``group`` is being left in the await chain of ``coro``."""
    for at in _awaits(coro):
        frame = _frame_of(at, _GROUP_EXIT)
        if frame is None:
            return None
        if frame.f_locals["self"] is group:
            return cast("BaseException | None", frame.f_locals.get("propagate_cancellation_error"))
    return None


def handles_an_exception(coro: Any) -> bool:
    """Whether ``coro``, or what it awaits, is suspended in an ``except`` or a ``finally`` with an
    exception (or has one in a local: not told apart).
    """
    return any(isinstance(held, BaseException) for held in gc.get_referents(*_awaits(coro)))


# ---------------------------------------------------------------------------- wait_for, Condition


def is_wait_for(caller: FrameType) -> bool:
    """Whether ``asyncio.wait_for`` calls from ``caller``."""
    return caller.f_code is _WAIT_FOR


def pass_on_wake_up(coro: Any) -> None:
    """``coro`` is cancelled instead of woken: if it was woken from an asyncio.Condition, wake the
    next waiter, which 3.11 and 3.12 don't.
    """
    frame = None if _CONDITION_PASSES_ON else _frame_of(coro, _CONDITION_WAIT)
    woken = None if frame is None else frame.f_locals.get("fut")
    if frame is None or woken is None or not woken.done() or woken.cancelled():
        return
    for waiter in frame.f_locals["self"]._waiters:
        if not waiter.done():
            waiter.set_result(False)
            return
