"""The history as effects: order, interruption, what an error is."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from returns.result import Failure

import fibers as fb
from streamengine.history import store
from streamengine.history.directory import Step
from streamengine.history.files import WorkspaceFiles
from streamengine.history.lock import StateDirLock, StateDirLocked
from streamengine.history.store import FileHistory, HistoryStore, IoMode
from streamengine.history.workspaces import Workspaces
from streamengine.model import HistoryError

from .kit import BOUND_SECONDS, assistant, text_of, user


@pytest.fixture(params=["inline", "thread"])
def history(request: pytest.FixtureRequest, tmp_path: Path) -> HistoryStore:
    """A history without workspaces, on the loop and off it."""
    io: IoMode = request.param
    return FileHistory(tmp_path / "state", io=io)


class Gate:
    """Holds up the thread that touches a file until it is opened."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.open = threading.Event()
        self._loop = asyncio.get_running_loop()

    def __call__(self, step: Step) -> None:
        if step == "temp-written" and not self.open.is_set():
            self._loop.call_soon_threadsafe(self.reached.set)
            self.open.wait(BOUND_SECONDS)


async def test_a_stream_is_kept_from_its_question_to_its_answer(history: HistoryStore) -> None:
    question = await history.append_user("ws", user("u1"))
    sequence = await history.reserve("ws", "a1")
    await history.write_partial("ws", assistant("a1", "so", historySequence=sequence))
    await history.write_partial("ws", assistant("a1", "so far", historySequence=sequence))
    partial = await history.read_partial("ws")
    answer = await history.finalize("ws", assistant("a1", "so far so good", historySequence=1))
    deleted = await history.delete_partial("ws", "a1")

    assert partial is not None
    assert text_of(partial) == "so far"
    assert deleted
    assert await history.read_partial("ws") is None
    assert await history.read("ws") == [question.row, answer]


async def test_a_repeated_client_message_id_is_told(history: HistoryStore) -> None:
    first = await history.append_user("ws", user("u1", clientMessageId="key"))
    again = await history.append_user("ws", user("u2", clientMessageId="key"))

    assert (first.is_new, again.is_new) == (True, False)
    assert again.row == first.row


async def test_an_aborted_stream_becomes_a_row(history: HistoryStore) -> None:
    sequence = await history.reserve("ws", "a1")
    await history.write_partial("ws", assistant("a1", "so far", historySequence=sequence))

    assert (await history.commit_partial("ws", "a0")).outcome == "other-message"
    result = await history.commit_partial("ws", "a1")
    await history.release("ws", "a1")

    assert await history.read("ws") == [result.row]
    assert await history.reserve("ws", "a2") == 1


async def test_a_partial_may_be_deleted_whatever_message_it_is_of(history: HistoryStore) -> None:
    await history.write_partial("ws", assistant("a1", "x", historySequence=0))

    assert not await history.delete_partial("ws", "a0")
    assert await history.delete_partial("ws")
    assert not await history.delete_partial("ws")


async def test_a_restart_loads_what_was_left(history: HistoryStore, tmp_path: Path) -> None:
    await history.append_user("ws", user("u1"))
    await history.write_partial("ws", assistant("a1", "x", historySequence=1))

    loaded = await FileHistory(tmp_path / "state").load("ws")

    assert [row.id for row in loaded.rows] == ["u1", "a1"]
    assert loaded.report.commit is not None


async def test_workspaces_are_listed_by_id(history: HistoryStore, tmp_path: Path) -> None:
    assert await history.workspaces() == []
    for workspace_id in ("ws-b", "ws-a"):
        await history.append_user(workspace_id, user("u1"))
    below = tmp_path / "state" / "workspaces"
    (below / "Not An Id").mkdir()
    (below / "file").write_bytes(b"")
    (below / "link").symlink_to(below / "ws-a")

    assert await history.workspaces() == ["ws-a", "ws-b"]


