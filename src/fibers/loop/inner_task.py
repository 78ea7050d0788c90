"""The task that code inside a fiber sees: asyncio.current_task() (PD11).

It follows asyncio's own protocol (cancel, uncancel, cancelling), which is what lets
asyncio.timeout, TaskGroup, anyio and drivers work inside a fiber, also in a region that can't be
interrupted. Every mask boundary has an inner task of its own, all equal to the fiber by == and
hash: a mask protects what runs under it from what was opened above it, and what was opened above
holds the outer one.
"""

from __future__ import annotations

import sys
import weakref
from asyncio import CancelledError
from typing import TYPE_CHECKING, Any, Final, final

from fibers.loop import traps
from fibers.loop.native import hand_over, speed

if TYPE_CHECKING:
    import asyncio
    import contextvars
    from collections.abc import Callable

    from fibers.loop.run_loop import FiberCore


class TaskProtocol:
    """What every task that stands for a fiber has of asyncio's protocol: cancel, uncancel, and one
    identity with the fiber.
    """

    if TYPE_CHECKING:
        # Here and not in slots: a future of asyncio's has its own layout.
        _ref: Callable[[], FiberCore | None]
        _hash: int | None
        _depth: int
        _num: int
        _gave_back: int
        _must: bool
        _msg: object
    else:
        __slots__ = ()

    def _known(self) -> FiberCore:
        fiber = self._ref()
        if fiber is None:
            raise RuntimeError("the fiber of this task has ended and is gone")
        return fiber

    # -- asyncio's cancellation protocol

    def cancel(self, msg: object = None) -> bool:
        """Throw CancelledError(msg) into the innermost body, as asyncio.Task.cancel does. Never on
        the caller's stack: asyncio.timeout, wait_for and anyio break otherwise.
        """
        fiber = self._ref()
        if fiber is None or self._has_ended():
            return False
        if self._gave_back == fiber._queue.steps:
            # 3.13's TaskGroup gives a request back and asks again, to be cancelled at its parent's
            # next await. What it gave back was the fiber's own interrupt, thrown already (PD2).
            self._gave_back = -1
            return True
        self._num += 1
        rare = fiber._own_rare()
        if rare.asked is None:
            rare.asked = []
        if not any(face is self for face in rare.asked):
            rare.asked.append(self)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # what the fiber uses of one is all here
        fiber._cancel_inner(self, msg)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # as above
        return True

    def cancelling(self) -> int:
        """Requests not given back, plus one from the delivery of the fiber's own interrupt on, so
        that a timeout expiring in the same tick can't take it for its own (PD2).
        """
        fiber = self._ref()
        return self._num if fiber is None else self._num + min(1, fiber._delivered)

    def uncancel(self) -> int:
        """Give one cancel() request back; gives the number that is left, as ``cancelling``."""
        caller = sys._getframe(1)
        if traps.is_group_exit(caller) and (fiber := self._ref()) is not None:
            fiber._given_back_by(caller.f_locals["self"])
        return self._give_back()

    def _give_back(self) -> int:
        if self._num > 0:
            self._num -= 1
            if self._num == 0:
                # 3.11 and 3.12 leave a stray request pending here (AT3).
                self._must = False
                fiber = self._ref()
                if fiber is not None and fiber._rare.asked is not None:
                    asked = fiber._rare.asked
                    asked[:] = [face for face in asked if face is not self]
        elif (fiber := self._ref()) is not None and fiber._delivered:
            self._gave_back = fiber._queue.steps
        return self.cancelling()

    def _make_cancelled_error(self) -> CancelledError:
        return CancelledError() if self._msg is None else CancelledError(self._msg)

    def _has_ended(self) -> bool:
        fiber = self._ref()
        return fiber is None or fiber.done()

    def done(self) -> bool:
        """Whether the fiber has ended."""
        if self._has_ended():
            return True
        group = traps.failing_group(sys._getframe(1))
        if group is not None:
            # What it raises hides a cancel that was meant for what is around it (AT2).
            self._known()._watch_group(self, group)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # as above
        return False

    # -- what others read of a task

    @property
    def _fut_waiter(self) -> Any:
        # anyio looks here to see whether a task waits for something not done yet.
        return self._known()._future_waited_for()

    @property
    def _must_cancel(self) -> bool:
        return self._must

    @_must_cancel.setter
    def _must_cancel(self, value: bool) -> None:
        self._must = value

    def get_name(self) -> str:
        """The fiber's name."""
        return self._known().get_name()

    def set_name(self, value: object) -> None:
        """Name the fiber."""
        self._known().set_name(value)

    def set_result(self, result: object) -> None:
        """RuntimeError: the effect alone decides how it ends."""
        raise RuntimeError("Task does not support set_result operation")

    def set_exception(self, exception: object) -> None:
        """RuntimeError: the effect alone decides how it ends."""
        raise RuntimeError("Task does not support set_exception operation")

    # -- one fiber, one identity

    def __eq__(self, other: object) -> bool:
        if isinstance(other, TaskProtocol):
            return self is other or (self._ref() is not None and self._ref() is other._ref())
        return other is not None and other is self._ref()

    def __hash__(self) -> int:
        if self._hash is None:
            fiber = self._ref()
            self._hash = id(self) if fiber is None else hash(fiber)
        return self._hash


