"""What is alive, as plain data: which fibers, whose they are, where each one stands.

Everything is only read. It may happen on another thread, also while the loop is blocked: what
changes under the reader is read again, or shown as it was.
"""

from __future__ import annotations

import asyncio
import functools
import time
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import CoroutineType, FrameType
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from fibers.cause import Interrupt, text_of_error
from fibers.dump import chain
from fibers.loop import queue
from fibers.loop.ends import EndFibers
from fibers.loop.inner_task import InnerTask
from fibers.loop.protocol import Wait
from fibers.loop.run_loop import FiberCore
from fibers.loop.states import ENDED, NEW, RUNNING, STATE_NAMES
from fibers.ops.body import FutureWait
from fibers.ops.group import _Group

if TYPE_CHECKING:
    from fibers.fiber import Fiber

T = TypeVar("T")

known_scopes: weakref.WeakSet[Any] = weakref.WeakSet()
"""Scopes that a dump shows also while nothing runs in them: app scopes with occupants."""

_TRIES: Final = 10


@dataclass(slots=True)
class FiberShot:
    """One fiber at one moment."""

    id: int
    name: str | None
    state: str
    masked: bool
    interrupts: tuple[str, ...]
    """Who asked for its end, and why; in order."""
    age_seconds: float | None
    """Since its first suspension; None before it."""
    places: tuple[str, ...]
    """``file:line in function``, the innermost last."""
    waits_for: str | None
    forked_at: str
    children: list[FiberShot] = field(default_factory=list["FiberShot"])


@dataclass(slots=True)
class ScopeShot:
    """One scope at one moment."""

    name: str
    strategy: str
    state: str
    finalizers: int
    occupants: dict[str, Any]
    fibers: list[FiberShot] = field(default_factory=list[FiberShot])
    scopes: list[ScopeShot] = field(default_factory=list["ScopeShot"])


@dataclass(slots=True)
class Snapshot:
    """All fibers of the process: below their scopes, else without an owner."""

    count: int
    scopes: list[ScopeShot]
    unowned: list[FiberShot]


def live_fibers() -> list[Fiber[Any, Any]]:
    """Every fiber of this process that has not ended, oldest first."""
    return cast("list[Fiber[Any, Any]]", list(_with_birth()))


def snapshot() -> Snapshot:
    """All that is alive now; also from another thread."""
    look = _Look()
    born = _with_birth()
    shots = {fiber: look.at(fiber, birth) for fiber, birth in born.items()}
    groups = _group_parents(shots)
    owners = _Owners()
    unowned: list[FiberShot] = []
    for fiber, shot in shots.items():
        owner = fiber._owner if fiber._owner is not None else groups.get(fiber)
        if owner is None or (isinstance(owner, FiberCore) and owner not in shots):
            unowned.append(shot)
        elif isinstance(owner, FiberCore):
            shots[owner].children.append(shot)
        else:
            owners.shot_of(owner).fibers.append(shot)
    for scope in _settled(lambda: list(known_scopes)):
        if not scope._is_closed and getattr(scope, "_occupants", None):
            owners.shot_of(scope)
    return Snapshot(len(shots), owners.roots, unowned)


def describe(fiber: FiberCore) -> str:
    """One line on one fiber."""
    owner = fiber._owner
    shot = look_at(fiber)
    at = shot.places[-1] if shot.places else "no body"
    return ", ".join(
        [
            headline(shot),
            f"at {at}",
            *tail(shot),
            "owned by nobody" if owner is None else f"owned by {owner!r}",
        ]
    )


def look_at(fiber: FiberCore) -> FiberShot:
    """One fiber, without those below it."""
    return _Look().at(fiber, fiber._queue.live.get(fiber))


def where(fiber: FiberCore) -> str:
    """``file:line in function`` where the fiber stands, through the await chain."""
    places = look_at(fiber).places
    return places[-1] if places else "no body"


def headline(shot: FiberShot) -> str:
    """Which fiber, in what state."""
    parts = [f"#{shot.id}" if shot.name is None else f"#{shot.id} {shot.name}", shot.state]
    if shot.age_seconds is not None:
        parts.append(f"for {span(shot.age_seconds)}")
    if shot.masked:
        parts.append("masked")
    if shot.interrupts:
        parts.append("interrupted " + " and ".join(shot.interrupts))
    return ", ".join(parts)


def tail(shot: FiberShot) -> list[str]:
    """What it waits for, and where it comes from."""
    waits = [] if shot.waits_for is None else [f"waits for {shot.waits_for}"]
    return [*waits, f"forked at {shot.forked_at}"]


