"""What must hold whatever happened: the invariants, checked on the tape and on the disk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from streamengine import Event, StreamRequest
from streamengine.history.partial import is_commit_worthy
from streamengine.history.usage_log import UsageEntry
from streamengine.model import (
    AssistantRow,
    ErrorEvent,
    Row,
    StreamAbortEvent,
    StreamDeltaEvent,
    StreamEndEvent,
    TextPart,
    ToolPart,
    UsageDeltaEvent,
    UserRow,
)

TERMINALS = ("stream-end", "stream-abort", "error")


@dataclass
class Told:
    """The events of one process, each with the time of the loop in seconds."""

    events: list[tuple[float, Event]] = field(default_factory=list[tuple[float, Event]])

    def of(self, message_id: str) -> list[Event]:
        return [event for _, event in self.events if event.message_id == message_id]

    @property
    def message_ids(self) -> list[str]:
        return list(dict.fromkeys(event.message_id for _, event in self.events))

    def said(self, message_id: str, before_seconds: float = float("inf")) -> str:
        """The text that was told of a message by then."""
        return "".join(
            event.delta
            for at, event in self.events
            if event.message_id == message_id
            and isinstance(event, StreamDeltaEvent)
            and at < before_seconds
        )


def check_events(told: Told) -> None:
    """E1, E2's event half, R25: one terminal for whatever was told of, and nothing after it."""
    for message_id in told.message_ids:
        events = [e for e in told.of(message_id) if not e.type.startswith("auto-retry")]
        if not events:
            continue
        types = [e.type for e in events if e.type != "stream-lifecycle"]
        ended = Counter(kind for kind in types if kind in TERMINALS)
        assert ended.total() == 1, (message_id, types)
        assert types[-1] in TERMINALS, (message_id, types)
        assert types.count("stream-start") <= 1, (message_id, types)
        if "stream-start" in types:
            assert types[0] == "stream-start", (message_id, types)
        stamps = [e.timestamp_ms for e in events if isinstance(e, StreamDeltaEvent)]
        assert stamps == sorted(set(stamps)), (message_id, stamps)  # E19


def check_rows(rows: Sequence[Row], asked: Sequence[str]) -> None:
    """P5, P7, P11, P12, P20, P21: the conversation as a reader finds it.

    ``asked``: the texts of the messages that were accepted; each of them is unique.
    """
    sequences = [row.metadata.history_sequence for row in rows]
    assert None not in sequences, rows
    assert sequences == sorted({s for s in sequences if s is not None}), sequences
    ids = Counter(row.id for row in rows)
    assert set(ids.values()) <= {1}, ids
    users = [text_of(row) for row in rows if isinstance(row, UserRow)]
    assert set(Counter(users).values()) <= {1}, users
    missing = set(asked) - set(users)
    assert not missing, missing
    for row in rows:
        if isinstance(row, AssistantRow):
            assert is_commit_worthy(row.parts), row
            assert row.metadata.error_type is None, row  # P8
        else:
            assert text_of(row).strip(), row  # P21
        calls = Counter(part.tool_call_id for part in row.parts if isinstance(part, ToolPart))
        assert set(calls.values()) <= {1}, (row.id, calls)


def check_told_is_kept(told: Told, rows: Sequence[Row]) -> None:
    """Durable before visible: what a terminal said of an answer is what its row says."""
    by_id = {row.id: row for row in rows}
    for message_id in told.message_ids:
        terminal = next((e for e in told.of(message_id) if e.type in TERMINALS), None)
        row = by_id.get(message_id)
        said = told.said(message_id)
        match terminal:
            case StreamEndEvent():
                assert row is not None, message_id
                assert not row.is_partial, message_id
                assert text_of(row) == said, (message_id, said)
                assert row.metadata.usage == terminal.metadata.usage
            case StreamAbortEvent(abandon_partial=True):
                assert row is None, message_id
            case StreamAbortEvent():
                assert row is not None or not said.strip(), message_id
                if row is not None:
                    assert row.is_partial, message_id
                    assert text_of(row) == said, (message_id, said)
            case ErrorEvent():
                assert row is None or (row.is_partial and text_of(row) == said), message_id
            case _:
                pass


def check_usage(told: Told, rows: Sequence[Row], entries: Sequence[UsageEntry]) -> None:
    """P15, P16, E22: what an answer used is on its row or in the sidecar, once."""
    by_id = {row.id: row for row in rows}
    beside = Counter(entry.message_id for entry in entries)
    assert set(beside.values()) <= {1}, beside
    for message_id in told.message_ids:
        used = [e.cumulative_usage for e in told.of(message_id) if isinstance(e, UsageDeltaEvent)]
        row = by_id.get(message_id)
        on_row = None if row is None else row.metadata.usage
        entry = next((e for e in entries if e.message_id == message_id), None)
        if not used:
            assert on_row is None, message_id
            assert entry is None, message_id
            continue
        assert (on_row is None) != (entry is None), (message_id, on_row, entry)
        assert used[-1] == (on_row if entry is None else entry.usage), message_id


def check_requests(requests: Sequence[StreamRequest]) -> None:
    """P7, P22: what a provider is given, it would not refuse."""
    for request in requests:
        for row in request.history:
            for part in row.parts:
                if isinstance(part, ToolPart):
                    assert part.has_output, (row.id, part)
                if isinstance(part, TextPart) and isinstance(row, AssistantRow):
                    assert part.text.strip(), row
        texts = [text_of(row) for row in request.history if isinstance(row, UserRow)]
        assert request.text not in texts, request.text  # P20
        for part in request.so_far:
            assert not isinstance(part, ToolPart) or part.has_output, part


def text_of(row: Row) -> str:
    return "".join(part.text for part in row.parts if isinstance(part, TextPart))
