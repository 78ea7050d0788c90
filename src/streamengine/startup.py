"""Which answers to take up again when the process starts: a pure decision (I10, 1.10)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final, Literal

from .model.note import LastEnd, WorkspaceNote
from .model.parts import MessagePart, ToolPart
from .model.rows import Row, UserRow
from .retry import is_retryable

ASK_USER: Final = "ask_user"
"""The name of the tool that waits for a person."""

StartupVerdict = Literal[
    "retry",
    "nothing-interrupted",
    "opted-out",
    "stopped",
    "not-retryable",
    "asks-a-person",
    "is-over",
]
"""is-over is said by who knows what the answer was for, not by its row."""

_SUPPRESSING: Final = frozenset({"user", "startup"})


def startup_verdict(
    rows: Sequence[Row],
    note: WorkspaceNote,
    *,
    is_relevant: Callable[[Row], bool] = lambda _row: True,
    ask_user_tools: Collection[str] = (ASK_USER,),
) -> StartupVerdict:
    """Whether the last answer of a workspace was interrupted by the end of the process, so that it
    may be taken up again without anybody asking.

    ``rows``: its history by sequence, after recovery. ``is_relevant``: rows for which it is False
    are passed over in looking for the last one (a report that nobody has to answer). Only "retry"
    starts anything: a person's stop, an opt-out, a failure that another try can't mend and a
    question that waits for a person all stay as they are (E30).
    """
    relevant = [row for row in rows if is_relevant(row)]
    if not relevant or not _is_interrupted(relevant[-1]):
        return "nothing-interrupted"
    if not note.auto_retry:
        return "opted-out"
    last = relevant[-1]
    end = _end_of(relevant, note)
    # Else the row that stands last is of a try before: how that had ended counts no more.
    row_counts = end is None or end.message_id == last.id
    reasons = {None if end is None else end.abort_reason}
    if row_counts:
        reasons.add(last.metadata.abort_reason)
    if reasons & _SUPPRESSING:
        return "stopped"
    row_asks = row_counts and asks_a_person(last.parts, ask_user_tools)
    if row_asks or (end is not None and end.asks_a_person):
        return "asks-a-person"
    error_type = last.metadata.error_type if end is None else end.error_type
    if error_type is not None and not is_retryable(error_type):
        return "not-retryable"
    return "retry"


def asks_a_person(parts: Sequence[MessagePart], ask_user_tools: Collection[str]) -> bool:
    """Whether a message ends in a question to a person that has no answer yet."""
    return any(
        isinstance(part, ToolPart) and part.tool_name in ask_user_tools and not part.has_output
        for part in parts
    )


def _is_interrupted(row: Row) -> bool:
    return isinstance(row, UserRow) or row.is_partial


def _end_of(rows: Sequence[Row], note: WorkspaceNote) -> LastEnd | None:
    """The note's word on the last try; None where it is about an earlier message's."""
    end = note.last_end
    if end is None or end.message_id == rows[-1].id:
        return end
    # A try that left no row is known by what it was for. It is the last one, whatever row stands
    # there: where a further try begins, its note takes the place of this one.
    asked = next((row for row in reversed(rows) if isinstance(row, UserRow)), None)
    is_of_last = asked is not None and end.after_sequence == asked.metadata.history_sequence
    return end if is_of_last else None
