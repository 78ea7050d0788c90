"""Settlement: the one place where a turn becomes terminal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import fibers as fb
from fibers import Effect

from ..model.cause import Cause, CorrelatedStreamEnd, checked_cause, is_transient, status_of
from ..model.errors import TurnError
from ..model.record import FinalMessage, TurnRecord
from .book import Book
from .waiters import Waiters


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a turn is, after somebody wanted to settle it."""

    record: TurnRecord
    is_new: bool
    """Whether it is what the caller wanted; False: it had settled before."""


@final
class Settlement:
    """Settles the turns of one manager, each once.

        await settlement.settle("wst_1", ExplicitInterrupt(by="ada"))

    ``release`` is told first that a turn is over and lets go of what leads events to it;
    ``afterwards`` is told last, and begins what remains to be done. Both are plain calls: the
    handle's lock is held.
    """

    def __init__(
        self,
        book: Book,
        waiters: Waiters,
        *,
        release: Callable[[TurnRecord], None],
        afterwards: Callable[[TurnRecord], None],
    ) -> None:
        self._book = book
        self._waiters = waiters
        self._release = release
        self._afterwards = afterwards

    def settle(
        self, handle_id: str, cause: Cause, *, final: FinalMessage | None = None
    ) -> Effect[Verdict, TurnError]:
        """Settle a turn for ``cause``, durably. Who comes second gets the first verdict (T8).

        Fails, with nothing changed, with "invalid_cause" (T6), "not_found", "store".
        """
        return self._settle(handle_id, cause, final)

    @fb.effect(raises=TurnError)
    async def _settle(self, handle_id: str, cause: Cause, final: FinalMessage | None) -> Verdict:
        async with self._book.locks.hold(handle_id):
            checked = checked_cause(cause)
            record = self._book.get(handle_id)
            if record.is_terminal and not _corrects(checked, record):
                return Verdict(record, is_new=False)
            settled = record.settled(checked, final)
            # Masked: from the write on it is over, and everybody shall hear of it. Of a correction
            # nobody is left to hear: who waited has woken, and what was done afterwards is marked.
            with fb.uninterruptible():
                await self._book.put(settled)
                self._release(settled)
                self._waiters.resolve(settled)
                self._afterwards(settled)
        return Verdict(settled, is_new=True)


def _corrects(cause: Cause, record: TurnRecord) -> bool:
    """Whether a turn that settled for something transient is proved to have completed."""
    before = record.settled_for
    return (
        isinstance(cause, CorrelatedStreamEnd)
        and status_of(cause) == "completed"
        and before is not None
        and is_transient(before)
    )
