"""Reading JSON that others wrote: what isn't there, or is of another type, is None or empty."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final, cast

Fields = Mapping[str, object]

_NO_FIELDS: Final[Fields] = {}
_LARGEST_COUNT: Final = 2**53


def fields(value: object) -> Fields:
    """An object; empty where it is none."""
    return cast("Fields", value) if isinstance(value, Mapping) else _NO_FIELDS


def items(value: object) -> Sequence[object]:
    """An array; empty where it is none."""
    return cast("Sequence[object]", value) if isinstance(value, list | tuple) else ()


def text(value: object) -> str:
    """A string; empty where it is none."""
    return value if isinstance(value, str) else ""


def word(value: object) -> str | None:
    """A string that says something; None where it doesn't."""
    return value if isinstance(value, str) and value else None


def count(value: object) -> int | None:
    """A number of things; None where it can't be one."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _LARGEST_COUNT:
        return value
    return None


def fields_in(data: str) -> Fields:
    """The object that a JSON text is; empty where it is none, or no JSON."""
    try:
        return fields(parsed(data))
    except ValueError:
        return _NO_FIELDS


def parsed(data: str) -> object:
    """What a JSON text says. Raises ValueError, whatever is wrong with it."""
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
