"""What becomes of a partial: the decision, and a commit that carries it out."""

from __future__ import annotations

import itertools
import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamengine.history.files import WorkspaceFiles
from streamengine.history.partial import (
    Append,
    Drop,
    Keep,
    Update,
    content_of,
    decide_commit,
    is_blank,
    is_commit_worthy,
    says_more,
)
from streamengine.model import (
    AssistantRow,
    FilePart,
    HistoryError,
    MessagePart,
    ReasoningPart,
    Row,
    TextPart,
    ToolPart,
    UnknownMessagePart,
)

from .kit import (
    assistant,
    chat,
    fail_call,
    fail_write_after,
    put_chat,
    sequences,
    snapshot,
    text_of,
    tool,
    user,
    with_parts,
)

FILE = FilePart(media_type="text/plain", url="data:,x")

# ---- what may stand in the history


@pytest.mark.spec("P7")
@pytest.mark.parametrize(
    "parts",
    [
        (),
        (TextPart(text=""),),
        (TextPart(text=" \n"), ReasoningPart(text="\t")),
        (tool(state="input-available"),),
        (TextPart(text=" "), tool(state="input-available"), tool(state="input-streaming")),
    ],
    ids=range(5),
)
def test_blank_text_and_unfinished_tool_calls_add_no_row(
    files: WorkspaceFiles, parts: tuple[MessagePart, ...]
) -> None:
    assert not is_commit_worthy(parts)
    files.write_partial(with_parts("a1", *parts, historySequence=0))

    result = files.commit_partial()

    assert (result.outcome, result.drop_reason) == ("dropped", "nothing-said")
    assert chat(files) == b""
    assert not (files.path / "partial.json").exists()


@pytest.mark.parametrize(
    "part",
    [
        TextPart(text=" x "),
        ReasoningPart(text="x"),
        FILE,
        tool(output=None),
        UnknownMessagePart(type="newer"),
    ],
    ids=lambda part: part.type,
)
def test_anything_said_is_worth_a_row(part: MessagePart) -> None:
    assert is_commit_worthy([TextPart(text=" "), part])


def test_an_unfinished_tool_call_is_unworthy_but_not_blank() -> None:
    unfinished = tool(state="input-available")

    assert not is_commit_worthy([unfinished])
    assert not is_blank([unfinished])
    assert is_blank([TextPart(text=" "), ReasoningPart(text="")])


# ---- the decision


def partial(*texts: str, sequence: int | None = 1, **metadata: Any) -> AssistantRow:
    return assistant("a1", *texts, historySequence=sequence, partial=True, **metadata)


@pytest.mark.spec("P5")
def test_a_partial_without_a_row_is_appended() -> None:
    rows = [user("u1", historySequence=0)]

    assert decide_commit(partial("x"), rows, None) == Append(partial("x"))


@pytest.mark.spec("P6")
def test_a_partial_before_the_last_boundary_is_stale() -> None:
    assert decide_commit(partial("x"), [], 2) == Drop("before-boundary")


@pytest.mark.spec("P6")
def test_a_partial_that_later_rows_overtook_is_not_stale() -> None:
    rows = [user("u1", historySequence=0), user("u2", historySequence=2)]

    assert decide_commit(partial("x"), rows, 0) == Append(partial("x"))


@pytest.mark.spec("P8")
def test_a_committed_row_has_no_error_and_stays_partial() -> None:
    decision = decide_commit(partial("x", error="cut", errorType="network"), [], None)

    assert isinstance(decision, Append)
    assert decision.row == partial("x")
    assert decision.row.to_mapping()["metadata"] == {"historySequence": 1, "partial": True}


@pytest.mark.spec("P10")
def test_a_partial_without_a_sequence_is_kept() -> None:
    decision = decide_commit(partial("x", sequence=None), [], None)

    assert isinstance(decision, Keep)
    assert decision.kind == "no_sequence"


@pytest.mark.spec("P18")
def test_a_longer_partial_replaces_a_partial_row_of_as_many_parts() -> None:
    assert decide_commit(partial("one two"), [partial("one")], None) == Update(partial("one two"))


@pytest.mark.spec("P18")
def test_more_parts_with_the_same_content_replace_nothing() -> None:
    decision = decide_commit(partial("o", "n", "e"), [partial("one")], None)

    assert decision == Drop("row-has-it-all")


