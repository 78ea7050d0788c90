"""Start: the records are read, and what the last process left is put in order. Once a process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, final

import structlog

import fibers as fb
from fibers import Effect

from ..model.errors import TurnError
from ..model.record import TurnRecord
from .book import Book
from .reconcile import Reconciliation
from .running import Running
from .work import Work

RECONCILED_AT_ONCE: Final = 32
"""How many turns are looked at together after a restart: most of it is waiting for the disk."""

_log = structlog.get_logger("turns.handles.start")


@final
class Start:
    """That of one manager. ``recovery`` is run between the reading and the reconciliation (T16);
    ``settled`` is called with each record, for what is still due after a turn.
    """

    def __init__(
        self,
        book: Book,
        *,
        recovery: Effect[object, Any] | None,
        reconciliation: Reconciliation,
        running: Running,
        settled: Callable[[TurnRecord], None],
        work: Work,
    ) -> None:
        self._book = book
        self._recovery = recovery
        self._reconciliation = reconciliation
        self._running = running
        self._settled = settled
        self._work = work
        self._loading: fb.Deferred[None, TurnError] | None = None
        self._is_read = False

    @fb.effect(raises=TurnError)
    async def ready(self) -> None:
        """Wait until that is done; who asks first begins it. Fails with "store", and with
        "shutting_down" where the scope closes meanwhile.
        """
        loading = self._loading
        if loading is None:
            loading = self._loading = fb.Deferred()
            begun = loading

            def loaded(exit_: fb.Exit[None, TurnError]) -> None:
                if isinstance(exit_, fb.Failure):
                    self._loading = None  # the next who asks tries again
                begun.done_unsafe(self._said_of(exit_))

            # Whoever came first may be interrupted: it is the manager's work. Observed from
            # outside: in a closed scope it never begins.
            self._work.fork("start of the turns", self._load()).add_observer(loaded)
        await loading

    @fb.effect(raises=TurnError)
    async def read(self) -> None:
        """Read the records, and begin nothing (I9)."""
        if not self._is_read:
            await self._book.load()
            self._is_read = True

    @fb.effect(raises=TurnError)
    async def _load(self) -> None:
        await self.read()
        recovered = await (self._recovery or Effect.succeed(None)).exit()
        if isinstance(recovered, fb.Failure):
            _log.warning("recovery", problem=recovered.failure().pretty())
        await self._put_in_order(self._book.all())

    async def _put_in_order(self, records: Sequence[TurnRecord]) -> None:
        for record in records:
            self._settled(record)
        started = [record for record in records if record.is_started]
        await fb.for_each(started, self._reconcile, concurrency=RECONCILED_AT_ONCE, discard=True)
        # Last: what is queued begins where nothing else goes on.
        for record in records:
            if record.status == "queued":
                self._running.enqueue(record)

    @fb.effect
    async def _reconcile(self, record: TurnRecord) -> None:
        if await self._reconciliation.keeps(record):
            self._running.resume(record)

    def _said_of(self, exit_: fb.Exit[None, TurnError]) -> fb.Exit[None, TurnError]:
        """What those who wait for the start are told: an interrupt of it is none of theirs."""
        if not isinstance(exit_, fb.Failure) or not exit_.failure().has_interrupts_only:
            return exit_
        return fb.Failure(fb.Cause((fb.Fail(_late() if self._work.is_closing else _stopped()),)))


def _late() -> TurnError:
    return TurnError(
        "shutting_down", "the process ends: no turn is read any more", "Ask the next process."
    )


def _stopped() -> TurnError:
    return TurnError(
        "store", "the turns were not read: somebody stopped that", "Ask again: it begins anew."
    )
