"""What a live stream has said so far, as a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .events import UsageDeltaEvent
from .parts import MessagePart
from .request import StreamRequest


@dataclass(frozen=True, slots=True)
class LiveSnapshot:
    """A live stream at one moment: everything from which its events can be told again.

    ``parts`` are the recorded ones, one a delta, in order: each with the timestamp of its event.
    """

    workspace_id: str
    message_id: str
    request: StreamRequest
    """As the caller sent it."""
    history_sequence: int
    start_time_ms: int
    """Milliseconds since the Unix epoch."""
    parts: tuple[MessagePart, ...] = ()
    usage: UsageDeltaEvent | None = None
    """The last one that was told."""

    @property
    def model(self) -> str | None:
        return self.request.model

    @property
    def correlation(self) -> Mapping[str, Any] | None:
        return self.request.correlation

    @property
    def prompt_id(self) -> str | None:
        return self.request.prompt_id
