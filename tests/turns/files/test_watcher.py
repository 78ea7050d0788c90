"""The watcher of a folder, and how a change group holds it back."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

import fibers as fb
import turns.files.watcher
from fibers.testing import TestClock
from turns.files.watcher import FileChange

from ..holds.kit import Bench
from .kit import scandir_beside_a_remover


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    """A workspace whose watcher looks once a second."""
    clock = TestClock()
    runtime = fb.Runtime(clock=clock)
    made = Bench(runtime, clock, tmp_path)
    await made.pass_time(0)
    made.scope.fork(made.workspace.watcher.run().provide_service(fb.ClockTag, clock))
    await made.idle()
    yield made
    await made.run(made.scope.close())
    await runtime.dispose()


def told(bench: Bench) -> list[tuple[str, str, str]]:
    """What was told since it was last asked."""
    said: list[tuple[str, str, str]] = [
        (change.path, change.kind, change.by) for change in bench.changes
    ]
    bench.changes.clear()
    return said


async def test_it_tells_what_was_added_changed_and_removed(bench: Bench) -> None:
    (bench.folder / "a").write_text("1")
    (bench.folder / "d").mkdir()
    (bench.folder / "d" / "b").write_text("1")
    await bench.pass_time(1)
    first = told(bench)
    (bench.folder / "a").write_text("22")
    (bench.folder / "d" / "b").unlink()
    await bench.pass_time(1)
    second = told(bench)
    await bench.pass_time(5)

    assert first == [("a", "added", "person"), ("d/b", "added", "person")]
    assert second == [("a", "changed", "person"), ("d/b", "removed", "person")]
    assert told(bench) == []


async def test_what_nobody_hears_of_is_not_looked_at(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[object] = []
    watcher = turns.files.watcher.FolderWatcher(bench.folder, author=lambda: "person")

    def look() -> dict[str, object]:
        looks.append(1)
        return {}

    monkeypatch.setattr(watcher, "_scan", look)
    bench.scope.fork(watcher.run().provide_service(fb.ClockTag, bench.clock))
    await bench.pass_time(5)
    unheard = len(looks)
    stop = watcher.subscribe(lambda _change: None)
    await bench.pass_time(2)
    heard = len(looks)
    stop()
    await bench.pass_time(5)

    assert (unheard, heard, len(looks)) == (0, 2, 2)


@pytest.mark.spec("O11")
async def test_a_change_group_holds_it_back_and_its_end_tells_everything(bench: Bench) -> None:
    turn = bench.open()
    group = turn.changes.begin_if_needed()
    assert turn.changes.begin_if_needed() is group
    turn.attribution.claim()

    await asyncio.to_thread(group.write, "a", b"1")
    await bench.pass_time(10)
    assert told(bench) == []
    await bench.close(turn, "completed", "torn-down")

    assert told(bench) == [("a", "added", "agent")]
    (bench.folder / "b").write_text("1")
    await bench.pass_time(1)
    assert told(bench) == [("b", "added", "person")]


async def test_two_turns_hold_it_back_until_both_have_ended(bench: Bench) -> None:
    first, second = bench.open("t1"), bench.open("t2")
    first.changes.begin_if_needed()
    second.changes.begin_if_needed()
    (bench.folder / "a").write_text("1")

    await bench.close(first, "stalled")
    await bench.pass_time(5)
    held = told(bench)
    await bench.close(second, "died")

    assert held == []
    assert [change[0] for change in told(bench)] == ["a"]


async def test_a_subscriber_that_raises_keeps_nobody_from_being_told(bench: Bench) -> None:
    seen: list[FileChange] = []

    def broken(_change: FileChange) -> None:
        raise RuntimeError("it is broken")

    bench.workspace.watcher.subscribe(broken)
    bench.workspace.watcher.subscribe(seen.append)
    (bench.folder / "a").write_text("1")
    with capture_logs() as logs:
        await bench.pass_time(1)

    assert [change.path for change in seen] == ["a"]
    assert [log["event"] for log in logs] == ["a subscriber of file changes failed"]


async def test_links_and_what_no_person_writes_are_left_out(bench: Bench) -> None:
    (bench.folder / ".git").mkdir()
    (bench.folder / ".git" / "index").write_text("x")
    (bench.folder / "up").symlink_to("..")
    await bench.pass_time(1)

    assert told(bench) == []


async def test_of_too_many_files_some_are_watched_and_one_warning_says_so(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns.files.watcher, "MAX_FILES", 2)
    for name in "abcd":
        (bench.folder / name).touch()
    with capture_logs() as logs:
        await bench.pass_time(5)

    assert len(told(bench)) == 2
    assert [log["watched"] for log in logs] == [2]


async def test_a_folder_that_is_not_there_has_no_files(bench: Bench) -> None:
    (bench.folder / "a").touch()
    await bench.pass_time(1)
    told(bench)
    bench.folder.rename(bench.directory / "elsewhere")
    await bench.pass_time(1)

    assert told(bench) == [("a", "removed", "person")]


async def test_a_file_that_goes_during_a_look_takes_no_other_with_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        (bench.folder / name).write_text(name)
    await bench.pass_time(1)
    told(bench)

    with monkeypatch.context() as patched:
        patched.setattr(os, "scandir", scandir_beside_a_remover(bench.folder / "b"))
        await bench.pass_time(1)

    assert told(bench) == [("b", "removed", "person")]
