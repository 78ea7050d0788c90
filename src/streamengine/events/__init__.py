"""How the engine tells what happens, and how what it tells reaches who listens."""

from __future__ import annotations

from .bridge import HEARTBEAT_SECONDS, subscription_iterable
from .buffer import Buffer, BufferAll, BufferLatest, SubscriptionOverflowError
from .feed import Sink
from .spine import EventSpine

__all__ = [
    "HEARTBEAT_SECONDS",
    "Buffer",
    "BufferAll",
    "BufferLatest",
    "EventSpine",
    "Sink",
    "SubscriptionOverflowError",
    "subscription_iterable",
]
