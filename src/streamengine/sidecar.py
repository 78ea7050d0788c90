"""What is kept of an answer beside its rows: usage that no row carries (P15, P16), how it ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import fibers as fb

from .model.errors import HistoryError
from .model.note import LastEnd, WorkspaceNote

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


@fb.effect(raises=HistoryError)
async def note_end(history: HistoryStore, workspace_id: str, end: LastEnd) -> None:
    """Remember how the last answer ended that is no whole row; the rest of the note stays."""
    await history.update_note(workspace_id, lambda note: note.ended(end))


@fb.effect(raises=HistoryError)
async def note_begin(history: HistoryStore, stream: Stream) -> None:
    """Before the first event of a further try: how the one before has ended is not how this one
    has, should the process die before its first word.
    """

    def begun(note: WorkspaceNote) -> WorkspaceNote:
        end = note.last_end
        if end is not None and end.message_id == stream.message_id:
            return note  # a stop was quicker
        end = LastEnd(message_id=stream.message_id, after_sequence=stream.question_sequence)
        return note.with_fields(last_end=end)

    await history.update_note(stream.workspace_id, begun)
