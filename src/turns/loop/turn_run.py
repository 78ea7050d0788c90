"""TurnRun: the loop of one turn, root or child. Stream after stream, until one says it is done.

Each prompt of the turn (the first one, steering, a result, a hint, a recovery) is one stream, and
one user row. A prompt that is asked again adds no row.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, TypedDict, final

import structlog

import fibers as fb
from fibers import Effect
from streamengine import (
    Event,
    SendError,
    StartOptions,
    StreamHandle,
    StreamRequest,
)
from streamengine.model import Completion, ErrorEvent, StreamEndEvent, UsageDeltaEvent, categorize

from ..events import (
    InterruptReceivedEvent,
    LlmRetryEvent,
    SteeringInjectedEvent,
    TurnEvent,
)
from ..handles.continuation import TakesAnswers
from ..handles.happenings import stop_reason_of
from ..model.errors import TurnError
from ..subturns import Agent, TurnState
from ..subturns.finish import finish
from .background import Jobs
from .config import LoopConfig
from .context import is_context_error, to_omit
from .gate import SKIPPED_FOR_INTERRUPT, SKIPPED_FOR_STEERING, Gate
from .parts import Context, Surroundings
from .recovery import Again, PromptKind, Recovery
from .steps import TurnSteps

_log = structlog.get_logger("turns.loop")


class About(TypedDict):
    """What every event of a turn says."""

    workspace_id: str
    turn_id: str


@final
class TurnRun:
    """One turn. ``run`` gives its answer."""

    def __init__(self, state: TurnState, agent: Agent, on: Surroundings) -> None:
        self.state = state
        self.config: LoopConfig = on.config
        self.context: Context = on.context
        self.recovery: Recovery = Recovery(on.config)
        self.limit_tokens: int | None = on.config.limit_tokens(agent.context_window_tokens)
        self.about: About = About(workspace_id=state.session, turn_id=state.turn_id)
        self.calls = 0
        self.content: str = ""
        # Until it is decided otherwise, more is to come after whatever stream ends.
        self.goes_on: bool = True
        self.is_answered: bool = False
        """Its last word is stored and told: whatever comes now comes too late."""
        self._taken: str | None = None
        self._agent = agent
        self._on = on
        self._news = asyncio.Event()
        self.jobs: Jobs = Jobs(on.scope, self._news.set)
        self._gate = Gate(
            state,
            events=on.events,
            correlation=on.tools_correlation,
            jobs=self.jobs,
            skips=self._skips,
        )
        self._interrupt_hint: str | None = None
        self.is_last_call: bool = False
        self._message_id: str | None = None
        self._verdict: Again | None = None
        self._steps: TurnSteps | None = None
        state.results.on_delivered = self._news.set

    @property
    def correlation(self) -> Mapping[str, Any]:
        """Of its streams."""
        return self._on.correlation

    def tell(self, event: TurnEvent) -> None:
        self._on.events.emit(event)

    # ---- what others want of it

    def hear(self) -> None:
        """There is steering for it."""
        self.tell(InterruptReceivedEvent(**self.about, kind="steering"))
        self._news.set()

    def interrupt(self, hint: str | None = None) -> None:
        """Have it end with one last call without tools. Raises TurnError ("aborted") once it is
        being aborted.
        """
        if self.state.abort_wanted or self.state.is_aborted:
            raise TurnError("aborted", f"the turn {self.state.turn_id} is being aborted")
        if self._interrupt_hint is None:
            self._interrupt_hint = hint or self.config.hint
            self.tell(InterruptReceivedEvent(**self.about, kind="graceful"))
            self._news.set()

    # ---- what the steps ask

    @property
    def must_stop(self) -> bool:
        """Whether it ends before its next call: its parent has ended, or the budget is spent."""
        budget = self.state.budget
        is_spent = budget is not None and budget.is_spent
        return is_spent or (self.state.parent_ended and not self.state.critical)

    @property
    def may_call(self) -> bool:
        return self.calls < self.config.max_iterations

    @property
    def wants_last_call(self) -> bool:
        return self._interrupt_hint is not None and not self.is_last_call

    @property
    def may_go_on(self) -> bool:
        """Whether there may be another stream after an answer."""
        return not self.is_last_call and not self.must_stop and self.may_call

    @property
    def is_spoken_to(self) -> bool:
        """Whether an answer is not the last word: results alone are added to it instead."""
        return self.wants_last_call or self._is_steered or self.jobs.has_news

    @property
    def _is_steered(self) -> bool:
        return self._on.steering.waits(self.state.workspace_id, hears_all=self.state.parent is None)

    @property
    def has_next_prompt(self) -> bool:
        """Whether there is something to hear before the next call."""
        return self.is_spoken_to or len(self.state.results) > 0

    def late_results(self) -> list[str]:
        """The last look: all results that nobody has heard of."""
        late: list[str] = []
        while (result := self.state.results.take()) is not None:
            late.append(f"[SubTurn Result] {result.content}")
        return late

    def finish(self, content: str, *, was_cut: bool = False) -> None:
        """It is done, with this answer. ``was_cut``: the model had more to say, and the turn takes
        what there is.
        """
        self.content = content or self.content
        self._taken = self._message_id if was_cut else None
        self.goes_on = False
        self.state.let_go()
        finish(self.state, hard=False, registry=self._on.registry)

    def takes(self, message_id: str) -> bool:
        """Whether that message is its answer, although the model was cut off in it."""
        return message_id == self._taken

    def _skips(self) -> str | None:
        if self.wants_last_call:
            return SKIPPED_FOR_INTERRUPT
        if self._is_steered:
            return SKIPPED_FOR_STEERING
        return None

    # ---- the loop

    @fb.effect(raises=TurnError)
    async def run(self, prompt: str) -> str:
        """From the prompt to the end; gives the answer. A stream that somebody stops ends it as
        interrupted, with the stream's reason.
        """
        self.recovery.ask(prompt, "prompt")
        unsubscribe = self._on.engine.events.subscribe(self._on_event)
        try:
            while not self.must_stop:
                steps = TurnSteps(self)
                completion = await self._stream(steps)
                if await self._is_done(steps, completion):
                    return self.content
            self.finish(self.content)
            return self.content
        finally:
            self.goes_on = False
            unsubscribe()

    async def _is_done(self, steps: TurnSteps, completion: Completion) -> bool:
        """What comes after a stream: nothing, or a prompt that is to be asked (again)."""
        if completion.status == "aborted":
            self.goes_on = False
            stopped = fb.Cause((fb.Interrupt(None, completion.abort_reason),))
            await Effect.fail_cause(stopped)
        if steps.ended == "truncated":
            attempt = self.recovery.recover_truncated()
            self.tell(LlmRetryEvent(**self.about, reason="truncated", attempt=attempt))
        elif completion.status == "failed":
            await self._try_again(completion.error_type, completion.error or "the stream failed")
        elif steps.ended == "done":
            return True
        else:
            await self._next_prompt()
        return False

    async def _next_prompt(self) -> None:
        """Wait for something to ask, and take it."""
        while not self.must_stop and not self._take_next_prompt():
            self._news.clear()
            await self._woken()

    async def _woken(self) -> None:
        """Wait for news, or for the end of a parent that takes this turn with it."""
        news = Effect.promise(self._news.wait)
        parent = None if self.state.critical else self.state.parent
        await (news if parent is None else fb.race_first(news, parent.wait_finished()))

    def _take_next_prompt(self) -> bool:
        if self.wants_last_call:
            self.is_last_call = True
            assert self._interrupt_hint is not None
            return self._ask(self._interrupt_hint, "hint")
        if self._is_steered:
            messages = self._on.steering.take(self.state.workspace_id)
            self.tell(SteeringInjectedEvent(**self.about, messages=len(messages)))
            return self._ask("\n\n".join(messages), "steering")
        result = self.state.results.take()
        if result is not None:
            return self._ask(f"[SubTurn Result] {result.content}", "subturn-result")
        done = self.jobs.take()
        return done is not None and self._ask(done, "background")

    def _ask(self, prompt: str, kind: PromptKind) -> bool:
        self.recovery.ask(prompt, kind)
        return True

    # ---- one stream

    async def _stream(self, steps: TurnSteps) -> Completion:
        """Ask the prompt, or ask it again, and wait for the end. Interrupted, it stops the stream
        and waits for that.
        """
        self.goes_on, self._verdict, self._message_id = True, None, None
        self._steps = steps
        recovery, on, workspace_id = self.recovery, self._on, self.state.workspace_id
        request = self._request()
        options = StartOptions(
            tools=() if self.is_last_call else self._gate.tools(),
            steps=steps,
            on_constructed=self._on_constructed,
        )
        start = on.engine.resume_stream if recovery.is_added else on.engine.start_stream
        try:
            handle = await start(
                workspace_id, request, signal=self.state.controller.signal, options=options
            )
        except SendError as error:
            cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
            error_type = categorize(cause)
            self._verdict = recovery.after(error_type, str(error))
            return Completion(status="failed", error=str(error), error_type=error_type)
        recovery.is_added = True
        return await self._end_of(handle)

    def _request(self) -> StreamRequest:
        agent, recovery = self._agent, self.recovery
        name = f"{self.state.turn_id}/{recovery.number}"
        return StreamRequest(
            text=recovery.prompt,
            # Sent again, should the start fail after its row was stored, it is stored once.
            client_message_id=name,
            correlation=self._on.correlation,
            model=agent.model,
            system=agent.system,
            agent_id=agent.name,
            prompt_id=f"{name}/{recovery.kind}",
        )

    def _on_constructed(self, message_id: str, _sequence: int) -> Effect[None]:
        self._message_id = message_id
        return Effect.succeed(None)

    async def _end_of(self, handle: StreamHandle) -> Completion:
        try:
            return await handle.completion
        except BaseException as error:
            with fb.uninterruptible():
                await self._on.engine.stop_stream(
                    self.state.workspace_id,
                    reason=stop_reason_of(error),
                    message_id=handle.message_id,
                )
            raise

    def _on_event(self, event: Event) -> None:
        if event.message_id != self._message_id:
            return
        if isinstance(event, ErrorEvent):
            # Decided here, as whoever settles the turn asks right after the event.
            ended = None if self._steps is None else self._steps.ended
            if ended is None:
                self._verdict = self.recovery.after(event.error_type, event.error)
            # Also where nothing tries again: the turn then fails, and says more than this.
            self.goes_on = True
        elif isinstance(event, StreamEndEvent):
            self.is_answered = self._steps is not None and self._steps.ended == "done"
        elif isinstance(event, UsageDeltaEvent) and self.state.budget is not None:
            usage = event.usage
            spent = usage.total_tokens or (usage.input_tokens or 0) + (usage.output_tokens or 0)
            self.state.budget.spend(spent)

    # ---- when it failed

    async def _try_again(self, error_type: str | None, error: str) -> None:
        """Prepare another try, or raise what the turn fails with."""
        again = self._verdict
        if again is None:
            self.goes_on = False
            raise self._failure(error_type, error)
        _log.info("a call is tried again", turnId=self.state.turn_id, reason=again.reason)
        self.tell(
            LlmRetryEvent(
                **self.about,
                reason=again.reason,
                attempt=again.attempt,
                delay_ms=round(again.delay_seconds * 1000),
                error=error,
            )
        )
        if again.reason == "context_limit":
            await self._compress()
        elif again.delay_seconds:
            await fb.sleep(again.delay_seconds)

    def _failure(self, error_type: str | None, error: str) -> TurnError:
        if is_context_error(error_type, error):
            retries = self.config.context_retries
            return TurnError(
                "context_limit",
                f"context limit exceeded after {retries} retries: {error}",
                "Begin a new conversation, or ask for less at a time.",
            )
        return TurnError("stream", error)

    async def _compress(self) -> None:
        """Show the model less of the conversation from now on. The rows stay as they are."""
        read = await self._on.history.read(self.state.workspace_id, from_boundary=True).exit()
        rows = [row for row in read.value_or([]) if row.id not in self.context.omitted]
        point = self.state.restore_point
        first_own = -1 if point is None or point.last_sequence is None else point.last_sequence
        own = {row.id for row in rows if (row.metadata.history_sequence or 0) > first_own}
        self.context.omitted |= to_omit(rows, protected=own if point is not None else ())


@final
class Onward(TakesAnswers):
    """What a root turn says of its streams, for whoever settles it."""

    def __init__(self, run: TurnRun) -> None:
        self._run = run

    def __call__(self, _message_id: str, /) -> bool:
        return self._run.goes_on

    def takes(self, message_id: str, /) -> bool:
        return self._run.takes(message_id)
