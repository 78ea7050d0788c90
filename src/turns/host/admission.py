"""Admission: how many workspaces are answered at the same time, and which."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import final

from .problems import later


@final
class Admission:
    """How many workspaces are answered at the same time, and which."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._busy: Counter[str] = Counter()

    def enter(self, workspace_id: str) -> Callable[[], None]:
        """Count a start; gives the function that ends it. Raises Problem.

        A workspace that is busy may always start again: the new answer replaces the old one.
        """
        if workspace_id not in self._busy and len(self._busy) >= self._most:
            raise later(
                503,
                "too-many-streams",
                f"{self._most} workspaces are being answered, as many as may be at a time",
            )
        return self.count(workspace_id)

    def count(self, workspace_id: str) -> Callable[[], None]:
        """Count what nobody can refuse any more, such as a turn that was begun before; gives the
        function that ends it.
        """
        self._busy[workspace_id] += 1

        def leave() -> None:
            self._busy[workspace_id] -= 1
            if not self._busy[workspace_id]:
                del self._busy[workspace_id]

        return leave
