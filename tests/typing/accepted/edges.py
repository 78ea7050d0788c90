"""Where plain code runs effects, and where fibers meet signals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Never, assert_type

import fibers as fb
from fibers import (
    AbortController,
    AbortSignal,
    AsyncFiberError,
    Effect,
    Exit,
    Fiber,
    Interrupt,
    Runtime,
)
from fibers.testing import TestClock
from tests.typing.kit import NotFound, User


def runs(load: Effect[User, NotFound], signal: AbortSignal) -> None:
    assert_type(fb.run(load), User)
    assert_type(fb.run_exit(load), Exit[User, NotFound])
    assert_type(fb.run_sync(load), User)
    assert_type(fb.run_fork(load), Fiber[User, NotFound])
    assert_type(fb.run_fork(load, signal=signal), Fiber[User, NotFound])


def run_main_never_returns(load: Effect[User, NotFound]) -> Callable[[], Never]:
    return lambda: fb.run_main(load, budget=1.5)


def run_for_callback_code(load: Effect[User, NotFound]) -> None:
    def ended(exit_: Exit[User, NotFound]) -> None:
        raise NotImplementedError(exit_)

    assert_type(fb.run_callback(load, on_exit=ended), Callable[[int | None], None])


async def a_runtime(load: Effect[User, NotFound], signal: AbortSignal) -> None:
    runtime = Runtime(clock=TestClock())
    assert_type(await runtime.run(load), User)
    assert_type(await runtime.run_exit(load), Exit[User, NotFound])
    assert_type(runtime.run_sync(load), User)
    assert_type(runtime.run_fork(load, signal=signal), Fiber[User, NotFound])
    await runtime.dispose()


def signals(controller: AbortController) -> None:
    assert_type(controller.signal, AbortSignal)
    assert_type(controller.signal.aborted, bool)
    assert_type(controller.signal.reason, object)
    assert_type(controller.signal.wait(), Effect[object, Never])
    assert_type(controller.signal.add_listener(lambda reason: None), Callable[[], None])


def errors(exc: BaseException, unfinished: AsyncFiberError) -> None:
    assert_type(fb.interrupt_of(exc), Interrupt | None)
    assert_type(unfinished.fiber, Fiber[Any, Any] | None)
