"""The note on an answer that did not become a whole row: durable before its end is told.

A start of the process reads it (startup.py): a committed partial carries no error (P8), and an
answer that was stopped before its first word has no row at all (R02).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import fibers as fb

from .model.errors import HistoryError
from .model.note import LastEnd

if TYPE_CHECKING:
    from .history.store import HistoryStore


@fb.effect(raises=HistoryError)
async def note_end(history: HistoryStore, workspace_id: str, end: LastEnd) -> None:
    """Remember ``end`` as the last one of the workspace; what else the note says stays."""
    note = await history.read_note(workspace_id)
    await history.write_note(workspace_id, note.model_copy(update={"last_end": end}))
