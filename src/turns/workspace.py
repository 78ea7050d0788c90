"""Workspace: what the turns of one workspace hold on to. It outlives each of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import final

from streamengine.history.directory import DurableDirectory, FsyncPolicy

from .files.folder import Folder
from .files.journal import UndoJournal
from .files.watcher import INTERVAL_SECONDS, FolderWatcher
from .holds.attribution import Attribution
from .holds.continuation import ContinuationFlag
from .holds.message import LiveMessage
from .holds.permission import PermissionDesk
from .holds.readings import LiveReadings
from .holds.records import ToolRecords
from .holds.warnings import UndoWarnings
from .subscribers import Subscribers


@final
class Workspace:
    """One of each thing that a turn can hold. Who wants to see it, looks here; who wants to hold
    it, needs a turn.

    ``folder``: where the tools work. ``state``: where its journal and flags are, out of their
    reach.
    """

    def __init__(
        self,
        workspace_id: str,
        *,
        folder: Path,
        state: Path,
        fsync: FsyncPolicy = "terminal",
        watch_seconds: float = INTERVAL_SECONDS,
    ) -> None:
        self.workspace_id = workspace_id
        self.folder: Folder = Folder(folder)
        directory = DurableDirectory(state, fsync=fsync)
        self.message: LiveMessage = LiveMessage()
        self.records: ToolRecords = ToolRecords()
        self.permissions: PermissionDesk = PermissionDesk(directory)
        self.journal: UndoJournal = UndoJournal(state / "undo", self.folder, fsync=fsync)
        self.warnings: UndoWarnings = UndoWarnings()
        self.attribution: Attribution = Attribution()
        self.watcher: FolderWatcher = FolderWatcher(
            folder, author=lambda: self.attribution.author, interval_seconds=watch_seconds
        )
        self.continuation: ContinuationFlag = ContinuationFlag(directory)
        self.readings: LiveReadings = LiveReadings()


@final
class Workspaces:
    """The workspaces that somebody has asked for, each made once.

    workspaces = Workspaces(lambda id: Workspace(id, folder=root / id, state=state / id))
    """

    def __init__(self, make: Callable[[str], Workspace]) -> None:
        self._make = make
        self._made: dict[str, Workspace] = {}
        self._observers = Subscribers[Workspace]("workspaces")

    def get(self, workspace_id: str) -> Workspace:
        """The workspace; the first time, a new one."""
        workspace = self._made.get(workspace_id)
        if workspace is None:
            workspace = self._made[workspace_id] = self._make(workspace_id)
            self._observers.tell(workspace)
        return workspace

    def observe(self, f: Callable[[Workspace], object]) -> Callable[[], None]:
        """Call ``f`` with each workspace once, those that are made already first. Gives what ends
        that.
        """
        for workspace in tuple(self._made.values()):
            f(workspace)
        return self._observers.subscribe(f)
