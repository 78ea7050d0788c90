"""Effect-style structured concurrency for asyncio.

Nothing runs without an owner, and owners are scopes. See ``Effect``, ``Fiber``, ``Scope``.
"""

from __future__ import annotations

from returns.result import Failure, Success

from fibers.aiter import for_each_async, from_async_iterable, to_async_iterable
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
from fibers.effect import CauseError, Effect, EffectGen, Tag, effect
from fibers.exit import Exit
from fibers.fiber import AsyncFiberError, Fiber, current_fiber
from fibers.layer import Layer
from fibers.metrics import FiberMetrics
from fibers.owned.cache import Cache
from fibers.owned.fiber_handle import FiberHandle
from fibers.owned.fiber_map import FiberMap
from fibers.owned.fiber_set import FiberSet
from fibers.owned.pool import Pool
from fibers.owned.rc_map import ExceededCapacityError, RcMap
from fibers.owned.rc_ref import RcRef
from fibers.owned.resource import Resource
from fibers.owned.scoped_ref import ScopedRef
from fibers.region import uninterruptible
from fibers.resource import acquire_release, acquire_use_release
from fibers.runtime import Runtime, run, run_callback, run_exit, run_fork, run_sync
from fibers.schedule import CurrentMetadata, Schedule, ScheduleDone, ScheduleMetadata
from fibers.scope import Scope, add_finalizer, current_scope, scoped
from fibers.signal import AbortController, AbortError, AbortSignal
from fibers.sync.deferred import Deferred
from fibers.sync.done import Done
from fibers.sync.latch import Latch
from fibers.sync.pubsub import PubSub, Subscription
from fibers.sync.queue import Queue
from fibers.sync.semaphore import Semaphore
from fibers.sync.subscription_ref import SubscriptionRef
from fibers.task_factory import task_factory
from fibers.unhandled import set_unhandled_failure_hook

__all__ = [
    "AbortController",
    "AbortError",
    "AbortSignal",
    "AsyncFiberError",
    "Cache",
    "Cause",
    "CauseError",
    "Clock",
    "ClockTag",
    "CurrentMetadata",
    "Deferred",
    "Die",
    "Done",
    "Duration",
    "Effect",
    "EffectGen",
    "ExceededCapacityError",
    "Exit",
    "Fail",
    "Failure",
    "Fiber",
    "FiberDeadlockError",
    "FiberHandle",
    "FiberInterrupted",
    "FiberMap",
    "FiberMetrics",
    "FiberSet",
    "Interrupt",
    "Latch",
    "Layer",
    "Pool",
    "PubSub",
    "Queue",
    "RcMap",
    "RcRef",
    "Resource",
    "Runtime",
    "Schedule",
    "ScheduleDone",
    "ScheduleMetadata",
    "Scope",
    "ScopedRef",
    "Semaphore",
    "Subscription",
    "SubscriptionRef",
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
    "for_each_async",
    "from_async_iterable",
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
    "task_factory",
    "to_async_iterable",
    "uninterruptible",
]
