"""Aftermath: what remains to be done once a turn has settled: a workspace to remove, an owner to
tell. Each is done once, also where a restart comes between (T19, T21).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, final

import structlog

import fibers as fb
from fibers import Effect

from ..model.errors import TurnError
from ..model.record import TurnRecord, now
from .book import Book

DisposeWorkspace: TypeAlias = Callable[[TurnRecord], Effect[object, Exception]]
"""Removes the workspace of a settled turn. May come again after a crash in the middle of it."""

_log = structlog.get_logger("turns.handles.aftermath")


@final
class Aftermath:
    """Does it for the turns of one manager. ``closed``: waits until a turn holds nothing more."""

    def __init__(
        self,
        book: Book,
        *,
        dispose: DisposeWorkspace | None,
        notify: Callable[[TurnRecord], None],
        closed: Callable[[str], Effect[None]],
    ) -> None:
        self._book = book
        self._dispose = dispose
        self._notify = notify
        self._closed = closed

    def is_due(self, record: TurnRecord) -> bool:
        """Whether anything is left to do for this one."""
        return record.is_terminal and (_wants_attention(record) or self._is_disposable(record))

    @fb.effect
    async def follow(self, handle_id: str) -> None:
        """Do what is due after this turn. Never fails: what can't be done is tried at the next
        start.
        """
        await self._closed(handle_id)
        for step in (self._dispose_workspace, self._tell_owner):
            try:
                await step(handle_id)
            except TurnError as error:
                _log.warning("after a turn", handleId=handle_id, problem=str(error))

    async def _dispose_workspace(self, handle_id: str) -> None:
        """The workspace may serve further turns: whichever is the last of them removes it."""
        if self._dispose is None:
            return
        workspace_id = self._book.get(handle_id).workspace_id
        records = self._book.in_workspace(workspace_id)
        due = [record for record in records if self._is_disposable(record)]
        if not due or not all(record.is_terminal for record in records):
            return
        disposed = await self._dispose(due[-1]).exit()
        if isinstance(disposed, fb.Failure):
            _log.warning(
                "a workspace could not be removed; the next start tries again",
                workspaceId=workspace_id,
                error=str(disposed.failure().squash()),
            )
            return
        for record in due:
            await self._book.change(
                record.handle_id, lambda r: r.changed(workspace_disposed_at=now())
            )

    async def _tell_owner(self, handle_id: str) -> None:
        told = False

        def mark(record: TurnRecord) -> TurnRecord | None:
            nonlocal told
            told = _wants_attention(record)
            return record.changed(terminal_attention_notified_at=now()) if told else None

        # Marked first: told twice is worse than the crash between these two lines.
        with fb.uninterruptible():
            record = await self._book.change(handle_id, mark)
            if told:
                self._notify(record)

    def _is_disposable(self, record: TurnRecord) -> bool:
        return (
            self._dispose is not None
            and record.is_terminal
            and record.disposable_workspace
            and record.workspace_disposed_at is None
        )


def _wants_attention(record: TurnRecord) -> bool:
    return (
        record.attention_policy == "notify_on_terminal"
        and record.terminal_attention_notified_at is None
    )
