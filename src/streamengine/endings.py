"""How a stream that nobody stops ends: as an answer, or as an error. On disk first, then told.

A store that hangs holds the end up for its grace at most, but for the final row: without that there
is no answer to tell of, and a stop ends the wait.

An abort is the canceller's (cancel.py). Whoever sets ``stream.terminal`` first has ended it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import structlog

import fibers as fb

from .abandoned import Grace, guarded
from .model.errors import StreamError
from .model.events import ErrorEvent, StreamEndEvent
from .model.note import LastEnd
from .model.request import Completion
from .model.tool_output import ABORTED, UNANSWERED
from .payloads import text_of, type_of
from .sidecar import note_end, record_usage
from .stream import StreamState
from .usage import count_step, late_usage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .abandoned import Abandoned
    from .events.spine import EventSpine
    from .history.store import HistoryStore
    from .model.parts import Finish
    from .partials import PartialWriter
    from .phases import TellPhase
    from .providers.base import LateUsage
    from .stream import Stream
    from .transcript import Transcript

_log = structlog.get_logger("streamengine.endings")


@final
class Ending:
    """The two endings of one stream, for its pump."""

    def __init__(
        self,
        stream: Stream,
        *,
        history: HistoryStore,
        events: EventSpine,
        tell_phase: TellPhase,
        writer: PartialWriter,
        transcript: Transcript,
        abandoned: Abandoned,
    ) -> None:
        self._stream = stream
        self._history = history
        self._events = events
        self._tell_phase = tell_phase
        self._writer = writer
        self._transcript = transcript
        self._abandoned = abandoned

    async def complete(
        self, finish: Finish, late: Sequence[LateUsage] = (), *, step_limit: int | None = None
    ) -> None:
        """The row, then the partial's end, then COMPLETED, then stream-end (BT2, E26)."""
        stream = self._stream
        self._tell_phase(stream, "completing")
        self._transcript.close_open_calls(UNANSWERED)
        if late:
            await self._ask_for_usage(late)
        row = stream.row(
            finish_reason=finish.finish_reason,
            raw_finish_reason=finish.raw_finish_reason,
            step_limit=step_limit,
            duration_ms=stream.duration_ms(),
            **stream.usage.metadata,
        )
        # Masked: once the row may be on disk, this is told as a success or as a failure.
        with fb.uninterruptible():
            stored = await self._history.finalize(stream.workspace_id, row).exit()
            if isinstance(stored, fb.Failure):
                # The answer isn't lost: the error partial keeps it (P17).
                error = text_of(stored.failure().squash())
                await self.fail(StreamError("unknown", f"the answer could not be stored: {error}"))
                return
            row = stored.unwrap()
            await Grace(self._abandoned, stream).wait("end of the partial", self._drop_partial())
            if stream.terminal is not None:
                self._log_too_late("completed")
                return
            stream.state = StreamState.COMPLETED
            stream.terminal = Completion(status="completed")
            stream.told = True
            self._tell_phase(stream, "idle")
            self._events.emit(
                StreamEndEvent(**stream.about, metadata=row.metadata, parts=row.parts)
            )

    @fb.effect
    async def _drop_partial(self) -> None:
        """Harmless where it fails: the row is final, so a later load drops the partial (P18)."""
        stream = self._stream
        await self._writer.retire()
        remove = self._history.delete_partial(stream.workspace_id, stream.message_id)
        await guarded("removal of the partial", stream, remove)

    async def _ask_for_usage(self, late: Sequence[LateUsage]) -> None:
        """Each within its own bound, all at once (E22)."""
        answers = await fb.all_(
            [late_usage(self._stream, promise) for promise in late], concurrency="unbounded"
        )
        for usage in answers:
            if usage is not None:
                self._events.emit(count_step(self._stream, usage))

    async def fail(self, exc: BaseException) -> None:
        """The error partial, then the error event. The next commit takes the text (1.3)."""
        stream = self._stream
        text = text_of(exc)
        error_type = type_of(exc)
        with fb.uninterruptible():
            if stream.terminal is not None:
                self._log_too_late("failed")
                return
            stream.state = StreamState.ERROR
            stream.terminal = Completion(status="failed", error=text, error_type=error_type)
            self._transcript.close_open_calls(ABORTED)
            keep = self._keep_error(text, error_type)
            await Grace(self._abandoned, stream).wait("bookkeeping of the error", keep)
            _log.warning(
                "stream failed",
                workspaceId=stream.workspace_id,
                messageId=stream.message_id,
                errorType=error_type,
                error=text,
            )
            stream.told = True
            self._tell_phase(stream, "failed")
            self._events.emit(ErrorEvent(**stream.about, error=text, error_type=error_type))

    @fb.effect
    async def _keep_error(self, text: str, error_type: str) -> None:
        """One step after the other, also where one before has failed."""
        stream = self._stream
        await self._writer.write_error(text, error_type)
        # Not on the partial, which may never become a row (P16).
        await guarded("usage", stream, record_usage(self._history, stream, "error"))
        end = LastEnd(
            message_id=stream.message_id,
            after_sequence=stream.question_sequence,
            error_type=error_type,
        )
        note = note_end(self._history, stream.workspace_id, end)
        await guarded("note of the end", stream, note)

    def _log_too_late(self, how: str) -> None:
        # Its store hung for longer than a stop waits: the abort was told meanwhile.
        _log.warning(
            f"a stream {how} after its abort was told",
            workspaceId=self._stream.workspace_id,
            messageId=self._stream.message_id,
        )
