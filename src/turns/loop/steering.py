"""Steering: what a person says while a turn runs, until the turn hears it."""

from __future__ import annotations

from collections import deque
from typing import final

from ..model.errors import TurnError
from .config import SteeringMode


@final
class Steering:
    """A queue a session, and one for whoever names none: a session whose own is empty takes from
    that, unless it is that of a subturn, where nobody in person is.
    """

    def __init__(self, *, capacity: int, mode: SteeringMode) -> None:
        self._capacity = capacity
        self._mode: SteeringMode = mode
        self._queues: dict[str | None, deque[str]] = {}

    @property
    def counts(self) -> dict[str | None, int]:
        """How many messages wait, by session."""
        return {session: len(queue) for session, queue in self._queues.items() if queue}

    def put(self, session: str | None, text: str) -> None:
        """Queue ``text``. Raises TurnError ("steering_full", "empty_message")."""
        if not text.strip():
            raise TurnError("empty_message", "the message has no text", "Say something.")
        queue = self._queues.setdefault(session, deque())
        if len(queue) >= self._capacity:
            raise TurnError(
                "steering_full",
                "steering queue is full",
                f"Wait until the turn has heard some of the {self._capacity} messages.",
            )
        queue.append(text)

    def waits(self, session: str, *, hears_all: bool = True) -> bool:
        """Whether there is something that this session takes next. What was for anybody is its own
        from now on: whoever was told so waits for it, and another must not be quicker.
        """
        queue, for_all = self._queues.get(session), self._queues.get(None)
        if not queue and for_all and hears_all:
            self._queues[session] = deque(self._heard_now(None))
        return bool(self._queues.get(session))

    def take(self, session: str) -> list[str]:
        """What the turn hears now: the oldest message, or all of them."""
        return self._heard_now(session)

    def _heard_now(self, key: str | None) -> list[str]:
        queue = self._queues.get(key)
        if not queue:
            return []
        taken = [queue.popleft()] if self._mode == "one-at-a-time" else list(queue)
        if not queue or self._mode == "all":
            del self._queues[key]
        return taken

    def put_back(self, session: str, text: str) -> None:
        """It was taken, and nobody could hear it: it is next, also where there is no room."""
        self._queues.setdefault(session, deque()).appendleft(text)

    def clear(self, session: str) -> int:
        """Forget what was queued in this session; gives how many messages."""
        return len(self._queues.pop(session, ()))
