"""Starting an answer: from the caller's request to a registered, supervised, running stream.

One start at a time in a workspace. Until the registration a stop or a close of the app scope ends
the start itself, and nothing is told (E1, BT6); from there on it is a stop of the stream.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, final

import structlog

import fibers as fb
from fibers import AbortController, AbortSignal, Clock, Effect, Scope

from .answers import Answers, StreamHandle, answer_in
from .conversation import for_provider
from .feeding import Parts, close_parts
from .locks import WorkspaceLocks
from .model.errors import HistoryError, HistoryErrorKind, SendError
from .model.ids import check_id
from .model.parts import TextPart
from .model.request import AbortReason, Completion, StreamRequest
from .model.rows import Row, RowMetadata, UserRow
from .options import EngineOptions, StartOptions
from .payloads import text_of
from .stream import Completing, StopWish, Stream
from .supervise import SYSTEM
from .tempdir import make_temp_directory, remove_temp_directory
from .tools import Toolbox

if TYPE_CHECKING:
    from .cancel import Canceller
    from .history.store import HistoryStore
    from .providers.base import Provider
    from .supervise import Supervision

_log = structlog.get_logger("streamengine.starting")

_ABOUT_THE_PARTIAL: Final[frozenset[HistoryErrorKind]] = frozenset(
    {"no_sequence", "sequence_taken", "stale_sequence", "malformed_sequence", "invalid_row"}
)
"""Failures of a commit that another try can't mend: the partial itself is wrong."""


@final
class Start:
    """A start that may not have registered its stream yet."""

    def __init__(self, clock: Clock, options: StartOptions) -> None:
        self.message_id = _new_id("a")
        self.clock = clock
        self.options = options
        self.controller = AbortController()
        self.completing = Completing()
        self.stop: StopWish | None = None
        self.stream: Stream | None = None
        self.scope = Scope(name=f"stream {self.message_id}")
        self.temp_directory: Path | None = None
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wait(self) -> Effect[None]:
        """Wait until it has registered its stream, or given up."""
        return Effect.promise(lambda: self.over)

    def is_stopped(self) -> bool:
        """Whether it was stopped before its registration."""
        # A call, asked again after each wait: a checker takes an attribute to stay what it was.
        return self.stop is not None

    @property
    def handle(self) -> StreamHandle:
        return StreamHandle(self.message_id, self.completing.wait())


