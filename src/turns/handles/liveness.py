"""Liveness: whether something still works on a turn, by identity (T17)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol, final

from fibers import Deferred, Effect
from streamengine import StreamEngine
from streamengine.model import ErrorEvent, StreamEndEvent
from streamengine.retry import RetryState

from ..model.correlation import correlates
from ..model.record import TurnRecord


class Retries(Protocol):
    """What tries failed answers again: ``AutoRetry`` of the engine."""

    def state(self, workspace_id: str) -> RetryState:
        """Where the retries of this workspace stand."""
        ...

    def call_off(self, workspace_id: str) -> Effect[None]:
        """A try that is pending won't come."""
        ...


@final
@dataclass(slots=True)
class LiveTurn:
    """What the process knows of a turn that has not settled."""

    handle_id: str
    turn_id: str
    workspace_id: str
    streams: set[str] = field(default_factory=set[str])
    """Message ids of its streams that run now."""
    has_begun: bool = False
    """A stream of it was told of."""
    has_runner: bool = False
    """Somebody may still start streams for it."""
    is_resumed: bool = False
    """It goes on after a restart, without a runner."""
    last_error: ErrorEvent | None = None
    """A stream of it failed, and it goes on all the same."""
    deferred: StreamEndEvent | None = None
    """The last end of a stream of it, where that waits for something."""
    last_begun: str | None = None
    """Message id of its last stream that this process has heard begin."""
    goes_on_after: set[str] = field(default_factory=set[str])
    """Message ids of those that ended with more to come, as its runner said at that moment."""
    taken: str | None = None
    """The message id of the answer that its runner has taken, though it was cut."""
    unjudged: list[StreamEndEvent] = field(default_factory=list[StreamEndEvent])
    """Ends of others of which the evidence could not be read (T2)."""
    settled: Deferred[TurnRecord] = field(default_factory=Deferred[TurnRecord])
    closed: Deferred[None] = field(default_factory=Deferred[None])
    """All that it held is released."""


@final
class Liveness:
    """Asks the engine and the retries."""

    def __init__(self, engine: StreamEngine, retries: Retries | None) -> None:
        self._engine = engine
        self._retries = retries

    def stream_of(self, record: TurnRecord) -> str | None:
        """The message id of a stream of this very turn that runs now."""
        live = self._engine.snapshot(record.workspace_id)
        if live is None or not correlates(record, live.workspace_id, live.correlation):
            return None
        return live.message_id

    def is_retrying(self, workspace_id: str) -> bool:
        """Whether the workspace's last answer is, or will be, tried again."""
        if self._retries is None:
            return False
        state = self._retries.state(workspace_id)
        return state.enabled and (state.pending or state.attempt > 0)

    def call_off(self, workspace_id: str) -> Effect[None]:
        """No further try in this workspace."""
        return (
            Effect.succeed(None) if self._retries is None else self._retries.call_off(workspace_id)
        )
