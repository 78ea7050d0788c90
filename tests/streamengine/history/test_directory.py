"""Bytes on disk: whole files, whole lines, no links followed, faults named."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from streamengine.history.directory import FsyncPolicy, Step
from streamengine.history.files import WorkspaceFiles
from streamengine.model import HistoryError

from .kit import (
    Steps,
    assistant,
    chat,
    fail_call,
    fail_write_after,
    put_chat,
    snapshot,
    user,
)

# ---- fsync


def synced(files: WorkspaceFiles, steps: Steps, act: Callable[[], object]) -> list[Step]:
    """The steps of an act, without those of the files' first use."""
    files.append_user(user("first"))
    del steps.seen[:]
    act()
    return steps.seen


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("off", ["appended"]),
        ("terminal", ["appended", "append-synced"]),
        ("every-write", ["appended", "append-synced"]),
    ],
)
def test_a_user_row_is_synced_unless_the_policy_is_off(
    tmp_path: Path, steps: Steps, policy: FsyncPolicy, expected: list[Step]
) -> None:
    files = WorkspaceFiles(tmp_path / "ws", fsync=policy, on_step=steps)

    assert synced(files, steps, lambda: files.append_user(user("u1"))) == expected


@pytest.mark.parametrize(
    ("policy", "durable", "is_synced"),
    [
        ("off", True, False),
        ("terminal", False, False),
        ("terminal", True, True),
        ("every-write", False, True),
    ],
)
def test_a_partial_is_synced_as_policy_and_caller_ask(
    tmp_path: Path, steps: Steps, policy: FsyncPolicy, durable: bool, is_synced: bool
) -> None:
    files = WorkspaceFiles(tmp_path / "ws", fsync=policy, on_step=steps)
    row = assistant("a1", "x", historySequence=9)

    seen = synced(files, steps, lambda: files.write_partial(row, durable=durable))

    if is_synced:
        assert seen == ["temp-made", "temp-written", "temp-synced", "replaced", "directory-synced"]
    else:
        assert seen == ["temp-made", "temp-written", "replaced"]


def test_the_first_row_of_a_workspace_makes_its_directories_durable_too(
    tmp_path: Path, steps: Steps
) -> None:
    files = WorkspaceFiles(tmp_path / "state" / "ws", on_step=steps)

    files.append_user(user("u1"))

    assert steps.seen == [
        "directory-made",
        "directory-made",
        "appended",
        "append-synced",
        "directory-synced",
    ]


def test_the_steps_of_a_sync_really_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced_kinds: list[str] = []

    def fsync(handle: int) -> None:
        is_directory = stat.S_ISDIR(os.fstat(handle).st_mode)
        synced_kinds.append("directory" if is_directory else "file")

    monkeypatch.setattr(os, "fsync", fsync)
    files = WorkspaceFiles(tmp_path / "ws", fsync="terminal")

    files.append_user(user("u1"))

    assert synced_kinds == ["directory", "file", "directory"]


def test_a_file_system_that_has_nothing_to_sync_for_a_directory_is_fine(
    files: WorkspaceFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.fsync

    def fsync(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "no")
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)

    assert files.append_user(user("u1")).is_new


# ---- modes


def test_files_and_directories_are_for_their_owner_only(tmp_path: Path) -> None:
    files = WorkspaceFiles(tmp_path / "state" / "ws")
    before = os.umask(0)
    try:
        files.append_user(user("u1"))
        files.write_partial(assistant("a1", "x", historySequence=1))
        files.write_partial(assistant("a1", "xy", historySequence=1))
    finally:
        os.umask(before)

    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in files.path.iterdir()}
    assert modes == {"chat.jsonl": 0o600, "partial.json": 0o600}
    assert stat.S_IMODE(files.path.stat().st_mode) == 0o700
    assert stat.S_IMODE(files.path.parent.stat().st_mode) == 0o700


