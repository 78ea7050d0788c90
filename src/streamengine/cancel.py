"""Stopping a stream: one latch, one cleanup, one stream-abort, whoever asks and how often.

A user's stop, a soft stop at its boundary, the next start of the workspace and the close of the app
scope all come through ``Canceller.begin``. The first decides why and what becomes of the text; the
others wait for its cleanup.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, final

import structlog

import fibers as fb

from .model.events import StreamAbortEvent
from .model.request import Completion
from .stream import StopWish, Stream, StreamState

if TYPE_CHECKING:
    from .events.spine import EventSpine
    from .history.store import HistoryStore

_log = structlog.get_logger("streamengine.cancel")


@final
class Canceller:
    """Ends streams of one engine. ``forget`` takes a stream out of the engine's registry."""

    def __init__(
        self, history: HistoryStore, events: EventSpine, forget: Callable[[Stream], None]
    ) -> None:
        self._history = history
        self._events = events
        self._forget = forget

    def begin(self, stream: Stream, wish: StopWish) -> None:
        """Set the latch and start the cleanup; nothing where it is set, or where the stream has
        come to its end by itself. A plain call: no suspension can stand between the check and the
        set (E4).
        """
        if stream.stop is None and stream.terminal is None:
            # Before the fork, which runs code at once: a listener of the abort may stop it too.
            stream.stop = wish
            cleanup = self._cancel(stream, wish).provide_service(fb.ClockTag, stream.clock)
            # Nobody who is interrupted, not even the end of the loop, takes the cleanup along.
            fiber = fb.run_fork(cleanup.uninterruptible())
            fiber.set_name(f"abort of {stream.workspace_id}/{stream.message_id}")

    @fb.effect
    async def cancel(self, stream: Stream, wish: StopWish) -> None:
        """Stop ``stream`` and wait until it has ended and been told, by this abort, by an earlier
        one or by itself (E3, E7).
        """
        self.begin(stream, wish)
        await stream.completing.wait()

    @fb.effect
    async def _cancel(self, stream: Stream, wish: StopWish) -> None:
        if stream.state in (StreamState.STARTING, StreamState.STREAMING):
            stream.state = StreamState.STOPPING
        await _guarded("flush before the abort", stream, self._flush(stream, wish))
        stream.controller.abort(wish.reason)
        if stream.processing is not None:
            await stream.processing.exit()
        if stream.terminal is not None:
            return  # it completed or failed while the cancel was under way: told already (E6)
        await self._tell(stream, wish)

    @fb.effect
    async def _flush(self, stream: Stream, wish: StopWish) -> None:
        if stream.writer is not None and not wish.abandon_partial:
            await stream.writer.flush()

    @fb.effect
    async def _tell(self, stream: Stream, wish: StopWish) -> None:
        """The bookkeeping of an abort, then its event: durable before visible. No failing step
        keeps the event or the completion from coming (E28).
        """
        stream.terminal = Completion(status="aborted", abort_reason=wish.reason)
        await _guarded("end of the partial", stream, self._settle_partial(stream, wish))
        # A partial that could not be committed carries the reservation itself.
        await _guarded(
            "end of the reservation",
            stream,
            self._history.release(stream.workspace_id, stream.message_id),
        )
        metadata = stream.row(
            partial=True, abort_reason=wish.reason, duration_ms=stream.duration_ms()
        ).metadata
        stream.told = True
        self._events.emit(
            StreamAbortEvent(
                workspace_id=stream.workspace_id,
                message_id=stream.message_id,
                abort_reason=wish.reason,
                abandon_partial=wish.abandon_partial,
                metadata=metadata,
            )
        )
        self._forget(stream)
        stream.settle(stream.terminal)

    @fb.effect
    async def _settle_partial(self, stream: Stream, wish: StopWish) -> None:
        workspace_id, message_id = stream.workspace_id, stream.message_id
        if stream.writer is not None:
            if not wish.abandon_partial:
                # What came after the flush, with why it ended.
                await stream.writer.write_aborted(wish.reason)
            await stream.writer.retire()
        if wish.abandon_partial:
            await self._history.delete_partial(workspace_id, message_id)
        else:
            await self._history.commit_partial(workspace_id, message_id)


@fb.effect
async def _guarded(step: str, stream: Stream, work: fb.Effect[Any, Any]) -> None:
    exit_ = await work.exit()
    if isinstance(exit_, fb.Failure):
        _log.warning(
            "a step of an abort failed",
            step=step,
            workspaceId=stream.workspace_id,
            messageId=stream.message_id,
            error=str(exit_.failure().squash()),
        )
