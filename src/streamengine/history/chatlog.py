"""`chat.jsonl`: one row a line, appended or replaced, found again by sequence.

The lines on disk are the truth; what is remembered of them (an index without the texts) is thrown
away as soon as the file is not the one that was indexed. Lines that can't be read are never
touched: a newer version, or a person, may still make sense of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, cast, final

from typing_extensions import TypeIs

from ..model.base import CamelModel
from ..model.rows import MAX_HISTORY_SEQUENCE, AssistantRow, Row, RowMetadata, UserRow, parse_row
from .directory import Fingerprint, OpenDirectory

NO_SEQUENCE: Final = -1
"""One less than the first sequence: the greatest sequence of a log without rows."""


@dataclass(frozen=True, slots=True)
class LineRef:
    """Where a row's line is (without its newline), and what is needed to find it again."""

    start_byte: int
    end_byte: int
    message_id: str | None
    role: str | None
    sequence: int | None
    client_message_id: str | None
    is_boundary: bool


class ReadRows(NamedTuple):
    """The rows of a log, by sequence, and how many lines could not be read as a row."""

    rows: list[Row]
    unreadable_lines: int


@final
class ChatIndex:
    """What the lines of a log say of themselves."""

    def __init__(self) -> None:
        self.greatest_sequence = NO_SEQUENCE
        self.boundary: int | None = None
        """The sequence of the last row that seals what lies before it."""
        self._by_sequence: dict[int, LineRef] = {}
        self._user_by_message: dict[str, LineRef] = {}
        self._user_by_client_message: dict[str, LineRef] = {}

    def add(self, line: LineRef) -> None:
        if line.sequence is not None:
            self.greatest_sequence = max(self.greatest_sequence, line.sequence)
            # The first line wins where a damaged file has a sequence twice.
            self._by_sequence.setdefault(line.sequence, line)
            if line.is_boundary:
                self.boundary = max(line.sequence, self.boundary or 0)
        if line.role == "user":
            if line.message_id is not None:
                self._user_by_message.setdefault(line.message_id, line)
            if line.client_message_id is not None:
                self._user_by_client_message.setdefault(line.client_message_id, line)

    def with_sequence(self, sequence: int) -> LineRef | None:
        return self._by_sequence.get(sequence)

    def user_row(self, message_id: str, client_message_id: str | None) -> LineRef | None:
        """The user row with this message id, or sent under this id of its client."""
        found = self._user_by_message.get(message_id)
        if found is None and client_message_id is not None:
            found = self._user_by_client_message.get(client_message_id)
        return found


@final
class ChatLog:
    """One log file by name. The caller sees to it that nobody else writes it meanwhile."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._index = ChatIndex()
        self._indexed: Fingerprint | None = None
        """The file that the index is of; None: the index is that of a missing file."""

    def index(self, directory: OpenDirectory) -> ChatIndex:
        if directory.fingerprint(self.name) != self._indexed:
            self._load(directory)
        return self._index

    def read(self, directory: OpenDirectory) -> ReadRows:
        """All rows, ordered by sequence; a row without one stays behind its predecessor."""
        rows: list[tuple[int, Row]] = []
        unreadable_lines = 0
        position = NO_SEQUENCE
        for line in self._load(directory):
            row = None if line.fields is None else _row_of(line.fields)
            if row is None:
                unreadable_lines += 1
                continue
            sequence = row.metadata.history_sequence
            position = position if sequence is None else sequence
            rows.append((position, row))
        rows.sort(key=_position)
        return ReadRows([row for _, row in rows], unreadable_lines)

    def row_at(self, directory: OpenDirectory, line: LineRef) -> Row | None:
        """The row of an indexed line; None when this version can't read it as a row."""
        content = directory.read(self.name)
        if content is None:
            return None
        fields = _fields_of(content.data[line.start_byte : line.end_byte])
        return None if fields is None else _row_of(fields)

    def append(self, directory: OpenDirectory, row: Row, *, durable: bool) -> None:
        index = self.index(directory)
        line = _encoded(row.to_mapping())
        offset_bytes, fingerprint = directory.append_line(self.name, line, durable=durable)
        fields = _fields_of(line)
        assert fields is not None, "a row that was just encoded is readable"
        index.add(_line_ref(offset_bytes, offset_bytes + len(line), fields))
        self._indexed = fingerprint

    def replace(
        self, directory: OpenDirectory, line: LineRef, row: Row, *, durable: bool
    ) -> Mapping[str, Any]:
        """Put `row` in the line's place; all other lines keep their bytes. Gives what was written.

        Fields of the old row that this version doesn't know stay, and so does its mark as a
        boundary of the conversation.
        """
        content = directory.read(self.name)
        data = b"" if content is None else content.data
        old = _fields_of(data[line.start_byte : line.end_byte]) or {}
        merged = _merged(old, row.to_mapping())
        new_data = data[: line.start_byte] + _encoded(merged) + data[line.end_byte :]
        self._rewrite(directory, new_data, durable=durable)
        return merged

    def remove(
        self, directory: OpenDirectory, unwanted: Callable[[Row], bool], *, durable: bool
    ) -> int:
        """Take out the rows that are unwanted; all other lines keep their bytes. Gives how many."""
        content = directory.read(self.name)
        data = b"" if content is None else content.data
        kept: list[bytes] = []
        removed = done = 0
        for line in _lines_of(data):
            row = None if line.fields is None else _row_of(line.fields)
            if row is not None and unwanted(row):
                kept.append(data[done : line.start_byte])
                done = line.end_byte + 1  # its newline goes with it
                removed += 1
        if removed:
            kept.append(data[done:])
            self._rewrite(directory, b"".join(kept), durable=durable)
        return removed

    def _rewrite(self, directory: OpenDirectory, data: bytes, *, durable: bool) -> None:
        self._indexed = directory.replace(self.name, data, durable=durable)
        self._reindex(_lines_of(data))

    def _load(self, directory: OpenDirectory) -> list[_Line]:
        content = directory.read(self.name)
        lines = [] if content is None else _lines_of(content.data)
        self._indexed = None if content is None else content.fingerprint
        self._reindex(lines)
        return lines

    def _reindex(self, lines: Sequence[_Line]) -> None:
        self._index = ChatIndex()
        for line in lines:
            if line.fields is not None:
                self._index.add(_line_ref(line.start_byte, line.end_byte, line.fields))


