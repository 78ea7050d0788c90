"""Workspaces that nobody uses go; what somebody hears or holds stays, and what is on disk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final, final

import pytest

import fibers as fb
from fibers import Scope
from fibers.dump.tree import live_fibers
from fibers.testing import TestClock
from turns.files.watcher import FileChange
from turns.holds.permission import PermissionNews
from turns.turn import OpenTurns
from turns.workspace import Workspace, Workspaces

IDLE_SECONDS: Final = 60.0


@final
class Town:
    """An app scope with workspaces that go when they are idle."""

    def __init__(self, rt: fb.Runtime, clock: TestClock, directory: Path) -> None:
        self.rt, self.clock, self.directory = rt, clock, directory
        self.scope = Scope("parallel", name="app")
        self.made: list[str] = []
        self.fails: Exception | None = None
        self.workspaces = Workspaces(
            self._make, scope=self.scope, idle_seconds=IDLE_SECONDS, clock=clock
        )
        self.turns = OpenTurns(self.workspaces)

    def _make(self, workspace_id: str) -> Workspace:
        if self.fails is not None:
            raise self.fails
        self.made.append(workspace_id)
        folder = self.directory / workspace_id
        folder.mkdir(exist_ok=True)
        return Workspace(
            workspace_id, folder=folder, state=self.directory / "state" / workspace_id, fsync="off"
        )

    async def turn(self, workspace_id: str = "w1") -> None:
        """A turn that changes a file, and ends."""
        turn = self.turns.open(f"turn of {workspace_id}", workspace_id, self.clock, self.scope)
        group = turn.changes.begin_if_needed()
        await asyncio.to_thread(group.write, "a.txt", b"tea")
        await self.rt.run(turn.close("completed"))

    async def pass_time(self, seconds: float) -> None:
        await self.rt.run(self.clock.adjust(seconds))

    @property
    def watchers(self) -> list[str]:
        names = [fiber.get_name() for fiber in live_fibers()]
        return [name for name in names if name.startswith("watcher of ")]


@pytest.fixture
async def town(tmp_path: Path) -> AsyncIterator[Town]:
    """Closed after the test, with no watcher left."""
    clock = TestClock()
    rt = fb.Runtime(clock=clock)
    await rt.run(clock.adjust(0))
    made = Town(rt, clock, tmp_path)
    yield made
    await rt.run(made.scope.close(reason="system"))
    assert made.watchers == []
    await rt.dispose()


async def test_a_workspace_goes_some_time_after_its_last_turn(town: Town) -> None:
    await town.turn("w1")
    await town.pass_time(IDLE_SECONDS - 1)
    await town.turn("w2")
    assert (len(town.workspaces), town.watchers) == (2, ["watcher of w1", "watcher of w2"])

    await town.pass_time(2)
    assert (len(town.workspaces), town.watchers) == (1, ["watcher of w2"])
    await town.pass_time(IDLE_SECONDS)

    assert (len(town.workspaces), town.watchers) == (0, [])
    assert town.scope.finalizer_count <= 1, "nothing is left of them in the app scope"


async def test_what_its_turns_left_on_disk_can_still_be_undone(town: Town) -> None:
    await town.turn()
    await town.pass_time(IDLE_SECONDS + 1)

    undone = await asyncio.to_thread(town.workspaces.get("w1").journal.undo)

    assert undone.paths == ("a.txt",)
    assert town.made == ["w1", "w1"]


async def test_an_open_turn_keeps_its_workspace_until_it_has_given_all_back(town: Town) -> None:
    turn = town.turns.open("t1", "w1", town.clock, town.scope)
    await town.pass_time(10 * IDLE_SECONDS)
    other = town.turns.open("t2", "w1", town.clock, town.scope)
    await town.rt.run(turn.close("completed"))
    await town.pass_time(10 * IDLE_SECONDS)

    assert other.workspace is turn.workspace is town.workspaces.get("w1")
    await town.rt.run(other.close("died"))
    await town.pass_time(IDLE_SECONDS + 1)

    assert len(town.workspaces) == 0


async def test_a_watcher_that_somebody_hears_goes_on(town: Town) -> None:
    heard: list[FileChange] = []
    await town.turn()
    watcher = town.workspaces.get("w1").watcher
    stop = watcher.subscribe(heard.append)
    await town.pass_time(10 * IDLE_SECONDS)
    (watcher.folder / "b.txt").write_text("mine")
    await town.pass_time(2)

    assert [(change.path, change.by) for change in heard] == [("b.txt", "person")]
    stop()
    stop()
    await town.pass_time(IDLE_SECONDS + 1)
    assert (len(town.workspaces), town.watchers) == (0, [])


async def test_who_holds_a_workspace_keeps_it(town: Town) -> None:
    mine = Scope(name="mine")
    held = town.workspaces.hold("w1", mine)
    await town.pass_time(10 * IDLE_SECONDS)

    assert town.workspaces.get("w1") is held
    await town.rt.run(mine.close())
    await town.pass_time(IDLE_SECONDS + 1)

    assert len(town.workspaces) == 0


async def test_who_observes_hears_of_one_that_comes_again_and_of_its_questions(town: Town) -> None:
    news: list[PermissionNews] = []
    seen: list[Workspace] = []

    def on_workspace(workspace: Workspace) -> None:
        seen.append(workspace)
        workspace.permissions.subscribe(news.append)

    town.workspaces.observe(on_workspace)
    await town.turn()
    await town.pass_time(IDLE_SECONDS + 1)

    turn = town.turns.open("t1", "w1", town.clock, town.scope)
    turn.permission.show("p1", "May I?", subject="shell")

    assert len(seen) == 2
    assert [each.card.request_id for each in news] == ["p1"]
    late: list[Workspace] = []
    town.workspaces.observe(late.append)
    assert late == [turn.workspace]


async def test_a_turn_in_the_moment_in_which_its_workspace_goes_gets_a_whole_one(
    town: Town,
) -> None:
    await town.turn()
    going = town.rt.run_fork(town.clock.adjust(IDLE_SECONDS))
    for _ in range(1000):
        if len(town.workspaces) == 0:
            break
        await asyncio.sleep(0)
    turn = town.turns.open("t1", "w1", town.clock, town.scope)
    await going
    await town.pass_time(10 * IDLE_SECONDS)

    assert town.workspaces.get("w1") is turn.workspace
    assert town.watchers == ["watcher of w1"]


async def test_one_that_cannot_be_made_says_why_and_can_be_made_later(town: Town) -> None:
    town.fails = OSError("no room")
    with pytest.raises(OSError, match="no room"):
        town.turns.open("t1", "w1", town.clock, town.scope)
    assert (len(town.workspaces), len(town.turns)) == (0, 0)

    town.fails = None
    await town.turn()

    assert len(town.workspaces) == 1


async def test_in_a_closed_scope_a_turn_is_torn_down_and_nothing_is_kept(town: Town) -> None:
    await town.rt.run(town.scope.close(reason="system"))

    turn = town.turns.open("t1", "w1", town.clock, town.scope)

    assert turn.end == "torn-down"
    assert (len(town.workspaces), town.watchers) == (0, [])


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_an_idle_time_has_to_be_one(seconds: float) -> None:
    with pytest.raises(ValueError, match="idle_seconds"):
        Workspaces(lambda _id: pytest.fail("not made"), scope=Scope(), idle_seconds=seconds)
