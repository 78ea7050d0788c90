"""Owned token streams: supervised in the app scope, kept on disk, ended exactly once."""

from __future__ import annotations

from .engine import StreamEngine, StreamHandle
from .events.spine import EventSpine
from .history.store import FileHistory, HistoryStore
from .model.errors import HistoryError, SendError, StreamError
from .model.events import Event
from .model.request import Completion, StreamRequest
from .providers.base import Provider

__all__ = [
    "Completion",
    "Event",
    "EventSpine",
    "FileHistory",
    "HistoryError",
    "HistoryStore",
    "Provider",
    "SendError",
    "StreamEngine",
    "StreamError",
    "StreamHandle",
    "StreamRequest",
]
