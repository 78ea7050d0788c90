"""How the engine tells what happens, and how what it tells reaches who listens."""

from __future__ import annotations

from .bridge import HEARTBEAT_SECONDS, subscription_iterable
from .buffer import Buffer, BufferAll, BufferLatest, SubscriptionOverflowError
from .feed import Sink
from .hooks import STREAM_END, STREAM_START, Blockable, Hook, Next, Step, Waterfall
from .spine import EventSpine

__all__ = [
    "HEARTBEAT_SECONDS",
    "STREAM_END",
    "STREAM_START",
    "Blockable",
    "Buffer",
    "BufferAll",
    "BufferLatest",
    "EventSpine",
    "Hook",
    "Next",
    "Sink",
    "Step",
    "SubscriptionOverflowError",
    "Waterfall",
    "subscription_iterable",
]
