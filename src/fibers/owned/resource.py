"""Resource: a value that is acquired again from time to time, on demand or on a schedule (PI10)."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, Never, TypeVar, final

from fibers.effect import Effect
from fibers.exit import succeeded
from fibers.misplaced import check_effect
from fibers.owned.scoped_ref import ScopedRef
from fibers.schedule import Schedule

if TYPE_CHECKING:
    from fibers.duration import Duration
    from fibers.exit import Exit

A = TypeVar("A")
E = TypeVar("E", bound=Exception)
B = TypeVar("B")
F = TypeVar("F", bound=Exception)


_log = logging.getLogger("fibers")


def _told(defect: BaseException) -> Effect[None, Never]:
    """Nobody waits for a refresh that goes on by itself: its defect would be silent until the end
    of the scope.
    """
    said = "Resource.auto: a refresh died; the value stays, the next one comes by the schedule"
    return Effect.sync(lambda: _log.error(said, exc_info=defect))


@final
class Resource(Generic[A, E]):
    """The newest value of something outside that changes: credentials, prices, a configuration.

        prices = await Resource.auto(load_prices, 60)
        today = await prices.get()

    What a value holds is released when the next one has taken its place, and when the scope in
    which the resource was made closes. A refresh that fails leaves the value that is there.
    """

    __slots__ = ("_acquire", "_ref")

    def __init__(self, acquire: Effect[A, E], ref: ScopedRef[Exit[A, E]]) -> None:
        self._acquire = acquire
        self._ref = ref

    @staticmethod
    def manual(acquire: Effect[B, F]) -> Effect[Resource[B, F], Never]:
        """Acquire once now, and again only in ``refresh``. Tied to the scope in context. A failure
        of the first acquire is what ``get`` fails with.
        """
        check_effect(acquire, "Resource.manual")
        return ScopedRef.from_acquire(acquire.exit()).map(lambda ref: Resource(acquire, ref))

    @staticmethod
    def auto(
        acquire: Effect[B, F], policy: Schedule[Any] | Duration
    ) -> Effect[Resource[B, F], Never]:
        """``manual``, refreshed by a fiber of the scope in context whenever ``policy`` says so: a
        schedule, or the time from one refresh to the next (timedelta or seconds). One that fails
        is not the last, nor is one that dies, which is logged. ValueError for a negative time.
        """
        check_effect(acquire, "Resource.auto")
        schedule = (
            Schedule.spaced(policy) if isinstance(policy, timedelta | float | int) else policy
        )

        def refreshed(resource: Resource[B, F]) -> Effect[Any, Never]:
            runs = iter((Effect.succeed(None),))
            # A schedule is asked after each run, and the first value is there already.
            refresh = resource.refresh().ignore().catch_defect(_told)
            again = Effect.suspend(lambda: next(runs, refresh))
            return again.repeat(schedule).fork_scoped()

        return Resource.manual(acquire).tap(refreshed)

    def get(self) -> Effect[A, E]:
        """The newest value. After the close: an Interrupt."""
        return self._ref.get().flat_map(Effect.from_exit)

    def refresh(self) -> Effect[None, E]:
        """Acquire a new value now, uninterruptibly; where that fails the old one stays."""
        return self._ref.set(self._acquire.map(succeeded))

    def __repr__(self) -> str:
        return f"<Resource {self._ref!r}>"