async def test_workspaces_that_are_behind_a_link_are_refused(
    history: HistoryStore, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "workspaces").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(HistoryError, match="symbolic link"):
        await history.workspaces()
    with pytest.raises(HistoryError, match="symbolic link"):
        await history.append_user("ws", user("u1"))

    assert list((tmp_path / "elsewhere").iterdir()) == []


async def test_a_state_directory_may_itself_be_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")

    await FileHistory(tmp_path / "link").append_user("ws", user("u1"))

    assert (tmp_path / "real" / "workspaces" / "ws" / "chat.jsonl").exists()


async def test_a_change_of_the_current_directory_does_not_move_a_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    history = FileHistory(Path("state"))
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")

    await history.append_user("ws", user("u1"))

    assert (tmp_path / "state" / "workspaces" / "ws" / "chat.jsonl").exists()


# ---- errors


@pytest.mark.parametrize("workspace_id", ["", "..", "../ws", "WS", "a/b"])
async def test_what_is_no_workspace_id_is_an_expected_error(
    history: HistoryStore, workspace_id: str
) -> None:
    exit = await history.read(workspace_id).exit()

    match exit:
        case Failure(cause):
            (error,) = cause.failures
            assert error.kind == "invalid_id"
        case _:
            pytest.fail(f"{exit} is no failure")


async def test_an_error_can_be_caught_as_a_value(history: HistoryStore) -> None:
    kind = await history.append_user("ws", user("u1", " ")).match(
        on_failure=lambda error: error.kind, on_success=lambda _: "none"
    )

    assert kind == "empty_row"


@pytest.mark.parametrize("io", ["inline", "thread"])
async def test_a_fault_of_the_program_is_a_defect(tmp_path: Path, io: IoMode) -> None:
    defect = RuntimeError("a bug")

    def fail(_step: Step) -> None:
        raise defect

    exit = await FileHistory(tmp_path, io=io, on_step=fail).append_user("ws", user("u1")).exit()

    assert exit == Failure(fb.Cause([fb.Die(defect)]))


# ---- order


async def test_nothing_happens_before_an_effect_runs(history: HistoryStore, tmp_path: Path) -> None:
    history.append_user("ws", user("u1"))

    assert not (tmp_path / "state").exists()


async def test_operations_happen_in_the_order_in_which_they_began(history: HistoryStore) -> None:
    await fb.all_(
        [history.append_user("ws", user(f"u{number}")) for number in range(50)],
        concurrency="unbounded",
    )

    assert [row.id for row in await history.read("ws")] == [f"u{number}" for number in range(50)]


async def test_a_slow_disk_holds_up_neither_the_loop_nor_another_workspace(tmp_path: Path) -> None:
    gate = Gate()
    history = FileHistory(tmp_path, on_step=gate)
    slow = fb.run_fork(history.write_partial("slow", assistant("a1", "x", historySequence=0)))
    await gate.reached.wait()

    await history.append_user("other", user("u1"))

    assert slow.poll() is None
    gate.open.set()
    await slow


async def test_a_write_interrupted_before_its_turn_never_happens(tmp_path: Path) -> None:
    gate = Gate()
    history = FileHistory(tmp_path, on_step=gate)
    first = fb.run_fork(history.write_partial("ws", assistant("a1", "1", historySequence=0)))
    await gate.reached.wait()
    second = fb.run_fork(history.write_partial("ws", assistant("a1", "12", historySequence=0)))

    await second.interrupt()
    gate.open.set()
    await first

    row = await history.read_partial("ws")
    assert row is not None
    assert text_of(row) == "1"


async def test_a_write_interrupted_in_its_turn_comes_before_a_later_delete(tmp_path: Path) -> None:
    gate = Gate()
    history = FileHistory(tmp_path, on_step=gate)
    write = fb.run_fork(history.write_partial("ws", assistant("a1", "x", historySequence=0)))
    await gate.reached.wait()

    await write.interrupt()
    delete = fb.run_fork(history.delete_partial("ws", "a1"))
    gate.open.set()

    assert await delete
    assert await history.read_partial("ws") is None


