"""The feed: all that is told of the turns of this process, as messages, each workspace apart."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias, final

from ..agent_turns import AgentTurns
from ..events import TurnEvent
from ..holds.permission import PermissionNews
from ..model.record import TurnRecord
from ..subscribers import Subscribers
from ..workspace import Workspace
from .board import Board, Change
from .turn_messages import (
    TurnMessage,
    TurnsMessage,
    of_change,
    of_event,
    of_permission,
    of_record,
)

AnyMessage: TypeAlias = TurnMessage | TurnEvent


@dataclass(frozen=True, slots=True)
class TurnNews:
    """What happened in a workspace, and what it changed in its tree, in this order."""

    workspace_id: str
    messages: tuple[AnyMessage, ...]


@final
class TurnFeed:
    """Follows turns from before their start on: what begins then is not missed.

        feed = TurnFeed(turns)
        await occupy(app_scope, turns.manager)
        feed.take_up(await turns.manager.list())

    Between ``turns_of`` and ``subscribe`` there must be no wait: so a reader hears of each thing
    once, in the tree or by itself.
    """

    def __init__(self, turns: AgentTurns) -> None:
        self._board = Board()
        self._subscribers = Subscribers[TurnNews]("turns")
        turns.manager.observe(self._on_record)
        turns.loop.events.subscribe(self._on_event)
        turns.open_turns.workspaces.observe(self._on_workspace)

    def take_up(self, records: Iterable[TurnRecord]) -> None:
        """Show records that were there before; newer ones of the same turns stay."""
        for record in records:
            if not self._board.knows(record):
                self._board.fold_record(record)

    def turns_of(self, workspace_id: str) -> TurnsMessage | None:
        """The tree of a workspace as it is now; None where it has no turns."""
        nodes = self._board.nodes(workspace_id)
        return TurnsMessage(workspace_id=workspace_id, nodes=nodes) if nodes else None

    def subscribe(self, f: Callable[[TurnNews], object]) -> Callable[[], None]:
        """Call ``f`` with all that happens from now on. Gives what ends that."""
        return self._subscribers.subscribe(f)

    def _on_record(self, record: TurnRecord) -> None:
        message = of_record(record)
        change = self._board.fold_record(record, is_new=record.status == "queued")
        self._tell(record.workspace_id, message, change)

    def _on_event(self, event: TurnEvent) -> None:
        self._tell(event.workspace_id, of_event(event), self._board.fold_event(event))

    def _on_workspace(self, workspace: Workspace) -> None:
        workspace_id = workspace.workspace_id

        def on_permission(news: PermissionNews) -> None:
            change = self._board.fold_permission(workspace_id, news)
            self._tell(workspace_id, of_permission(workspace_id, news), change)

        workspace.permissions.subscribe(on_permission)

    def _tell(self, workspace_id: str, message: AnyMessage, change: Change | None) -> None:
        changed = () if change is None else (of_change(change),)
        self._subscribers.tell(TurnNews(workspace_id, (message, *changed)))
