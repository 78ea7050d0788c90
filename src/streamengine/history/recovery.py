"""What a load makes of the files that a crash left."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ..model.errors import HistoryError
from .files import WorkspaceFiles
from .results import Loaded, PartialRead, RecoveryReport

T = TypeVar("T")


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

        swept_temps = attempt(files.sweep) or ()
        attempt(files.finish_archive)
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
