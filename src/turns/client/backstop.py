"""SilenceBackstop: an agent that says nothing for too long has stalled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, final

import fibers as fb
from fibers import Clock

SILENCE_SECONDS: Final = 120.0


@final
class SilenceBackstop:
    """Ends its ``watch`` when nothing was heard for ``silence_seconds``.

    While ``is_excused`` says so (a person is asked something, a tool says that it is alive) silence
    is no stall; after that the time begins anew. ``look`` tells it that the answer has changed.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        silence_seconds: float = SILENCE_SECONDS,
        is_excused: Callable[[], bool],
    ) -> None:
        self._clock = clock
        self._silence_seconds = silence_seconds
        self._is_excused = is_excused
        self._heard_at_seconds = clock.now()
        self._was_excused = False
        self._news = asyncio.Event()

    def heard(self) -> None:
        """The agent said something."""
        self._heard_at_seconds = self._clock.now()

    def look(self) -> None:
        """Whether silence is excused may have changed."""
        excused = self._is_excused()
        if excused != self._was_excused:
            self._was_excused = excused
            self.heard()
            self._news.set()

    @fb.effect
    async def watch(self) -> None:
        """Returns when it has been silent for too long."""
        self.look()
        while True:
            if self._was_excused:
                self._news.clear()
                await self._news.wait()
                continue
            heard_at_seconds = self._heard_at_seconds
            await self._clock.sleep(heard_at_seconds + self._silence_seconds - self._clock.now())
            # Not whether the clock has come to the sum: the two may differ by a rounding.
            if self._is_silent_since(heard_at_seconds):
                return

    def _is_silent_since(self, heard_at_seconds: float) -> bool:
        return not self._was_excused and heard_at_seconds == self._heard_at_seconds