def span(seconds: float) -> str:
    """A time as people say it: ``12 ms``, ``3.4 s``, ``5 min``, ``2 h``, ``3 d``."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    for unit_seconds, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * unit_seconds:
            return f"{seconds / unit_seconds:.0f} {unit}"
    return f"{seconds:.1f} s"


# ---------------------------------------------------------------------------- finding them


def _settled(read: Callable[[], T]) -> T:
    """``read``, again where another thread changed what it went through."""
    for _ in range(_TRIES):
        try:
            return read()
        except RuntimeError:
            continue
    return read()


def _with_birth() -> dict[FiberCore, float | None]:
    """Every live fiber with the time of its first suspension, by id."""
    found: dict[FiberCore, float | None] = {}
    for each in _settled(queue.all_queues):
        for fiber in (*each.ready, *each.turn):
            found[fiber] = None
        found.update(_settled(functools.partial(_items, each)))
        running = _current_in(each)
        if running is not None:
            found.setdefault(running, None)
    # Those that run below them on the same stack, never suspended so far.
    for fiber in list(found):
        owner = fiber._owner
        while isinstance(owner, FiberCore) and owner not in found:
            found[owner] = None
            owner = owner._owner
    alive = [fiber for fiber in found if fiber._state != ENDED]
    return {fiber: found[fiber] for fiber in sorted(alive, key=lambda fiber: fiber.id)}


def _items(each: queue.ReadyQueue) -> list[tuple[FiberCore, float | None]]:
    return list(each.live.items())


def _members(wait: Wait) -> list[Any]:
    return list(wait._waits_for())


def _current_in(each: queue.ReadyQueue) -> FiberCore | None:
    """The fiber whose code runs now in the loop of a queue."""
    if each.loop is None:
        return None
    task: Any = asyncio.current_task(each.loop)
    return task._ref() if isinstance(task, InnerTask) else None


def _group_parents(shots: Iterable[FiberCore]) -> dict[FiberCore, FiberCore]:
    """Racers, workers and timed effects belong to nobody; here, to who waits for them."""
    parents: dict[FiberCore, FiberCore] = {}
    for fiber in shots:
        wait = fiber._wait
        if isinstance(wait, _Group | EndFibers):
            for member in _settled(functools.partial(_members, wait)):
                if member._owner is None and member._task is None:
                    parents.setdefault(member, fiber)
    for member in list(parents):
        # Two that end each other are each other's parents, and neither would be shown.
        seen = {member}
        at: FiberCore | None = parents.get(member)
        while at is not None and at not in seen:
            seen.add(at)
            at = at._owner if isinstance(at._owner, FiberCore) else parents.get(at)
        if at is member:
            del parents[member]
    return parents


class _Owners:
    """The scopes that own something, each below its parent. Whatever else holds fibers is shown as
    far as it looks like one (this module lies below that of ``Scope``).
    """

    def __init__(self) -> None:
        self.roots: list[ScopeShot] = []
        self._shots: dict[Any, ScopeShot] = {}

    def shot_of(self, scope: Any) -> ScopeShot:
        shot = self._shots.get(scope)
        if shot is not None:
            return shot
        new = [scope]  # and its parents that are: no recursion, they may be many
        while (parent := getattr(new[-1], "_parent", None)) and parent[0] not in self._shots:
            new.append(parent[0])
        siblings = self._shots[parent[0]].scopes if parent else self.roots
        for each in reversed(new):
            shot = self._shots[each] = self._look_at(each)
            siblings.append(shot)
            siblings = shot.scopes
        assert shot is not None
        return shot

    def _look_at(self, scope: Any) -> ScopeShot:
        kind = type(scope).__name__
        name = getattr(scope, "name", None)
        occupants: dict[str, Any] = getattr(scope, "_occupants", {})
        return ScopeShot(
            kind if name in (None, kind) else f"{kind} {name!r}",
            getattr(scope, "_strategy", "?"),
            getattr(scope, "state", "?"),
            len(getattr(scope, "_entries", ())),
            {cut(name): _described(it) for name, it in list(occupants.items())},
        )


def _described(occupant: Any) -> Any:
    try:
        return plain(_settled(lambda: dict(occupant.describe())))
    except Exception as exc:  # noqa: BLE001  # a dump is never the place to fail
        return cut(f"describe() raised {type(exc).__name__}: {text_of_error(exc)}")


_ITEMS_SHOWN: Final = 20
_DEPTH_SHOWN: Final = 4
_CHARACTERS_SHOWN: Final = 200


def plain(value: object, depth: int = _DEPTH_SHOWN) -> Any:
    """``value`` as JSON could hold it, bounded in every direction."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if depth and isinstance(value, dict):
        items = cast("dict[object, object]", value)
        shown = {str(k): plain(v, depth - 1) for k, v in list(items.items())[:_ITEMS_SHOWN]}
        if len(items) > _ITEMS_SHOWN:
            shown["..."] = f"{len(items) - _ITEMS_SHOWN} more"
        return shown
    if depth and isinstance(value, list | tuple | set | frozenset):
        elements = list(cast("Iterable[object]", value))
        listed = [plain(item, depth - 1) for item in elements[:_ITEMS_SHOWN]]
        if len(elements) > _ITEMS_SHOWN:
            listed.append(f"... {len(elements) - _ITEMS_SHOWN} more")
        return listed
    return cut(value if isinstance(value, str) else repr(value))


