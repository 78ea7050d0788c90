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


class _Step:
    """The step that runs in one thread."""

    __slots__ = ("loop",)

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        """The loop whose fibers run, else None. 3.11's running_loop() asks the kernel for the
        process id each time, and every await of an effect has to know."""


class _ThisThread(threading.local):
    """What runs in this thread."""

    task: Any = None
    """The current task where no loop runs (run_sync)."""

    def __init__(self) -> None:
        # An object of its own: what is thread-local costs a search at each look, and a step reads
        # and writes this several times.
        self.step: _Step = _Step()


this_thread: _ThisThread = _ThisThread()


if sys.version_info >= (3, 14):
    _current_of: Callable[[Any], Any] = cast("Any", asyncio.current_task)
    _swap: Callable[[Any, Any], Any] = cast("Any", _tasks)._swap_current_task

    def task_in(loop: Any) -> Any:
        """The current task of a loop; None for no loop."""
        return None if loop is None else _current_of(loop)

    class _CurrentTasks:
        """The current task of each loop, as earlier Pythons keep them in a dict."""

        def __setitem__(self, loop: Any, task: Any) -> None:
            _swap(loop, task)

        def pop(self, loop: Any, _default: None) -> None:
            _swap(loop, None)

    current_tasks: Any = _CurrentTasks()
    """To make a task current in a loop, at the least cost; a loop without one has no entry."""

else:
    # 3.12 and 3.13 have the function of 3.14 as well: it reads and writes this very dict.
    current_tasks: dict[Any, Any] = cast("Any", _tasks)._current_tasks
    """To make a task current in a loop, at the least cost; a loop without one has no entry."""
    task_in: Callable[[Any], Any] = current_tasks.get
    """The current task of a loop; None for no loop."""


def make_current(loop: asyncio.AbstractEventLoop | None, task: Any) -> None:
    """Make ``task`` current in ``loop`` (None: in this thread)."""
    if loop is None:
        this_thread.task = task
    else:
        current_tasks[loop] = task


def offline_task() -> Any:
    """``this_thread.task``, unless what runs below started a loop of its own: what that loop runs
    is in no fiber.
    """
    task = this_thread.task
    return None if task is None or running_loop() is not None else task


def task_of_step() -> Any:
    """The current task where a fiber's step runs below, else None: enough to find that fiber."""
    loop = this_thread.step.loop
    return offline_task() if loop is None else task_in(loop)


def current_task() -> Any:
    """The current task, fiber's inner task or asyncio's, or None; never raises."""
    task = task_in(this_thread.step.loop)
    if task is not None:
        return task
    loop = running_loop()
    return this_thread.task if loop is None else task_in(loop)


_3_12 = sys.version_info >= (3, 12)
if speed is not None:
    hand_over(
        current_tasks=current_tasks,
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


# anyio's by name: nothing of it is imported. Where it keeps its tasks otherwise, none are found.
_WAITING_MODULES = ("asyncio.taskgroups", "asyncio.tasks", "anyio._backends._asyncio")


def awaited_in(coro: Any) -> list[Any]:
    """The tasks that code of asyncio's or anyio's waits for in the await chain of ``coro``.

    A TaskGroup of either, wait() and 3.11's wait_for() put a bare future between the task that
    waits and the tasks that it waits for; only their frames know those.
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
