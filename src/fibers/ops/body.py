"""Coroutines and awaitables as part of a fiber: @effect bodies, promise, try_promise."""

from __future__ import annotations

import inspect
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from fibers.cause import Cause, Die, Fail, UnknownError, forget_traceback, interrupt_of
from fibers.loop import hooks
from fibers.loop.inner_task import InnerTask
from fibers.loop.marks import Declares
from fibers.loop.native import hand_over, speed
from fibers.loop.protocol import FAIL, Frame, Node, Wait
from fibers.ops.leaving import leave

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from fibers.loop.run_loop import FiberCore

_EVERY_ERROR = (Exception,)


def enter_body(fiber: FiberCore, coro: Any) -> None:
    """Put a coroutine on top of the stack; the loop sends it the first None.

    Under a mask boundary it gets an inner task of its own (PD11).
    """
    if type(coro) is not CoroutineType:
        coro = _wrapped(coro)
    if fiber._face._depth != fiber._mask:
        fiber._face = InnerTask(fiber, fiber._mask)
        hooks.make_current(fiber._queue.loop, fiber._face)
    fiber._stack.append(coro)


async def _wrapped(awaitable: Awaitable[Any]) -> Any:
    """Coroutine-like things that are no coroutines: other compilers' and hand-written ones."""
    if not inspect.isawaitable(awaitable):
        # Of a promise: @effect has seen that its function is a coroutine function.
        raise TypeError(
            f"the function given to Effect.promise returned {awaitable!r}, which can't be awaited: "
            "make it `async def`, or use Effect.sync for a plain function"
        )
    return await awaitable


hand_over(enter_body=enter_body)


class _BodyFields:
    """What a call of an @effect function consists of."""

    __slots__ = ("args", "declares", "f", "kwargs")

    def __init__(
        self,
        f: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        declares: Declares | None,
    ) -> None:
        self.f: Callable[..., Any] = f
        self.args: tuple[Any, ...] = args
        self.kwargs: dict[str, Any] = kwargs
        self.declares: Declares | None = declares


if TYPE_CHECKING or speed is None:
    _BodyBase = _BodyFields
else:
    _BodyBase = speed.Body


class BodyOp(_BodyBase, Node):
    """A call of an @effect function: a new coroutine at each run."""

    __slots__ = ()

    def _ev(self, fiber: FiberCore) -> Any:
        coro = self.f(*self.args, **self.kwargs)
        if self.declares is not None:
            fiber._stack.append(self.declares)
        if type(coro) is CoroutineType and fiber._face._depth == fiber._mask:
            fiber._stack.append(coro)
        else:
            enter_body(fiber, coro)
        return None

    def __reduce__(self) -> Any:
        return type(self), (self.f, self.args, self.kwargs, self.declares)  # see SucceedOp

    def _label(self) -> str:
        return getattr(self.f, "__qualname__", repr(self.f))


class FutureWait(Wait):
    """A future or task that is only waited for: an interrupt stops the waiting and leaves it alone
    (WI1, VF1).
    """

    __slots__ = ("fiber", "future", "quiet")

    def __init__(self, fiber: FiberCore, future: Any, *, quiet: bool) -> None:
        self.fiber: FiberCore = fiber
        self.future: Any = future
        # Who was told to stop by a signal may end as it likes (PR4).
        self.quiet: bool = quiet

    def outcome(self) -> Any:
        """How the future ended, as a step says it: its value, or FAIL."""
        future = self.future
        if future.cancelled():
            # Nobody asked this fiber to end: a defect, never its interrupt (PD6).
            self.fiber._cause = Cause((Die(future._make_cancelled_error()),))
            return FAIL
        exc = future.exception()
        if exc is not None:
            self.fiber._cause = Cause((Fail(exc, exc.__traceback__),))
            return FAIL
        return future.result()

    def done(self, future: Any) -> None:
        """The future's callback: the fiber goes on, unless it waits no longer."""
        if self.fiber._wait is self:
            self.fiber._wake(self.outcome())

    def _abandon(self, fiber: FiberCore) -> None:
        loop = fiber._queue.loop
        if loop is None or loop.is_closed():
            self.future.remove_done_callback(self.done)
        else:
            leave(loop, self.future, self.done)
        if self.quiet:
            self.future.add_done_callback(_retrieve)

    def _waits_for(self) -> Iterable[Any]:
        return (self.future,)


def _retrieve(future: Any) -> None:
    """Nobody looks at this failure any more: not even asyncio's "never retrieved"."""
    if not future.cancelled():
        future.exception()


