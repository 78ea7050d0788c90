"""Installs the task factory on every event loop of this process. For the processes that run other
people's tests; the import alone changes nothing.
"""

from __future__ import annotations

import asyncio
import functools
import signal
import types
from asyncio import base_events
from typing import Any

from fibers import Scope
from fibers.loop.hosted_task import HostedTask
from fibers.task_factory import task_factory


class _Everything(Scope):
    """One scope for all loops of the process. Nothing closes it: each test ends its own tasks."""

    __slots__ = ("hosted",)

    def __init__(self) -> None:
        super().__init__("parallel", name="conformance")
        self.hosted = 0

    def _hold(self, fiber: Any) -> None:
        self.hosted += 1
        super()._hold(fiber)


_scope = _Everything()
FACTORY = task_factory(scope=_scope)
"""The factory under test."""


def count() -> int:
    """How many tasks were hosted; those that an eager start ended are not among them."""
    return _scope.hosted


class _TaskClass(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, HostedTask)


class Task(metaclass=_TaskClass):
    """Stands where a test wants a task class: called like asyncio.Task, it asks the factory."""

    def __class_getitem__(cls, item: Any) -> types.GenericAlias:
        return types.GenericAlias(cls, item)

    def __new__(cls, coro: Any, *, loop: Any = None, **kwargs: Any) -> Any:
        task = FACTORY(asyncio.get_event_loop() if loop is None else loop, coro, **kwargs)
        if task._source_traceback:
            del task._source_traceback[-1]  # this frame
        return task


def hear_sigint() -> None:
    """As in the foreground. A job in the background is started to ignore it, and a test that sends
    it to itself would wait for ever.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)


def install() -> None:
    """From now on every loop that is made has the factory, whoever makes it."""
    original = base_events.BaseEventLoop.__init__

    def hosting_init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self._task_factory = FACTORY

    base_events.BaseEventLoop.__init__ = hosting_init  # type: ignore[method-assign]  # what this module is for
    create_eager: Any = getattr(asyncio, "create_eager_task_factory", None)
    if create_eager is not None:  # 3.12
        eager = create_eager(Task)
        modules: list[Any] = [asyncio, asyncio.tasks]
        for module in modules:
            module.eager_task_factory = eager
    try:
        _install_in_uvloop()
    except ImportError:
        pass  # not there, or compiled for another Python


def _install_in_uvloop() -> None:
    import uvloop

    original = uvloop.new_event_loop

    @functools.wraps(original)  # anyio's tests ask a loop factory for its module
    def hosting_loop() -> Any:
        loop = original()
        loop.set_task_factory(FACTORY)
        return loop

    uvloop.new_event_loop = hosting_loop
