"""Helpers of the task factory's probes: loops that host, and the same scenario on both kinds."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import fibers as fb

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator

Scenario: TypeAlias = "Callable[[list[object]], Coroutine[Any, Any, object]]"
"""Writes what it sees to a log."""


@contextmanager
def hosting(scope: fb.Scope) -> Generator[None]:
    """The running loop creates its tasks in ``scope``."""
    loop = asyncio.get_running_loop()
    before = loop.get_task_factory()
    loop.set_task_factory(fb.task_factory(scope=scope))
    try:
        yield
    finally:
        loop.set_task_factory(before)


def hosted_run(scenario: Scenario, *, debug: bool = False) -> list[object]:
    """Run a scenario on a new loop that hosts every task, the main one too; what it wrote."""
    log = list[object]()

    def new_loop() -> asyncio.AbstractEventLoop:
        loop = asyncio.new_event_loop()
        loop.set_task_factory(fb.task_factory(scope=fb.Scope("parallel", name="service")))
        return loop

    with asyncio.Runner(loop_factory=new_loop, debug=debug) as runner:
        log.append(("result", runner.run(scenario(log))))
    return log


def plain_run(scenario: Scenario) -> list[object]:
    """The same with asyncio's own tasks."""
    log = list[object]()
    with asyncio.Runner() as runner:
        log.append(("result", runner.run(scenario(log))))
    return log


def task_of(coro: Coroutine[Any, Any, Any], **kwargs: Any) -> Any:
    """``loop.create_task`` with any arguments, as a value of any type."""
    create: Any = asyncio.get_running_loop().create_task
    return create(coro, **kwargs)


def fiber_of(task: object) -> fb.Fiber[Any, Any]:
    """The live fiber that a task stands for."""
    held: Any = task
    fiber: fb.Fiber[Any, Any] = held._fiber
    return fiber


async def turns(count: int) -> None:
    """Let the loop have turns."""
    for _ in range(count):
        await asyncio.sleep(0)
