"""What the recovery of a workspace found, as the log says it, whoever had it done."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from .history import RecoveryReport
    from .model.errors import HistoryError

_log = structlog.get_logger("streamengine.recovery")


def log_recovered(report: RecoveryReport) -> None:
    """Say what a crash had left and what became of it; nothing after an orderly end."""
    log = _log.bind(workspaceId=report.workspace_id)
    if report.commit is not None:
        log.info(
            "an interrupted message was found",
            outcome=report.commit.outcome,
            messageId=None if report.commit.row is None else report.commit.row.id,
            dropReason=report.commit.drop_reason,
        )
    if report.unreadable_lines:
        log.warning("lines of the history can't be read", lines=report.unreadable_lines)
    if report.swept_temps:
        log.info("temp files of a crash removed", files=len(report.swept_temps))
    for warning in report.warnings:
        log.warning("a file was moved aside", why=warning)
    for problem in report.problems:
        log.warning("a step of the recovery failed; it is tried again", error=str(problem))


def log_not_recovered(workspace_id: str, error: HistoryError, *, then: str) -> None:
    """Say that a workspace can't be read, and what comes ``then``."""
    _log.warning(
        f"a workspace is not recovered: {then}", workspaceId=workspace_id, error=str(error)
    )
