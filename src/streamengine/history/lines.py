"""JSON in lines: what `.jsonl` files are made of."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, cast


class Line(NamedTuple):
    """Where a line is (without its newline), and the JSON object that it holds."""

    start_byte: int
    end_byte: int
    fields: dict[str, Any] | None
    """None when the line is no JSON object."""


def lines_of(data: bytes, offset_bytes: int = 0) -> Iterable[Line]:
    """The lines that aren't blank. Only a newline ends one: JSON text may hold other breaks.

    `offset_bytes`: where in the file the data was, so that lines are told as places in that.
    """
    start = 0
    while start < len(data):
        end = data.find(b"\n", start)
        end = len(data) if end == -1 else end
        text = data[start:end]
        if text.strip():
            yield Line(offset_bytes + start, offset_bytes + end, fields_of(text))
        start = end + 1


def decoded(text: bytes) -> object:
    """The value of a JSON text. Raises ValueError, also for one nested beyond measure."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def fields_of(text: bytes) -> dict[str, Any] | None:
    """The JSON object that a text is, if it is one."""
    try:
        fields = decoded(text)
    except ValueError:
        return None
    return cast("dict[str, Any]", fields) if isinstance(fields, dict) else None


def encoded(value: Mapping[str, Any] | str) -> bytes:
    """JSON without a line break or needless spaces."""
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        return text.encode()
    except UnicodeEncodeError:  # half an emoji: see CamelModel.to_json
        return json.dumps(value, separators=(",", ":")).encode()
