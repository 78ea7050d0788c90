"""Attribution: whose file changes are."""

from __future__ import annotations

from typing import ClassVar, final

from ..files.watcher import Author
from ..open_turn import TurnEnd
from .hold import Hold, Holder


@final
class Attribution:
    """On whom the changes of one workspace are booked."""

    def __init__(self) -> None:
        self._turns: set[str] = set()

    @property
    def author(self) -> Author:
        """The agent while any turn has claimed the changes, else a person."""
        return "agent" if self._turns else "person"


@final
class AttributionHold(Hold):
    """The turn's claim that file changes are its own."""

    name: ClassVar[str] = "attribution"

    def __init__(self, holder: Holder, attribution: Attribution) -> None:
        super().__init__(holder)
        self._attribution = attribution

    def claim(self) -> None:
        """From now to the end of the turn, changes count as the agent's. Can be repeated."""
        self._check_open()
        self._attribution._turns.add(self._holder.turn_id)

    def _release(self, end: TurnEnd) -> None:
        self._attribution._turns.discard(self._holder.turn_id)
