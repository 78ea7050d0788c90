"""Deferred: a value, or a failure, that arrives once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import TYPE_CHECKING, Any, Final, Generic, Never, final

from returns.maybe import Maybe, Nothing, Some
from typing_extensions import TypeVar

from fibers.cause import Cause, Interrupt
from fibers.effect import Effect, _Access
from fibers.loop.protocol import NEXT, Wait
from fibers.misplaced import check_effect, check_function, check_kind, plain
from fibers.sync.checks import checked_cause, checked_exit
from fibers.sync.waking import wake_with

if TYPE_CHECKING:
    from fibers.exit import Exit
    from fibers.loop.run_loop import FiberCore

A = TypeVar("A")
E = TypeVar("E", bound=Exception, default=Never)
B = TypeVar("B")
F = TypeVar("F", bound=Exception)

_GONE: Final = object()


@final
class Deferred(Awaitable[A], Generic[A, E]):
    """A place for one outcome that any number of fibers can wait for.

        ready: Deferred[Address, StartError] = Deferred()
        fiber = await Deferred.into(start_server(), ready).fork_child()
        address = await ready

    The first completion wins; each operation that completes says with a bool whether it was the
    one. Waiters go on in the order in which they came (PI1). It is the one primitive that may be
    completed from any thread, and awaited from several event loops: each waiter is woken in its
    own.
    """

    __slots__ = ("__weakref__", "_done", "_waiters")

    def __init__(self) -> None:
        # One entry at most. dict.setdefault is the one step that decides between two threads.
        self._done: dict[None, tuple[Effect[A, E]]] = {}
        self._waiters: dict[_Waiter, None] = {}

    # ------------------------------------------------------------------ waiting

    def await_(self) -> Effect[A, E]:
        """Wait for the outcome and go on with it; ``await deferred`` is the same. An interrupted
        waiter is forgotten at once.
        """
        return _Await(self)

    def __await__(self) -> Generator[Any, Any, A]:
        return _Await(self).__await__()

    # ------------------------------------------------------------------ looking

    def poll(self) -> Effect[Maybe[Effect[A, E]], Never]:
        """The outcome as an effect, ``Nothing`` before it is there."""
        return Effect.sync(self._poll)

    def _poll(self) -> Maybe[Effect[A, E]]:
        done = self._done.get(None)
        return Nothing if done is None else Some(done[0])

    def is_done(self) -> Effect[bool, Never]:
        """Whether it has been completed."""
        return Effect.sync(self.is_done_unsafe)

    def is_done_unsafe(self) -> bool:
        """``is_done`` as a plain call."""
        return bool(self._done)

    # ------------------------------------------------------------------ completing

    def succeed(self, value: A) -> Effect[bool, Never]:
        """Complete with ``value``. Gives False if it was completed before, as all of these do."""
        return self.complete_with(Effect.succeed(value))

    def fail(self, error: E) -> Effect[bool, Never]:
        """Complete with an expected error: each waiter fails with the very object."""
        return self.complete_with(Effect.fail(error))

    def die(self, defect: BaseException) -> Effect[bool, Never]:
        """Complete with a defect."""
        return self.complete_with(Effect.die(defect))

    def fail_cause(self, cause: Cause[E]) -> Effect[bool, Never]:
        """Complete with a whole cause."""
        return self.complete_with(Effect.fail_cause(checked_cause(cause, "Deferred.fail_cause")))

    def done(self, exit_: Exit[A, E]) -> Effect[bool, Never]:
        """Complete with an exit."""
        return self.complete_with(Effect.from_exit(checked_exit(exit_, "Deferred.done")))

    def sync(self, f: Callable[[], A]) -> Effect[bool, Never]:
        """Complete with ``f``: each waiter calls it."""
        check_function(f, "Deferred.sync")
        return self.complete_with(Effect.sync(lambda: plain(f(), "Deferred.sync")))

    def complete(self, eff: Effect[A, E]) -> Effect[bool, Never]:
        """Run ``eff`` once, here, and complete with its exit (``into``). Completed before: ``eff``
        is not run.
        """
        check_effect(eff, "Deferred.complete")
        return Effect.suspend(
            lambda: Effect.succeed(False) if self._done else Deferred.into(eff, self)
        )

    def complete_with(self, eff: Effect[A, E]) -> Effect[bool, Never]:
        """Complete with ``eff`` itself, without running it: each waiter runs it for itself."""
        check_effect(eff, "Deferred.complete_with")
        return Effect.sync(lambda: self._resolve(eff))

    def interrupt(self) -> Effect[bool, Never]:
        """Complete with an Interrupt by the fiber that runs this."""
        return _Access(lambda fiber: self._resolve(_interrupted(fiber.id)))

    def interrupt_with(self, fiber_id: int | None) -> Effect[bool, Never]:
        """Complete with an Interrupt by the fiber of that id."""
        return self.complete_with(_interrupted(fiber_id))

    def done_unsafe(self, outcome: Exit[A, E] | Effect[A, E]) -> bool:
        """Complete with an exit, or with an effect as ``complete_with`` does: a plain call for
        callbacks, from any thread.
        """
        if isinstance(outcome, Effect):
            return self._resolve(outcome)
        return self._resolve(Effect.from_exit(checked_exit(outcome, "Deferred.done_unsafe")))

    def _resolve(self, eff: Effect[A, E]) -> bool:
        entry = (eff,)
        if self._done.setdefault(None, entry) is not entry:
            return False
        for waiter in list(self._waiters):
            if self._waiters.pop(waiter, _GONE) is None:  # pragma: no branch  # gone in a race only
                wake_with(waiter.fiber, waiter, eff)
        return True

    @staticmethod
    def into(eff: Effect[B, F], deferred: Deferred[B, F]) -> Effect[bool, Never]:
        """Run ``eff`` and complete ``deferred`` with its exit, whatever that is: a fiber that is
        interrupted inside completes it with the Interrupt.
        """
        check_kind(deferred, Deferred, "Deferred.into", "a Deferred")
        check_effect(eff, "Deferred.into")
        return Effect.uninterruptible_mask(
            lambda restore: restore(eff).exit().flat_map(deferred.done)
        )

    def __repr__(self) -> str:
        if self._done:
            return "<Deferred done>"
        return f"<Deferred pending, {len(self._waiters)} waiting>"


def _interrupted(by: int | None) -> Effect[Never, Never]:
    return Effect.fail_cause(Cause((Interrupt(by),)))


class _Await(Effect[Any, Any]):
    __slots__ = ("deferred",)

    def __init__(self, deferred: Deferred[Any, Any]) -> None:
        self.deferred = deferred

    def _ev(self, fiber: FiberCore) -> Any:
        deferred = self.deferred
        done = deferred._done.get(None)
        if done is None:
            waiter = _Waiter(deferred, fiber)
            deferred._waiters[waiter] = None
            done = deferred._done.get(None)
            # Another thread may have completed it in between. Who takes the waiter out of the dict
            # is the one that lets it go on.
            if done is None or deferred._waiters.pop(waiter, _GONE) is _GONE:  # pragma: no branch
                return fiber._suspend(waiter)
        fiber._next = done[0]
        return NEXT


class _Waiter(Wait):
    __slots__ = ("deferred", "fiber")

    def __init__(self, deferred: Deferred[Any, Any], fiber: FiberCore) -> None:
        self.deferred = deferred
        self.fiber = fiber

    def _abandon(self, fiber: FiberCore) -> None:
        self.deferred._waiters.pop(self, None)

    def _label(self) -> str:
        return "a Deferred"


__all__ = ["Deferred"]
