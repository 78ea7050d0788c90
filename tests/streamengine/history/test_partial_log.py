"""What is added to a partial: the log beside it, read back exactly, whatever a crash left."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamengine.history import partial_log
from streamengine.history.files import WorkspaceFiles
from streamengine.history.partial import content_of
from streamengine.history.recovery import load
from streamengine.model import (
    HistoryError,
    MessagePart,
    ReasoningPart,
    RowMetadata,
    TextPart,
    ToolPart,
    Usage,
)
from streamengine.model.fold import fold_parts

from .kit import Steps, assistant, restored, snapshot, text_of, tool, with_parts

LOG = "partial-log.jsonl"


def text(value: str, timestamp_ms: int | None = None) -> TextPart:
    return TextPart(text=value, timestamp_ms=timestamp_ms)


def begun(files: WorkspaceFiles, *texts: str) -> None:
    files.write_partial(assistant("a1", *texts, historySequence=files.reserve("a1")))


def log_of(files: WorkspaceFiles) -> bytes:
    return (files.path / LOG).read_bytes()


def kept(files: WorkspaceFiles) -> str:
    """What another process would read."""
    row = WorkspaceFiles(files.path, workspace_id=files.workspace_id).read_partial().row
    assert row is not None
    return text_of(row)


# ---- what is read is what was said

_texts = st.text(max_size=4)
_times = st.integers(0, 9)
_parts: st.SearchStrategy[MessagePart] = st.one_of(
    st.builds(TextPart, text=_texts, timestamp_ms=_times),
    st.builds(
        ReasoningPart,
        text=_texts,
        timestamp_ms=_times,
        signature=st.sampled_from([None, None, "s"]),
        provider_metadata=st.sampled_from([None, None, {"p": 1}, {"q": [None]}]),
    ),
    st.builds(
        ToolPart,
        tool_call_id=st.sampled_from(["c1", "c2"]),
        tool_name=st.just("look"),
        state=st.sampled_from(["input-available", "output-available"]),
        input=st.sampled_from([None, {"a": 1}]),
        output=st.sampled_from([None, "é\n"]),
        timestamp_ms=_times,
    ),
)


@pytest.mark.spec("P18")
@settings(deadline=None, max_examples=60)
@given(st.lists(st.lists(_parts, max_size=4), min_size=1, max_size=5))
def test_what_is_read_is_what_was_said_however_it_was_cut(writes: list[list[MessagePart]]) -> None:
    base = with_parts("a1", *fold_parts(writes[0]), historySequence=1)
    tail = partial_log.tail_of(base.parts)
    data = partial_log.header("a1", "d")
    for parts in writes[1:]:
        lines, tail = partial_log.encode(parts, None, tail)
        data += lines

    log = partial_log.decode(data, "d", base.parts)

    said = fold_parts(part for parts in writes for part in parts)
    assert partial_log.joined(base, log).parts == said
    assert (log.size_bytes, log.tail, log.unreadable_lines) == (len(data), tail, 0)


def test_text_that_goes_on_costs_three_bytes_more_than_itself(files: WorkspaceFiles) -> None:
    begun(files, "one")
    files.append_partial("a1", (text(" two", 5),))
    before = len(log_of(files))

    files.append_partial("a1", (text(" th", 6), text("ree", 7)))

    assert log_of(files)[before:] == b'" three"\n'
    assert kept(files) == "one two three"


def test_reasoning_after_a_signature_begins_a_block_with_a_time_of_its_own(
    files: WorkspaceFiles,
) -> None:
    signed = ReasoningPart(text="a", timestamp_ms=1, signature="s")
    files.write_partial(with_parts("a1", signed, historySequence=0))
    files.append_partial("a1", (ReasoningPart(text="", provider_metadata={"p": 1}),))

    files.append_partial("a1", (ReasoningPart(text="b", timestamp_ms=2),))

    row = files.read_partial().row
    assert row is not None
    assert row.parts == (
        ReasoningPart(text="a", timestamp_ms=1, signature="s", provider_metadata={"p": 1}),
        ReasoningPart(text="b", timestamp_ms=2),
    )


def test_half_an_emoji_is_kept(files: WorkspaceFiles) -> None:
    begun(files, "a")
    files.append_partial("a1", (text("\ud83d"),))
    files.append_partial("a1", (text("\ude00"),))

    assert kept(files).encode("utf-16", "surrogatepass").decode("utf-16") == "a😀"


def test_metadata_that_is_added_replaces_only_what_it_says(files: WorkspaceFiles) -> None:
    files.write_partial(assistant("a1", "x", historySequence=0, model="m", durationMs=1))

    files.append_partial(
        "a1",
        (),
        metadata=RowMetadata(duration_ms=2, error="cut", usage=Usage(output_tokens=3)),
    )

    row = WorkspaceFiles(files.path).read_partial().row
    assert row is not None
    metadata = row.metadata
    assert (metadata.model, metadata.duration_ms, metadata.error) == ("m", 2, "cut")
    assert metadata.usage == Usage(output_tokens=3)
    assert metadata.partial


# ---- which log counts


def test_nothing_can_be_added_to_a_partial_that_is_not_there(files: WorkspaceFiles) -> None:
    for message_id in ("a1", "a2"):
        with pytest.raises(HistoryError) as caught:
            files.append_partial("a2", (text("x"),))
        assert caught.value.kind == "not_found"
        assert "a2" in str(caught.value)
        assert caught.value.way_out
        if message_id == "a1":
            begun(files, "one")  # of another message

    assert kept(files) == "one"


@pytest.mark.spec("P12")
def test_the_log_of_an_old_partial_never_counts_beside_a_new_one(files: WorkspaceFiles) -> None:
    begun(files, "old")
    files.append_partial("a1", (text(" log"),))
    old_log = log_of(files)

    begun(files, "new")

    assert kept(files) == "new"
    assert log_of(files) == old_log  # it is cut off by the first addition
    files.append_partial("a1", (text(" one"),))
    assert kept(files) == "new one"
    assert b"log" not in log_of(files)


@pytest.mark.spec("P12")
def test_the_same_partial_written_twice_has_nothing_of_the_log_between(
    files: WorkspaceFiles, steps: Steps
) -> None:
    begun(files, "same")
    files.append_partial("a1", (text(" and more"),))
    seen: list[str] = []
    steps.at_each = lambda: seen.append(kept(files))

    begun(files, "same")

    assert kept(files) == "same"
    assert set(seen) <= {"same", "same and more"}


@pytest.mark.spec("P3", "P12")
def test_a_log_without_its_partial_says_nothing_and_is_swept(
    files: WorkspaceFiles, tmp_path: Path
) -> None:
    begun(files, "one")
    files.append_partial("a1", (text(" two"),))
    left = {LOG: log_of(files)}

    after = restored(left, tmp_path / "after")
    assert after.read_partial().row is None
    loaded = load(after)

    assert loaded.rows == ()
    assert loaded.report.swept_temps == (LOG,)
    assert snapshot(after.path) == {}


@pytest.mark.spec("P12")
def test_a_line_that_was_not_written_whole_counts_for_nothing_at_any_byte(
    files: WorkspaceFiles, tmp_path: Path
) -> None:
    begun(files, "one")
    files.append_partial("a1", (text(" two"),))
    whole = log_of(files)
    files.append_partial("a1", (text(" three"), tool("c1", output={"x": 1})))
    state = dict(snapshot(files.path))
    last = state[LOG]
    three = whole + b'" three"\n'

    for size in range(len(whole), len(last)):
        after = restored({**state, LOG: last[:size]}, tmp_path / str(size))
        assert kept(after) == ("one two three" if size >= len(three) else "one two")
        assert after.read_partial().warning is None
        # And it goes on from there, in a process that knows nothing of the torn line.
        after.append_partial("a1", (text("!"),))
        assert kept(after) == ("one two three!" if size >= len(three) else "one two!")


@pytest.mark.spec("P18")
def test_a_new_process_goes_on_with_the_log(files: WorkspaceFiles) -> None:
    begun(files, "one")
    files.append_partial("a1", (text(" two"),))

    WorkspaceFiles(files.path).append_partial("a1", (text(" three"),))

    assert kept(files) == "one two three"
    assert log_of(files).endswith(b'" three"\n')


def test_a_log_that_somebody_shortened_is_told_and_the_partial_can_be_written_anew(
    files: WorkspaceFiles,
) -> None:
    begun(files, "one")
    files.append_partial("a1", (text(" two"),))
    (files.path / LOG).write_bytes(b"")

    with pytest.raises(HistoryError) as caught:
        files.append_partial("a1", (text(" three"),))

    assert caught.value.kind == "not_found"
    begun(files, "one two three")
    assert kept(files) == "one two three"


def test_a_line_that_cannot_be_read_is_left_out_and_kept(files: WorkspaceFiles) -> None:
    begun(files, "one")
    files.append_partial("a1", (text(" two"),))
    damaged = log_of(files) + b'" thr\n" four"\n'
    (files.path / LOG).write_bytes(damaged)

    loaded = load(WorkspaceFiles(files.path))

    assert [text_of(row) for row in loaded.rows] == ["one two four"]
    assert any(LOG in warning for warning in loaded.report.warnings)
    assert snapshot(files.path)["partial-log.corrupt-1.jsonl"] == damaged


def test_a_part_of_a_newer_version_is_kept(files: WorkspaceFiles) -> None:
    begun(files, "one")
    files.append_partial("a1", (text(" two"),))
    (files.path / LOG).write_bytes(log_of(files) + b'{"type":"hologram","url":null}\n')

    row = load(WorkspaceFiles(files.path)).rows[0]

    assert row.parts[-1].to_mapping() == {"type": "hologram", "url": None}


@pytest.mark.spec("P10")
def test_a_partial_that_is_in_the_way_is_moved_aside_with_its_log(files: WorkspaceFiles) -> None:
    begun(files, "one")
    files.append_partial("a1", (text(" two"),))
    old = snapshot(files.path)

    files.write_partial(assistant("a2", "other", historySequence=files.reserve("a2")))

    now = snapshot(files.path)
    assert now["partial.corrupt-1.json"] == old["partial.json"]
    assert now["partial-log.corrupt-1.jsonl"] == old[LOG]
    assert kept(files) == "other"


# ---- what is durable


def test_a_durable_addition_makes_the_base_durable_too(tmp_path: Path, steps: Steps) -> None:
    files = WorkspaceFiles(tmp_path / "ws", fsync="terminal", on_step=steps)
    begun(files, "one")
    files.append_partial("a1", (text(" two"),))
    assert not {"temp-synced", "append-synced", "file-synced"} & set(steps.seen)
    steps.seen.clear()

    files.append_partial("a1", (tool("c1", output=1),), durable=True)
    files.append_partial("a1", (tool("c2", output=2),), durable=True)

    assert steps.seen.count("file-synced") == 1
    assert steps.seen.count("append-synced") == 2
    assert steps.seen.index("file-synced") < steps.seen.index("append-synced")


def test_a_durable_addition_of_nothing_makes_durable_what_is_there(
    tmp_path: Path, steps: Steps
) -> None:
    files = WorkspaceFiles(tmp_path / "ws", fsync="terminal", on_step=steps)
    begun(files, "one")
    files.append_partial("a1", (text(" two"),))
    steps.seen.clear()

    files.append_partial("a1", (), durable=True)

    assert steps.seen.count("file-synced") == 2
    assert content_of((text("one two"),)) == content_of((text(kept(files)),))
