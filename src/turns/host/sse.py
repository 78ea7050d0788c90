"""Event streams (server-sent events): what a reader is told, as text over a response."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Final

from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.types import Receive, Scope, Send

if TYPE_CHECKING:
    from .hub import Subscription

RECONNECT_MS: Final = 1000
"""What a browser is told to wait before it comes again."""

_HELLO: Final = f"retry: {RECONNECT_MS}\r\n".encode()


def encode(kind: str, data: str, cursor: str | None = None) -> bytes:
    """One event as it goes over the wire. ``data`` is JSON; ``cursor`` becomes the id that a reader
    sends back as ``Last-Event-ID``.
    """
    return ServerSentEvent(data, event=kind, id=cursor).encode()


class EventStream(EventSourceResponse):
    """The response that delivers a subscription and gives it back, however it ends."""

    def __init__(self, subscription: Subscription) -> None:
        super().__init__(  # pyright: ignore[reportUnknownMemberType]  # a bare dict in its types
            _frames(subscription),
            ping=0,  # the heartbeats of the subscription do that
        )
        self._subscription = subscription

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            # Also when the client left before the first event was asked for.
            self._subscription.close()


async def _frames(subscription: Subscription) -> AsyncGenerator[bytes]:
    hello = _HELLO
    async with contextlib.aclosing(subscription.batches()) as batches:
        async for batch in batches:
            yield hello + b"".join(told.as_sse for told in batch)
            hello = b""
