"""`chat.jsonl`: one row a line, appended or replaced, found again by sequence.

The lines on disk are the truth; what is remembered of them (an index without the texts) is thrown
away as soon as the file is not the one that was indexed. Lines that can't be read are never
touched: a newer version, or a person, may still make sense of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, final

from ..model.rows import Row
from .directory import Fingerprint, OpenDirectory
from .lines import Line, encoded, fields_of, lines_of
from .results import ReadRows
from .row_fields import merged, metadata_of, row_of
from .rules import is_sequence

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
    is_partial: bool
    has_usage: bool


_TAIL_BLOCK_BYTES: Final = 1 << 16
_OVERTAKEN_ROWS: Final = 64
"""How many rows may stand in the file before a row with a lower sequence that came late."""


@final
class ChatIndex:
    """What the lines of a log say of themselves."""

    def __init__(self) -> None:
        self.greatest_sequence: int = NO_SEQUENCE
        self.boundary: int | None = None
        """The sequence of the last row that seals what lies before it."""
        self.partial_lines: list[LineRef] = []
        """Of interrupted answers."""
        self._boundary_byte: int | None = 0
        self._by_sequence: dict[int, LineRef] = {}
        self._with_usage: set[str] = set()
        self._user_by_message: dict[str, LineRef] = {}
        self._user_by_client_message: dict[str, LineRef] = {}

    def add(self, line: LineRef) -> None:
        if line.sequence is not None:
            self.greatest_sequence = max(self.greatest_sequence, line.sequence)
            # The first line wins where a damaged file has a sequence twice.
            self._by_sequence.setdefault(line.sequence, line)
            if line.is_boundary and (self.boundary is None or line.sequence > self.boundary):
                self.boundary = line.sequence
                self._boundary_byte = None
        if line.is_partial:
            self.partial_lines.append(line)
        if line.has_usage and line.message_id is not None:
            self._with_usage.add(line.message_id)
        if line.role == "user":
            if line.message_id is not None:
                self._user_by_message.setdefault(line.message_id, line)
            if line.client_message_id is not None:
                self._user_by_client_message.setdefault(line.client_message_id, line)

    def with_sequence(self, sequence: int) -> LineRef | None:
        return self._by_sequence.get(sequence)

    def boundary_byte(self) -> int:
        """No row from the boundary on has its line before this place; 0 without a boundary."""
        if self._boundary_byte is None:
            # Rows that are added from now on stand behind it anyway.
            counting = (line for line in self._by_sequence.values() if not self.seals(line))
            self._boundary_byte = min(line.start_byte for line in counting)
        return self._boundary_byte

    def seals(self, line: LineRef) -> bool:
        """Whether a row lies before the boundary."""
        return (
            self.boundary is not None
            and line.sequence is not None
            and line.sequence < self.boundary
        )

    def sealed(self) -> list[LineRef]:
        """The lines before the boundary, in the order of the file."""
        sealed = [line for line in self._by_sequence.values() if self.seals(line)]
        return sorted(sealed, key=_start_of)

    def behind(self, sequence: int) -> list[LineRef]:
        """The lines with a greater sequence, in the order of the file."""
        return sorted(
            (self._by_sequence[n] for n in self._by_sequence if n > sequence), key=_start_of
        )

    def has_usage(self, message_id: str) -> bool:
        """Whether a row of this message says what it cost."""
        return message_id in self._with_usage

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
        """The file that the index is of; None: of a missing one, or not to be trusted."""

    def index(self, directory: OpenDirectory) -> ChatIndex:
        if directory.fingerprint(self.name) != self._indexed or self._indexed is None:
            content = directory.read(self.name)
            self._indexed = None if content is None else content.fingerprint
            self._reindex(() if content is None else lines_of(content.data))
        return self._index

    def read(self, directory: OpenDirectory) -> ReadRows:
        """All rows, ordered by sequence; a row without one stays behind its predecessor."""
        content = directory.read(self.name)
        lines = [] if content is None else list(lines_of(content.data))
        self._indexed = None if content is None else content.fingerprint
        self._reindex(lines)
        return _rows_of(lines)

    def read_from_boundary(self, directory: OpenDirectory) -> ReadRows:
        """The rows that count: from the boundary on. No byte before them is read, once the file is
        indexed.
        """
        index = self.index(directory)
        start = index.boundary_byte()
        read = _rows_of(lines_of(directory.read_span(self.name, start), start))
        if index.boundary is None:
            return read
        rows = [row for row in read.rows if not _lies_before(row, index.boundary)]
        return ReadRows(rows, read.unreadable_lines)

    def tail(self, directory: OpenDirectory, limit: int) -> list[Row]:
        """The last rows, read from the end of the file; it need not be indexed for that."""
        fingerprint = directory.fingerprint(self.name)
        if limit <= 0 or fingerprint is None:
            return []
        start = fingerprint.size_bytes
        data = b""
        while True:
            block = directory.read_span(
                self.name, max(0, start - max(_TAIL_BLOCK_BYTES, len(data))), start
            )
            data = block + data
            start -= len(block)
            # The first line may have begun before, unless the file did.
            whole = 0 if start == 0 else data.find(b"\n") + 1
            enough = limit + _OVERTAKEN_ROWS
            if start == 0 or not block or (whole and data.count(b"\n", whole) > enough):
                rows = _rows_of(lines_of(data[whole:])).rows
                if start == 0 or not block or len(rows) >= enough:
                    return rows[-limit:]

    def row_at(self, directory: OpenDirectory, line: LineRef) -> Row | None:
        """The row of an indexed line; None when this version can't read it as a row."""
        fields = fields_of(self.line_at(directory, line))
        return None if fields is None else row_of(fields)

    def append(self, directory: OpenDirectory, row: Row, *, durable: bool) -> None:
        index = self.index(directory)
        fields = row.to_mapping()
        line = encoded(fields)
        offset_bytes, fingerprint = directory.append_line(self.name, line, durable=durable)
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
        old = fields_of(data[line.start_byte : line.end_byte]) or {}
        fields = merged(old, row.to_mapping())
        new_data = data[: line.start_byte] + encoded(fields) + data[line.end_byte :]
        self._rewrite(directory, new_data, durable=durable)
        return fields

    def line_at(self, directory: OpenDirectory, line: LineRef) -> bytes:
        """The bytes of an indexed line, without its newline."""
        return directory.read_span(self.name, line.start_byte, line.end_byte)

    def lines_at(self, directory: OpenDirectory, lines: Iterable[LineRef]) -> list[bytes]:
        """The bytes of indexed lines, without their newlines."""
        content = directory.read(self.name)
        data = b"" if content is None else content.data
        return [data[line.start_byte : line.end_byte] for line in lines]

    def append_lines(self, directory: OpenDirectory, lines: Iterable[bytes]) -> None:
        """Add these lines as they are, durably and at one stroke, each on a line of its own."""
        directory.append_line(self.name, b"\n".join(lines), durable=True)
        self._indexed = None  # rare enough to be indexed anew

    def cut_out(self, directory: OpenDirectory, lines: Iterable[LineRef]) -> None:
        """Take these indexed lines out; all others keep their bytes."""
        content = directory.read(self.name)
        data = b"" if content is None else content.data
        kept: list[bytes] = []
        done = 0
        for line in sorted(lines, key=_start_of):
            kept.append(data[done : line.start_byte])
            done = line.end_byte + 1  # its newline goes with it
        kept.append(data[done:])
        self._rewrite(directory, b"".join(kept), durable=True)

    def _rewrite(self, directory: OpenDirectory, data: bytes, *, durable: bool) -> None:
        self._indexed = directory.replace(self.name, data, durable=durable)
        self._reindex(lines_of(data))

    def _reindex(self, lines: Iterable[Line]) -> None:
        self._index = ChatIndex()
        for line in lines:
            if line.fields is not None:
                self._index.add(_line_ref(line.start_byte, line.end_byte, line.fields))


