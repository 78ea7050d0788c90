"""Several effects at once, each in a fiber of its own: race, timeout, for_each, all.

The fibers of a group are nobody's children: the group ends them, in every way out, before it gives
its result (PD23).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fibers.cause import Cause, Interrupt, with_defects_winning, without_interrupts
from fibers.loop.ends import EndFibers
from fibers.loop.observing import Observer
from fibers.loop.protocol import FAIL, NEXT, SWITCH, Frame, Node, Wait, outcome_of
from fibers.loop.states import ENDED, OP_BUDGET_PRIMITIVES
from fibers.ops.basic import ExitOp, FailCauseOp, SucceedOp
from fibers.ops.finalize import run_finalizer
from fibers.ops.wait import joined

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from fibers.loop.run_loop import FiberCore
    from fibers.ops.fork import Site

LOST_RACE = "lost race"
TIMED_OUT = "timed out"
SIBLING_FAILED = "sibling failed"
PARENT_INTERRUPTED = "parent interrupted"


class _Group(Node, Frame, Wait, Observer):
    """One evaluation: node while it starts fibers, wait and observer while they run, frame for an
    interrupt of the fiber that waits.
    """

    __slots__ = ("fiber", "started")

    def __init__(self, fiber: FiberCore) -> None:
        self.fiber = fiber
        self.started: dict[FiberCore, None] = {}

    def start(self, child: FiberCore) -> Any:
        """Run ``child`` to its first suspension, then evaluate the group again."""
        self.started[child] = None
        child._watch(self)
        fiber = self.fiber
        fiber._rv = NEXT
        fiber._next = self
        fiber._switch = child
        return SWITCH

    def wake(self) -> None:
        if self.fiber._wait is self:
            self.fiber._wake_next(self)

    def alive(self) -> list[FiberCore]:
        return [c for c in self.started if c._state != ENDED]

    def end_with(self, then: Frame, why: str) -> Any:
        """End the fibers that still run, uninterruptibly, then go on in ``then``."""
        fiber = self.fiber
        fiber._stack.pop()  # this group: its frame has done its work
        fiber._stack.append(then)
        alive = self.alive()
        if not alive:
            return None
        return run_finalizer(fiber, None, None, lambda: EndFibers(alive, Interrupt(fiber.id, why)))

    def _abandon(self, fiber: FiberCore) -> None:
        """Nothing to detach: ``_err`` ends the fibers before it lets the interrupt go on."""

    def _waits_for(self) -> Iterable[Any]:
        return self.alive()

    def _err(self, fiber: FiberCore, cause: Cause[Any]) -> Any:
        alive = self.alive()
        if not alive:
            fiber._cause = cause
            return FAIL
        return run_finalizer(
            fiber,
            None,
            cause,
            lambda: EndFibers(alive, Interrupt(fiber.id, PARENT_INTERRUPTED)),
        )


# ---------------------------------------------------------------------------- race


class RaceOp(Node):
    """``first_to_end``: the first exit wins, whatever it is; else the first success."""

    __slots__ = ("effects", "first_to_end", "site")

    def __init__(self, effects: Sequence[Node], *, first_to_end: bool, site: Site) -> None:
        self.effects: Sequence[Node] = effects
        self.site: Site = site
        self.first_to_end: bool = first_to_end

    def _ev(self, fiber: FiberCore) -> Any:
        race = _Race(fiber, self.effects, self.first_to_end, self.site)
        fiber._stack.append(race)
        return race._ev(fiber)


class _Race(_Group):
    __slots__ = ("at", "effects", "ended", "first_to_end", "site", "winner")

    def __init__(
        self, fiber: FiberCore, effects: Sequence[Node], first_to_end: bool, site: Site
    ) -> None:
        super().__init__(fiber)
        self.site = site
        self.effects = effects
        self.first_to_end = first_to_end
        self.at = 0
        self.ended: list[FiberCore] = []
        self.winner: FiberCore | None = None

    def _ev(self, fiber: FiberCore) -> Any:
        if self.winner is None:
            if self.at < len(self.effects):
                self.at += 1
                return self.start(fiber._spawn(self.effects[self.at - 1], 0, self.site))
            if len(self.ended) < len(self.effects):
                return fiber._suspend(self)
        return self.end_with(_RaceEnd(self), self.why_losers_end())

    def why_losers_end(self) -> str:
        return LOST_RACE

    def _fiber_done(self, fiber: FiberCore) -> None:
        self.ended.append(fiber)
        if self.winner is None:
            # The race has taken its exit into account; a loser's own later defect it has not.
            fiber._seen = True
            if self.first_to_end or fiber._ok:
                self.winner = fiber
        if self.winner is not None or len(self.ended) == len(self.effects):
            self.wake()

    def outcome(self, fiber: FiberCore) -> Any:
        if self.winner is not None:
            return joined(fiber, self.winner, as_exit=False)
        cause: Cause[Any] = Cause(())
        for loser in self.ended:
            cause = cause.combine(loser._result)
        fiber._cause = cause
        return FAIL

    def _label(self) -> str:
        return "race of " + ", ".join(f"#{c.id}" for c in self.alive())


class _RaceEnd(Frame):
    __slots__ = ("race",)

    def __init__(self, race: _Race) -> None:
        self.race = race

    def _val(self, fiber: FiberCore, value: Any) -> Any:
        return self.race.outcome(fiber)


class TimeoutOp(Node):
    """``first`` against a sleep on the clock in context; the loser is ended and finalized, then
    ``late`` decides what the timeout gives (TR3).
    """

    __slots__ = ("first", "late", "site", "sleep")

    def __init__(
        self,
        first: Node,
        sleep: Callable[[FiberCore], Node],
        late: Callable[[], Any],
        site: Site,
    ) -> None:
        self.first: Node = first
        self.site: Site = site
        self.sleep: Callable[[FiberCore], Node] = sleep
        self.late: Callable[[], Any] = late

    def _ev(self, fiber: FiberCore) -> Any:
        race = _TimeoutRace(fiber, (self.first, self.sleep(fiber)), self.late, self.site)
        fiber._stack.append(race)
        return race._ev(fiber)


class _TimeoutRace(_Race):
    __slots__ = ("late",)

    def __init__(
        self, fiber: FiberCore, effects: Sequence[Node], late: Callable[[], Any], site: Site
    ) -> None:
        super().__init__(fiber, effects, True, site)
        self.late = late

    def _too_late(self) -> bool:
        return self.winner is not None and self.winner is not next(iter(self.started))

    def why_losers_end(self) -> str:
        return TIMED_OUT if self._too_late() else LOST_RACE

    def outcome(self, fiber: FiberCore) -> Any:
        if self._too_late() and self.winner is not None and self.winner._ok:
            return outcome_of(fiber, self.late())
        return super().outcome(fiber)

    def _label(self) -> str:
        return "timeout around " + ", ".join(f"#{c.id}" for c in self.alive()[:1])


# ---------------------------------------------------------------------------- for_each, all


class SequenceOp(Node):
    """One after another in the same fiber; stops at the first failure (FE1)."""

    __slots__ = ("discard", "f", "items")

    def __init__(self, items: Iterable[Any], f: Callable[[Any], Any], discard: bool) -> None:
        self.items: Iterable[Any] = items
        self.f: Callable[[Any], Any] = f
        self.discard: bool = discard

    def _ev(self, fiber: FiberCore) -> Any:
        return _Sequence(iter(self.items), self.f, self.discard).go(fiber)


class _Sequence(Frame):
    __slots__ = ("f", "items", "results")

    def __init__(self, items: Iterator[Any], f: Callable[[Any], Any], discard: bool) -> None:
        self.items = items
        self.f = f
        self.results: list[Any] | None = None if discard else []

    def go(self, fiber: FiberCore) -> Any:
        for item in self.items:
            effect = self.f(item)
            fiber._stack.append(self)
            # Through the loop also where it is an exit: it counts for the op budget.
            fiber._next = effect if isinstance(effect, Node) else _AsEffect(effect)
            return NEXT
        return self.results

    def _val(self, fiber: FiberCore, value: Any) -> Any:
        if self.results is not None:
            self.results.append(value)
        return self.go(fiber)


_END: Any = object()
_INLINE = (SucceedOp, FailCauseOp, ExitOp)


class WorkersOp(Node):
    """Up to ``limit`` at a time (None: all), each in a worker fiber started at once."""

    __slots__ = ("discard", "f", "items", "limit", "site")

    def __init__(
        self,
        items: Iterable[Any],
        f: Callable[[Any], Any],
        limit: int | None,
        discard: bool,
        site: Site,
    ) -> None:
        self.site: Site = site
        self.items: Iterable[Any] = items
        self.f: Callable[[Any], Any] = f
        self.limit: int | None = limit
        self.discard: bool = discard

    def _ev(self, fiber: FiberCore) -> Any:
        workers = _Workers(fiber, iter(self.items), self.f, self.limit, self.discard, self.site)
        fiber._stack.append(workers)
        return workers._ev(fiber)


class _Workers(_Group):
    __slots__ = (
        "cause",
        "discard",
        "f",
        "index",
        "inline",
        "items",
        "limit",
        "more",
        "results",
        "running",
        "site",
    )

    def __init__(
        self,
        fiber: FiberCore,
        items: Iterator[Any],
        f: Callable[[Any], Any],
        limit: int | None,
        discard: bool,
        site: Site,
    ) -> None:
        super().__init__(fiber)
        self.site = site
        self.items = items
        self.f = f
        self.limit = limit
        self.discard = discard
        self.more = True
        self.cause: Cause[Any] | None = None
        self.results: list[Any] = []
        self.running = 0
        self.inline = 0
        self.index: dict[FiberCore, int] = {}

    def _ev(self, fiber: FiberCore) -> Any:
        while self.more and self.cause is None:
            if self.limit is not None and self.running >= self.limit:
                return fiber._suspend(self)
            try:
                item = next(self.items, _END)
                if item is _END:
                    self.more = False
                    break
                effect = self.f(item)
            except BaseException as exc:  # noqa: BLE001  # whatever the user's code raises is a defect
                fiber._defect(exc)
                self.cause = fiber._cause
                break
            if not self.discard:
                self.results.append(None)
            if isinstance(effect, _INLINE):
                given = effect._ev(fiber)
                if given is FAIL:
                    self.cause = fiber._cause
                elif not self.discard:
                    self.results[-1] = given
                self.inline += 1
                if self.inline % OP_BUDGET_PRIMITIVES == 0:
                    fiber._rv = NEXT
                    fiber._next = self
                    return fiber._yield_turn()
                continue
            child = fiber._spawn(_AsEffect(effect), 1 if fiber._mask else 0, self.site)
            self.index[child] = len(self.results) - 1
            self.running += 1
            return self.start(child)
        if self.cause is None and self.running:
            return fiber._suspend(self)
        return self.end_with(_WorkersEnd(self, self.alive()), SIBLING_FAILED)

    def _fiber_done(self, fiber: FiberCore) -> None:
        self.running -= 1
        del self.started[fiber]
        at = self.index.pop(fiber)
        if fiber._ok:
            if not self.discard:
                self.results[at] = fiber._result
        else:
            if self.cause is None:
                fiber._seen = True
                self.cause = fiber._result
            elif not fiber._result.has_dies:
                fiber._seen = True
        if self.cause is not None or self.more or not self.running:
            self.wake()

    def _err(self, fiber: FiberCore, cause: Cause[Any]) -> Any:
        alive = self.alive()
        fiber._stack.append(_WorkersCut(cause, alive))
        return super()._err(fiber, cause)

    def _label(self) -> str:
        return "workers " + ", ".join(f"#{c.id}" for c in self.alive())


class _AsEffect(Node):
    """What the mapper gave: an effect or an exit."""

    __slots__ = ("given",)

    def __init__(self, given: Any) -> None:
        self.given = given

    def _ev(self, fiber: FiberCore) -> Any:
        return outcome_of(fiber, self.given)


def _with_cleanup_failures(cause: Cause[Any], ended: list[FiberCore]) -> Cause[Any]:
    """``cause`` and what the fibers that were ended for it failed with, without the interrupts
    that ended them (FE2, FE3).
    """
    for worker in ended:
        if not worker._ok:
            own = without_interrupts(worker._result)
            if own.reasons:
                worker._seen = True
                cause = cause.combine(own)
    return with_defects_winning(cause)


class _WorkersEnd(Frame):
    __slots__ = ("ended", "workers")

    def __init__(self, workers: _Workers, ended: list[FiberCore]) -> None:
        self.workers = workers
        self.ended = ended

    def _val(self, fiber: FiberCore, value: Any) -> Any:
        workers = self.workers
        if workers.cause is None:
            return None if workers.discard else workers.results
        fiber._cause = _with_cleanup_failures(workers.cause, self.ended)
        return FAIL


class _WorkersCut(Frame):
    """The group was interrupted: the workers' own failures while they ended join the cause."""

    __slots__ = ("cause", "ended")

    def __init__(self, cause: Cause[Any], ended: list[FiberCore]) -> None:
        self.cause = cause
        self.ended = ended

    def _err(self, fiber: FiberCore, cause: Cause[Any]) -> Any:
        fiber._cause = _with_cleanup_failures(cause, self.ended)
        return FAIL
