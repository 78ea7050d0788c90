"""CrashLoop: an agent that dies again and again is not started again."""

from __future__ import annotations

from collections import deque
from typing import Final, final

from fibers import Clock

DEATHS: Final = 3
WINDOW_SECONDS: Final = 60.0


@final
class CrashLoop:
    """Suspended from the death on that is the third within a minute, until ``reset``."""

    def __init__(
        self, clock: Clock, *, deaths: int = DEATHS, window_seconds: float = WINDOW_SECONDS
    ) -> None:
        self._clock = clock
        self._window_seconds = window_seconds
        self._times_seconds: deque[float] = deque(maxlen=deaths)
        self._is_suspended = False

    @property
    def is_suspended(self) -> bool:
        return self._is_suspended

    def died(self) -> bool:
        """Note a death; whether it is one too many."""
        now = self._clock.now()
        times = self._times_seconds
        times.append(now)
        if len(times) == times.maxlen and now - times[0] <= self._window_seconds:
            self._is_suspended = True
        return self._is_suspended

    def reset(self) -> None:
        """A person wants to try again."""
        self._is_suspended = False
        self._times_seconds.clear()
