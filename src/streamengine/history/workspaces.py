"""The workspaces that a process works on: those used last, and each with something in flight."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Final, Generic, TypeVar, final

T = TypeVar("T")

KEPT_WORKSPACES: Final = 256
"""How many idle ones are remembered. What is kept of one grows with the number of its rows."""


@final
class Workspaces(Generic[T]):
    """What is remembered of each workspace, by its id; made when it is first asked for.

    One that is idle and was used longest ago is forgotten where there are too many: it can be made
    anew from what is on disk. ``is_idle`` says that nothing else would be lost.
    """

    def __init__(
        self,
        make: Callable[[str], T],
        *,
        is_idle: Callable[[T], bool],
        most: int = KEPT_WORKSPACES,
    ) -> None:
        self._make = make
        self._is_idle = is_idle
        self._most = most
        # In the order of their last use.
        self._kept: dict[str, T] = {}
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, workspace_id: str) -> T:
        """Raises what the making of it raises; nothing is remembered then."""
        with self._lock:
            known = self._kept.pop(workspace_id, None)
            workspace = self._make(workspace_id) if known is None else known
            self._kept[workspace_id] = workspace
            if known is None:
                self._forget_some()
            return workspace

    def _forget_some(self) -> None:
        # Two for one that came: so those that were busy at the time go later.
        for _ in range(2):
            if len(self._kept) <= self._most:
                return
            oldest = next(iter(self._kept))
            workspace = self._kept.pop(oldest)
            if not self._is_idle(workspace):
                self._kept[oldest] = workspace