@final
class Starting:
    """The starts of one engine. ``register`` enters a stream and makes its pump; what that gives
    launches it.
    """

    def __init__(
        self,
        *,
        history: HistoryStore,
        provider: Provider,
        toolbox: Toolbox,
        options: EngineOptions,
        canceller: Canceller,
        supervision: Supervision,
        live: Callable[[str], Stream | None],
        register: Callable[[Stream, StreamRequest, Parts, Toolbox], Callable[[], None]],
    ) -> None:
        self._history = history
        self._provider = provider
        self._toolbox = toolbox
        self._options = options
        self._canceller = canceller
        self._supervision = supervision
        self._live = live
        self._register = register
        self._starts: dict[str, list[Start]] = {}
        self._answers = Answers()
        self.locks = WorkspaceLocks()

    @property
    def workspaces(self) -> list[str]:
        """One entry a start that is under way."""
        return [workspace_id for workspace_id, starts in self._starts.items() for _ in starts]

    def in_progress(self, workspace_id: str, message_id: str | None) -> list[Start]:
        """The starts (of this message) that have not registered a stream yet."""
        return [
            start
            for start in self._starts.get(workspace_id, ())
            if start.stream is None and message_id in (None, start.message_id)
        ]

    def stop(self, start: Start, wish: StopWish) -> None:
        """A stop of a start, whatever has become of it: from its registration on it is a stop of
        the stream, through the latch like everybody's.
        """
        if start.stream is not None:
            self._canceller.begin(start.stream, wish)
        elif start.stop is None:
            start.stop = wish
            start.controller.abort(wish.reason)

    # ---- one start

    @fb.effect(raises=SendError)
    async def start(
        self,
        workspace_id: str,
        request: StreamRequest,
        signal: AbortSignal | None,
        options: StartOptions,
    ) -> StreamHandle:
        """See StreamEngine.start_stream."""
        try:
            check_id(workspace_id)
        except ValueError as error:
            raise SendError("invalid_id", str(error)) from error
        if not request.text.strip():
            raise SendError("empty_message", "the message has no text")
        known = self._answers.known(workspace_id, request)
        if known is not None:
            return known
        start = Start(await fb.current_clock(), options)
        self._supervision.guard_start(
            f"start in {workspace_id}", lambda: self.stop(start, SYSTEM), start.wait()
        )
        unlink = _nothing
        if signal is not None:
            unlink = signal.add_listener(
                lambda reason: self.stop(start, StopWish(_reason_of(reason)))
            )
        self._starts.setdefault(workspace_id, []).append(start)
        try:
            async with self.locks.hold(workspace_id):
                return await self._in_turn(workspace_id, request, start)
        except HistoryError as error:
            raise SendError("history", str(error), details={"kind": error.kind}) from error
        finally:
            if start.stream is None:
                unlink()
                await self._supervision.end_resources(start.scope, workspace_id, start.message_id)
            else:
                start.stream.on_settled(unlink)
            self._end(workspace_id, start)

    def _end(self, workspace_id: str, start: Start) -> None:
        starts = self._starts.get(workspace_id, [])
        if start in starts:
            starts.remove(start)
            if not starts:
                del self._starts[workspace_id]
        if not start.over.done():
            start.over.set_result(None)

    async def _in_turn(
        self, workspace_id: str, request: StreamRequest, start: Start
    ) -> StreamHandle:
        known = self._answers.known(workspace_id, request)
        if known is not None:
            return known
        answered = await self._answered_before(workspace_id, request)
        if answered is not None:
            return answered
        live = self._live(workspace_id)
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
            launch = await self._construct(workspace_id, request, start, stored)
        finally:
            if start.stream is None:
                await release(self._history, workspace_id, start.message_id)
        if start.stream is not None and launch is not None:
            try:
                await self._announce(start.stream, start.options)
            except BaseException:
                # Failed, or its caller was interrupted: nobody has the handle.
                self._canceller.begin(start.stream, StopWish("startup"))
                raise
            finally:
                # Also when it was stopped meanwhile: then the launch only puts away what it has.
                launch()
        return start.handle

    async def _construct(
        self, workspace_id: str, request: StreamRequest, start: Start, user: UserRow
    ) -> Callable[[], None] | None:
        """Everything up to the registration. None where the start was stopped before."""
        if start.is_stopped():
            self._stopped(workspace_id, request, start)
            return None
        rows = await self._history.read(workspace_id)
        sequence = await self._history.reserve(workspace_id, start.message_id)
        if start.is_stopped():
            self._stopped(workspace_id, request, start)
            return None
        await self._prepare_temp_directory(start)
        if start.options.admit is not None and not start.is_stopped():
            await self._admitted(start, start.options.admit)
        if start.is_stopped():
            self._stopped(workspace_id, request, start)
            return None
        tools = start.options.tools
        toolbox = (
            self._toolbox
            if tools is None
            else Toolbox(tools, max_output_bytes=self._options.max_tool_output_bytes)
        )
        asked = request.model_copy(
            update={"history": _before(rows, user), "tools": request.tools or toolbox.specs}
        )
        fenced = start.options.stop_fence() if start.options.stop_fence is not None else None
        if fenced is not None:
            self.stop(start, StopWish(fenced))
            self._stopped(workspace_id, request, start)
            return None
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
            start.scope,
        )
        stream.temp_directory = start.temp_directory
        # Once more: the provider itself may have stopped it, through whatever it called.
        if start.is_stopped():
            closing = close_parts(parts, stream)
            stream.work.fork(closing, start_immediately=True, uninterruptible=True)
            self._stopped(workspace_id, request, start)
            return None
        # Register and supervise: one synchronous block, so that nothing comes between. The launch
        # is deferred: a late fork into a closed scope aborts before the first event (VA6).
        start.stream = stream
        self._answers.remember(workspace_id, request, start.handle)
        launch = self._register(stream, asked, parts, toolbox)
        # From here on a close finds the stream.
        self._end(workspace_id, start)
        return launch

    def _stopped(self, workspace_id: str, request: StreamRequest, start: Start) -> None:
        """Nothing registered, nothing emitted; the completion says why (E16, BT6)."""
        assert start.stop is not None
        start.completing.settle(Completion(status="aborted", abort_reason=start.stop.reason))
        self._answers.remember(workspace_id, request, start.handle)

    async def _prepare_temp_directory(self, start: Start) -> None:
        path, parent = start.options.temp_directory, self._options.temp_directory
        if path is None and parent is not None:
            try:
                path = await make_temp_directory(parent)
            except OSError as error:
                raise SendError("temp_directory", f"{parent}: {text_of(error)}") from error
        if path is not None:
            start.temp_directory = path
            await start.scope.add_finalizer(lambda _exit: remove_temp_directory(path))

    async def _admitted(self, start: Start, admit: Effect[None, SendError]) -> None:
        """Wait for the caller's admission, or for a stop of the start."""
        admission = await admit.fork_in(start.scope)
        admission.ignore_failure()
        await fb.race_first(admission.exit(), start.controller.signal.wait())
        if not start.is_stopped():
            try:
                await admission
            except SendError:
                raise
            except Exception as exc:
                raise _send_error(exc) from exc

    async def _announce(self, stream: Stream, options: StartOptions) -> None:
        """The caller's own durable work on a stream that is registered, before its first event. A
        stop in the meantime is told at once; the work is then the stream scope's to end.
        """
        if options.on_constructed is None or stream.stop is not None:
            return
        work = options.on_constructed(stream.message_id, stream.history_sequence)
        announced = await work.fork_in(stream.work)
        announced.set_name(f"on_constructed of {stream.workspace_id}/{stream.message_id}")
        announced.ignore_failure()
        await fb.race_first(announced.exit(), stream.completing.wait())
        failed = announced.poll()
        if isinstance(failed, fb.Failure) and stream.stop is None:
            exc = failed.failure().squash()
            raise SendError("on_constructed", text_of(exc)) from exc

    # ---- what was there before

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

    async def _answered_before(
        self, workspace_id: str, request: StreamRequest
    ) -> StreamHandle | None:
        if request.client_message_id is None:
            return None
        return answer_in(await self._history.read(workspace_id), request)


@fb.effect
async def release(history: HistoryStore, workspace_id: str, message_id: str) -> None:
    """Give up the sequence of a message that needs it no more. Never fails."""
    exit_ = await history.release(workspace_id, message_id).exit()
    if isinstance(exit_, fb.Failure):
        # Costs a number in the order of rows, nothing else.
        _log.warning(
            "reservation not released",
            workspaceId=workspace_id,
            messageId=message_id,
            error=text_of(exit_.failure().squash()),
        )


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


def _new_id(kind: Literal["a", "u"]) -> str:
    return f"{kind}_{uuid.uuid4().hex}"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _before(rows: list[Row], user: UserRow) -> tuple[Row, ...]:
    """The conversation that the provider sees before the message it shall answer."""
    return for_provider(row for row in rows if row.id != user.id)


def _send_error(exc: Exception) -> SendError:
    if isinstance(exc, SendError):
        return exc
    kind = getattr(exc, "kind", None)
    return SendError(kind if isinstance(kind, str) else "unknown", str(exc) or type(exc).__name__)
