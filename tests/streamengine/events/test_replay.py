"""Replay: what a newcomer is told again, and that with what comes live it has everything once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamengine.events import (
    CaughtUpMessage,
    Cursor,
    HeartbeatMessage,
    cursor_of,
    parse_told,
    replay,
    replayed_to_ms,
    retold,
    terminal_of,
    timestamp_of,
)
from streamengine.model import (
    AssistantRow,
    AutoRetryScheduledEvent,
    ErrorEvent,
    Event,
    FilePart,
    LiveSnapshot,
    MessagePart,
    ReasoningDeltaEvent,
    ReasoningPart,
    RowMetadata,
    StreamAbortEvent,
    StreamDeltaEvent,
    StreamEndEvent,
    StreamRequest,
    StreamStartEvent,
    TextPart,
    ToolCallEndEvent,
    ToolCallExecutionStartEvent,
    ToolCallStartEvent,
    ToolPart,
    Usage,
    UsageDeltaEvent,
)

ABOUT: dict[str, Any] = {"workspace_id": "w1", "message_id": "a1"}
REQUEST = StreamRequest(
    text="hello", model="m", mode="plan", prompt_id="p1", correlation={"turn": "t1"}
)


def text(value: str, at_ms: int) -> TextPart:
    return TextPart(text=value, timestamp_ms=at_ms)


def call(
    call_id: str,
    at_ms: int,
    *,
    began_ms: int | None = None,
    ended_ms: int | None = None,
    output: object = None,
) -> ToolPart:
    return ToolPart(
        tool_call_id=call_id,
        tool_name="look",
        state="input-available" if ended_ms is None and output is None else "output-available",
        input={"at": call_id},
        output=output,
        timestamp_ms=at_ms,
        execution_started_at_ms=began_ms,
        completed_at_ms=ended_ms,
    )


def a_snapshot(*parts: MessagePart, usage: UsageDeltaEvent | None = None) -> LiveSnapshot:
    return LiveSnapshot(
        workspace_id="w1",
        message_id="a1",
        request=REQUEST,
        history_sequence=3,
        start_time_ms=1,
        parts=parts,
        usage=usage,
    )


def told(events: list[Event]) -> list[tuple[str, object]]:
    """Each event as its type and what distinguishes it."""
    return [
        (event.type, getattr(event, "delta", None) or getattr(event, "tool_call_id", None))
        for event in events
    ]


A_TOOL = (
    text("look ", 10),
    call("c1", 11),
    call("c1", 11, began_ms=12),
    text("meanwhile ", 13),
    call("c1", 11, began_ms=12, ended_ms=14, output="seen"),
    text("done", 15),
)


# ---- what is told


@pytest.mark.spec("W13")
def test_a_stream_that_does_not_run_is_not_told() -> None:
    assert replay(None) == []
    assert replay(None, 5) == []


@pytest.mark.spec("W13")
def test_everything_told_again_says_so_and_carries_what_the_request_did() -> None:
    usage = UsageDeltaEvent(**ABOUT, usage=Usage(), cumulative_usage=Usage(output_tokens=3))
    events = replay(a_snapshot(*A_TOOL, ReasoningPart(text="r", timestamp_ms=16), usage=usage))

    assert all(event.replay for event in events)
    assert {(event.workspace_id, event.message_id) for event in events} == {("w1", "a1")}
    assert {event.prompt_id for event in events[:-1]} == {"p1"}
    start = events[0]
    assert isinstance(start, StreamStartEvent)
    assert (start.model, start.mode, start.history_sequence) == ("m", "plan", 3)
    assert start.correlation == {"turn": "t1"}


def test_a_full_replay_has_each_part_and_the_latest_usage() -> None:
    usage = UsageDeltaEvent(**ABOUT, usage=Usage(), cumulative_usage=Usage(output_tokens=3))
    events = replay(a_snapshot(*A_TOOL, usage=usage))

    assert told(events) == [
        ("stream-start", None),
        ("stream-delta", "look "),
        ("tool-call-start", "c1"),
        ("tool-call-execution-start", "c1"),
        ("stream-delta", "meanwhile "),
        ("tool-call-end", "c1"),
        ("stream-delta", "done"),
        ("usage-delta", None),
    ]
    assert [timestamp_of(event) for event in events[1:-1]] == [10, 11, 12, 13, 14, 15]
    assert events[-1] == usage.model_copy(update={"replay": True})


def test_a_replay_since_a_cursor_has_what_is_later_and_no_usage() -> None:
    usage = UsageDeltaEvent(**ABOUT, usage=Usage(), cumulative_usage=Usage())
    events = replay(a_snapshot(*A_TOOL, usage=usage), 13)

    assert told(events) == [
        ("stream-start", None),
        ("tool-call-end", "c1"),
        ("stream-delta", "done"),
    ]


def test_an_execution_that_began_after_the_cursor_is_told() -> None:
    assert ("tool-call-execution-start", "c1") in told(replay(a_snapshot(*A_TOOL), 11))
    assert ("tool-call-execution-start", "c1") not in told(replay(a_snapshot(*A_TOOL), 12))


def test_a_result_without_its_time_is_told_in_full_only() -> None:
    parts = (call("c1", 11), call("c1", 11, output="seen"))

    assert ("tool-call-end", "c1") in told(replay(a_snapshot(*parts)))
    assert ("tool-call-end", "c1") not in told(replay(a_snapshot(*parts), 5))


def test_a_call_that_was_recorded_whole_is_told_as_its_three_events() -> None:
    """As in a row, where a call is one part."""
    events = replay(a_snapshot(call("c1", 11, began_ms=12, ended_ms=14, output="seen")))

    assert [event.type for event in events[1:]] == [
        "tool-call-start",
        "tool-call-execution-start",
        "tool-call-end",
    ]
    end = events[-1]
    assert isinstance(end, ToolCallEndEvent)
    assert (end.result, end.timestamp_ms) == ("seen", 14)


@pytest.mark.spec("E21")
def test_a_result_without_a_call_is_told_without_a_start() -> None:
    orphan = ToolPart(
        tool_call_id="c9",
        tool_name="look",
        state="output-available",
        output=1,
        timestamp_ms=9,
        completed_at_ms=9,
    )

    assert told(replay(a_snapshot(orphan))[1:]) == [("tool-call-end", "c9")]


def test_reasoning_is_told_with_its_signature_and_its_end() -> None:
    parts = (
        ReasoningPart(text="hm", timestamp_ms=5),
        ReasoningPart(text="", timestamp_ms=6, provider_metadata={"id": "x"}),
        ReasoningPart(text="", timestamp_ms=7, signature="s"),
        text("so", 8),
    )
    events = replay(a_snapshot(*parts))

    assert [event.type for event in events[1:]] == [
        "reasoning-delta",
        "reasoning-delta",
        "reasoning-end",
        "stream-delta",
    ]
    sealed = events[2]
    assert isinstance(sealed, ReasoningDeltaEvent)
    assert (sealed.delta, sealed.signature) == ("", "s")
    assert [event.type for event in replay(a_snapshot(*parts), 7)[1:]] == [
        "reasoning-end",
        "stream-delta",
    ]
    assert [event.type for event in replay(a_snapshot(*parts), 8)[1:]] == []


def test_a_file_has_no_event() -> None:
    assert len(replay(a_snapshot(FilePart(media_type="image/png", url="data:,")))) == 1


# ---- cursors


@pytest.mark.parametrize("cursor", [Cursor("a_1", 0), Cursor("a-1", 2**50), Cursor("a1", None)])
def test_a_cursor_reads_what_it_writes(cursor: Cursor) -> None:
    assert Cursor.parse(str(cursor)) == cursor


@pytest.mark.parametrize(
    "text", ["", "a1", "a1:", ":5", "a1:-5", "a1:x", "A:5", "a1:5:5", "a1:" + "9" * 17, "a1:٣"]
)
def test_what_is_no_cursor_is_none(text: str) -> None:
    assert Cursor.parse(text) is None


def test_only_an_event_with_a_place_moves_the_cursor() -> None:
    start, delta, *_ = replay(a_snapshot(text("x", 7)))

    assert cursor_of(start) is None  # told again
    assert cursor_of(start.model_copy(update={"replay": None})) == Cursor("a1", 0)
    assert cursor_of(delta) == Cursor("a1", 7)
    assert cursor_of(StreamAbortEvent(**ABOUT, abort_reason="user")) == Cursor("a1", None)


# ---- how an ended one ended


def a_row(**metadata: Any) -> AssistantRow:
    return AssistantRow(id="a1", parts=(text("said", 5),), metadata=RowMetadata(**metadata))


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (a_row(finish_reason="stop"), ("stream-end", None)),
        (a_row(partial=True, abort_reason="user"), ("stream-abort", "user")),
        (a_row(partial=True), ("stream-abort", "system")),
        (a_row(partial=True, abort_reason="newer"), ("stream-abort", "system")),
        (a_row(partial=True, error="no", error_type="network"), ("error", "network")),
        (a_row(partial=True, error="no", error_type="newer"), ("error", "unknown")),
    ],
)
def test_a_row_tells_how_its_message_ended(row: AssistantRow, expected: tuple[str, object]) -> None:
    event = terminal_of(row, "w1")

    why = getattr(event, "abort_reason", None) or getattr(event, "error_type", None)
    assert (event.type, why) == expected
    assert event.replay
    assert event.parts == row.parts


# ---- messages of the bridge


def test_events_and_messages_are_read_from_one_stream() -> None:
    caught_up = CaughtUpMessage(workspace_id="w1", replay="since", cursor="a1:5")

    assert parse_told(caught_up.to_mapping()) == caught_up
    assert parse_told({"type": "heartbeat"}) == HeartbeatMessage()
    event = StreamDeltaEvent(**ABOUT, delta="x", timestamp_ms=1)
    assert parse_told(event.to_mapping()) == event
    with pytest.raises(ValueError):
        parse_told({"type": "no such thing"})


# ---- replay and live together


@dataclass
class Engine:
    """Records and tells as the engine does: an event before its part, but a tool's result the
    other way round, with a write between that others may come in (E18, E20).
    """

    now_ms: int = 100
    parts: list[MessagePart] = field(default_factory=list[MessagePart])
    log: list[Event] = field(default_factory=list[Event])
    """What was emitted, in order."""
    moments: list[tuple[int, LiveSnapshot]] = field(default_factory=list[tuple[int, LiveSnapshot]])
    """When a reader may come or go: how much was emitted, and what the engine has then."""

    def _tick(self) -> int:
        self.now_ms += 1
        return self.now_ms

    def pause(self) -> None:
        self.moments.append((len(self.log), a_snapshot(*self.parts)))

    def text(self) -> None:
        at_ms = self._tick()
        self.log.append(StreamDeltaEvent(**ABOUT, delta="t", timestamp_ms=at_ms))
        self.parts.append(text("t", at_ms))

    def reasoning(self) -> None:
        at_ms = self._tick()
        self.log.append(ReasoningDeltaEvent(**ABOUT, delta="r", timestamp_ms=at_ms))
        self.parts.append(ReasoningPart(text="r", timestamp_ms=at_ms))

    def tool(self, between: list[str]) -> None:
        at_ms = self._tick()
        call_id = f"c{at_ms}"
        about: dict[str, Any] = {**ABOUT, "tool_call_id": call_id, "tool_name": "look"}
        self.log.append(ToolCallStartEvent(**about, timestamp_ms=at_ms))
        self.parts.append(call(call_id, at_ms))
        self.pause()
        began_ms = self._tick()
        self.log.append(ToolCallExecutionStartEvent(**about, timestamp_ms=began_ms))
        self.parts.append(call(call_id, at_ms, began_ms=began_ms))
        self.run(between)
        ended_ms = self._tick()
        self.parts.append(call(call_id, at_ms, began_ms=began_ms, ended_ms=ended_ms, output="seen"))
        self.pause()  # recorded, not yet told
        self.log.append(ToolCallEndEvent(**about, result="seen", timestamp_ms=ended_ms))

    def run(self, steps: Sequence[str | list[str]]) -> None:
        for step in steps:
            self.pause()
            if isinstance(step, list):
                self.tool(step)
            elif step == "text":
                self.text()
            else:
                self.reasoning()
        self.pause()


SIMPLE = st.sampled_from(["text", "reasoning"])
STEPS = st.lists(SIMPLE | st.lists(SIMPLE, max_size=3), max_size=8)


def keys(events: list[Event]) -> list[tuple[object, ...]]:
    """Each event that has a place, as W12 tells them apart."""
    return [
        (event.message_id, event.type, timestamp_of(event), getattr(event, "delta", None))
        for event in events
        if timestamp_of(event) is not None
    ]


@pytest.mark.spec("W12")
@settings(max_examples=300, deadline=None)
@given(steps=STEPS, data=st.data())
def test_replay_and_live_have_each_event_once_however_often_the_reader_goes(
    steps: list[str | list[str]], data: st.DataObject
) -> None:
    engine = Engine()
    engine.run(steps)
    emitted = engine.log
    came = data.draw(
        st.lists(st.integers(0, len(engine.moments) - 1), min_size=1, max_size=5).map(sorted)
    )
    got: list[Event] = []
    cursor: Cursor | None = None
    for number, moment in enumerate(came):
        position, snapshot = engine.moments[moment]
        after_ms = None if cursor is None else cursor.timestamp_ms
        told_to_ms = replayed_to_ms(snapshot)
        # It goes at some moment before it comes again; the last time it stays.
        last = len(emitted)
        if number + 1 < len(came):
            last = data.draw(st.integers(position, engine.moments[came[number + 1]][0]))
        live = [e for e in emitted[position:last] if (timestamp_of(e) or 0) > told_to_ms]
        got += [*replay(snapshot, after_ms), *live]
        cursor = next((c for c in map(cursor_of, reversed(got)) if c is not None), None)

    assert keys(got) == keys(emitted)


def test_terminal_kinds_are_told_apart_from_the_rest() -> None:
    """Nothing follows a terminal event: a reader that has it stands at the end."""
    row = a_row()
    for event in (
        terminal_of(row, "w1"),
        StreamEndEvent(**ABOUT, metadata=RowMetadata(), parts=()),
        ErrorEvent(**ABOUT, error="no", error_type="api"),
    ):
        assert cursor_of(event) == Cursor("a1", None)


@pytest.mark.parametrize(
    ("now_ms", "left_ms"), [(1_000, 500), (1_200, 300), (1_500, 0), (9_000, 0), (0, 500)]
)
def test_a_try_that_is_told_of_again_has_what_is_left_of_its_delay(
    now_ms: int, left_ms: int
) -> None:
    """Also where the clock was set forward, or back."""
    event = AutoRetryScheduledEvent(attempt=2, delay_ms=500, scheduled_at_ms=1_000, **ABOUT)

    again = retold(event, now_ms)

    assert again == event.model_copy(update={"replay": True, "delay_ms": left_ms})
    assert cursor_of(again) is None
