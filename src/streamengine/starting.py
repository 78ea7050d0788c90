"""Starting an answer: from the caller's request to a registered, supervised, running stream.

One start at a time in a workspace. Until the registration a stop or a close of the app scope ends
the start itself, and nothing is told (E1, BT6); from there on it is a stop of the stream.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, final

import structlog

import fibers as fb
from fibers import AbortSignal

from .answers import Answers, StreamHandle, answer_in
from .construction import Construction, Launch, Start, release, take_over
from .feeding import Parts
from .locks import WorkspaceLocks
from .model.errors import HistoryError, HistoryErrorKind, SendError
from .model.ids import check_id
from .model.request import AbortReason, StreamRequest
from .options import EngineOptions, StartOptions
from .payloads import text_of
from .question import Question, open_question, user_row
from .sidecar import note_begin
from .stream import StopWish, Stream
from .supervise import SYSTEM
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
        self._canceller = canceller
        self._supervision = supervision
        self._live = live

        def enter(start: Start, *made: Any) -> Launch:
            launch = register(*made)
            # From here on a close finds the stream.
            self._end(start.workspace_id, start)
            return launch

        self._construction = Construction(
            history=history,
            provider=provider,
            toolbox=toolbox,
            options=options,
            stop=self.stop,
            register=enter,
        )
        self._starts: dict[str, list[Start]] = {}
        self._answers = Answers()
        self.locks: WorkspaceLocks = WorkspaceLocks()

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

        def known_before() -> StreamHandle | None:
            _check(workspace_id)
            if not request.text.strip():
                raise SendError("empty_message", "the message has no text")
            return self._answers.known(workspace_id, request)

        return await self._run(
            workspace_id,
            signal,
            options,
            known_before,
            lambda start: self._in_turn(workspace_id, request, start),
        )

    @fb.effect(raises=SendError)
    async def resume(
        self,
        workspace_id: str,
        request: StreamRequest | None,
        signal: AbortSignal | None,
        options: StartOptions | None,
    ) -> StreamHandle:
        """See StreamEngine.resume_stream."""
        return await self._run(
            workspace_id,
            signal,
            options or StartOptions(),
            lambda: _check(workspace_id),
            lambda start: self._again(
                workspace_id, request, start, is_resolved=options is not None
            ),
        )

    async def _run(
        self,
        workspace_id: str,
        signal: AbortSignal | None,
        options: StartOptions,
        known_before: Callable[[], StreamHandle | None],
        body: Callable[[Start], Awaitable[StreamHandle]],
    ) -> StreamHandle:
        """``known_before`` is asked without a wait for the starts before this one."""
        start = Start(workspace_id, await fb.current_clock(), options)
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
            await take_over(start, options.temp_directory)
            known = known_before()
            if known is not None:
                return known
            async with self.locks.hold(workspace_id):
                return await body(start)
        except HistoryError as error:
            raise SendError("history", str(error), details={"kind": error.kind}) from error
        finally:
            if start.stream is None:
                unlink()
                await self._supervision.end_resources(
                    start.scope, workspace_id, start.message_id, at_work=lambda: ("start",)
                )
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
        tools = request.tools or self._construction.toolbox(start.options).specs
        row = user_row(workspace_id, request, tools)
        stored = await self._history.append_user(workspace_id, row)
        if not stored.is_new:
            # One whose start failed, or one so old that it was archived with its answer.
            answered = answer_in(await self._history.read_archive(workspace_id), request)
            if answered is not None:
                return answered
        question = Question(stored.row, tried_before=not stored.is_new)
        return await self._answer(workspace_id, request, start, question)

    async def _again(
        self,
        workspace_id: str,
        request: StreamRequest | None,
        start: Start,
        *,
        is_resolved: bool,
    ) -> StreamHandle:
        question = None
        if self._live(workspace_id) is None:
            await self._commit_what_is_left(workspace_id)
            question = open_question(await self._history.read(workspace_id))
        if question is None:
            raise SendError("nothing_to_resume", "the last message is answered, or being answered")
        if not is_resolved:
            await self._construction.resolve(start, question)
        kept = StreamRequest.from_row(question.row)
        if request is not None:
            kept = request.model_copy(update={"text": kept.text})
        return await self._answer(workspace_id, kept, start, question)

    async def _answer(
        self, workspace_id: str, request: StreamRequest, start: Start, question: Question
    ) -> StreamHandle:
        try:
            launch = await self._construction.construct(workspace_id, request, start, question)
        finally:
            if start.stream is None:
                await release(self._history, workspace_id, start.message_id)
        if start.stream is not None and launch is not None:
            try:
                if question.tried_before:
                    await self._begin_anew(start.stream)
                await self._announce(start.stream, start.options)
            except BaseException:
                # Failed, or its caller was interrupted: nobody has the handle.
                self._canceller.begin(start.stream, StopWish("startup"))
                raise
            finally:
                # Also when it was stopped meanwhile: then the launch only puts away what it has.
                launch()
        self._answers.remember(workspace_id, request, start.handle)
        return start.handle

    async def _begin_anew(self, stream: Stream) -> None:
        noted = await self._before_launch("begin", stream, note_begin(self._history, stream))
        if isinstance(noted, fb.Failure):
            _log.warning(
                "a further try is not noted: after a crash the one before decides",
                workspaceId=stream.workspace_id,
                messageId=stream.message_id,
                error=text_of(noted.failure().squash()),
            )

    async def _announce(self, stream: Stream, options: StartOptions) -> None:
        """The caller's own durable work on a stream that is registered, before its first event."""
        if options.on_constructed is None:
            return
        work = options.on_constructed(stream.message_id, stream.history_sequence)
        failed = await self._before_launch("on_constructed", stream, work)
        if isinstance(failed, fb.Failure) and stream.stop is None:
            exc = failed.failure().squash()
            raise SendError("on_constructed", text_of(exc)) from exc

    async def _before_launch(
        self, name: str, stream: Stream, work: fb.Effect[Any, Any]
    ) -> fb.Exit[Any, Any] | None:
        """Do ``work``. A stop in the meantime is told at once; the work is then the stream scope's
        to end, and the answer is None.
        """
        if stream.stop is not None:
            return None
        fiber = await work.fork_in(stream.work)
        stream.put_to_work(fiber, name)
        await fb.race_first(fiber.exit(), stream.completing.wait())
        return fiber.poll()

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


def _check(workspace_id: str) -> None:
    try:
        check_id(workspace_id)
    except ValueError as error:
        raise SendError("invalid_id", str(error)) from error
