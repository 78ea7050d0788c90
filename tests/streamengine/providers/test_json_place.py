"""The line of a value in a JSON text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamengine.providers._json_place import place_of

SENTINEL = "the value looked for"

Path = tuple[str | int, ...]

keys = st.text(max_size=4)
others: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=6,
)


@st.composite
def documents(draw: st.DrawFn) -> tuple[Any, Path]:
    """A document that holds the sentinel once, and the path to it."""
    value: Any = SENTINEL
    path: Path = ()
    for _ in range(draw(st.integers(1, 4))):
        if draw(st.booleans()):
            before = draw(st.lists(others, max_size=3))
            path = (len(before), *path)
            value = [*before, value, *draw(st.lists(others, max_size=2))]
        else:
            key = draw(keys)
            fields = draw(st.dictionaries(keys, others, max_size=3))
            fields[key] = value
            path = (key, *path)
            value = fields
    return value, path


@given(documents(), st.sampled_from([None, 0, 2]))
def test_the_line_is_that_of_the_value(document: tuple[Any, Path], indent: int | None) -> None:
    value, path = document
    text = "\n" + json.dumps(value, indent=indent)
    line = text[: text.index(f'"{SENTINEL}"')].count("\n") + 1

    place = place_of(text, path)

    assert (place.line, place.path) == (line, path)


@pytest.mark.parametrize(
    ("path", "line", "found"),
    [
        (("list", 1, "a tag", "b"), 4, "list[1].b"),
        (("list", 1, "missing"), 3, "list[1]"),
        (("list", 7), 2, "list"),
        (("nowhere",), 1, ""),
        ((), 1, ""),
    ],
)
def test_a_step_that_is_not_there_is_passed_over(path: Path, line: int, found: str) -> None:
    text = '{\n "list": [1,\n {"a": 1,\n "b": 2}\n]}'

    place = place_of(text, path)

    assert (place.line, str(place)) == (line, found)


def test_of_a_key_that_stands_twice_the_last_counts() -> None:
    assert place_of('{"a": 1,\n"a": 2}', ("a",)).line == 2
