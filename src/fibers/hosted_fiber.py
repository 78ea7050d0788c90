"""A fiber around a coroutine that takes itself for a task of asyncio's (PD11).

asyncio's semantics hold to the letter, down to the turn of the loop in which a step runs: a hosted
fiber is started, yields and is woken through the loop's own callbacks and not through the ready
queue, which serves fibers in another order.
"""

from __future__ import annotations

import contextvars
import functools
import weakref
from asyncio import CancelledError, InvalidStateError
from types import CoroutineType
from typing import TYPE_CHECKING, Any, final

from fibers.cause import EMPTY, Cause, Die, TaskCancel, interrupt_of
from fibers.fiber import Fiber
from fibers.loop import hooks
from fibers.loop.hosted_task import HostedTask, tell_loop
from fibers.loop.inner_task import TaskProtocol
from fibers.loop.protocol import SUSPEND, Signal
from fibers.loop.queue import queue_of
from fibers.loop.run_loop import FiberCore
from fibers.loop.states import ENDED, READY
from fibers.ops.basic import SucceedOp

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Generator

    from fibers.loop.protocol import Node
    from fibers.ops.fork import Site

_NO_EFFECT = SucceedOp(None)
_FATAL = (KeyboardInterrupt, SystemExit)


class _Step:
    """One step of a hosted fiber, as the loop calls it: at its turn, or when a future is done. Not
    a bound method: the loop's debug mode tells by its name which task was slow.
    """

    __slots__ = ("fiber",)

    def __init__(self, fiber: HostedFiber) -> None:
        self.fiber = fiber

    def __call__(self, *future: Any) -> None:
        fiber = self.fiber
        try:
            fiber._begin_turn()
            if future:
                FiberCore._future_done(fiber, *future)
            elif fiber._stale:
                # It was interrupted while it waited for its turn, and has run since.
                fiber._stale -= 1
            else:
                fiber._drive()
        finally:
            fatal = fiber._end_turn()
            del self, fiber, future  # see FiberCore._drive
        if fatal is not None:
            raise fatal

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Step) and other.fiber is self.fiber

    def __hash__(self) -> int:
        return hash(self.fiber)

    def __repr__(self) -> str:
        return f"step of task {self.fiber.get_name()!r}, {self.fiber._coro_name()}"


