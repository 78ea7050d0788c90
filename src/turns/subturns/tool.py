"""The tool `subturn`: how a model starts a turn below its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from fibers import AbortSignal, Scope
from streamengine import ToolSpec, ToolUse

from ..model.errors import TurnError
from .context import CURRENT_TURN
from .parse import spawn_request
from .spawn import Subturns

_FIELDS: Final = ("prompt", "agent", "model", "critical")


@final
class SubturnTool:
    """Runs a subturn of the turn that calls it, and gives its answer.

        tools = (SubturnTool(lambda: loop.subturns, app_scope),)

    With ``background`` the call ends at once, and the turn hears the result as a message. The spawn
    then waits in ``scope``, the app scope: a child may have to outlive the call, and the turn.
    ``subturns`` is asked for when a call comes: the tool is made before the loop is.
    """

    spec = ToolSpec(
        name="subturn",
        description=(
            "Has a helper work on a task of its own, with a conversation of its own: it knows only "
            "the prompt. Gives its answer, or with background, tells it to you later."
        ),
        parameters={
            "type": "object",
            "properties": {
                "prompt": {"type": "string"},
                "agent": {"type": "string"},
                "model": {"type": "string"},
                "background": {"type": "boolean"},
                "critical": {"type": "boolean"},
            },
            "required": ["prompt"],
        },
    )

    def __init__(self, subturns: Callable[[], Subturns], scope: Scope) -> None:
        self._subturns = subturns
        self._scope = scope

    async def run(self, call: ToolUse, signal: AbortSignal) -> object:
        """Raises TurnError in words for the model."""
        parent = await CURRENT_TURN
        in_background = call.input.get("background") is True
        fields = {name: call.input[name] for name in _FIELDS if name in call.input}
        above = None if parent is None else parent.agent
        if above is not None and fields.keys().isdisjoint(("agent", "model")):
            fields["agent"] = above.name  # a model often names none, and means one like itself
        request = spawn_request({**fields, "delivers": in_background})
        spawn = self._subturns().spawn(request, parent=parent)
        if in_background:
            waiting = await spawn.fork_in(self._scope)
            waiting.set_name("spawn of a subturn")
            waiting.ignore_failure()  # what a child ends with is told; where none began, nothing is
            return {"started": True, "note": "You will be told the result."}
        result = await spawn
        if result.error is not None:
            raise TurnError("subturn", result.content)
        return result.content
