"""Reconciliation: what becomes of the turns that the last process left, at the start of this one.

The records were read before (I9), and the startup retry has decided (I10): a try that it has begun,
or that it waits for, keeps its turn alive. What nothing works on is settled by the history (T16).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import fibers as fb
from fibers import Effect

from ..model.cause import Cause, ConservativeFallback, StaleHistoryRecovery, StaleRestart
from ..model.record import FinalMessage, TurnRecord
from .evidence import Unreadable, final_in, text_in, waits_for_retry
from .liveness import Liveness
from .verdicts import Verdicts


@final
class Reconciliation:
    """Decides about one record after the other."""

    def __init__(
        self,
        liveness: Liveness,
        verdicts: Verdicts,
        *,
        bury: Callable[[TurnRecord], Effect[None]],
    ) -> None:
        """``bury`` gives back what a turn held beyond its process: before the verdict, which a
        process that dies in between reaches again."""
        self._liveness = liveness
        self._verdicts = verdicts
        self._bury = bury

    def keeps(self, record: TurnRecord) -> Effect[bool]:
        """Whether a started turn goes on; if not it is settled."""
        return self._keeps(record)

    @fb.effect
    async def _keeps(self, record: TurnRecord) -> bool:
        if self._liveness.stream_of(record) is not None:
            return True
        rows = await self._verdicts.read(record)
        if isinstance(rows, Unreadable):
            await self._settle(record, ConservativeFallback(reason=rows.why))
            return False
        if self._liveness.is_retrying(record.workspace_id) and waits_for_retry(rows, record):
            return True
        final = final_in(rows, record)
        if final is None:
            await self._settle(record, StaleRestart())
        else:
            message = FinalMessage(text=text_in(final.parts), message_id=final.id)
            await self._settle(record, StaleHistoryRecovery(message_id=final.id), message)
        return False

    async def _settle(
        self, record: TurnRecord, cause: Cause, final: FinalMessage | None = None
    ) -> None:
        await self._bury(record)
        await self._verdicts.settle(record.handle_id, cause, final)
