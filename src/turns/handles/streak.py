"""Auto-continuation: turns that begin by themselves after one that was cut off (I12)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ..model.errors import TurnError
from ..model.record import TurnRecord

LONGEST_STREAK: Final = 3


def streak_of(records: Sequence[TurnRecord]) -> int:
    """How many turns of a workspace, oldest first, began by themselves since the last that
    completed.
    """
    streak = 0
    for record in reversed(records):
        if record.status == "completed":
            break
        streak += record.continues is not None
    return streak


def check_continues(record: TurnRecord, in_workspace: Sequence[TurnRecord]) -> None:
    """Whether a turn may begin by itself to go on with ``record``. Raises TurnError."""
    if not record.is_terminal or record.status == "completed":
        raise TurnError(
            "nothing_to_continue",
            f"{record.handle_id} is {record.status}",
            "Only a turn that was cut off is gone on with.",
        )
    if any(each.continues == record.handle_id and not each.is_terminal for each in in_workspace):
        raise TurnError(
            "continuation_refused",
            f"{record.handle_id} is gone on with already",
            "Wait for the turn that does.",
        )
    if record.continues is not None:
        raise TurnError(
            "continuation_refused",
            f"{record.handle_id} began by itself already",
            "Write in its workspace: a person's turn may be gone on with.",
        )
    if streak_of(in_workspace) >= LONGEST_STREAK:
        raise TurnError(
            "continuation_refused",
            f"{LONGEST_STREAK} turns of {record.workspace_id} began by themselves, and none since "
            "has completed",
            "Write in its workspace, and see why they are cut off.",
        )
