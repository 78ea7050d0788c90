"""Places: who works in a workspace. One at a time; the others wait, first come, first served."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import final


@final
class Places:
    """The workspaces of one manager. ``start`` is called for who has waited, once the place is
    free: it takes it, or lets it pass.
    """

    def __init__(self, start: Callable[[str], None]) -> None:
        self._start = start
        self._taken: dict[str, str] = {}
        self._waiting: dict[str, deque[str]] = {}

    def taken_by(self, workspace_id: str) -> str | None:
        """Who works there now."""
        return self._taken.get(workspace_id)

    @property
    def waiting(self) -> list[str]:
        """All who wait."""
        return [who for queue in self._waiting.values() for who in queue]

    def wait(self, workspace_id: str, who: str) -> None:
        """Start ``who`` once the place is free."""
        self._waiting.setdefault(workspace_id, deque()).append(who)
        self._start_next(workspace_id)

    def give_up(self, workspace_id: str, who: str) -> None:
        """``who`` waits no more, if it did."""
        queue = self._waiting.get(workspace_id)
        if queue is not None and who in queue:
            queue.remove(who)  # an empty one goes with who works there

    def take(self, workspace_id: str, who: str) -> None:
        """From now on nobody else is started there."""
        self._taken[workspace_id] = who

    def take_if_free(self, workspace_id: str, who: str) -> bool:
        """As ``take``; False, and nothing changed, where somebody works there."""
        if workspace_id in self._taken:
            return False
        self.take(workspace_id, who)
        return True

    def free(self, workspace_id: str, who: str) -> bool:
        """Give the place back, for who starts nobody. False where it is somebody else's by now."""
        if self._taken.get(workspace_id) != who:
            return False
        del self._taken[workspace_id]
        return True

    def leave(self, workspace_id: str, who: str) -> None:
        """Give the place back: whoever waits longest is next."""
        if self.free(workspace_id, who):
            self._start_next(workspace_id)

    def _start_next(self, workspace_id: str) -> None:
        queue = self._waiting.get(workspace_id)
        while queue and workspace_id not in self._taken:
            self._start(queue.popleft())
        if queue is not None and not queue:
            self._waiting.pop(workspace_id, None)
