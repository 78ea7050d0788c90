"""What is written and read, in bytes: no answer costs more than four times itself, and nothing
costs what the whole history is long.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streamengine.history.files import WorkspaceFiles
from streamengine.model import RowMetadata, TextPart, Usage

from .kit import assistant, put_chat, text_of, user


class Counted:
    """Counts the bytes that go through a call of `os`."""

    def __init__(self, patch: pytest.MonkeyPatch, name: str, size: Callable[[Any], int]) -> None:
        self.size_bytes = 0
        real = getattr(os, name)

        def call(*args: Any) -> Any:
            result = real(*args)
            self.size_bytes += size(result)
            return result

        patch.setattr(os, name, call)

    def of(self, work: Callable[[], object]) -> int:
        before = self.size_bytes
        work()
        return self.size_bytes - before


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(monkeypatch, "write", int)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(monkeypatch, "pread", len)


def answer(files: WorkspaceFiles, size_bytes: int, interval_bytes: int, end: str) -> str:
    """A whole answer: what each interval of the throttle brings is one addition."""
    said = "".join(chr(97 + i % 26) for i in range(size_bytes))
    sequence = files.reserve("a1")
    fields: dict[str, Any] = {"historySequence": sequence, "timestamp": 1_700_000_000_000}
    files.write_partial(assistant("a1", said[:interval_bytes], model="model", **fields))
    for at in range(interval_bytes, size_bytes, interval_bytes):
        piece = TextPart(text=said[at : at + interval_bytes], timestamp_ms=1_700_000_000_001 + at)
        files.append_partial("a1", (piece,))
    if end == "complete":
        files.finalize(assistant("a1", said, model="model", finishReason="stop", **fields))
        files.delete_partial_if_message_id("a1")
    else:
        usage = Usage(input_tokens=10, output_tokens=size_bytes)
        ending = RowMetadata(abort_reason="user", duration_ms=1, usage=usage)
        files.append_partial("a1", (), metadata=ending, durable=True)
        files.commit_partial("a1")
    return said


@pytest.mark.parametrize("end", ["complete", "abort"])
@pytest.mark.parametrize(
    ("size_bytes", "interval_bytes"),
    [
        (1_000, 4),
        (1_000, 1_000),
        (10_000, 2),
        (10_000, 100),
        (100_000, 100),
        (1_000_000, 5_000),
        (10_000_000, 100_000),
    ],
)
def test_an_answer_costs_at_most_four_times_its_bytes(
    files: WorkspaceFiles, written: Counted, size_bytes: int, interval_bytes: int, end: str
) -> None:
    """From 1 kB on: below that the metadata, about a kilobyte, is most of it. Three bytes an
    interval go to the line that it is on.
    """
    said = answer(files, size_bytes, interval_bytes, end)

    assert [text_of(row) for row in files.read().rows] == [said]
    assert written.size_bytes <= 4 * size_bytes


@pytest.mark.spec("P2")
def test_an_interval_costs_the_same_however_long_the_answer_is(
    files: WorkspaceFiles, written: Counted, read: Counted
) -> None:
    files.write_partial(assistant("a1", "x", historySequence=files.reserve("a1")))
    for size_bytes in (1_000, 100_000, 5_000_000):
        files.append_partial("a1", (TextPart(text="y" * size_bytes),))

        assert written.of(lambda: files.append_partial("a1", (TextPart(text="z" * 100),))) == 103
        assert read.of(lambda: files.append_partial("a1", (TextPart(text="z" * 100),))) == 0


# ---- a long history

ROWS = 100_000


@pytest.fixture(scope="module")
def long_chat() -> bytes:
    """100 000 rows of about 200 bytes, as they stand in a file."""
    row = user("u7777777", "x" * 100, historySequence=7_777_777).to_mapping()
    before, between, after = json.dumps(row, separators=(",", ":")).split("7777777")
    return "".join(f"{before}{n}{between}{n}{after}\n" for n in range(ROWS)).encode()


def put_long_chat(files: WorkspaceFiles, data: bytes) -> None:
    files.path.mkdir()
    (files.path / "chat.jsonl").write_bytes(data)


def test_the_tail_of_a_long_history_is_read_from_its_end(
    files: WorkspaceFiles, long_chat: bytes, read: Counted
) -> None:
    put_long_chat(files, long_chat)

    size = read.of(lambda: files.tail(20))

    assert [row.id for row in files.tail(3)] == ["u99997", "u99998", "u99999"]
    assert size <= 1 << 17 < len(long_chat) // 50


@pytest.mark.slow
def test_a_row_is_added_to_a_long_history_without_reading_it_again(
    files: WorkspaceFiles, long_chat: bytes, read: Counted, written: Counted
) -> None:
    put_long_chat(files, long_chat)
    files.append_user(user("first"))  # looks once at what is there

    assert read.of(lambda: files.append_user(user("second", clientMessageId="k"))) <= 16
    assert written.of(lambda: files.append_user(user("third"))) < 300
    # A repeated one is found, and only its line is read.
    assert read.of(lambda: files.append_user(user("again", clientMessageId="k"))) < 300
    assert not files.append_user(user("again", clientMessageId="k")).is_new
    assert files.tail(1)[0].metadata.history_sequence == ROWS + 2


@pytest.mark.slow
def test_what_counts_of_a_long_history_is_read_without_what_was_sealed(
    files: WorkspaceFiles, long_chat: bytes, read: Counted
) -> None:
    put_long_chat(files, long_chat)
    files.append_user(user("b", compactionBoundary=True))
    files.append_user(user("c"))

    size = read.of(lambda: files.read(from_boundary=True))

    assert [row.id for row in files.read(from_boundary=True).rows] == ["b", "c"]
    assert size < 1_000


def test_without_a_boundary_all_rows_count(files: WorkspaceFiles) -> None:
    for n in range(3):
        files.append_user(user(f"u{n}"))

    assert files.read(from_boundary=True) == files.read()


@pytest.mark.spec("P6")
def test_a_row_that_was_overtaken_by_the_boundary_counts_if_its_sequence_does(
    files: WorkspaceFiles,
) -> None:
    """Its line may stand before that of the boundary, or a sealed one's behind it."""
    put_chat(
        files,
        user("u3", historySequence=3).to_mapping(),
        user("u0", historySequence=0).to_mapping(),
        user("u2", historySequence=2, compactionBoundary=True).to_mapping(),
        user("u1", historySequence=1).to_mapping(),
        user("u4", historySequence=4).to_mapping(),
    )

    assert [row.id for row in files.read(from_boundary=True).rows] == ["u2", "u3", "u4"]


@pytest.mark.parametrize("limit", [0, 1, 3, 5, 100])
def test_the_tail_is_the_end_of_what_is_read(files: WorkspaceFiles, limit: int) -> None:
    put_chat(
        files,
        user("u0", "x" * 100_000, historySequence=0).to_mapping(),
        b"no row",
        user("u1", historySequence=1).to_mapping(),
        user("u3", "x" * 100_000, historySequence=3).to_mapping(),
        user("u2", historySequence=2).to_mapping(),  # overtaken
        b'{"torn',
    )

    rows = files.read().rows
    assert files.tail(limit) == (rows[-limit:] if limit else [])


def test_the_tail_of_nothing_is_empty(tmp_path: Path) -> None:
    files = WorkspaceFiles(tmp_path / "ws")
    assert files.tail(5) == []
    put_chat(files)
    assert files.tail(5) == []
