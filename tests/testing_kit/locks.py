"""Two locks to try the kit on: a right one, and one with faults that people do write."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import fibers as fb
from fibers import Effect, Exit


class _Waiter:
    def __init__(self) -> None:
        self.resume: Callable[[Exit[None, Any]], None] | None = None
        self.granted = False


class Gate:
    """A lock made of callbacks. ``careless``: a waiter that is interrupted stays in the queue."""

    def __init__(self, *, careless: bool = False) -> None:
        self.free = True
        self.careless = careless
        self.waiting: deque[_Waiter] = deque()

    def take(self) -> Effect[None]:
        def make() -> Effect[None]:
            waiter = _Waiter()

            def register(resume: Callable[[Any], None]) -> None:
                waiter.resume = resume
                if self.free:
                    self.free = False
                    self._grant(waiter)
                else:
                    self.waiting.append(waiter)

            wait: Effect[None] = Effect.callback(register)
            if self.careless:
                return wait
            return wait.on_interrupt(lambda _: Effect.sync(lambda: self._leave(waiter)))

        return Effect.suspend(make)

    def give_back(self) -> None:
        if self.waiting:
            self._grant(self.waiting.popleft())
        else:
            self.free = True

    def _grant(self, waiter: _Waiter) -> None:
        assert waiter.resume is not None
        waiter.granted = True
        waiter.resume(fb.Success(None))

    def _leave(self, waiter: _Waiter) -> None:
        if waiter.granted:
            self.give_back()
        else:
            self.waiting.remove(waiter)


def held_safely(gate: Gate, work: Effect[Any, Any]) -> Effect[Any, Any]:
    """Nothing comes between the take and the finalizer that gives it back."""
    return Effect.uninterruptible_mask(
        lambda restore: restore(gate.take()).flat_map(
            lambda _: restore(work).ensuring(Effect.sync(gate.give_back))
        )
    )


def held_with_a_gap(gate: Gate, work: Effect[Any, Any]) -> Effect[Any, Any]:
    """An interrupt between the take and the ``ensuring`` keeps the lock for ever."""
    return gate.take().flat_map(lambda _: work.ensuring(Effect.sync(gate.give_back)))
