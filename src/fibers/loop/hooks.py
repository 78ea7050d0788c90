"""The one module that touches asyncio's extension hooks and private names.

Everything above it knows "set the current task", "register", "which task is current", and nothing
of how each Python keeps them. What is used, and since when:

- ``asyncio.tasks._register_task`` / ``_unregister_task``: all_tasks(). Documented for third-party
  task implementations, 3.7+.
- 3.11 to 3.13: ``asyncio.tasks._current_tasks``, the dict that the C accelerator shares with
  Python. The documented pair _enter_task / _leave_task does the same with two more checks (215-267
  ns against about 100) and refuses to nest, which an interrupt that unwinds at once needs.
- 3.14: ``asyncio.tasks._swap_current_task``, which exists for eager tasks and nests.

Things that don't work: a global "current fiber". An eager task (3.12+) starts inside a fiber's
step and would see the fiber as its own.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from asyncio import base_tasks as _base_tasks
from asyncio import tasks as _tasks
from typing import TYPE_CHECKING, Any, cast

from fibers.loop.native import hand_over, speed

if TYPE_CHECKING:
    from collections.abc import Callable

running_loop: Callable[[], asyncio.AbstractEventLoop | None] = asyncio._get_running_loop
"""The documented low-level twin of get_running_loop: None instead of an exception."""

register_task: Callable[[Any], None] = cast("Any", _tasks)._register_task
unregister_task: Callable[[Any], None] = cast("Any", _tasks)._unregister_task


class _ThisThread(threading.local):
    """What runs in this thread."""

    task: Any = None
    """The current task where no loop runs (run_sync)."""
    loop: asyncio.AbstractEventLoop | None = None
    """The loop whose fibers run, else None. 3.11's running_loop() asks the kernel for the process
    id each time (150 ns), and every await of an effect has to know."""


this_thread: _ThisThread = _ThisThread()


def put_offline(_loop: Any, task: Any) -> None:
    """``put_current`` where no loop runs."""
    this_thread.task = task


if sys.version_info >= (3, 14):
    _current_of: Callable[[Any], Any] = cast("Any", asyncio.current_task)
    put_current: Callable[[Any, Any], object] = cast("Any", _tasks)._swap_current_task
    """Make a task current in a loop, at the least cost."""

    def task_in(loop: Any) -> Any:
        """The current task of a loop; None for no loop."""
        return None if loop is None else _current_of(loop)

    def swap_current(loop: asyncio.AbstractEventLoop | None, task: Any) -> Any:
        """Make ``task`` current in ``loop`` (None: in this thread); gives the one before."""
        if loop is None:
            before, this_thread.task = this_thread.task, task
            return before
        return put_current(loop, task)

else:
    # 3.12 and 3.13 have the function of 3.14 as well: it reads and writes this very dict.
    _current: dict[Any, Any] = cast("Any", _tasks)._current_tasks
    task_in: Callable[[Any], Any] = _current.get
    """The current task of a loop; None for no loop."""
    put_current: Callable[[Any, Any], object] = _current.__setitem__
    """Make a task current in a loop, at the least cost."""

    def swap_current(loop: asyncio.AbstractEventLoop | None, task: Any) -> Any:
        """Make ``task`` current in ``loop`` (None: in this thread); gives the one before."""
        if loop is None:
            before, this_thread.task = this_thread.task, task
            return before
        before = _current.get(loop)
        if task is None:
            _current.pop(loop, None)
        else:
            _current[loop] = task
        return before


def offline_task() -> Any:
    """``this_thread.task``, unless what runs below started a loop of its own: what that loop runs
    is in no fiber.
    """
    task = this_thread.task
    return None if task is None or running_loop() is not None else task


def task_of_step() -> Any:
    """The current task where a fiber's step runs below, else None: enough to find that fiber."""
    loop = this_thread.loop
    return offline_task() if loop is None else task_in(loop)


def current_task() -> Any:
    """The current task, fiber's inner task or asyncio's, or None; never raises."""
    task = task_in(this_thread.loop)
    if task is not None:
        return task
    loop = running_loop()
    return this_thread.task if loop is None else task_in(loop)


_3_12 = sys.version_info >= (3, 12)
if speed is not None:
    hand_over(
        current_tasks=_current,
        this_thread=this_thread,
        task_set=getattr(_tasks, "_scheduled_tasks" if _3_12 else "_all_tasks"),
        running_loop=running_loop,
        Future=asyncio.Future,
        Task=asyncio.Task,
    )
    task_of_step = speed.task_of_step


def context_of(task: Any) -> Any:
    """The Context that a task runs in where it says so (3.12+), else None."""
    get = getattr(task, "get_context", None)
    return None if get is None else get()


def waited_for_by(task: Any) -> Any:
    """The future that a plain task is suspended on, or None (read only; SO6 follows it)."""
    return getattr(task, "_fut_waiter", None)


def gathered_by(future: Any) -> list[Any]:
    """What a ``gather`` future waits for; empty for any other future."""
    return list(getattr(future, "_children", None) or ())


_WAITING_MODULES = ("asyncio.taskgroups", "asyncio.tasks")


def awaited_in(coro: Any) -> list[Any]:
    """The tasks that asyncio's own code waits for in the await chain of ``coro``.

    A TaskGroup, wait() and 3.11's wait_for() put a bare future between the task that waits and the
    tasks that it waits for; only their frames know those.
    """
    found: list[Any] = []
    at = coro
    while at is not None:
        frame = getattr(at, "cr_frame", None)
        if frame is not None and frame.f_globals.get("__name__") in _WAITING_MODULES:
            names = frame.f_locals
            found.extend(getattr(names.get("self"), "_tasks", None) or ())
            found.extend(names.get("fs") or ())
            if asyncio.isfuture(names.get("fut")):
                found.append(names["fut"])
        at = getattr(at, "cr_await", None)
    return found


# What a Task of asyncio's says about itself, for tasks that are no Task: all of it takes anything
# with a task's attributes. Private, and unchanged from 3.11 to 3.14.
loop_of: Callable[[Any], Any] = cast("Any", asyncio.futures)._get_loop
next_task_name_number: Callable[[], int] = cast("Any", _tasks)._task_name_counter
task_stack: Callable[[Any, int | None], list[Any]] = cast("Any", _base_tasks)._task_get_stack
print_task_stack: Callable[[Any, int | None, Any], None] = cast(
    "Any", _base_tasks
)._task_print_stack
task_description: Callable[[Any], list[str]] = cast("Any", _base_tasks)._task_repr_info
