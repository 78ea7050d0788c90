"""The pump: provider part -> event out -> part recorded -> partial on disk -> terminal.

It runs in a fiber of its own, and only its signal stops it. What ends a stream otherwise than by an
abort is decided here; an abort is the canceller's to tell (cancel.py).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import structlog

import fibers as fb

from .handoff import EndOfParts
from .history.partial import is_commit_worthy
from .model.errors import HistoryError, StreamError, categorize
from .model.events import ErrorEvent, StreamDeltaEvent, StreamEndEvent, StreamStartEvent
from .model.parts import (
    ErrorPart,
    Finish,
    ProviderPart,
    TextDelta,
    TextEnd,
    TextPart,
    UnknownPart,
)
from .model.request import Completion
from .partials import PartialWriter
from .stream import Stream, StreamState

if TYPE_CHECKING:
    from collections.abc import Callable

    from .events.spine import EventSpine
    from .history.store import HistoryStore

_log = structlog.get_logger("streamengine.pump")


class Pump:
    """The work on one stream, from its stream-start to everything but an abort."""

    def __init__(
        self,
        stream: Stream,
        parts: AsyncIterator[ProviderPart | UnknownPart],
        *,
        history: HistoryStore,
        events: EventSpine,
        soft_stop: Callable[[Stream], None],
    ) -> None:
        self._stream = stream
        self._parts = parts
        self._history = history
        self._events = events
        self._soft_stop = soft_stop
        self._writer = stream.writer = PartialWriter(stream, history)
        self._finish: Finish | None = None

    @fb.effect
    async def run(self) -> None:
        """Everything up to the terminal of a stream that nobody stops. Never fails."""
        try:
            await self._run()
        except Exception as exc:  # noqa: BLE001  # a fault of ours must not leave a stream open
            if self._stream.terminal is None and not self._stream.aborted:
                await self._fail(exc)
            else:
                _log.exception("the pump failed after the end", messageId=self._stream.message_id)

    async def _run(self) -> None:
        stream = self._stream
        if stream.aborted:
            # Ended while it was starting: no stream-start, the provider is not read.
            await self._close_parts()
            return
        # From here on the abort itself closes the handoff: nothing that comes after it is handled,
        # and the pump doesn't wait for a provider that ignores it (E10, BT5).
        stream.controller.signal.add_listener(lambda _reason: stream.handoff.close())
        stream.state = StreamState.STREAMING
        self._events.emit(
            StreamStartEvent(
                workspace_id=stream.workspace_id,
                message_id=stream.message_id,
                model=stream.request.model,
                history_sequence=stream.history_sequence,
                start_time_ms=stream.start_time_ms,
            )
        )
        await self._writer.run().fork_in(stream.scope)
        feeder = await self._feed().fork_in(stream.scope)
        feeder.set_name(f"provider of {stream.workspace_id}/{stream.message_id}")
        try:
            await self._pass_parts_on()
            if not stream.aborted:
                self._check_end()
        except Exception as exc:  # noqa: BLE001  # whatever a provider raises ends its stream
            if not stream.aborted:
                await self._fail(exc)
            else:
                # E11: the provider's way to obey. The canceller tells how it ended.
                _log.debug("provider raised after the abort", error=repr(exc))
            return
        if not stream.aborted:
            await self._complete()

    @fb.effect
    async def _feed(self) -> None:
        """Read the provider; it goes on when its part was taken (BT4)."""
        handoff = self._stream.handoff
        try:
            try:
                await self._hand_over()
            finally:
                # In this fiber and its Context: leaving a loop doesn't close a generator.
                await self._close_parts()
        except Exception as exc:  # noqa: BLE001  # handed to the pump, which decides
            handoff.end(exc)
        else:
            handoff.end()

    async def _close_parts(self) -> None:
        close = getattr(self._parts, "aclose", None)
        if close is not None:
            await close()

    async def _hand_over(self) -> None:
        async for part in self._parts:
            if not await self._stream.handoff.give(part):
                return

    async def _pass_parts_on(self) -> None:
        stream = self._stream
        while True:
            part = await stream.handoff.take()
            # First of all: nothing is recorded or told after the abort (E10).
            if stream.aborted or isinstance(part, EndOfParts):
                return
            if isinstance(part, TextDelta):
                if part.text:
                    self._text(part.text)
            elif isinstance(part, TextEnd):
                if stream.soft_stop is not None:
                    self._soft_stop(stream)
                    return
            elif isinstance(part, Finish):
                self._finish = part
            elif isinstance(part, ErrorPart):
                raise StreamError("api", _error_text(part.error))
            # Other parts carry no text.

    def _text(self, text: str) -> None:
        stream = self._stream
        timestamp_ms = stream.next_timestamp_ms()
        try:
            # The event first: a reader who takes a snapshot of the parts meanwhile must not get
            # the same text twice (E18).
            self._events.emit(
                StreamDeltaEvent(
                    workspace_id=stream.workspace_id,
                    message_id=stream.message_id,
                    delta=text,
                    timestamp_ms=timestamp_ms,
                )
            )
        finally:
            stream.parts.append(TextPart(text=text, timestamp_ms=timestamp_ms))
            self._writer.changed()

    def _check_end(self) -> None:
        """Is it a whole answer? Raises StreamError where it isn't (E12)."""
        stream = self._stream
        if self._finish is None or not self._finish.is_terminal:
            raise StreamError(
                "stream_truncated",
                "the answer was cut off: the provider ended without saying that it is done",
            )
        if not is_commit_worthy(stream.parts):
            raise StreamError("empty_output", "the model gave no answer")

    async def _complete(self) -> None:
        """The row, then the partial's end, then COMPLETED, then stream-end (BT2)."""
        stream = self._stream
        finish = self._finish
        row = stream.row(
            finish_reason=None if finish is None else finish.finish_reason,
            raw_finish_reason=None if finish is None else finish.raw_finish_reason,
            duration_ms=stream.duration_ms(),
        )
        try:
            row = await self._history.finalize(stream.workspace_id, row)
        except HistoryError as error:
            # The answer isn't lost: the partial keeps it (P17).
            await self._writer.flush()
            await self._fail(StreamError("unknown", f"the answer could not be stored: {error}"))
            return
        await self._writer.retire()
        deleted = await self._history.delete_partial(
            stream.workspace_id, stream.message_id
        ).exit()
        if isinstance(deleted, fb.Failure):
            # Harmless: the row is final, so a later load drops the partial (P18).
            _log.warning(
                "partial not removed",
                workspaceId=stream.workspace_id,
                messageId=stream.message_id,
                error=str(deleted.failure().squash()),
            )
        stream.state = StreamState.COMPLETED
        stream.terminal = Completion(status="completed")
        self._events.emit(
            StreamEndEvent(
                workspace_id=stream.workspace_id,
                message_id=stream.message_id,
                metadata=row.metadata,
                parts=row.parts,
            )
        )

    async def _fail(self, exc: BaseException) -> None:
        """The error partial, then the error event. The next commit takes the text (1.3)."""
        stream = self._stream
        stream.state = StreamState.ERROR
        error_type = categorize(exc)
        text = str(exc) or type(exc).__name__
        stream.terminal = Completion(status="failed", error=text, error_type=error_type)
        await self._writer.write_error(text, error_type)
        _log.warning(
            "stream failed",
            workspaceId=stream.workspace_id,
            messageId=stream.message_id,
            errorType=error_type,
            error=text,
        )
        self._events.emit(
            ErrorEvent(
                workspace_id=stream.workspace_id,
                message_id=stream.message_id,
                error=text,
                error_type=error_type,
            )
        )


def _error_text(error: Any) -> str:
    """What a provider's error part says, for a person."""
    if isinstance(error, dict):
        fields: dict[Any, Any] = error
        nested = fields.get("error")
        if isinstance(nested, dict):
            fields = nested
        message = fields.get("message")
        if isinstance(message, str) and message:
            return message
    if isinstance(error, str) and error:
        return error
    try:
        return repr(error)
    except Exception:  # noqa: BLE001  # a hostile __repr__
        return f"an error of type {type(error).__name__}"