# ---- lines


class _Line(NamedTuple):
    start_byte: int
    end_byte: int
    fields: dict[str, Any] | None
    """None when the line is no JSON object."""


def _lines_of(data: bytes) -> list[_Line]:
    """The lines that aren't blank. Only a newline ends one: JSON text may hold other breaks."""
    lines: list[_Line] = []
    start = 0
    while start < len(data):
        end = data.find(b"\n", start)
        end = len(data) if end == -1 else end
        text = data[start:end]
        if text.strip():
            lines.append(_Line(start, end, _fields_of(text)))
        start = end + 1
    return lines


def _fields_of(text: bytes) -> dict[str, Any] | None:
    try:
        fields: object = json.loads(text)
    except (ValueError, RecursionError):  # no JSON, no UTF-8, or nested beyond measure
        return None
    return cast("dict[str, Any]", fields) if isinstance(fields, dict) else None


def _encoded(fields: Mapping[str, Any]) -> bytes:
    try:
        text = json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
        return text.encode()
    except UnicodeEncodeError:  # half an emoji: see CamelModel.to_json
        return json.dumps(fields, separators=(",", ":")).encode()


def _row_of(fields: Mapping[str, Any]) -> Row | None:
    try:
        return parse_row(fields)
    except (ValueError, RecursionError):
        return None


def _line_ref(start_byte: int, end_byte: int, fields: Mapping[str, Any]) -> LineRef:
    metadata = _metadata_of(fields)
    return LineRef(
        start_byte,
        end_byte,
        message_id=_text(fields.get("id")),
        role=_text(fields.get("role")),
        sequence=_sequence_of(fields),
        client_message_id=_text(metadata.get("clientMessageId")),
        is_boundary=metadata.get("compactionBoundary") is True,
    )


def _metadata_of(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    metadata: object = fields.get("metadata")
    return cast("Mapping[str, Any]", metadata) if isinstance(metadata, dict) else {}


def _sequence_of(fields: Mapping[str, Any]) -> int | None:
    value: object = _metadata_of(fields).get("historySequence")
    return value if is_sequence(value) else None


def is_sequence(value: object) -> TypeIs[int]:
    """Whether this can be a history sequence: a whole number from 0, and no bool."""
    return type(value) is int and 0 <= value <= MAX_HISTORY_SEQUENCE


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


# What this version writes itself. Everything else in a stored row belongs to a newer version.
def _json_keys(*models: type[CamelModel]) -> frozenset[str]:
    return frozenset(
        field.serialization_alias or name
        for model in models
        for name, field in model.model_fields.items()
    )


_ROW_KEYS: Final = _json_keys(UserRow, AssistantRow)
_METADATA_KEYS: Final = _json_keys(RowMetadata)


def _position(entry: tuple[int, Row]) -> int:
    return entry[0]


def _merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    old_metadata, new_metadata = _metadata_of(old), _metadata_of(new)
    kept = {key: value for key, value in old.items() if key not in _ROW_KEYS}
    kept_metadata = {key: value for key, value in old_metadata.items() if key not in _METADATA_KEYS}
    if old_metadata.get("compactionBoundary") is True:
        kept_metadata["compactionBoundary"] = True
    return {**kept, **new, "metadata": {**kept_metadata, **new_metadata}}
