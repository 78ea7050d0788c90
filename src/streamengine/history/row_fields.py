"""A stored row as decoded JSON: what this version knows of it, and what it doesn't."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

from ..model.base import CamelModel
from ..model.rows import AssistantRow, Row, RowMetadata, UserRow, parse_row


def row_of(fields: Mapping[str, Any]) -> Row | None:
    """The row; None when this version can't read it as one."""
    try:
        return parse_row(fields)
    except (ValueError, RecursionError):
        return None


def metadata_of(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Its metadata, as far as it has any."""
    metadata: object = fields.get("metadata")
    return cast("Mapping[str, Any]", metadata) if isinstance(metadata, dict) else {}


# What this version writes itself. Everything else in a stored row belongs to a newer version.
def _json_keys(*models: type[CamelModel]) -> frozenset[str]:
    return frozenset(
        field.serialization_alias or name
        for model in models
        for name, field in model.model_fields.items()
    )


_ROW_KEYS: Final = _json_keys(UserRow, AssistantRow)
_METADATA_KEYS: Final = _json_keys(RowMetadata)


def merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """`new` in the place of `old`: what this version doesn't know stays, and so does the mark of a
    boundary of the conversation.
    """
    old_metadata, new_metadata = metadata_of(old), metadata_of(new)
    kept = {key: value for key, value in old.items() if key not in _ROW_KEYS}
    kept_metadata = {key: value for key, value in old_metadata.items() if key not in _METADATA_KEYS}
    if old_metadata.get("compactionBoundary") is True:
        kept_metadata["compactionBoundary"] = True
    return {**kept, **new, "metadata": {**kept_metadata, **new_metadata}}
