"""Work: what runs for the turns of one manager, in its scope and on its clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar, final

import fibers as fb
from fibers import Clock, Effect, Fiber, Scope

_LONGEST_AGAIN_SECONDS: Final = 60.0

T = TypeVar("T")
E = TypeVar("E", bound=Exception)


@final
class Work:
    """Starts it. ``closed`` is told when the scope closes; ``clock`` None: the one in context."""

    def __init__(self, scope: Scope, clock: Clock | None, *, closed: Callable[[], object]) -> None:
        self._scope = scope
        self._clock = clock
        self._closed = closed
        self._watch(scope)

    @property
    def is_closing(self) -> bool:
        """Whether nothing begins any more, and what runs is interrupted."""
        return self._scope.state == "closed"

    def move(self, scope: Scope) -> None:
        """Start what comes from now on in ``scope``."""
        if scope is not self._scope:
            self._scope = scope
            self._watch(scope)

    def in_clock(self, eff: Effect[T, E]) -> Effect[T, E]:
        """``eff`` on the clock of the manager."""
        return eff if self._clock is None else eff.provide_service(fb.ClockTag, self._clock)

    def fork(self, name: str, work: Effect[None, Any]) -> Fiber[None, Any]:
        """Start it. In a scope that has closed it never begins."""
        fiber = self._scope.fork(self.in_clock(work))
        fiber.set_name(name)
        return fiber

    def see_through(self, name: str, work: Effect[None]) -> None:
        """As ``fork``, for what must not be lost: interrupted by anybody but the close of the
        scope, it begins again.
        """
        self._see_through(name, work, 0.0, 0.0)

    def later(self, seconds: float, work: Effect[None]) -> None:
        """See it through, beginning after so many seconds."""
        self._see_through("a later settlement", work, seconds, 0.0)

    def _see_through(
        self, name: str, work: Effect[None], after_seconds: float, again_seconds: float
    ) -> None:
        def ended(exit_: fb.Exit[None, Any]) -> None:
            is_stopped = isinstance(exit_, fb.Failure) and exit_.failure().has_interrupts_only
            if is_stopped and not self.is_closing:
                # Later each time: a store may say "cancelled" whenever it is asked.
                longer = min(max(1.0, again_seconds * 2), _LONGEST_AGAIN_SECONDS)
                self._see_through(name, work, again_seconds, longer)

        begun = work if after_seconds == 0 else fb.sleep(after_seconds).flat_map(lambda _: work)
        self.fork(name, begun).add_observer(ended)

    def _watch(self, scope: Scope) -> None:
        def closed(_exit: object) -> None:
            if scope is self._scope:
                self._closed()

        fb.run_sync(scope.add_finalizer(closed))