@pytest.mark.spec("P18")
def test_a_shorter_partial_in_more_parts_replaces_nothing() -> None:
    decision = decide_commit(partial("o", "n"), [partial("one")], None)

    assert decision == Drop("row-has-it-all")


@pytest.mark.spec("P18")
def test_a_tool_output_makes_a_partial_longer() -> None:
    old = with_parts("a1", tool(state="input-available"), historySequence=1, partial=True)
    new = with_parts("a1", tool(output={"n": 1}), historySequence=1, partial=True)

    assert decide_commit(new, [old], None) == Update(new)
    assert decide_commit(old, [new], None) == Drop("nothing-said")


@pytest.mark.spec("P18")
def test_a_final_row_is_never_replaced_however_short_it_is() -> None:
    final = assistant("a1", "x", historySequence=1)

    assert decide_commit(partial("x and much more"), [final], None) == Drop("row-is-final")


def test_a_blank_partial_row_is_replaced_by_what_was_said() -> None:
    assert decide_commit(partial("x"), [partial()], None) == Update(partial("x"))


@pytest.mark.parametrize(
    "other",
    [
        user("u1", historySequence=1),
        assistant("a0", "x", historySequence=1, partial=True),
        user("a1", historySequence=1),
    ],
    ids=["user", "assistant", "user with the same id"],
)
def test_a_sequence_that_another_message_has_keeps_the_partial(other: Row) -> None:
    decision = decide_commit(partial("x"), [other], None)

    assert isinstance(decision, Keep)
    assert decision.kind == "sequence_taken"


# ---- content


def cut(text: str, places: list[int]) -> list[str]:
    """The text in pieces, some of them empty."""
    bounds = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(bounds)]


places = st.lists(st.integers(0, 50), max_size=5)


@pytest.mark.spec("P18")
@settings(deadline=None)
@given(st.text(max_size=30), st.text(max_size=30), places, places, st.randoms())
def test_content_is_the_same_however_it_is_cut(
    text: str, reasoning: str, text_places: list[int], reasoning_places: list[int], random: Any
) -> None:
    texts: list[MessagePart] = [TextPart(text=piece) for piece in cut(text, text_places)]
    reasons: list[MessagePart] = [
        ReasoningPart(text=piece) for piece in cut(reasoning, reasoning_places)
    ]
    # Shuffled together, each kind in its own order.
    parts: list[MessagePart] = []
    while texts or reasons:
        source = texts if not reasons or (texts and random.random() < 0.5) else reasons
        parts.append(source.pop(0))

    whole = content_of([TextPart(text=text), ReasoningPart(text=reasoning)])

    assert content_of(parts) == whole
    assert not says_more(content_of(parts), whole)


@settings(deadline=None)
@given(st.text(max_size=20), st.text(min_size=1, max_size=20))
def test_exactly_the_longer_one_of_two_says_more(text: str, more: str) -> None:
    short, long = content_of([TextPart(text=text)]), content_of([TextPart(text=text + more)])

    assert says_more(long, short)
    assert not says_more(short, long)


def test_where_two_differ_the_longer_one_says_more() -> None:
    one = content_of([TextPart(text="abc")])
    other = content_of([TextPart(text="abX"), tool(output="and more")])

    assert says_more(other, one)
    assert not says_more(one, other)


def test_of_two_that_differ_and_are_equally_long_neither_replaces_the_other() -> None:
    one, other = content_of([TextPart(text="abc")]), content_of([TextPart(text="abX")])

    assert one != other
    assert not says_more(one, other)
    assert not says_more(other, one)


def test_a_result_that_is_null_is_content() -> None:
    assert says_more(content_of([tool(output=None)]), content_of([tool(state="input-available")]))


def test_a_file_is_content() -> None:
    assert says_more(content_of([FILE]), content_of([]))


def test_outputs_are_compared_as_json() -> None:
    one = content_of([tool(output={"a": 1, "b": (2,)})])
    other = content_of([tool(output={"b": [2], "a": 1})])

    assert one == other


# ---- the commit


@pytest.mark.spec("P5", "P8")
def test_a_commit_appends_one_row_and_removes_the_partial(files: WorkspaceFiles) -> None:
    files.append_user(user("u1"))
    sequence = files.reserve("a1")
    files.write_partial(
        assistant("a1", "so far", historySequence=sequence, error="cut", errorType="network")
    )

    result = files.commit_partial("a1")

    assert result.outcome == "appended"
    assert files.read().rows[1] == result.row
    assert json.loads(chat(files).splitlines()[1])["metadata"] == {
        "historySequence": 1,
        "partial": True,
    }
    assert set(snapshot(files.path)) == {"chat.jsonl"}


