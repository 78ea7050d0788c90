"""Fiber: the public face of a running effect, and asyncio's view of it (PD11)."""

from __future__ import annotations

import asyncio
import logging
import sys
from asyncio import CancelledError, InvalidStateError
from collections.abc import Awaitable, Callable, Generator, Iterable
from typing import TYPE_CHECKING, Any, Generic, Never, Self, TypeVar, cast

from typing_extensions import TypeVar as TypeVarWithDefault

from fibers import unhandled
from fibers.cause import Cause, FiberInterrupted, Interrupt
from fibers.effect import Effect
from fibers.loop import hooks, traps
from fibers.loop.hooks import offline_task, task_in, this_thread
from fibers.loop.hosted_task import HostedTask
from fibers.loop.inner_task import InnerTask
from fibers.loop.native import hand_over, twins
from fibers.loop.observing import Observer
from fibers.loop.run_loop import FiberCore
from fibers.loop.states import ENDED, OP_BUDGET_PRIMITIVES, STATE_NAMES
from fibers.misplaced import check_function, check_scope, checked_fibers
from fibers.ops import wait
from fibers.ops.basic import BREATHER

if TYPE_CHECKING:
    import contextvars

    from fibers.exit import Exit
    from fibers.scope import Scope

A = TypeVar("A")
E = TypeVar("E", bound=Exception)
A_co = TypeVarWithDefault("A_co", covariant=True)
E_co = TypeVarWithDefault("E_co", bound=Exception, covariant=True, default=Never)

_log = logging.getLogger("fibers")


