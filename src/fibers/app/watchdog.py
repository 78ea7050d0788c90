"""Watchdog: names what blocks the event loop, while it does.

A thread asks the loop to turn and waits for that. Where nothing comes back it looks at the stack of
the loop's thread: which fiber runs there, and on which line. asyncio's debug mode tells of a slow
callback only when that is over, and not at all of one that never ends.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from fibers.dump import chain
from fibers.dump.tree import headline, look_at, span
from fibers.duration import Duration, checked_seconds
from fibers.effect import Effect
from fibers.loop.inner_task import InnerTask
from fibers.misplaced import check_function

if TYPE_CHECKING:
    from fibers.scope import Scope

log: logging.Logger = logging.getLogger("fibers.app")

THRESHOLD_SECONDS: Final = 1.0
_TICKS_A_THRESHOLD: Final = 4
_LATE_FACTOR: Final = 2.0
_IDLE: Final = frozenset(
    {"selectors", "asyncio.base_events", "asyncio.runners", "asyncio.windows_events", "uvloop"}
)
"""Where the innermost frame of a loop's thread stands while no callback runs."""


@dataclass(frozen=True, slots=True)
class Blockage:
    """What held the loop when somebody looked."""

    seconds: float
    """Without a turn, so far."""
    who: str
    """The fiber or the task that ran, in words."""
    places: tuple[str, ...]
    """``file:line in function``, the innermost last."""

    def __str__(self) -> str:
        where = "".join(f"\n  {place}" for place in self.places)
        return f"the event loop has not turned for {span(self.seconds)}, held by {self.who}{where}"


class Watchdog:
    """An occupant that warns when the loop has not turned for ``threshold`` (timedelta or seconds).

        await occupy(app_scope, Watchdog(0.5))

    ``on_block(blockage)`` is called on the watching thread; the default logs one warning, and again
    each time that the blockage has doubled. A process that was stopped, or a machine that slept, is
    no blockage. ValueError where the threshold is not a positive time.
    """

    def __init__(
        self,
        threshold: Duration = THRESHOLD_SECONDS,
        *,
        on_block: Callable[[Blockage], None] | None = None,
    ) -> None:
        if on_block is not None:
            check_function(on_block, "Watchdog(on_block=)")
        self.name = "watchdog"
        self._threshold_seconds = checked_seconds(threshold, "a watchdog's threshold")
        if not 0 < self._threshold_seconds < threading.TIMEOUT_MAX:
            raise ValueError(
                "a watchdog's threshold must be positive and not endless: leave the watchdog out"
            )
        self._on_block = on_block or _warn
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._blockages = 0
        self._longest_seconds = 0.0

    def start(self, scope: Scope) -> Effect[None]:
        """Watch the running loop until ``scope`` closes."""
        begun = Effect.sync(self._begin).flat_map(
            lambda _: scope.add_finalizer(lambda _exit: Effect.sync(self._stop.set))
        )
        return begun.uninterruptible()

    def _begin(self) -> None:
        if self._thread is not None:
            raise RuntimeError("this watchdog watches already: make one for each loop")
        loop = asyncio.get_running_loop()
        watched = threading.get_ident()
        self._thread = threading.Thread(
            target=self._watch, args=(loop, watched), name="fibers watchdog", daemon=True
        )
        self._thread.start()

    def describe(self) -> Mapping[str, object]:
        """What it has seen so far."""
        return {
            "thresholdSeconds": self._threshold_seconds,
            "blockages": self._blockages,
            "longestSeconds": round(self._longest_seconds, 3),
        }

    # ------------------------------------------------------------------ on its own thread

    def _watch(self, loop: asyncio.AbstractEventLoop, watched: int) -> None:
        tick_seconds = self._threshold_seconds / _TICKS_A_THRESHOLD
        while not self._stop.is_set():
            pause = Waited(tick_seconds)
            self._stop.wait(tick_seconds)
            # What kept this thread from waking up in time may be what holds the loop.
            late_seconds = max(0.0, pause.until() - tick_seconds)
            # First of all: the next call may let the loop's thread go on.
            told = late_seconds >= self._threshold_seconds and self._look(
                loop, watched, late_seconds
            )
            turned = threading.Event()
            try:
                loop.call_soon_threadsafe(turned.set)
            except RuntimeError:
                return  # the loop is closed
            waited = Waited(tick_seconds)
            waited.seconds = late_seconds
            self._await_turn(turned, loop, watched, waited, told=told)

    def _await_turn(
        self,
        turned: threading.Event,
        loop: asyncio.AbstractEventLoop,
        watched: int,
        waited: Waited,
        *,
        told: bool,
    ) -> None:
        tell_at = max(self._threshold_seconds, waited.seconds * 2)
        while not self._stop.is_set() and not turned.wait(waited.tick_seconds):
            if waited.until() >= tell_at:
                tell_at = waited.seconds * 2
                told |= self._look(loop, watched, waited.seconds, again=told)
        if told:
            self._longest_seconds = max(self._longest_seconds, waited.until())
            log.info("[watchdog] the event loop turns again, after %s", span(waited.seconds))

    def _look(
        self,
        loop: asyncio.AbstractEventLoop,
        watched: int,
        seconds: float,
        *,
        again: bool = False,
    ) -> bool:
        found = _runs_on(loop, watched, seconds)
        if found is None:
            return False  # nothing runs: it is the machine that is slow
        self._blockages += not again
        self._longest_seconds = max(self._longest_seconds, seconds)
        try:
            self._on_block(found)
        except Exception:
            log.exception("[watchdog] on_block raised")
        return True


