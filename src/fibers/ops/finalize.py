"""on_exit, ensuring, on_interrupt: code that runs whatever the way out, uninterruptibly (PD3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fibers.cause import with_defects_winning
from fibers.exit import failed, succeeded
from fibers.loop.masks import MaskEnd
from fibers.loop.protocol import FAIL, Around, Node, outcome_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from fibers.cause import Cause
    from fibers.loop.run_loop import FiberCore


class _AfterFinalizer(MaskEnd):
    """The outcome that the finalizer ran for; its own failure joins it (FI3, FI8, FI14)."""

    __slots__ = ("cause", "value")

    def __init__(self, fiber: FiberCore, value: Any, cause: Cause[Any] | None) -> None:
        super().__init__(fiber)
        self.value = value
        self.cause = cause

    def _val(self, fiber: FiberCore, value: Any) -> Any:
        if self.cause is None:
            return super()._val(fiber, self.value)
        return super()._err(fiber, self.cause)

    def _err(self, fiber: FiberCore, cause: Cause[Any]) -> Any:
        if self.cause is not None:
            cause = with_defects_winning(self.cause.combine(cause))
        return super()._err(fiber, cause)


def run_finalizer(
    fiber: FiberCore, value: Any, cause: Cause[Any] | None, build: Callable[[], Any]
) -> Any:
    """Run what ``build`` gives, masked, then go on with the outcome. ``build`` is called inside:
    that it raises counts as the finalizer's failure.
    """
    fiber._stack.append(_AfterFinalizer(fiber, value, cause))
    fiber._mask += 1
    given = build()
    if given is None:
        return None
    return outcome_of(fiber, given)


class OnExitOp(Around):
    """``f(exit)`` on every way out."""

    __slots__ = ("f",)

    def __init__(self, first: Node, f: Callable[[Any], Any]) -> None:
        super().__init__(first)
        self.f: Callable[[Any], Any] = f

    def _val(self, fiber: FiberCore, value: Any) -> Any:
        return run_finalizer(fiber, value, None, lambda: self.f(succeeded(value)))

    def _err(self, fiber: FiberCore, cause: Cause[Any]) -> Any:
        return run_finalizer(fiber, None, cause, lambda: self.f(failed(cause)))


class EnsuringOp(Around):
    """``last`` on every way out; no exit is made for it."""

    __slots__ = ("last",)

    def __init__(self, first: Node, last: Node) -> None:
        super().__init__(first)
        self.last: Node = last

    def _val(self, fiber: FiberCore, value: Any) -> Any:
        return run_finalizer(fiber, value, None, lambda: self.last)

    def _err(self, fiber: FiberCore, cause: Cause[Any]) -> Any:
        return run_finalizer(fiber, None, cause, lambda: self.last)


class OnCauseOp(Around):
    """A finalizer for some failures: on_error, on_interrupt. ``f`` gives None for "not mine"."""

    __slots__ = ("f",)

    def __init__(self, first: Node, f: Callable[[Cause[Any]], Callable[[], Any] | None]) -> None:
        super().__init__(first)
        self.f: Callable[[Cause[Any]], Callable[[], Any] | None] = f

    def _err(self, fiber: FiberCore, cause: Cause[Any]) -> Any:
        build = self.f(cause)
        if build is None:
            fiber._cause = cause
            return FAIL
        return run_finalizer(fiber, None, cause, build)