@twins("__await__")
class Fiber(FiberCore, Awaitable[A_co], Generic[A_co, E_co]):
    """A running effect: the unit of ownership.

    Made by fork, ``run_fork`` and ``Scope.fork``, never by its constructor. ``await fiber`` joins.
    For asyncio it is a task: ``cancel()`` is an interrupt request that obeys masks; gather, wait
    and wait_for take it.
    """

    __slots__ = ()

    # ------------------------------------------------------------------ looking

    def poll(self) -> Exit[A_co, E_co] | None:
        """The exit, or None while it runs. Counts as observing a failure (PD8)."""
        if self._state != ENDED:
            return None
        self._seen = True
        return self._exit_made()  # type: ignore[no-any-return]  # a cast would cost a call

    @property
    def forked_at(self) -> str:
        """``file:line`` of the fork, or "an edge"."""
        if self._site is None:
            return "an edge"
        code, offset = self._site
        lines = (at for start, end, at in code.co_lines() if start <= offset < end)
        return f"{code.co_filename}:{next(lines, None) or code.co_firstlineno}"

    # ------------------------------------------------------------------ waiting

    def join(self) -> Effect[A_co, E_co]:
        """Its value, or its own failure. An interrupted fiber fails the joiner with its Interrupt,
        FiberInterrupted in a body (PD14). FiberDeadlockError for the running fiber itself (PD9).
        """
        return _Join(self, as_exit=False)

    def __await__(self) -> Generator[Any, Any, A_co]:
        loop = this_thread.step.loop
        inside = offline_task() if loop is None else task_in(loop)
        kind = type(inside)  # pyright: ignore[reportUnknownVariableType]  # any class
        in_fiber = kind is InnerTask or kind is HostedTask
        if in_fiber and self._state == ENDED and self._ok and not inside._fiber._attn:
            # Its value without a way through the run loop. But an interrupt of the one that
            # waits lands here (WI2), and nobody gets for ever what costs no turn (WI9).
            queue = self._queue
            if queue.gifts > 0:
                queue.gifts -= 1
                return self._result  # type: ignore[no-any-return]  # a cast would cost a call
            return (yield from self._await_breather())
        del loop, inside, kind  # a failure's traceback keeps this frame (PD13)
        if traps.is_wait_for(sys._getframe(1)):
            return (yield from self._await_in_wait_for())
        if in_fiber:
            return (yield wait.JoinWait(self))  # type: ignore[no-any-return]  # see above
        return (yield from self._await_outside())

    def _await_in_wait_for(self) -> Generator[Any, Any, A_co]:
        """``__await__`` by wait_for, which cancels what it waits for by being cancelled itself
        while it awaits it (3.12+; 3.11: without a timeout).
        """
        return self.join().on_interrupt(lambda _: self.interrupt(by=None)).__await__()

    def _await_breather(self) -> Generator[Any, Any, A_co]:
        """``__await__`` of an ended fiber, with a turn of the loop."""
        self._queue.gifts = OP_BUDGET_PRIMITIVES
        yield BREATHER
        return cast("A_co", self._result)

    def _await_outside(self) -> Generator[Any, Any, A_co]:
        """``__await__`` in a plain task."""
        return self.join().__await__()

    def exit(self) -> Effect[Exit[A_co, E_co], Never]:
        """Wait until it has ended; how it did is a value (FL4)."""
        return _Join(self, as_exit=True)

    @staticmethod
    def join_all(fibers: Iterable[Fiber[A, E]]) -> Effect[list[A], E]:
        """All values in the order given; fails as soon as one of them has (FL11)."""
        return _JoinAll(cast("list[FiberCore]", list(checked_fibers(fibers, "Fiber.join_all"))))

    @staticmethod
    def await_all(fibers: Iterable[Fiber[A, E]]) -> Effect[list[Exit[A, E]], Never]:
        """All exits in the order given (FL12)."""
        return _AwaitAll(cast("list[FiberCore]", list(checked_fibers(fibers, "Fiber.await_all"))))

    def add_observer(self, f: Callable[[Exit[A_co, E_co]], None]) -> Callable[[], None]:
        """Call ``f(exit)`` when it ends, or now if it has (FL15). Gives a function that stops it.
        ``f`` runs inside the end of the fiber: what it raises is logged.
        """
        check_function(f, "add_observer")
        self._seen = True
        observer = _Callback(f)
        if self._state == ENDED:
            observer._fiber_done(self)
        else:
            self._watch(observer)

        def stop() -> None:
            # The second for one that is removed while the end is being told.
            self._unwatch(observer)
            observer.f = None

        return stop

    def ignore_failure(self) -> Self:
        """A failure of this fiber is nobody's business: no unhandled-failure hook (PD8)."""
        self._seen = True
        return self

    # ------------------------------------------------------------------ ending

    def interrupt(
        self, *, by: int | None = wait.MINE, reason: str | None = None, again: bool = False
    ) -> Effect[None, Never]:
        """Ask it to end and wait until it has, finalizers included (WI6). Never raises its failure.

        ``by`` is the interruptor's id (default: the fiber that runs this); ``again`` throws once
        more into a body that swallowed the first (PD2).
        """
        return _InterruptOne(self, by, reason, again)

    @staticmethod
    def interrupt_all(
        fibers: Iterable[Fiber[Any, Any]],
        *,
        by: int | None = wait.MINE,
        reason: str | None = None,
    ) -> Effect[None, Never]:
        """Interrupt all, then wait for all: each is signalled before any is awaited (FL13)."""
        return _InterruptAll(list(checked_fibers(fibers, "Fiber.interrupt_all")), by, reason)

    def interrupt_unsafe(
        self, *, by: int | None = None, reason: str | None = None, again: bool = False
    ) -> None:
        """Ask it to end, now and without waiting: a plain call, from any thread. The synchronous
        part of its finalizers has run when this returns (WI1).
        """
        self._interrupt_now(Interrupt(by, reason), again)

    def run_in(self, scope: Scope) -> Self:
        """Let ``scope`` own it from now on; a closed scope interrupts it at once (FO11)."""
        check_scope(scope, "run_in")
        if self._state != ENDED:
            if scope._is_closed:
                self._interrupt_now(Interrupt(self.id, "scope closed"), again=False)
            else:
                if self._owner is not None and self._owner is not scope:
                    self._owner._drop(self)
                self._owner = scope
                scope._hold(self)
        return self

    # ------------------------------------------------------------------ a failure nobody handles

    def _failed(self, owner: Any) -> None:
        if not self._seen and self._is_failure():
            # Only such a fiber has anything to say when its last reference goes. With __del__ in
            # every fiber, each would pay for a call at its end.
            self.__class__ = _unseen_kind(type(self))  # same fields, one method more
            if owner is not None:
                owner._note_unheard(self)

    def _is_failure(self) -> bool:
        if self._ok or self._result is self._icause:
            return False
        return not self._result.has_interrupts_only

    def _report(self) -> None:
        if not self._seen:
            self._seen = True
            unhandled.report(self, self._result)

    # ------------------------------------------------------------------ asyncio's view

    def cancel(self, msg: object = None) -> bool:
        """An interrupt request by nobody's fiber, through the queue; False if it has ended."""
        if self._state == ENDED:
            return False
        why = Interrupt(None, None if msg is None else str(msg))
        loop = self._queue.loop
        if loop is None:
            self._interrupt_here(why)
        elif hooks.running_loop() is loop:
            loop.call_soon(self._interrupt_here, why)
        else:
            loop.call_soon_threadsafe(self._interrupt_here, why)
        return True

    def cancelling(self) -> int:
        """How many different interrupts it was asked for."""
        return len(self._icause.reasons) if self._icause is not None else 0

    def uncancel(self) -> int:
        """An interrupt can't be taken back: the number stays."""
        return self.cancelling()

    def cancelled(self) -> bool:
        """Whether it has ended by interrupts and nothing else."""
        return self._state == ENDED and not self._ok and self._result.has_interrupts_only

    def result(self) -> A_co:
        """The value of an ended fiber. Raises its error, CancelledError if it was interrupted,
        InvalidStateError while it runs. Counts as observing a failure (PD8).
        """
        self._check_done("Result")
        self._seen = True
        if self._ok:
            return cast("A_co", self._result)
        if self.cancelled():
            raise self._make_cancelled_error()
        raise self._result.squash()

    def exception(self) -> BaseException | None:
        """The error of an ended fiber, None after a success. Raises and counts as ``result``."""
        self._check_done("Exception")
        self._seen = True
        if self._ok:
            return None
        if self.cancelled():
            raise self._make_cancelled_error()
        return cast("BaseException", self._result.squash())

    def _check_done(self, what: str) -> None:
        if self._state != ENDED:
            raise InvalidStateError(f"{what} is not ready.")

    def _make_cancelled_error(self) -> CancelledError:
        message = self._cancel_message
        return CancelledError() if message is None else CancelledError(message)

    @property
    def _cancel_message(self) -> str | None:
        if self._icause is None:
            return None
        first = self._icause.reasons[0]
        return first.reason if isinstance(first, Interrupt) else None

    @property
    def _callbacks(self) -> list[tuple[Any, Any]]:
        # anyio's search for the root task reads it of every task of the loop.
        return [(o.fn, o.context) for o in self._observers or () if isinstance(o, _DoneCallback)]

    @property
    def _loop(self) -> Any:
        return self._queue.loop

    def set_result(self, result: object) -> None:
        """RuntimeError: the effect alone decides how it ends."""
        raise RuntimeError("Task does not support set_result operation")

    def set_exception(self, exception: object) -> None:
        """RuntimeError: the effect alone decides how it ends."""
        raise RuntimeError("Task does not support set_exception operation")

    def add_done_callback(
        self, fn: Callable[[Any], object], *, context: contextvars.Context | None = None
    ) -> None:
        """Let the loop call ``fn(fiber)`` once it has ended, in ``context``. Counts as observing a
        failure (PD8).
        """
        check_function(fn, "add_done_callback")
        self._call_when_done(fn, None, context)

    def _call_when_done(
        self,
        fn: Callable[[Any], object],
        task: InnerTask | None,
        context: contextvars.Context | None,
    ) -> None:
        self._seen = True
        callback = _DoneCallback(fn, task, context)
        if self._state == ENDED:
            callback._fiber_done(self)
        else:
            self._watch(callback)

    def remove_done_callback(self, fn: Callable[[Any], object]) -> int:
        """Forget ``fn``; gives how often it was registered."""
        observers = self._observers or []
        gone = [o for o in observers if isinstance(o, _DoneCallback) and o.fn == fn]
        for callback in gone:
            self._unwatch(callback)
        return len(gone)

    def __reduce__(self) -> Never:
        # Else a copy would take itself for the same run, stack and all.
        raise TypeError(
            f"fiber #{self.id} runs once, here: it can't be copied or pickled; copy the effect, or "
            "pass its exit on"
        )

    def __repr__(self) -> str:
        if self._state == ENDED:
            how = "succeeded" if self._ok else f"ended: {self._result}"
        else:
            how = STATE_NAMES[self._state]
        name = "" if self._name is None else f" {self._name}"
        return f"<Fiber #{self.id}{name} {how}>"


