"""Coroutine bodies in a fiber: what they await, what is thrown in, what leaves them (PD4)."""

from __future__ import annotations

from asyncio import CancelledError
from typing import Any

from fibers.cause import (
    Cause,
    Die,
    FiberDeadlockError,
    FiberInterrupted,
    TaskCancel,
    forget_traceback,
    interrupt_error,
    landed,
)
from fibers.loop import traps
from fibers.loop.groups import WithGroups
from fibers.loop.inner_task import InnerTask
from fibers.loop.judging import classify, clear_await, judged, passed_on, task_cancel, user_part
from fibers.loop.marks import Caught, Declares
from fibers.loop.native import hand_over, twins
from fibers.loop.protocol import FAIL, NEXT, Node
from fibers.loop.room import has_room


def _future_done(self: WithBodies, future: Any) -> None:
    """What the body awaited has ended."""
    if self._wait is not future:
        return
    self._wait = None
    if self._rare.cut:
        self._own_rare().cut = False
        self._rv = FAIL
        self._cause = self._joined_by(future)
    elif self._attn and not future.cancelled():
        # Something else will be thrown: its failure counts as looked at all the same.
        future.exception()
    self._drive()
    del self  # see _drive


@twins("_future_done")
class WithBodies(WithGroups):
    """A fiber that runs coroutines."""

    __slots__ = ()

    def _await_future(self, yielded: Any) -> Any:
        """A body yielded something that is no effect: asyncio's side of the house."""
        if yielded is None:  # after a throw: _run sees to it otherwise
            return self._yield_turn()
        try:
            blocking = yielded._asyncio_future_blocking
        except AttributeError:
            blocking = None
        if blocking:
            queue = self._queue
            yielded._asyncio_future_blocking = False
            if type(yielded) is InnerTask and yielded._fiber is self:
                raise FiberDeadlockError(
                    f"fiber #{self.id} would wait for itself: Task awaits itself"
                )
            if yielded.get_loop() is not queue.loop:
                raise RuntimeError(
                    f"fiber #{self.id} got a future of a different loop: {yielded!r}"
                )
            yielded.add_done_callback(self._future_done, context=queue.context)
            return self._suspend(yielded)
        raise RuntimeError(
            f"a body in a fiber awaited {yielded!r}, which is neither an effect nor an asyncio "
            "future"
        )

    _future_done = _future_done  # a method, and by its own name for the twin

    def _throw_into(self, coro: Any) -> Any:
        cause = self._cause
        if cause is self._icause and (len(self._stack) < 2 or type(self._stack[-2]) is not Caught):
            exc = self._throwing_own(cause)
        else:
            exc = self._exception_for(cause)
        del cause  # what is thrown leads to this frame
        yielded: Any = None
        try:
            yielded = coro.throw(exc)
            outcome: Any = NEXT
            if self._thrown is not None:
                self._mark()
        except StopIteration as stop:
            if self._thrown is not None:
                self._mark()
            self._stack.pop()
            outcome = stop.value
            coro = None
        except BaseException as raised:
            if self._thrown is not None and raised is exc:
                outcome = self._passed()
            else:
                if self._thrown is not None:
                    self._mark()
                self._stack.pop()
                outcome = self._left(raised)
            coro = None
        clear_await(exc.__traceback__)
        if coro is not None:
            if isinstance(yielded, Node):
                self._next = yielded
            else:
                outcome = self._await_future(yielded)
        del self, coro, exc, yielded  # see _drive
        return outcome

    def _throwing_own(self, cause: Cause[Any]) -> BaseException:
        """This fiber's own interrupt, for a body that has seen nothing yet. Most let it pass: the
        record is made when one does not, or opens a region on its way.
        """
        exc = interrupt_error(cause.reasons[0])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # a fiber's own cause holds interrupts only
        self._delivered += 1
        for failing in self._rare.groups or ():
            failing.dropped_own |= not traps.has_raised(failing.group)
        for face in self._rare.asked or ():
            if self._mask <= face._depth:
                face._must = False  # see _deliver
        again = self._pend and not self._mask
        if again:
            self._pend = False
        self._thrown = (exc, cause, again)
        return exc

    def _passed(self) -> Any:
        """A body let its fiber's own interrupt pass, and nothing else happened in it."""
        assert self._thrown is not None
        _, cause, again = self._thrown
        self._thrown = None
        self._stack.pop()
        if again:
            self._pend = True
            cause = landed(cause, self._own_cause())
        self._cause = cause
        return FAIL

    def _mark(self) -> Caught:
        """The record of the body on top of the stack."""
        stack = self._stack
        below = stack[-2] if len(stack) > 1 else None
        if type(below) is Caught:
            return below
        mark = Caught()
        if self._thrown is not None:
            mark.exc, mark.cause, mark.rearm = self._thrown
            mark.own = mark.cause
            self._thrown = None
        stack.insert(-1, mark)
        return mark

    def _exception_for(self, cause: Cause[Any]) -> BaseException:
        """What the body on top sees of ``cause``."""
        mark = self._mark()
        own = self._own_interrupt(cause)
        exc: BaseException
        if own is not None:
            exc = interrupt_error(own)
            self._deliver(mark, cause)
        else:
            chosen = cause._chosen()
            travelling = None if chosen is not None else task_cancel(cause)
            if travelling is not None:
                exc = travelling.exc
            else:
                exc = cause.squash()
                if chosen is not None:
                    mark.remember(chosen)
        mark.exc = exc
        mark.cause = cause
        return exc

    def _deliver(self, mark: Caught, cause: Cause[Any]) -> None:
        """The fiber's own interrupt goes into the body of ``mark``."""
        mark.own = cause
        self._delivered += 1
        for failing in self._rare.groups or ():
            failing.dropped_own |= not traps.has_raised(failing.group)
        # Both asked for in one tick are one CancelledError, as two cancel() calls are.
        for face in self._rare.asked or ():
            if self._mask <= face._depth:
                face._must = False
        if self._pend and not self._mask:
            self._pend = False
            mark.rearm = True

    def _left(self, exc: BaseException) -> Any:
        """``exc`` left a body, whose coroutine is off the stack: which cause is it?"""
        stack = self._stack
        mark: Caught | None = None
        raises: tuple[type[BaseException], ...] = ()
        name: str | None = None
        if stack and type(stack[-1]) is Caught:
            mark = stack.pop()
        if stack and type(stack[-1]) is Declares:
            declared: Declares = stack.pop()
            raises, name = declared.raises, declared.name
        tb = user_part(exc.__traceback__)
        cause: Cause[Any]
        if isinstance(exc, CancelledError):
            if mark is not None and mark.own is not None and self._is_own(exc):
                cause = judged(mark.own, raises)
            elif any(self._mask <= face._depth for face in self._rare.asked or ()):
                cause = Cause((TaskCancel(exc),))
            else:
                cause = Cause((Die(exc, tb),))
        elif isinstance(exc, FiberInterrupted):
            cause = exc.cause
        else:
            seen = None if mark is None else mark.reason_for(exc)
            reason = classify(exc, tb, raises, name, seen)
            if mark is not None and mark.cause is not None and exc is mark.exc:
                cause = passed_on(mark.cause, exc, reason, raises)
            else:
                cause = Cause((reason,))
            forget_traceback(exc)
        if mark is not None:
            broken = mark.close_regions(self)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # every fiber is a FiberCore
            if broken is not None:
                cause = cause.combine(Cause((Die(broken),)))
            if mark.rearm:
                # Thrown where nothing held it, and what the body masked since is closed again.
                self._pend = True
                cause = landed(cause, self._own_cause())
        self._cause = cause
        return self._put_off() if isinstance(exc, RecursionError) and not has_room() else FAIL


hand_over(
    slow_future_done=_future_done,
    slow_throw=WithBodies._throw_into,
    CancelledError=CancelledError,
    Caught=Caught,
    Declares=Declares,
)
