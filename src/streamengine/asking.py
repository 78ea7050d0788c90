"""What an answer is asked with: a message that is sent, or one that is on disk already."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError

from .conversation import for_provider, speaking
from .model.errors import SendError
from .model.parts import MessagePart, TextPart
from .model.request import StreamRequest
from .model.rows import AssistantRow, Row, UserRow

_KEPT: Final = (
    "prompt_id",
    "mode",
    "agent_id",
    "thinking_level",
    "system",
    "temperature",
    "max_output_tokens",
    "fallback_models",
)
"""What the user row keeps of a request beside its text, correlation, model and ids."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One message to be answered, as it stands in the conversation."""

    user: UserRow
    before: tuple[Row, ...]
    """What a provider is shown of the conversation before it."""
    so_far: tuple[MessagePart, ...] = ()
    """What answers to it have said already."""


def kept_of(request: StreamRequest) -> dict[str, Any] | None:
    """What the user row keeps of a request, to ask with the same after a restart."""
    fields = request.to_mapping()
    kept = {name: value for name in _KEPT if (value := fields.get(_alias(name)))}
    return kept or None


def request_of(row: UserRow) -> StreamRequest:
    """The request that a user row came from. What a newer version kept in it is passed over."""
    about: dict[str, Any] = {
        "text": "".join(part.text for part in row.parts if isinstance(part, TextPart)),
        "client_message_id": row.metadata.client_message_id,
        "correlation": row.metadata.correlation,
        "model": row.metadata.model,
    }
    kept = {name: value for name, value in (row.metadata.request or {}).items() if name in _KEPT}
    try:
        return StreamRequest.model_validate({**about, **kept})
    except ValidationError:
        return StreamRequest.model_validate(about)


def newest(rows: Sequence[Row], user: UserRow) -> Asked:
    """A message that was just added to the conversation."""
    return Asked(user, for_provider(row for row in rows if row.id != user.id))


def unanswered(rows: Sequence[Row]) -> Asked:
    """The last message of a conversation, where its answer isn't whole: none, an interrupted one,
    or one that stopped at its tools. Raises SendError where there is nothing to go on with.
    """
    at = next((i for i in reversed(range(len(rows))) if isinstance(rows[i], UserRow)), None)
    if at is None:
        raise SendError("nothing_to_resume", "the conversation has no message to answer")
    user = rows[at]
    assert isinstance(user, UserRow)
    answers = rows[at + 1 :]
    if answers and _is_whole(answers[-1]):
        raise SendError("nothing_to_resume", "the last message is answered")
    parts = [part for row in answers for part in row.parts]
    return Asked(user, for_provider(rows[:at]), speaking(parts))


def _is_whole(row: Row) -> bool:
    if not isinstance(row, AssistantRow) or row.is_partial:
        return False
    return row.metadata.finish_reason != "tool-calls" and row.metadata.step_limit is None


def _alias(name: str) -> str:
    return StreamRequest.model_fields[name].alias or name
