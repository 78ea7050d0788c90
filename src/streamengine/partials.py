"""PartialWriter: what a stream has said, on disk, at most one throttle interval late (P2)."""

from __future__ import annotations

import asyncio
from typing import Final, final

import structlog

import fibers as fb

from .history.store import HistoryStore
from .stream import Stream

PARTIAL_WRITE_THROTTLE_SECONDS: Final = 0.5

_log = structlog.get_logger("streamengine.partials")


@final
class PartialWriter:
    """Writes one stream's partial: the first part at once, then at most every half second.

    ``run`` waits and writes, in a fiber of its own; ``flush`` writes in between. Writes never
    overlap. After the last one (an error's, an abort's) or ``retire`` no path writes again (P3).
    """

    def __init__(self, stream: Stream, history: HistoryStore) -> None:
        self._stream = stream
        self._history = history
        self._lock = asyncio.Lock()
        self._dirty = asyncio.Event()
        self._last_try: float | None = None
        self._over = False

    def changed(self) -> None:
        """There is more to write."""
        self._dirty.set()

    @fb.effect
    async def run(self) -> None:
        """The writing itself; ends by interrupt, or after the last write."""
        clock = self._stream.clock
        while not self._over:
            await self._dirty.wait()
            if self._last_try is not None:
                await clock.sleep(self._last_try + PARTIAL_WRITE_THROTTLE_SECONDS - clock.now())
            await self.flush()

    async def flush(self) -> None:
        """Write now, whatever the throttle says; joins a write in flight. Failures are logged."""
        # A write is not cut: half a second of text may hang on it, and retire waits for the lock.
        with fb.uninterruptible():
            async with self._lock:
                if self._over or not self._stream.parts:
                    return
                self._dirty.clear()
                written = await self._put()
                self._last_try = self._stream.clock.now()
                if not written:
                    # Tried again after an interval, also when nothing more is said until then.
                    self._dirty.set()

    async def retire(self) -> None:
        """No write from now on; one that is in flight has ended when this returns."""
        self._over = True
        async with self._lock:
            pass

    async def write_error(self, error: str, error_type: str) -> None:
        """The error partial: what was said, with what went wrong (it stays until a commit)."""
        await self._write_last(error=error, error_type=error_type)

    async def write_aborted(self, reason: str) -> None:
        """The last partial of an aborted stream, durable, with why it ended."""
        await self._write_last(abort_reason=reason)

    async def _write_last(self, **metadata: str) -> None:
        with fb.uninterruptible():
            async with self._lock:
                if self._over:
                    return
                # A flush that waits for the lock, or a throttled write still to come, would
                # otherwise put the partial back to one that doesn't say how it ended.
                self._over = True
                if self._stream.parts:
                    await self._put(durable=True, **metadata)

    async def _put(self, *, durable: bool = False, **metadata: str) -> bool:
        stream = self._stream
        row = stream.row(partial=True, duration_ms=stream.duration_ms(), **metadata)
        exit_ = await self._history.write_partial(stream.workspace_id, row, durable=durable).exit()
        match exit_:
            case fb.Success():
                return True
            case fb.Failure(cause):
                # The stream goes on: the next write may succeed, and the final row is its own.
                _log.warning(
                    "partial not written",
                    workspaceId=stream.workspace_id,
                    messageId=stream.message_id,
                    error=str(cause.squash()),
                )
                return False
