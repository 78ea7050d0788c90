"""Semaphore: so many at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Never, Protocol, TypeVar, cast, final

from returns.maybe import Maybe, Nothing, Some

from fibers.effect import Effect
from fibers.misplaced import check_effect
from fibers.sync.checks import checked_count
from fibers.sync.line import WAIT, Attempt, Line
from fibers.sync.one_loop import OneLoop

if TYPE_CHECKING:
    from fibers.loop.run_loop import FiberCore

A = TypeVar("A")
E = TypeVar("E", bound=Exception)


class _WithPermits(Protocol):
    """An effect, run while permits are held."""

    def __call__(self, eff: Effect[A, E], /) -> Effect[A, E]: ...


class _WithPermitsIfAvailable(Protocol):
    """An effect, run while permits are held, or not at all."""

    def __call__(self, eff: Effect[A, E], /) -> Effect[Maybe[A], E]: ...


@final
class Semaphore(OneLoop):
    """A number of permits, shared by all who take and release them.

        requests = Semaphore(10)
        page = await requests.with_permits(1)(fetch(url))

    Fibers wait in the order in which they came; a small request may overtake a big one that can't
    be met yet (PI3). ``permits`` may be 0: then everybody waits for a ``release`` or ``resize``.
    ValueError for a negative number. One event loop at a time uses it; a second one gets a
    RuntimeError.
    """

    __slots__ = ("__weakref__", "_line", "_permits", "_taken")

    def __init__(self, permits: int) -> None:
        super().__init__()
        self._permits = checked_count(permits, "the permits of a Semaphore", least=0)
        self._taken = 0
        self._line = Line()

    @property
    def _free(self) -> int:
        return self._permits - self._taken

    # ------------------------------------------------------------------ looking

    def available(self) -> Effect[int, Never]:
        """How many permits nobody holds."""
        return Effect.sync(self.available_unsafe)

    def available_unsafe(self) -> int:
        """``available`` as a plain call."""
        return self._free

    # ------------------------------------------------------------------ one by one

    def take(self, n: int = 1) -> Effect[int, Never]:
        """Take ``n`` permits, waiting until they are free; gives ``n``.

        More than there are wait for ``resize``. What was taken stays taken, also when the taker is
        interrupted later: ``with_permits`` gives them back.
        """
        return _Take(self, checked_count(n, "the permits to take"))

    def take_unsafe(self, n: int = 1) -> bool:
        """Take ``n`` permits if they are free and set aside for nobody: a plain call."""
        checked_count(n, "the permits to take")
        self._here()
        if n > self._free - self._line.set_aside:
            return False
        self._taken += n
        return True

    def release(self, n: int = 1) -> Effect[int, Never]:
        """Give ``n`` permits back; gives how many are free. Whoever waits for them goes on in
        turn. More than were taken are permits added.
        """
        checked_count(n, "the permits to release")
        return Effect.sync(lambda: self._release(n))

    def release_unsafe(self, n: int = 1) -> int:
        """``release`` as a plain call, in the semaphore's own loop."""
        return self._release(checked_count(n, "the permits to release"))

    def release_all(self) -> Effect[int, Never]:
        """Give all back, whoever took them; gives how many are free."""
        return Effect.sync(lambda: self._release(self._taken))

    def _release(self, n: int) -> int:
        self._here()
        self._taken -= n
        self._line.call(self._free)
        return self._free

    def resize(self, permits: int) -> Effect[None, Never]:
        """Change the number of permits. What is held stays held: with fewer permits than that,
        nobody gets one until enough have come back.
        """
        checked_count(permits, "the permits of a Semaphore", least=0)

        def set_permits() -> None:
            self._here()
            self._permits = permits
            self._line.call(self._free)

        return Effect.sync(set_permits)

    # ------------------------------------------------------------------ held while an effect runs

    def with_permits(self, n: int) -> _WithPermits:
        """``sem.with_permits(n)(eff)`` runs ``eff`` while it holds ``n`` permits, and gives them
        back however it ends. An interrupt while it waits takes none.
        """
        taking, releasing = self.take(n), self.release(n)

        def hold(eff: Effect[A, E]) -> Effect[A, E]:
            check_effect(eff, "with_permits(n)(...)")
            # Only the take is interruptible, and what follows its success is part of the same
            # step: an interrupt finds either no permit or a registered release.
            return Effect.uninterruptible_mask(
                lambda restore: restore(taking).flat_map(lambda _: restore(eff).ensuring(releasing))
            )

        return hold

    def with_permit(self, eff: Effect[A, E]) -> Effect[A, E]:
        """``with_permits(1)(eff)``."""
        return self.with_permits(1)(eff)

    def with_permits_if_available(self, n: int) -> _WithPermitsIfAvailable:
        """Like ``with_permits``, but where the permits aren't free now ``eff`` is not run: Nothing
        instead of Some(value).
        """
        checked_count(n, "the permits to take")
        releasing = self.release(n)

        def hold(eff: Effect[A, E]) -> Effect[Maybe[A], E]:
            check_effect(eff, "with_permits_if_available(n)(...)")

            def held(restore: Callable[[Effect[Any, E]], Effect[Any, E]]) -> Effect[Maybe[A], E]:
                if not self.take_unsafe(n):
                    return cast("Effect[Maybe[A], E]", Effect.succeed(Nothing))
                return restore(eff).ensuring(releasing).map(Some)

            return Effect.uninterruptible_mask(held)

        return hold

    def __repr__(self) -> str:
        return f"<Semaphore {self._free} of {self._permits} free, {len(self._line)} waiting>"


class _Take(Attempt, Effect[int, Never]):
    __slots__ = ("n", "semaphore")

    def __init__(self, semaphore: Semaphore, n: int) -> None:
        self.semaphore = semaphore
        self.n = n

    def _ev(self, fiber: FiberCore) -> Any:
        return self.semaphore._line.run(fiber, self)

    def _try(self, fiber: FiberCore, *, called: bool) -> Any:
        return self.n if self.semaphore.take_unsafe(self.n) else WAIT

    def _need(self) -> int:
        return self.n

    def _settle(self, *, called: bool) -> None:
        if called:
            self.semaphore._line.call(self.semaphore._free)

    def _undo(self, outcome: Any) -> None:
        self.semaphore._release(self.n)

    def _name(self) -> str:
        return f"{self.n} of {self.semaphore!r}"


__all__ = ["Semaphore"]
