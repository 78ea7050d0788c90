"""Owned token streams: supervised in the app scope, kept on disk, ended exactly once."""

from __future__ import annotations

from .answers import StreamHandle
from .autoretry import AutoRetry
from .engine import StreamEngine
from .events.spine import EventSpine
from .history.store import FileHistory, HistoryStore
from .model.errors import HistoryError, SendError, StreamError
from .model.events import Event
from .model.parts import ProviderPart
from .model.request import Completion, StreamRequest
from .model.tools import ToolSpec
from .options import EngineOptions, StartOptions, Steps
from .providers.base import LateUsage, Provider
from .tools import Tool, ToolUse

__all__ = [
    "AutoRetry",
    "Completion",
    "EngineOptions",
    "Event",
    "EventSpine",
    "FileHistory",
    "HistoryError",
    "HistoryStore",
    "LateUsage",
    "Provider",
    "ProviderPart",
    "SendError",
    "StartOptions",
    "Steps",
    "StreamEngine",
    "StreamError",
    "StreamHandle",
    "StreamRequest",
    "Tool",
    "ToolSpec",
    "ToolUse",
]
