"""Lines: where fibers wait for their turn in a primitive, and how a turn is never lost.

Things that don't work. To hand the thing itself over on waking: a fiber that is interrupted between
the wake-up and its step drops it. To wake and let whoever runs first take it: a fiber that takes
again at once starves those that were woken.

So a fiber is *called*: as much as it needs is set aside for it, it goes through the ready queue,
and it does what it came for in its own step, together with everything that follows from that. If it
is interrupted before, what was set aside is there for the next in line.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from fibers.loop.protocol import FAIL, Frame, Node, Signal, Wait
from fibers.sync.waking import wake_with

if TYPE_CHECKING:
    from fibers.cause import Cause
    from fibers.loop.run_loop import FiberCore

WAIT: Final = Signal("WAIT")
"""What an attempt says where it can't be done yet."""


class Attempt:
    """What a fiber wants to do, waiting in line for it where it must."""

    __slots__ = ()

    def _try(self, fiber: FiberCore, *, called: bool) -> Any:
        """Do it now and give the outcome, or WAIT. ``called``: what it needs was set aside for it;
        it is there unless somebody took it without waiting.
        """
        raise NotImplementedError

    def _need(self) -> int:
        """How much must be there before it is worth a call."""
        return 1

    def _settle(self, *, called: bool) -> None:
        """It has begun to wait, or won't come any more: call whoever can go on now. ``called``:
        what was set aside for it has just become free.
        """
        raise NotImplementedError

    def _undo(self, outcome: Any) -> None:
        """It was done, as the last act of a fiber whose outcome nobody was given: the plain task
        that waited for it was cancelled first (PD12).
        """

    def _name(self) -> str:
        """What it waits for, for dumps."""
        raise NotImplementedError


class Line:
    """Fibers in the order in which they came. A small need may overtake a big one that can't be met
    yet.
    """

    __slots__ = ("_back", "_front", "set_aside")

    def __init__(self) -> None:
        # In front: those that were called in vain and keep their turn. Ordered dicts, because a
        # plain one is slow to iterate once its first entries are gone: calling n would cost n * n.
        self._front: OrderedDict[Place, None] = OrderedDict()
        self._back: OrderedDict[Place, None] = OrderedDict()
        # What those will take that were called and had no step since.
        self.set_aside: int = 0

    def __len__(self) -> int:
        """How many wait, not counting those that were called."""
        return len(self._front) + len(self._back)

    def run(self, fiber: FiberCore, attempt: Attempt) -> Any:
        """Do it now, or suspend ``fiber`` at the end of the line until it can be done."""
        outcome = attempt._try(fiber, called=False)
        if outcome is not WAIT:
            return outcome
        place = Place(self, fiber, attempt)
        self._back[place] = None
        return place.wait(called=False)

    def call(self, supply: float) -> None:
        """Call, in order, all whose need is met by what is left of ``supply`` beside that which is
        set aside.
        """
        left = supply - self.set_aside
        if left <= 0 or not self:
            return
        met: list[Place] = []
        for place in chain(self._front, self._back):
            if place.need <= left:
                met.append(place)
                left -= place.need
                if left <= 0:
                    break
        lost = [place for place in met if not place.call()]
        if lost:
            self.call(supply)

    def first(self) -> Place | None:
        """Who is next to be called."""
        return next(chain(self._front, self._back), None)

    def call_all(self) -> None:
        """Call everybody, whatever they need."""
        for place in [*self._front, *self._back]:
            place.call()

    def renew(self) -> None:
        """Ask those who wait again what they need."""
        for place in chain(self._front, self._back):
            place.need = place.attempt._need()


class Place(Wait, Frame):
    """One fiber in one line: what it waits in, and the frame that gets the call."""

    __slots__ = ("aside", "attempt", "called", "fiber", "line", "need")

    def __init__(self, line: Line, fiber: FiberCore, attempt: Attempt) -> None:
        self.line: Line = line
        self.fiber: FiberCore = fiber
        self.attempt: Attempt = attempt
        self.need: int = 0
        self.aside: int = 0
        self.called: bool = False

    def wait(self, *, called: bool) -> Signal:
        """Suspend the fiber, which is in line by now."""
        self.need = self.attempt._need()
        self.fiber._stack.append(self)
        signal = self.fiber._suspend(self)
        self.attempt._settle(called=called)
        return signal

    def call(self) -> bool:
        """Let the fiber try. False if its loop is closed, so that it never will."""
        self._abandon(self.fiber)
        self.called = True
        self.aside = self.need
        self.line.set_aside += self.aside
        if wake_with(self.fiber, self, _CALLED):
            return True
        self._answer()
        return False

    def _answer(self) -> None:
        self.called = False
        self.line.set_aside -= self.aside

    def _val(self, fiber: FiberCore, value: Any) -> Any:
        self._answer()
        outcome = self.attempt._try(fiber, called=True)
        if outcome is WAIT:
            self.line._front[self] = None
            return self.wait(called=True)
        if fiber._rare.task is not None and not fiber._stack and outcome is not FAIL:
            fiber._rare.undo = self.attempt
        return outcome

    def _err(self, fiber: FiberCore, cause: Cause[Any]) -> Any:
        called = self.called
        if called:
            self._answer()
        self.attempt._settle(called=called)
        fiber._cause = cause
        return FAIL

    def _abandon(self, fiber: FiberCore) -> None:
        if self.line._back.pop(self, self) is self:
            self.line._front.pop(self, None)

    def _label(self) -> str:
        return self.attempt._name()


class _Called(Node):
    """What a called fiber goes on with: the place is the frame that gets it."""

    __slots__ = ()

    def _ev(self, fiber: FiberCore) -> Any:
        return None


_CALLED: Final = _Called()
