"""Latch: a gate that opens and closes."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Never, TypeVar, final

from fibers.effect import Effect
from fibers.misplaced import check_effect
from fibers.sync.line import WAIT, Attempt, Line
from fibers.sync.one_loop import OneLoop

if TYPE_CHECKING:
    from fibers.loop.run_loop import FiberCore

A = TypeVar("A")
E = TypeVar("E", bound=Exception)


@final
class Latch(OneLoop):
    """Closed, it makes fibers wait; open, it lets everybody pass.

        paused = Latch(open=True)
        await paused.when_open(handle(message)).forever()

    One event loop at a time uses it; a second one gets a RuntimeError.
    """

    __slots__ = ("__weakref__", "_line", "_open")

    def __init__(self, *, open: bool = False) -> None:
        super().__init__()
        self._open = open
        self._line = Line()

    # ------------------------------------------------------------------ waiting

    def await_(self) -> Effect[None, Never]:
        """Wait until it is open, or until ``release``; ``await latch`` is the same."""
        return _Pass(self)

    def __await__(self) -> Generator[Any, Any, None]:
        return _Pass(self).__await__()

    def when_open(self, eff: Effect[A, E]) -> Effect[A, E]:
        """Wait like ``await_``, then run ``eff``."""
        check_effect(eff, "when_open")
        return self.await_().flat_map(lambda _: eff)

    # ------------------------------------------------------------------ the gate

    @property
    def is_open(self) -> bool:
        """Whether a newcomer would pass."""
        return self._open

    def open(self) -> Effect[bool, Never]:
        """Let those who wait go on in turn, and everybody pass from now on. False if it was open.

        A ``close`` right after does not hold back those who were let go.
        """
        return Effect.sync(self.open_unsafe)

    def open_unsafe(self) -> bool:
        """``open`` as a plain call, in the latch's own loop."""
        self._here()
        if self._open:
            return False
        self._open = True
        self._line.call_all()
        return True

    def release(self) -> Effect[bool, Never]:
        """Let those who wait now go on in turn, without opening. False if it is open."""
        return Effect.sync(self.release_unsafe)

    def release_unsafe(self) -> bool:
        """``release`` as a plain call, in the latch's own loop."""
        self._here()
        if self._open:
            return False
        self._line.call_all()
        return True

    def close(self) -> Effect[bool, Never]:
        """Make newcomers wait. False if it was closed."""
        return Effect.sync(self.close_unsafe)

    def close_unsafe(self) -> bool:
        """``close`` as a plain call, in the latch's own loop."""
        self._here()
        if not self._open:
            return False
        self._open = False
        return True

    def __repr__(self) -> str:
        state = "open" if self._open else "closed"
        return f"<Latch {state}, {len(self._line)} waiting>"


class _Pass(Attempt, Effect[None, Never]):
    __slots__ = ("latch",)

    def __init__(self, latch: Latch) -> None:
        self.latch = latch

    def _ev(self, fiber: FiberCore) -> Any:
        return self.latch._line.run(fiber, self)

    def _try(self, fiber: FiberCore, *, called: bool) -> Any:
        self.latch._here()
        # Who was let go passes, whatever the gate is by now.
        return None if called or self.latch._open else WAIT

    def _settle(self, *, called: bool) -> None:
        """Who begins or stops to wait changes nothing for the others."""

    def _name(self) -> str:
        return repr(self.latch)


__all__ = ["Latch"]