hand_over(
    Fiber=Fiber,
    slow_await=cast("Any", Fiber)._await_in_wait_for,
    wait_for=asyncio.wait_for.__code__,
)


_unseen: dict[type, type] = {}


def _unseen_kind(kind: type) -> type:
    """``kind`` with a last word: the class of fibers that failed while nobody looked (PD8)."""
    made = _unseen.get(kind)
    if made is None:
        made = type(
            kind.__name__, (kind,), {"__slots__": (), "__del__": _tell, "__doc__": kind.__doc__}
        )
        _unseen[kind] = made
    return made


def _tell(fiber: Fiber[Any, Any]) -> None:
    fiber._report()


class _Callback(Observer):
    __slots__ = ("f",)

    def __init__(self, f: Callable[[Any], object]) -> None:
        self.f: Callable[[Any], object] | None = f

    def _fiber_done(self, fiber: FiberCore) -> None:
        if self.f is None:
            return
        try:
            self.f(fiber._exit_made())
        except Exception:  # noqa: BLE001  # logged: an observer must not break the end of a fiber
            _log.exception("an observer of fiber #%d raised", fiber.id)


class _DoneCallback(Observer):
    """asyncio's: called by the loop in its own context, with what it was added to: the fiber, or
    ``task``, an inner task of it. They are equal, but who waits for one may tell it by identity.
    """

    __slots__ = ("context", "fn", "task")

    def __init__(
        self,
        fn: Callable[[Any], object],
        task: InnerTask | None,
        context: contextvars.Context | None,
    ) -> None:
        self.fn = fn
        self.task = task
        self.context = context

    def _fiber_done(self, fiber: FiberCore) -> None:
        loop = fiber._queue.loop
        task = self.task or fiber
        if self.task is not None:
            # Who waits for an inner task asks it for the result, and may have no other hold on the
            # fiber. No cycle: an ended fiber holds no inner task.
            self.task._fiber = fiber
        if loop is None:
            self.fn(task)
        elif not loop.is_closed():
            loop.call_soon(self.fn, task, context=self.context)


