"""Stopping a stream: one latch, one cleanup, one stream-abort, whoever asks and how often.

A user's stop, a soft stop at its boundary, the next start of the workspace and the close of the app
scope all come through ``Canceller.begin``. The first decides why and what becomes of the text; the
others wait for its cleanup.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, final

import fibers as fb

from .abandoned import Grace, guarded
from .history.partial import is_commit_worthy
from .model.events import StreamAbortEvent
from .model.note import LastEnd
from .model.request import Completion
from .sidecar import note_end, record_usage
from .stream import StopWish, Stream, StreamState

if TYPE_CHECKING:
    from .abandoned import Abandoned
    from .events.spine import EventSpine
    from .history.store import HistoryStore
    from .partials import PartialWriter
    from .phases import TellPhase


@final
class Canceller:
    """Ends streams of one engine. ``forget`` takes a stream out of the engine's registry."""

    def __init__(
        self,
        history: HistoryStore,
        events: EventSpine,
        tell_phase: TellPhase,
        abandoned: Abandoned,
        forget: Callable[[Stream], None],
    ) -> None:
        self._history = history
        self._events = events
        self._tell_phase = tell_phase
        self._abandoned = abandoned
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
            fiber.add_observer(lambda _exit: self._settle_at_last(stream, wish))

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
        grace = Grace(self._abandoned, stream)
        if stream.writer is not None and not wish.abandon_partial:
            flush = fb.Effect.promise(stream.writer.flush)
            await grace.wait("flush before the abort", flush)
        stream.controller.abort(wish.reason)
        if stream.processing is not None:
            # Bounded like a step of the store: it may hang in one.
            await grace.wait_for("end of the pump", stream.processing)
        if stream.terminal is not None:
            return  # it completed or failed while the cancel was under way: told already (E6)
        # From here on the pump, should it come back, finds that the stream has ended.
        stream.terminal = Completion(status="aborted", abort_reason=wish.reason)
        await self._tell(stream, wish, stream.terminal, grace)

    @fb.effect
    async def _tell(
        self, stream: Stream, wish: StopWish, terminal: Completion, grace: Grace
    ) -> None:
        """The bookkeeping of an abort, then its event: durable before visible. No failing step, and
        none that hangs, keeps the event or the completion from coming (E28).
        """
        await grace.wait("bookkeeping of the abort", self._keep(stream, wish))
        self._end(stream, wish, terminal)

    def _end(self, stream: Stream, wish: StopWish, terminal: Completion) -> None:
        if not stream.told:
            stream.told = True
            self._tell_phase(stream, "interrupted")
            self._events.emit(
                StreamAbortEvent(
                    **stream.about,
                    abort_reason=wish.reason,
                    abandon_partial=wish.abandon_partial,
                    metadata=stream.metadata(
                        partial=True,
                        abort_reason=wish.reason,
                        duration_ms=stream.duration_ms(),
                        **stream.usage.metadata,
                    ),
                )
            )
        self._forget(stream)
        stream.settle(terminal)

    def _settle_at_last(self, stream: Stream, wish: StopWish) -> None:
        """Where the cleanup itself broke: whoever waits for the end still gets it (E28)."""
        if stream.terminal is None:
            stream.terminal = Completion(status="aborted", abort_reason=wish.reason)
        if stream.terminal.status == "aborted":
            self._end(stream, wish, stream.terminal)

    @fb.effect
    async def _keep(self, stream: Stream, wish: StopWish) -> None:
        """As one step of the store or, where that fails, one after the other, also where one
        before has failed.
        """
        workspace_id, message_id = stream.workspace_id, stream.message_id
        end = LastEnd(
            message_id=message_id,
            after_sequence=stream.question_sequence,
            abort_reason=wish.reason,
        )
        kept = False
        if stream.writer is not None:
            if not wish.abandon_partial:
                if await self._conclude(stream, stream.writer, end):
                    return
                kept = await self._write_last(stream, stream.writer, wish)
            await guarded("end of the partial", stream, fb.Effect.promise(stream.writer.retire))
        if not kept:
            await guarded("usage", stream, record_usage(self._history, stream, "abort"))
        if wish.abandon_partial:
            remove = self._history.delete_partial(workspace_id, message_id)
            await guarded("removal of the partial", stream, remove)
        else:
            commit = self._history.commit_partial(workspace_id, message_id)
            committed = await guarded("commit of the partial", stream, commit)
            if isinstance(committed, fb.Failure):
                # It stands for the row now: what is told must be durable.
                sync = self._history.append_partial(workspace_id, message_id, (), durable=True)
                await guarded("sync of the partial", stream, sync)
        await guarded("note of the end", stream, note_end(self._history, workspace_id, end))
        # A partial that could not be committed carries the reservation itself.
        release = self._history.release(workspace_id, message_id)
        await guarded("end of the reservation", stream, release)

    async def _conclude(self, stream: Stream, writer: PartialWriter, end: LastEnd) -> bool:
        if stream.transcript is not None:
            close = fb.Effect.sync(stream.transcript.close_open_calls)
            await guarded("results of the open tool calls", stream, close)
        concluded = await writer.conclude(end, **stream.usage.metadata).exit()
        return isinstance(concluded, fb.Success) and concluded.unwrap()

    async def _write_last(self, stream: Stream, writer: PartialWriter, wish: StopWish) -> bool:
        """What came after the flush, with why it ended. Gives whether the usage stands on it, and
        so will on the row; else it is the sidecar's, never both's (P15, P16).
        """
        # A partial that makes no row would take the usage with it.
        worthy = is_commit_worthy(stream.parts)
        metadata = stream.usage.metadata if worthy else {}
        write = fb.Effect.promise(lambda: writer.write_aborted(wish.reason, **metadata))
        written = await guarded("last partial", stream, write)
        return worthy and isinstance(written, fb.Success) and written.unwrap()