# ---- one process


async def test_an_open_history_holds_its_directory_until_its_scope_closes(tmp_path: Path) -> None:
    async with fb.Scope() as scope:
        history = await scope.provide(FileHistory.open(tmp_path))
        await history.append_user("ws", user("u1"))

        with pytest.raises(StateDirLocked):
            StateDirLock(tmp_path).acquire()

    with StateDirLock(tmp_path) as lock:
        assert lock is not None


async def test_a_directory_in_use_is_an_expected_error(tmp_path: Path) -> None:
    with StateDirLock(tmp_path):
        exit = await fb.scoped(FileHistory.open(tmp_path)).exit()

    match exit:
        case Failure(cause):
            (error,) = cause.failures
            assert isinstance(error, StateDirLocked)
        case _:
            pytest.fail(f"{exit} is no failure")


async def test_an_open_history_that_was_refused_does_not_give_the_lock_back(
    tmp_path: Path,
) -> None:
    with StateDirLock(tmp_path):
        await fb.scoped(FileHistory.open(tmp_path)).exit()

        with pytest.raises(StateDirLocked):
            StateDirLock(tmp_path).acquire()


def test_a_file_history_has_every_method_of_a_history_store() -> None:
    methods = {name for name in vars(HistoryStore) if not name.startswith("_")}

    assert len(methods) == 22
    # Its own, not the empty one that it would inherit.
    assert methods <= set(vars(FileHistory))


# ---- many workspaces


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[weakref.ref[WorkspaceFiles]]:
    """What is remembered of workspaces, as it is made; of idle ones at most three are kept."""
    made: list[weakref.ref[WorkspaceFiles]] = []

    def make(path: Path, **options: Any) -> WorkspaceFiles:
        files = WorkspaceFiles(path, **options)
        made.append(weakref.ref(files))
        return files

    monkeypatch.setattr(store, "WorkspaceFiles", make)
    monkeypatch.setattr(store, "Workspaces", partial(Workspaces, most=3))
    return made


@pytest.mark.parametrize("io", ["inline", "thread"])
async def test_idle_workspaces_are_forgotten_and_found_again(
    tmp_path: Path, io: IoMode, made: list[weakref.ref[WorkspaceFiles]]
) -> None:
    history = FileHistory(tmp_path, io=io)
    for number in range(20):
        await history.append_user(f"w{number}", user("u1"))
    gc.collect()

    assert sum(files() is not None for files in made) <= 4
    assert (await history.append_user("w0", user("u2"))).row.metadata.history_sequence == 1
    assert len(made) == 21


@pytest.mark.spec("P13")
async def test_a_workspace_with_a_reservation_is_not_forgotten(
    tmp_path: Path, made: list[weakref.ref[WorkspaceFiles]]
) -> None:
    history = FileHistory(tmp_path, io="inline")
    assert await history.reserve("live", "a1") == 0
    for number in range(20):
        await history.append_user(f"w{number}", user("u1"))

    assert await history.reserve("live", "a2") == 1
    assert len(made) == 21


async def test_a_workspace_with_a_job_under_way_is_not_forgotten(
    tmp_path: Path, made: list[weakref.ref[WorkspaceFiles]]
) -> None:
    gate = Gate()
    history = FileHistory(tmp_path, on_step=gate)
    row = assistant("a1", "so far", historySequence=1)
    writing = fb.run_fork(history.write_partial("slow", row))
    await gate.reached.wait()
    for number in range(20):
        await history.append_user(f"w{number}", user("u1"))

    reading = fb.run_fork(history.read_partial("slow"))
    gate.open.set()
    await writing

    assert await reading is not None
    assert len(made) == 21
