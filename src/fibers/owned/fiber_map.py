"""FiberMap: one fiber a key (PI9)."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, Generic, Never, TypeVar, cast, final

from returns.maybe import Maybe, Nothing, Some

from fibers.owned.members import EndMembers, Members

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fibers.effect import Effect
    from fibers.fiber import Fiber

A = TypeVar("A")
E = TypeVar("E", bound=Exception)
K = TypeVar("K", bound=Hashable)


@final
class FiberMap(Members, Generic[K]):
    """The newest fiber of each key: a session a user, a job a file.

        jobs: FiberMap[str] = await FiberMap.make()
        await jobs.run(path, build(path))  # a build of that file under way is interrupted

    The close of the scope interrupts and awaits all that are left, in the name of the closing
    fiber. A member that ends by itself frees its key.
    """

    __slots__ = ()

    @staticmethod
    def make() -> Effect[FiberMap[Any], Never]:
        """An empty map, tied to the scope in context."""
        return FiberMap[Any]._scoped()

    def run(
        self,
        key: K,
        eff: Effect[A, E],
        *,
        only_if_missing: bool = False,
        propagate_interruption: bool = False,
    ) -> Effect[Fiber[A, E], Never]:
        """Start ``eff`` at once, as nobody's child; then interrupt, by -1, the fiber that had the
        key. That one is not waited for.

        ``only_if_missing``: where the key is taken nothing is started, and what is given is a fiber
        that has been interrupted already. ``propagate_interruption``: an interrupt of it by anybody
        but the map fails ``join``. A closed map fails the caller with an Interrupt.
        """
        return self._run(
            key,
            eff,
            only_if_missing=only_if_missing,
            propagate_interruption=propagate_interruption,
        )

    def set(
        self,
        key: K,
        fiber: Fiber[Any, Any],
        *,
        only_if_missing: bool = False,
        propagate_interruption: bool = False,
    ) -> Effect[None, Never]:
        """Take in a fiber that runs already, in the place of the one that had the key. The fiber
        that is not wanted is interrupted, by -1: the former one, with ``only_if_missing`` the new
        one, and in a closed map always the new one.
        """
        return self._set(
            key,
            fiber,
            only_if_missing=only_if_missing,
            propagate_interruption=propagate_interruption,
        )

    def get(self, key: K) -> Maybe[Fiber[Any, Any]]:
        """The live fiber of that key."""
        fiber = self._fibers.get(key)
        return Nothing if fiber is None else Some(cast("Fiber[Any, Any]", fiber))

    def has(self, key: K) -> bool:
        """Whether a live fiber has that key."""
        return key in self._fibers

    def remove(self, key: K) -> Effect[None, Never]:
        """Interrupt the fiber of that key, by -1, and wait until it has ended."""
        return EndMembers(lambda: [f for f in (self._fibers.get(key),) if f is not None])

    def __contains__(self, key: object) -> bool:
        return key in self._fibers

    def __iter__(self) -> Iterator[tuple[K, Fiber[Any, Any]]]:
        return iter(cast("list[tuple[K, Fiber[Any, Any]]]", list(self._fibers.items())))