class Waited:
    """How long a wait is, in time that this process had.

    A process that is stopped, or gets no processor, wakes up with hours behind it in which nobody
    blocked anything. It is told by the waiting thread's own ticks: one that comes much too late
    counts as one tick, unless the process has used up processor time meanwhile. Then something ran
    and kept even this thread from running (C code that holds the interpreter's lock).
    """

    def __init__(
        self, tick_seconds: float, *, now: float | None = None, processor: float | None = None
    ) -> None:
        self.tick_seconds = tick_seconds
        self._now = time.monotonic() if now is None else now
        self._processor = time.process_time() if processor is None else processor
        self.seconds: float = 0.0

    def until(self, now: float | None = None, processor: float | None = None) -> float:
        """Another tick, at ``now`` (monotonic seconds); ``processor``: seconds that were used."""
        now = time.monotonic() if now is None else now
        processor = time.process_time() if processor is None else processor
        passed = now - self._now
        worked = processor - self._processor
        self._now, self._processor = now, processor
        if passed > self.tick_seconds * _LATE_FACTOR:
            passed = max(self.tick_seconds, min(passed, worked))
        self.seconds += passed
        return self.seconds


def _runs_on(loop: asyncio.AbstractEventLoop, watched: int, seconds: float) -> Blockage | None:
    """What runs on the loop's thread; None where that waits for events."""
    top = sys._current_frames().get(watched)
    if top is None or top.f_globals.get("__name__") in _IDLE:
        return None
    task: Any = asyncio.current_task(loop)
    fiber = task._ref() if isinstance(task, InnerTask) else None
    if fiber is not None:
        shot = look_at(fiber)
        who = f"{headline(shot)}; forked at {shot.forked_at}"
        return Blockage(seconds, who, shot.places or _places_below(top))
    who = "a callback" if task is None else f"task {task.get_name()!r}"
    return Blockage(seconds, who, _places_below(top))


def _places_below(top: FrameType) -> tuple[str, ...]:
    """The lines of a stack down to the callback that the loop has called. That may be C code: then
    the line of asyncio's that calls it is all there is.
    """
    frames: list[FrameType] = [top]
    at = top.f_back
    while at is not None and at.f_globals.get("__name__") not in (*_IDLE, "asyncio.events"):
        frames.append(at)
        at = at.f_back
    return tuple(chain.places_on(frames[::-1]))


def _warn(found: Blockage) -> None:
    log.warning("[watchdog] %s", found)
