"""How the engine tells what happens, and how what it tells reaches who listens."""

from __future__ import annotations

from .bridge import HEARTBEAT_SECONDS, subscription_iterable
from .buffer import Buffer, BufferAll, BufferLatest, SubscriptionOverflowError
from .feed import Sink
from .hooks import STREAM_END, STREAM_START, Blockable, Hook, Next, Step, Waterfall
from .messages import (
    BridgeMessage,
    CaughtUpMessage,
    HeartbeatMessage,
    OverflowMessage,
    ReplayKind,
    ShuttingDownMessage,
    parse_told,
)
from .observable import EventObservable
from .replay import Cursor, cursor_of, replay, replayed_to_ms, retold, terminal_of, timestamp_of
from .spine import EventSpine

__all__ = [
    "HEARTBEAT_SECONDS",
    "STREAM_END",
    "STREAM_START",
    "Blockable",
    "BridgeMessage",
    "Buffer",
    "BufferAll",
    "BufferLatest",
    "CaughtUpMessage",
    "Cursor",
    "EventObservable",
    "EventSpine",
    "HeartbeatMessage",
    "Hook",
    "Next",
    "OverflowMessage",
    "ReplayKind",
    "ShuttingDownMessage",
    "Sink",
    "Step",
    "SubscriptionOverflowError",
    "Waterfall",
    "cursor_of",
    "parse_told",
    "replay",
    "replayed_to_ms",
    "retold",
    "subscription_iterable",
    "terminal_of",
    "timestamp_of",
]
