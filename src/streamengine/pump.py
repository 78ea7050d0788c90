"""The pump: provider part -> event out -> part recorded -> partial on disk -> terminal.

It runs in a fiber of its own, which its signal stops. It calls the provider once a step: after a
step that called tools it runs them (toolrun.py) and asks again, in the same stream. What is said is
the transcript's to record, how it ends the endings' to tell; an abort is the canceller's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, final

import structlog

import fibers as fb

from .endings import Ending
from .feeding import Parts, close_parts, feed
from .handoff import EndOfParts, Handoff
from .history.partial import is_commit_worthy
from .model.errors import PREVIOUS_RESPONSE_NOT_FOUND, StreamError
from .model.events import StreamStartEvent
from .model.fold import fold_parts
from .model.parts import (
    ErrorPart,
    FilePart,
    Finish,
    FinishStep,
    ProviderPart,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    StartStep,
    TextDelta,
    TextEnd,
    ToolCall,
    ToolCallDelta,
    ToolError,
    ToolResult,
    UnknownPart,
)
from .model.refused import without_refused
from .model.request import StreamRequest
from .model.tool_output import REFUSED, UNANSWERED
from .partials import PartialWriter
from .payloads import exception_of, text_of
from .providers.base import LateUsage
from .stream import Stream, StreamState
from .tokens import TokenTracker
from .toolrun import ToolRun
from .transcript import OpenCall, Transcript
from .usage import count_step

if TYPE_CHECKING:
    from .abandoned import Abandoned
    from .events.spine import EventSpine
    from .history.store import HistoryStore
    from .model.parts import MessagePart
    from .options import EngineOptions
    from .phases import TellPhase
    from .providers.base import Provider
    from .tools import Toolbox

_log = structlog.get_logger("streamengine.pump")

_REFUSALS: Final = frozenset({"content-filter", "refusal"})


@dataclass(frozen=True, slots=True)
class _Whole:
    """A whole answer: how it says that it is done, and the bound of steps where that ended it."""

    finish: Finish
    step_limit: int | None = None


@final
class Pump:
    """The work on one stream, from its stream-start to everything but an abort.

    ``request`` is what the provider was given, ``parts`` what it answers.
    """

    def __init__(
        self,
        stream: Stream,
        request: StreamRequest,
        parts: Parts,
        *,
        provider: Provider,
        history: HistoryStore,
        events: EventSpine,
        tell_phase: TellPhase,
        options: EngineOptions,
        toolbox: Toolbox,
        soft_stop: Callable[[Stream], None],
        abandoned: Abandoned,
    ) -> None:
        self._stream = stream
        self._request = request
        self._parts = parts
        self._provider = provider
        self._events = events
        self._tell_phase = tell_phase
        self._options = options
        self._toolbox = toolbox
        self._soft_stop = soft_stop
        self._tokens = TokenTracker(options.load_tokenizer)
        self._writer = stream.writer = PartialWriter(stream, history)
        self._transcript = stream.transcript = Transcript(
            stream,
            events=events,
            writer=self._writer,
            tokens=self._tokens,
            said_before=request.so_far,
        )
        self._ending = Ending(
            stream,
            history=history,
            events=events,
            tell_phase=tell_phase,
            writer=self._writer,
            transcript=self._transcript,
            abandoned=abandoned,
        )
        self._writing: fb.Fiber[None] | None = None
        self._handoff = Handoff()
        self._finish: Finish | None = None
        self._late: list[LateUsage] = []
        self._fallbacks = list(request.fallback_models or options.fallback_models)
        self._steps = 0
        self._retried_empty = False
        # Where the current step began: what a retry may not repeat.
        self._step_start = 0
        self._call_start = 0
        # What an earlier try of the same answer has said; it stands in a row of its own.
        self._said_before = request.so_far

    # ---- the whole

    @fb.effect
    async def run(self) -> None:
        """Everything up to the terminal of a stream that nobody stops. Never fails."""
        # As an exit, not an except: a store that dies of a CancelledError must not leave a stream
        # open either.
        exit_ = await self._run().exit()
        if isinstance(exit_, fb.Failure):
            exc = exit_.failure().squash()
            if self._stream.terminal is None and not self._stream.aborted:
                await self._ending.fail(exc)
            else:
                _log.error(
                    "the pump failed after the end",
                    messageId=self._stream.message_id,
                    error=repr(exc),
                )

    def close(self) -> None:
        """The pump is over: nothing is taken from the provider any more, nothing written."""
        # A provider that outlives its interrupt, at least, is told that nobody takes its parts.
        self._handoff.close()
        if self._writing is not None:
            # Not waited for here: its store may hang, and the provider shall hear of the end.
            self._writing.interrupt_unsafe(reason="the stream has ended")

    @fb.effect
    async def _run(self) -> None:
        stream = self._stream
        if stream.stop is not None:
            # Ended while it was starting: no stream-start, the provider is not read.
            await self._close_unread()
            return
        # From here on the abort itself closes the handoff: nothing that comes after it is handled,
        # and the pump doesn't wait for a provider that ignores it (E10, BT5).
        stream.controller.signal.add_listener(lambda _reason: self._handoff.close())
        stream.state = StreamState.STREAMING
        self._tokens.set_model(stream.model)
        self._tell_start()
        self._writing = await self._writer.run().fork_in(stream.leases)
        self._writing.set_name(f"partial of {stream.workspace_id}/{stream.message_id}")
        try:
            whole = await self._answer()
        except Exception as exc:  # noqa: BLE001  # whatever a provider raises ends its stream
            if not self._is_aborted():
                await self._ending.fail(exc)
            else:
                # E11: the provider's way to obey. The canceller tells how it ended.
                _log.debug("provider raised after the abort", error=repr(exc))
            return
        if whole is not None and not self._is_aborted():
            await self._ending.complete(whole.finish, self._late, step_limit=whole.step_limit)

    def _tell_start(self) -> None:
        stream, request = self._stream, self._request
        stream.told_start = True
        self._tell_phase(stream, "streaming")
        self._events.emit(
            StreamStartEvent(
                **stream.about,
                model=stream.model,
                history_sequence=stream.history_sequence,
                start_time_ms=stream.start_time_ms,
                mode=request.mode,
                agent_id=request.agent_id,
                thinking_level=request.thinking_level,
            )
        )

    # ---- step after step

    async def _answer(self) -> _Whole | None:
        """Call the provider until the answer is whole. None: stopped. Raises what ends the stream
        as an error.
        """
        while True:
            try:
                await self._pass_parts_on()
            except Exception as exc:
                if self._is_aborted() or not self._may_forget_previous(exc):
                    raise
                _log.info("answered anew without the previous response", error=text_of(exc))
                so_far = fold_parts([*self._said_before, *self._said()])
                self._ask(previous_response_id=None, so_far=so_far)
                continue
            whole = await self._after_call()
            if whole is not None or self._is_aborted():
                return whole

    async def _after_call(self) -> _Whole | None:
        """What comes after one call of the provider: the end of the answer, or (None) the next
        call, which is made, unless the stream was stopped.
        """
        finish = self._finish
        if self._is_aborted():
            return None
        if finish is not None and finish.finish_reason in _REFUSALS:
            self._go_on_with_another_model()
            return None
        said = self._said()
        if not self._stream.parts:
            await self._boundary()
            return None if self._is_aborted() else self._after_nothing(finish)
        if finish is None or not finish.is_terminal:
            raise StreamError(
                "stream_truncated",
                "the answer was cut off: the provider ended without saying that it is done",
            )
        calls = [call for call in self._transcript.open_calls if not call.part.provider_executed]
        if not calls:
            added = self._add_at_end(finish)
            if not added and not is_commit_worthy(said):
                raise StreamError("empty_output", "the model gave no answer")
            return _Whole(finish)
        await self._run_tools(calls)
        if self._is_aborted():
            return None
        self._steps += 1
        steps = self._stream.steps
        last_words = None if steps is None else steps.after_tools(self._stream.parts)
        if last_words is not None:
            self._transcript.text(last_words)
            return _Whole(finish)
        if self._steps >= self._options.max_steps:
            _log.warning("an answer ends at its bound of steps", steps=self._steps)
            return _Whole(finish, self._steps)
        for call in self._transcript.open_calls:
            # The provider's own, which it left without a result.
            self._transcript.close_call(call, UNANSWERED)
        await self._boundary()
        if not self._is_aborted():
            self._ask(so_far=fold_parts([*self._said_before, *self._said()]))
        return None

    def _ask(self, **changed: Any) -> None:
        """Call the provider again. Raises what it raises."""
        self._request = self._request.model_copy(update=changed)
        steps = self._stream.steps
        given = self._request if steps is None else steps.before_call(self._request)
        self._parts = self._provider.stream(given, self._stream.controller.signal)

    def _said(self) -> tuple[MessagePart, ...]:
        """What was recorded, without what a model refused to stand by."""
        return without_refused(self._stream.parts)

    def _may_forget_previous(self, exc: Exception) -> bool:
        """Once, and only where the step has said nothing that would be said twice."""
        return (
            isinstance(exc, StreamError)
            and exc.code == PREVIOUS_RESPONSE_NOT_FOUND
            and self._request.previous_response_id is not None
            and len(self._stream.parts) == self._step_start
        )

    def _after_nothing(self, finish: Finish | None) -> _Whole | None:
        if self._retried_empty:
            if self._add_at_end(None):
                return _Whole(finish or Finish(finish_reason="stop"))
            raise StreamError("empty_output", "the model gave no answer")
        self._retried_empty = True
        _log.info("an empty answer is asked for once more", messageId=self._stream.message_id)
        self._ask()
        return None

    def _add_at_end(self, finish: Finish | None) -> bool:
        """Add what the caller has to say at the end; whether it had."""
        steps = self._stream.steps
        words = "" if steps is None else steps.at_end(finish, self._stream.parts)
        self._transcript.text(words)
        return bool(words.strip())

    def _go_on_with_another_model(self) -> None:
        stream = self._stream
        for call in self._transcript.open_calls:
            self._transcript.close_call(call, REFUSED)
        self._transcript.refused(stream.parts[self._call_start :])
        if not self._fallbacks:
            raise StreamError("model_refusal", f"the model {stream.model or ''} refused to answer")
        model = self._fallbacks.pop(0)
        _log.info("the model refused: another one answers", refused=stream.model, model=model)
        stream.model = model
        self._tokens.set_model(model)
        self._ask(model=model, previous_response_id=None)

    async def _run_tools(self, calls: Sequence[OpenCall]) -> None:
        transcript = self._transcript
        run = ToolRun(
            self._stream,
            self._toolbox,
            calls,
            concurrency=self._options.tool_concurrency,
            on_start=lambda call: transcript.execution_started(call.id),
        )
        while (ended := await run.next()) is not None:
            call, output = ended
            await transcript.result(call.id, call.part.tool_name, output)
            await self._boundary()

    def _is_aborted(self) -> bool:
        # A call, asked again after each wait: a checker takes an attribute to stay what it was.
        return self._stream.aborted

    async def _boundary(self) -> None:
        """A place where a soft stop takes effect (E9)."""
        stream = self._stream
        if stream.soft_stop is not None:
            self._soft_stop(stream)
            # The abort comes after a flush, and until then this is the place where the stream
            # stands: it has neither ended nor been cut off.
            await stream.controller.signal.wait()

    # ---- one call of the provider

    async def _pass_parts_on(self) -> None:
        """Read the provider to its end, or to the abort. Raises what it raises."""
        stream = self._stream
        self._finish = None
        if self._is_aborted():
            # Stopped by what the provider itself did when it was called: it is not read.
            await self._close_unread()
            return
        self._step_start = self._call_start = len(stream.parts)
        steps_with_usage = stream.usage.steps
        parts, self._handoff = self._parts, Handoff(self._handle_at_once)
        # Started at once, so that it closes the provider's iterator whatever comes next.
        feeding = feed(parts, self._handoff, stream)
        feeder = await feeding.fork_in(stream.work, start_immediately=True)
        stream.put_to_work(feeder, "provider")
        while True:
            part = await self._handoff.take()
            # First of all: nothing is recorded or told after the abort (E10).
            if self._is_aborted() or isinstance(part, EndOfParts):
                break
            if self._handle_at_once(part):
                continue
            await self._handle(part)
            if self._is_aborted():
                break
        if stream.usage.steps == steps_with_usage and isinstance(parts, LateUsage):
            self._late.append(parts)

    async def _close_unread(self) -> None:
        closing = close_parts(self._parts, self._stream)
        fiber = await closing.fork_in(
            self._stream.work, start_immediately=True, uninterruptible=True
        )
        self._stream.put_to_work(fiber, "provider")

    def _handle_at_once(self, part: ProviderPart | UnknownPart) -> bool:
        """Handle what waits for nothing; False for everything else, and after the abort (E10)."""
        if self._is_aborted():
            return False
        if isinstance(part, TextDelta):
            self._transcript.text(part.text)
        elif isinstance(part, ReasoningDelta):
            self._transcript.reasoning_delta(part)
        elif isinstance(part, ToolCallDelta):
            self._transcript.tool_call_delta(part)
        else:
            return False
        return True

    async def _handle(self, part: ProviderPart | UnknownPart) -> None:
        stream, transcript = self._stream, self._transcript
        match part:
            case TextEnd():
                await self._boundary()
            case ReasoningStart():
                transcript.reasoning_start(part)
            case ReasoningEnd():
                transcript.reasoning_end(part)
                await self._boundary()
            case ToolCall():
                transcript.tool_call(part)
                if part.tool_name in self._options.ask_user_tools:
                    # It waits for a person, perhaps beyond this process.
                    await self._writer.flush(durable=True)
            case ToolResult() | ToolError():
                await transcript.provider_result(part)
                await self._boundary()
            case FilePart():
                transcript.file(part)
            case StartStep():
                self._step_start = len(stream.parts)
            case FinishStep():
                self._step_start = len(stream.parts)
                if part.usage is not None:
                    self._events.emit(count_step(stream, part.usage, part.provider_metadata))
                await self._boundary()
            case Finish():
                self._finish = part
            case ErrorPart():
                raise exception_of(part.error)
            case _:
                pass  # a type that nobody here knows, or one that says nothing
