"""The pump: provider part -> event out -> part recorded -> partial on disk -> terminal.

It runs in a fiber of its own, which its signal stops. What ends a stream otherwise than by an abort
is decided here; an abort is the canceller's to tell (cancel.py).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Mapping
from typing import TYPE_CHECKING, Any

import structlog
from typing_extensions import TypeIs

import fibers as fb

from .handoff import EndOfParts
from .history.partial import is_commit_worthy
from .model.errors import ErrorType, StreamError, categorize
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
        self._writing: fb.Fiber[None] | None = None
        self._finish: Finish | None = None

    @fb.effect
    async def run(self) -> None:
        """Everything up to the terminal of a stream that nobody stops. Never fails."""
        # As an exit, not an except: a store that dies of a CancelledError must not leave a stream
        # open either.
        exit_ = await self._run().exit()
        if isinstance(exit_, fb.Failure):
            exc = exit_.failure().squash()
            if self._stream.terminal is None and not self._stream.aborted:
                await self._fail(exc)
            else:
                _log.error(
                    "the pump failed after the end",
                    messageId=self._stream.message_id,
                    error=repr(exc),
                )

    @fb.effect
    async def close(self) -> None:
        """The pump is over: nothing is taken from the provider any more, nothing written."""
        # A provider that outlives its interrupt, at least, is told that nobody takes its parts.
        self._stream.handoff.close()
        if self._writing is not None:
            await self._writing.interrupt(reason="the stream has ended")

    @fb.effect
    async def _run(self) -> None:
        stream = self._stream
        if stream.stop is not None:
            # Ended while it was starting: no stream-start, the provider is not read.
            closing = close_parts(self._parts, stream)
            await closing.fork_in(stream.scope, start_immediately=True, uninterruptible=True)
            return
        # From here on the abort itself closes the handoff: nothing that comes after it is handled,
        # and the pump doesn't wait for a provider that ignores it (E10, BT5).
        stream.controller.signal.add_listener(lambda _reason: stream.handoff.close())
        stream.state = StreamState.STREAMING
        stream.told_start = True
        self._events.emit(
            StreamStartEvent(
                workspace_id=stream.workspace_id,
                message_id=stream.message_id,
                model=stream.request.model,
                history_sequence=stream.history_sequence,
                start_time_ms=stream.start_time_ms,
            )
        )
        self._writing = await self._writer.run().fork_in(stream.scope)
        self._writing.set_name(f"partial of {stream.workspace_id}/{stream.message_id}")
        # Started at once, so that it closes the provider's iterator whatever comes next.
        feeder = await self._feed().fork_in(stream.scope, start_immediately=True)
        feeder.set_name(f"provider of {stream.workspace_id}/{stream.message_id}")
        feeder.ignore_failure()  # what the provider raises is the pump's to tell
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

    def _feed(self) -> fb.Effect[None]:
        """Read the provider; however that ends, the pump hears of it, and the iterator is closed in
        this fiber and its Context: leaving a loop doesn't close a generator.
        """

        def over(exit_: fb.Exit[None, Any]) -> fb.Effect[None]:
            # Before the close, which may take its time or never end: the answer has ended.
            self._stream.handoff.end(_raised(exit_))
            return close_parts(self._parts, self._stream)

        return self._hand_over().on_exit(over)

    @fb.effect
    async def _hand_over(self) -> None:
        """Give on part after part; each waits until the one before was taken (BT4)."""
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
                    # The abort comes after a flush, and until then this is the place where the
                    # stream stands: it has neither ended nor been cut off.
                    await stream.controller.signal.wait()
                    return
            elif isinstance(part, Finish):
                self._finish = part
            elif isinstance(part, ErrorPart):
                raise _error_of(part.error)
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
        # Masked: once the row may be on disk, this is told as a success or as a failure.
        with fb.uninterruptible():
            stored = await self._history.finalize(stream.workspace_id, row).exit()
            if isinstance(stored, fb.Failure):
                # The answer isn't lost: the error partial keeps it (P17).
                error = _text_of(stored.failure().squash())
                await self._fail(StreamError("unknown", f"the answer could not be stored: {error}"))
                return
            row = stored.unwrap()
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
                    error=_text_of(deleted.failure().squash()),
                )
            stream.state = StreamState.COMPLETED
            stream.terminal = Completion(status="completed")
            stream.told = True
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
        text = _text_of(exc)
        error_type = _type_of(exc)
        with fb.uninterruptible():
            stream.state = StreamState.ERROR
            stream.terminal = Completion(status="failed", error=text, error_type=error_type)
            await self._writer.write_error(text, error_type)
            _log.warning(
                "stream failed",
                workspaceId=stream.workspace_id,
                messageId=stream.message_id,
                errorType=error_type,
                error=text,
            )
            stream.told = True
            self._events.emit(
                ErrorEvent(
                    workspace_id=stream.workspace_id,
                    message_id=stream.message_id,
                    error=text,
                    error_type=error_type,
                )
            )


@fb.effect
async def close_parts(parts: object, stream: Stream) -> None:
    """Close a provider's iterator. What that raises is logged: the answer is what was read."""
    close: Callable[[], Awaitable[object]] | None = getattr(parts, "aclose", None)
    if close is None:
        return
    exit_ = await fb.Effect.promise(close).exit()
    if isinstance(exit_, fb.Failure):
        _log.warning(
            "a provider's iterator failed to close",
            workspaceId=stream.workspace_id,
            messageId=stream.message_id,
            error=_text_of(exit_.failure().squash()),
        )


def _raised(exit_: fb.Exit[None, Any]) -> Exception | None:
    """What ended the reading of a provider, as something that the pump can raise and catch."""
    if not isinstance(exit_, fb.Failure):
        return None
    exc = exit_.failure().squash()
    if isinstance(exc, Exception):
        return exc
    # A CancelledError would pass for an interrupt of the pump.
    error = StreamError(_type_of(exc), f"the provider raised {type(exc).__name__}")
    error.__cause__ = exc
    return error


def _text_of(exc: BaseException) -> str:
    try:
        return str(exc) or type(exc).__name__
    except Exception:  # noqa: BLE001  # a hostile __str__ must not leave a stream open
        return type(exc).__name__


def _type_of(exc: BaseException) -> ErrorType:
    try:
        return categorize(exc)
    except Exception:  # noqa: BLE001  # see _text_of
        return "unknown"


def _error_of(error: object) -> Exception:
    """What a provider's error part says, as an exception with a text for a person."""
    if isinstance(error, Exception):
        return error
    if _is_mapping(error):
        nested = error.get("error")
        message = (nested if _is_mapping(nested) else error).get("message")
        if isinstance(message, str) and message:
            return StreamError("api", message)
    if isinstance(error, str) and error:
        return StreamError("api", error)
    try:
        return StreamError("api", repr(error))
    except Exception:  # noqa: BLE001  # a hostile __repr__
        return StreamError("api", f"an error of type {type(error).__name__}")


def _is_mapping(value: object) -> TypeIs[Mapping[object, object]]:
    return isinstance(value, Mapping)
