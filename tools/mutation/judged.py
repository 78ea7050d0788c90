"""The survivors that somebody has looked at: `judged.toml` beside this module."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any, Final

FILE: Final = Path(__file__).with_name("judged.toml")
Key = tuple[str, str, str, str]
_FIELDS: Final = ("file", "within", "was", "now")


def read(text: str) -> dict[Key, str]:
    """The reason for each; ValueError where an entry lacks something or is there twice."""
    reasons: dict[Key, str] = {}
    survivors: list[dict[str, Any]] = tomllib.loads(text).get("survivor", [])
    for entry in survivors:
        values = [entry.get(field) for field in (*_FIELDS, "why")]
        if not all(isinstance(value, str) for value in values) or not str(values[-1]).strip():
            raise ValueError(f"a survivor needs {', '.join(_FIELDS)} and why: {entry}")
        key = (str(values[0]), str(values[1]), str(values[2]), str(values[3]))
        if key in reasons:
            raise ValueError(f"judged twice: {key}")
        reasons[key] = str(values[-1])
    return reasons


def entry_for(key: Key) -> str:
    """An entry to be completed by who judges it."""
    lines = [f"{field} = {json.dumps(value)}" for field, value in zip(_FIELDS, key, strict=True)]
    return "\n".join(["[[survivor]]", *lines, 'why = ""'])