def cut(text: str) -> str:
    """One line of it, and not too much."""
    line = text if text.isprintable() else text.encode("unicode_escape").decode("ascii")
    return line if len(line) <= _CHARACTERS_SHOWN else f"{line[:_CHARACTERS_SHOWN]}..."


# ---------------------------------------------------------------------------- looking at one


class _Look:
    """What is the same for all fibers of one snapshot."""

    def __init__(self) -> None:
        self._now = time.monotonic()
        self._stacks = chain.stacks()
        self._sites: dict[Any, str] = {}

    def at(self, fiber: FiberCore, birth: float | None) -> FiberShot:
        """The fiber as it is now; it may go on meanwhile, on its own thread."""
        state = fiber._state
        icause = fiber._icause
        interrupts: tuple[str, ...] = ()
        if icause is not None:
            interrupts = tuple(_why(r) for r in icause.reasons if isinstance(r, Interrupt))
        waits_for, behind = _wait_of(fiber)
        return FiberShot(
            id=fiber.id,
            name=None if fiber._name is None else cut(fiber._name),
            state=STATE_NAMES[state],
            masked=bool(fiber._mask),
            interrupts=interrupts,
            age_seconds=None if birth is None else self._now - birth,
            places=chain.bounded([*self._places(fiber, state), *behind]),
            waits_for=waits_for,
            forked_at=self._site(fiber),
        )

    def _places(self, fiber: FiberCore, state: int) -> list[str]:
        bodies: list[Any] = [f for f in list(fiber._stack) if type(f) is CoroutineType]
        running = self._stack_of(fiber, bodies) if state == RUNNING else None
        if running is not None:
            bodies = [b for b in bodies if b.cr_frame not in running]
        places = [at for body in bodies for at in chain.places_in(body)]
        return places if running is None else places + chain.places_on(running)

    def _stack_of(self, fiber: FiberCore, bodies: list[Any]) -> list[FrameType] | None:
        """The frames of a fiber that runs: its innermost body, if that is where it is, and what it
        has called. None where it only waits for another to come back from a switch.
        """
        if _current_in(fiber._queue) is not fiber:
            return None
        frames = {body.cr_frame for body in bodies}
        for stack in self._stacks:
            if not frames.isdisjoint(stack):
                return stack
        return self._stacks[0] if len(self._stacks) == 1 else None

    def _site(self, fiber: FiberCore) -> str:
        # Kept as code and offset; ten thousand forks of one line are formatted once.
        site = fiber._site
        text = self._sites.get(site)
        if text is None:
            file, colon, line = cast("Fiber[Any, Any]", fiber).forked_at.rpartition(":")
            text = self._sites[site] = f"{chain.short(file)}:{line}" if colon else line
        return text


def _why(reason: Interrupt) -> str:
    who = "from outside" if reason.by is None else f"by #{reason.by}"
    return who if reason.reason is None else f"{who} ({cut(reason.reason)})"


def _wait_of(fiber: FiberCore) -> tuple[str | None, list[str]]:
    """What it waits for, in words, and where that stands."""
    if fiber._state == NEW:
        node = getattr(fiber, "_next", None)
        return (None, []) if node is None else (f"its start: {cut(node._label())}", [])
    wait = fiber._wait
    if wait is None:
        return None, []
    try:
        if isinstance(wait, FutureWait):
            return chain.future_text(wait.future), chain.behind(wait.future)
        if isinstance(wait, Wait):
            return cut(wait._label()), []
        return chain.future_text(wait), chain.behind(wait)
    except Exception as exc:  # noqa: BLE001  # a label of another module, of something that changes
        return f"{type(wait).__name__} (its label raised {type(exc).__name__})", []
