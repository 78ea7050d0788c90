"""Warnings: tools of the turn whose effects can't be undone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, final

from ..open_turn import TurnEnd
from ..subscribers import Subscribers
from .hold import Hold, Holder


@dataclass(frozen=True, slots=True)
class UndoWarning:
    """Undoing this turn takes back its files, but not what these tools did."""

    turn_id: str
    tool_names: tuple[str, ...]

    def __str__(self) -> str:
        return f"An undo does not take back what {', '.join(self.tool_names)} did in this turn."


@final
class UndoWarnings:
    """Who is told, for one workspace."""

    def __init__(self) -> None:
        self.pending: dict[str, dict[str, None]] = {}
        """Names of tools by turn, in the order of their first use."""
        self._subscribers = Subscribers[UndoWarning]("warnings")

    def subscribe(self, f: Callable[[UndoWarning], object]) -> Callable[[], None]:
        """Call ``f`` with each warning; gives what ends that."""
        return self._subscribers.subscribe(f)

    def _tell(self, warning: UndoWarning) -> None:
        self._subscribers.tell(warning)


@final
class WarningHold(Hold):
    """The tools of this turn that a warning will name: one warning, at its clean end only."""

    name: ClassVar[str] = "undo warnings"

    def __init__(self, holder: Holder, warnings: UndoWarnings) -> None:
        super().__init__(holder)
        self._warnings = warnings

    def add(self, tool_name: str) -> None:
        """The tool has done something that can't be undone."""
        self._check_open()
        self._warnings.pending.setdefault(self._holder.turn_id, {})[tool_name] = None
        self._holder.changed()

    def _release(self, end: TurnEnd) -> None:
        names = tuple(self._warnings.pending.pop(self._holder.turn_id, ()))
        if names and end == "completed":
            self._warnings._tell(UndoWarning(self._holder.turn_id, names))