class _Join(wait.JoinOp, Effect[Any, Any]):
    __slots__ = ()


class _JoinAll(wait.JoinAllOp, Effect[Any, Any]):
    __slots__ = ()


class _AwaitAll(wait.AwaitAllOp, Effect[Any, Any]):
    __slots__ = ()


class _InterruptOne(wait.InterruptOneOp, Effect[Any, Any]):
    __slots__ = ()


class _InterruptAll(wait.InterruptAllOp, Effect[Any, Any]):
    __slots__ = ()


class AsyncFiberError(Exception):
    """``run_sync`` of an effect that has to wait. ``fiber`` goes on where a loop runs (PD15)."""

    def __init__(self, message: str, fiber: Fiber[Any, Any] | None = None) -> None:
        super().__init__(message)
        self.fiber = fiber


def current_fiber() -> Fiber[Any, Any] | None:
    """The fiber whose code runs now, or None."""
    task = hooks.task_of_step()
    if type(task) is InnerTask or type(task) is HostedTask:
        return cast("Fiber[Any, Any]", task._fiber)
    return None


def value_or_raise(fiber: Fiber[A, Any]) -> A:
    """The result of an ended fiber, as an edge gives it: the error itself, or FiberInterrupted
    (PD5, EX8).
    """
    fiber._seen = True
    if fiber._ok:
        return cast("A", fiber._result)
    cause: Cause[Any] = fiber._result
    if cause.has_interrupts_only:
        raise FiberInterrupted(cause)
    raise cause.squash()
