"""One lock a workspace, for as long as somebody wants it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import final


@final
class WorkspaceLocks:
    """Locks by workspace id, in the order of asking. An idle workspace costs nothing."""

    def __init__(self) -> None:
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}

    def __len__(self) -> int:
        """How many workspaces somebody holds or waits for."""
        return len(self._locks)

    @asynccontextmanager
    async def hold(self, workspace_id: str) -> AsyncGenerator[None]:
        """Hold the lock of the workspace in the block."""
        lock, users = self._locks.get(workspace_id, (None, 0))
        lock = lock or asyncio.Lock()
        self._locks[workspace_id] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            lock, users = self._locks[workspace_id]
            if users == 1:
                del self._locks[workspace_id]
            else:
                self._locks[workspace_id] = (lock, users - 1)
