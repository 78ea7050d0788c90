"""The rows of a workspace: appending, reading, sequences, unreadable lines."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from streamengine.history.files import WorkspaceFiles
from streamengine.model import (
    MAX_HISTORY_SEQUENCE,
    FilePart,
    HistoryError,
    RowMetadata,
    TextPart,
    UserRow,
)

from .kit import assistant, chat, put_chat, put_partial, sequences, text_of, user


def test_a_workspace_without_files_has_no_rows_and_gets_none_by_reading(
    files: WorkspaceFiles,
) -> None:
    assert files.read() == ([], 0)
    assert not files.path.exists()


def test_rows_come_back_as_they_were_appended(files: WorkspaceFiles) -> None:
    first = files.append_user(user("u1", "one\nline\u2028")).row
    second = files.append_user(user("u2", "ünïcödé 🎉")).row

    assert files.read().rows == [first, second]


def test_a_row_is_one_line_that_names_its_workspace(files: WorkspaceFiles) -> None:
    files.append_user(user("u1", "a\nb"))

    assert chat(files).count(b"\n") == 1
    assert b'"workspaceId":"ws"' in chat(files)


def test_a_row_of_another_workspace_is_refused(files: WorkspaceFiles) -> None:
    with pytest.raises(HistoryError) as caught:
        files.append_user(UserRow(id="u1", parts=(TextPart(text="x"),), workspace_id="other"))

    assert caught.value.kind == "invalid_row"
    assert chat(files) == b""


# ---- the same message again


def test_a_repeated_client_message_id_gives_the_first_row(files: WorkspaceFiles) -> None:
    first = files.append_user(user("u1", clientMessageId="key"))
    again = files.append_user(user("u2", clientMessageId="key"))

    assert first.is_new
    assert not again.is_new
    assert again.row == first.row
    assert files.read().rows == [first.row]


def test_a_repeated_message_id_gives_the_first_row(files: WorkspaceFiles) -> None:
    first = files.append_user(user("u1"))

    assert files.append_user(user("u1")).row == first.row
    assert files.read().rows == [first.row]


def test_a_repeated_client_message_id_is_known_after_a_restart(files: WorkspaceFiles) -> None:
    first = files.append_user(user("u1", clientMessageId="key"))

    again = WorkspaceFiles(files.path).append_user(user("u2", clientMessageId="key"))

    assert (again.is_new, again.row) == (False, first.row)


def test_a_client_message_id_is_also_known_from_the_archive(files: WorkspaceFiles) -> None:
    first = files.append_user(user("u1", clientMessageId="key"))
    (files.path / "chat.jsonl").rename(files.path / "chat-archive.jsonl")

    again = files.append_user(user("u2", clientMessageId="key"))

    assert (again.is_new, again.row) == (False, first.row)


def test_an_answer_that_quotes_a_client_message_id_is_not_its_message(
    files: WorkspaceFiles,
) -> None:
    files.finalize(assistant("a1", "x", historySequence=0, clientMessageId="key"))

    assert files.append_user(user("u1", clientMessageId="key")).is_new
    assert not files.append_user(user("u2", clientMessageId="key")).is_new


@pytest.mark.spec("P21")
@pytest.mark.parametrize("text", ["", " ", "\n\t\u00a0"])
def test_a_user_row_that_says_nothing_is_never_written(files: WorkspaceFiles, text: str) -> None:
    with pytest.raises(HistoryError) as caught:
        files.append_user(user("u1", text))

    assert caught.value.kind == "empty_row"
    assert not files.path.exists()


@pytest.mark.spec("P21")
def test_a_user_row_without_parts_is_never_written(files: WorkspaceFiles) -> None:
    with pytest.raises(HistoryError) as caught:
        files.append_user(UserRow(id="u1"))

    assert caught.value.kind == "empty_row"
    assert not files.path.exists()


def test_a_file_alone_is_a_message(files: WorkspaceFiles) -> None:
    row = UserRow(id="u1", parts=(FilePart(media_type="image/png", url="data:,x"),))

    assert files.append_user(row).is_new


# ---- sequences


@pytest.mark.spec("P13")
def test_sequences_count_from_0(files: WorkspaceFiles) -> None:
    for number in range(3):
        files.append_user(user(f"u{number}"))

    assert sequences(files) == [0, 1, 2]


@pytest.mark.spec("P13")
def test_the_next_sequence_follows_the_greatest_in_the_file_not_the_last(
    files: WorkspaceFiles,
) -> None:
    put_chat(
        files,
        {"id": "u1", "role": "user", "metadata": {"historySequence": 7}},
        {"id": "u2", "role": "user", "metadata": {"historySequence": 3}},
    )

    assert files.append_user(user("u3")).row.metadata.history_sequence == 8


@pytest.mark.spec("P13")
def test_the_next_sequence_follows_the_archive(files: WorkspaceFiles) -> None:
    put_chat(files, {"id": "u1", "role": "user", "metadata": {"historySequence": 7}})
    (files.path / "chat.jsonl").rename(files.path / "chat-archive.jsonl")

    assert files.append_user(user("u2")).row.metadata.history_sequence == 8


@pytest.mark.spec("P13")
def test_the_next_sequence_follows_the_partial(files: WorkspaceFiles) -> None:
    put_partial(files, assistant("a1", "x", historySequence=7))

    assert files.append_user(user("u1")).row.metadata.history_sequence == 8


@pytest.mark.spec("P13")
def test_the_next_sequence_follows_the_reservations(files: WorkspaceFiles) -> None:
    files.append_user(user("u1"))

    assert files.reserve("a1") == 1
    assert files.reserve("a2") == 2
    assert files.append_user(user("u2")).row.metadata.history_sequence == 3


def test_a_message_has_one_reservation_until_it_is_released(files: WorkspaceFiles) -> None:
    assert files.reserve("a1") == files.reserve("a1") == 0

    files.release("a1")
    files.release("a1")

    assert files.reserve("a2") == 0


def test_a_row_of_a_newer_version_keeps_its_sequence_from_being_given_again(
    files: WorkspaceFiles,
) -> None:
    put_chat(files, {"id": "x1", "role": "oracle", "metadata": {"historySequence": 4}})

    assert files.append_user(user("u1")).row.metadata.history_sequence == 5


@pytest.mark.spec("P13")
@pytest.mark.parametrize("value", [True, 1.0, -1, "1", MAX_HISTORY_SEQUENCE + 1])
def test_a_malformed_sequence_is_rejected(files: WorkspaceFiles, value: Any) -> None:
    # Copies of a model aren't validated, so that such a row does come about.
    metadata = RowMetadata().model_copy(update={"history_sequence": value})
    row = user("u1").model_copy(update={"metadata": metadata})

    with pytest.raises(HistoryError) as caught:
        files.append_user(row)

    assert caught.value.kind == "malformed_sequence"
    assert chat(files) == b""


@pytest.mark.spec("P13")
@pytest.mark.parametrize("sequence", [0, 1])
def test_a_stale_sequence_is_rejected(files: WorkspaceFiles, sequence: int) -> None:
    files.append_user(user("u1"))
    files.append_user(user("u2"))
    before = chat(files)

    with pytest.raises(HistoryError) as caught:
        files.append_user(user("u3", historySequence=sequence))

    assert caught.value.kind == "stale_sequence"
    assert chat(files) == before


@pytest.mark.spec("P13")
def test_a_sequence_reserved_for_another_message_is_stale(files: WorkspaceFiles) -> None:
    sequence = files.reserve("a1")

    with pytest.raises(HistoryError) as caught:
        files.finalize(assistant("a2", "x", historySequence=sequence))

    assert caught.value.kind == "stale_sequence"


@pytest.mark.spec("P13", "BT3")
def test_an_overtaken_sequence_is_accepted_from_the_message_it_was_reserved_for(
    files: WorkspaceFiles,
) -> None:
    sequence = files.reserve("a1")
    files.append_user(user("u1"))

    files.finalize(assistant("a1", "x", historySequence=sequence))

    assert [row.id for row in files.read().rows] == ["a1", "u1"]


@pytest.mark.spec("P13")
def test_a_greater_sequence_is_taken_over_and_counted_from(files: WorkspaceFiles) -> None:
    files.append_user(user("u1", historySequence=40))

    assert files.append_user(user("u2")).row.metadata.history_sequence == 41


def test_a_damaged_greatest_sequence_is_told_and_not_overflown(files: WorkspaceFiles) -> None:
    files.append_user(user("u1", historySequence=MAX_HISTORY_SEQUENCE))

    with pytest.raises(HistoryError) as caught:
        files.append_user(user("u2"))

    assert caught.value.kind == "malformed_sequence"


def test_rows_without_a_sequence_stay_behind_their_predecessor(files: WorkspaceFiles) -> None:
    put_chat(
        files,
        {"id": "late", "role": "user", "metadata": {"historySequence": 5}},
        {"id": "after-late", "role": "user"},
        {"id": "early", "role": "user", "metadata": {"historySequence": 1}},
    )

    assert [row.id for row in files.read().rows] == ["early", "late", "after-late"]


def test_threads_that_append_at_once_get_different_sequences(files: WorkspaceFiles) -> None:
    def append(thread: int) -> None:
        for number in range(10):
            files.append_user(user(f"u{thread}-{number}"))

    threads = [threading.Thread(target=append, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sequences(files) == list(range(40))


# ---- lines that can't be read

TORN = b'{"id":"u2","role":"user","parts":[{"type":"te'
UNREADABLE = [
    TORN,
    b"not json",
    b"[1, 2]",
    b"\xff\xfe",
    b"\0\0\0",
    b'{"id":"u9"}',
    b'{"id":"../x","role":"user"}',
    b'{"id":"u9","role":"user","metadata":{"historySequence":true}}',
    b"[" * 100_000,
]


@pytest.mark.spec("P14")
@pytest.mark.parametrize("line", UNREADABLE, ids=range(len(UNREADABLE)))
def test_an_unreadable_line_is_skipped_and_counted(files: WorkspaceFiles, line: bytes) -> None:
    good = {"id": "u1", "role": "user", "metadata": {"historySequence": 0}}
    put_chat(files, good, line, {**good, "id": "u3", "metadata": {"historySequence": 2}})

    rows, unreadable_lines = files.read()

    assert [row.id for row in rows] == ["u1", "u3"]
    assert unreadable_lines == 1


@pytest.mark.spec("P14")
@pytest.mark.parametrize("torn", UNREADABLE, ids=range(len(UNREADABLE)))
def test_after_a_torn_line_an_append_begins_its_own(files: WorkspaceFiles, torn: bytes) -> None:
    files.append_user(user("u1"))
    with (files.path / "chat.jsonl").open("ab") as file:
        file.write(torn)

    files.append_user(user("u3"))

    assert [row.id for row in files.read().rows] == ["u1", "u3"]
    assert sequences(files) == [0, 1]
    assert chat(files).split(b"\n")[1] == torn


@pytest.mark.spec("P14")
def test_a_row_behind_a_torn_line_is_found_again(files: WorkspaceFiles) -> None:
    files.path.mkdir()
    (files.path / "chat.jsonl").write_bytes(TORN)
    files.append_user(user("u1", clientMessageId="key"))
    files.finalize(assistant("a1", "one", historySequence=1))

    assert not files.append_user(user("u1", clientMessageId="key")).is_new
    files.update_row(assistant("a1", "two", historySequence=1))

    assert chat(files).startswith(TORN + b'\n{"id":"u1"')
    assert [text_of(row) for row in files.read().rows] == ["question", "two"]


@pytest.mark.spec("P14")
def test_a_whole_line_that_lacks_only_its_newline_is_a_row(files: WorkspaceFiles) -> None:
    files.append_user(user("u1", clientMessageId="key"))
    (files.path / "chat.jsonl").write_bytes(chat(files).rstrip(b"\n"))

    assert not files.append_user(user("u1", clientMessageId="key")).is_new
    files.append_user(user("u2"))

    assert [row.id for row in files.read().rows] == ["u1", "u2"]


def test_blank_lines_are_nothing(files: WorkspaceFiles) -> None:
    put_chat(files, b"", b"  ", {"id": "u1", "role": "user"}, b"\r")

    rows, unreadable_lines = files.read()

    assert ([row.id for row in rows], unreadable_lines) == (["u1"], 0)


def test_a_change_by_somebody_else_is_seen(files: WorkspaceFiles) -> None:
    files.append_user(user("u1"))
    other = WorkspaceFiles(files.path)
    other.append_user(user("u2"))

    assert files.append_user(user("u3")).row.metadata.history_sequence == 2


# ---- replacing a row


def test_an_update_replaces_one_row_and_keeps_every_other_byte(files: WorkspaceFiles) -> None:
    put_chat(
        files,
        b'{"role" : "user", "id":"u1", "parts":[], "newer": [1,  2], '
        b'"metadata":{"historySequence":0}}',
        b"not json",
        assistant("a1", "old", historySequence=1, partial=True).to_mapping(),
        b'{"id":"x1","role":"oracle"}',
        TORN,
    )
    before = chat(files).split(b"\n")

    files.update_row(assistant("a1", "new", historySequence=1))

    after = chat(files).split(b"\n")
    assert [line for line in after if line not in before] == [after[2]]
    assert before[:2] + before[3:] == after[:2] + after[3:]
    assert b"new" in after[2]


def test_an_updated_row_keeps_what_a_newer_version_knows_of_it(files: WorkspaceFiles) -> None:
    row = assistant("a1", "old", historySequence=0, partial=True, newer=None).to_mapping()
    row["metadata"]["mood"] = None
    put_chat(files, {**row, "stars": 5})

    stored = files.update_row(assistant("a1", "new", historySequence=0)).to_mapping()

    assert stored["stars"] == 5
    assert b'"mood":null' in chat(files)


def test_an_updated_row_stays_a_boundary(files: WorkspaceFiles) -> None:
    put_chat(files, assistant("a1", "x", historySequence=0, compactionBoundary=True).to_mapping())

    stored = files.update_row(assistant("a1", "y", historySequence=0))

    assert stored.metadata.compaction_boundary is True


@pytest.mark.parametrize("sequence", [None, 7])
def test_an_update_of_a_row_that_is_not_there_is_refused(
    files: WorkspaceFiles, sequence: int | None
) -> None:
    files.append_user(user("u1"))

    with pytest.raises(HistoryError) as caught:
        files.update_row(assistant("a1", "x", historySequence=sequence))

    assert caught.value.kind == "not_found"


def test_an_update_never_replaces_another_message(files: WorkspaceFiles) -> None:
    files.append_user(user("u1"))
    before = chat(files)

    with pytest.raises(HistoryError) as caught:
        files.update_row(assistant("a1", "x", historySequence=0))

    assert caught.value.kind == "sequence_taken"
    assert chat(files) == before


# ---- the final row


@pytest.mark.spec("BT3", "P5")
def test_a_final_row_replaces_the_partial_row_with_its_sequence(files: WorkspaceFiles) -> None:
    put_chat(files, assistant("a1", "half", historySequence=0, partial=True).to_mapping())

    stored = files.finalize(assistant("a1", "half and whole", historySequence=0))

    assert files.read().rows == [stored]
    assert stored.metadata.partial is None


def test_a_final_row_carries_no_partial_mark(files: WorkspaceFiles) -> None:
    files.finalize(assistant("a1", "x", historySequence=0, partial=True))

    assert b"partial" not in chat(files)


def test_a_final_row_needs_a_sequence(files: WorkspaceFiles) -> None:
    with pytest.raises(HistoryError) as caught:
        files.finalize(assistant("a1", "x"))

    assert caught.value.kind == "no_sequence"


def test_a_final_row_ends_its_reservation(files: WorkspaceFiles) -> None:
    sequence = files.reserve("a1")
    files.finalize(assistant("a1", "x", historySequence=sequence))

    assert not files.is_reserved("a1")
    assert files.reserve("a2") == sequence + 1


def test_a_final_row_may_be_written_again(files: WorkspaceFiles) -> None:
    files.finalize(assistant("a1", "x", historySequence=files.reserve("a1")))
    before = chat(files)

    files.finalize(assistant("a1", "x", historySequence=0))

    assert chat(files) == before


def test_a_row_whose_message_id_is_none_is_refused(files: WorkspaceFiles) -> None:
    row = user("u1").model_copy(update={"id": "../u1"})

    with pytest.raises(HistoryError) as caught:
        files.append_user(row)

    assert caught.value.kind == "invalid_id"


def test_a_directory_whose_name_is_no_workspace_id_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError):
        WorkspaceFiles(tmp_path / "No Id")
