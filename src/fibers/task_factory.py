"""A task factory: what is created with create_task becomes a fiber of a scope (PD8, PD11).

For services that know nothing of fibers. How such a fiber runs stands in ``hosted_fiber``.
"""

from __future__ import annotations

import asyncio
import contextvars
import sys
import weakref
from typing import TYPE_CHECKING, Any

from fibers.cause import Interrupt
from fibers.fiber import Fiber, current_fiber
from fibers.hosted_fiber import HostedFiber
from fibers.loop import hooks
from fibers.loop.hosted_task import HostedTask
from fibers.loop.states import ENDED, NESTING_LIMIT_CALLS
from fibers.ops.fork import SCOPE_CLOSED, stillborn
from fibers.root import DEFAULT_ENV, made_for
from fibers.scope import Scope

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from fibers.ops.fork import Site


def _site_of_creation() -> Site:
    """Where the service asked for a task: the innermost frame that is not asyncio's."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("asyncio."):
        frame = frame.f_back
    return (frame.f_code, frame.f_lasti)


def _strip_source(task: HostedTask) -> None:
    """In debug mode: "created at" ends with who called create_task, as for a Task."""
    stack = task._source_traceback or []
    while stack and stack[-1].filename in _HIDDEN_FILES:
        del stack[-1]


_HIDDEN_FILES = frozenset(
    {
        __file__,
        HostedFiber.__init__.__code__.co_filename,
        HostedTask.__init__.__code__.co_filename,
        asyncio.base_events.__file__,
    }
)


async def _a_generator() -> AsyncGenerator[None]:
    yield  # pragma: no cover  # closed before its first step: only the type of that is wanted


def _type_of_aclose() -> type:
    closing = _a_generator().aclose()
    closing.close()  # nobody awaits it
    return type(closing)


_ASYNC_GENERATOR_CLOSE = _type_of_aclose()
_ENDS_OF_A_LOOP = frozenset({"shutdown_asyncgens", "shutdown_default_executor"})


class _Housekeeping:
    """What asyncio itself creates tasks for, and after all that lived in a scope too: the end of
    the loop, the cleanup of dropped async generators. Nobody's fibers; a closed scope doesn't stop
    them.
    """

    def __init__(self) -> None:
        self._tasks: weakref.WeakSet[Any] = weakref.WeakSet()

    def takes(self, loop: asyncio.AbstractEventLoop, coro: Any) -> bool:
        """Whether a task for ``coro`` is one of these, or is created by one."""
        if type(coro) is _ASYNC_GENERATOR_CLOSE:
            return True
        if loop.is_running():
            return bool(self._tasks) and hooks.current_task() in self._tasks
        return getattr(coro, "__name__", None) in _ENDS_OF_A_LOOP

    def task(self, loop: Any, coro: Any, **kwargs: Any) -> asyncio.Task[Any]:
        """A task of asyncio's."""
        task = asyncio.Task(coro, loop=loop, **kwargs)
        self._tasks.add(task)
        return task


def task_factory(*, scope: Scope) -> Callable[..., Any]:
    """Make every ``create_task`` of a loop a fiber of ``scope``.

        async with Scope("parallel", name="service") as scope:
            loop.set_task_factory(task_factory(scope=scope))
            await legacy_main()

    The close of ``scope`` interrupts and awaits what was created; ``dump()`` shows it; a failure
    that nobody retrieves reaches the unhandled-failure hook (PD8). What ``create_task`` gives is
    the fiber's inner task: cancel, names, contexts, callbacks and the order of steps are asyncio's
    (PD11). In a closed scope nothing runs: the task is cancelled, with "scope closed" as its
    message, and the coroutine closed (FO1); with ``eager_start`` it runs to its first suspension
    (FO2). Only what the close waits for may still create tasks, for its cleanup.

    Give a parallel scope, closed last: a sequential one ends the tasks one after another. The
    factory also takes ``name``, ``context`` and ``eager_start`` (for create_eager_task_factory).
    ValueError for a ``scope`` that is none.
    """
    given: Any = scope  # annotations bind nobody who runs no type checker
    if not isinstance(given, Scope):
        raise ValueError(f"task_factory(scope=...) takes a Scope, not {given!r}")

    housekeeping = _Housekeeping()

    def create(
        loop: asyncio.AbstractEventLoop,
        coro: Any,
        *,
        name: object = None,
        context: contextvars.Context | None = None,
        eager_start: bool | None = None,
    ) -> Any:
        if not asyncio.iscoroutine(coro):
            raise TypeError(f"a coroutine was expected, got {coro!r}")
        if scope._is_closed and housekeeping.takes(loop, coro):
            return housekeeping.task(loop, coro, name=name, context=context)
        creator = current_fiber()
        fiber = made_for(HostedFiber)(
            loop,
            coro,
            f"Task-{hooks.next_task_name_number()}" if name is None else str(name),
            contextvars.copy_context() if context is None else context,
            DEFAULT_ENV if creator is None else creator._env,
            _site_of_creation(),
        )
        try:
            return _started(fiber, scope, creator, eager=bool(eager_start))
        finally:
            del fiber, creator  # see FiberCore._drive

    return create


def _started(
    fiber: HostedFiber, scope: Scope, creator: Fiber[Any, Any] | None, *, eager: bool
) -> HostedTask:
    task: HostedTask = fiber._task
    if task._source_traceback:
        _strip_source(task)
    why = Interrupt(None if creator is None else creator.id, SCOPE_CLOSED)
    # A cleanup that the close waits for may need tasks: they belong to who cleans up.
    parent = creator if scope._is_closed and _cleans_up(creator, scope) else None
    fiber._owner = scope if parent is None else parent
    loop = task.get_loop()
    if eager and hooks.running_loop() is loop and fiber._queue.depth < NESTING_LIMIT_CALLS:
        fiber._begin_now()
        if fiber._state == ENDED:
            pass
        elif parent is not None:
            parent._adopt(fiber)
        elif scope._is_closed:
            fiber._interrupt_here(why)
        else:
            scope._hold(fiber)
    elif parent is not None:
        fiber._begin()
        parent._adopt(fiber)
    elif scope._is_closed:
        task._coro.close()
        stillborn(fiber, why)
    else:
        fiber._begin()
        scope._hold(fiber)
    try:
        return task
    finally:
        del fiber, creator, parent, task  # see FiberCore._drive


def _cleans_up(creator: Fiber[Any, Any] | None, scope: Scope) -> bool:
    """Whether ``creator`` is a hosted fiber that the close of ``scope`` has interrupted and waits
    for, or was created by one.
    """
    if not isinstance(creator, HostedFiber):
        return False
    if isinstance(creator._owner, HostedFiber):
        return True
    return creator._owner is scope and creator._icause is not None


__all__ = ["task_factory"]
