"""Where a value stands in a JSON text: the line for a message about it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_SPACE: Final = re.compile(r"[ \t\n\r]*")
_DECODER: Final = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class Place:
    """A line (counted from 1) and the steps that lead there from the top of the text."""

    line: int
    path: tuple[str | int, ...]

    def __str__(self) -> str:
        text = ""
        for step in self.path:
            text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
        return text


def place_of(text: str, path: Sequence[str | int]) -> Place:
    """Follow ``path`` into ``text``, which must be valid JSON.

    A step that isn't there is passed over: pydantic puts the tag of a union into the path of an
    error, and a field that is missing has no place but that of the object that lacks it.
    """
    at = _after_space(text, 0)
    line_at = at
    found: list[str | int] = []
    for step in path:
        member = _member(text, at, step)
        if member is not None:
            line_at, at = member
            found.append(step)
    return Place(text.count("\n", 0, line_at) + 1, tuple(found))


def _after_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _after_value(text: str, at: int) -> int:
    return _after_space(text, _DECODER.raw_decode(text, at)[1])


def _member(text: str, at: int, step: str | int) -> tuple[int, int] | None:
    """Where the member begins (an object's with its key) and where its value does."""
    if text[at] == "[" and isinstance(step, int):
        return _element(text, at, step)
    if text[at] == "{" and isinstance(step, str):
        return _field(text, at, step)
    return None


def _element(text: str, at: int, index: int) -> tuple[int, int] | None:
    at = _after_space(text, at + 1)
    for _ in range(index):
        if text[at] == "]":
            return None
        at = _after_value(text, at)
        if text[at] == ",":
            at = _after_space(text, at + 1)
    return None if text[at] == "]" else (at, at)


def _field(text: str, at: int, name: str) -> tuple[int, int] | None:
    found = None
    at = _after_space(text, at + 1)
    while text[at] != "}":
        key_at = at
        key, end = _DECODER.raw_decode(text, at)
        at = _after_space(text, _after_space(text, end) + 1)  # behind the colon
        if key == name:
            found = (key_at, at)  # of a key that stands twice the last one counts, as in json
        at = _after_value(text, at)
        if text[at] == ",":
            at = _after_space(text, at + 1)
    return found
