"""What is particular to a history in memory: it keeps the newest rows, and costs nothing more.

What every history promises is asked of it where the others are asked (test_store_protocol.py).
"""

from __future__ import annotations

import pytest

from streamengine.history import MemoryHistory
from streamengine.model import MessagePart, TextPart
from streamengine.model.fold import fold_parts

from .kit import assistant, text_of, user

W = "subturn-1"


@pytest.mark.spec("U13")
async def test_it_keeps_the_newest_rows() -> None:
    history = MemoryHistory(rows=3)

    for number in range(5):
        await history.append_user(W, user(f"u{number}"))

    assert [row.id for row in await history.read(W)] == ["u2", "u3", "u4"]
    assert [row.id for row in await history.tail(W, 2)] == ["u3", "u4"]
    assert [row.id for row in (await history.load(W)).rows] == ["u2", "u3", "u4"]


async def test_the_sequences_of_dropped_rows_stay_taken() -> None:
    history = MemoryHistory(rows=1)
    await history.append_user(W, user("u0"))
    sequence = await history.reserve(W, "a1")
    await history.finalize(W, assistant("a1", "x", historySequence=sequence))
    await history.append_user(W, user("u2"))

    assert await history.reserve(W, "a3") == 3


async def test_an_addition_to_the_partial_reads_nothing_of_what_stands_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folded: list[int] = []

    def counted(parts: tuple[MessagePart, ...]) -> tuple[MessagePart, ...]:
        folded.append(len(parts))
        return fold_parts(parts)

    monkeypatch.setattr("streamengine.history.memory.fold_parts", counted)
    history = MemoryHistory()
    sequence = await history.reserve(W, "a1")
    await history.write_partial(W, assistant("a1", "0", historySequence=sequence))

    for number in range(1, 100):
        await history.append_partial(W, "a1", (TextPart(text=f" {number}"),))

    assert folded == []
    row = await history.read_partial(W)
    assert row is not None
    assert text_of(row) == " ".join(map(str, range(100)))
    assert folded == [100]


@pytest.mark.parametrize("rows", [0, -1])
def test_a_bound_that_keeps_nothing_is_refused(rows: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        MemoryHistory(rows=rows)
