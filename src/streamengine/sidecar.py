"""The usage of an answer that no row carries, kept beside the rows (P15, P16)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import fibers as fb

from .model.errors import HistoryError

if TYPE_CHECKING:
    from .history.store import HistoryStore
    from .stream import Stream


@fb.effect(raises=HistoryError)
async def record_usage(
    history: HistoryStore, stream: Stream, source: Literal["abort", "error"]
) -> None:
    """Record what ``stream`` has used, if it used anything."""
    spent = stream.usage.spent
    if spent is not None:
        await history.record_usage(
            stream.workspace_id, stream.message_id, spent, model=stream.model, source=source
        )
