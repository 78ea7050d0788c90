"""What a load makes of the files that a crash left."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from ..model.errors import HistoryError
from ..model.rows import Row
from .files import CommitResult, PartialRead, WorkspaceFiles

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What a load found and did; nothing to tell after an orderly end."""

    workspace_id: str
    commit: CommitResult | None
    """What became of the partial; None when there was none, or it had to stay where it is."""
    swept_temps: tuple[str, ...] = ()
    """Names of temp files that a crash had left."""
    warnings: tuple[str, ...] = ()
    """Files that had to be moved aside, in words."""
    problems: tuple[HistoryError, ...] = ()
    """Steps that failed. What they were about is untouched and is tried again at the next load."""
    removed_blank_rows: int = 0
    unreadable_lines: int = 0
    """Lines of `chat.jsonl` that are no rows; they stay in the file."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A workspace as it is after a load."""

    rows: tuple[Row, ...]
    report: RecoveryReport


def load(files: WorkspaceFiles) -> Loaded:
    """Put a workspace in order and read it, in one step.

    The process may have died at any point of a stream: before, within or after the write of the
    partial, its commit, or its removal. Each of these leads to the same conversation, and a crash
    during the load is no different. The partial of a live stream is left alone.

    Raises HistoryError only if the rows can't be read.
    """
    with files.exclusive():
        problems: list[HistoryError] = []

        def attempt(step: Callable[[], T]) -> T | None:
            try:
                return step()
            except HistoryError as error:
                problems.append(error)
                return None

        swept_temps = attempt(files.sweep_temps) or ()
        partial = attempt(files.read_partial) or PartialRead()
        commit = None
        if partial.row is not None and not files.is_reserved(partial.row.id):
            commit = attempt(files.commit_partial)
        removed_blank_rows = attempt(files.remove_blank_rows) or 0
        read = files.read()
        report = RecoveryReport(
            files.workspace_id,
            commit,
            swept_temps=swept_temps,
            warnings=() if partial.warning is None else (partial.warning,),
            problems=tuple(problems),
            removed_blank_rows=removed_blank_rows,
            unreadable_lines=read.unreadable_lines,
        )
        return Loaded(tuple(read.rows), report)
