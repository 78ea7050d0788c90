"""Small helpers shared by the probes of decisions, promises, races and the app scope."""

from __future__ import annotations

import asyncio
import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Never, TypeVar

from returns.result import Failure

import fibers as fb
from fibers import Effect

if TYPE_CHECKING:
    from collections.abc import Generator

T = TypeVar("T")
E = TypeVar("E", bound=Exception)


class Boom(Exception):
    """The error of most probes; equal only to itself."""


# ---- effects


def note(log: list[str], text: str) -> Effect[None, Never]:
    """Write `text` to the log."""
    return Effect.sync(lambda: log.append(text))


def note_start_and_end(log: list[str], name: str, seconds: float) -> Effect[None, Never]:
    """A slow finalizer: `<name>-start`, a sleep of `seconds`, `<name>-end`."""
    pause = note(log, f"{name}-start").flat_map(lambda _: fb.sleep(seconds))
    return pause.flat_map(lambda _: note(log, f"{name}-end"))


def endless() -> Effect[None, Never]:
    """Effect.never() with a type that lets code stand behind it."""
    return Effect.never()


def failing(error: E) -> Effect[None, E]:
    """Effect.fail() with a type that lets code stand behind it."""
    return Effect.fail(error)


def parked(log: list[str], text: str) -> Effect[None, Never]:
    """Wait for ever; write `text` when interrupted."""
    return endless().on_interrupt(lambda _: note(log, text))


def wait_for(gate: asyncio.Future[T]) -> Effect[T, Never]:
    """Wait on a plain future, without owning it."""
    return Effect.promise(lambda: gate)


# ---- what a test reads


def new_gate() -> asyncio.Future[int]:
    """A plain future for a fiber to wait on and for the test to settle.

    A test that fails before it does so leaves no fiber behind a mask: the loop's end would wait
    for it. The gate opens when the task that made it has ended.
    """
    gate: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def open_gate(_: object) -> None:
        if not gate.done():
            gate.set_result(0)

    if fb.current_fiber() is None:
        inner_task().add_done_callback(open_gate)
    return gate


def inner_task() -> asyncio.Task[Any]:
    """asyncio's current task, which inside a fiber is the fiber's inner task."""
    task = asyncio.current_task()
    assert task is not None
    return task


def is_face_of(task: object, fiber: object) -> bool:
    """Whether the two are one by == and hash, as inner task and fiber are."""
    return task == fiber and hash(task) == hash(fiber)


def running_fiber() -> fb.Fiber[Any, Any]:
    """The fiber that executes this line."""
    fiber = fb.current_fiber()
    assert fiber is not None
    return fiber


def cause_of(exit: fb.Exit[Any, Any] | None) -> fb.Cause[Any]:
    """The cause of a failed exit; fails the test on a success and on a fiber still alive."""
    assert isinstance(exit, Failure)
    cause: fb.Cause[Any] = exit.failure()
    return cause


def failed(*reasons: fb.Fail[Any] | fb.Die | fb.Interrupt) -> fb.Exit[Any, Any]:
    """The exit that failed with exactly these reasons, in this order."""
    return Failure(fb.Cause(reasons))


def interrupted(by: int | None, reason: str | None = None) -> fb.Exit[Any, Any]:
    """The exit that is one interrupt and nothing else."""
    return failed(fb.Interrupt(by=by, reason=reason))


def interruptors(exit: fb.Exit[Any, Any] | None) -> list[int | None]:
    """Who interrupted, in order, of an exit that is interrupts and nothing else."""
    reasons = cause_of(exit).reasons
    interrupts = [reason for reason in reasons if isinstance(reason, fb.Interrupt)]
    assert len(interrupts) == len(reasons) > 0
    return [interrupt.by for interrupt in interrupts]


# ---- the loop and the collector


async def turns(count: int = 20) -> None:
    """Give the loop `count` turns; no time passes."""
    for _ in range(count):
        await asyncio.sleep(0)


def expire(limit: asyncio.Timeout) -> None:
    """Let an asyncio.timeout expire in this tick of the loop."""
    limit.reschedule(asyncio.get_running_loop().time())


@contextmanager
def collector_off() -> Generator[None, None, None]:
    """Only reference counts free anything inside."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def unhandled_failures() -> Generator[list[tuple[int, fb.Cause[Any]]], None, None]:
    """Collect (fiber id, cause) of each failure that reaches the hook."""
    seen: list[tuple[int, fb.Cause[Any]]] = []
    fb.set_unhandled_failure_hook(lambda fiber, cause: seen.append((fiber.id, cause)))
    try:
        yield seen
    finally:
        fb.set_unhandled_failure_hook(None)
