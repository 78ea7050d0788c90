"""Where something waits: the chain of awaits, from the outermost body to the innermost line.

It goes through coroutines, generators, async generators, and asyncio's futures and tasks. Nothing
here runs any of them, and everything may be called from another thread.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import sys
from collections import deque
from collections.abc import Iterator
from functools import lru_cache
from types import AsyncGeneratorType, CodeType, CoroutineType, FrameType
from typing import Any, Final

from fibers.loop import hooks
from fibers.loop.queue import ReadyQueue
from fibers.loop.run_loop import FiberCore
from fibers.waiting import EndOfFiber

OWN: Final = "fibers."
_AWAITS_FOLLOWED: Final = 1000
_TASKS_FOLLOWED: Final = 8
_PLACES_KEPT: Final = 12
"""The innermost ones: they tell most."""


@lru_cache(maxsize=4096)
def place(code: CodeType, line: int | None) -> str:
    """``file:line in function``, the file shortened where that is no loss."""
    shown = code.co_firstlineno if line is None else line
    return f"{short(code.co_filename)}:{shown} in {code.co_qualname}"


def short(file: str) -> str:
    """Relative to the working directory, or to where the libraries are."""
    for mark in ("/site-packages/", _STDLIB):
        _, found, rest = file.partition(mark)
        if found:
            return rest
    try:
        here = os.getcwd() + os.sep
    except OSError:
        return file
    return file.removeprefix(here) if len(here) > len(os.sep) * 2 else file


_STDLIB: Final = f"/lib/python{sys.version_info.major}.{sys.version_info.minor}/"


def place_of(frame: FrameType) -> str | None:
    """Where a frame stands; None for this package's own."""
    if frame.f_globals.get("__name__", "").startswith(OWN):
        return None
    return place(frame.f_code, frame.f_lineno)


def places_in(awaited: Any) -> list[str]:
    """Where a coroutine stands, and what it awaits, and so on; the outermost first. Without the
    frames of this package.
    """
    places: deque[str] = deque(maxlen=_PLACES_KEPT)
    for frame in _frames_in(awaited):
        at = place_of(frame)
        if at is not None:
            places.append(at)
    return list(places)


def _frames_in(awaited: Any) -> Iterator[FrameType]:
    at = awaited
    for _ in range(_AWAITS_FOLLOWED):
        for prefix, inner in (("cr", "await"), ("gi", "yieldfrom"), ("ag", "await")):
            frame = getattr(at, f"{prefix}_frame", None)
            if frame is not None:
                yield frame
                at = getattr(at, f"{prefix}_{inner}", None)
                break
        else:
            at = _inside(at)
        if at is None:
            return


def _inside(wrapper: Any) -> Any:
    """What ``anext()`` of an async generator and ``coroutine.__await__()`` wrap: only the collector
    knows.
    """
    if type(wrapper).__name__ not in _WRAPPERS:
        return None
    for inner in gc.get_referents(wrapper):
        if isinstance(inner, CoroutineType | AsyncGeneratorType):
            return inner  # pyright: ignore[reportUnknownVariableType]  # of anything
        if type(inner).__name__ in _WRAPPERS:
            return _inside(inner)  # anext() with a default: a wrapper around a wrapper
    return None


_WRAPPERS: Final = frozenset(
    {"async_generator_asend", "async_generator_athrow", "coroutine_wrapper", "anext_awaitable"}
)


def _is_task(future: Any) -> bool:
    return isinstance(future, asyncio.Task)


def future_text(future: Any) -> str:
    """What a future is, in words and without its callbacks."""
    if isinstance(future, FiberCore):
        return f"the end of #{future.id}"
    if isinstance(future, EndOfFiber):
        return f"the end of #{future.fiber.id}"
    if _is_task(future):
        return f"task {future.get_name()!r}"
    gathered = hooks.gathered_by(future)
    if gathered:
        left = sum(not child.done() for child in gathered)
        return f"gather, {left} of {len(gathered)} not done"
    return "a future" if type(future) is asyncio.Future else f"a {type(future).__name__}"


def behind(future: Any) -> list[str]:
    """Where the task stands that has to settle ``future``, and the tasks that this one awaits."""
    found: list[str] = []
    seen: set[int] = set()
    at: Any = future
    for _ in range(_TASKS_FOLLOWED):
        waiting = (child for child in hooks.gathered_by(at) if not child.done())
        at = next(waiting, at)
        if not _is_task(at) or id(at) in seen:
            break
        seen.add(id(at))
        places = places_in(at.get_coro())
        found += [f"{future_text(at)}: {where}" for where in places[:1]]
        found += places[1:]
        at = hooks.waited_for_by(at)
    return found


# ---------------------------------------------------------------------------- what runs right now

_DRIVES: Final = {
    _code
    for drives in (FiberCore._drive, getattr(FiberCore, "_follow", None), ReadyQueue.run_ready)
    if (_code := getattr(drives, "__code__", None)) is not None
}
# The compiled ones have no frames: there it is those who call them.
_DRIVERS: Final = frozenset(
    f"fibers.{name}"
    for name in ("app.main", "fiber", "loop.queue", "ops.fork", "runtime", "scope", "task_factory")
)


def _is_below(frame: FrameType) -> bool:
    """Whether ``frame`` drives the fiber whose frames are above."""
    if _DRIVES:
        return frame.f_code in _DRIVES
    return frame.f_globals.get("__name__") in _DRIVERS  # pragma: no cover  # of the C twins


def stacks() -> list[list[FrameType]]:
    """The frames of each thread that runs a fiber, from the fiber's first one to the innermost."""
    found: list[list[FrameType]] = []
    for top in sys._current_frames().values():
        frames: list[FrameType] = []
        at: FrameType | None = top
        while at is not None and not _is_below(at):
            frames.append(at)
            at = at.f_back
        if at is not None:
            found.append(frames[::-1])
    return found


def places_on(stack: list[FrameType]) -> list[str]:
    """The user's lines on a running stack, the innermost last."""
    places = [at for at in map(place_of, stack) if at is not None]
    return places[-_PLACES_KEPT:]


def bounded(places: list[str]) -> tuple[str, ...]:
    """The innermost ones, with a word on those that are left out."""
    left_out = len(places) - _PLACES_KEPT
    if left_out <= 0:
        return tuple(places)
    return (f"({left_out} more)", *itertools.islice(places, left_out, None))
