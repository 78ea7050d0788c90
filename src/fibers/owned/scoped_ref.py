"""ScopedRef: a resource in a variable; setting it releases the one before (PI10)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Never, TypeVar, final

from fibers.cause import FiberDeadlockError
from fibers.effect import Effect, _Access
from fibers.exit import failed
from fibers.misplaced import check_effect, check_function, plain
from fibers.scope import current_scope
from fibers.sync.semaphore import Semaphore

if TYPE_CHECKING:
    from collections.abc import Callable

    from fibers.loop.run_loop import FiberCore
    from fibers.scope import Scope

A = TypeVar("A")
E = TypeVar("E", bound=Exception)
B = TypeVar("B")


@final
class ScopedRef(Generic[A]):
    """A resource that is exchanged while others use it: a connection, a set of loaded rules.

        rules = await ScopedRef.from_acquire(open_rules(path))
        await rules.set(open_rules(newer))  # opened first; then the former ones are closed

    The resource that is there is released when the scope in which the reference was made closes;
    afterwards ``get`` and ``set`` fail with an Interrupt.
    """

    __slots__ = ("_own", "_scope", "_setter", "_setting", "_value")

    def __init__(self, value: A, scope: Scope, own: Scope) -> None:
        self._value = value
        self._scope = scope
        self._own = own
        self._setting = Semaphore(1)
        self._setter: FiberCore | None = None

    @staticmethod
    def make(f: Callable[[], B]) -> Effect[ScopedRef[B], Never]:
        """A reference to a value that needs no release, tied to the scope in context."""
        check_function(f, "ScopedRef.make")
        return ScopedRef.from_acquire(Effect.sync(lambda: plain(f(), "ScopedRef.make")))

    @staticmethod
    def from_acquire(acquire: Effect[B, E]) -> Effect[ScopedRef[B], E]:
        """A reference to what ``acquire`` gives, tied to the scope in context."""
        check_effect(acquire, "ScopedRef.from_acquire")

        def first(own: Scope) -> Effect[ScopedRef[B], E]:
            made = _acquired(acquire, own).map(lambda there: ScopedRef(*there, own))
            return made.on_error(lambda cause: own.close(failed(cause)))

        return current_scope().flat_map(lambda scope: first(scope.fork_scope())).uninterruptible()

    def get(self) -> Effect[A, Never]:
        """What is there now. It may be released as soon as somebody sets another."""
        return Effect.suspend(
            lambda: Effect.interrupt() if self._own._is_closed else Effect.succeed(self._value)
        )

    def set(self, acquire: Effect[A, E]) -> Effect[None, E]:
        """Acquire another resource, put it in place, then release the former one: one after
        another, and uninterruptibly once it has begun. Where ``acquire`` fails, what it has
        acquired so far is released and the former one stays. FiberDeadlockError inside ``acquire``
        itself (PD9).
        """
        check_effect(acquire, "ScopedRef.set")

        def exchange(there: tuple[A, Scope]) -> Effect[None, Never]:
            if self._own._is_closed:
                # Meanwhile, and the new one with it.
                return Effect.interrupt()
            former = self._scope
            self._value, self._scope = there
            return former.close()

        def begin() -> Effect[None, E]:
            if self._own._is_closed:
                return Effect.interrupt()
            return _acquired(acquire, self._own).flat_map(exchange)

        def in_turn(fiber: FiberCore) -> Effect[None, E]:
            if self._setter is fiber:
                raise FiberDeadlockError(
                    f"fiber #{fiber.id} would wait for itself: a set inside a set never ends"
                )

            def mine(setter: FiberCore | None) -> Effect[None, Never]:
                return Effect.sync(lambda: setattr(self, "_setter", setter))

            work = mine(fiber).flat_map(lambda _: Effect.suspend(begin)).ensuring(mine(None))
            return self._setting.with_permit(work.uninterruptible())

        return _Access(in_turn).flat_map(_same)

    def __repr__(self) -> str:
        return "<ScopedRef closed>" if self._own._is_closed else f"<ScopedRef of {self._value!r}>"


def _acquired(acquire: Effect[B, E], own: Scope) -> Effect[tuple[B, Scope], E]:
    """What ``acquire`` gives, in a scope of its own inside ``own``; closed where it fails."""
    scope = own.fork_scope()
    there: Effect[B, E] = scope.provide(acquire).on_error(lambda cause: scope.close(failed(cause)))
    return there.map(lambda value: (value, scope))


def _same(eff: Effect[B, E]) -> Effect[B, E]:
    return eff
