"""What a load makes of the files."""

from __future__ import annotations

import pytest

from streamengine.history.files import WorkspaceFiles
from streamengine.history.recovery import load
from streamengine.history.results import RecoveryReport
from streamengine.model import AssistantRow, TextPart

from .kit import (
    assistant,
    chat,
    fail_call,
    put_chat,
    put_partial,
    snapshot,
    tool,
    user,
    with_parts,
)


def test_a_load_after_an_orderly_end_reads_and_reports_nothing(files: WorkspaceFiles) -> None:
    row = files.append_user(user("u1")).row
    before = snapshot(files.path)

    loaded = load(files)

    assert loaded.rows == (row,)
    assert loaded.report == RecoveryReport("ws", None)
    assert snapshot(files.path) == before


def test_a_load_of_a_workspace_without_files_makes_none(files: WorkspaceFiles) -> None:
    assert load(files).rows == ()
    assert not files.path.exists()


def test_a_load_commits_the_partial(files: WorkspaceFiles) -> None:
    files.append_user(user("u1"))
    put_partial(files, assistant("a1", "so far", historySequence=1))

    loaded = load(files)

    assert [row.id for row in loaded.rows] == ["u1", "a1"]
    assert loaded.report.commit is not None
    assert loaded.report.commit.outcome == "appended"
    assert set(snapshot(files.path)) == {"chat.jsonl"}


def test_a_load_sweeps_temp_files(files: WorkspaceFiles) -> None:
    put_chat(files)
    (files.path / "partial.json.tmp-0123456789abcdef").write_bytes(b'{"id"')

    loaded = load(files)

    assert loaded.report.swept_temps == ("partial.json.tmp-0123456789abcdef",)
    assert set(snapshot(files.path)) == {"chat.jsonl"}


def test_a_load_tells_of_a_corrupt_partial(files: WorkspaceFiles) -> None:
    put_partial(files, b"{")

    loaded = load(files)

    assert len(loaded.report.warnings) == 1
    assert snapshot(files.path) == {"partial.corrupt-1.json": b"{"}


def test_a_load_tells_of_unreadable_lines_and_keeps_them(files: WorkspaceFiles) -> None:
    before = put_chat(files, b"{", user("u1", historySequence=0).to_mapping(), b"\xff")

    loaded = load(files)

    assert loaded.report.unreadable_lines == 2
    assert chat(files) == before


@pytest.mark.spec("P10")
def test_a_load_reports_a_partial_without_a_sequence_and_keeps_it(files: WorkspaceFiles) -> None:
    files.append_user(user("u1"))
    put_partial(files, assistant("a1", "x"))
    before = snapshot(files.path)

    loaded = load(files)

    assert [row.id for row in loaded.rows] == ["u1"]
    assert [problem.kind for problem in loaded.report.problems] == ["no_sequence"]
    assert snapshot(files.path) == before


def test_a_load_leaves_the_partial_of_a_live_stream_alone(files: WorkspaceFiles) -> None:
    files.write_partial(assistant("a1", "x", historySequence=files.reserve("a1")))
    before = snapshot(files.path)

    assert load(files).report.commit is None
    assert snapshot(files.path) == before


@pytest.mark.spec("P9")
def test_a_load_with_a_full_disk_reads_and_leaves_the_partial_for_the_next(
    files: WorkspaceFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.append_user(user("u1"))
    put_partial(files, assistant("a1", "x", historySequence=1))

    with monkeypatch.context() as patch:
        fail_call(patch, "write")
        full = load(files)

    assert [row.id for row in full.rows] == ["u1"]
    assert [problem.kind for problem in full.report.problems] == ["disk_full"]
    assert [row.id for row in load(files).rows] == ["u1", "a1"]


# ---- blank rows of older files


@pytest.mark.spec("P11")
@pytest.mark.parametrize("texts", [(), ("",), (" ", "\n")], ids=range(3))
def test_a_blank_partial_row_of_an_older_file_is_removed(
    files: WorkspaceFiles, texts: tuple[str, ...]
) -> None:
    blank = assistant("a1", *texts, historySequence=1, partial=True)
    first, last = user("u1", historySequence=0), user("u2", historySequence=2)
    put_chat(files, first.to_mapping(), b"not json", blank.to_mapping(), last.to_mapping())

    loaded = load(files)

    assert loaded.report.removed_blank_rows == 1
    assert chat(files) == put_chat(files, first.to_mapping(), b"not json", last.to_mapping())


@pytest.mark.spec("P11")
@pytest.mark.parametrize(
    "row",
    [
        assistant("a1", historySequence=1),
        assistant("a1", "x", historySequence=1, partial=True),
        with_parts("a1", tool(state="input-available"), historySequence=1, partial=True),
    ],
    ids=["final", "said something", "began a tool"],
)
def test_only_a_blank_partial_row_is_removed(files: WorkspaceFiles, row: AssistantRow) -> None:
    before = put_chat(files, row.to_mapping())

    assert load(files).report.removed_blank_rows == 0
    assert chat(files) == before


@pytest.mark.spec("P11")
def test_a_blank_row_is_filled_by_its_partial_not_removed(files: WorkspaceFiles) -> None:
    put_chat(files, assistant("a1", historySequence=0, partial=True).to_mapping())
    put_partial(files, assistant("a1", "so far", historySequence=0))

    loaded = load(files)

    assert [row.parts for row in loaded.rows] == [(TextPart(text="so far"),)]
    assert loaded.report.removed_blank_rows == 0


@pytest.mark.spec("P11", "P10")
def test_a_blank_row_whose_partial_has_to_stay_stays_too(files: WorkspaceFiles) -> None:
    put_chat(files, assistant("a1", historySequence=0, partial=True).to_mapping())
    put_partial(files, assistant("a1", "x"))
    before = snapshot(files.path)

    assert load(files).report.removed_blank_rows == 0
    assert snapshot(files.path) == before


@pytest.mark.spec("P11")
def test_a_blank_row_of_a_live_stream_stays(files: WorkspaceFiles) -> None:
    before = put_chat(files, assistant("a1", historySequence=0, partial=True).to_mapping())
    files.reserve("a1")

    assert load(files).report.removed_blank_rows == 0
    assert chat(files) == before


@pytest.mark.spec("P11")
def test_a_blank_row_whose_partial_says_nothing_either_is_removed(files: WorkspaceFiles) -> None:
    put_chat(files, assistant("a1", historySequence=0, partial=True).to_mapping())
    put_partial(files, assistant("a1", " ", historySequence=0, error="cut"))

    assert load(files).rows == ()
    assert snapshot(files.path) == {"chat.jsonl": b""}


@pytest.mark.spec("P11", "BT3")
def test_no_row_is_written_before_something_was_said(files: WorkspaceFiles) -> None:
    files.append_user(user("u1"))
    before = chat(files)

    sequence = files.reserve("a1")
    files.write_partial(assistant("a1", historySequence=sequence))

    assert chat(files) == before
    assert files.read_partial().row is not None
    files.commit_partial()
    assert chat(files) == before