# ---- rows of lines


def _rows_of(lines: Iterable[Line]) -> ReadRows:
    rows: list[tuple[int, Row]] = []
    unreadable_lines = 0
    position = NO_SEQUENCE
    for line in lines:
        row = None if line.fields is None else row_of(line.fields)
        if row is None:
            unreadable_lines += 1
            continue
        sequence = row.metadata.history_sequence
        position = position if sequence is None else sequence
        rows.append((position, row))
    rows.sort(key=_position)
    return ReadRows([row for _, row in rows], unreadable_lines)


def _lies_before(row: Row, boundary: int) -> bool:
    sequence = row.metadata.history_sequence
    return sequence is not None and sequence < boundary


def _start_of(line: LineRef) -> int:
    return line.start_byte


def _line_ref(start_byte: int, end_byte: int, fields: Mapping[str, Any]) -> LineRef:
    metadata = metadata_of(fields)
    return LineRef(
        start_byte,
        end_byte,
        message_id=_text(fields.get("id")),
        role=_text(fields.get("role")),
        sequence=_sequence_of(fields),
        client_message_id=_text(metadata.get("clientMessageId")),
        is_boundary=metadata.get("compactionBoundary") is True,
        is_partial=metadata.get("partial") is True,
        has_usage=isinstance(metadata.get("usage"), dict),
    )


def _sequence_of(fields: Mapping[str, Any]) -> int | None:
    value: object = metadata_of(fields).get("historySequence")
    return value if is_sequence(value) else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _position(entry: tuple[int, Row]) -> int:
    return entry[0]
