"""Event streams: what the engine tells, to everybody who listens over HTTP.

A subscriber gets a snapshot of the live stream, then its events, in order. What is held for one
that is behind is bounded: past the bound it gets an overflow event, and its stream ends. It comes
again, and the new snapshot has everything.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any, Final, final

import structlog
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.types import Receive, Scope, Send

from streamengine import Event, StreamEngine
from streamengine.model import ErrorEvent, StreamAbortEvent, StreamEndEvent

from .config import Limits
from .problems import later

PING_SECONDS: Final = 15
RECONNECT_MS: Final = 1000

_log = structlog.get_logger("turns.host.sse")


def encode(kind: str, data: str) -> bytes:
    """One event as it goes over the wire. ``data`` is JSON."""
    return ServerSentEvent(data, event=kind).encode()


@final
class Subscription:
    """What one subscriber has still to get."""

    def __init__(self, first: bytes, limit_bytes: int, on_close: Callable[[], None]) -> None:
        # The snapshot is not counted: it is there once, and its text is held anyway.
        self._first: bytes | None = first
        self._limit_bytes = limit_bytes
        self._frames: deque[bytes] = deque()
        self._bytes = 0
        self._ended = False
        self._wake = asyncio.Event()
        self._on_close = on_close

    @property
    def held_bytes(self) -> int:
        """Of events that wait to be sent."""
        return self._bytes

    def push(self, frame: bytes) -> bool:
        """Add an event; a plain call. False: the subscriber is too far behind, and has lost what
        waited (an event of any size reaches one that is not behind).
        """
        if self._ended:
            return True
        if self._frames and self._bytes + len(frame) > self._limit_bytes:
            self._frames.clear()
            self._bytes = 0
            return False
        self._frames.append(frame)
        self._bytes += len(frame)
        self._wake.set()
        return True

    def end(self, last: bytes | None = None) -> None:
        """Nothing more comes; what waits is still delivered, then ``last``."""
        if self._ended:
            return
        if last is not None:
            self._frames.append(last)
            self._bytes += len(last)
        self._ended = True
        self._wake.set()

    def close(self) -> None:
        """The subscriber has gone. Twice is once."""
        self._ended = True
        self._frames.clear()
        self._bytes = 0
        self._wake.set()
        self._on_close()

    async def frames(self) -> AsyncGenerator[bytes]:
        """The snapshot, then the events, until the end."""
        if self._first is not None:
            first, self._first = self._first, None
            yield first
        while True:
            while self._frames:
                frame = self._frames.popleft()
                self._bytes -= len(frame)
                yield frame
            if self._ended:
                return
            self._wake.clear()
            await self._wake.wait()


@final
class Hub:
    """All event streams of one server."""

    def __init__(self, engine: StreamEngine, limits: Limits) -> None:
        self._engine = engine
        self._limits = limits
        self._subscriptions: dict[str, set[Subscription]] = {}
        # The message of a workspace that was told to have ended last: for some time after its
        # terminal event the engine still has it as the live one.
        self._ended: dict[str, str] = {}
        self._closed = False
        self._unsubscribe = engine.events.subscribe(self._tell)

    def subscribe(self, workspace_id: str) -> Subscription:
        """A subscription of one workspace, its snapshot in it. Raises Problem."""
        subscriptions = self._subscriptions.setdefault(workspace_id, set())
        if len(subscriptions) >= self._limits.subscribers:
            raise later(
                429,
                "too-many-subscribers",
                f"workspace {workspace_id} has {len(subscriptions)} open event streams, "
                "as many as it may have",
            )

        def forget() -> None:
            subscriptions.discard(subscription)
            if not subscriptions and self._subscriptions.get(workspace_id) is subscriptions:
                del self._subscriptions[workspace_id]

        # No suspension from here to the end: an event between snapshot and registration would be
        # lost, or told twice.
        snapshot = encode("snapshot", json.dumps(self._snapshot(workspace_id)))
        hello = f"retry: {RECONNECT_MS}\r\n".encode()
        subscription = Subscription(hello + snapshot, self._limits.subscriber_bytes, forget)
        subscriptions.add(subscription)
        return subscription

    @property
    def subscriber_count(self) -> int:
        return sum(len(subscriptions) for subscriptions in self._subscriptions.values())

    def live_message(self, workspace_id: str) -> tuple[str, str] | None:
        """Id and text so far of the message that is being answered."""
        live = self._engine.live_text(workspace_id)
        if live is None or self._ended.get(workspace_id) == live[0]:
            return None
        message_id, parts = live
        return message_id, "".join(part.text for part in parts)

    def close(self) -> None:
        """End every stream, after what waits in it. Twice is once."""
        if self._closed:
            return
        self._closed = True
        self._unsubscribe()
        goodbye = encode("shutting-down", json.dumps({"type": "shutting-down"}))
        for subscriptions in self._subscriptions.values():
            for subscription in subscriptions:
                subscription.end(goodbye)

    def _snapshot(self, workspace_id: str) -> Mapping[str, Any]:
        live = self.live_message(workspace_id)
        message_id, text = (None, "") if live is None else live
        return {
            "type": "snapshot",
            "workspaceId": workspace_id,
            "messageId": message_id,
            "text": text,
        }

    def _tell(self, event: Event) -> None:
        workspace_id = event.workspace_id
        if isinstance(event, StreamEndEvent | StreamAbortEvent | ErrorEvent):
            self._ended[workspace_id] = event.message_id
        subscriptions = self._subscriptions.get(workspace_id)
        if not subscriptions:
            return
        frame = encode(event.type, event.to_json())  # once, however many listen
        for subscription in list(subscriptions):
            if not subscription.push(frame):
                _log.warning("an event stream was too far behind: closed", workspaceId=workspace_id)
                subscription.end(_overflow(workspace_id))


def _overflow(workspace_id: str) -> bytes:
    fields = {"type": "overflow", "workspaceId": workspace_id}
    return encode("overflow", json.dumps(fields))


class EventStream(EventSourceResponse):
    """The response that delivers a subscription and gives it back, however it ends."""

    def __init__(self, subscription: Subscription) -> None:
        super().__init__(  # pyright: ignore[reportUnknownMemberType]  # a bare dict in its types
            subscription.frames(),
            ping=PING_SECONDS,
            ping_message_factory=lambda: ServerSentEvent(comment="ping"),
        )
        self._subscription = subscription

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            # Also when the client left before the first event was asked for.
            self._subscription.close()
