"""Workspace: what the turns of one workspace hold on to. It outlives each of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, Never, TypeVar, final

import fibers as fb
from fibers import Clock, Effect, RcMap, Scope
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

IDLE_SECONDS: Final = 300.0
"""How long a workspace that nobody uses is kept."""

T = TypeVar("T")
E = TypeVar("E", bound=Exception)


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
    """The workspaces that somebody uses, each made when it is first asked for.

        workspaces = Workspaces(lambda id: Workspace(id, folder=root / id, state=state / id))

    With ``scope`` their folders are watched in it, and one goes ``idle_seconds`` after nobody uses
    it any more: no turn is open there, nobody has it by ``hold``, nobody hears its watcher. What is
    on disk stays; who asks next gets a new one. Without, each stays as long as this does, and is
    watched by whoever wants it to be. ``clock``: what the idle time is measured by; None takes the
    real one. ValueError for an idle time that is not positive.
    """

    def __init__(
        self,
        make: Callable[[str], Workspace],
        *,
        scope: Scope | None = None,
        idle_seconds: float = IDLE_SECONDS,
        clock: Clock | None = None,
    ) -> None:
        if not idle_seconds > 0:
            raise ValueError(f"idle_seconds must be more than 0, not {idle_seconds!r}")
        self._make = make
        self._made: dict[str, Workspace] = {}
        self._observers = Subscribers[Workspace]("workspaces")
        self._scope = scope
        self._clock = clock
        self._used: RcMap[str, Workspace, Never] | None = None
        if scope is not None:
            used = RcMap.make(self._begin, idle_time_to_live=idle_seconds)
            self._used = fb.run_sync(self._in_clock(scope.provide(used)))

    def __len__(self) -> int:
        return len(self._made)

    def get(self, workspace_id: str) -> Workspace:
        """The workspace as it is now; the first time, a new one. Who goes on using it, holds it."""
        lease = Scope(name=f"a look at {workspace_id}")
        try:
            return self.hold(workspace_id, lease)
        finally:
            self._give_back(lease)

    def hold(self, workspace_id: str, scope: Scope) -> Workspace:
        """The workspace, which stays until ``scope`` closes. A plain call; raises what the making
        of it raises.
        """
        if self._scope is not None and self._scope.state == "closed":
            return self._make(workspace_id)  # for what is torn down at once: nothing is kept
        if self._used is None:
            return self._made.get(workspace_id) or self._new(workspace_id)
        lease = scope.fork_scope()
        try:
            return fb.run_sync(self._in_clock(lease.provide(self._used.get(workspace_id))))
        except BaseException:
            fb.run_sync(lease.close())  # else the failure would stay for all who ask
            raise

    def observe(self, f: Callable[[Workspace], object]) -> Callable[[], None]:
        """Call ``f`` with each workspace, those that are there first, and with one that comes again
        again: it is another one. Gives what ends that.
        """
        for workspace in tuple(self._made.values()):
            f(workspace)
        return self._observers.subscribe(f)

    def _new(self, workspace_id: str) -> Workspace:
        workspace = self._made[workspace_id] = self._make(workspace_id)
        self._observers.tell(workspace)
        return workspace

    @fb.effect
    async def _begin(self, workspace_id: str) -> Workspace:
        """One that is used from now on, watched in the scope in context until it goes."""
        scope = await fb.current_scope()
        workspace = self._new(workspace_id)
        workspace.watcher.keep = lambda: self._kept(workspace_id)
        scope.fork(workspace.watcher.run()).set_name(f"watcher of {workspace_id}")
        # Added last, and so done first: from here on another one may be made.
        await scope.add_finalizer(lambda _exit: self._forget(workspace))
        return workspace

    def _forget(self, workspace: Workspace) -> None:
        if self._made.get(workspace.workspace_id) is workspace:
            del self._made[workspace.workspace_id]

    def _kept(self, workspace_id: str) -> Callable[[], None]:
        lease = Scope(name=f"who hears {workspace_id}")
        self.hold(workspace_id, lease)
        return lambda: self._give_back(lease)

    def _give_back(self, lease: Scope) -> None:
        # Not into a scope that closes: it takes back all by itself, and may take a while.
        if self._scope is None or self._scope.state != "closed":
            fb.run_sync(self._in_clock(lease.close()))

    def _in_clock(self, eff: Effect[T, E]) -> Effect[T, E]:
        return eff if self._clock is None else eff.provide_service(fb.ClockTag, self._clock)
