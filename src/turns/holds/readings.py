"""Live readings: what the running turn has used so far, for who draws a meter."""

from __future__ import annotations

from typing import ClassVar, Final, final

from ..open_turn import TurnEnd
from .hold import Hold, Holder

NO_READING: Final = -1
"""No turn runs, or it has not said anything about it."""


@final
class LiveReadings:
    """The meters of one workspace."""

    def __init__(self) -> None:
        self.tokens: int = NO_READING
        self.cost_usd: float = NO_READING
        self._turn_id: str | None = None


@final
class ReadingsHold(Hold):
    """The turn's right to the meters. What comes after its end is dropped."""

    name: ClassVar[str] = "live readings"

    def __init__(self, holder: Holder, readings: LiveReadings) -> None:
        super().__init__(holder)
        self._readings = readings

    def show(self, *, tokens: int | None = None, cost_usd: float | None = None) -> None:
        """The new reading of a meter; None leaves it as it is."""
        if not self._holder.is_open:
            return
        self._readings._turn_id = self._holder.turn_id
        if tokens is not None:
            self._readings.tokens = tokens
        if cost_usd is not None:
            self._readings.cost_usd = cost_usd
        self._holder.changed()

    def _release(self, end: TurnEnd) -> None:
        if self._readings._turn_id == self._holder.turn_id:
            self._readings.tokens = NO_READING
            self._readings.cost_usd = NO_READING
            self._readings._turn_id = None
