"""PartialWriter: what a stream has said, on disk, at most one throttle interval late (P2)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final, final

import structlog

import fibers as fb

from .history.store import HistoryStore
from .model.errors import HistoryError
from .model.note import LastEnd
from .model.rows import RowMetadata
from .model.usage import Usage
from .payloads import text_of
from .stream import Stream

PARTIAL_WRITE_THROTTLE_SECONDS: Final = 0.5

_log = structlog.get_logger("streamengine.partials")


@final
class PartialWriter:
    """Writes one stream's partial: the first part at once, then at most every half second.

    The first write, and one after a failure, is the whole partial, each other one only what was
    said since: an answer costs in proportion to its length. ``run`` waits and writes, in a fiber of
    its own; ``flush`` writes in between. Writes never overlap. After the last one (an error's, an
    abort's) or ``retire`` no path writes again (P3).
    """

    def __init__(self, stream: Stream, history: HistoryStore) -> None:
        self._stream = stream
        self._history = history
        self._lock = asyncio.Lock()
        self._dirty = asyncio.Event()
        self._last_try: float | None = None
        self._over = False
        # How many of the stream's parts are on disk; None before the first write.
        self._written: int | None = None

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

    async def flush(self, *, durable: bool = False) -> bool:
        """Write now, whatever the throttle says; joins a write in flight.

        False when it failed, which was logged: it is tried again after an interval. ``durable``
        for what somebody is told of right afterwards (a tool's result, E20).
        """
        # A write is not cut: half a second of text may hang on it, and retire waits for the lock.
        with fb.uninterruptible():
            async with self._lock:
                if self._over or not self._stream.parts:
                    return True
                self._dirty.clear()
                written = await self._put(durable=durable)
                self._last_try = self._stream.clock.now()
                if not written:
                    # Tried again after an interval, also when nothing more is said until then.
                    self._dirty.set()
                return written

    async def retire(self) -> None:
        """No write from now on; one that is in flight has ended when this returns."""
        self._over = True
        async with self._lock:
            pass

    @fb.effect
    async def conclude(self, end: LastEnd, **metadata: Any) -> bool:
        """The end of an aborted stream as one step of the store: its row or the note, the end of
        the reservation. False when it failed, or was over: each may be tried on its own then.
        """
        stream = self._stream
        with fb.uninterruptible():
            async with self._lock:
                if self._over:
                    return False
                row = stream.row(
                    partial=True,
                    abort_reason=end.abort_reason,
                    duration_ms=stream.duration_ms(),
                    **metadata,
                )
                exit_ = await self._history.conclude(stream.workspace_id, row, end).exit()
                self._over = isinstance(exit_, fb.Success)
                if isinstance(exit_, fb.Failure):
                    _log_not_written(stream, exit_.failure())
                return self._over

    async def write_error(
        self, error: str, error_type: str, *, usage: Usage | None = None, **metadata: Any
    ) -> bool:
        """The error partial: what was said, with what went wrong, durable: it stays until a commit
        that nobody waits for.
        """
        return await self._write_last(
            durable=True, error=error, error_type=error_type, usage=usage, **metadata
        )

    async def write_aborted(
        self, reason: str, *, usage: Usage | None = None, **metadata: Any
    ) -> bool:
        """The last partial of an aborted stream, with why it ended. The commit that comes next is
        what makes it durable: to wait for the disk here would be for nothing.

        ``metadata``: further fields of the row's metadata, for this and for ``write_error``.
        """
        return await self._write_last(durable=False, abort_reason=reason, usage=usage, **metadata)

    async def _write_last(self, *, durable: bool, **metadata: Any) -> bool:
        """False when it failed. A stream that said nothing leaves no partial."""
        with fb.uninterruptible():
            async with self._lock:
                if self._over:
                    return True
                # A flush that waits for the lock, or a throttled write still to come, would
                # otherwise come after the partial that says how it ended.
                self._over = True
                if not self._stream.parts:
                    return True
                if await self._put(durable=durable, **metadata):
                    return True
                # No interval comes after this one: once more, and whole.
                return await self._put(durable=durable, **metadata)

    async def _put(self, *, durable: bool, **metadata: Any) -> bool:
        stream = self._stream
        exit_ = await self._write(durable, metadata).exit()
        match exit_:
            case fb.Success():
                return True
            case fb.Failure(cause):
                # The stream goes on: the next write may succeed, and the final row is its own.
                # With everything: a log that takes no additions may be all that is broken.
                self._written = None
                _log_not_written(stream, cause)
                return False

    @fb.effect(raises=HistoryError)
    async def _write(self, durable: bool, metadata: Mapping[str, Any]) -> None:
        """What is new or, the first time, everything; with fields of the metadata."""
        stream = self._stream
        if self._written is not None:
            # Counted before the wait: what is said meanwhile belongs to the next write.
            said = len(stream.parts)
            ending: dict[str, Any] | None = None
            if metadata:
                ending = {"duration_ms": stream.duration_ms(), **metadata}
            try:
                await self._history.append_partial(
                    stream.workspace_id,
                    stream.message_id,
                    tuple(stream.parts[self._written : said]),
                    metadata=None if ending is None else RowMetadata(**ending),
                    durable=durable,
                )
            except HistoryError as error:
                if error.kind != "not_found":
                    raise
                self._written = None  # somebody removed it: begin anew, with everything
            else:
                self._written = said
                return
        said = len(stream.parts)
        row = stream.row(partial=True, duration_ms=stream.duration_ms(), **metadata)
        await self._history.write_partial(stream.workspace_id, row, durable=durable)
        self._written = said


def _log_not_written(stream: Stream, cause: fb.Cause[HistoryError]) -> None:
    _log.warning(
        "partial not written",
        workspaceId=stream.workspace_id,
        messageId=stream.message_id,
        error=text_of(cause.squash()),
    )
