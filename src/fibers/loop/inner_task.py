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
from asyncio import CancelledError, InvalidStateError
from typing import TYPE_CHECKING, Any, final

from fibers.loop import traps

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

    @property
    def _fiber(self) -> FiberCore:
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
        if fiber._asked is None:
            fiber._asked = []
        if not any(face is self for face in fiber._asked):
            fiber._asked.append(self)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # what the fiber uses of one is all here
        fiber._cancel_inner(self, msg)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # as above
        return True

    def cancelling(self) -> int:
        """Requests not given back, plus one from the delivery of the fiber's own interrupt on, so
        that a timeout expiring in the same tick can't take it for its own (PD2).
        """
        fiber = self._ref()
        return self._num if fiber is None else self._num + min(1, fiber._delivered)

    def uncancel(self) -> int:
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
                if fiber is not None and fiber._asked is not None:
                    fiber._asked[:] = [face for face in fiber._asked if face is not self]
        elif (fiber := self._ref()) is not None and fiber._delivered:
            self._gave_back = fiber._queue.steps
        return self.cancelling()

    def _make_cancelled_error(self) -> CancelledError:
        return CancelledError() if self._msg is None else CancelledError(self._msg)

    def _has_ended(self) -> bool:
        fiber = self._ref()
        return fiber is None or fiber.done()

    def done(self) -> bool:
        if self._has_ended():
            return True
        group = traps.failing_group(sys._getframe(1))
        if group is not None:
            # What it raises hides a cancel that was meant for what is around it (AT2).
            self._fiber._watch_group(self, group)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # as above
        return False

    # -- what others read of a task

    @property
    def _fut_waiter(self) -> Any:
        # anyio looks here to see whether a task waits for something not done yet.
        return self._fiber._future_waited_for()

    @property
    def _must_cancel(self) -> bool:
        return self._must

    @_must_cancel.setter
    def _must_cancel(self, value: bool) -> None:
        self._must = value

    def get_name(self) -> str:
        return self._fiber.get_name()

    def set_name(self, value: object) -> None:
        self._fiber.set_name(value)

    def set_result(self, result: object) -> None:
        raise RuntimeError("Task does not support set_result operation")

    def set_exception(self, exception: object) -> None:
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


@final
class InnerTask(TaskProtocol):
    """A fiber, from inside, at one depth of masks."""

    __slots__ = (
        "__weakref__",
        "_asyncio_future_blocking",
        "_depth",
        "_gave_back",
        "_hash",
        "_msg",
        "_must",
        "_num",
        "_ref",
    )

    def __init__(self, fiber: FiberCore, depth: int) -> None:
        # Weak: asyncio.timeout and others keep the task in their frames, which a failure's
        # traceback keeps, which the ended fiber keeps. While it runs, the loop holds it (PD13).
        self._ref = weakref.ref(fiber)
        self._hash: int | None = None
        self._depth = depth
        # Requests not given back by uncancel(), and whether one still has to be thrown.
        self._num = 0
        # The step in which uncancel() met nothing but the fiber's own interrupt.
        self._gave_back = -1
        self._must = False
        self._msg: object = None
        self._asyncio_future_blocking = False

    @property
    def _callbacks(self) -> list[Any]:
        return self._fiber._callbacks

    @property
    def _loop(self) -> asyncio.AbstractEventLoop | None:
        return self._fiber._queue.loop

    def get_loop(self) -> Any:
        return self._fiber.get_loop()

    def get_coro(self) -> Any:
        return self._fiber.get_coro()

    def get_context(self) -> contextvars.Context:
        return self._fiber.get_context()

    def get_stack(self, *, limit: int | None = None) -> list[Any]:
        return self._fiber.get_stack(limit=limit)

    def cancelled(self) -> bool:
        return self._fiber.cancelled()

    def result(self) -> Any:
        return self._fiber.result()

    def exception(self) -> BaseException | None:
        return self._fiber.exception()

    def add_done_callback(
        self, fn: Callable[[Any], object], *, context: contextvars.Context | None = None
    ) -> None:
        self._fiber.add_done_callback(fn, context=context)

    def remove_done_callback(self, fn: Callable[[Any], object]) -> int:
        return self._fiber.remove_done_callback(fn)

    def __await__(self) -> Any:
        if not self._fiber.done():
            self._asyncio_future_blocking = True
            yield self
        if not self._fiber.done():
            raise InvalidStateError("await wasn't used with future")
        return self._fiber.result()

    __iter__ = __await__

    def __repr__(self) -> str:
        return f"<inner task of {self._ref()!r}>"
