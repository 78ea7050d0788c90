"""What a bridge says beside the events: of the connection itself, so of no message.

They are no events of the engine, whose every event names its message.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, TypeAdapter

from ..model.base import CamelModel
from ..model.events import Event
from ..model.ids import WorkspaceId

ReplayKind: TypeAlias = Literal["full", "since", "live"]
"""What a newcomer was told again: the live message from its start, what came after its cursor, or
nothing."""


class CaughtUpMessage(CamelModel):
    """All that was said before has been told: what comes now, happens now."""

    type: Literal["caught-up"] = "caught-up"
    workspace_id: WorkspaceId
    replay: ReplayKind
    cursor: str | None = None
    """Where the reader stands; None where nothing is live and it came without one, or with that of
    a message that is not known, or too far back: it begins anew, with the history."""
    has_older_history: bool = False
    """Whether the workspace has rows beside the message that was told."""


class HeartbeatMessage(CamelModel):
    """Nothing happened, and the connection stands."""

    type: Literal["heartbeat"] = "heartbeat"


class OverflowMessage(CamelModel):
    """The last one: the reader was too far behind. It may come again, with its cursor."""

    type: Literal["overflow"] = "overflow"
    workspace_id: WorkspaceId


class ShuttingDownMessage(CamelModel):
    """The last one: the process ends."""

    type: Literal["shutting-down"] = "shutting-down"


BridgeMessage: TypeAlias = Annotated[
    CaughtUpMessage | HeartbeatMessage | OverflowMessage | ShuttingDownMessage,
    Field(discriminator="type"),
]

_told: TypeAdapter[Event | BridgeMessage] = TypeAdapter(
    Annotated[Event | BridgeMessage, Field(discriminator="type")]
)


def parse_told(fields: Mapping[str, Any]) -> Event | BridgeMessage:
    """What decoded JSON of a bridge says. Raises ValueError when it says nothing known."""
    return _told.validate_python(fields)
