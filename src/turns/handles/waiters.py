"""Waiters: who waits for the end of a turn. Each is gone once it has an answer, or gave up."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import final

from fibers import Deferred, Effect

from ..model.errors import TurnError
from ..model.record import TurnRecord


@final
class Waiters:
    """The waiters of all handles of a manager."""

    def __init__(self) -> None:
        self._waiting: dict[str, dict[int, Deferred[TurnRecord, TurnError]]] = {}

    def count(self, handle_id: str) -> int:
        """How many wait for this handle."""
        return len(self._waiting.get(handle_id, ()))

    @contextmanager
    def waiting(self, handle_id: str) -> Generator[Effect[TurnRecord, TurnError]]:
        """Wait for this handle in the block; what it gives is its record once it settled.

        Registered at once: who reads the record only in the block misses no settlement (T10).
        """
        waiter: Deferred[TurnRecord, TurnError] = Deferred()
        self._waiting.setdefault(handle_id, {})[id(waiter)] = waiter
        try:
            yield waiter.await_()
        finally:
            waiting = self._waiting.get(handle_id, {})
            waiting.pop(id(waiter), None)
            if not waiting:
                self._waiting.pop(handle_id, None)

    def resolve(self, record: TurnRecord) -> None:
        """Give the verdict to all who wait for it now."""
        for waiter in self._waiting.pop(record.handle_id, {}).values():
            waiter.done_unsafe(Effect.succeed(record))

    def give_up(self, why: Callable[[str], TurnError]) -> None:
        """Nothing settles any more here: all who wait fail with what ``why`` says of their handle,
        each with an error of its own.
        """
        waiting, self._waiting = self._waiting, {}
        for handle_id, waiters in waiting.items():
            for waiter in waiters.values():
                waiter.done_unsafe(Effect.fail(why(handle_id)))
