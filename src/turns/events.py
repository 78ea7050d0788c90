"""What is told of turns: one event a change, on the spine of the engine that they run on.

    events = TurnEvents(engine.events)
    unsubscribe = events.subscribe(print)

Streams tell of themselves (`stream-start`, `stream-end` ...); these events tell of what spans them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated, Final, Literal, TypeAlias, final

from pydantic import Field, TypeAdapter

from streamengine import EventSpine
from streamengine.events.hooks import Hook
from streamengine.model.base import CamelModel

TurnStatus: TypeAlias = Literal["running", "completed", "error", "aborted"]
InterruptKind: TypeAlias = Literal["steering", "graceful", "hard_abort"]
OrphanReason: TypeAlias = Literal[
    "parent_finished", "parent_finished_waiting", "panic", "interrupted"
]
"""Why nobody took a result: the parent had ended, ended while it waited for room, the delivery
itself broke, or the child was interrupted before there was room."""


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class _BaseEvent(CamelModel):
    workspace_id: str
    turn_id: str
    timestamp_ms: int = Field(
        default_factory=_now_ms, validation_alias="timestamp", serialization_alias="timestamp"
    )
    """Milliseconds since the Unix epoch."""


class TurnStartEvent(_BaseEvent):
    type: Literal["turn.start"] = "turn.start"
    prompt: str


class TurnEndEvent(_BaseEvent):
    """Exactly one a turn; one that was stopped before it began has no turn.start."""

    type: Literal["turn.end"] = "turn.end"
    status: Literal["completed", "error", "aborted"]
    content: str | None = None
    """The answer, of a completed turn."""
    error: str | None = None


class LlmRequestEvent(_BaseEvent):
    type: Literal["llm.request"] = "llm.request"
    call: int
    """Which call of the turn it is, from 1."""
    messages: int
    """How many rows of the history go with it."""


class LlmResponseEvent(_BaseEvent):
    type: Literal["llm.response"] = "llm.response"
    call: int
    finish_reason: str | None = None


class LlmRetryEvent(_BaseEvent):
    type: Literal["llm.retry"] = "llm.retry"
    reason: Literal["transient", "context_limit", "truncated"]
    attempt: int
    """From 1, each reason counted for itself."""
    delay_ms: int = 0
    error: str | None = None


class ToolStartEvent(_BaseEvent):
    type: Literal["tool.start"] = "tool.start"
    tool_call_id: str
    tool_name: str


class ToolEndEvent(_BaseEvent):
    type: Literal["tool.end"] = "tool.end"
    tool_call_id: str
    tool_name: str
    is_error: bool


class ToolSkippedEvent(_BaseEvent):
    type: Literal["tool.skipped"] = "tool.skipped"
    tool_call_id: str
    tool_name: str
    reason: str


class SteeringInjectedEvent(_BaseEvent):
    type: Literal["steering.injected"] = "steering.injected"
    messages: int


class InterruptReceivedEvent(_BaseEvent):
    type: Literal["interrupt.received"] = "interrupt.received"
    kind: InterruptKind


class SubturnSpawnEvent(_BaseEvent):
    """``turn_id`` of this and the next three is the parent's."""

    type: Literal["subturn.spawn"] = "subturn.spawn"
    child_id: str
    prompt: str
    depth: int
    critical: bool


class SubturnEndEvent(_BaseEvent):
    type: Literal["subturn.end"] = "subturn.end"
    child_id: str
    status: Literal["completed", "error"]
    error: str | None = None


class SubturnResultDeliveredEvent(_BaseEvent):
    type: Literal["subturn.result_delivered"] = "subturn.result_delivered"
    child_id: str
    content_length: int
    """In characters."""


class SubturnOrphanEvent(_BaseEvent):
    """Nobody takes the result of this child; this is where it is kept."""

    type: Literal["subturn.orphan"] = "subturn.orphan"
    child_id: str
    reason: OrphanReason
    content: str


class TurnErrorEvent(_BaseEvent):
    type: Literal["error"] = "error"
    error: str


TurnEvent = Annotated[
    TurnStartEvent
    | TurnEndEvent
    | LlmRequestEvent
    | LlmResponseEvent
    | LlmRetryEvent
    | ToolStartEvent
    | ToolEndEvent
    | ToolSkippedEvent
    | SteeringInjectedEvent
    | InterruptReceivedEvent
    | SubturnSpawnEvent
    | SubturnEndEvent
    | SubturnResultDeliveredEvent
    | SubturnOrphanEvent
    | TurnErrorEvent,
    Field(discriminator="type"),
]

_turn_event: TypeAdapter[TurnEvent] = TypeAdapter(TurnEvent)

TURN: Final = Hook[TurnEvent]("turn")
"""Every event of a turn, in order, between those of its streams."""


@final
class TurnEvents:
    """The events of turns on one spine."""

    def __init__(self, spine: EventSpine) -> None:
        self._spine = spine

    def subscribe(self, f: Callable[[TurnEvent], object]) -> Callable[[], None]:
        """Call ``f(event)`` for each event from now on. Gives a function that stops it."""
        return self._spine.observe(TURN, f)

    def emit(self, event: TurnEvent) -> None:
        """Hand ``event`` to every observer. Never raises."""
        self._spine.notify(TURN, event)


def parse_turn_event(fields: dict[str, object]) -> TurnEvent:
    """The event that decoded JSON describes. Raises ValueError when it describes none."""
    return _turn_event.validate_python(fields)
