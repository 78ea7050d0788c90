from __future__ import annotations

import json
from typing import get_args

import pytest
from pydantic import ValidationError

from streamengine.model import (
    AutoRetryAbandonedEvent,
    AutoRetryScheduledEvent,
    AutoRetryStartingEvent,
    ErrorEvent,
    Event,
    ReasoningDeltaEvent,
    ReasoningEndEvent,
    RowMetadata,
    StreamAbortEvent,
    StreamDeltaEvent,
    StreamEndEvent,
    StreamLifecycleEvent,
    StreamStartEvent,
    TextPart,
    ToolCallDeltaEvent,
    ToolCallEndEvent,
    ToolCallExecutionStartEvent,
    ToolCallStartEvent,
    Usage,
    UsageDeltaEvent,
    parse_event,
)

EVENTS: list[Event] = [
    StreamStartEvent(
        workspace_id="ws", message_id="m", model="x", history_sequence=0, start_time_ms=1
    ),
    StreamDeltaEvent(workspace_id="ws", message_id="m", delta="hi", timestamp_ms=1),
    ReasoningDeltaEvent(workspace_id="ws", message_id="m", delta="hm", timestamp_ms=1),
    ReasoningEndEvent(workspace_id="ws", message_id="m"),
    ToolCallStartEvent(
        workspace_id="ws", message_id="m", tool_call_id="c", tool_name="t", args={}, timestamp_ms=1
    ),
    ToolCallExecutionStartEvent(
        workspace_id="ws", message_id="m", tool_call_id="c", tool_name="t", timestamp_ms=1
    ),
    ToolCallDeltaEvent(
        workspace_id="ws", message_id="m", tool_call_id="c", tool_name="t", timestamp_ms=1
    ),
    ToolCallEndEvent(
        workspace_id="ws", message_id="m", tool_call_id="c", tool_name="t", timestamp_ms=1
    ),
    UsageDeltaEvent(
        workspace_id="ws", message_id="m", usage=Usage(), cumulative_usage=Usage(total_tokens=1)
    ),
    StreamEndEvent(
        workspace_id="ws", message_id="m", metadata=RowMetadata(), parts=(TextPart(text="hi"),)
    ),
    StreamAbortEvent(workspace_id="ws", message_id="m", abort_reason="user"),
    ErrorEvent(workspace_id="ws", message_id="m", error="no", error_type="network"),
    StreamLifecycleEvent(
        workspace_id="ws", message_id="m", phase="streaming", had_any_output=False
    ),
    AutoRetryScheduledEvent(
        workspace_id="ws", message_id="m", attempt=1, delay_ms=1000, scheduled_at_ms=1
    ),
    AutoRetryStartingEvent(workspace_id="ws", message_id="m", attempt=1),
    AutoRetryAbandonedEvent(workspace_id="ws", message_id="m", reason="quota"),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.type)
def test_each_event_comes_back_from_its_json(event: Event) -> None:
    assert parse_event(json.loads(event.to_json())) == event


def test_the_round_trip_covers_every_event_there_is() -> None:
    union, *_ = get_args(Event)

    assert {type(event) for event in EVENTS} == set(get_args(union))


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.type)
def test_each_event_names_its_workspace_and_message_on_the_wire(event: Event) -> None:
    fields = event.to_mapping()

    assert (fields["workspaceId"], fields["messageId"]) == ("ws", "m")


def test_an_event_without_a_message_is_refused() -> None:
    with pytest.raises(ValidationError):
        parse_event({"type": "reasoning-end", "workspaceId": "ws", "messageId": ""})


def test_times_of_events_are_plain_names_in_json() -> None:
    start, delta = EVENTS[0].to_mapping(), EVENTS[1].to_mapping()

    assert (start["startTime"], delta["timestamp"]) == (1, 1)


def test_an_event_told_again_says_so_and_a_live_one_does_not() -> None:
    again = StreamDeltaEvent(
        workspace_id="ws", message_id="m", delta="hi", timestamp_ms=1, replay=True
    )

    assert again.to_mapping()["replay"] is True
    assert "replay" not in EVENTS[1].to_mapping()


def test_an_abort_says_whether_its_text_was_abandoned() -> None:
    abort = StreamAbortEvent(workspace_id="ws", message_id="m", abort_reason="system")

    assert abort.to_mapping()["abandonPartial"] is False
