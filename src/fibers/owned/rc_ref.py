"""RcRef: one resource, shared by those that use it and released after the last (PI10)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Never, final

from typing_extensions import TypeVar

from fibers.duration import checked_seconds
from fibers.misplaced import check_effect
from fibers.owned.rc_map import RcMap, make_rc_map

if TYPE_CHECKING:
    from fibers.duration import Duration
    from fibers.effect import Effect

A = TypeVar("A")
E = TypeVar("E", bound=Exception)
B = TypeVar("B")
F = TypeVar("F", bound=Exception)


@final
class RcRef(Generic[A, E]):
    """A resource that is acquired when somebody first wants it and kept while anybody does.

        browser = await RcRef.make(launch_browser, idle_time_to_live=30)
        page = await fb.scoped(browser.get().flat_map(open_page))

    All that want it while it is on its way wait for the same acquire, which runs in a fiber of its
    own. A failure is not kept: the next ``get`` tries again.
    """

    __slots__ = ("_only",)

    def __init__(self, only: RcMap[None, A, E]) -> None:
        self._only = only

    @staticmethod
    def make(
        acquire: Effect[B, F], *, idle_time_to_live: Duration = 0.0
    ) -> Effect[RcRef[B, F], Never]:
        """A reference to what ``acquire`` gives, tied to the scope in context.

        ``idle_time_to_live``: how long it is kept when nobody holds it (timedelta or seconds, on
        the Clock in context). ValueError where that is negative.
        """
        check_effect(acquire, "RcRef.make")
        seconds = checked_seconds(idle_time_to_live, "idle_time_to_live")

        def lookup(_: None) -> Effect[B, F]:
            return acquire

        made = make_rc_map(lookup, lambda _: seconds, None, keeps_failures=False)
        return made.map(RcRef[B, Any])

    def get(self) -> Effect[A, E]:
        """The resource, held until the scope in context closes (an interrupt while it is awaited
        gives it back at once). After the close of the reference: an Interrupt.
        """
        return self._only.get(None)

    def invalidate(self) -> Effect[None, Never]:
        """Forget what is there: the next ``get`` acquires anew. It is released now, or after the
        last that holds it.
        """
        return self._only.invalidate(None)

    def __repr__(self) -> str:
        return f"<RcRef of {self._only!r}>"
