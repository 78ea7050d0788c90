"""Creation: the record of a turn that is asked for, or why there can be none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

from streamengine import SendError
from streamengine.model import check_id

from ..model.ids import handle_id_of, new_handle_id, new_turn_id
from ..model.record import AttentionPolicy, TurnRecord, now

Attention: TypeAlias = Literal["blocking", "notify"]
"""Whether the owner of a turn waits for its end, or is told of it."""

_POLICY: Final[Mapping[Attention, AttentionPolicy]] = {
    "blocking": "blocking_until_terminal",
    "notify": "notify_on_terminal",
}


def new_record(
    *,
    owner: str,
    workspace_id: str,
    prompt: str,
    attention: Attention = "blocking",
    disposable: bool = False,
    client_turn_id: str | None = None,
) -> TurnRecord:
    """The record of a new turn. Raises SendError."""
    try:
        check_id(owner)
        check_id(workspace_id)
    except ValueError as error:
        raise SendError("invalid_id", str(error)) from error
    if attention not in _POLICY:
        raise SendError("invalid_attention", f"{attention!r} is not 'blocking' or 'notify'")
    if not prompt.strip():
        raise SendError("empty_message", "the prompt has no text")
    created = now()
    return TurnRecord(
        handle_id=(
            new_handle_id()
            if client_turn_id is None
            else handle_id_of(owner, workspace_id, client_turn_id)
        ),
        owner_workspace_id=owner,
        workspace_id=workspace_id,
        turn_id=new_turn_id(),
        created_at=created,
        updated_at=created,
        prompt=prompt,
        disposable_workspace=disposable,
        attention_policy=_POLICY[attention],
    )


def continuation_of(before: TurnRecord, prompt: str) -> TurnRecord:
    """The record of a turn that goes on with ``before`` by itself. Raises SendError."""
    return _after(before, prompt).changed(continues=before.handle_id)


def follow_up_of(before: TurnRecord, prompt: str) -> TurnRecord:
    """The record of a turn on what somebody said to ``before`` too late. Raises SendError."""
    return _after(before, prompt).changed(follows=before.handle_id)


def _after(before: TurnRecord, prompt: str) -> TurnRecord:
    record = new_record(
        owner=before.owner_workspace_id,
        workspace_id=before.workspace_id,
        prompt=prompt,
        disposable=before.disposable_workspace,
    )
    return record.changed(attention_policy=before.attention_policy)
