"""The tool `files`: read, write, edit, remove, list, and take back."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final, final

from fibers import AbortSignal
from streamengine import ToolSpec, ToolUse

from ..model.errors import TurnError
from ..turn import OpenTurns, Turn
from .calls import text_in, turn_of

_ACTIONS: Final = ("read", "write", "edit", "remove", "list", "undo")


@final
class FilesTool:
    """Works on the files in the folder of the workspace.

        engine = StreamEngine(..., tools=[FilesTool(open_turns)])

    All that it changes in one turn is one undo step. It is refused outside of a turn.
    """

    spec: ToolSpec = ToolSpec(
        name="files",
        description=(
            "Files of the project, by their path relative to its folder. "
            "read gives the text of a file; write puts a whole text in its place; edit replaces "
            "`old`, which must occur exactly once, by `new`; remove deletes it; list gives what "
            "is in a directory; undo takes back all changes of this turn, or else of the last one "
            "that changed files."
        ),
        parameters={
            "type": "object",
            "properties": {
                "action": {"type": "string", "enum": list(_ACTIONS)},
                "path": {"type": "string"},
                "text": {"type": "string", "description": "for write"},
                "old": {"type": "string", "description": "for edit"},
                "new": {"type": "string", "description": "for edit"},
            },
            "required": ["action"],
        },
    )

    def __init__(self, open_turns: OpenTurns) -> None:
        self._open_turns = open_turns

    async def run(self, call: ToolUse, signal: AbortSignal) -> object:
        """Raises TurnError in words for the model."""
        turn = turn_of(call, self._open_turns)
        given = call.input
        action = text_in(given, "action")
        match action:
            case "read":
                return await asyncio.to_thread(_read, turn, text_in(given, "path"))
            case "list":
                return await asyncio.to_thread(_list, turn, text_in(given, "path", "."))
            case "write" | "edit" | "remove" | "undo":
                return await _change(turn, action, given)
            case _:
                known = ", ".join(_ACTIONS)
                raise TurnError("bad_input", f"there is no action {action!r}", f"Use: {known}.")


def _read(turn: Turn, path: str) -> object:
    stored = turn.workspace.folder.read(path)
    if stored is None:
        raise TurnError("not_found", f"there is no {path}", "List the folder to see what is.")
    try:
        return {"text": stored.data.decode()}
    except UnicodeDecodeError as error:
        raise TurnError("not_text", f"{path} is no UTF-8 text", "It can't be read here.") from error


def _list(turn: Turn, path: str) -> object:
    entries, is_cut = turn.workspace.folder.entries(path)
    given: dict[str, object] = {
        "entries": [
            {"name": entry.name, "kind": entry.kind, "bytes": entry.size_bytes} for entry in entries
        ]
    }
    return given | {"more": True} if is_cut else given


async def _change(turn: Turn, action: str, given: Mapping[str, Any]) -> object:
    turn.attribution.claim()
    group = turn.changes.begin_if_needed()
    if action == "undo":
        undone = await asyncio.to_thread(group.undo)
        if undone is None:
            undone = await asyncio.to_thread(turn.workspace.journal.undo)
        return {"undone": list(undone.paths)}
    path = text_in(given, "path")
    if action == "write":
        data = _encoded(text_in(given, "text"))
        await asyncio.to_thread(group.write, path, data)
    elif action == "edit":
        old, new = text_in(given, "old"), text_in(given, "new")
        _encoded(new)
        await asyncio.to_thread(group.edit, path, old, new)
    else:
        await asyncio.to_thread(group.remove, path)
    return {"done": path}


def _encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise TurnError("bad_input", "the text holds half a character", "Give it whole.") from error
