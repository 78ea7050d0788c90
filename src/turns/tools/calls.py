"""What both tools ask of a call: whose it is, and what it says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamengine import ToolUse

from ..model.errors import TurnError
from ..turn import OpenTurns, Turn


def turn_of(call: ToolUse, open_turns: OpenTurns) -> Turn:
    """The turn that a call is made in, by its correlation. Raises TurnError("no_turn")."""
    turn_id = (call.correlation or {}).get("turnId")
    turn = open_turns.get(turn_id) if isinstance(turn_id, str) else None
    if turn is None or turn.workspace_id != call.workspace_id:
        raise TurnError("no_turn", "this tool works in a turn only", "Ask for it in a turn.")
    return turn


def text_in(given: Mapping[str, Any], name: str, default: str | None = None) -> str:
    """A text of the input. Raises TurnError("bad_input") in words for the model."""
    value = given.get(name, default)
    if not isinstance(value, str):
        raise TurnError("bad_input", f"`{name}` must be a text", "Give it and call again.")
    return value
