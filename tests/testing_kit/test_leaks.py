"""Leak checks: each kind of leftover is named."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import fibers as fb
from fibers import Effect
from fibers.testing import LeakError, assert_no_leaks


async def test_a_live_fiber_is_named_with_its_fork_site() -> None:
    left: list[fb.Fiber[Any, Any]] = []
    with pytest.raises(LeakError, match=r"test_leaks\.py") as caught, assert_no_leaks():
        left.append(fb.run_fork(Effect.never()))

    assert f"#{left[0].id}" in str(caught.value)
    await left[0].interrupt()


async def test_a_fiber_that_has_not_started_counts() -> None:
    async with fb.Scope() as scope:
        with pytest.raises(LeakError), assert_no_leaks("fibers"):
            scope.fork(Effect.never())


async def test_a_scope_that_is_left_open_is_named() -> None:
    scope = fb.Scope(name="forgotten")
    with pytest.raises(LeakError, match="forgotten"), assert_no_leaks("scopes"):
        await scope.add_finalizer(lambda _: Effect.succeed(None))
    await scope.close()


async def test_a_plain_task_is_named() -> None:
    left: list[asyncio.Task[None]] = []
    with pytest.raises(LeakError, match="forgotten"), assert_no_leaks():
        left.append(asyncio.create_task(asyncio.sleep(60), name="forgotten"))
    left[0].cancel()


def test_a_thread_is_named() -> None:
    go = threading.Event()
    thread = threading.Thread(target=go.wait, name="forgotten")
    with pytest.raises(LeakError, match="forgotten"), assert_no_leaks():
        thread.start()
    go.set()
    thread.join()


async def test_an_idle_thread_of_the_executor_is_none() -> None:
    with assert_no_leaks():
        await asyncio.to_thread(int)


class Thing:
    def __repr__(self) -> str:
        return "the thing"


def test_an_object_that_has_to_be_gone_is_named_with_who_keeps_it() -> None:
    kept: list[Thing] = []
    with pytest.raises(LeakError, match="the thing, by list"), assert_no_leaks() as check:
        kept.append(check.gone(Thing()))
    kept.clear()
    with assert_no_leaks() as check:
        check.gone(Thing())


async def test_an_ended_fiber_leaves_nothing() -> None:
    with assert_no_leaks() as check:
        check.gone(fb.run_fork(Effect.succeed(Thing())))
        async with fb.Scope() as scope:
            check.gone(scope.fork(fb.sleep(60)))
        await asyncio.sleep(0)  # the ready queue drops what was interrupted in it


async def test_what_was_there_before_is_not_counted() -> None:
    fiber = fb.run_fork(Effect.never())
    with assert_no_leaks():
        pass
    await fiber.interrupt()


async def test_an_exception_goes_on_unchecked() -> None:
    left: list[fb.Fiber[Any, Any]] = []

    def leave() -> None:
        with assert_no_leaks():
            left.append(fb.run_fork(Effect.never()))
            raise KeyError

    with pytest.raises(KeyError):
        leave()
    await left[0].interrupt()


def test_unknown_kinds_are_refused() -> None:
    with pytest.raises(ValueError, match="kinds are"), assert_no_leaks("fibres"):  # type: ignore[arg-type]  # the fault  # pyright: ignore[reportArgumentType]  # the fault
        pass
