"""What lies right under a body's coroutine on the stack: what it declares, what it has seen."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from fibers.cause import Cause, Die, Fail, landed
from fibers.loop.protocol import FAIL, Frame

if TYPE_CHECKING:
    from fibers.loop.run_loop import FiberCore

_KEPT_REASONS: Final = 8
"""Failures seen by one body that are remembered before dead ones are dropped."""


class Caught(Frame):
    """What one body has seen, right under its coroutine; made at its first failure or region."""

    __slots__ = ("cause", "exc", "own", "rearm", "regions", "seen")

    own: Cause[Any] | None

    def __init__(self) -> None:
        # The exception thrown last, and the whole cause that it stood for.
        self.exc: BaseException | None = None
        self.cause: Cause[Any] | None = None
        # The fiber's own interrupt was thrown in here, with this cause; it has to land again when
        # the body ends.
        self.own = None
        self.rearm: bool = False
        # Failures and defects of awaited effects, by identity (PD4).
        self.seen: list[Fail[Any] | Die] | None = None
        self.regions: list[Any] | None = None

    def remember(self, reason: Fail[Any] | Die) -> None:
        """An awaited effect has failed with ``reason``, or died of it."""
        seen = self.seen
        if seen is None:
            seen = self.seen = []
        elif len(seen) >= _KEPT_REASONS:
            # An exception that only this list refers to can't be raised again. Held by: the
            # reason, the local name and the argument of getrefcount.
            seen[:] = [r for r in seen if not _forgotten(r)]
        seen.append(reason)

    def reason_for(self, exc: BaseException) -> Fail[Any] | Die | None:
        """What ``exc`` is, where an awaited effect ended with that very object."""
        # The last one: a shared object may have failed before and died now.
        return next((r for r in reversed(self.seen or ()) if _error_in(r) is exc), None)

    def enter(self, region: Any) -> None:
        """The body has entered a region."""
        if self.regions is None:
            self.regions = []
        self.regions.append(region)

    def leave(self, region: Any) -> None:
        """The body has left a region."""
        assert self.regions is not None  # it was entered here
        self.regions.remove(region)

    def close_regions(self, fiber: FiberCore) -> BaseException | None:
        """Regions that the body left open: closed here, and a defect (PD17)."""
        if not self.regions:
            return None
        outermost = self.regions[0]
        count = len(self.regions)
        self.regions.clear()
        outermost.force_close(fiber)
        return RuntimeError(
            f"{count} uninterruptible region(s) still open when the body ended: "
            "leave each with its `with` block"
        )

    def _val(self, fiber: FiberCore, value: Any) -> Any:
        broken = self.close_regions(fiber)
        if self.rearm:
            fiber._pend = True
        if fiber._pend and not fiber._mask:
            assert fiber._icause is not None
            cause = fiber._icause
            fiber._cause = cause if broken is None else landed(Cause((Die(broken),)), cause)
            return FAIL
        if broken is not None:
            fiber._cause = Cause((Die(broken),))
            return FAIL
        return value


def _error_in(reason: Fail[Any] | Die) -> BaseException:
    error: BaseException = reason.error if isinstance(reason, Fail) else reason.defect
    return error


def _forgotten(reason: Fail[Any] | Die) -> bool:
    error = _error_in(reason)
    return sys.getrefcount(error) <= 3


class Declares(Frame):
    """Under a body's coroutine: the error types that the body may fail with (PD4)."""

    __slots__ = ("name", "raises")

    def __init__(self, raises: tuple[type[BaseException], ...], name: str) -> None:
        self.raises: tuple[type[BaseException], ...] = raises
        self.name: str = name
