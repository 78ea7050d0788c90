"""The change group: the files that the turn's tools write are one undo step."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, ClassVar, final

import fibers as fb

from ..files.journal import UndoGroup, UndoJournal
from ..files.watcher import FolderWatcher
from ..open_turn import TurnEnd
from .hold import Hold, Holder


@final
class ChangeHold(Hold):
    """The turn's undo group. While it is open, the watcher of the workspace is held back."""

    name: ClassVar[str] = "change group"

    def __init__(self, holder: Holder, journal: UndoJournal, watcher: FolderWatcher) -> None:
        super().__init__(holder)
        self._journal = journal
        self._watcher = watcher
        self._group: UndoGroup | None = None

    @property
    def is_open(self) -> bool:
        return self._group is not None

    def begin_if_needed(self) -> UndoGroup:
        """The group, begun by the first call. TurnError("ended") when the turn has ended."""
        self._check_open()
        if self._group is None:
            self._group = self._journal.begin(self._holder.turn_id)
            self._watcher._hold(self)
            self._holder.changed()
        return self._group

    def _release(self, end: TurnEnd) -> Awaitable[Any] | None:
        return self._end_if_active()

    def _end_if_active(self) -> Awaitable[Any] | None:
        group, self._group = self._group, None
        return None if group is None else self._end(group)

    @fb.effect
    async def _end(self, group: UndoGroup) -> None:
        try:
            await asyncio.to_thread(group._end_if_active)
        finally:
            # Also where the journal's disk is full: the watcher must not stay silent for that.
            await self._watcher._let_go(self)
