"""StreamEngine: starts, stops and supervises the streams of all workspaces."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, final

import structlog

import fibers as fb
from fibers import AbortController, AbortSignal, Clock, Effect, Scope
from fibers.app import Occupant

from .cancel import Canceller
from .events.spine import EventSpine
from .history.store import HistoryStore
from .model.errors import HistoryError, HistoryErrorKind, SendError
from .model.ids import check_id
from .model.parts import ProviderPart, TextPart, UnknownPart
from .model.request import AbortReason, Completion, StreamRequest
from .model.rows import AssistantRow, Row, RowMetadata, UserRow
from .model.snapshot import LiveSnapshot
from .providers.base import Provider
from .pump import Pump, close_parts
from .stream import Completing, StopWish, Stream
from .supervise import SYSTEM, Supervision

_log = structlog.get_logger("streamengine.engine")

REMEMBERED_ANSWERS: Final = 1024
"""How many client message ids are answered from memory; older ones from the history."""

_ABOUT_THE_PARTIAL: Final[frozenset[HistoryErrorKind]] = frozenset(
    {"no_sequence", "sequence_taken", "stale_sequence", "malformed_sequence", "invalid_row"}
)
"""Failures of a commit that another try can't mend: the partial itself is wrong."""


@dataclass(frozen=True, slots=True)
class StreamHandle:
    """A started answer: which message it is, and how it ends."""

    message_id: str
    completion: Effect[Completion]


@final
class _Start:
    """A start that has not registered its stream yet."""

    def __init__(self, clock: Clock) -> None:
        self.message_id = _new_id("a")
        self.clock = clock
        self.controller = AbortController()
        self.completing = Completing()
        self.stop: StopWish | None = None
        self.stream: Stream | None = None
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wait(self) -> Effect[None]:
        """Wait until it has registered its stream, or given up."""
        return Effect.promise(lambda: self.over)

    def is_stopped(self) -> bool:
        # A call, asked again after each wait: a checker takes an attribute to stay what it was.
        return self.stop is not None

    @property
    def handle(self) -> StreamHandle:
        return StreamHandle(self.message_id, self.completing.wait())


def _new_id(kind: Literal["a", "u"]) -> str:
    return f"{kind}_{uuid.uuid4().hex}"


