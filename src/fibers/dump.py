"""What is alive: every fiber, its scope, its state, where it waits."""

from __future__ import annotations

from types import CoroutineType
from typing import TYPE_CHECKING, Any, cast

from fibers.loop.protocol import Wait
from fibers.loop.queue import all_live, all_ready
from fibers.loop.run_loop import ENDED, STATE_NAMES

if TYPE_CHECKING:
    from fibers.fiber import Fiber
    from fibers.loop.run_loop import FiberCore


def live_fibers() -> list[Fiber[Any, Any]]:
    """Every fiber of this process that has not ended, oldest first."""
    found = {f for f in (*all_live(), *all_ready()) if f._state != ENDED}
    return cast("list[Fiber[Any, Any]]", sorted(found, key=lambda f: f.id))


def where(fiber: FiberCore) -> str:
    """``file:line in function`` where the fiber stands, through the await chain; else what it
    waits for.
    """
    for frame in reversed(fiber._stack):
        if type(frame) is CoroutineType:
            place = _innermost(frame)
            if place is not None:
                return place
    return "no body"


def _innermost(coro: Any) -> str | None:
    """The last frame of the chain of awaits that is not this package's own."""
    place: str | None = None
    at: Any = coro
    while at is not None:
        frame = getattr(at, "cr_frame", None) or getattr(at, "gi_frame", None)
        if frame is not None and not frame.f_globals.get("__name__", "").startswith("fibers."):
            code = frame.f_code
            place = f"{code.co_filename}:{frame.f_lineno} in {code.co_qualname}"
        at = getattr(at, "cr_await", None) or getattr(at, "gi_yieldfrom", None)
    return place


def waits_for(fiber: FiberCore) -> str | None:
    """What the fiber waits for, in words, or None."""
    wait = fiber._wait
    if wait is None:
        return None
    return wait._label() if isinstance(wait, Wait) else f"{wait!r}"


def describe(fiber: FiberCore) -> str:
    """One line on one fiber."""
    owner = fiber._owner
    parts = [f"#{fiber.id}", STATE_NAMES[fiber._state]]
    if fiber._name is not None:
        parts.insert(1, fiber._name)
    if fiber._mask:
        parts.append("masked")
    if fiber._icause is not None:
        parts.append(f"interrupted: {fiber._icause}")
    parts.append(f"at {where(fiber)}")
    waiting = waits_for(fiber)
    if waiting is not None:
        parts.append(f"waits for {waiting}")
    parts.append(f"forked at {cast('Fiber[Any, Any]', fiber).forked_at}")
    parts.append("owned by nobody" if owner is None else f"owned by {owner!r}")
    return ", ".join(parts)


def dump() -> str:
    """Every live fiber, a line each: state, file:line, what it waits for, fork site, owner."""
    fibers = live_fibers()
    if not fibers:
        return "no live fibers"
    return "\n".join([f"{len(fibers)} live fiber(s)", *("  " + describe(f) for f in fibers)])