class _Told:
    """What was asked of one inner task, and who it was when its fiber is gone. Most are never
    asked: they share one that says so.
    """

    __slots__ = ("blocking", "fiber", "gave_back", "hash", "msg", "must", "num")

    def __init__(self) -> None:
        # Requests not given back by uncancel(), and whether one still has to be thrown.
        self.num: int = 0
        self.must: bool = False
        self.msg: object = None
        # The step in which uncancel() met nothing but the fiber's own interrupt.
        self.gave_back: int = -1
        self.blocking: bool = False
        # Set when the two part.
        self.fiber: weakref.ref[FiberCore] | None = None
        self.hash: int = 0


NOTHING_TOLD: Final = _Told()


class _Fields:
    """What an inner task consists of."""

    __slots__ = ("__weakref__", "_depth", "_fiber", "_told")

    def __init__(self, fiber: FiberCore, depth: int) -> None:
        # Strong while it can be current, which a weak reference would cost more than; cut by
        # _part: asyncio.timeout and others keep the task in their frames, which a failure's
        # traceback keeps, which the ended fiber keeps (PD13).
        self._fiber: FiberCore | None = fiber
        self._depth = depth
        self._told = NOTHING_TOLD


if TYPE_CHECKING or speed is None:
    _Base = _Fields
else:
    _Base = speed.Inner


@final
class InnerTask(_Base, TaskProtocol):
    """A fiber, from inside, at one depth of masks."""

    __slots__ = ()

    def _ref(self) -> FiberCore | None:
        """The fiber, or None if it has ended and is gone."""
        fiber = self._fiber
        if fiber is None:
            past = self._told.fiber
            return None if past is None else past()
        return fiber

    def _own_told(self) -> _Told:
        told = self._told
        if told is NOTHING_TOLD:
            told = self._told = _Told()
        return told

    def _part(self, fiber: FiberCore) -> None:
        """It will not be current again: who still holds it holds the fiber no longer."""
        told = self._own_told()
        told.fiber = weakref.ref(fiber)
        told.hash = hash(fiber)
        self._fiber = None

    @property
    def _must(self) -> bool:
        return self._told.must

    @_must.setter
    def _must(self, value: bool) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]  # read and written alike
        self._own_told().must = value

    @property
    def _msg(self) -> object:
        return self._told.msg

    @_msg.setter
    def _msg(self, value: object) -> None:
        self._own_told().msg = value

    @property
    def _num(self) -> int:
        return self._told.num

    @_num.setter
    def _num(self, value: int) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]  # read and written alike
        self._own_told().num = value

    @property
    def _gave_back(self) -> int:
        return self._told.gave_back

    @_gave_back.setter
    def _gave_back(self, value: int) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]  # read and written alike
        self._own_told().gave_back = value

    @property
    def _asyncio_future_blocking(self) -> bool:
        return self._told.blocking

    @_asyncio_future_blocking.setter
    def _asyncio_future_blocking(self, value: bool) -> None:
        self._own_told().blocking = value

    @property
    def _callbacks(self) -> list[Any]:
        return self._known()._callbacks

    @property
    def _loop(self) -> asyncio.AbstractEventLoop | None:
        return self._known()._queue.loop

    def get_loop(self) -> Any:
        """The event loop that the fiber runs in; None in ``run_sync`` where no loop runs."""
        return self._known().get_loop()

    def get_coro(self) -> Any:
        """The innermost coroutine of the fiber, or None."""
        return self._known().get_coro()

    def get_context(self) -> contextvars.Context:
        """The Context that the fiber runs in."""
        return self._known().get_context()

    def get_stack(self, *, limit: int | None = None) -> list[Any]:
        """Frames of the fiber's suspended bodies, outermost first; ``limit``: the last so many."""
        return self._known().get_stack(limit=limit)

    def cancelled(self) -> bool:
        """Whether the fiber has ended by interrupts and nothing else."""
        return self._known().cancelled()

    def result(self) -> Any:
        """The value of the fiber, once it has ended, or its error raised."""
        return self._known().result()

    def exception(self) -> BaseException | None:
        """The error of the fiber, once it has ended; None after a success."""
        return self._known().exception()

    def add_done_callback(
        self, fn: Callable[[Any], object], *, context: contextvars.Context | None = None
    ) -> None:
        """Let the loop call ``fn(task)`` once the fiber has ended, in ``context``."""
        self._known()._call_when_done(fn, self, context)

    def remove_done_callback(self, fn: Callable[[Any], object]) -> int:
        """Forget ``fn``; gives how often it was registered."""
        return self._known().remove_done_callback(fn)

    def __await__(self) -> Any:
        fiber = self._known()  # who waits keeps it: an ended one may have nobody else
        try:
            if not fiber.done():
                self._asyncio_future_blocking = True
                yield self
            if not fiber.done():
                raise RuntimeError("await wasn't used with future")
            return fiber.result()
        finally:
            del fiber  # a failure's traceback keeps this frame (PD13)

    __iter__ = __await__

    def __hash__(self) -> int:
        fiber = self._fiber
        return self._told.hash if fiber is None else hash(fiber)

    def __repr__(self) -> str:
        return f"<inner task of {self._ref()!r}>"


hand_over(InnerTask=InnerTask, NOTHING_TOLD=NOTHING_TOLD)
