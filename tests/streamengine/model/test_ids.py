from __future__ import annotations

import pytest
from pydantic import ValidationError

from streamengine.model import UserRow, check_id, is_valid_id


@pytest.mark.parametrize("value", ["a", "0", "ws-1", "a_b", "a" * 64])
def test_an_id_is_1_to_64_of_a_narrow_alphabet(value: str) -> None:
    assert check_id(value) == value


@pytest.mark.parametrize(
    "value",
    ["", "a" * 65, "A", "-a", "_a", ".", "..", "a/b", "a\\b", "a.b", "a b", "a\n", "a\0", "é", "٣"],
)
def test_what_could_leave_the_directory_or_meet_another_id_is_no_id(value: str) -> None:
    assert not is_valid_id(value)
    with pytest.raises(ValueError, match="not a valid id"):
        check_id(value)


def test_the_complaint_about_an_endless_id_is_short() -> None:
    with pytest.raises(ValueError) as caught:
        check_id("x" * 10_000)

    assert len(str(caught.value)) < 250


def test_a_row_with_an_invalid_message_id_is_refused() -> None:
    with pytest.raises(ValidationError):
        UserRow(id="../etc")
