"""A conversation that is put back to what it was, in files and in databases."""

from __future__ import annotations

from typing import cast

import pytest

from streamengine.history import HistoryStore
from streamengine.model import HistoryError, Usage
from streamengine.model.note import LastEnd

from .backends import WORKSPACE, Backend
from .kit import assistant, text_of, user

USAGE = Usage(input_tokens=3, output_tokens=4)


async def ids(history: HistoryStore) -> list[str]:
    return [row.id for row in await history.read(WORKSPACE)]


async def begin(history: HistoryStore, message_id: str) -> None:
    sequence = await history.reserve(WORKSPACE, message_id)
    row = assistant(message_id, "so far", historySequence=sequence)
    await history.write_partial(WORKSPACE, row)


async def say(history: HistoryStore, message_id: str, usage: Usage | None = None) -> None:
    sequence = await history.reserve(WORKSPACE, message_id)
    row = assistant(message_id, "said", historySequence=sequence)
    row = row.model_copy(update={"metadata": row.metadata.model_copy(update={"usage": usage})})
    await history.finalize(WORKSPACE, row)


async def test_the_rows_behind_a_sequence_are_gone_for_good(
    backend: Backend, history: HistoryStore
) -> None:
    await history.append_user(WORKSPACE, user("u1"))
    await say(history, "a1")
    await history.append_user(WORKSPACE, user("u2", clientMessageId="key"))
    await say(history, "a2")

    assert [await history.truncate(WORKSPACE, 1) for _ in range(2)] == [2, 0]

    assert await ids(history) == ["u1", "a1"]
    assert await ids(await backend.history()) == ["u1", "a1"]
    again = await history.append_user(WORKSPACE, user("u3", clientMessageId="key"))
    assert (again.is_new, again.row.metadata.history_sequence) == (True, 2)


async def test_none_takes_out_all_rows(history: HistoryStore) -> None:
    await history.append_user(WORKSPACE, user("u1"))
    await say(history, "a1")

    assert await history.truncate(WORKSPACE, None) == 2

    assert await ids(history) == []


async def test_of_an_unknown_workspace_it_takes_nothing(history: HistoryStore) -> None:
    assert await history.truncate("nobody", None) == 0


async def test_a_partial_behind_it_goes_too(history: HistoryStore) -> None:
    await history.append_user(WORKSPACE, user("u1"))
    await begin(history, "a1")

    assert await history.truncate(WORKSPACE, 0) == 0

    assert await history.read_partial(WORKSPACE) is None


async def test_a_partial_before_it_stays(history: HistoryStore) -> None:
    await begin(history, "a1")
    await history.append_user(WORKSPACE, user("u1"))

    assert await history.truncate(WORKSPACE, 0) == 1

    partial = await history.read_partial(WORKSPACE)
    assert partial is not None
    assert text_of(partial) == "so far"


@pytest.mark.spec("P10")
async def test_a_partial_without_a_sequence_stays(history: HistoryStore) -> None:
    await history.write_partial(WORKSPACE, assistant("a1", "so far"))

    await history.truncate(WORKSPACE, None)

    assert await history.read_partial(WORKSPACE) is not None


@pytest.mark.spec("P16")
async def test_what_the_rows_cost_stays_counted_once(history: HistoryStore) -> None:
    await history.append_user(WORKSPACE, user("u1"))
    await say(history, "a1", USAGE)

    await history.truncate(WORKSPACE, None)

    entries = await history.read_usage(WORKSPACE)
    assert [(entry.message_id, entry.usage, entry.source) for entry in entries] == [
        ("a1", USAGE, "abort")
    ]


@pytest.mark.spec("I10")
@pytest.mark.parametrize(("after", "is_kept"), [(0, False), (None, False), (1, True)])
async def test_how_an_answer_ended_is_forgotten_with_its_question(
    history: HistoryStore, after: int | None, *, is_kept: bool
) -> None:
    """Its sequence is given anew: the note would speak of the answer to another message."""
    await history.append_user(WORKSPACE, user("u1"))
    await history.append_user(WORKSPACE, user("u2"))
    end = LastEnd(message_id="a1", after_sequence=1, abort_reason="user")
    await history.update_note(
        WORKSPACE, lambda note: note.with_fields(last_end=end, auto_retry=False)
    )

    await history.truncate(WORKSPACE, after)

    note = await history.read_note(WORKSPACE)
    assert note.last_end == (end if is_kept else None)
    assert not note.auto_retry


async def test_archived_rows_stay_sealed(history: HistoryStore) -> None:
    await history.append_user(WORKSPACE, user("u1"))
    await history.append_user(WORKSPACE, user("b", compactionBoundary=True))
    await history.archive(WORKSPACE)

    assert await history.truncate(WORKSPACE, None) == 1

    assert [row.id for row in await history.read_archive(WORKSPACE)] == ["u1"]
    assert await history.reserve(WORKSPACE, "a1") == 1


async def test_without_its_boundary_the_rows_before_it_count_again(history: HistoryStore) -> None:
    await history.append_user(WORKSPACE, user("u1"))
    await history.append_user(WORKSPACE, user("b", compactionBoundary=True))

    await history.truncate(WORKSPACE, 0)

    counting = await history.read(WORKSPACE, from_boundary=True)
    assert [row.id for row in counting] == ["u1"]


async def test_a_store_that_cannot_says_so() -> None:
    inherited = HistoryStore.truncate(cast("HistoryStore", object()), WORKSPACE, None)

    with pytest.raises(HistoryError, match="can't take rows out"):
        await inherited
