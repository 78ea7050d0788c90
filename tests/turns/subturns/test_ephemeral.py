"""The conversation of a subturn: the rules of a history, in memory, for the newest rows."""

from __future__ import annotations

import pytest

from streamengine.model import HistoryError, Usage
from streamengine.model.note import WorkspaceNote
from tests.streamengine.history.kit import assistant, text_of, tool, user, with_parts
from turns.subturns.ephemeral import EphemeralHistory

W = "subturn-1"


async def ids(history: EphemeralHistory) -> list[str]:
    return [row.id for row in await history.read(W)]


@pytest.mark.spec("U13")
async def test_it_keeps_the_newest_rows() -> None:
    history = EphemeralHistory(rows=3)

    for number in range(5):
        await history.append_user(W, user(f"u{number}"))

    assert await ids(history) == ["u2", "u3", "u4"]
    assert [row.id for row in await history.tail(W, 2)] == ["u3", "u4"]
    assert [row.id for row in (await history.load(W)).rows] == ["u2", "u3", "u4"]


async def test_an_answer_stands_under_its_reserved_sequence() -> None:
    history = EphemeralHistory(rows=9)
    sequence = await history.reserve(W, "a1")
    assert await history.reserve(W, "a1") == sequence
    await history.append_user(W, user("u1"))

    stored = await history.finalize(W, assistant("a1", "x", historySequence=sequence, partial=True))

    assert not stored.is_partial
    assert await ids(history) == ["a1", "u1"]


async def test_a_message_that_comes_twice_is_stored_once() -> None:
    history = EphemeralHistory(rows=9)
    first = await history.append_user(W, user("u1", clientMessageId="key"))

    again = await history.append_user(W, user("u2", clientMessageId="key"))

    assert (first.is_new, again.is_new, again.row.id) == (True, False, "u1")
    with pytest.raises(HistoryError):
        await history.append_user(W, user("u3", text=" "))


async def test_a_partial_grows_and_becomes_a_row() -> None:
    history = EphemeralHistory(rows=9)
    sequence = await history.reserve(W, "a1")
    with pytest.raises(HistoryError):
        await history.append_partial(W, "a1", ())
    await history.write_partial(W, assistant("a1", "so ", historySequence=sequence))
    await history.append_partial(W, "a1", assistant("a1", "far").parts)

    assert (await history.commit_partial(W, "other")).outcome == "other-message"
    result = await history.commit_partial(W)

    assert result.row is not None
    assert text_of(result.row) == "so far"
    assert await history.read_partial(W) is None
    assert (await history.commit_partial(W)).outcome == "no-partial"


async def test_a_partial_that_says_nothing_becomes_none() -> None:
    history = EphemeralHistory(rows=9)
    sequence = await history.reserve(W, "a1")
    row = with_parts("a1", tool(state="input-available"), historySequence=sequence)
    await history.write_partial(W, row)

    assert (await history.commit_partial(W)).outcome == "dropped"
    assert await ids(history) == []


async def test_a_partial_is_dropped_by_its_message() -> None:
    history = EphemeralHistory(rows=9)
    await history.write_partial(W, assistant("a1", "x", historySequence=0))

    assert not await history.delete_partial(W, "a2")
    assert await history.delete_partial(W, "a1")


async def test_rows_can_be_taken_out_and_replaced() -> None:
    history = EphemeralHistory(rows=9)
    for name in ("u1", "u2"):
        await history.append_user(W, user(name))
    await history.write_partial(W, assistant("a1", "x", historySequence=7))

    assert await history.truncate(W, 0) == 1
    await history.update(W, user("u1", text="changed", historySequence=0))

    assert [text_of(row) for row in await history.read(W)] == ["changed"]
    assert await history.read_partial(W) is None
    with pytest.raises(HistoryError):
        await history.update(W, user("u9", historySequence=9))


async def test_usage_and_note_are_kept() -> None:
    history = EphemeralHistory(rows=9)
    usage = Usage(total_tokens=3)

    kept = [
        await history.record_usage(W, "a1", usage, model=None, source="abort") for _ in range(2)
    ]
    await history.update_note(W, lambda note: note)

    assert kept == [True, False]
    assert [entry.usage for entry in await history.read_usage(W)] == [usage]
    assert await history.read_note(W) == WorkspaceNote()
    assert (await history.archive(W), await history.read_archive(W)) == (0, [])
    assert await history.workspaces() == [W]
    await history.release(W, "a1")
