"""The tool `subturn`: how a model starts a turn below its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

import fibers as fb
from fibers import AbortSignal, Exit, Scope
from streamengine import ToolSpec, ToolUse

from ..model.errors import TurnError
from .config import SpawnRequest, SubturnResult
from .context import CURRENT_TURN
from .parse import spawn_request
from .results import Delivery
from .spawn import Begun, Subturns
from .state import TurnState

_FIELDS: Final = ("prompt", "agent", "model", "critical")


@final
class SubturnTool:
    """Runs a subturn of the turn that calls it, and gives its answer.

        tools = (SubturnTool(lambda: loop.subturns, app_scope),)

    With ``background`` the call ends at once, and the turn hears the result as a message, or why
    there is none. What has to wait for a slot waits in ``scope``, the app scope.
    ``subturns`` is asked for when a call comes: the tool is made before the loop is.
    """

    spec: ToolSpec = ToolSpec(
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
        subturns = self._subturns()
        if in_background:
            await self._begin(subturns, request, parent)
            return {"started": True, "note": "You will be told the result."}
        result = await subturns.spawn(request, parent=parent)
        if result.error is not None:
            raise TurnError("subturn", result.content)
        return result.content

    async def _begin(
        self, subturns: Subturns, request: SpawnRequest, parent: TurnState | None
    ) -> None:
        """Start it, or have it wait for a slot. Raises TurnError where it can't begin."""
        begin = subturns.begin(request, parent=parent)
        beginning = await begin.fork_in(self._scope, start_immediately=True)
        beginning.set_name("spawn of a subturn")
        beginning.ignore_failure()
        if beginning.poll() is not None:
            await beginning
        elif parent is not None:
            beginning.add_observer(lambda exit_: _tell_refusal(exit_, parent))


def _tell_refusal(exit_: Exit[Begun, TurnError], parent: TurnState) -> None:
    """The model waits for a result: of a child that never began it hears why."""
    if isinstance(exit_, fb.Failure) and exit_.failure().has_fails:
        refused = SubturnResult.failed("subturn", str(exit_.failure().squash()))
        parent.results.put(Delivery(refused, lambda _outcome: None))
