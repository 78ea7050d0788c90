"""A person's stop over HTTP. It binds what it names; where a turn is live, it has to name it."""

from __future__ import annotations

from typing import Final, Self

from pydantic import model_validator

from streamengine.model import MessageId

from ..manager import TurnHandle
from ..model.ids import TurnId
from .bodies import Body
from .problems import Problem
from .root import Root
from .turn_problems import asked

USER: Final = "user"
"""Who stops or interrupts a turn through this API."""


class StopBody(Body):
    """What to stop. Without a name: whatever is being answered, where that is no turn's."""

    message_id: MessageId | None = None
    turn_id: TurnId | None = None
    soft: bool = False
    abandon_partial: bool = False

    @model_validator(mode="after")
    def _one_thing(self) -> Self:
        if self.turn_id is not None and (
            self.message_id is not None or self.soft or self.abandon_partial
        ):
            raise ValueError(
                "turnId stands alone: a turn is stopped at once, and keeps what it said; "
                "for one last answer, interrupt it"
            )
        return self


async def stop(root: Root, workspace_id: str, body: StopBody) -> None:
    """Stop what ``body`` names, and wait for its end; of nothing that runs it changes nothing.

    Raises Problem, and nothing is stopped, where a live turn is not named, or another one is.
    """
    if body.turn_id is not None:
        await _stop_turn(root, workspace_id, body.turn_id)
        return
    if body.message_id is None:
        _refuse_unnamed(root, workspace_id)
        if root.retries is not None:
            await root.runtime.run(root.retries.call_off(workspace_id))
            if live_in(root, workspace_id) is not None:
                return  # it has begun meanwhile, in the place of what was to be stopped
    await root.runtime.run(
        root.engine.stop_stream(
            workspace_id,
            reason="user",
            message_id=body.message_id,
            soft=body.soft,
            abandon_partial=body.abandon_partial,
        )
    )


def live_in(root: Root, workspace_id: str) -> TurnHandle | None:
    """The turn that runs in a workspace."""
    return None if root.turns is None else root.turns.manager.live_in(workspace_id)


async def _stop_turn(root: Root, workspace_id: str, turn_id: str) -> None:
    if root.turns is None:
        return
    live = live_in(root, workspace_id)
    if live is not None and live.turn_id != turn_id:
        raise _refusal(live, "other-turn-live", f"{turn_id} does not run here")
    manager = root.turns.manager
    # Not the live one alone: there is none while one that has settled winds down, and others wait.
    for record in manager.unsettled():
        if (record.workspace_id, record.turn_id) == (workspace_id, turn_id):
            await asked(root, manager.interrupt(record.handle_id, by=USER))


def _refuse_unnamed(root: Root, workspace_id: str) -> None:
    live = live_in(root, workspace_id)
    if live is not None:
        raise _refusal(live, "turn-not-named", "a stop of a turn names it")


def _refusal(live: TurnHandle, kind: str, why: str) -> Problem:
    return Problem(
        409,
        kind,
        f"{why}: the turn that runs here is {live.turn_id}. Nothing was stopped",
        extra={"turnId": live.turn_id, "handleId": live.handle_id},
    )
