"""Construction: from a stored question to a registered stream, or to a start that was stopped.

Each wait may be the one in which the start is stopped, so each is followed by a look; the last look
and the provider's call have nothing between them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias, final

import structlog

import fibers as fb
from fibers import AbortController, Clock, Effect, Scope

from .abandoned import guarded
from .answers import StreamHandle
from .feeding import Parts, close_parts
from .model.errors import SendError
from .model.note import LastEnd
from .model.request import AbortReason, Completion, StreamRequest
from .options import EngineOptions, StartOptions
from .payloads import text_of
from .question import Question, new_id
from .sidecar import note_end
from .stream import Completing, StopWish, Stream
from .tempdir import make_temp_directory, remove_temp_directory
from .tools import Toolbox

if TYPE_CHECKING:
    from .history.store import HistoryStore
    from .providers.base import Provider

_log = structlog.get_logger("streamengine.construction")

Launch: TypeAlias = Callable[[], None]
"""What begins the work on a registered stream."""


@final
class Start:
    """A start that may not have registered its stream yet."""

    def __init__(self, workspace_id: str, clock: Clock, options: StartOptions) -> None:
        self.workspace_id = workspace_id
        self.message_id: str = new_id("a")
        self.clock = clock
        self.options = options
        self.controller: AbortController = AbortController()
        self.completing: Completing = Completing()
        self.stop: StopWish | None = None
        self.stream: Stream | None = None
        self.scope: Scope = Scope(name=f"stream {self.message_id}")
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


class Register(Protocol):
    """Enters a stream of a start, supervises it, and gives what launches it."""

    def __call__(
        self, start: Start, stream: Stream, asked: StreamRequest, parts: Parts, toolbox: Toolbox, /
    ) -> Launch: ...


@final
class Construction:
    """Constructs the streams of one engine."""

    def __init__(
        self,
        *,
        history: HistoryStore,
        provider: Provider,
        toolbox: Toolbox,
        options: EngineOptions,
        stop: Callable[[Start, StopWish], None],
        register: Register,
    ) -> None:
        self._history = history
        self._provider = provider
        self._toolbox = toolbox
        self._options = options
        self._stop = stop
        self._register = register

    def toolbox(self, options: StartOptions) -> Toolbox:
        """What the model may call in an answer. Raises ValueError for a name used twice."""
        if options.tools is None:
            return self._toolbox
        return Toolbox(options.tools, max_output_bytes=self._options.max_tool_output_bytes)

    async def resolve(self, start: Start, question: Question) -> None:
        """Have the host say what an answer that nobody gave options for is resumed with. Raises
        SendError.
        """
        resolve = self._options.for_resumed
        if resolve is None:
            return
        try:
            options = resolve(question.row)
        except Exception as exc:
            raise _send_error(exc) from exc
        if options is not None:
            start.options = options
            await take_over(start, options.temp_directory)

    async def construct(
        self, workspace_id: str, request: StreamRequest, start: Start, question: Question
    ) -> Callable[[], None] | None:
        """Everything up to the registration. None where the start was stopped before."""
        if start.is_stopped():
            await self._stopped(start, question)
            return None
        rows = await self._history.read(workspace_id, from_boundary=True)
        sequence = await self._history.reserve(workspace_id, start.message_id)
        if start.is_stopped():
            await self._stopped(start, question)
            return None
        await self._prepare_temp_directory(start)
        if start.options.admit is not None and not start.is_stopped():
            await self._admitted(start, start.options.admit)
        if start.is_stopped():
            await self._stopped(start, question)
            return None
        toolbox = self.toolbox(start.options)
        tools = request.tools or toolbox.specs
        asked = question.asked(request, rows).model_copy(update={"tools": tools})
        fenced = _fenced(start.options)
        if fenced is not None:
            self._stop(start, StopWish(fenced))
            await self._stopped(start, question)
            return None
        steps = start.options.steps
        try:
            given = asked if steps is None else steps.before_call(asked)
            parts = self._provider.stream(given, start.controller.signal)
        except (Exception, asyncio.CancelledError) as exc:
            # A CancelledError too: nothing was awaited, so it is nobody's interrupt.
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
        stream.steps = steps
        stream.question_sequence = question.sequence
        stream.missing_tools = question.missing(tools)
        # Once more: the provider itself may have stopped it, through whatever it called.
        if start.is_stopped():
            closing = close_parts(parts, stream)
            stream.work.fork(closing, start_immediately=True, uninterruptible=True)
            await self._stopped(start, question)
            return None
        if stream.missing_tools:
            _log.warning(
                "an answer goes on without the tools that it was begun with; its row says so",
                workspaceId=workspace_id,
                messageId=start.message_id,
                tools=list(stream.missing_tools),
                wayOut="Give them as EngineOptions.for_resumed.",
            )
        # Register and supervise: one synchronous block, so that nothing comes between. The launch
        # is deferred: a late fork into a closed scope aborts before the first event (VA6).
        start.stream = stream
        return self._register(start, stream, asked, parts, toolbox)

    async def _stopped(self, start: Start, question: Question) -> None:
        """Nothing registered, nothing emitted; the completion says why (E16, BT6)."""
        assert start.stop is not None
        end = LastEnd(
            message_id=start.message_id,
            after_sequence=question.sequence,
            abort_reason=start.stop.reason,
        )
        await guarded("note of the end", start, note_end(self._history, start.workspace_id, end))
        start.completing.settle(Completion(status="aborted", abort_reason=start.stop.reason))

    async def _prepare_temp_directory(self, start: Start) -> None:
        parent = self._options.temp_directory
        if start.temp_directory is not None or parent is None:
            return
        # Made by a thread, which no interrupt reaches: what it makes must get its owner.
        with fb.uninterruptible() as restore:
            try:
                path = await make_temp_directory(parent)
            except OSError as error:
                raise SendError("temp_directory", f"{parent}: {text_of(error)}") from error
            await take_over(start, path)
            with restore():
                pass  # an interrupt that came meanwhile ends the start here, not after its launch

    async def _admitted(self, start: Start, admit: Effect[None, SendError]) -> None:
        """Wait for the caller's admission, or for a stop of the start."""
        admission = await admit.fork_in(start.scope)
        admission.set_name(f"admission of {start.workspace_id}/{start.message_id}")
        admission.ignore_failure()
        await fb.race_first(admission.exit(), start.controller.signal.wait())
        if not start.is_stopped():
            try:
                await admission
            except SendError:
                raise
            except Exception as exc:
                raise _send_error(exc) from exc


async def take_over(start: Start, temp_directory: Path | None) -> None:
    """Give the start a temp directory, which goes with it or with its stream, however that ends."""
    if temp_directory is not None:
        start.temp_directory = temp_directory
        await start.scope.add_finalizer(lambda _exit: remove_temp_directory(temp_directory))


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


def _fenced(options: StartOptions) -> AbortReason | None:
    if options.stop_fence is None:
        return None
    try:
        return options.stop_fence()
    except Exception as exc:
        raise _send_error(exc) from exc


def _send_error(exc: BaseException) -> SendError:
    if isinstance(exc, SendError):
        return exc
    try:
        kind = getattr(exc, "kind", None)
    except Exception:  # noqa: BLE001  # whatever it is, it can't be asked
        kind = None
    return SendError(kind if isinstance(kind, str) else "unknown", text_of(exc))
