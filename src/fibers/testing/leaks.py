"""Leak checks: what a piece of code leaves running, open or referred to."""

from __future__ import annotations

import asyncio
import concurrent.futures.thread
import gc
import threading
import weakref
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final, Literal, TypeVar

from fibers.dump import describe
from fibers.fiber import current_fiber
from fibers.loop import hooks
from fibers.loop.queue import all_live, all_ready
from fibers.loop.states import ENDED
from fibers.scope import Scope

T = TypeVar("T")
Kind = Literal["fibers", "scopes", "tasks", "threads"]
ALL_KINDS: Final[tuple[Kind, ...]] = ("fibers", "scopes", "tasks", "threads")


class LeakError(AssertionError):
    """Something is left over. ``leftovers`` has a line for each."""

    def __init__(self, leftovers: list[str]) -> None:
        super().__init__("\n  ".join([f"{len(leftovers)} left over:", *leftovers]))
        self.leftovers = leftovers


class LeakCheck:
    """What ``assert_no_leaks`` gives: objects named to ``gone`` have to be gone as well."""

    def __init__(self, kinds: tuple[Kind, ...] = ALL_KINDS) -> None:
        self._kinds = kinds
        self._watched: list[tuple[str, weakref.ref[Any]]] = []
        self._before = {kind: set(map(id, _found(kind))) for kind in kinds}
        # Ids are only good while the objects live.
        self._held = [_found(kind) for kind in kinds]

    def gone(self, thing: T) -> T:
        """At the end of the block nothing may refer to ``thing`` any more."""
        self._watched.append((repr(thing), weakref.ref(thing)))
        return thing

    def check(self) -> None:
        """Raise LeakError if something is left over."""
        leftovers = self.leftovers()
        if leftovers:
            raise LeakError(leftovers)

    def leftovers(self) -> list[str]:
        """A line for each leftover, as of now."""
        # Twice: what a finalizer lets go of in the first is found in the second.
        gc.collect()
        gc.collect()
        lines = [
            _line(kind, thing)
            for kind in self._kinds
            for thing in _found(kind)
            if id(thing) not in self._before[kind]
        ]
        for name, ref in self._watched:
            thing = ref()
            if thing is not None:
                lines.append(f"still referred to: {name}, by {_referrers_of(thing)}")
        return lines


@contextmanager
def assert_no_leaks(*kinds: Kind) -> Generator[LeakCheck]:
    """Raise LeakError if the block leaves something that was not there before.

        with assert_no_leaks() as check:
            check.gone(await run(service()))

    ``kinds``: any of "fibers" (live ones), "scopes" (open, with finalizers in them), "tasks"
    (plain ones), "threads" (except idle ones of executors); all by default. The fiber
    or task that runs the block is not counted. An exception that leaves the block goes on
    unchecked. ValueError for an unknown kind.
    """
    unknown = set(kinds) - set(ALL_KINDS)
    if unknown:
        raise ValueError(f"kinds are {', '.join(ALL_KINDS)}, not {', '.join(sorted(unknown))}")
    check = LeakCheck(kinds or ALL_KINDS)
    yield check
    check.check()


def _found(kind: Kind) -> list[Any]:
    match kind:
        case "fibers":
            here: Any = current_fiber()
            every = {id(f): f for f in (*all_live(), *all_ready())}
            return [f for f in every.values() if f is not here and f._state != ENDED]
        case "scopes":
            # No registry of scopes for the sake of tests: the collector knows them all.
            return [
                thing
                for thing in gc.get_objects()
                if isinstance(thing, Scope) and thing.state == "open" and thing.finalizer_count
            ]
        case "tasks":
            # Of every loop, running or not: asyncio tells only of one that runs.
            here = None if hooks.running_loop() is None else asyncio.current_task()
            return [
                thing
                for thing in gc.get_objects()
                if isinstance(thing, asyncio.Task) and thing is not here and not thing.done()
            ]
        case "threads":  # pragma: no branch  # the last of its kinds
            idle: Any = concurrent.futures.thread._threads_queues  # no public way to tell
            return [
                thread
                for thread in threading.enumerate()
                if thread is not threading.current_thread() and thread not in idle
            ]


def _line(kind: Kind, thing: Any) -> str:
    match kind:
        case "fibers":
            return f"{describe(thing)}, forked at {thing.forked_at}"
        case "scopes":
            return f"{thing!r} is open with {thing.finalizer_count} finalizer(s)"
        case "tasks":
            return repr(thing)
        case "threads":  # pragma: no branch  # the last of its kinds
            return f"thread {thing.name}"


def _referrers_of(thing: Any) -> str:
    names = sorted({type(r).__name__ for r in gc.get_referrers(thing)})
    return ", ".join(names) or "something that the collector does not see"
