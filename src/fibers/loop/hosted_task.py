"""The task that create_task gives where the task factory is installed (PD11).

It is the inner task of its fiber, and to everybody outside a Future of asyncio's: result and
callbacks are asyncio's own code. How its coroutine is driven and cancelled is the fiber's.

What was rejected: a subclass of asyncio.Task. Its constructor schedules the coroutine itself, and
an instance made past it leaves fields of the C struct empty that later Pythons rely on.
"""

from __future__ import annotations

import asyncio
import reprlib
from asyncio import Future
from typing import TYPE_CHECKING, Any, Protocol, cast, final

from fibers.loop import hooks
from fibers.loop.inner_task import TaskProtocol

if TYPE_CHECKING:
    import contextvars
    from collections.abc import Callable, Generator
    from typing import TextIO

    from fibers.loop.run_loop import FiberCore

_FUTURE: Any = Future
"""Its methods, called past TaskProtocol's."""


class Host(Protocol):
    """What a fiber is that hosts a task."""

    def _task_is_gone(self, task: HostedTask) -> None:
        """Nobody can look at the outcome of ``task`` any more."""


@final
class HostedTask(TaskProtocol, Future[Any]):
    """A coroutine that knows nothing of fibers, as asyncio sees it."""

    # asyncio sets it to False on what it drops on purpose.
    _log_destroy_pending = True
    _held: FiberCore | None = None

    if TYPE_CHECKING:
        _source_traceback: list[Any] | None  # where it was created, in debug mode

    def __init__(
        self,
        fiber: FiberCore,
        coro: Any,
        context: contextvars.Context,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        _FUTURE.__init__(self, loop=loop)
        # Until the end each holds the other; then the task holds the fiber (PD13).
        self._held = fiber
        self._hash = None
        self._depth = 0
        self._num = 0
        self._gave_back = -1
        self._must = False
        self._coro: Any = coro
        self._context = context
        # What left the coroutine when it was cancelled: who asks first gets this very object.
        self._cancelled_exc: asyncio.CancelledError | None = None

    def _ref(self) -> FiberCore | None:
        return self._held

    @property
    def _fiber(self) -> FiberCore:
        return self._known()

    # -- the outcome, told by the fiber

    def _succeed(self, value: Any) -> None:
        self._settle(_FUTURE.set_result, value)

    def _fail(self, exc: BaseException) -> None:
        self._settle(_FUTURE.set_exception, exc)

    def _end_cancelled(self, exc: asyncio.CancelledError | None, reason: str | None) -> None:
        self._cancelled_exc = exc
        self._settle(_FUTURE.cancel, reason if exc is None else self._msg)

    def _settle(self, settle: Callable[[Any, Any], object], outcome: Any) -> None:
        if self._has_ended():
            return  # somebody called a Future's set_result past ours
        try:
            settle(self, outcome)
        except Exception as exc:  # noqa: BLE001  # told: it must not stop the end of the fiber
            # The outcome is there. The loop did not take a callback: it is closed, as a rule. It is
            # told a turn later, as newer loops enter the task's Context for it: this step is there.
            if not self._loop.is_closed():
                lost = {"exception": exc, "task": self}
                self._loop.call_soon(tell_loop, self, "a done callback was lost", lost)

    def _has_ended(self) -> bool:
        return bool(_FUTURE.done(self))

    # -- asyncio's protocol, where a task's differs from a future's

    @property
    def _msg(self) -> Any:
        return self._cancel_message

    @_msg.setter
    def _msg(self, value: Any) -> None:
        self._cancel_message = value

    def cancel(self, msg: Any = None) -> bool:
        """Throw CancelledError(msg) into the innermost body, at its next step."""
        self._log_traceback = False
        return TaskProtocol.cancel(self, msg)

    def result(self) -> Any:
        """The value, or the error raised; CancelledError and InvalidStateError as in asyncio."""
        try:
            self._note_heard()
            if self._cancelled_exc is not None:
                raise self._make_cancelled_error()
            return _FUTURE.result(self)
        finally:
            del self  # the error's traceback keeps this frame, and the task the error (PD13)

    def exception(self) -> BaseException | None:
        """The error or None; CancelledError and InvalidStateError as in asyncio."""
        try:
            self._note_heard()
            if self._cancelled_exc is not None:
                raise self._make_cancelled_error()
            exc: BaseException | None = _FUTURE.exception(self)
            return exc
        finally:
            del self  # see result

    def _note_heard(self) -> None:
        # Not left to the flag that the future has: in a cycle the fiber may go first.
        if self._held is not None and self._has_ended():
            self._held._seen = True

    def _make_cancelled_error(self) -> asyncio.CancelledError:
        exc, self._cancelled_exc = self._cancelled_exc, None
        return TaskProtocol._make_cancelled_error(self) if exc is None else exc

    def __await__(self) -> Generator[Any, None, Any]:
        try:
            if not self.done():
                self._asyncio_future_blocking = True
                yield self  # a task of asyncio's throws the error in here
                if not self.done():
                    raise RuntimeError("await wasn't used with future")
            return self.result()
        finally:
            del self  # see result

    __iter__ = __await__

    # -- what others read of a task

    def set_name(self, value: object) -> None:
        """Name it; None leaves the name alone: 3.13.0's create_task says None for no name."""
        if value is not None:
            TaskProtocol.set_name(self, value)

    def get_coro(self) -> Any:
        """The coroutine; None where an eager start was the whole of it, as in asyncio."""
        return self._coro

    def get_context(self) -> contextvars.Context:
        """The Context that it runs in."""
        return self._context

    def get_stack(self, *, limit: int | None = None) -> list[Any]:
        """The frames of the suspended coroutine, or of the traceback that it ended with."""
        return hooks.task_stack(self, limit)

    def print_stack(self, *, limit: int | None = None, file: TextIO | None = None) -> None:
        """``get_stack`` in the form of a traceback."""
        hooks.print_task_stack(self, limit, file)

    @reprlib.recursive_repr()
    def __repr__(self) -> str:
        # "Task": who reads logs by their form finds what he is used to.
        return f"<Task {' '.join(hooks.task_description(self))}>"

    def __del__(self) -> None:
        if self._held is None:
            return  # __init__ raised
        if self._has_ended():
            cast("Host", self._held)._task_is_gone(self)
        elif self._log_destroy_pending:
            # With its loop: one that runs holds it (AT9).
            tell_loop(self, "Task was destroyed but it is pending!", {"task": self})


def tell_loop(task: HostedTask, message: str, more: dict[str, Any]) -> None:
    """Tell the loop's exception handler about a task, in asyncio's form."""
    context = {"message": message, **more}
    if task._source_traceback:
        context["source_traceback"] = task._source_traceback
    task._loop.call_exception_handler(context)