class _Rejected(Frame):
    """What a promise's failure becomes: a defect, or what ``catch`` makes of it (PR1, PR2).

    Inside, a plain exception arrives as a Fail; a defect of an awaited effect stays one (PD4).
    """

    __slots__ = ("catch",)

    def __init__(self, catch: Callable[[Exception], Exception] | None) -> None:
        self.catch = catch

    def _err(self, fiber: FiberCore, cause: Cause[Any]) -> Any:
        fiber._cause = Cause(
            rejected(r.error, self.catch, r._tb) if isinstance(r, Fail) else r
            for r in cause.reasons
        )
        return FAIL


def rejected(
    exc: BaseException, catch: Callable[[Exception], Exception] | None, tb: Any = None
) -> Fail[Any] | Die:
    """What a promise that raised ``exc`` ends with: what ``catch`` makes of it, else a defect."""
    if catch is None or not isinstance(exc, Exception):
        return Die(exc, tb)
    return Fail(catch(exc), tb, "try_promise")


def unknown(exc: Exception) -> UnknownError:
    """The error of a try_promise without ``catch``."""
    error = UnknownError(f"{type(exc).__name__}: {exc}")
    error.__cause__ = exc
    return error


class AbortsSignal(Frame):
    """The frame under a promise with a signal."""

    __slots__ = ()

    def abort(self) -> None:
        """Tell whoever listens to stop."""
        raise NotImplementedError


class _Told:
    """A coroutine that is interrupted finds its signal aborted: its cleanup may wait for work that
    stops by that alone.
    """

    __slots__ = ("abort", "coro")

    def __init__(self, coro: Any, abort: Callable[[], None]) -> None:
        self.coro = coro
        self.abort = abort

    def __del__(self) -> None:
        # One that was interrupted before its first step, too: nobody else closes that.
        self.coro.close()

    def __await__(self) -> _Told:
        return self

    def __iter__(self) -> _Told:
        return self

    def __next__(self) -> Any:
        return self.coro.send(None)

    def send(self, value: Any) -> Any:
        return self.coro.send(value)

    def throw(self, exc: BaseException) -> Any:
        if interrupt_of(exc) is not None:
            self.abort()
        return self.coro.throw(exc)

    def close(self) -> None:
        self.coro.close()

    # For dumps, which follow the chain of awaits.
    @property
    def cr_frame(self) -> Any:
        return self.coro.cr_frame

    @property
    def cr_await(self) -> Any:
        return self.coro.cr_await


class PromiseOp(Node):
    """promise and try_promise: the thunk's coroutine is a body of this fiber, its future is waited
    for. ``make_signal`` gives the thunk's argument and a frame that aborts it (PR4), where wanted.
    """

    __slots__ = ("make_signal", "mapped", "thunk", "tried")

    def __init__(
        self,
        thunk: Callable[..., Any],
        make_signal: Callable[[], tuple[Any, AbortsSignal]] | None,
        *,
        tried: bool = False,
        catch: Callable[[Exception], Exception] | None = None,
    ) -> None:
        self.thunk: Callable[..., Any] = thunk
        self.make_signal: Callable[[], tuple[Any, AbortsSignal]] | None = make_signal
        self.tried: bool = tried
        self.mapped: Callable[[Exception], Exception] | None = catch

    def _ev(self, fiber: FiberCore) -> Any:
        stack = fiber._stack
        args: tuple[Any, ...] = ()
        told: AbortsSignal | None = None
        if self.make_signal is not None:
            signal, told = self.make_signal()
            stack.append(told)
            args = (signal,)
        if self.tried:
            stack.append(_Rejected(self.mapped))
            try:
                given = self.thunk(*args)
            except Exception as exc:  # noqa: BLE001  # whatever the thunk raises is the effect's failure
                tb = exc.__traceback__
                forget_traceback(exc)
                fiber._cause = Cause((Fail(exc, tb and tb.tb_next),))
                return FAIL
            stack.append(Declares(_EVERY_ERROR, "try_promise"))
        else:
            given = self.thunk(*args)
        if type(given) is CoroutineType:
            enter_body(fiber, given if told is None else _Told(given, told.abort))
            return None
        if getattr(given, "_asyncio_future_blocking", None) is not None:
            if not self.tried:
                stack.append(_Rejected(None))
            wait = FutureWait(fiber, given, quiet=self.make_signal is not None)
            if given.done():
                return wait.outcome()
            given.add_done_callback(wait.done, context=fiber._queue.context)
            return fiber._suspend(wait)
        enter_body(fiber, given)
        return None

    def _label(self) -> str:
        return f"promise({getattr(self.thunk, '__qualname__', self.thunk)!s})"
