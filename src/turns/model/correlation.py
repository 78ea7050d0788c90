"""Correlation: what every stream of a turn carries, and by which it is recognized."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from .record import TurnRecord

CORRELATION_TYPE: Final = "workspace-turn-task"


def correlation_of(record: TurnRecord) -> dict[str, Any]:
    """What the streams of this turn carry."""
    return {
        "type": CORRELATION_TYPE,
        "taskHandleId": record.handle_id,
        "ownerWorkspaceId": record.owner_workspace_id,
        "turnId": record.turn_id,
    }


def handle_named_by(correlation: Mapping[str, Any] | None) -> str | None:
    """The handle that a correlation is about; None where it is about no turn."""
    if correlation is None or correlation.get("type") != CORRELATION_TYPE:
        return None
    named = correlation.get("taskHandleId")
    return named if isinstance(named, str) else ""


def correlates(
    record: TurnRecord, workspace_id: str, correlation: Mapping[str, Any] | None
) -> bool:
    """Whether something in this workspace with this correlation is of this very turn (T13)."""
    return (
        correlation is not None
        and workspace_id == record.workspace_id
        and all(correlation.get(key) == value for key, value in correlation_of(record).items())
    )
