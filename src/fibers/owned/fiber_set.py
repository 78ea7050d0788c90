"""FiberSet: any number of fibers that end with a scope (PI7)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Never, TypeVar, cast, final

from fibers.owned.members import EACH_ITS_OWN, Members

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fibers.effect import Effect
    from fibers.fiber import Fiber

A = TypeVar("A")
E = TypeVar("E", bound=Exception)


@final
class FiberSet(Members):
    """Fibers that nobody waits for one by one: connections, requests, background work.

        workers = await FiberSet.make()
        await workers.run(serve(connection))
        await workers.join()  # the first failure of any of them

    The close of the scope interrupts and awaits all that are left, in the name of the closing
    fiber. A member that ends by itself leaves nothing behind.
    """

    __slots__ = ()

    _refuses_caller = False

    @staticmethod
    def make() -> Effect[FiberSet, Never]:
        """An empty set, tied to the scope in context."""
        return FiberSet._scoped()

    def run(
        self, eff: Effect[A, E], *, propagate_interruption: bool = False
    ) -> Effect[Fiber[A, E], Never]:
        """Start ``eff`` as a member, at once and as nobody's child. In a closed set nothing of it
        runs, and what is given is a fiber that has been interrupted already.

        ``propagate_interruption``: an interrupt of it by anybody but the set fails ``join``.
        """
        return self._run(EACH_ITS_OWN, eff, propagate_interruption=propagate_interruption)

    def add(
        self, fiber: Fiber[Any, Any], *, propagate_interruption: bool = False
    ) -> Effect[None, Never]:
        """Take in a fiber that runs already; it stays what it was to its owner. A closed set
        interrupts it, by -1.
        """
        return self._set(fiber, fiber, propagate_interruption=propagate_interruption)

    def __contains__(self, fiber: object) -> bool:
        return fiber in self._fibers

    def __iter__(self) -> Iterator[Fiber[Any, Any]]:
        return iter(cast("list[Fiber[Any, Any]]", list(self._fibers.values())))
