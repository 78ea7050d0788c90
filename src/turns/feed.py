"""follow: what a turn's streams say becomes what the turn holds."""

from __future__ import annotations

import fibers as fb
from streamengine import Event, EventSpine
from streamengine.model import (
    ErrorEvent,
    ReasoningDeltaEvent,
    ReasoningEndEvent,
    StreamAbortEvent,
    StreamDeltaEvent,
    StreamEndEvent,
    StreamStartEvent,
    ToolCallEndEvent,
    ToolCallStartEvent,
    UsageDeltaEvent,
)
from streamengine.model.plain import is_mapping

from .turn import Turn


def follow(turn: Turn, events: EventSpine) -> fb.Effect[None]:
    """From now to its end, let the turn hold the message, the tool calls and the readings of its
    streams: those whose correlation names it.

    await follow(turn, engine.events)
    """

    def hear(event: Event) -> None:
        if (event.correlation or {}).get("turnId") == turn.turn_id and not event.replay:
            _apply(turn, event)

    def begin() -> fb.Effect[None]:
        stop = events.subscribe(hear)
        return turn.scope.add_finalizer(lambda _exit: stop())

    return fb.Effect.suspend(begin)


def _apply(turn: Turn, event: Event) -> None:
    match event:
        case StreamStartEvent():
            turn.message.begin(event.message_id)
        case StreamDeltaEvent():
            turn.message.add("text", event.delta)
        case ReasoningDeltaEvent():
            turn.message.add("reasoning", event.delta)
        case ToolCallStartEvent():
            turn.message.end_block()
            turn.records.open(event.tool_call_id, event.tool_name)
        case ToolCallEndEvent():
            turn.records.close(event.tool_call_id, failed=_is_failure(event.result))
        case UsageDeltaEvent():
            turn.readings.show(tokens=event.cumulative_usage.total_tokens)
        case ReasoningEndEvent() | StreamEndEvent() | StreamAbortEvent() | ErrorEvent():
            turn.message.end_block()
        case _:
            pass  # of no concern to who draws the turn


def _is_failure(result: object) -> bool:
    return is_mapping(result) and result.get("success") is False
