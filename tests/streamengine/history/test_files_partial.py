"""`partial.json` as a file: how it is replaced, read, removed, moved aside."""

from __future__ import annotations

import json

import pytest

from streamengine.history.files import WorkspaceFiles
from streamengine.history.results import PartialRead
from streamengine.model import AssistantRow, HistoryError, TextPart

from .kit import Steps, assistant, chat, put_partial, text_of, user

CORRUPT = {
    "torn": b'{"id":"a1","role":"assista',
    "empty": b"",
    "zeros": b"\0" * 40,
    "list": b"[]",
    "user row": b'{"id":"u1","role":"user"}',
    "bad id": b'{"id":"../a1","role":"assistant"}',
    "other workspace": b'{"id":"a1","role":"assistant","workspaceId":"other"}',
    "bad sequence": b'{"id":"a1","role":"assistant","metadata":{"historySequence":1.5}}',
    "too deep": b"[" * 100_000,
}


def test_a_partial_comes_back_marked_partial_whatever_it_said(files: WorkspaceFiles) -> None:
    files.write_partial(assistant("a1", "so", " far", historySequence=1, partial=False))

    row = files.read_partial().row

    assert row is not None
    assert (text_of(row), row.metadata.partial) == ("so far", True)


def test_a_partial_without_the_mark_is_read_as_one(files: WorkspaceFiles) -> None:
    put_partial(files, assistant("a1", "x", historySequence=0))

    row = files.read_partial().row

    assert row is not None
    assert row.is_partial


def test_a_partial_is_written_for_people_to_read(files: WorkspaceFiles) -> None:
    files.write_partial(assistant("a1", "x", historySequence=1))

    text = (files.path / "partial.json").read_text()

    assert text == json.dumps(json.loads(text), indent=2)
    assert json.loads(text)["metadata"] == {"historySequence": 1, "partial": True}


@pytest.mark.spec("P1")
def test_a_reader_finds_the_old_or_the_new_partial_at_every_step(
    files: WorkspaceFiles, steps: Steps
) -> None:
    files.write_partial(assistant("a1", "old", historySequence=1), durable=True)
    found: list[str] = []

    def read() -> None:
        row = AssistantRow.model_validate_json((files.path / "partial.json").read_bytes())
        found.append(text_of(row))

    steps.at_each = read
    files.write_partial(assistant("a1", "old and new", historySequence=1), durable=True)

    assert found == ["old"] * 3 + ["old and new"] * 2


@pytest.mark.spec("P1")
def test_a_reader_that_has_the_file_open_keeps_the_old_one_whole(files: WorkspaceFiles) -> None:
    files.write_partial(assistant("a1", "old", historySequence=1))

    with (files.path / "partial.json").open("rb") as file:
        files.write_partial(assistant("a1", "new", historySequence=1))
        row = AssistantRow.model_validate_json(file.read())

    assert text_of(row) == "old"


def test_there_is_no_partial_where_there_is_no_file(files: WorkspaceFiles) -> None:
    assert files.read_partial() == PartialRead(row=None, warning=None)

    files.append_user(user("u1"))

    assert files.read_partial().row is None


def test_deleting_a_partial_that_is_not_there_is_fine(files: WorkspaceFiles) -> None:
    assert not files.delete_partial()

    files.append_user(user("u1"))

    assert not files.delete_partial()
    assert not files.delete_partial_if_message_id("a1")


@pytest.mark.spec("P15")
def test_an_abandoned_partial_leaves_no_row(files: WorkspaceFiles) -> None:
    files.write_partial(assistant("a1", "never mind", historySequence=files.reserve("a1")))

    assert files.delete_partial_if_message_id("a1")

    assert files.commit_partial("a1").outcome == "no-partial"
    assert chat(files) == b""


def test_the_partial_of_another_message_is_not_deleted(files: WorkspaceFiles) -> None:
    files.write_partial(assistant("a1", "x", historySequence=0))

    assert not files.delete_partial_if_message_id("a0")

    assert files.read_partial().row is not None


# ---- files that are no partial


@pytest.mark.parametrize("name", CORRUPT)
def test_what_is_no_partial_of_this_workspace_is_moved_aside_whole_and_told(
    files: WorkspaceFiles, name: str
) -> None:
    put_partial(files, CORRUPT[name])

    read = files.read_partial()

    assert read.row is None
    assert read.warning is not None
    assert "partial.corrupt-1.json" in read.warning
    assert (files.path / "partial.corrupt-1.json").read_bytes() == CORRUPT[name]
    assert not (files.path / "partial.json").exists()


def test_a_file_moved_aside_is_logged(
    files: WorkspaceFiles, caplog: pytest.LogCaptureFixture
) -> None:
    put_partial(files, CORRUPT["torn"])

    warning = files.read_partial().warning

    assert [record.getMessage() for record in caplog.records] == [warning]


def test_each_file_moved_aside_has_a_name_of_its_own(files: WorkspaceFiles) -> None:
    for number in range(3):
        put_partial(files, b"%d?" % number)
        files.read_partial()

    asides = sorted(path.name for path in files.path.iterdir())
    assert asides == [f"partial.corrupt-{number}.json" for number in (1, 2, 3)]


@pytest.mark.parametrize("name", CORRUPT)
def test_what_is_no_partial_is_not_overwritten_by_one(files: WorkspaceFiles, name: str) -> None:
    put_partial(files, CORRUPT[name])

    files.write_partial(assistant("a1", "x", historySequence=0))

    assert (files.path / "partial.corrupt-1.json").read_bytes() == CORRUPT[name]
    assert files.read_partial().row is not None


def test_a_corrupt_partial_does_not_keep_user_rows_from_being_appended(
    files: WorkspaceFiles,
) -> None:
    put_partial(files, CORRUPT["torn"])

    assert files.append_user(user("u1")).is_new
    assert (files.path / "partial.json").exists()


@pytest.mark.spec("P10")
def test_a_partial_that_nobody_could_commit_is_not_overwritten_by_the_next(
    files: WorkspaceFiles,
) -> None:
    files.write_partial(assistant("a1", "kept"))
    with pytest.raises(HistoryError):
        files.commit_partial()

    files.write_partial(assistant("a2", "next", historySequence=0))

    kept = AssistantRow.model_validate_json((files.path / "partial.corrupt-1.json").read_bytes())
    assert text_of(kept) == "kept"


def test_a_partial_that_can_not_be_json_is_refused_and_the_last_one_stays(
    files: WorkspaceFiles,
) -> None:
    files.write_partial(assistant("a1", "good", historySequence=0))
    endless: list[object] = []
    endless.append(endless)
    part = TextPart.model_validate({"type": "text", "text": "x", "extra": endless})

    with pytest.raises(HistoryError) as caught:
        files.write_partial(assistant("a1").model_copy(update={"parts": (part,)}))

    assert caught.value.kind == "invalid_row"
    row = files.read_partial().row
    assert row is not None
    assert text_of(row) == "good"
