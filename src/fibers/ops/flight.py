"""One run of an effect, in a fiber of its own, shared by all that wait for it (PI12).

Whoever asks first starts it. An interrupt of one that waits leaves it running; when the last one
goes it is interrupted, and awaited: nothing runs on that nobody wants. Running it in the fiber of
the first was rejected: an interrupt of that fiber would be the outcome of all others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from returns.result import Failure

from fibers.cause import Cause, FiberDeadlockError, Interrupt
from fibers.loop.ends import EndFibers
from fibers.loop.protocol import FAIL, NEXT, SWITCH, Frame, Node
from fibers.loop.states import ENDED
from fibers.ops.basic import exit_outcome
from fibers.ops.clock import CLOCK_KEY
from fibers.ops.finalize import OnExitOp, run_finalizer
from fibers.ops.wait import JoinOp
from fibers.waiting import waits_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from fibers.loop.run_loop import FiberCore

NOBODY_WAITS = "nobody waits for it"

SCOPE_KEY = "fibers.Scope"

Env = dict[str, Any]


def shared_env(made: Env, asking: Env) -> Env:
    """The services of what is made once for many: those of whoever asks first, beneath them those
    from where it was set up. The scope is never the asker's: others still use the thing when that
    one is closed.
    """
    env = {**made, **asking}
    env.pop(SCOPE_KEY, None)
    if SCOPE_KEY in made:
        env[SCOPE_KEY] = made[SCOPE_KEY]
    return env


class Flight:
    """``first`` on its way, with services from ``made`` and of the fiber that starts it. ``left``
    is called when nobody waits for it any more, before it is interrupted.
    """

    __slots__ = ("child", "first", "left", "made", "waiting")

    def __init__(self, first: Node, made: Env, left: Callable[[Flight], None]) -> None:
        self.first: Node = first
        self.made: Env = made
        self.left: Callable[[Flight], None] = left
        self.child: FiberCore | None = None
        self.waiting: int = 0


class FlightOp(Node):
    """Wait for a flight, starting it if nobody has, and go on as it ends."""

    __slots__ = ("flight",)

    def __init__(self, flight: Flight) -> None:
        self.flight: Flight = flight

    def _ev(self, fiber: FiberCore) -> Any:
        flight = self.flight
        child = flight.child
        if child is not None and child._state != ENDED and waits_for(child, fiber):
            # Both would wait for ever, and their interrupts too: each ends the other, and waits.
            raise FiberDeadlockError(
                f"fiber #{fiber.id} would wait for itself: {flight.first._label()}, in fiber "
                f"#{child.id}, waits for it"
            )
        # Before the start: its first segment may run others that come and go.
        flight.waiting += 1
        if child is not None:
            fiber._stack.append(_Aboard(flight, child))
            fiber._next = JoinOp(child, as_exit=False)
            return NEXT
        child = flight.child = fiber._spawn(flight.first, 0, None)
        child._env = shared_env(flight.made, fiber._env)
        # The wait belongs to this primitive: an interrupt from that first segment finds it.
        fiber._stack.append(_Aboard(flight, child))
        fiber._cont = JoinOp(child, as_exit=False)
        fiber._switch = child
        return SWITCH


class _Aboard(Frame):
    """One that waits."""

    __slots__ = ("child", "flight")

    def __init__(self, flight: Flight, child: FiberCore) -> None:
        self.flight = flight
        self.child = child

    def _val(self, fiber: FiberCore, value: Any) -> Any:
        self.flight.waiting -= 1
        return value

    def _err(self, fiber: FiberCore, cause: Cause[Any]) -> Any:
        flight, child = self.flight, self.child
        flight.waiting -= 1
        if flight.waiting or child._state == ENDED:
            fiber._cause = cause
            return FAIL
        flight.left(flight)
        why = Interrupt(fiber.id, NOBODY_WAITS)
        return run_finalizer(fiber, None, cause, lambda: EndFibers([child], why))


# ---------------------------------------------------------------------------- one that is kept


class Memo:
    """The outcome of one effect, kept for ``seconds`` after it was there (Effect.cached)."""

    __slots__ = ("exit", "first", "flight", "made", "seconds", "until")

    def __init__(self, first: Node, seconds: float, made: Env) -> None:
        self.first: Node = first
        self.seconds: float = seconds
        self.made: Env = made
        self.flight: Flight | None = None
        self.exit: Any = None
        self.until: float = 0.0

    def forget(self) -> None:
        """The next run is a new one. Those that wait for one under way still get its outcome."""
        self.flight = None
        self.exit = None

    def start(self) -> Flight:
        """A new run of the effect, in which those that come now join."""
        flight = Flight(_Kept(self), self.made, self._left)
        self.flight = flight
        self.exit = None
        return flight

    def _left(self, flight: Flight) -> None:
        if self.flight is flight:
            self.flight = None

    def keep(self, flight: Flight | None, exit_: Any, now: float) -> None:
        """``flight`` has ended; it may have been left or forgotten meanwhile."""
        if flight is not None and self.flight is flight:
            self.flight = None
            if not is_interrupted(exit_):
                self.exit = exit_
                self.until = now + self.seconds


class _Kept(Node):
    """What a memo's flight runs."""

    __slots__ = ("memo",)

    def __init__(self, memo: Memo) -> None:
        self.memo = memo

    def _ev(self, fiber: FiberCore) -> Any:
        memo = self.memo
        flight, clock = memo.flight, fiber._env[CLOCK_KEY]
        fiber._next = OnExitOp(memo.first, lambda exit_: memo.keep(flight, exit_, clock.now()))
        return NEXT

    def _label(self) -> str:
        return f"the cached {self.memo.first._label()}"


class MemoOp(Node):
    """Run what is remembered, or give what came of it."""

    __slots__ = ("memo",)

    def __init__(self, memo: Memo) -> None:
        self.memo: Memo = memo

    def _ev(self, fiber: FiberCore) -> Any:
        memo = self.memo
        if memo.exit is not None and fiber._env[CLOCK_KEY].now() < memo.until:
            return exit_outcome(fiber, memo.exit)
        # Not by way of NEXT: a turn of the loop in between could forget what has not started.
        return FlightOp(memo.flight or memo.start())._ev(fiber)


def is_interrupted(exit_: Any) -> bool:
    """Interrupts and nothing else: no answer, so nothing to keep."""
    if not isinstance(exit_, Failure):
        return False
    return cast("Failure[Cause[Any]]", exit_).failure().has_interrupts_only
