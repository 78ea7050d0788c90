"""Values that wait, taken as one: in order, none lost, and never without a bound."""

from __future__ import annotations

from collections.abc import Sequence

from streamengine.events import BufferAll
from streamengine.events.buffer import TOGETHER, Waiting


def joined(values: Sequence[list[int]]) -> list[int]:
    return [number for value in values for number in value]


def waiting(count: int) -> Waiting[list[int]]:
    made = Waiting(BufferAll[list[int]](limit=10_000, size=len, together=joined))
    for number in range(count):
        assert made.put([number])
    return made


def test_what_waits_is_one_value_in_order() -> None:
    made = waiting(5)
    assert made.take() == [0, 1, 2, 3, 4]
    assert not made


def test_one_that_waits_alone_is_itself() -> None:
    assert waiting(1).take() == [0]


def test_no_value_is_made_of_more_than_the_bound() -> None:
    made = waiting(TOGETHER + 3)
    assert made.take() == list(range(TOGETHER))
    assert made.take() == [TOGETHER, TOGETHER + 1, TOGETHER + 2]


def test_what_was_taken_gives_its_room_back() -> None:
    made = Waiting(BufferAll[list[int]](limit=2, size=len, together=joined))
    assert made.put([1])
    assert made.put([2])
    assert not made.put([3])
    made.take()
    assert made.put([3])
    assert made.put([4])
