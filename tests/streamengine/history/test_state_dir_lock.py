"""One process a state directory."""

from __future__ import annotations

import os
import pickle
import signal
import stat
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

import streamengine
from streamengine.history.lock import StateDirLock, StateDirLocked
from streamengine.model import HistoryError

from .kit import fail_call

HOLD = """
import sys
from pathlib import Path
from streamengine.history.lock import StateDirLock
lock = StateDirLock(Path(sys.argv[1]))
lock.acquire()
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def another_process(state: Path) -> Generator[subprocess.Popen[str]]:
    """A process that holds the lock until its input is closed or it is killed."""
    source = Path(streamengine.__file__).parents[1]
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(state)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(source)},
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


def test_a_second_holder_is_refused_and_the_first_one_named(tmp_path: Path) -> None:
    with another_process(tmp_path) as other, pytest.raises(StateDirLocked) as caught:
        StateDirLock(tmp_path).acquire()

    holder = caught.value.holder
    assert holder is not None
    assert holder.pid == other.pid
    assert holder.command.startswith(sys.executable)
    assert "\n" not in holder.command
    message = str(caught.value)
    assert f"process {other.pid} since {holder.since:%Y-%m-%d %H:%M:%S}" in message
    assert "Stop that process first" in message
    assert str(tmp_path) in caught.value.path


@pytest.mark.parametrize(
    "argument",
    [
        "postgresql://me:hush-pw@host/db",
        "--history=postgresql://me:hush-pw@host/db",
        "postgresql://me:a/hush-pw'b c@host/db",
        "postgresql://host/db?user=me&password=hush-pw",
    ],
)
def test_a_password_of_its_command_line_is_not_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argument: str
) -> None:
    monkeypatch.setattr(sys, "orig_argv", ["fiberscope", "serve", argument])

    with StateDirLock(tmp_path):
        note = (tmp_path / ".lock-holder.json").read_text()

    assert "hush-pw" not in note
    assert "fiberscope serve" in note
    assert "host/db" in note


def test_a_killed_holder_leaves_no_lock(tmp_path: Path) -> None:
    with another_process(tmp_path) as other:
        with pytest.raises(StateDirLocked):
            StateDirLock(tmp_path).acquire()
        other.send_signal(signal.SIGKILL)
        other.wait()

        with StateDirLock(tmp_path) as lock:
            assert lock is not None

    assert not (tmp_path / ".lock-holder.json").exists()


def test_two_parts_of_one_process_do_not_share_the_lock(tmp_path: Path) -> None:
    with StateDirLock(tmp_path), pytest.raises(StateDirLocked) as caught:
        StateDirLock(tmp_path).acquire()

    assert caught.value.holder is not None
    assert caught.value.holder.pid == os.getpid()


def test_a_released_lock_can_be_taken_again(tmp_path: Path) -> None:
    lock = StateDirLock(tmp_path)
    lock.acquire()
    lock.release()
    lock.release()

    with StateDirLock(tmp_path):
        assert (tmp_path / ".lock-holder.json").exists()


def test_a_refused_one_leaves_the_holder_alone(tmp_path: Path) -> None:
    with StateDirLock(tmp_path):
        refused = StateDirLock(tmp_path)
        with pytest.raises(StateDirLocked):
            refused.acquire()
        refused.release()

        with pytest.raises(StateDirLocked) as caught:
            StateDirLock(tmp_path).acquire()

    assert caught.value.holder is not None


@pytest.mark.parametrize(
    "note",
    [
        None,
        b"",
        b"[]",
        b'{"pid":0,"since":"2024-01-01T00:00:00Z","command":"x"}',
        # No process has this number on any system: process ids are at most 22 bits.
        b'{"pid":1073741824,"since":"2024-01-01T00:00:00Z","command":"x"}',
    ],
    ids=["none", "empty", "list", "no process", "gone process"],
)
def test_a_holder_without_a_usable_note_is_still_a_holder(
    tmp_path: Path, note: bytes | None
) -> None:
    with StateDirLock(tmp_path):
        (tmp_path / ".lock-holder.json").unlink()
        if note is not None:
            (tmp_path / ".lock-holder.json").write_bytes(note)
        with pytest.raises(StateDirLocked, match="left no note") as caught:
            StateDirLock(tmp_path).acquire()

    assert caught.value.holder is None


def test_the_files_of_the_lock_are_for_their_owner_only(tmp_path: Path) -> None:
    with StateDirLock(tmp_path / "state"):
        modes = {
            path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "state").iterdir()
        }

    assert modes == {".lock": 0o600, ".lock-holder.json": 0o600}


def test_a_lock_file_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(b"somebody else's")
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / ".lock").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(HistoryError):
        StateDirLock(tmp_path / "state").acquire()

    assert (tmp_path / "elsewhere").read_bytes() == b"somebody else's"


def test_a_lock_whose_note_can_not_be_written_is_not_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        fail_call(patch, "replace")
        with pytest.raises(HistoryError) as caught:
            StateDirLock(tmp_path).acquire()

    assert caught.value.kind == "disk_full"
    with StateDirLock(tmp_path) as lock:
        assert lock is not None


def test_the_refusal_survives_pickling(tmp_path: Path) -> None:
    with StateDirLock(tmp_path), pytest.raises(StateDirLocked) as caught:
        StateDirLock(tmp_path).acquire()

    copy = pickle.loads(pickle.dumps(caught.value))

    assert (str(copy), copy.holder) == (str(caught.value), caught.value.holder)
