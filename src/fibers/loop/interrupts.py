"""Where an interrupt lands in a fiber (sections WI and PD2 of the semantics).

- ``_icause``: every interrupt ever asked for, or None.
- ``_pend``: it still has to land. Cleared when it is thrown into a body (the body's cleanup runs
  undisturbed), set again when that body ends.
- ``_mask``: how many regions protect what runs now; 0 is interruptible.
- ``_attn``: something has to be looked at before the next primitive. The only polling there is.
"""

from __future__ import annotations

from asyncio import CancelledError
from typing import TYPE_CHECKING, Any

from fibers.cause import (
    Cause,
    Die,
    Interrupt,
    TaskCancel,
    interrupt_cause,
    interrupt_of,
    landed,
)
from fibers.loop import hooks, traps
from fibers.loop.judging import task_cancel
from fibers.loop.native import hand_over, twins
from fibers.loop.protocol import FAIL, Wait
from fibers.loop.room import has_room
from fibers.loop.state import FiberState
from fibers.loop.states import ENDED, NESTING_LIMIT_CALLS, READY, RUNNING, SUSPENDED

if TYPE_CHECKING:
    from collections.abc import Callable

    from fibers.loop.inner_task import InnerTask


def _interrupt_here(
    self: Interruptible, why: Interrupt, again: bool = False, *, here: bool = False
) -> None:
    if self._ask(why, again):
        self._unwind(here=here)
    del self  # see _drive