# ---- links and other things in a file's place


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A directory outside, with the files of somebody else."""
    path = tmp_path / "elsewhere"
    path.mkdir()
    for name in ("chat.jsonl", "partial.json", "chat-archive.jsonl"):
        (path / name).write_bytes(b"somebody else's")
    return path


ACTS: dict[str, Callable[[WorkspaceFiles], object]] = {
    "read": lambda files: files.read(),
    "append": lambda files: files.append_user(user("u1")),
    "finalize": lambda files: files.finalize(assistant("a1", "x", historySequence=0)),
    "write partial": lambda files: files.write_partial(assistant("a1", "x")),
    "read partial": lambda files: files.read_partial(),
    "delete partial": lambda files: files.delete_partial(),
    "commit": lambda files: files.commit_partial(),
    "reserve": lambda files: files.reserve("a1"),
    "sweep": lambda files: files.sweep(),
}


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("linked", ["workspace", "parent"])
def test_a_directory_that_is_a_link_is_refused(
    tmp_path: Path, elsewhere: Path, act: str, linked: str
) -> None:
    before = snapshot(elsewhere)
    if linked == "workspace":
        (tmp_path / "ws").symlink_to(elsewhere)
        files = WorkspaceFiles(tmp_path / "ws")
    else:
        (tmp_path / "all").symlink_to(tmp_path)
        files = WorkspaceFiles(tmp_path / "all" / "elsewhere")

    with pytest.raises(HistoryError) as caught:
        ACTS[act](files)

    assert caught.value.kind == "unsafe_path"
    assert snapshot(elsewhere) == before


@pytest.mark.parametrize("act", ["read", "append", "finalize", "reserve"])
def test_a_chat_file_that_is_a_link_is_not_followed(
    files: WorkspaceFiles, elsewhere: Path, act: str
) -> None:
    before = snapshot(elsewhere)
    files.path.mkdir()
    (files.path / "chat.jsonl").symlink_to(elsewhere / "chat.jsonl")

    with pytest.raises(HistoryError) as caught:
        ACTS[act](files)

    assert caught.value.kind == "unsafe_path"
    assert caught.value.path == str(files.path / "chat.jsonl")
    assert snapshot(elsewhere) == before


def test_a_dangling_link_in_a_files_place_makes_no_file_elsewhere(
    files: WorkspaceFiles, tmp_path: Path
) -> None:
    files.path.mkdir()
    (files.path / "chat.jsonl").symlink_to(tmp_path / "made-through-a-link")

    with pytest.raises(HistoryError):
        files.append_user(user("u1"))

    assert not (tmp_path / "made-through-a-link").exists()


@pytest.mark.parametrize("act", ["append", "write partial", "read partial", "commit"])
def test_a_partial_that_is_a_link_is_not_followed(
    files: WorkspaceFiles, elsewhere: Path, act: str
) -> None:
    before = snapshot(elsewhere)
    files.path.mkdir()
    (files.path / "partial.json").symlink_to(elsewhere / "partial.json")

    with pytest.raises(HistoryError) as caught:
        ACTS[act](files)

    assert caught.value.kind == "unsafe_path"
    assert snapshot(elsewhere) == before


def test_deleting_a_partial_that_is_a_link_deletes_the_link(
    files: WorkspaceFiles, elsewhere: Path
) -> None:
    files.path.mkdir()
    (files.path / "partial.json").symlink_to(elsewhere / "partial.json")

    assert files.delete_partial()
    assert (elsewhere / "partial.json").exists()


@pytest.mark.parametrize("act", ["read", "append"])
@pytest.mark.parametrize("kind", ["pipe", "directory"])
def test_what_is_no_file_is_refused_and_does_not_block(
    files: WorkspaceFiles, kind: str, act: str
) -> None:
    files.path.mkdir()
    if kind == "pipe":
        os.mkfifo(files.path / "chat.jsonl")
    else:
        (files.path / "chat.jsonl").mkdir()

    with pytest.raises(HistoryError) as caught:
        ACTS[act](files)

    assert caught.value.kind == "unsafe_path"


def test_a_workspace_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ws").write_bytes(b"")

    with pytest.raises(HistoryError) as caught:
        WorkspaceFiles(tmp_path / "ws").append_user(user("u1"))

    assert caught.value.kind == "unsafe_path"


# ---- faults


@pytest.mark.parametrize("size_bytes", [0, 1, 40])
def test_a_failed_append_leaves_the_file_as_it_was(
    files: WorkspaceFiles, monkeypatch: pytest.MonkeyPatch, size_bytes: int
) -> None:
    files.append_user(user("u1"))
    before = chat(files)

    with monkeypatch.context() as patch:
        fail_write_after(patch, size_bytes)
        with pytest.raises(HistoryError) as caught:
            files.append_user(user("u2"))

    assert caught.value.kind == "disk_full"
    assert chat(files) == before
    assert files.append_user(user("u3")).row.metadata.history_sequence == 1


@pytest.mark.spec("P14")
def test_half_a_line_that_could_not_be_undone_does_not_swallow_the_next(
    files: WorkspaceFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.append_user(user("u1"))

    with monkeypatch.context() as patch:
        fail_write_after(patch, 40)
        fail_call(patch, "ftruncate", code=errno.EIO)
        with pytest.raises(HistoryError):
            files.append_user(user("u2"))
    files.append_user(user("u3"))

    assert [row.id for row in files.read().rows] == ["u1", "u3"]
    assert files.read().unreadable_lines == 1


def test_a_row_that_could_not_be_synced_is_not_in_the_file(
    files: WorkspaceFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.append_user(user("u1"))
    before = chat(files)

    with monkeypatch.context() as patch:
        fail_call(patch, "fsync", code=errno.EIO)
        with pytest.raises(HistoryError) as caught:
            files.append_user(user("u2", clientMessageId="key"))

    assert caught.value.kind == "io"
    assert chat(files) == before
    assert files.append_user(user("u2", clientMessageId="key")).is_new


@pytest.mark.parametrize("call", ["write", "fsync", "replace", "fstat"])
def test_a_failed_write_of_the_partial_keeps_the_old_one_and_no_temp_file(
    files: WorkspaceFiles, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    files.write_partial(assistant("a1", "old", historySequence=0))
    before = snapshot(files.path)

    with monkeypatch.context() as patch:
        fail_call(patch, call)
        with pytest.raises(HistoryError) as caught:
            files.write_partial(assistant("a1", "new", historySequence=0), durable=True)

    assert caught.value.kind == "disk_full"
    assert snapshot(files.path) == before


def test_a_write_in_small_pieces_is_written_whole(
    files: WorkspaceFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.write

    def write(handle: int, data: memoryview) -> int:
        return real(handle, data[:3])

    monkeypatch.setattr(os, "write", write)

    row = files.append_user(user("u1", "rather a long text")).row

    assert files.read().rows == [row]


def test_a_write_that_gets_nowhere_ends(
    files: WorkspaceFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(_handle: int, _data: object) -> int:
        return 0

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write)
        with pytest.raises(HistoryError) as caught:
            files.append_user(user("u1"))

    assert caught.value.kind == "io"


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (errno.ENOSPC, "disk_full"),
        (errno.EDQUOT, "disk_full"),
        (errno.EACCES, "unwritable"),
        (errno.EROFS, "unwritable"),
        (errno.EIO, "io"),
    ],
)
def test_a_fault_is_told_with_its_file_and_the_way_out(
    files: WorkspaceFiles, monkeypatch: pytest.MonkeyPatch, code: int, kind: str
) -> None:
    files.append_user(user("u1"))

    with monkeypatch.context() as patch:
        fail_write_after(patch, 0, OSError(code, os.strerror(code)))
        with pytest.raises(HistoryError) as caught:
            files.append_user(user("u2"))

    error = caught.value
    assert error.kind == kind
    assert error.path == str(files.path / "chat.jsonl")
    assert os.strerror(code) in error.message
    assert error.way_out
    assert isinstance(error.__cause__, OSError)


def test_a_directory_that_can_not_be_made_is_told(
    files: WorkspaceFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        fail_call(patch, "mkdir", code=errno.EROFS)
        with pytest.raises(HistoryError) as caught:
            files.append_user(user("u1"))

    assert (caught.value.kind, caught.value.path) == ("unwritable", str(files.path))


def test_no_handle_is_left_open_by_what_fails(
    files: WorkspaceFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_chat(files)
    opened = len(os.listdir("/proc/self/fd"))

    for call in ("write", "fsync", "replace", "unlink", "fstat", "pread"):
        with monkeypatch.context() as patch:
            fail_call(patch, call)
            for act in ACTS.values():
                try:
                    act(files)
                except HistoryError:
                    pass

    assert len(os.listdir("/proc/self/fd")) == opened


# ---- temp files


def test_a_sweep_removes_temp_files_and_nothing_else(files: WorkspaceFiles) -> None:
    files.append_user(user("u1"))
    kept = {"notes.tmp", "partial.json.tmp-mine", "partial.corrupt-1.json", "chat.jsonl.bak"}
    left = {f"{name}.tmp-0123456789abcdef" for name in ("partial.json", "chat.jsonl")}
    for name in kept | left:
        (files.path / name).write_bytes(b"x")

    assert set(files.sweep()) == left

    assert set(snapshot(files.path)) == kept | {"chat.jsonl"}
