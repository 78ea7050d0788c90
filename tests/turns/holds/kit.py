"""A workspace on a bench: turns in it, everything that they can hold, and what is left of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, TypeVar, final

import fibers as fb
from fibers import Effect, Scope
from fibers.testing import TestClock
from turns.files.watcher import FileChange
from turns.holds.permission import Verdict
from turns.holds.readings import NO_READING
from turns.holds.warnings import UndoWarning
from turns.open_turn import TurnEnd
from turns.turn import OpenTurns, Turn
from turns.workspace import Workspace, Workspaces

WORKSPACE: Final = "w1"
ENDS: Final[tuple[TurnEnd, ...]] = (
    "completed",
    "stalled",
    "errored",
    "died",
    "torn-down",
    "suspended",
    "interrupted",
)
UNCLEAN: Final = ENDS[1:]
HOLDS: Final = (
    "streaming message",
    "tool records",
    "permission card",
    "change group",
    "undo warnings",
    "attribution",
    "continuation flag",
    "live readings",
)

T = TypeVar("T")


@final
class Bench:
    """One workspace, its open turns, and what its subscribers were told."""

    def __init__(self, rt: fb.Runtime, clock: TestClock, directory: Path) -> None:
        self.rt = rt
        self.clock = clock
        self.directory = directory
        self.folder = directory / "folder"
        self.state = directory / "state"
        self.folder.mkdir(exist_ok=True)
        self.scope = Scope("parallel", name="app")
        self.turns = OpenTurns(Workspaces(self._make))
        self.warnings: list[UndoWarning] = []
        self.changes: list[FileChange] = []
        self.verdicts: list[fb.Fiber[Verdict, Any]] = []
        self._latches: list[fb.Latch] = []
        self.workspace.warnings.subscribe(self.warnings.append)
        self.workspace.watcher.subscribe(self.changes.append)

    def _make(self, workspace_id: str) -> Workspace:
        return Workspace(workspace_id, folder=self.folder, state=self.state, fsync="off")

    @property
    def workspace(self) -> Workspace:
        return self.turns.workspaces.get(WORKSPACE)

    def open(self, turn_id: str = "t1") -> Turn:
        return self.turns.open(turn_id, WORKSPACE, self.clock, self.scope)

    async def run(self, work: Effect[T, Any]) -> T:
        return await self.rt.run(work)

    def latch(self) -> fb.Latch:
        """For what hangs until the test opens it, at the latest when it is over."""
        latch = fb.Latch()
        self._latches.append(latch)
        return latch

    def let_go(self) -> None:
        for latch in self._latches:
            latch.open_unsafe()

    async def idle(self) -> None:
        """Let everything run that can run without time passing."""
        await self.pass_time(0)

    async def pass_time(self, seconds: float) -> None:
        await self.rt.run(self.clock.adjust(seconds))

    async def close(self, turn: Turn, *ends: TurnEnd) -> None:
        """Close it in each of these ways, one after the other."""
        for end in ends:
            await self.run(turn.close(end))

    async def take_all(self, turn: Turn) -> None:
        """Let the turn hold everything that it can hold."""
        await self.run(self.workspace.watcher.refresh())
        turn.message.begin("m1")
        turn.message.add("text", "half a sen")
        turn.records.open("c1", "shell")
        turn.records.task_started("task-of-open", "c1")
        turn.records.open("c0", "monitor")
        turn.records.task_started("task-of-closed", "c0")
        turn.records.close("c0")
        ask = turn.permission.ask("May I?", subject="shell")
        self.verdicts.append(self.rt.run_fork(ask))
        turn.attribution.claim()
        turn.changes.begin_if_needed().write("made.txt", b"by a tool")
        turn.warnings.add("shell")
        await self.run(turn.continuation.mark())
        turn.readings.show(tokens=12, cost_usd=0.5)
        await self.idle()

    async def held(self) -> set[str]:
        """Names of the holds that are not given back, as the workspace shows them."""
        w = self.workspace
        held = {
            "streaming message": w.message.is_streaming,
            "tool records": bool(w.records.running),
            "permission card": w.permissions.card is not None,
            "change group": w.watcher.is_held or bool(w.journal._open),
            "undo warnings": bool(w.warnings.pending),
            "attribution": w.attribution.author == "agent",
            "continuation flag": await self.run(w.continuation.read()) is not None,
            "live readings": (w.readings.tokens, w.readings.cost_usd) != (NO_READING, NO_READING),
        }
        return {name for name, is_held in held.items() if is_held}