@pytest.mark.spec("P5")
def test_a_commit_updates_the_row_with_its_sequence(files: WorkspaceFiles) -> None:
    put_chat(files, partial("one", sequence=0).to_mapping())
    files.write_partial(partial("one two", sequence=0))

    assert files.commit_partial().outcome == "updated"

    (row,) = files.read().rows
    assert isinstance(row, AssistantRow)
    assert text_of(row) == "one two"


@pytest.mark.spec("P4")
def test_a_second_commit_changes_nothing(files: WorkspaceFiles) -> None:
    files.write_partial(partial("x"))
    files.commit_partial()
    before = snapshot(files.path)

    assert files.commit_partial().outcome == "no-partial"
    assert snapshot(files.path) == before


@pytest.mark.spec("P4")
def test_the_same_partial_committed_again_changes_no_byte(files: WorkspaceFiles) -> None:
    files.write_partial(partial("x"))
    files.commit_partial()
    before = snapshot(files.path)

    files.write_partial(partial("x"))
    result = files.commit_partial()

    assert (result.outcome, result.drop_reason) == ("dropped", "row-has-it-all")
    assert snapshot(files.path) == before


@pytest.mark.spec("P6")
def test_an_overtaken_partial_is_committed_in_its_place(files: WorkspaceFiles) -> None:
    files.append_user(user("u1"))
    files.write_partial(assistant("a1", "x", historySequence=files.reserve("a1")))
    files.append_user(user("u2"))

    files.commit_partial()

    assert [row.id for row in files.read().rows] == ["u1", "a1", "u2"]
    assert sequences(files) == [0, 1, 2]


@pytest.mark.spec("P6")
def test_a_stale_partial_is_removed_and_nothing_is_appended(files: WorkspaceFiles) -> None:
    before = put_chat(
        files,
        assistant("a9", "summary", historySequence=5, compactionBoundary=True).to_mapping(),
        user("u9", historySequence=6).to_mapping(),
    )
    files.write_partial(assistant("a1", "old", historySequence=3))

    assert files.commit_partial().drop_reason == "before-boundary"

    assert snapshot(files.path) == {"chat.jsonl": before}
    assert files.append_user(user("u10")).row.metadata.history_sequence == 7


@pytest.mark.spec("P18")
def test_a_final_row_stays_and_the_partial_is_deleted(files: WorkspaceFiles) -> None:
    files.finalize(assistant("a1", "final", historySequence=1))
    before = chat(files)
    files.write_partial(partial("final, and a straggler"))

    assert files.commit_partial().drop_reason == "row-is-final"

    assert snapshot(files.path) == {"chat.jsonl": before}


@pytest.mark.spec("P10")
def test_a_commit_without_a_sequence_fails_and_keeps_the_partial(files: WorkspaceFiles) -> None:
    files.write_partial(partial("x", sequence=None))
    before = snapshot(files.path)

    with pytest.raises(HistoryError) as caught:
        files.commit_partial()

    assert caught.value.kind == "no_sequence"
    assert snapshot(files.path) == before


def test_a_row_that_this_version_can_not_read_keeps_its_sequence(files: WorkspaceFiles) -> None:
    put_chat(files, {"id": "x1", "role": "oracle", "metadata": {"historySequence": 1}})
    files.write_partial(partial("x"))
    before = snapshot(files.path)

    with pytest.raises(HistoryError) as caught:
        files.commit_partial()

    assert caught.value.kind == "sequence_taken"
    assert snapshot(files.path) == before


def test_the_partial_of_another_message_is_not_committed(files: WorkspaceFiles) -> None:
    files.write_partial(partial("x"))
    before = snapshot(files.path)

    assert files.commit_partial("a0").outcome == "other-message"
    assert snapshot(files.path) == before


