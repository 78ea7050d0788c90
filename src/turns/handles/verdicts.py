"""Verdicts: the way from an event to a settlement: the rows that show it, and a record that may not
be writable yet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, final

import structlog

import fibers as fb
from fibers import Effect, Exit
from streamengine.history.store import HistoryStore
from streamengine.model import Row
from streamengine.payloads import text_of

from ..model.cause import Cause
from ..model.errors import TurnError
from ..model.record import FinalMessage, TurnRecord
from .evidence import Unreadable, anchor_in
from .settlement import Settlement

_FIRST_AGAIN_SECONDS: Final = 1.0
_LONGEST_AGAIN_SECONDS: Final = 60.0

_log = structlog.get_logger("turns.handles.verdicts")


@final
class Verdicts:
    """Reads the evidence and settles. ``later``: runs an effect after so many seconds."""

    def __init__(
        self,
        history: HistoryStore,
        settlement: Settlement,
        *,
        later: Callable[[float, Effect[None]], object],
    ) -> None:
        self._history = history
        self._settlement = settlement
        self._later = later

    async def read(self, record: TurnRecord) -> Sequence[Row] | Unreadable:
        """The rows of the turn's workspace, back to its prompt where that is kept at all."""
        try:
            rows: Sequence[Row] = await self._history.read(record.workspace_id)
            if anchor_in(rows, record) is None:
                # Sealed meanwhile, with all that came before it.
                rows = [*await self._history.read_archive(record.workspace_id), *rows]
        except Exception as error:  # noqa: BLE001  # also what a broken store raises: the turn is over
            return Unreadable(f"the history can't be read: {text_of(error)}")
        return rows

    @fb.effect
    async def settle(
        self,
        handle_id: str,
        cause: Cause,
        final: FinalMessage | None = None,
        again_seconds: float = _FIRST_AGAIN_SECONDS,
    ) -> None:
        """Settle a turn. Where its record can't be written it is tried again, at first after
        ``again_seconds``, in the end once a minute.
        """
        settling = self._settlement.settle(handle_id, cause, final=final)
        outcome: Exit[Any, TurnError] = await settling.exit()
        if isinstance(outcome, fb.Success):
            return
        why = outcome.failure()
        error = why.squash()
        # A store that breaks is tried again as one that fails: the turn is over either way.
        if why.has_interrupts_only or (isinstance(error, TurnError) and error.kind != "store"):
            raise error
        _log.warning(
            "a turn is over, and its record can't be written: it is tried again",
            handleId=handle_id,
            cause=cause.kind,
            error=text_of(error),
        )
        longer = min(again_seconds * 2, _LONGEST_AGAIN_SECONDS)
        self._later(again_seconds, self.settle(handle_id, cause, final, longer))
