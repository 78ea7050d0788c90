"""What a reader of a workspace is told of its turns, beside their events."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

from pydantic import Field

from streamengine.model.base import CamelModel

from ..events import TurnErrorEvent, TurnEvent
from ..holds.permission import PermissionNews
from ..model.record import TurnRecord
from .board import Change, TurnNode

RECORD_CHARACTERS: Final = 2_000
"""How much of a text of a record is told with its changes."""
_LONG: Final = {"prompt": "prompt", "final_message": "finalMessage", "error": "error"}
"""Texts of any length, and what they are called in JSON."""


class _Message(CamelModel):
    workspace_id: str


class TurnsMessage(_Message):
    """The turns of the workspace as a tree, for a newcomer."""

    type: Literal["turns"] = "turns"
    nodes: tuple[TurnNode, ...]
    """As they were created, each before what is below it."""


class TurnsChangedMessage(_Message):
    """What is different in that tree now."""

    type: Literal["turns.changed"] = "turns.changed"
    nodes: tuple[TurnNode, ...] = ()
    """New turns, and turns that are not what they were."""
    gone: tuple[str, ...] = ()
    """Ids of turns that the tree has no more."""


class TurnRecordMessage(_Message):
    """A record as it is on disk now, but for what is ``cut``."""

    type: Literal["turn.record"] = "turn.record"
    record: TurnRecord
    cut: tuple[str, ...] | None = None
    """Fields of which only the beginning is told, RECORD_CHARACTERS long."""


class TurnErrorMessage(_Message):
    """The event ``error`` of a turn under another name: ``error`` is the end of a stream here."""

    type: Literal["turn.error"] = "turn.error"
    turn_id: str
    timestamp: int
    """Milliseconds since the Unix epoch."""
    error: str


class PermissionAskedMessage(_Message):
    """A turn asks a person. It waits."""

    type: Literal["permission.asked"] = "permission.asked"
    turn_id: str
    request_id: str
    question: str
    subject: str
    """What a remembered answer is for."""


class PermissionAnsweredMessage(_Message):
    """A person has answered."""

    type: Literal["permission.answered"] = "permission.answered"
    turn_id: str
    request_id: str
    allowed: bool


class PermissionDroppedMessage(_Message):
    """Nobody can answer any more: the turn has ended, or asks something else."""

    type: Literal["permission.dropped"] = "permission.dropped"
    turn_id: str
    request_id: str


TurnMessage: TypeAlias = Annotated[
    TurnsMessage
    | TurnsChangedMessage
    | TurnRecordMessage
    | TurnErrorMessage
    | PermissionAskedMessage
    | PermissionAnsweredMessage
    | PermissionDroppedMessage,
    Field(discriminator="type"),
]


def of_record(record: TurnRecord) -> TurnRecordMessage:
    """A record that was stored. It changes some times in a turn, and each time all readers get it:
    its long texts, which don't change with it, are asked for.
    """
    texts = {name: getattr(record, name) for name in _LONG}
    long = {name: text for name, text in texts.items() if len(text or "") > RECORD_CHARACTERS}
    told = {name: text[:RECORD_CHARACTERS] for name, text in long.items()}
    return TurnRecordMessage(
        workspace_id=record.workspace_id,
        record=record.model_copy(update=told),
        cut=tuple(_LONG[name] for name in long) or None,
    )


def of_event(event: TurnEvent) -> TurnEvent | TurnErrorMessage:
    """The event itself, unless its type says something else among those of streams."""
    if not isinstance(event, TurnErrorEvent):
        return event
    return TurnErrorMessage(
        workspace_id=event.workspace_id,
        turn_id=event.turn_id,
        timestamp=event.timestamp_ms,
        error=event.error,
    )


def of_permission(
    workspace_id: str, news: PermissionNews
) -> PermissionAskedMessage | PermissionAnsweredMessage | PermissionDroppedMessage:
    """What became of a question."""
    card = news.card
    match news.verdict:
        case None:
            return PermissionAskedMessage(
                workspace_id=workspace_id,
                turn_id=card.turn_id,
                request_id=card.request_id,
                question=card.question,
                subject=card.subject,
            )
        case "dropped":
            return PermissionDroppedMessage(
                workspace_id=workspace_id, turn_id=card.turn_id, request_id=card.request_id
            )
        case "allowed" | "denied" as verdict:
            return PermissionAnsweredMessage(
                workspace_id=workspace_id,
                turn_id=card.turn_id,
                request_id=card.request_id,
                allowed=verdict == "allowed",
            )


def of_change(change: Change) -> TurnsChangedMessage:
    """What is different on the board."""
    return TurnsChangedMessage(
        workspace_id=change.workspace_id, nodes=change.nodes, gone=change.gone
    )
