"""A process that dies at any point, and a load of what it left.

The directory is looked at after every change on disk, down to the single byte of a write: that is
what a kill at this point leaves. Each such state is loaded by a workspace that knows nothing of
the one that died.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streamengine.history.files import WorkspaceFiles
from streamengine.history.recovery import load
from streamengine.model import (
    AssistantRow,
    HistoryError,
    RowMetadata,
    TextPart,
    Usage,
    UserRow,
)

from .kit import (
    Snapshot,
    Steps,
    assistant,
    chat,
    fail_write_after,
    put_chat,
    restored,
    snapshot,
    text_of,
    user,
)

WHOLE = "one two three"


def complete(files: WorkspaceFiles) -> None:
    """A stream that ends well."""
    files.append_user(user("u1", clientMessageId="key"))
    sequence = files.reserve("a1")
    files.write_partial(assistant("a1", "one", historySequence=sequence))
    files.write_partial(assistant("a1", "one", " two", historySequence=sequence))
    files.finalize(assistant("a1", WHOLE, historySequence=sequence))
    files.delete_partial_if_message_id("a1")


def abort(files: WorkspaceFiles) -> None:
    """A stream that is stopped after its row was written once and then overtaken."""
    files.append_user(user("u1", clientMessageId="key"))
    sequence = files.reserve("a1")
    files.write_partial(assistant("a1", "one", historySequence=sequence))
    files.commit_partial("a1")
    files.write_partial(assistant("a1", "one", " two", historySequence=sequence))
    files.commit_partial("a1")


def complete_in_pieces(files: WorkspaceFiles) -> None:
    """A stream whose partial is begun twice and added to."""
    files.append_user(user("u1", clientMessageId="key"))
    sequence = files.reserve("a1")
    files.write_partial(assistant("a1", "one", historySequence=sequence))
    files.append_partial("a1", (TextPart(text=" t"),))
    files.append_partial("a1", (TextPart(text="wo"),), durable=True)
    files.write_partial(assistant("a1", "one two", historySequence=sequence))
    files.append_partial("a1", (TextPart(text=" three"),))
    files.finalize(assistant("a1", WHOLE, historySequence=sequence))
    files.delete_partial_if_message_id("a1")


def abort_in_pieces(files: WorkspaceFiles) -> None:
    """A stopped stream whose partial, and then its end, were added to."""
    files.append_user(user("u1", clientMessageId="key"))
    sequence = files.reserve("a1")
    files.write_partial(assistant("a1", "one", historySequence=sequence))
    files.append_partial("a1", (TextPart(text=" t"),))
    files.append_partial("a1", (TextPart(text="w"),))
    ending = RowMetadata(abort_reason="user", usage=Usage(output_tokens=3))
    files.append_partial("a1", (TextPart(text="o"),), metadata=ending, durable=True)
    files.commit_partial("a1")


ENDINGS = [complete, abort, complete_in_pieces, abort_in_pieces]


def every_state(
    act: Callable[[WorkspaceFiles], None], directory: Path, *, stride_bytes: int = 1
) -> list[Snapshot]:
    """What a kill could leave, in order, each state once; within a write at each such stride."""
    states: list[Snapshot] = [{}]

    def look() -> None:
        state = snapshot(directory)
        if state != states[-1]:
            states.append(state)

    steps = Steps()
    steps.at_each = look
    real = os.write

    def write_a_byte(handle: int, data: Any) -> int:
        written = real(handle, data[:stride_bytes])
        look()
        return written

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "write", write_a_byte)
        act(WorkspaceFiles(directory, workspace_id="ws", fsync="off", on_step=steps))
    return states


def user_rows(files: WorkspaceFiles) -> list[UserRow]:
    return [row for row in files.read().rows if isinstance(row, UserRow)]


def answers(files: WorkspaceFiles) -> list[AssistantRow]:
    return [row for row in files.read().rows if isinstance(row, AssistantRow)]


@pytest.mark.spec("P12")
@pytest.mark.parametrize("act", ENDINGS)
def test_after_a_crash_at_any_byte_each_message_is_there_once(
    tmp_path: Path, act: Callable[[WorkspaceFiles], None]
) -> None:
    states = every_state(act, tmp_path / "dying")
    assert len(states) > 500
    told = ""
    for number, state in enumerate(states):
        files = restored(state, tmp_path / f"after-{number}")
        loaded = load(files)
        # The sender repeats what it doesn't know to have arrived.
        files.append_user(user("u1", clientMessageId="key"))

        assert [row.id for row in user_rows(files)] == ["u1"]
        assert [row.id for row in answers(files)] in ([], ["a1"])
        assert set(snapshot(files.path)) == {"chat.jsonl"}
        assert not loaded.report.warnings
        assert not loaded.report.problems
        # What was on disk once is never lost again.
        text = "".join(text_of(row) for row in answers(files))
        assert text.startswith(told)
        told = text

    assert told == (WHOLE if act in (complete, complete_in_pieces) else "one two")


@pytest.mark.spec("P4", "P12")
@pytest.mark.parametrize("act", ENDINGS)
def test_a_second_load_changes_no_byte_wherever_the_first_crash_was(
    tmp_path: Path, act: Callable[[WorkspaceFiles], None]
) -> None:
    for number, state in enumerate(every_state(act, tmp_path / "dying")[::7]):
        files = restored(state, tmp_path / f"after-{number}")
        load(files)
        once = snapshot(files.path)

        load(files)

        assert snapshot(files.path) == once


@pytest.mark.spec("P12")
def test_a_crash_during_the_load_itself_leads_to_the_same_conversation(tmp_path: Path) -> None:
    # Killed between the write of a longer partial and its commit.
    (tmp_path / "dying").mkdir()
    dying = WorkspaceFiles(tmp_path / "dying", workspace_id="ws", fsync="off")
    put_chat(
        dying,
        user("u1", historySequence=0).to_mapping(),
        assistant("a1", "one", historySequence=1, partial=True).to_mapping(),
        assistant("a0", historySequence=2, partial=True).to_mapping(),
    )
    dying.write_partial(assistant("a1", WHOLE, historySequence=1))
    before = snapshot(dying.path)

    def recover(files: WorkspaceFiles) -> None:
        for name, data in before.items():
            (files.path / name).write_bytes(data)
        load(files)

    (tmp_path / "loading").mkdir()
    states = every_state(recover, tmp_path / "loading")

    assert len(states) > 100
    for number, state in enumerate(states[1:]):
        files = restored(state, tmp_path / f"after-{number}")
        load(files)
        assert [row.id for row in files.read().rows] == ["u1", "a1"]
        assert [text_of(row) for row in answers(files)] == [WHOLE]


@pytest.mark.spec("P5", "P12")
def test_a_kill_between_write_commit_and_delete_leads_to_one_and_the_same_row(
    tmp_path: Path,
) -> None:
    files = WorkspaceFiles(tmp_path / "dying", workspace_id="ws")
    files.append_user(user("u1"))
    files.write_partial(assistant("a1", WHOLE, historySequence=files.reserve("a1"), error="cut"))
    written = snapshot(files.path)
    files.commit_partial()
    deleted = snapshot(files.path)
    committed = {**deleted, "partial.json": written["partial.json"]}

    for number, state in enumerate((written, committed, deleted)):
        after = restored(state, tmp_path / f"after-{number}")
        load(after)
        assert snapshot(after.path) == deleted


@pytest.mark.spec("P19")
@pytest.mark.parametrize("end", ["complete", "abort"])
def test_a_reader_never_finds_neither_row_nor_partial(
    files: WorkspaceFiles, steps: Steps, end: str
) -> None:
    files.append_user(user("u1"))
    sequence = files.reserve("a1")
    files.write_partial(assistant("a1", "one", historySequence=sequence))
    found: list[tuple[bool, bool]] = []

    def poll() -> None:
        reader = WorkspaceFiles(files.path)
        found.append((bool(answers(reader)), reader.read_partial().row is not None))

    steps.at_each = poll
    if end == "complete":
        files.finalize(assistant("a1", WHOLE, historySequence=sequence))
        files.delete_partial_if_message_id("a1")
    else:
        files.commit_partial("a1")

    assert (False, False) not in found
    assert Counter(found)[True, True] >= 1
    assert found[-1] == (True, False)


@pytest.mark.spec("P17")
def test_an_answer_that_could_not_be_made_final_is_still_in_the_partial(
    files: WorkspaceFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.append_user(user("u1"))
    sequence = files.reserve("a1")
    files.write_partial(assistant("a1", WHOLE, historySequence=sequence))
    before = chat(files)

    with monkeypatch.context() as patch:
        fail_write_after(patch, 30)
        with pytest.raises(HistoryError) as caught:
            files.finalize(assistant("a1", WHOLE, historySequence=sequence))

    assert caught.value.kind == "disk_full"
    assert chat(files) == before
    assert files.is_reserved("a1")
    load(restored(snapshot(files.path), files.path.parent / "later"))
    later = WorkspaceFiles(files.path.parent / "later", workspace_id="ws")
    assert [text_of(row) for row in answers(later)] == [WHOLE]


@pytest.mark.spec("P16")
def test_wherever_a_truncate_is_killed_what_the_answers_cost_is_counted_once(
    tmp_path: Path,
) -> None:
    """A count adds up the rows and what stands apart from them."""
    usage = Usage(input_tokens=2, output_tokens=3)

    def put_back(files: WorkspaceFiles) -> None:
        files.append_user(user("u1"))
        for message_id in ("a1", "a2"):
            sequence = files.reserve(message_id)
            row = assistant(message_id, WHOLE, historySequence=sequence)
            metadata = row.metadata.model_copy(update={"usage": usage})
            files.finalize(row.model_copy(update={"metadata": metadata}))
        assert files.truncate(0) == 2

    counted = Counter[str]()
    (tmp_path / "dying").mkdir()
    for number, state in enumerate(every_state(put_back, tmp_path / "dying")):
        files = restored(state, tmp_path / f"after-{number}")
        load(files)
        on_rows = [row.id for row in answers(files) if row.metadata.usage is not None]
        counted = Counter([*on_rows, *(entry.message_id for entry in files.read_usage())])
        assert set(counted.values()) <= {1}
    assert counted == {"a1": 1, "a2": 1}
