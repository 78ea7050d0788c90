"""Values of others (a tool's result, a provider's metadata) as plain JSON values.

What is recorded must be writable, and must not change afterwards because its maker still holds it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic_core import PydanticSerializationError, to_jsonable_python
from typing_extensions import TypeIs


def plain(value: object) -> Any:
    """``value`` as what JSON has: a copy of dicts, lists, strings, numbers, true, false and null.

    Models, dataclasses, dates, paths, bytes and the like become what pydantic makes of them. Raises
    ValueError for what can't be JSON: an object of a class that is none of these, a value that
    holds itself, a number that is infinite or none.
    """
    try:
        copy = to_jsonable_python(value, by_alias=True)
        json.dumps(copy, allow_nan=False)
    except (PydanticSerializationError, ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"{_short(error)} (a value of type {type(value).__name__})") from error
    return copy


def plain_or_words(value: object) -> Any:
    """``value`` as plain JSON, or what it looks like in words where it can't be that."""
    try:
        return plain(value)
    except ValueError:
        return words_of(value)


def plain_mapping(value: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """``value`` as a plain JSON object; None for nothing, and for what can't be one."""
    try:
        return {str(key): entry for key, entry in plain(dict(value)).items()} if value else None
    except ValueError:
        return None


def words_of(value: object, *, most_characters: int = 2000) -> str:
    """A text for a person. Never raises, also for a value that holds itself."""
    try:
        words = value if isinstance(value, str) else repr(value)
    except Exception:  # noqa: BLE001  # a hostile __repr__
        words = f"a value of type {type(value).__name__}"
    return words if len(words) <= most_characters else words[:most_characters] + "..."


def is_mapping(value: object) -> TypeIs[Mapping[object, object]]:
    return isinstance(value, Mapping)


def _short(error: Exception) -> str:
    return words_of(str(error).partition("\n")[0], most_characters=200)
