"""Resources: acquired inside a mask, released whatever happens (FI11-FI21)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Never, TypeVar

from fibers.effect import Effect
from fibers.misplaced import check_effect, check_function
from fibers.scope import current_scope

if TYPE_CHECKING:
    from collections.abc import Callable

    from fibers.exit import Exit
    from fibers.scope import Scope

A = TypeVar("A")
B = TypeVar("B")
E = TypeVar("E", bound=Exception)
F = TypeVar("F", bound=Exception)


def acquire_release(
    acquire: Effect[A, E],
    release: Callable[[A, Exit[Any, Any]], Effect[Any, Never] | Exit[Any, Never]],
    *,
    interruptible: bool = False,
) -> Effect[A, E]:
    """Acquire into the scope in context: its close runs ``release(resource, exit)``.

    Acquiring is uninterruptible, so that what was acquired is always registered;
    ``interruptible=True`` lets an interrupt land in the acquire itself (FI17).
    """
    check_effect(acquire, "acquire_release")
    check_function(release, "acquire_release")

    def registered(scope: Scope, acquired: Effect[A, E]) -> Effect[A, E]:
        return acquired.tap(lambda a: scope.add_finalizer(lambda exit_: release(a, exit_)))

    def masked(restore: Callable[[Effect[A, E]], Effect[A, E]]) -> Effect[A, E]:
        acquired = restore(acquire) if interruptible else acquire
        return current_scope().flat_map(lambda scope: registered(scope, acquired))

    return Effect.uninterruptible_mask(masked)


def acquire_use_release(
    acquire: Effect[A, E],
    use: Callable[[A], Effect[B, F] | Exit[B, F]],
    release: Callable[[A, Exit[B, F]], Effect[Any, Never] | Exit[Any, Never]],
) -> Effect[B, E | F]:
    """Acquire, use, release; the release sees the exit of the use (FI11-FI15).

    An interrupt during the acquire waits for it, then ``use`` is not run.
    """
    check_effect(acquire, "acquire_use_release")
    check_function(use, "acquire_use_release")
    check_function(release, "acquire_use_release")

    def masked(restore: Callable[[Effect[B, F]], Effect[B, F]]) -> Effect[B, E | F]:
        return acquire.flat_map(
            lambda a: restore(Effect.suspend(lambda: use(a))).on_exit(
                lambda exit_: release(a, exit_)
            )
        )

    return Effect.uninterruptible_mask(masked)
