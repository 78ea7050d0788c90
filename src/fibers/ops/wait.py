"""Primitives that wait: for a callback, for time, for another fiber."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fibers.cause import Cause, FiberDeadlockError, Interrupt
from fibers.loop.ends import EndFibers
from fibers.loop.native import hand_over, speed
from fibers.loop.observing import Observer, unwatch, watch
from fibers.loop.protocol import FAIL, NEXT, Frame, Node, Wait, WillJoin, outcome_of
from fibers.loop.states import ENDED
from fibers.ops.finalize import run_finalizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fibers.loop.run_loop import FiberCore


class NeverWait(Wait):
    """What nobody ends but an interrupt."""

    __slots__ = ()

    def _label(self) -> str:
        return "never"


NEVER = NeverWait()


class NeverOp(Node):
    """Waits for ever."""

    __slots__ = ()

    def _ev(self, fiber: FiberCore) -> Any:
        return fiber._suspend(NEVER)


# ---------------------------------------------------------------------------- callback


class _Pending(Wait, Frame):
    """One evaluation of Effect.callback: the first resume wins; later ones are ignored (PR6)."""

    __slots__ = ("cleanup", "fiber", "given", "op")

    def __init__(self, fiber: FiberCore, op: CallbackOp) -> None:
        self.op = op
        # None when it is over: who keeps ``resume`` keeps the fiber no longer (PD13).
        self.fiber: FiberCore | None = fiber
        self.cleanup: Any = None
        self.given: Any = None

    def resume(self, outcome: Any) -> None:
        fiber, self.fiber = self.fiber, None
        if fiber is None:
            return
        self.given = outcome
        if fiber._wait is self:
            fiber._wake_next(_Outcome(outcome))

    def _abandon(self, fiber: FiberCore) -> None:
        self.fiber = None

    def _err(self, fiber: FiberCore, cause: Cause[Any]) -> Any:
        # Only for an interrupt, also one that it was resumed with (PR7).
        if self.cleanup is not None and cause.has_interrupts:
            cleanup, self.cleanup = self.cleanup, None
            return run_finalizer(fiber, None, cause, lambda: cleanup)
        fiber._cause = cause
        return FAIL

    def _label(self) -> str:
        return self.op._awaited()


class _Outcome(Node):
    __slots__ = ("given",)

    def __init__(self, given: Any) -> None:
        self.given = given

    def _ev(self, fiber: FiberCore) -> Any:
        return outcome_of(fiber, self.given)


class CallbackOp(Node):
    """Waits for the first outcome that is handed to the callback ``register`` gets."""

    __slots__ = ("register",)

    def __init__(self, register: Callable[[Callable[[Any], None]], Any]) -> None:
        self.register: Callable[[Callable[[Any], None]], Any] = register

    def _ev(self, fiber: FiberCore) -> Any:
        pending = _Pending(fiber, self)
        try:
            cleanup = self.register(pending.resume)
        except BaseException:
            pending._abandon(fiber)
            raise
        if pending.fiber is None:
            # Resumed while registering: nothing to clean up.
            return outcome_of(fiber, pending.given)
        pending.cleanup = cleanup
        fiber._stack.append(pending)
        return fiber._suspend(pending)

    def _awaited(self) -> str:
        """What the callback will tell of, in a few words for dumps."""
        return "callback"


# ---------------------------------------------------------------------------- other fibers


_MASKED_INTERRUPT = "interrupt (in a region that can't be)"


def _no_wait_for_itself(fiber: FiberCore, target: FiberCore, what: str) -> None:
    if fiber is target:
        raise FiberDeadlockError(
            f"fiber #{fiber.id} would wait for itself: {what} of the running fiber never ends"
        )


class JoinOp(WillJoin):
    """Wait for a fiber, then go on as it did (join), or with its exit."""

    __slots__ = ("as_exit", "target")

    def __init__(self, target: FiberCore, *, as_exit: bool) -> None:
        self.target: FiberCore = target
        self.as_exit: bool = as_exit

    def _ev(self, fiber: FiberCore) -> Any:
        target = self.target
        if target._state == ENDED:
            return joined(fiber, target, self.as_exit)
        _no_wait_for_itself(fiber, target, "exit" if self.as_exit else "join")
        return JoinWait(target, self.as_exit)._ev(fiber)


def joined(fiber: FiberCore, target: FiberCore, as_exit: bool) -> Any:
    """Go on as ``target`` ended, or with its exit. That observes its failure (PD8)."""
    target._seen = True
    if as_exit:
        return target._exit_made()
    if target._ok:
        return target._result
    fiber._cause = target._result
    return FAIL


class _JoinFields:
    """What one join consists of."""

    __slots__ = ("as_exit", "fiber", "target")

    fiber: FiberCore

    def __init__(self, target: FiberCore, as_exit: bool = False) -> None:
        self.target: FiberCore = target
        self.as_exit: bool = as_exit


if TYPE_CHECKING or speed is None:
    _JoinBase = _JoinFields
else:
    _JoinBase = speed.Join


class JoinWait(_JoinBase, Node, Wait, Observer):
    """One join: the node of ``await fiber``, which is evaluated once, and the wait itself."""

    __slots__ = ()

    def _ev(self, fiber: FiberCore) -> Any:
        target = self.target
        if target._state == ENDED:
            return joined(fiber, target, self.as_exit)
        _no_wait_for_itself(fiber, target, "exit" if self.as_exit else "join")
        self.fiber = fiber
        if target._queue is fiber._queue:
            target._watch(self)
        else:
            watch(target, self, fiber)
        return fiber._suspend(self)

    def _fiber_done(self, fiber: FiberCore) -> None:
        waiter = self.fiber
        if waiter._wait is not self:
            return  # an earlier observer interrupted it
        fiber._seen = True
        if self.as_exit:
            waiter._wake(fiber._exit_made())
        elif fiber._ok:
            waiter._wake(fiber._result)
        else:
            waiter._wake_cause(fiber._result)

    def _abandon(self, fiber: FiberCore) -> None:
        unwatch(self.target, self, fiber)

    def _waits_for(self) -> Iterable[Any]:
        return (self.target,)

    def _label(self) -> str:
        return f"{'exit' if self.as_exit else 'join'} of #{self.target.id}"


hand_over(JoinWait=JoinWait)


class JoinAllOp(Node):
    """The values of all, in the order given; fails with the first failure that completes (FL11)."""

    __slots__ = ("targets",)

    def __init__(self, targets: list[FiberCore]) -> None:
        self.targets: list[FiberCore] = targets

    def _ev(self, fiber: FiberCore) -> Any:
        for target in self.targets:
            _no_wait_for_itself(fiber, target, "join")
        for target in self.targets:
            if target._state == ENDED and not target._ok:
                # Only this one's failure is delivered: another's is still unseen (PD8).
                target._seen = True
                fiber._cause = target._result
                return FAIL
        wait = AllWait(fiber, self.targets)
        return wait.values() if not wait.left else fiber._suspend(wait)


class AllWait(Wait, Observer):
    """One wait for the success of all, or for the first failure."""

    __slots__ = ("fiber", "left", "targets")

    def __init__(self, fiber: FiberCore, targets: list[FiberCore]) -> None:
        self.fiber: FiberCore = fiber
        self.targets: list[FiberCore] = targets
        self.left: int = 0
        for target in targets:
            if target._state != ENDED:
                self.left += 1
                watch(target, self, fiber)

    def values(self) -> list[Any]:
        """Of all, in the order given; all have succeeded."""
        return [t._result for t in self.targets]

    def _fiber_done(self, fiber: FiberCore) -> None:
        if self.fiber._wait is not self:
            return
        self.left -= 1
        if not fiber._ok:
            fiber._seen = True
            self._abandon(fiber)
            self.fiber._wake_cause(fiber._result)
        elif not self.left:
            self.fiber._wake(self.values())

    def _abandon(self, fiber: FiberCore) -> None:
        for target in self.targets:
            unwatch(target, self, self.fiber)

    def _waits_for(self) -> Iterable[Any]:
        return [t for t in self.targets if t._state != ENDED]

    def _label(self) -> str:
        return "join of " + ", ".join(f"#{t.id}" for t in self.targets if t._state != ENDED)


class AwaitAllOp(Node, Frame):
    """The exits of all, in the order given, whatever they are."""

    __slots__ = ("targets",)

    def __init__(self, targets: list[FiberCore]) -> None:
        self.targets: list[FiberCore] = targets

    def _ev(self, fiber: FiberCore) -> Any:
        for target in self.targets:
            _no_wait_for_itself(fiber, target, "exit")
        fiber._stack.append(self)
        fiber._next = WaitForEnds(self.targets)
        return NEXT

    def _val(self, fiber: FiberCore, value: Any) -> Any:
        for target in self.targets:
            target._seen = True
        return [t._exit_made() for t in self.targets]


class WaitForEnds(EndFibers):
    """Only the waiting half: nobody is interrupted."""

    __slots__ = ()

    def __init__(
        self,
        targets: list[FiberCore],
        leads_to: Callable[[FiberCore, FiberCore], bool] | None = None,
    ) -> None:
        super().__init__(targets, Interrupt(), leads_to=leads_to)
        self.at: int = len(targets)


class InterruptOneOp(Node):
    """Signal a fiber, then wait until it has ended; its failure is not ours (WI6)."""

    __slots__ = ("again", "by", "reason", "target")

    def __init__(self, target: FiberCore, by: Any, reason: str | None, again: bool) -> None:
        self.target: FiberCore = target
        self.by: Any = by
        self.reason: str | None = reason
        self.again: bool = again

    def _ev(self, fiber: FiberCore) -> Any:
        target = self.target
        why = interrupt_by(fiber, self.by, self.reason)
        if target is fiber:
            if fiber._mask:
                _no_wait_for_itself(fiber, target, _MASKED_INTERRUPT)
            fiber._ask(why, self.again)
            return None
        fiber._next = EndFibers([target], why, again=self.again)
        return NEXT


class InterruptAllOp(Node):
    """Signal all, in order, then wait until all have ended (FL13)."""

    __slots__ = ("by", "reason", "targets")

    def __init__(self, targets: list[FiberCore], by: Any, reason: str | None) -> None:
        self.targets: list[FiberCore] = targets
        self.by: Any = by
        self.reason: str | None = reason

    def _ev(self, fiber: FiberCore) -> Any:
        if fiber._mask:
            for target in self.targets:
                _no_wait_for_itself(fiber, target, _MASKED_INTERRUPT)
        fiber._next = EndFibers(self.targets, interrupt_by(fiber, self.by, self.reason))
        return NEXT


class _Mine:
    """The default of ``by``: the fiber that evaluates the interrupt."""

    def __repr__(self) -> str:
        return "<the interrupting fiber>"


MINE: Any = _Mine()


def interrupt_by(fiber: FiberCore, by: Any, reason: str | None) -> Interrupt:
    """The reason of an interrupt that ``fiber`` evaluates, ``by`` itself where nobody is named."""
    return Interrupt(fiber.id if by is MINE else by, reason)
