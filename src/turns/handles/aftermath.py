"""Aftermath: what remains to be done once a turn has settled: a workspace to remove, an owner to
tell. Each is done once, also where a restart comes between (T19, T21).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias, final

import structlog

import fibers as fb
from fibers import Effect
from streamengine.abandoned import ended_within
from streamengine.payloads import text_of

from ..model.record import TurnRecord, now
from .book import Book
from .places import Places

REMOVAL_SECONDS: Final = 30.0
"""How long what a settled turn leaves behind, and the removal of its workspace, may keep its owner
from being told.
"""

_REMOVAL: Final = "removal"

DisposeWorkspace: TypeAlias = Callable[[TurnRecord], Effect[object, Exception]]
"""Removes the workspace of a settled turn. May come again after a crash in the middle of it."""

_log = structlog.get_logger("turns.handles.aftermath")


@final
class Aftermath:
    """Does it for the turns of one manager. ``closed``: waits until a turn holds nothing more.

    The removal of a workspace has its place meanwhile: no turn begins in what is going.
    """

    def __init__(
        self,
        book: Book,
        *,
        dispose: DisposeWorkspace | None,
        notify: Callable[[TurnRecord], None],
        closed: Callable[[str], Effect[None]],
        places: Places,
    ) -> None:
        self._book = book
        self._places = places
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
        leaving = self._leave(handle_id)
        if not self.is_due(self._book.get(handle_id)):
            await leaving  # at most it is the last one in what another has to remove
            return
        going = await leaving.fork_child()
        going.set_name(f"end of the workspace of {handle_id}")
        if await ended_within(going, await fb.current_clock(), REMOVAL_SECONDS) is None:
            _log.warning(
                "what a turn leaves behind does not end, or the removal of its workspace hangs: "
                "turns that are to begin there wait for it",
                handleId=handle_id,
            )
        await self._guarded(handle_id, self._tell_owner)
        await going.exit()

    @fb.effect
    async def _leave(self, handle_id: str) -> None:
        """Wait until it holds nothing, then remove its workspace where that is to go."""
        await self._closed(handle_id)
        if self._due_in(self._book.get(handle_id).workspace_id):
            await self._guarded(handle_id, self._remove_workspace)

    @fb.effect
    async def _guarded(self, handle_id: str, step: Callable[[str], Awaitable[None]]) -> None:
        """One step; its failure must not keep the other from being done."""
        try:
            await step(handle_id)
        except Exception as error:  # noqa: BLE001  # logged; the next start tries again
            _log.warning("after a turn", handleId=handle_id, problem=text_of(error))

    async def _remove_workspace(self, handle_id: str) -> None:
        """The workspace may serve further turns: whichever is the last of them removes it."""
        workspace_id = self._book.get(handle_id).workspace_id
        if not self._places.take_if_free(workspace_id, _REMOVAL):
            return  # a turn begins there, and its end comes here again
        try:
            due = self._due_in(workspace_id)
            if due and await self._is_removed(due[-1]):
                for record in due:
                    await self._book.change(
                        record.handle_id, lambda r: r.changed(workspace_disposed_at=now())
                    )
        finally:
            self._places.leave(workspace_id, _REMOVAL)

    async def _is_removed(self, record: TurnRecord) -> bool:
        dispose = self._dispose
        assert dispose is not None, "none is due without it"
        # Suspended: it may raise before it gives an effect.
        disposed = await Effect.suspend(lambda: dispose(record)).exit()
        if isinstance(disposed, fb.Failure):
            _log.warning(
                "a workspace could not be removed; the next start tries again",
                workspaceId=record.workspace_id,
                error=text_of(disposed.failure().squash()),
            )
        return isinstance(disposed, fb.Success)

    def _due_in(self, workspace_id: str) -> list[TurnRecord]:
        """The turns of a workspace with which it is to go; none as long as one has not settled."""
        if self._dispose is None:
            return []
        records = self._book.in_workspace(workspace_id)
        if not all(record.is_terminal for record in records):
            return []
        return [record for record in records if self._is_disposable(record)]

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