@final
class HostedFiber(Fiber[Any, Exception]):
    """A fiber around a coroutine that takes itself for a task of asyncio's."""

    __slots__ = ("_fatal", "_own_turn", "_published")

    _forks: type[Fiber[Any, Any]] = Fiber

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        coro: Any,
        name: str,
        context: contextvars.Context,
        env: dict[str, Any],
        site: Site,
    ) -> None:
        super().__init__(queue_of(loop), _NO_EFFECT, context, env, 0, site)
        task = HostedTask(self, coro, context, loop)
        self._face: Any = task
        # For closes: who waits for the task waits for the fiber (SO6).
        self._task: Any = task
        self._published = weakref.ref(task)
        self._name = name
        # On the stack from the start: what comes before the first step is thrown in (as asyncio
        # does), so that a coroutine that never runs is closed and not "never awaited".
        self._stack.append(coro if type(coro) is CoroutineType else _driving(coro))
        self._rv = None
        self._own_turn = False
        self._fatal: BaseException | None = None

    def _spawn(self, effect: Node, mask: int, site: Site) -> FiberCore:
        # A task forks ordinary fibers: only what create_task makes stands for a coroutine.
        context = contextvars.copy_context()
        return self._forks(self._queue, effect, context, self._env, mask, site)

    # ------------------------------------------------------------------ steps, by the loop's turns

    def _begin(self) -> None:
        self._call_soon()
        self._state = READY
        self._register()

    def _begin_now(self) -> None:
        """Run to the first suspension."""
        task: HostedTask = self._task
        self._register()
        try:
            _Step(self)()
            if self._state == ENDED:
                task._coro = None
        finally:
            del self, task  # see FiberCore._drive

    def _call_soon(self) -> None:
        self._queue_loop().call_soon(_Step(self), context=self._queue.context)

    def _queue_loop(self) -> asyncio.AbstractEventLoop:
        loop = self._queue.loop
        assert loop is not None
        return loop

    @property
    def _future_done(self) -> Any:  # type: ignore[override]  # called and compared, as the method
        return _Step(self)

    def _begin_turn(self) -> None:
        if self._state != ENDED and self._task._has_ended():
            # As in asyncio: a task that was settled past its own set_result takes no more steps.
            raise InvalidStateError(f"__step(): already done: {self._task!r}")
        self._own_turn = True

    def _end_turn(self) -> BaseException | None:
        """What has to leave the loop."""
        self._own_turn = False
        fatal, self._fatal = self._fatal, None
        return fatal

    def _yield_turn(self) -> Signal:
        self._call_soon()
        self._state = READY
        return SUSPEND

    def _attend(self, value: Any) -> Any:
        if value is SUSPEND and self._state == READY and not (self._pend and not self._mask):
            # Cancelled in the segment that yielded: asyncio throws at the next step, a turn later.
            return SUSPEND
        return super()._attend(value)

    def _await_future(self, yielded: Any) -> Any:
        if yielded is None:
            self._rv = None
            return self._yield_turn()
        # asyncio's checks in asyncio's words, for what a coroutine may get wrong.
        task = self._face
        blocking = getattr(yielded, "_asyncio_future_blocking", None)
        if blocking is None:
            raise RuntimeError(f"Task got bad yield: {yielded!r}")
        if hooks.loop_of(yielded) is not self._queue.loop:
            raise RuntimeError(f"Task {task!r} got Future {yielded!r} attached to a different loop")
        if not blocking:
            raise RuntimeError(
                f"yield was used instead of yield from in task {task!r} with {yielded!r}"
            )
        if _is_of(self, yielded):
            raise RuntimeError(f"Task cannot await on itself: {task!r}")
        yielded._asyncio_future_blocking = False
        yielded.add_done_callback(self._future_done, context=self._queue.context)
        return self._suspend(yielded)

    def _exception_for(self, cause: Cause[Any]) -> BaseException:
        exc = super()._exception_for(cause)
        if isinstance(exc, CancelledError) and interrupt_of(exc) is None:
            # A cancel of asyncio's is told by nothing but the count of requests: once thrown, the
            # exception is the body's alone (anyio's groups take care to leave no cycle).
            mark = self._mark()
            mark.exc = mark.cause = None
            self._cause = EMPTY
        return exc

    def get_name(self) -> str:
        """The task's name, an empty one too."""
        return self._name or ""

    def _coro_name(self) -> str:
        task = self._published()
        coro = None if task is None else task.get_coro()
        return getattr(coro, "__qualname__", "ended")

    def _register(self) -> None:
        self._registered = True
        self._queue.live[self] = None
        hooks.register_task(self._task)

    # ------------------------------------------------------------------ the end

    def _end(self, ok: bool, result: Any) -> Signal:
        if self._children:
            return super()._end(ok, result)  # comes again when they are done (WI8)
        if not ok:
            result = _as_a_task_ends(result)
        self._publish(ok, result)
        signal = super()._end(ok, result)
        self._task = None
        return signal

    def _publish(self, ok: bool, result: Any) -> None:
        task: HostedTask = self._task
        if ok:
            task._succeed(result)
        elif result.has_interrupts_only:
            own = next((r.exc for r in result.reasons if type(r) is TaskCancel), None)
            task._end_cancelled(own, result.reasons[0].reason)
        else:
            exc = result.squash()
            task._fail(exc)
            if isinstance(exc, _FATAL):
                self._leave_loop_with(exc)

    def _leave_loop_with(self, exc: BaseException) -> None:
        """asyncio lets KeyboardInterrupt and SystemExit of a task out of the loop, from its own
        step. Where somebody takes charge of them he does (PD7).
        """
        if self._own_turn and self._queue.on_fatal is None:
            self._fatal = exc
        else:
            self._queue.stop_for(exc)

    # ------------------------------------------------------------------ a failure nobody handles

    def _report(self) -> None:
        self._report_for(self._published())

    def _task_is_gone(self, task: HostedTask) -> None:
        if not self._ok and self._is_failure():
            self._report_for(task)

    def _report_for(self, task: HostedTask | None) -> None:
        """The hook once (PD8); and asyncio's way, where the service listens there. Without a
        handler of its own asyncio would log what the hook has logged.
        """
        if task is not None and not task._log_traceback:
            self._seen = True  # retrieved, or asyncio was told not to mind
        if self._seen:
            return
        super()._report()
        if task is not None:
            task._log_traceback = False
            if self._queue_loop().get_exception_handler() is not None:
                tell_loop(
                    task,
                    "Task exception was never retrieved",
                    {"exception": self._result.squash(), "future": task},
                )


def _is_of(fiber: HostedFiber, future: Any) -> bool:
    """Whether a future is the fiber itself, seen from inside."""
    return isinstance(future, TaskProtocol) and future._ref() is fiber


def _as_a_task_ends(cause: Cause[Any]) -> Cause[Any]:
    """To asyncio a CancelledError that leaves a task is its cancellation, whoever asked for it: no
    failure, and nothing to report. PD6 is for bodies that know fibers.
    """
    return Cause(
        TaskCancel(r.defect) if isinstance(r, Die) and isinstance(r.defect, CancelledError) else r
        for r in cause.reasons
    )


# ---------------------------------------------------------------------------- coroutine-likes


class _Steps:
    """send and throw of something like a coroutine (a generator on 3.11, Cython's), as an await."""

    __slots__ = ("coro",)

    def __init__(self, coro: Any) -> None:
        self.coro = coro

    def __await__(self) -> Generator[Any, Any, Any]:
        coro = self.coro
        yielded = None  # the first yield is reached when it is made: see _driving
        while True:
            try:
                value = yield yielded
            except GeneratorExit:
                coro.close()
                raise
            except BaseException as exc:  # noqa: BLE001  # passed on to the coroutine
                step = functools.partial(coro.throw, exc)
            else:
                step = functools.partial(coro.send, value)
            try:
                yielded = step()
            except StopIteration as stop:
                return stop.value


async def _driven(coro: Any) -> Any:
    return await _Steps(coro)


def _driving(coro: Any) -> Any:
    """A coroutine of Python's own around ``coro``, for the run loop. Started: what is thrown before
    the first step gets to ``coro`` too.
    """
    outer = _driven(coro)
    outer.send(None)
    return outer
