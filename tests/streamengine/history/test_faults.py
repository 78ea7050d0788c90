"""Every call that changes the disk fails once, at every place of every operation.

Whatever it was: a HistoryError that says what to do, nothing lost of what was there, and the same
operation succeeds once the fault is gone, in this process or in the next one.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from streamengine.history.files import WorkspaceFiles
from streamengine.history.recovery import load
from streamengine.model import AssistantRow, HistoryError, RowMetadata, TextPart, Usage
from streamengine.model.note import WorkspaceNote

from .kit import assistant, fail_write_after, restored, snapshot, text_of, tool, user
from .test_crash import every_state

CHANGES = ("write", "fsync", "replace", "rename", "unlink", "ftruncate")
USAGE = Usage(output_tokens=1)
MORE = (TextPart(text=" three"), tool("c1", output=1))


def prepare(files: WorkspaceFiles) -> None:
    """Sealed rows, rows that count, and a partial with a log."""
    files.append_user(user("u1", clientMessageId="k"))
    files.append_user(user("b", compactionBoundary=True))
    files.append_user(user("u2"))
    files.record_usage("a0", USAGE, model="m", source="abort")
    files.write_note(WorkspaceNote())
    row = assistant("a1", "one", historySequence=files.reserve("a1"), usage=USAGE.to_mapping())
    files.write_partial(row)
    files.append_partial("a1", (TextPart(text=" two"),))


def finish(files: WorkspaceFiles) -> None:
    files.finalize(assistant("a1", "one two three", historySequence=3))
    files.delete_partial_if_message_id("a1")


ACTS: dict[str, Callable[[WorkspaceFiles], object]] = {
    "append": lambda files: files.append_user(user("u3")),
    "add to the partial": lambda files: files.append_partial("a1", MORE, durable=True),
    "begin the partial anew": lambda files: files.write_partial(
        assistant("a1", "one two three", historySequence=3), durable=True
    ),
    "commit": lambda files: files.commit_partial(),
    "finish": finish,
    "give up": lambda files: files.delete_partial(),
    "update": lambda files: files.update_row(user("u2", "new", historySequence=2)),
    "record usage": lambda files: files.record_usage("a9", USAGE, model=None, source="error"),
    "archive": lambda files: files.archive(),
    "note": lambda files: files.write_note(WorkspaceNote(auto_retry=False)),
}


class View(NamedTuple):
    """All that a workspace says."""

    rows: list[tuple[str, str]]
    archived: list[str]
    partial: str | None
    usage: list[str]
    on_rows: list[str]
    auto_retry: bool


def view(files: WorkspaceFiles) -> View:
    """For a process that knows nothing of the one before."""
    fresh = WorkspaceFiles(files.path, workspace_id=files.workspace_id)
    rows = fresh.read().rows
    partial = fresh.read_partial()
    assert partial.warning is None
    return View(
        [(row.id, text_of(row)) for row in rows],
        [row.id for row in fresh.read_archive().rows],
        None if partial.row is None else text_of(partial.row),
        [entry.message_id for entry in fresh.read_usage()],
        [row.id for row in rows if row.metadata.usage],
        fresh.read_note().auto_retry,
    )


def everything(seen: View) -> set[str]:
    """What must not be lost: each message, and what an answer has said."""
    return {row for row, _ in seen.rows} | set(seen.archived) | {seen.partial or ""}


def fail_nth(patch: pytest.MonkeyPatch, nth: int, code: int) -> list[str]:
    """The nth change on disk fails; gives the names of those that were tried."""
    tried: list[str] = []
    for name in CHANGES:
        real = getattr(os, name)

        def call(*args: Any, _name: str = name, _real: Any = real, **kwargs: Any) -> Any:
            tried.append(_name)
            if len(tried) == nth + 1:
                raise OSError(code, os.strerror(code))
            return _real(*args, **kwargs)

        patch.setattr(os, name, call)
    return tried


@pytest.mark.spec("P9", "P17")
@pytest.mark.parametrize("next_process", [False, True])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EACCES])
@pytest.mark.parametrize("name", ACTS)
def test_whatever_fails_is_told_loses_nothing_and_can_be_done_again(
    tmp_path: Path, name: str, code: int, next_process: bool
) -> None:
    act = ACTS[name]
    whole = WorkspaceFiles(tmp_path / "whole" / "ws")
    prepare(whole)
    before = view(whole)
    act(whole)
    expected = view(whole)

    failed = 0
    while True:
        files = WorkspaceFiles(tmp_path / str(failed) / "ws")
        prepare(files)
        with pytest.MonkeyPatch.context() as patch:
            tried = fail_nth(patch, failed, code)
            if done_or_error(act, files) is None:
                assert len(tried) <= failed, "an error that nobody heard of"
                break
        failed += 1
        if name not in ("finish", "give up"):
            seen = view(files)
            assert everything(seen) >= everything(before) - {before.partial or ""}
            assert any((before.partial or "") in text for text in everything_said(seen))

        again = WorkspaceFiles(files.path) if next_process else files
        act(again)

        assert view(again) == expected, tried
    assert failed >= 1


def done_or_error(
    act: Callable[[WorkspaceFiles], object], files: WorkspaceFiles
) -> HistoryError | None:
    """The error of it, which says where, and what to do."""
    try:
        act(files)
    except HistoryError as raised:
        error = raised
    else:
        return None
    assert error.way_out
    assert Path(error.path).is_relative_to(files.path)
    return error


def everything_said(seen: View) -> list[str]:
    return [seen.partial or "", *(text for _, text in seen.rows)]


@pytest.mark.spec("P12", "P16")
@pytest.mark.parametrize("name", ACTS)
def test_a_kill_at_any_moment_leaves_it_undone_or_done(tmp_path: Path, name: str) -> None:
    """And the load after it has each message once, and each usage once."""

    def run(files: WorkspaceFiles) -> None:
        prepare(files)
        ACTS[name](files)

    whole = WorkspaceFiles(tmp_path / "whole" / "ws")
    prepare(whole)
    prepared = snapshot(whole.path)
    before = view(whole)
    ACTS[name](whole)
    after = view(whole)
    states = every_state(run, tmp_path / "dying" / "ws", stride_bytes=7)
    first = states.index(prepared)

    for number, state in enumerate(states[first:]):
        files = restored(state, tmp_path / f"after-{number}")
        seen = view(files)
        assert seen.rows in (before.rows, after.rows)
        assert set(seen.usage) in (set(before.usage), set(after.usage))
        assert seen.auto_retry in (before.auto_retry, after.auto_retry)

        load(files)
        loaded = view(files)
        messages = [row for row, _ in loaded.rows] + loaded.archived
        assert sorted(messages) == sorted(set(messages))
        assert {"u1", "b", "u2"} <= set(messages)
        if name != "give up":
            (answer,) = (text for row, text in loaded.rows if row == "a1")
            assert answer.startswith("one two")
        costs = loaded.usage + loaded.on_rows
        assert sorted(costs) == sorted(set(costs))


@pytest.mark.parametrize("name", ACTS)
def test_a_directory_that_may_only_be_read_is_told(tmp_path: Path, name: str) -> None:
    files = WorkspaceFiles(tmp_path / "ws")
    prepare(files)
    before = snapshot(files.path)

    with pytest.MonkeyPatch.context() as patch:
        for call in (*CHANGES, "mkdir"):
            _refuse(patch, call)
        _refuse_to_open_for_writing(patch)
        with pytest.raises(HistoryError) as caught:
            ACTS[name](files)

    assert caught.value.kind == "unwritable"
    assert "writable" in caught.value.way_out
    assert snapshot(files.path) == before


def _refuse(patch: pytest.MonkeyPatch, call: str) -> None:
    def refused(*_args: Any, **_kwargs: Any) -> Any:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    patch.setattr(os, call, refused)


def _refuse_to_open_for_writing(patch: pytest.MonkeyPatch) -> None:
    real = os.open

    def opened(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return real(path, flags, *args, **kwargs)

    patch.setattr(os, "open", opened)


def test_an_addition_that_is_torn_and_cannot_be_cut_off_is_never_read_twice(
    files: WorkspaceFiles,
) -> None:
    """The disk is full in the middle of a line, and the cut fails as well."""
    prepare(files)
    said = "one two"
    for size_bytes in range(1, 9):
        with pytest.MonkeyPatch.context() as patch:
            fail_write_after(patch, size_bytes)
            _refuse(patch, "ftruncate")
            with pytest.raises(HistoryError) as caught:
                files.append_partial("a1", (TextPart(text="wholly"),))
        assert caught.value.kind == "disk_full"
        assert view(files).partial == said

        files.append_partial("a1", (TextPart(text=f" {size_bytes}"),))

        said += f" {size_bytes}"
        assert view(files).partial == said


# ---- the archive, and the clock


def test_an_archive_that_was_cut_off_is_finished_by_the_next_load(
    files: WorkspaceFiles,
) -> None:
    prepare(files)
    chat = (files.path / "chat.jsonl").read_bytes()
    files.archive()
    (files.path / "chat.jsonl").write_bytes(chat)  # killed before the rows left it

    fresh = WorkspaceFiles(files.path)
    assert fresh.append_user(user("again", clientMessageId="k")).row.id == "u1"
    load(fresh)

    assert [row for row, _ in view(fresh).rows] == ["b", "u2", "a1"]
    assert view(fresh).archived == ["u1"]


def test_an_archive_that_was_cut_off_can_be_repeated_without_a_second_copy(
    files: WorkspaceFiles,
) -> None:
    prepare(files)
    chat = (files.path / "chat.jsonl").read_bytes()
    files.archive()
    archived = (files.path / "chat-archive.jsonl").read_bytes()
    (files.path / "chat.jsonl").write_bytes(chat)

    assert WorkspaceFiles(files.path).archive() == 1

    assert (files.path / "chat-archive.jsonl").read_bytes() == archived
    assert [row for row, _ in view(files).rows] == ["b", "u2"]


def test_a_row_that_changed_after_a_cut_off_archive_is_kept_as_it_is_now(
    files: WorkspaceFiles,
) -> None:
    prepare(files)
    chat = (files.path / "chat.jsonl").read_bytes()
    files.archive()
    (files.path / "chat.jsonl").write_bytes(chat)
    fresh = WorkspaceFiles(files.path)
    fresh.update_row(user("u1", "changed", historySequence=0))

    fresh.archive()

    assert [text_of(row) for row in fresh.read_archive().rows] == ["changed"]


def test_lines_that_cannot_be_read_stay_where_they_are(files: WorkspaceFiles) -> None:
    prepare(files)
    with (files.path / "chat.jsonl").open("ab") as file:
        file.write(b'{"id":"x1","role":"oracle","metadata":{"historySequence":0}}\n{"torn\n')

    files.archive()

    assert b'{"torn\n' in (files.path / "chat.jsonl").read_bytes()


@pytest.mark.spec("P13")
def test_a_clock_that_jumps_back_changes_nothing(files: WorkspaceFiles) -> None:
    """Order is that of sequences; no time decides anything."""
    later, earlier = 2_000_000_000_000, 1_000
    files.append_user(user("u1", timestamp=later))
    files.append_user(user("u2", timestamp=earlier))
    sequence = files.reserve("a1")
    times = [TextPart(text=text, timestamp_ms=at) for text, at in (("a", later), ("b", earlier))]
    row = AssistantRow(
        id="a1",
        parts=(times[0],),
        metadata=RowMetadata(history_sequence=sequence, timestamp_ms=earlier),
    )
    files.write_partial(row)
    os.utime(files.path / "partial.json", ns=(0, 0))  # and so did that of the file
    files.append_partial("a1", (times[1],))
    os.utime(files.path / "chat.jsonl", ns=(0, 0))

    loaded = load(WorkspaceFiles(files.path))

    assert [text_of(row) for row in loaded.rows] == ["question", "question", "ab"]
    assert [row.id for row in loaded.rows] == ["u1", "u2", "a1"]