@twins("_interrupt_here")
class Interruptible(FiberState):
    """A fiber that can be asked to end."""

    __slots__ = ()

    if TYPE_CHECKING:

        def _drive(self, *, here: bool = False) -> None:
            """Run it; see FiberCore."""

        def _future_done(self, future: Any) -> None:
            """What a body awaits has ended; see WithBodies."""

    def _own_cause(self) -> Cause[Any]:
        assert self._icause is not None
        return self._icause

    def _own_interrupt(self, cause: Cause[Any]) -> Interrupt | None:
        """This fiber's own interrupt inside ``cause``: told by identity, so that one that was
        observed and failed with again is still ours and a joined fiber's equal one is not.
        """
        if self._icause is None:
            return None
        for own in self._icause.reasons:
            for reason in cause.reasons:
                if reason is own and isinstance(reason, Interrupt):
                    return reason
        return None

    def _is_own(self, exc: CancelledError) -> bool:
        """Is ``exc`` the delivery of this fiber's own interrupt?"""
        why = interrupt_of(exc)
        return self._icause is not None and any(why is own for own in self._icause.reasons)

    def _skips(self, cause: Cause[Any]) -> bool:
        """Does ``cause`` pass recovery handlers by? An interrupt from outside does, in a region
        that can be interrupted (WI5), and so does a task cancel on its way to a body.
        """
        return (self._pend and not self._mask) or task_cancel(cause) is not None

    def _ask(self, why: Interrupt, again: bool = False) -> bool:
        """Record an interrupt. True: it has to be carried out now, by ``_unwind`` or a switch."""
        if self._state == ENDED:
            return False
        # An object of this fiber's own: others may be interrupted with the same ``why``, and to
        # those that see this one's exit it is somebody else's (PD14).
        own = interrupt_cause(why.by, why.reason)
        if self._icause is None:
            self._icause = own
            self._pend = True
        else:
            self._icause = self._icause.combine(own)
            if again:
                self._pend = True
        if not self._pend or self._mask or (self._rare.cut and not again):
            return False
        if self._state == RUNNING:
            self._attn = True
            return False
        return True

    def _cut_loose(self) -> bool:
        """Stop what the fiber waits for, so that it can unwind. False: an awaited task or gather
        has to end first (WI1).
        """
        if self._state == SUSPENDED:
            if not self._stop_waiting():
                return False
        else:
            self._stale += 1
        own = self._icause
        assert own is not None
        self._cause = landed(self._cause, own) if self._rv is FAIL else own
        self._rv = FAIL
        return True

    def _stop_waiting(self) -> bool:
        # From here on as good as running: a future compares its callbacks to find ours, and an
        # __eq__ of somebody else's that interrupts this fiber again must not unwind it twice. One
        # that raises leaves the fiber waiting, for another interrupt to end.
        self._state = RUNNING
        wait = self._wait
        stopped = False
        try:
            stopped = self._let_go_of(wait)
        finally:
            if not stopped:
                self._state = SUSPENDED
                self._wait = wait
        return stopped

    def _let_go_of(self, wait: Any) -> bool:
        if isinstance(wait, Wait):
            self._wait = None
            wait._abandon(self)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # every fiber is a FiberCore
            return True
        # A future that a body awaits directly is cancelled first, as asyncio does. Without the
        # callback: its call would be late, and a second step.
        wait.remove_done_callback(self._future_done)
        if not wait.cancel():
            traps.pass_on_wake_up(self.get_coro())
        if not wait.done():
            wait.add_done_callback(self._future_done, context=self._queue.context)
            self._own_rare().cut = True
            return False
        self._wait = None
        cause = self._outcome_of(wait)
        if cause is not None:
            self._cause = cause
            self._rv = FAIL
        return True

    def _outcome_of(self, future: Any) -> Cause[Any] | None:
        """Of a future that was cancelled for us: its value and its CancelledError are dropped."""
        if future.cancelled():
            return None
        exc = future.exception()
        if exc is None or isinstance(exc, CancelledError):
            return None
        return Cause((Die(exc, exc.__traceback__),))

    def _joined_by(self, future: Any) -> Cause[Any]:
        outcome = self._outcome_of(future)
        own = self._own_cause()
        return own if outcome is None else landed(outcome, own)

    def _unwind(self, *, here: bool = False) -> None:
        """Carry out an interrupt that ``_ask`` found due: synchronously, on this stack, unless
        plain calls nest too deep already.
        """
        queue = self._queue
        if queue.depth >= NESTING_LIMIT_CALLS or not has_room():
            # Before anything is changed: this may be too much for the stack, and is raised then.
            queue.wake_loop()
            if self._cut_loose():
                self._state = READY
                queue.ready.append(self)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # every fiber is a FiberCore
        elif self._cut_loose():
            self._drive(here=here)
        del self  # see _drive

    def _interrupt_now(self, why: Interrupt, again: bool) -> None:
        """A plain call's interrupt, from any thread (AT16)."""
        loop = self._queue.loop
        if loop is not None and hooks.running_loop() is not loop and not loop.is_closed():
            loop.call_soon_threadsafe(self._interrupt_here, why, again)
        else:
            self._interrupt_here(why, again)
        del self  # see _drive

    _interrupt_here = _interrupt_here  # a method, and by its own name for the twin

    def _elsewhere(self, f: Callable[[], None]) -> None:
        """Call ``f`` in the loop of this fiber, which is not the one that runs here. At once where
        that was closed, or never was (run_sync): nobody else touches the fiber.
        """
        loop = self._queue.loop
        if loop is None or loop.is_closed():
            f()
        else:
            loop.call_soon_threadsafe(f)

    def _cancel_inner(self, face: InnerTask, msg: object) -> None:
        """asyncio's own cancel, aimed at what was opened at ``face``'s depth (PD11)."""
        face._must = True
        face._msg = msg
        if self._mask > face._depth:
            return  # lands when the mask is left
        if self._state == SUSPENDED:
            if isinstance(self._wait, Wait):
                loop = self._queue.loop
                assert loop is not None  # where none runs, nobody gets at a current task
                loop.call_soon(self._land_inner_cancel, face)
                return
            if self._wait.cancel(msg=msg):
                face._must = False
                return
        self._attn = True

    def _land_inner_cancel(self, face: InnerTask) -> None:
        if self._state == SUSPENDED and face._must and self._mask <= face._depth:
            if not isinstance(self._wait, Wait):
                self._cancel_inner(face, face._msg)
                return
            face._must = False
            wait, self._wait = self._wait, None
            wait._abandon(self)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # every fiber is a FiberCore
            self._cause = Cause((TaskCancel(face._make_cancelled_error()),))
            self._rv = FAIL
            self._drive()
        elif face._must:
            self._attn = True


hand_over(slow_interrupt=_interrupt_here, Interrupt=Interrupt, Cause=Cause)