@pytest.mark.spec("P9")
@pytest.mark.parametrize("failing", ["write", "fsync", "ftruncate and write"])
def test_a_commit_that_can_not_append_keeps_the_partial(
    files: WorkspaceFiles, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    files.append_user(user("u1"))
    files.write_partial(partial("x"))
    kept = (files.path / "partial.json").read_bytes()

    with monkeypatch.context() as patch:
        if failing == "fsync":
            fail_call(patch, "fsync")
        else:
            fail_write_after(patch, 20)
        if failing.startswith("ftruncate"):
            fail_call(patch, "ftruncate")
        with pytest.raises(HistoryError) as caught:
            files.commit_partial()

    assert caught.value.kind == "disk_full"
    assert (files.path / "partial.json").read_bytes() == kept
    assert files.commit_partial().outcome == "appended"
    assert [row.id for row in files.read().rows] == ["u1", "a1"]


@pytest.mark.spec("P9")
@pytest.mark.parametrize("failing", ["write", "fsync", "replace"])
def test_a_commit_that_can_not_update_keeps_the_partial_and_the_row(
    files: WorkspaceFiles, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    put_chat(files, partial("one").to_mapping())
    files.write_partial(partial("one two"))
    before = snapshot(files.path)

    with monkeypatch.context() as patch:
        fail_call(patch, failing)
        with pytest.raises(HistoryError):
            files.commit_partial()

    assert snapshot(files.path) == before
    assert files.commit_partial().outcome == "updated"


@pytest.mark.spec("P9", "P4")
def test_a_commit_that_can_not_remove_the_partial_can_be_repeated(
    files: WorkspaceFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.write_partial(partial("x"))

    with monkeypatch.context() as patch:
        fail_call(patch, "unlink")
        with pytest.raises(HistoryError):
            files.commit_partial()
    committed = chat(files)

    assert (files.path / "partial.json").exists()
    assert files.commit_partial().drop_reason == "row-has-it-all"
    assert snapshot(files.path) == {"chat.jsonl": committed}


@pytest.mark.spec("P9")
def test_a_commit_that_can_not_read_the_history_keeps_the_partial(
    files: WorkspaceFiles, tmp_path: Path
) -> None:
    files.write_partial(partial("x"))
    (tmp_path / "elsewhere").write_bytes(b"")
    (files.path / "chat.jsonl").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(HistoryError):
        files.commit_partial()

    assert files.read_partial().row is not None
    assert (tmp_path / "elsewhere").read_bytes() == b""


# ---- any history, any partial

message_parts: st.SearchStrategy[tuple[MessagePart, ...]] = st.lists(
    st.one_of(
        st.builds(TextPart, text=st.text("ab ", max_size=4)),
        st.builds(ReasoningPart, text=st.text("cd ", max_size=4)),
        st.builds(
            ToolPart,
            tool_call_id=st.sampled_from(["c1", "c2"]),
            tool_name=st.just("look"),
            state=st.sampled_from(["input-available", "output-available"]),
            output=st.integers(0, 2),
        ),
        st.just(FILE),
    ),
    max_size=5,
).map(tuple)


@st.composite
def histories(draw: st.DrawFn) -> list[Row]:
    rows: list[Row] = []
    for sequence in draw(st.lists(st.integers(0, 6), unique=True, max_size=5)):
        if draw(st.booleans()):
            rows.append(user(f"u{sequence}", historySequence=sequence))
        else:
            rows.append(
                with_parts(
                    f"a{sequence}",
                    *draw(message_parts),
                    historySequence=sequence,
                    partial=draw(st.sampled_from([True, None])),
                    compactionBoundary=draw(st.sampled_from([True, None])),
                )
            )
    return rows


@pytest.mark.spec("P4", "P5")
@settings(deadline=None)
@given(histories(), st.integers(0, 6), message_parts)
def test_any_commit_can_be_repeated_and_never_makes_two_rows_of_one_sequence(
    rows: list[Row], sequence: int, parts: tuple[MessagePart, ...]
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        files = WorkspaceFiles(Path(directory) / "ws", fsync="off")
        put_chat(files, *(row.to_mapping() for row in rows))
        row = with_parts(f"a{sequence}", *parts, historySequence=sequence)
        files.write_partial(row)

        if any(known.id == f"u{sequence}" for known in rows):
            with pytest.raises(HistoryError, match=f"sequence {sequence}"):
                files.commit_partial()
            assert files.read_partial().row is not None
            return
        files.commit_partial()
        once = snapshot(files.path)
        files.write_partial(row)
        files.commit_partial()

        assert snapshot(files.path) == once
        assert set(once) == {"chat.jsonl"}
        assert max(Counter(sequences(files)).values(), default=1) == 1
        assert {known.id for known in rows} <= {row.id for row in files.read().rows}