@final
class StreamEngine(Occupant):
    """At most one live stream a workspace; each ends with exactly one terminal event.

        engine = StreamEngine(history=history, provider=provider, scope=app_scope)
        handle = await engine.start_stream("w1", StreamRequest(text="Hello"))
        completion = await handle.completion

    ``scope``: the app scope that supervises the streams; None leaves them unsupervised. ``clock``:
    what throttles and bounds wait on; None takes the clock in context.
    """

    name = "streamengine"

    def __init__(
        self,
        *,
        history: HistoryStore,
        provider: Provider,
        scope: Scope | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.events = EventSpine()
        self._history = history
        self._provider = provider
        self._clock = clock
        self._streams: dict[str, Stream] = {}
        self._starts: dict[str, list[_Start]] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._answers: dict[tuple[str, str], StreamHandle] = {}
        # Owns what works on the streams. Never closed: their own signal stops them, and their
        # supervisors in the app scope see to that.
        self._work = Scope("parallel", name="streams")
        self._canceller = Canceller(history, self.events, self._forget)
        self._supervision = Supervision(scope, self._canceller)

    # ---- an occupant of the app scope

    def start(self, scope: Scope) -> Effect[None]:
        """Supervise in ``scope`` from now on."""
        return Effect.sync(lambda: self._supervision.adopt(scope))

    def describe(self) -> Mapping[str, object]:
        """What is in flight, for a dump."""
        return {
            "streams": [f"{s.workspace_id}/{s.message_id}" for s in self._streams.values()],
            "starting": [w for w, starts in self._starts.items() for _ in starts],
            "abandoned": list(self._supervision.abandoned.values()),
        }

    # ---- asking

    def is_streaming(self, workspace_id: str) -> bool:
        """True from the registration of a stream until it is complete, fails, or is stopping."""
        stream = self._streams.get(workspace_id)
        return stream is not None and stream.is_streaming

    def live_text(self, workspace_id: str) -> tuple[str, list[TextPart]] | None:
        """Message id and parts of the live stream so far, for a reader who comes late. None from
        its terminal event on: nothing more would come.
        """
        stream = self._streams.get(workspace_id)
        if stream is None or stream.told:
            return None
        return stream.message_id, [part for part in stream.parts if isinstance(part, TextPart)]

    def snapshot(self, workspace_id: str) -> LiveSnapshot | None:
        """The live stream as of now, for a reader who comes late. None where none is running: also
        before its stream-start was told, and from its terminal event on.
        """
        stream = self._streams.get(workspace_id)
        return None if stream is None else stream.snapshot()

    # ---- starting

    def start_stream(
        self, workspace_id: str, request: StreamRequest, *, signal: AbortSignal | None = None
    ) -> Effect[StreamHandle, SendError]:
        """Answer ``request``. The user row is on disk before the handle is given (BT1).

        A live stream of the workspace is stopped first, as "system". A ``client_message_id`` seen
        before gives the first answer's handle. Fails with SendError where nothing began: no text, a
        bad id, a history that can't be written, a provider that raised.
        """
        return self._in_clock(self._start_stream(workspace_id, request, signal))

    def _in_clock(self, eff: Effect[Any, Any]) -> Effect[Any, Any]:
        return eff if self._clock is None else eff.provide_service(fb.ClockTag, self._clock)

    @fb.effect(raises=SendError)
    async def _start_stream(
        self, workspace_id: str, request: StreamRequest, signal: AbortSignal | None
    ) -> StreamHandle:
        try:
            check_id(workspace_id)
        except ValueError as error:
            raise SendError("invalid_id", str(error)) from error
        if not request.text.strip():
            raise SendError("empty_message", "the message has no text")
        known = self._known_answer(workspace_id, request)
        if known is not None:
            return known
        start = _Start(await fb.current_clock())
        self._supervision.guard_start(
            f"start in {workspace_id}", lambda: self._stop_start(start, SYSTEM), start.wait()
        )
        unlink = _nothing
        if signal is not None:
            unlink = signal.add_listener(
                lambda reason: self._stop_start(start, StopWish(_reason_of(reason)))
            )
        self._starts.setdefault(workspace_id, []).append(start)
        try:
            async with self._locks.setdefault(workspace_id, asyncio.Lock()):
                return await self._start_in_turn(workspace_id, request, start)
        except HistoryError as error:
            raise SendError("history", str(error), details={"kind": error.kind}) from error
        finally:
            if start.stream is None:
                unlink()
            else:
                start.stream.on_settled(unlink)
            self._end_start(workspace_id, start)

    def _stop_start(self, start: _Start, wish: StopWish) -> None:
        """A stop of a start, whatever has become of it: from its registration on it is a stop of
        the stream, through the latch like everybody's.
        """
        if start.stream is not None:
            self._canceller.begin(start.stream, wish)
        elif start.stop is None:
            start.stop = wish
            start.controller.abort(wish.reason)

    def _end_start(self, workspace_id: str, start: _Start) -> None:
        starts = self._starts[workspace_id]
        starts.remove(start)
        if not starts:
            del self._starts[workspace_id]
        if not start.over.done():
            start.over.set_result(None)

    async def _start_in_turn(
        self, workspace_id: str, request: StreamRequest, start: _Start
    ) -> StreamHandle:
        known = self._known_answer(workspace_id, request)
        if known is not None:
            return known
        answered = await self._answered_before(workspace_id, request)
        if answered is not None:
            return answered
        live = self._streams.get(workspace_id)
        if live is not None:
            await self._canceller.cancel(live, SYSTEM)
        # What an error or a crash left, before the next row takes its place in the order. It may be
        # the answer to this very message.
        if await self._commit_what_is_left(workspace_id):
            answered = await self._answered_before(workspace_id, request)
            if answered is not None:
                return answered
        user = UserRow(
            id=_new_id("u"),
            workspace_id=workspace_id,
            parts=(TextPart(text=request.text, timestamp_ms=_now_ms()),),
            metadata=RowMetadata(
                timestamp_ms=_now_ms(),
                client_message_id=request.client_message_id,
                correlation=request.correlation,
            ),
        )
        stored = (await self._history.append_user(workspace_id, user)).row
        try:
            if start.is_stopped():
                return self._stopped_before_it_began(workspace_id, request, start)
            rows = await self._history.read(workspace_id)
            sequence = await self._history.reserve(workspace_id, start.message_id)
            if start.is_stopped():
                return self._stopped_before_it_began(workspace_id, request, start)
            asked = request.model_copy(update={"history": _before(rows, stored)})
            try:
                parts = self._provider.stream(asked, start.controller.signal)
            except Exception as exc:
                start.controller.abort(exc)
                raise _send_error(exc) from exc
            stream = Stream(
                workspace_id,
                start.message_id,
                request,
                sequence,
                start.completing,
                start.controller,
                start.clock,
            )
            # Once more: the provider itself may have stopped it, through whatever it called.
            if start.is_stopped():
                closing = close_parts(parts, stream)
                stream.scope.fork(closing, start_immediately=True, uninterruptible=True)
                await self._end_resources(stream)
                return self._stopped_before_it_began(workspace_id, request, start)
            self._register(request, start, stream, parts)
        finally:
            if start.stream is None:
                await self._release(workspace_id, start.message_id)
        return start.handle

    @fb.effect(raises=HistoryError)
    async def _commit_what_is_left(self, workspace_id: str) -> bool:
        """Whether the partial on disk became a row. One that can't become any stays on disk: it
        must not keep the workspace from ever answering again (P10).
        """
        try:
            return (await self._history.commit_partial(workspace_id)).row is not None
        except HistoryError as error:
            if error.kind not in _ABOUT_THE_PARTIAL:
                raise
            _log.warning("a partial can't be committed", workspaceId=workspace_id, error=str(error))
            return False

    def _stopped_before_it_began(
        self, workspace_id: str, request: StreamRequest, start: _Start
    ) -> StreamHandle:
        """Nothing registered, nothing emitted; the completion says why (E16, BT6)."""
        assert start.stop is not None
        start.completing.settle(Completion(status="aborted", abort_reason=start.stop.reason))
        self._remember(workspace_id, request, start.handle)
        return start.handle

    def _register(
        self,
        request: StreamRequest,
        start: _Start,
        stream: Stream,
        parts: AsyncIterator[ProviderPart | UnknownPart],
    ) -> None:
        """Register, launch, supervise: one synchronous block, so that nothing comes between. The
        launch is deferred: a late fork into a closed scope aborts before the first event (VA6).
        """
        self._streams[stream.workspace_id] = start.stream = stream
        self._remember(stream.workspace_id, request, start.handle)
        pump = Pump(
            stream,
            parts,
            history=self._history,
            events=self.events,
            soft_stop=self._soft_stop,
        )
        processing = self._work.fork(pump.run().on_exit(lambda _exit: self._finish(stream, pump)))
        processing.set_name(f"pump of {stream.workspace_id}/{stream.message_id}")
        stream.processing = processing
        # Nobody here interrupts it, but the end of the loop does, perhaps before it began.
        processing.add_observer(lambda _exit: self._canceller.begin(stream, SYSTEM))
        self._supervision.supervise(stream)

    @fb.effect
    async def _finish(self, stream: Stream, pump: Pump) -> None:
        await pump.close()
        terminal = stream.terminal
        if terminal is None:
            # Stopped, or interrupted by the end of the loop: that is a stop too.
            self._canceller.begin(stream, SYSTEM)
        elif terminal.status == "failed":
            # The provider may not be at its end; some listen to their signal only.
            stream.controller.abort("the stream failed")
        await self._end_resources(stream)
        if terminal is not None and terminal.status != "aborted":
            await self._release(stream.workspace_id, stream.message_id)
            # An aborted stream stays registered until its abort was told (cancel.py).
            self._forget(stream)
            stream.settle(terminal)

    def _end_resources(self, stream: Stream) -> Effect[None]:
        return self._supervision.end_resources(stream.scope, stream.workspace_id, stream.message_id)

    @fb.effect
    async def _release(self, workspace_id: str, message_id: str) -> None:
        exit_ = await self._history.release(workspace_id, message_id).exit()
        if isinstance(exit_, fb.Failure):
            # Costs a number in the order of rows, nothing else.
            _log.warning(
                "reservation not released",
                workspaceId=workspace_id,
                messageId=message_id,
                error=str(exit_.failure().squash()),
            )

    def _forget(self, stream: Stream) -> None:
        # Never a replacement's entry (E15).
        if self._streams.get(stream.workspace_id) is stream:
            del self._streams[stream.workspace_id]

    # ---- stopping

    def stop_stream(
        self,
        workspace_id: str,
        *,
        reason: AbortReason,
        message_id: str | None = None,
        soft: bool = False,
        abandon_partial: bool = False,
    ) -> Effect[None]:
        """Stop what runs or starts in the workspace, and wait for its end.

        ``message_id`` restricts it to that message: a stop never touches another stream (BT7).
        ``soft`` waits for nothing: the stream stops at its next block boundary. ``abandon_partial``
        drops what was said. Of an idle workspace it changes nothing (E24).
        """
        wish = StopWish(reason, abandon_partial)
        return self._in_clock(self._stop_stream(workspace_id, wish, message_id, soft))

    @fb.effect
    async def _stop_stream(
        self, workspace_id: str, wish: StopWish, message_id: str | None, soft: bool
    ) -> None:
        # All at once, before any wait: what is started after this call is not its business, and a
        # start that is under way must not stop the live stream first, for another reason.
        stream = self._streams.get(workspace_id)
        if stream is not None and message_id not in (None, stream.message_id):
            stream = None
        starts = [
            start
            for start in self._starts.get(workspace_id, ())
            if start.stream is None and message_id in (None, start.message_id)
        ]
        if stream is not None and not soft:
            self._canceller.begin(stream, wish)
        elif stream is not None and stream.soft_stop is None:
            stream.soft_stop = wish
        for start in starts:
            self._stop_start(start, wish)
        if soft:
            return
        for start in starts:
            await start.wait()
        if stream is not None:
            await stream.completing.wait()

    def _soft_stop(self, stream: Stream) -> None:
        """At a block boundary, from the pump: not waited for, as it waits for the pump."""
        assert stream.soft_stop is not None
        self._canceller.begin(stream, stream.soft_stop)

    # ---- answers given before

    @fb.effect(raises=HistoryError)
    async def _answered_before(
        self, workspace_id: str, request: StreamRequest
    ) -> StreamHandle | None:
        if request.client_message_id is None:
            return None
        rows = await self._history.read(workspace_id)
        return _answer_in(rows, request.client_message_id)

    def _known_answer(self, workspace_id: str, request: StreamRequest) -> StreamHandle | None:
        if request.client_message_id is None:
            return None
        return self._answers.get((workspace_id, request.client_message_id))

    def _remember(self, workspace_id: str, request: StreamRequest, handle: StreamHandle) -> None:
        if request.client_message_id is None:
            return
        self._answers[workspace_id, request.client_message_id] = handle
        while len(self._answers) > REMEMBERED_ANSWERS:
            del self._answers[next(iter(self._answers))]

    # ---- after a crash

    def recover(self) -> Effect[None, HistoryError]:
        """Put every workspace in order: what a crash left is committed. Before the first start."""
        return self._recover()

    @fb.effect(raises=HistoryError)
    async def _recover(self) -> None:
        for workspace_id in await self._history.workspaces():
            try:
                report = (await self._history.load(workspace_id)).report
            except HistoryError as error:
                # Its own starts will say so; the others shall be in order all the same.
                _log.warning("recovery", workspaceId=workspace_id, problem=str(error))
                continue
            for problem in report.problems:
                _log.warning("recovery", workspaceId=workspace_id, problem=str(problem))
            for warning in report.warnings:
                _log.warning("recovery", workspaceId=workspace_id, warning=warning)


_REASONS: Final[Mapping[str, AbortReason]] = {
    "user": "user",
    "startup": "startup",
    "system": "system",
}


def _reason_of(abort: object) -> AbortReason:
    """Why the caller aborted its signal, where that is one of the three (BT7); else "startup"."""
    return _REASONS.get(abort, "startup") if isinstance(abort, str) else "startup"


def _nothing() -> None:
    return None


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _before(rows: list[Row], user: UserRow) -> tuple[Row, ...]:
    """The conversation that the provider sees before the message it shall answer."""
    return tuple(row for row in rows if row.id != user.id)


def _answer_in(rows: list[Row], client_message_id: str) -> StreamHandle | None:
    """The answer that a message with this client id got in an earlier run of the process."""
    asked = False
    for row in rows:
        if isinstance(row, UserRow):
            if asked:
                return None
            asked = row.metadata.client_message_id == client_message_id
        elif asked:
            return StreamHandle(row.id, Effect.succeed(_completion_of(row)))
    return None


def _completion_of(row: AssistantRow) -> Completion:
    if not row.is_partial:
        return Completion(status="completed")
    reason = row.metadata.abort_reason
    known: AbortReason = (
        "user" if reason == "user" else "startup" if reason == "startup" else "system"
    )
    return Completion(status="aborted", abort_reason=known)


def _send_error(exc: Exception) -> SendError:
    if isinstance(exc, SendError):
        return exc
    kind = getattr(exc, "kind", None)
    return SendError(kind if isinstance(kind, str) else "unknown", str(exc) or type(exc).__name__)
