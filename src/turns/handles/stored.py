"""Stored: what is kept under a handle, read as a record; or why it is none, and the way out."""

from __future__ import annotations

import json
from typing import Any, Final, cast

from pydantic import ValidationError

from ..model.record import RECORD_VERSION, TurnRecord

_FIRST_ERRORS: Final = 3


class Unusable(Exception):
    """What is kept there is no record that can be used here. It is left as it is."""


def record_of(data: bytes, *, place: str, handle_id: str, owner: str) -> TurnRecord:
    """The record in ``data``, which is kept at ``place``, that of this handle and owner. Raises
    Unusable, which names the place.
    """
    try:
        fields: Any = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Unusable(f"{place}: not JSON ({error}). Mend it, or move it away.") from error
    version = cast("dict[str, Any]", fields).get("version") if isinstance(fields, dict) else None
    if isinstance(version, int) and version > RECORD_VERSION:
        raise Unusable(
            f"{place}: written by a newer version (format {version}, this one reads up to "
            f"{RECORD_VERSION}). Use that version to read it."
        )
    try:
        record = TurnRecord.model_validate_json(_without_halves(data, fields), strict=True)
    except ValidationError as error:
        raise Unusable(
            f"{place}: not the record of a turn ({_first_of(error)}). Mend it, or move it away."
        ) from error
    if (record.handle_id, record.owner_workspace_id) != (handle_id, owner):
        raise Unusable(
            f"{place}: the record of {record.handle_id} of {record.owner_workspace_id}. "
            "Move it to the place of its owner, under its own name."
        )
    return record


def _without_halves(data: bytes, fields: Any) -> bytes:
    """``data`` with a question mark for each half of a character: the strict reader refuses it, and
    for that no turn shall be lost.
    """
    if rb"\ud" not in data.lower():
        return data
    return json.dumps(fields, ensure_ascii=False).encode("utf-8", "replace")


def _first_of(error: ValidationError) -> str:
    said = [
        f"{'.'.join(map(str, each['loc'])) or 'it'}: {each['msg']}"
        for each in error.errors(include_url=False)[:_FIRST_ERRORS]
    ]
    return "; ".join(said)
