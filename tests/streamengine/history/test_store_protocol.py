"""What every history promises, whatever it is kept in: files, SQLite, PostgreSQL, memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

import fibers as fb
from streamengine.history import HistoryStore, MemoryHistory, UsageEntry
from streamengine.history.results import CommitResult
from streamengine.model import (
    FilePart,
    HistoryError,
    ReasoningPart,
    Row,
    RowMetadata,
    TextPart,
    ToolPart,
    Usage,
    UserRow,
)
from streamengine.model.note import LastEnd, WorkspaceNote

from .backends import WORKSPACE, Backend
from .kit import assistant, text_of, tool, user, with_parts

USAGE = Usage(input_tokens=3, output_tokens=4)


async def refused(work: fb.Effect[Any, HistoryError]) -> HistoryError:
    """The error that this fails with."""
    with pytest.raises(HistoryError) as caught:
        await work
    assert caught.value.message
    assert caught.value.way_out
    return caught.value


async def begin(history: HistoryStore, message_id: str, *texts: str, **metadata: Any) -> int:
    """A partial that says this, under a sequence reserved for it."""
    sequence = await history.reserve(WORKSPACE, message_id)
    row = assistant(message_id, *texts, historySequence=sequence, **metadata)
    await history.write_partial(WORKSPACE, row)
    return sequence


async def ids(history: HistoryStore) -> list[str]:
    return [row.id for row in await history.read(WORKSPACE)]


def sequence_of(row: Row) -> int | None:
    return row.metadata.history_sequence


# ---- a stream's way


@pytest.mark.spec("BT3")
async def test_the_final_row_is_added_under_the_reserved_sequence(history: HistoryStore) -> None:
    question = await history.append_user(WORKSPACE, user("u1"))
    sequence = await begin(history, "a1", "so far")
    assert await ids(history) == ["u1"]  # no placeholder

    answer = await history.finalize(
        WORKSPACE, assistant("a1", "so far so good", historySequence=sequence)
    )
    assert await history.delete_partial(WORKSPACE, "a1")

    assert await history.read(WORKSPACE) == [question.row, answer]
    assert sequence_of(answer) == sequence == 1
    assert not answer.is_partial
    assert await history.read_partial(WORKSPACE) is None


@pytest.mark.spec("P19")
async def test_from_the_first_word_on_row_or_partial_is_there(
    backend: Backend, history: HistoryStore
) -> None:
    """At each step of a completion, for a reader who knows nothing of the writer."""
    reader = await backend.history()
    sequence = await begin(history, "a1", "so far")
    assert await reader.read_partial(WORKSPACE) is not None

    await history.finalize(WORKSPACE, assistant("a1", "all", historySequence=sequence))
    assert (await ids(reader), await backend.has_partial()) == (["a1"], True)
    await history.delete_partial(WORKSPACE, "a1")
    assert (await ids(reader), await backend.has_partial()) == (["a1"], False)


async def test_a_final_row_can_be_repeated(history: HistoryStore) -> None:
    sequence = await begin(history, "a1", "so far")
    row = assistant("a1", "all", historySequence=sequence)

    first = await history.finalize(WORKSPACE, row)

    assert await history.finalize(WORKSPACE, row) == first
    assert await history.read(WORKSPACE) == [first]


async def test_a_final_row_takes_the_place_of_its_partial_row(history: HistoryStore) -> None:
    sequence = await begin(history, "a1", "a long partial answer")
    await history.commit_partial(WORKSPACE)

    await history.finalize(WORKSPACE, assistant("a1", "short", historySequence=sequence))

    (row,) = await history.read(WORKSPACE)
    assert (text_of(row), row.is_partial) == ("short", False)


@pytest.mark.spec("P17")
async def test_an_answer_that_cannot_be_made_final_stays_in_the_partial(
    backend: Backend, history: HistoryStore
) -> None:
    sequence = await begin(history, "a1", "the answer")
    row = assistant("a1", "the answer", historySequence=sequence)

    with backend.failing("rows"):
        error = await refused(history.finalize(WORKSPACE, row))

    assert error.kind in ("disk_full", "io")
    loaded = await (await backend.history()).load(WORKSPACE)
    assert [text_of(row) for row in loaded.rows] == ["the answer"]


# ---- user rows


@pytest.mark.spec("BT1")
async def test_a_client_message_id_is_stored_once(backend: Backend, history: HistoryStore) -> None:
    first = await history.append_user(WORKSPACE, user("u1", clientMessageId="key"))

    for store in (history, await backend.history()):
        for again in (user("u2", "other", clientMessageId="key"), user("u1", clientMessageId="x")):
            answer = await store.append_user(WORKSPACE, again)
            assert (answer.row, answer.is_new) == (first.row, False)
    assert await ids(history) == ["u1"]
    assert first.is_new


async def test_a_client_message_id_may_be_any_text(history: HistoryStore) -> None:
    for number, key in enumerate(["\x00", "\ud800", "x" * 10_000, "'; --", ""]):
        row = user(f"u{number}", clientMessageId=key)
        assert (await history.append_user(WORKSPACE, row)).is_new
        assert not (await history.append_user(WORKSPACE, row)).is_new
        other = user("other", clientMessageId=key)
        assert (await history.append_user(WORKSPACE, other)).row.id == row.id


@pytest.mark.spec("P21")
@pytest.mark.parametrize("parts", [(), (TextPart(text=" \n"),)])
async def test_no_row_without_content_is_written_for_a_user(
    history: HistoryStore, parts: tuple[TextPart, ...]
) -> None:
    row = UserRow(id="u1", parts=parts)

    assert (await refused(history.append_user(WORKSPACE, row))).kind == "empty_row"
    assert await history.read(WORKSPACE) == []
    assert await history.workspaces() == []


# ---- sequences


@pytest.mark.spec("P13")
async def test_a_sequence_is_one_more_than_all_that_are_taken(
    backend: Backend, history: HistoryStore
) -> None:
    await backend.put_row(user("u0", historySequence=4).to_mapping())
    assert await history.reserve(WORKSPACE, "a1") == 5
    assert await history.reserve(WORKSPACE, "a1") == 5
    assert sequence_of((await history.append_user(WORKSPACE, user("u1"))).row) == 6

    # One that was overtaken, whose reservation only the partial remembers.
    sequence = await begin(history, "a2", "x")
    later = await backend.history()
    assert sequence == 7
    assert await later.reserve(WORKSPACE, "a3") == 8
    await later.release(WORKSPACE, "a3")
    assert await later.reserve(WORKSPACE, "a4") == 8


@pytest.mark.spec("P13")
async def test_the_sequences_of_archived_rows_stay_taken(
    backend: Backend, history: HistoryStore
) -> None:
    await backend.put_row(user("u0", historySequence=9).to_mapping())
    await history.append_user(WORKSPACE, user("b", compactionBoundary=True))
    await history.append_user(WORKSPACE, user("u1"))
    await history.archive(WORKSPACE)

    assert await history.reserve(WORKSPACE, "a1") == 12
    again = user("u2", historySequence=9)
    assert (await refused(history.append_user(WORKSPACE, again))).kind == "stale_sequence"


@pytest.mark.spec("P13")
async def test_a_stale_sequence_is_refused_unless_it_is_kept_for_this_message(
    backend: Backend, history: HistoryStore
) -> None:
    sequence = await begin(history, "a1", "x")
    await history.append_user(WORKSPACE, user("u1"))

    stale = assistant("a2", "x", historySequence=sequence)
    assert (await refused(history.finalize(WORKSPACE, stale))).kind == "stale_sequence"
    later = await backend.history()  # the partial carries the reservation
    await later.finalize(WORKSPACE, assistant("a1", "x", historySequence=sequence))

    assert await ids(later) == ["a1", "u1"]


@pytest.mark.spec("P13")
@pytest.mark.parametrize("sequence", [-1, True, 1.5, "1", 2**53])
async def test_a_malformed_sequence_is_refused(history: HistoryStore, sequence: Any) -> None:
    # Copies of models aren't validated.
    metadata = RowMetadata().model_copy(update={"history_sequence": sequence})
    row = assistant("a1", "x").model_copy(update={"metadata": metadata})
    for work in (history.finalize(WORKSPACE, row), history.write_partial(WORKSPACE, row)):
        assert (await refused(work)).kind == "malformed_sequence"
    assert await history.read(WORKSPACE) == []


async def test_a_final_row_needs_a_sequence(history: HistoryStore) -> None:
    error = await refused(history.finalize(WORKSPACE, assistant("a1", "x")))
    assert error.kind == "no_sequence"


@pytest.mark.spec("P5")
async def test_two_messages_never_have_one_sequence(history: HistoryStore) -> None:
    sequence = await begin(history, "a1", "x")
    await history.finalize(WORKSPACE, assistant("a1", "x", historySequence=sequence))

    for row in (
        assistant("a2", "y", historySequence=sequence),
        user("a1", "y", historySequence=sequence),
    ):
        error = await refused(history.update(WORKSPACE, row))
        assert error.kind == "sequence_taken"
    other = assistant("a2", "y", historySequence=sequence)
    assert (await refused(history.finalize(WORKSPACE, other))).kind == "sequence_taken"


# ---- the partial


@pytest.mark.spec("P18")
async def test_a_partial_is_what_was_written_and_added(
    backend: Backend, history: HistoryStore
) -> None:
    await begin(history, "a1", "one", model="m")
    await history.append_partial(
        WORKSPACE, "a1", (TextPart(text=" two", timestamp_ms=5), ReasoningPart(text="hm"))
    )
    await history.append_partial(WORKSPACE, "a1", (ReasoningPart(text="m", signature="s"),))
    call = tool("c1", state="input-available")
    await history.append_partial(WORKSPACE, "a1", (call,), durable=True)
    done = tool("c1", output={"found": None})
    ending = RowMetadata(error="cut", error_type="network", duration_ms=7)
    await history.append_partial(WORKSPACE, "a1", (TextPart(text="."), done), metadata=ending)

    for store in (history, await backend.history()):
        row = await store.read_partial(WORKSPACE)
        assert row is not None
        assert row.parts == (
            TextPart(text="one two"),
            ReasoningPart(text="hmm", signature="s"),
            done,
            TextPart(text="."),
        )
        metadata = row.metadata
        assert (metadata.model, metadata.error, metadata.duration_ms) == ("m", "cut", 7)
        assert row.is_partial


async def test_a_new_process_goes_on_with_a_partial(
    backend: Backend, history: HistoryStore
) -> None:
    await begin(history, "a1", "one")
    await history.append_partial(WORKSPACE, "a1", (TextPart(text=" two"),))
    later = await backend.history()

    await later.append_partial(WORKSPACE, "a1", (TextPart(text=" three"),))

    row = await later.read_partial(WORKSPACE)
    assert row is not None
    assert text_of(row) == "one two three"


async def test_nothing_is_added_to_a_partial_that_is_not_there(history: HistoryStore) -> None:
    addition = history.append_partial(WORKSPACE, "a1", (TextPart(text="x"),))
    assert (await refused(addition)).kind == "not_found"
    await begin(history, "a2", "other")
    assert (await refused(addition)).kind == "not_found"
    await begin(history, "a1", "mine")
    await addition
    await history.delete_partial(WORKSPACE)
    assert (await refused(addition)).kind == "not_found"


async def test_an_addition_that_failed_can_be_made_good(
    backend: Backend, history: HistoryStore
) -> None:
    """By itself or, where it may have arrived, by writing the partial anew; never twice."""
    sequence = await begin(history, "a1", "one")
    with backend.failing("partial"):
        await refused(history.append_partial(WORKSPACE, "a1", (TextPart(text=" two"),)))

    again = await history.append_partial(WORKSPACE, "a1", (TextPart(text=" two"),)).exit()
    if isinstance(again, fb.Failure):
        assert getattr(again.failure().squash(), "kind", None) == "not_found"
        await history.write_partial(WORKSPACE, assistant("a1", "one two", historySequence=sequence))
    await history.append_partial(WORKSPACE, "a1", (TextPart(text=" three"),))

    row = await history.read_partial(WORKSPACE)
    assert row is not None
    assert text_of(row) == "one two three"


async def test_writing_it_whole_forgets_what_was_added(history: HistoryStore) -> None:
    sequence = await begin(history, "a1", "one")
    await history.append_partial(WORKSPACE, "a1", (TextPart(text=" two"),))

    for text in ("one", "new", "new"):  # also with the very bytes of before
        await history.write_partial(WORKSPACE, assistant("a1", text, historySequence=sequence))
        row = await history.read_partial(WORKSPACE)
        assert row is not None
        assert text_of(row) == text


@pytest.mark.spec("P10")
async def test_a_partial_of_another_message_is_moved_aside(
    backend: Backend, history: HistoryStore
) -> None:
    await begin(history, "a1", "one")
    await history.append_partial(WORKSPACE, "a1", (TextPart(text=" two"),))

    await begin(history, "a2", "other")

    row = await history.read_partial(WORKSPACE)
    assert row is not None
    assert row.id == "a2"
    aside = "".join(await backend.aside())
    assert '"one"' in aside
    assert '" two"' in aside


async def test_a_partial_that_comes_late_does_not_move_the_one_of_a_later_message(
    history: HistoryStore,
) -> None:
    """A stop that its store held up writes when the next answer is under way already."""
    early = await history.reserve(WORKSPACE, "a1")
    await begin(history, "a2", "what runs now")

    late = history.write_partial(WORKSPACE, assistant("a1", "late", historySequence=early))
    assert (await refused(late)).kind == "stale_sequence"
    await history.append_partial(WORKSPACE, "a2", (TextPart(text=", and on"),))

    row = await history.read_partial(WORKSPACE)
    assert row is not None
    assert (row.id, text_of(row)) == ("a2", "what runs now, and on")


async def test_an_end_that_comes_late_leaves_the_note_on_a_later_one(
    history: HistoryStore,
) -> None:
    later = LastEnd(message_id="a2", after_sequence=7, abort_reason="user")
    await history.update_note(WORKSPACE, lambda note: note.ended(later))
    sequence = await history.reserve(WORKSPACE, "a1")

    await history.conclude(
        WORKSPACE, assistant("a1", historySequence=sequence), LastEnd(message_id="a1")
    )

    assert (await history.read_note(WORKSPACE)).last_end == later


@pytest.mark.parametrize("text", ["{", "[]", '"x"', '{"id":"u1","role":"user","parts":[]}'])
async def test_a_partial_that_is_none_is_moved_aside_and_told(
    backend: Backend, history: HistoryStore, text: str
) -> None:
    await backend.put_partial(text)

    loaded = await history.load(WORKSPACE)

    assert loaded.rows == ()
    assert len(loaded.report.warnings) == 1
    assert [kept.strip() for kept in await backend.aside()] == [text]
    assert await history.read_partial(WORKSPACE) is None
    assert (await history.load(WORKSPACE)).report.warnings == ()


@pytest.mark.spec("P15")
async def test_a_partial_that_is_given_up_leaves_no_row_and_its_usage_once(
    history: HistoryStore,
) -> None:
    await begin(history, "a1", "one")
    await history.append_partial(WORKSPACE, "a1", (TextPart(text=" two"),))

    assert not await history.delete_partial(WORKSPACE, "a0")
    assert await history.delete_partial(WORKSPACE, "a1")
    recorded = [
        await history.record_usage(WORKSPACE, "a1", USAGE, model="m", source="abort")
        for _ in range(2)
    ]

    assert not await history.delete_partial(WORKSPACE)
    assert recorded == [True, False]
    assert (await history.load(WORKSPACE)).rows == ()
    (entry,) = await history.read_usage(WORKSPACE)
    assert (entry.message_id, entry.usage, entry.model) == ("a1", USAGE, "m")


# ---- committing


@pytest.mark.spec("P4", "P5", "P8")
async def test_a_commit_can_be_repeated(backend: Backend, history: HistoryStore) -> None:
    await history.append_user(WORKSPACE, user("u1"))
    sequence = await begin(history, "a1", "one", error="cut", errorType="network")
    await history.append_partial(WORKSPACE, "a1", (TextPart(text=" two"),))
    partial = await history.read_partial(WORKSPACE)
    assert partial is not None

    first = await history.commit_partial(WORKSPACE)
    rows = await backend.rows()
    second = await history.commit_partial(WORKSPACE)
    await history.write_partial(WORKSPACE, partial)  # killed before it was removed
    third = await (await backend.history()).commit_partial(WORKSPACE)

    assert (first.outcome, second.outcome, third.outcome) == ("appended", "no-partial", "dropped")
    assert await backend.rows() == rows
    assert not await backend.has_partial()
    row = (await history.read(WORKSPACE))[1]
    assert (row.id, text_of(row), sequence_of(row)) == ("a1", "one two", sequence)
    assert row.is_partial
    assert row.metadata.error is None
    assert row.metadata.error_type is None


@pytest.mark.spec("P6")
async def test_a_partial_from_before_the_boundary_is_removed_and_one_after_it_is_not(
    history: HistoryStore,
) -> None:
    await begin(history, "a1", "stale")
    await history.append_user(WORKSPACE, user("b", compactionBoundary=True))
    result = await history.commit_partial(WORKSPACE)
    assert (result.outcome, result.drop_reason) == ("dropped", "before-boundary")

    await begin(history, "a2", "overtaken")
    await history.append_user(WORKSPACE, user("u2"))
    assert (await history.commit_partial(WORKSPACE)).outcome == "appended"

    assert await ids(history) == ["b", "a2", "u2"]


@pytest.mark.spec("P7")
@pytest.mark.parametrize(
    "parts",
    [(TextPart(text=" \n"),), (tool(state="input-available"),), (ReasoningPart(text="\t"),)],
)
async def test_a_partial_that_says_nothing_becomes_no_row(
    history: HistoryStore, parts: tuple[Any, ...]
) -> None:
    sequence = await history.reserve(WORKSPACE, "a1")
    row = with_parts("a1", *parts, historySequence=sequence)
    await history.write_partial(WORKSPACE, row)

    assert (await history.commit_partial(WORKSPACE)).drop_reason == "nothing-said"
    assert await history.read(WORKSPACE) == []
    assert await history.read_partial(WORKSPACE) is None


@pytest.mark.spec("P9")
async def test_a_commit_that_fails_leaves_the_partial(
    backend: Backend, history: HistoryStore
) -> None:
    await begin(history, "a1", "one")
    await history.append_partial(WORKSPACE, "a1", (TextPart(text=" two"),))
    with backend.failing("rows"):
        error = await refused(history.commit_partial(WORKSPACE))
        loaded = await history.load(WORKSPACE)
    assert error.kind in ("disk_full", "io")
    assert loaded.rows == ()

    row = await history.read_partial(WORKSPACE)
    assert row is not None
    assert text_of(row) == "one two"
    assert (await history.commit_partial(WORKSPACE)).outcome == "appended"


@pytest.mark.spec("P10")
async def test_a_partial_without_a_sequence_is_kept_and_told(
    backend: Backend, history: HistoryStore
) -> None:
    await history.write_partial(WORKSPACE, assistant("a1", "one"))

    assert (await refused(history.commit_partial(WORKSPACE))).kind == "no_sequence"
    loaded = await (await backend.history()).load(WORKSPACE)

    assert [problem.kind for problem in loaded.report.problems] == ["no_sequence"]
    assert await backend.has_partial()


@pytest.mark.spec("P18")
async def test_content_decides_between_a_row_and_a_partial(history: HistoryStore) -> None:
    sequence = await begin(history, "a1", "one", " two")
    await history.commit_partial(WORKSPACE)
    for texts, outcome in (
        (("one two",), "dropped"),
        (("o", "n", "e"), "dropped"),
        (("one two three",), "updated"),
    ):
        row = assistant("a1", *texts, historySequence=sequence)
        await history.write_partial(WORKSPACE, row)
        assert (await history.commit_partial(WORKSPACE, "a1")).outcome == outcome
    await history.finalize(WORKSPACE, assistant("a1", "final", historySequence=sequence))

    longer = assistant("a1", "longer than final", historySequence=sequence)
    await history.write_partial(WORKSPACE, longer)

    assert (await history.commit_partial(WORKSPACE)).drop_reason == "row-is-final"
    assert [text_of(row) for row in await history.read(WORKSPACE)] == ["final"]
    assert await history.read_partial(WORKSPACE) is None


async def test_only_the_partial_that_is_meant_is_committed(history: HistoryStore) -> None:
    await begin(history, "a1", "one")

    assert (await history.commit_partial(WORKSPACE, "a0")).outcome == "other-message"
    assert await history.read(WORKSPACE) == []
    assert (await history.commit_partial(WORKSPACE, "a1")).outcome == "appended"


# ---- after a crash


# ---- the end of a stopped answer, at one stroke


END = LastEnd(message_id="a1", after_sequence=0, abort_reason="user")


async def stopped(history: HistoryStore, *texts: str, **metadata: Any) -> CommitResult:
    """The end of the answer a1, which has said this when it is stopped."""
    sequence = await history.reserve(WORKSPACE, "a1")
    row = assistant("a1", *texts, historySequence=sequence, abortReason="user", **metadata)
    return await history.conclude(WORKSPACE, row, END)


@pytest.mark.spec("P2", "P3", "P13")
async def test_a_stopped_answer_becomes_a_row_that_says_so_and_nothing_of_it_is_left(
    backend: Backend, history: HistoryStore
) -> None:
    await history.append_user(WORKSPACE, user("u1"))
    sequence = await begin(history, "a1", "one")

    assert (await stopped(history, "one", " two")).outcome == "appended"

    row = (await (await backend.history()).read(WORKSPACE))[1]
    assert (text_of(row), sequence_of(row), row.is_partial) == ("one two", sequence, True)
    assert row.metadata.abort_reason == "user"
    assert not await backend.has_partial()
    assert (await history.read_note(WORKSPACE)).last_end is None, "the row says it"
    assert await history.reserve(WORKSPACE, "a1") == sequence + 1, "its reservation has ended"


@pytest.mark.spec("P7", "E30")
@pytest.mark.parametrize("texts", [(), (" \n",)])
@pytest.mark.parametrize("written", [True, False])
async def test_of_an_answer_that_said_nothing_the_note_says_how_it_ended(
    backend: Backend, history: HistoryStore, texts: tuple[str, ...], written: bool
) -> None:
    await history.update_note(WORKSPACE, replaced_by(WorkspaceNote(auto_retry=False)))
    if written:
        await begin(history, "a1", *texts)

    assert (await stopped(history, *texts)).drop_reason == "nothing-said"

    assert await history.read(WORKSPACE) == []
    assert not await backend.has_partial()
    note = await (await backend.history()).read_note(WORKSPACE)
    assert note == WorkspaceNote(auto_retry=False, last_end=END)


@pytest.mark.spec("P15", "P16")
@pytest.mark.parametrize("text", ["said", " "])
async def test_the_usage_of_a_stopped_answer_is_on_its_row_or_apart(
    history: HistoryStore, text: str
) -> None:
    sequence = await begin(history, "a1", text, usage=USAGE.to_mapping())
    row = assistant("a1", text, historySequence=sequence, usage=USAGE.to_mapping())
    for _ in range(2):
        await history.conclude(WORKSPACE, row, END)

    on_rows = [row.metadata.usage for row in await history.read(WORKSPACE)]
    apart = [(entry.usage, entry.source) for entry in await history.read_usage(WORKSPACE)]
    assert (on_rows, apart) == (([USAGE], []) if text == "said" else ([], [(USAGE, "abort")]))


@pytest.mark.spec("P4")
async def test_the_end_of_a_stopped_answer_can_be_repeated(
    backend: Backend, history: HistoryStore
) -> None:
    sequence = await begin(history, "a1", "one")
    row = assistant("a1", "one", historySequence=sequence, abortReason="user")
    await history.conclude(WORKSPACE, row, END)
    rows = await backend.rows()

    again = await history.conclude(WORKSPACE, row, END)

    assert (again.outcome, again.drop_reason) == ("dropped", "row-has-it-all")
    assert await backend.rows() == rows


@pytest.mark.spec("P9")
async def test_where_the_row_of_a_stopped_answer_fails_its_partial_stays(
    backend: Backend, history: HistoryStore
) -> None:
    sequence = await begin(history, "a1", "one")
    with backend.failing("rows"):
        error = await refused(
            history.conclude(WORKSPACE, assistant("a1", "one", historySequence=sequence), END)
        )

    assert error.kind in ("disk_full", "io")
    partial = await history.read_partial(WORKSPACE)
    assert partial is not None
    assert text_of(partial) == "one"
    assert await history.reserve(WORKSPACE, "a1") == sequence


@pytest.mark.spec("P10")
async def test_the_end_of_a_stopped_answer_leaves_the_partial_of_another(
    backend: Backend, history: HistoryStore
) -> None:
    await begin(history, "a2", "not mine")

    await stopped(history, "mine")

    kept = await history.read_partial(WORKSPACE)
    assert kept is not None
    assert (kept.id, text_of(kept)) == ("a2", "not mine")
    assert await ids(history) == ["a1"]


@pytest.mark.spec("P12")
async def test_a_load_commits_what_a_crash_left_once(
    backend: Backend, history: HistoryStore
) -> None:
    await history.append_user(WORKSPACE, user("u1", clientMessageId="key"))
    await begin(history, "a1", "one")
    await history.append_partial(WORKSPACE, "a1", (TextPart(text=" two"),))

    later = await backend.history()
    first = await later.load(WORKSPACE)
    rows = await backend.rows()
    second = await (await backend.history()).load(WORKSPACE)

    assert [row.id for row in first.rows] == ["u1", "a1"]
    assert first.report.commit is not None
    assert first.report.commit.outcome == "appended"
    assert second.rows == first.rows
    assert second.report.commit is None
    assert await backend.rows() == rows
    assert not (await later.append_user(WORKSPACE, user("u9", clientMessageId="key"))).is_new


async def test_a_load_leaves_the_partial_of_a_live_stream(
    backend: Backend, history: HistoryStore
) -> None:
    await begin(history, "a1", "one")

    assert (await history.load(WORKSPACE)).report.commit is None
    assert await backend.has_partial()


@pytest.mark.spec("P11")
async def test_a_load_removes_the_blank_rows_of_older_versions(
    backend: Backend, history: HistoryStore
) -> None:
    await backend.put_row(user("u1", historySequence=0).to_mapping())
    await backend.put_row(assistant("a1", historySequence=1, partial=True).to_mapping())
    await backend.put_row(assistant("a2", "x", historySequence=2, partial=True).to_mapping())
    await backend.put_row(assistant("a3", historySequence=3, partial=True).to_mapping())
    await history.write_partial(WORKSPACE, assistant("a3", "kept", historySequence=3))

    loaded = await history.load(WORKSPACE)

    assert loaded.report.removed_blank_rows == 1
    assert [text_of(row) for row in loaded.rows] == ["question", "x", "kept"]


@pytest.mark.spec("P14")
async def test_a_row_that_cannot_be_read_is_skipped_and_kept(
    backend: Backend, history: HistoryStore
) -> None:
    await backend.put_row("{ no row")
    newer = {"id": "x1", "role": "oracle", "metadata": {"historySequence": 7}}
    await backend.put_row(newer)
    before = await backend.rows()

    loaded = await history.load(WORKSPACE)
    appended = await history.append_user(WORKSPACE, user("u1"))

    assert loaded.report.unreadable_lines == 2
    assert await history.read(WORKSPACE) == [appended.row]
    assert (sequence_of(appended.row) or 0) >= 8
    assert (await backend.rows())[:2] == before


@pytest.mark.spec("P14")
@pytest.mark.parametrize(
    "line", ['{"metadata": {"durationMs": "soon"}}', '{"type": "text", "text": 3}', "{ no line"]
)
async def test_an_addition_that_cannot_be_read_costs_nothing_else(
    backend: Backend, history: HistoryStore, line: str
) -> None:
    await history.write_partial(WORKSPACE, assistant("a1", "said ", historySequence=1))
    await history.append_partial(WORKSPACE, "a1", (TextPart(text="and "),))
    await backend.put_addition(line)
    history = await backend.history()
    await history.append_partial(WORKSPACE, "a1", (TextPart(text="kept"),))

    loaded = await history.load(WORKSPACE)

    assert [text_of(row) for row in loaded.rows] == ["said and kept"]
    assert len(loaded.report.warnings) == 1
    assert any(line in text for text in await backend.aside())


# ---- update


async def test_an_update_replaces_the_row_in_its_place(history: HistoryStore) -> None:
    await history.append_user(WORKSPACE, user("u1", "old"))
    await history.append_user(WORKSPACE, user("u2"))

    stored = await history.update(WORKSPACE, user("u1", "new", historySequence=0))

    assert text_of(stored) == "new"
    assert [text_of(row) for row in await history.read(WORKSPACE)] == ["new", "question"]


async def test_an_update_keeps_what_a_newer_version_wrote(
    backend: Backend, history: HistoryStore
) -> None:
    fields = user("u1", "old", historySequence=3, compactionBoundary=True).to_mapping()
    fields["mood"] = {"is": None}
    fields["metadata"]["colour"] = "blue"
    fields["parts"].append({"type": "hologram", "url": None})
    await backend.put_row(fields)
    (row,) = await history.read(WORKSPACE)

    new = row.model_copy(update={"metadata": RowMetadata(history_sequence=3, model="m")})
    await history.update(WORKSPACE, new)

    (text,) = await backend.rows()
    stored = json.loads(text)
    assert stored["mood"] == {"is": None}
    assert stored["metadata"] == {
        "colour": "blue",
        "compactionBoundary": True,
        "historySequence": 3,
        "model": "m",
    }
    assert stored["parts"] == fields["parts"]


@pytest.mark.parametrize("sequence", [None, 7])
async def test_an_update_needs_its_row(history: HistoryStore, sequence: int | None) -> None:
    await history.append_user(WORKSPACE, user("u1"))

    error = await refused(history.update(WORKSPACE, user("u1", historySequence=sequence)))

    assert error.kind == "not_found"


@pytest.mark.spec("P11", "P21")
async def test_no_update_makes_a_row_say_nothing(history: HistoryStore) -> None:
    await history.append_user(WORKSPACE, user("u1"))
    sequence = await begin(history, "a1", "x")
    await history.finalize(WORKSPACE, assistant("a1", "x", historySequence=sequence))

    for row in (user("u1", " ", historySequence=0), assistant("a1", historySequence=1)):
        assert (await refused(history.update(WORKSPACE, row))).kind == "empty_row"
    assert len(await history.read(WORKSPACE)) == 2


@pytest.mark.spec("P11")
@pytest.mark.parametrize("blank", ["", " \n\t"])
async def test_a_final_answer_that_says_nothing_is_refused(
    history: HistoryStore, blank: str
) -> None:
    await history.append_user(WORKSPACE, user("u1"))
    sequence = await history.reserve(WORKSPACE, "a1")
    row = assistant("a1", blank, historySequence=sequence)

    assert (await refused(history.finalize(WORKSPACE, row))).kind == "empty_row"
    assert [row.id for row in await history.read(WORKSPACE)] == ["u1"]


# ---- usage


@pytest.mark.spec("P16")
async def test_usage_is_on_the_row_or_apart_never_both(
    backend: Backend, history: HistoryStore
) -> None:
    # Said twice: by the row, then apart.
    sequence = await begin(history, "a1", "x")
    usage = USAGE.to_mapping()
    row = assistant("a1", "x", historySequence=sequence, usage=usage)
    await history.finalize(WORKSPACE, row)
    assert not await history.record_usage(WORKSPACE, "a1", USAGE, model=None, source="stream")
    # Apart, then by the row of a commit.
    await history.delete_partial(WORKSPACE)
    await begin(history, "a2", "y", usage=usage)
    assert await history.record_usage(WORKSPACE, "a2", USAGE, model=None, source="error")
    await history.commit_partial(WORKSPACE)

    for store in (history, await backend.history()):
        on_rows = [row.id for row in await store.read(WORKSPACE) if row.metadata.usage]
        apart = [entry.message_id for entry in await store.read_usage(WORKSPACE)]
        assert (on_rows, apart) == (["a1"], ["a2"])


@pytest.mark.spec("P16")
async def test_an_update_brings_no_usage_that_is_kept_apart(
    backend: Backend, history: HistoryStore
) -> None:
    sequence = await begin(history, "a1", "x")
    await history.commit_partial(WORKSPACE)
    assert await history.record_usage(WORKSPACE, "a1", USAGE, model=None, source="abort")
    row = assistant("a1", "x, and y", historySequence=sequence, usage=USAGE.to_mapping())

    stored = await history.update(WORKSPACE, row)

    assert stored.metadata.usage is None
    for store in (history, await backend.history()):
        assert [row.metadata.usage for row in await store.read(WORKSPACE)] == [None]
        assert [e.message_id for e in await store.read_usage(WORKSPACE)] == ["a1"]


@pytest.mark.spec("P16")
@pytest.mark.parametrize("text", ["said", " "])
async def test_the_usage_of_a_partial_survives_its_commit_once(
    history: HistoryStore, text: str
) -> None:
    """Also of one that becomes no row, because the process died before it was recorded apart."""
    await begin(history, "a1", text, usage=USAGE.to_mapping(), model="m")

    for _ in range(2):
        await history.commit_partial(WORKSPACE)

    on_rows = [row.metadata.usage for row in await history.read(WORKSPACE)]
    apart = await history.read_usage(WORKSPACE)
    if text.isspace():
        assert on_rows == []
        entry = UsageEntry(message_id="a1", usage=USAGE, model="m", source="abort")
        assert apart == [entry]
    else:
        assert on_rows == [USAGE]
        assert apart == []


async def test_usage_is_given_in_the_order_of_recording(
    backend: Backend, history: HistoryStore
) -> None:
    for message_id in ("b", "a", "c"):
        await history.record_usage(WORKSPACE, message_id, USAGE, model=None, source="stream")

    for store in (history, await backend.history()):
        assert [entry.message_id for entry in await store.read_usage(WORKSPACE)] == ["b", "a", "c"]


# ---- long histories


async def fill(history: HistoryStore) -> None:
    for message_id, is_boundary in (("u0", None), ("u1", None), ("b", True), ("u3", None)):
        await history.append_user(WORKSPACE, user(message_id, compactionBoundary=is_boundary))


async def test_rows_can_be_read_from_the_boundary_and_from_the_end(history: HistoryStore) -> None:
    assert await history.tail(WORKSPACE, 3) == []
    assert await history.read(WORKSPACE, from_boundary=True) == []
    await fill(history)

    rows = await history.read(WORKSPACE)
    assert [row.id for row in rows] == ["u0", "u1", "b", "u3"]
    assert await history.read(WORKSPACE, from_boundary=True) == rows[2:]
    for limit in (0, 1, 3, 4, 9):
        assert await history.tail(WORKSPACE, limit) == (rows[-limit:] if limit else [])


async def test_rows_before_the_boundary_can_be_archived(
    backend: Backend, history: HistoryStore
) -> None:
    assert await history.archive(WORKSPACE) == 0
    await history.append_user(WORKSPACE, user("first", clientMessageId="key"))
    assert await history.archive(WORKSPACE) == 0
    await fill(history)

    assert [await history.archive(WORKSPACE) for _ in range(2)] == [3, 0]

    for store in (history, await backend.history()):
        assert [row.id for row in await store.read(WORKSPACE)] == ["b", "u3"]
        archived = await store.read_archive(WORKSPACE)
        assert [row.id for row in archived] == ["first", "u0", "u1"]
        # Sealed, but not forgotten.
        again = await store.append_user(WORKSPACE, user("other", clientMessageId="key"))
        assert (again.row.id, again.is_new) == ("first", False)
        sealed = user("u0", "changed", historySequence=1)
        assert (await refused(store.update(WORKSPACE, sealed))).kind == "not_found"


@pytest.mark.spec("P5", "P13")
async def test_no_row_comes_under_the_sequence_of_an_archived_one(
    backend: Backend, history: HistoryStore
) -> None:
    """Its answer was committed and archived while its stream still held the reservation."""
    sequence = await begin(history, "a1", "half")
    await history.commit_partial(WORKSPACE)
    await history.append_user(WORKSPACE, user("u1", compactionBoundary=True))
    await history.archive(WORKSPACE)

    error = await refused(
        history.finalize(WORKSPACE, assistant("a1", "half and whole", historySequence=sequence))
    )

    assert error.kind == "stale_sequence"
    assert "archived" in str(error)
    for store in (history, await backend.history()):
        assert await ids(store) == ["u1"]
        assert [row.id for row in await store.read_archive(WORKSPACE)] == ["a1"]


async def test_a_workspace_can_be_archived_again_and_again(history: HistoryStore) -> None:
    for number in range(3):
        await history.append_user(WORKSPACE, user(f"b{number}", compactionBoundary=True))
        await history.append_user(WORKSPACE, user(f"u{number}"))
        await history.archive(WORKSPACE)

    assert await ids(history) == ["b2", "u2"]
    archived = await history.read_archive(WORKSPACE)
    assert [row.id for row in archived] == ["b0", "u0", "b1", "u1"]


# ---- the note


def replaced_by(note: WorkspaceNote) -> Callable[[WorkspaceNote], WorkspaceNote]:
    return lambda _: note


async def test_the_note_is_what_was_written_last(backend: Backend, history: HistoryStore) -> None:
    assert await history.read_note(WORKSPACE) == WorkspaceNote()
    end = LastEnd(message_id="a1", after_sequence=3, abort_reason="user")
    for note in (WorkspaceNote(last_end=end), WorkspaceNote(auto_retry=False)):
        assert await history.update_note(WORKSPACE, replaced_by(note)) == note
        assert await history.read_note(WORKSPACE) == note
        assert await (await backend.history()).read_note(WORKSPACE) == note


async def test_two_who_change_the_note_at_once_undo_nothing_of_each_other(
    history: HistoryStore,
) -> None:
    end = LastEnd(message_id="a1", abort_reason="user")
    await fb.all_(
        [
            history.update_note(WORKSPACE, lambda note: note.with_fields(last_end=end)),
            history.update_note(WORKSPACE, lambda note: note.with_fields(auto_retry=False)),
        ],
        concurrency="unbounded",
    )

    assert await history.read_note(WORKSPACE) == WorkspaceNote(last_end=end, auto_retry=False)


# ---- what may be stored


async def test_any_content_comes_back_as_it_was(backend: Backend, history: HistoryStore) -> None:
    nasty = "\x00 \u2028 é 😀 \ud83d ' \" \\ ; -- $1 :x %s \n\r\t" + "x" * 100_000
    parts = (
        TextPart(text=nasty),
        ToolPart(
            tool_call_id="c1",
            tool_name="look",
            state="output-available",
            input={"deep": [[[None, 1.5, nasty]]]},
            output=[],
        ),
        FilePart(media_type="image/png", url="data:,"),
    )
    sequence = await history.reserve(WORKSPACE, "a1")
    await history.write_partial(WORKSPACE, with_parts("a1", *parts, historySequence=sequence))
    await history.append_partial(WORKSPACE, "a1", parts)

    later = await backend.history()
    row = await later.read_partial(WORKSPACE)
    assert row is not None
    assert row.parts[0] == parts[0]
    assert row.parts[1:] == (parts[1], parts[2], TextPart(text=nasty), parts[2])
    await later.commit_partial(WORKSPACE)
    assert [row.parts for row in await later.read(WORKSPACE)] == [row.parts]


async def test_what_cannot_be_json_is_refused_and_breaks_nothing(history: HistoryStore) -> None:
    endless: list[Any] = []
    endless.append(endless)
    sequence = await begin(history, "a1", "x")
    bad = tool("c1", output=endless)
    row = with_parts("a1", bad, historySequence=sequence)

    for work in (
        history.write_partial(WORKSPACE, row),
        history.append_partial(WORKSPACE, "a1", (bad,)),
        history.finalize(WORKSPACE, row),
    ):
        assert (await refused(work)).kind == "invalid_row"
    kept = await history.read_partial(WORKSPACE)
    assert kept is not None
    assert text_of(kept) == "x"
    assert await history.read(WORKSPACE) == []


@pytest.mark.parametrize("workspace_id", ["", "..", "a/b", "A", "x" * 65, "a\x00"])
async def test_a_bad_id_is_refused_by_name(history: HistoryStore, workspace_id: str) -> None:
    for work in (
        history.read(workspace_id),
        history.load(workspace_id),
        history.append_user(workspace_id, user("u1")),
        history.append_partial(workspace_id, "a1", ()),
        history.update_note(workspace_id, lambda note: note),
    ):
        assert (await refused(work)).kind == "invalid_id"
    assert (await refused(history.reserve(WORKSPACE, workspace_id))).kind == "invalid_id"
    usage = history.record_usage(WORKSPACE, workspace_id, USAGE, model=None, source="stream")
    assert (await refused(usage)).kind == "invalid_id"


async def test_a_row_of_another_workspace_is_refused(history: HistoryStore) -> None:
    row = UserRow(id="u1", parts=(TextPart(text="x"),), workspace_id="other")
    assert (await refused(history.append_user(WORKSPACE, row))).kind == "invalid_row"


async def test_workspaces_are_apart(history: HistoryStore) -> None:
    for workspace_id in ("w2", "w1", "w10"):
        await history.append_user(workspace_id, user("u1", clientMessageId="key"))
        await history.write_partial(workspace_id, assistant("a1", workspace_id, historySequence=1))

    assert await history.workspaces() == ["w1", "w10", "w2"]
    await history.delete_partial("w1")
    row = await history.read_partial("w2")
    assert row is not None
    assert text_of(row) == "w2"
    assert [row.workspace_id for row in await history.read("w10")] == ["w10"]


# ---- one at a time


async def test_many_at_once_have_a_place_each_in_the_order_in_which_they_began(
    history: HistoryStore,
) -> None:
    """In three workspaces side by side."""
    names = ("w1", "w2", "w3")
    work = [
        asyncio.ensure_future(history.append_user(name, user(f"u{number}")))
        for number in range(15)
        for name in names
    ]
    await asyncio.gather(*work)

    for name in names:
        rows = await history.read(name)
        assert [row.id for row in rows] == [f"u{number}" for number in range(15)]
        assert [sequence_of(row) for row in rows] == list(range(15))


async def test_one_client_message_id_sent_many_times_at_once_is_stored_once(
    history: HistoryStore,
) -> None:
    sent = [history.append_user(WORKSPACE, user(f"u{n}", clientMessageId="k")) for n in range(10)]
    answers = await asyncio.gather(*map(asyncio.ensure_future, sent))

    assert [answer.is_new for answer in answers].count(True) == 1
    assert len({answer.row.id for answer in answers}) == 1
    assert len(await history.read(WORKSPACE)) == 1


async def test_what_is_interrupted_before_its_turn_does_not_happen_in_its_turn_it_does(
    history: HistoryStore,
) -> None:
    if isinstance(history, MemoryHistory):
        pytest.skip("in memory nothing waits for its turn")
    # The first takes long enough for the others to be given up meanwhile.
    rows = [user("u0", "x" * 3_000_000), *(user(f"u{number}") for number in range(1, 7))]
    work = [asyncio.ensure_future(history.append_user(WORKSPACE, row)) for row in rows]
    await asyncio.sleep(0)
    for task in work[1:]:
        task.cancel()
    ends = await asyncio.gather(*work, return_exceptions=True)

    stored = await ids(history)
    told = [f"u{n}" for n, end in enumerate(ends) if not isinstance(end, BaseException)]
    assert told == ["u0"]
    # One whose turn it was may have happened although who wanted it is gone.
    assert stored == [f"u{number}" for number in range(len(stored))]
    assert len(stored) < 7
    assert (await history.append_user(WORKSPACE, user("last"))).is_new
