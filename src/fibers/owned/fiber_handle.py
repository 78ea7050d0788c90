"""FiberHandle: at most one fiber (PI9)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Never, TypeVar, cast, final

from returns.maybe import Maybe, Nothing, Some

from fibers.owned.members import Members

if TYPE_CHECKING:
    from fibers.effect import Effect
    from fibers.fiber import Fiber

A = TypeVar("A")
E = TypeVar("E", bound=Exception)


@final
class FiberHandle(Members):
    """The one fiber that does a job, replaced by the next: a debounced save, a watcher.

        saving = await FiberHandle.make()
        await saving.run(fb.sleep(0.3).flat_map(lambda _: save()))  # the former one is interrupted

    The close of the scope interrupts it, by -1, and awaits it.
    """

    __slots__ = ()

    _closes_as_closer = False

    @staticmethod
    def make() -> Effect[FiberHandle, Never]:
        """An empty handle, tied to the scope in context."""
        return FiberHandle._scoped()

    def run(
        self,
        eff: Effect[A, E],
        *,
        only_if_missing: bool = False,
        propagate_interruption: bool = False,
    ) -> Effect[Fiber[A, E], Never]:
        """Start ``eff`` at once, as nobody's child; then interrupt, by -1, the fiber that was
        there. That one is not waited for.

        ``only_if_missing``: while one is alive nothing is started, and what is given is a fiber
        that has been interrupted already. ``propagate_interruption``: an interrupt of it by anybody
        but the handle fails ``join``. A closed handle fails the caller with an Interrupt.
        """
        return self._run(
            None,
            eff,
            only_if_missing=only_if_missing,
            propagate_interruption=propagate_interruption,
        )

    def set(
        self,
        fiber: Fiber[Any, Any],
        *,
        only_if_missing: bool = False,
        propagate_interruption: bool = False,
    ) -> Effect[None, Never]:
        """Take in a fiber that runs already. The fiber that is not wanted is interrupted, by -1:
        the former one, with ``only_if_missing`` the new one, in a closed handle always the new one.
        """
        return self._set(
            None,
            fiber,
            only_if_missing=only_if_missing,
            propagate_interruption=propagate_interruption,
        )

    def get(self) -> Maybe[Fiber[Any, Any]]:
        """The live fiber."""
        fiber = self._fibers.get(None)
        return Nothing if fiber is None else Some(cast("Fiber[Any, Any]", fiber))
