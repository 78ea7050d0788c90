"""Effect-style structured concurrency for asyncio.

Nothing runs without an owner, and owners are scopes. See ``Effect``, ``Fiber``, ``Scope``.
"""

from __future__ import annotations

from returns.result import Failure, Success

from fibers.app.main import run_main
from fibers.cause import (
    Cause,
    Die,
    Fail,
    FiberDeadlockError,
    FiberInterrupted,
    Interrupt,
    UnknownError,
    interrupt_of,
)
from fibers.clock import Clock, ClockTag, current_clock, sleep
from fibers.concurrent import all_, for_each, race, race_all, race_all_first, race_first
from fibers.dump import dump
from fibers.duration import Duration
from fibers.effect import CauseError, Effect, Tag, effect
from fibers.exit import Exit
from fibers.fiber import AsyncFiberError, Fiber, current_fiber
from fibers.region import uninterruptible
from fibers.resource import acquire_release, acquire_use_release
from fibers.runtime import Runtime, run, run_callback, run_exit, run_fork, run_sync
from fibers.scope import Scope, add_finalizer, current_scope, scoped
from fibers.signal import AbortController, AbortError, AbortSignal
from fibers.unhandled import set_unhandled_failure_hook

__all__ = [
    "AbortController",
    "AbortError",
    "AbortSignal",
    "AsyncFiberError",
    "Cause",
    "CauseError",
    "Clock",
    "ClockTag",
    "Die",
    "Duration",
    "Effect",
    "Exit",
    "Fail",
    "Failure",
    "Fiber",
    "FiberDeadlockError",
    "FiberInterrupted",
    "Interrupt",
    "Runtime",
    "Scope",
    "Success",
    "Tag",
    "UnknownError",
    "acquire_release",
    "acquire_use_release",
    "add_finalizer",
    "all_",
    "current_clock",
    "current_fiber",
    "current_scope",
    "dump",
    "effect",
    "for_each",
    "interrupt_of",
    "race",
    "race_all",
    "race_all_first",
    "race_first",
    "run",
    "run_callback",
    "run_exit",
    "run_fork",
    "run_main",
    "run_sync",
    "scoped",
    "set_unhandled_failure_hook",
    "sleep",
    "uninterruptible",
]
