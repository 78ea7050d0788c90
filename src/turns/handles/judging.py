"""Judging: what the events of streams mean for a turn. It ends nothing but through the settlement.

What is heard of one turn comes one after the other (inbox.py), after every observer has heard it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, assert_never, final

import structlog

import fibers as fb
from fibers import Exit
from streamengine.model import (
    AutoRetryAbandonedEvent,
    ErrorEvent,
    StreamAbortEvent,
    StreamEndEvent,
    StreamStartEvent,
)
from streamengine.payloads import text_of
from streamengine.retry import is_retryable

from ..model.cause import (
    ConservativeFallback,
    ContinuationFailure,
    CorrelatedStreamEnd,
    CreationValidationFailure,
    ExplicitInterrupt,
    LaunchCanceled,
    ManualSupersession,
    RecoveryAdmissionFailure,
    SendFailure,
    TerminalStreamError,
    UserStreamAbort,
)
from ..model.correlation import correlates
from ..model.errors import TurnError
from ..model.record import FinalMessage, TurnRecord
from .book import Book
from .continuation import Continuations
from .evidence import NotOurs, Superseded, Unreadable, judge_uncorrelated, text_in
from .happenings import (
    CALLED_OFF,
    INVALID,
    RESUMABLE,
    SUSPENDED,
    Happening,
    LookAgain,
    RunnerEnded,
    StreamEvent,
)
from .liveness import Liveness, LiveTurn
from .verdicts import Verdicts

_KEPT_UNJUDGED: Final = 16
_CALLED_OFF_REASONS: Final = frozenset({"stopped", "disabled_by_user"})

_log = structlog.get_logger("turns.handles.judging")


@final
class Judging:
    """The judge of one manager. ``live``: what is known of a turn that has not settled."""

    def __init__(
        self,
        *,
        book: Book,
        verdicts: Verdicts,
        continuations: Continuations,
        liveness: Liveness,
        live: Callable[[str], LiveTurn | None],
    ) -> None:
        self._book = book
        self._verdicts = verdicts
        self._continuations = continuations
        self._liveness = liveness
        self._live = live

    @fb.effect
    async def hear(self, handle_id: str, happening: Happening) -> None:
        """Something happened to this turn, or in its workspace while it was the active one."""
        record = self._book.find(handle_id)
        if record is None:
            return
        live = self._live(handle_id)
        try:
            if live is None:
                await self._hear_late(record, happening)
            else:
                await self._judge_again(live)
                await self._hear(live, happening)
        except TurnError as error:
            _log.warning("a turn could not be changed", handleId=handle_id, error=str(error))

    async def _hear_late(self, record: TurnRecord, happening: Happening) -> None:
        """It has settled: only an end of its own can still say something about it (T8)."""
        if isinstance(happening, StreamEndEvent) and _is_own(record, happening):
            await self._settle_by(record, happening)

    async def _hear(self, live: LiveTurn, happening: Happening) -> None:
        record = self._book.get(live.handle_id)
        if record.is_terminal:
            await self._hear_late(record, happening)
            return
        match happening:
            case StreamStartEvent():
                await self._on_start(live, record, happening)
            case StreamEndEvent():
                if _is_own(record, happening):
                    await self._on_own_end(live, record, happening)
                else:
                    await self._on_other_end(live, record, happening)
            case StreamAbortEvent():
                if not _is_own(record, happening):
                    await self._look_for_retry(live)
                # As "system" or "startup" it is to be taken up again: it stays running (T14).
                elif happening.abort_reason == "user":
                    cause = UserStreamAbort(message_id=happening.message_id)
                    await self._verdicts.settle(record.handle_id, cause)
            case ErrorEvent():
                if _is_own(record, happening):
                    await self._on_own_error(live, record, happening)
                else:
                    await self._look_for_retry(live)
            case AutoRetryAbandonedEvent():
                await self._on_abandoned(live, record, happening)
            case RunnerEnded():
                await self._on_runner_ended(live, record, happening.exit)
            case LookAgain():
                await self._look_again(live, record)
            case _:
                assert_never(happening)

    # ---- streams of the turn

    async def _on_start(self, live: LiveTurn, record: TurnRecord, event: StreamStartEvent) -> None:
        if not _is_own(record, event):
            return
        live.has_begun = True
        live.last_error = None
        live.deferred = None

        def running(record: TurnRecord) -> TurnRecord | None:
            if record.is_terminal:
                return None
            return record.changed(status="running", message_id=event.message_id)

        await self._book.change(record.handle_id, running)

    async def _on_own_end(self, live: LiveTurn, record: TurnRecord, event: StreamEndEvent) -> None:
        if event.message_id in record.deferred_message_ids:
            return
        live.deferred = event
        if not self._went_on(live, event) and not self._goes_on(live, event.message_id):
            await self._look_again(live, record)
            return

        def deferred(record: TurnRecord) -> TurnRecord | None:
            if record.is_terminal:
                return None
            ids = (*record.deferred_message_ids, event.message_id)
            return record.changed(deferred_message_ids=ids)

        await self._book.change(record.handle_id, deferred)

    def _went_on(self, live: LiveTurn, event: StreamEvent) -> bool:
        """Whether there was more to come when it ended, or another stream has begun since. By now
        that may be over, too: it is judged next.
        """
        return event.message_id in live.goes_on_after or _was_followed(live, event)

    def _goes_on(self, live: LiveTurn, message_id: str) -> bool:
        """Whether the turn itself has more to come after that stream."""
        return bool(live.streams - {message_id}) or self._continuations.is_pending(
            live.turn_id, message_id
        )

    async def _settle_by(
        self, record: TurnRecord, event: StreamEndEvent, *, is_taken: bool = False
    ) -> None:
        rows = await self._verdicts.read(record)
        if isinstance(rows, Unreadable):
            await self._verdicts.settle(record.handle_id, ConservativeFallback(reason=rows.why))
            return
        cause = CorrelatedStreamEnd(
            message_id=event.message_id,
            finish_reason=event.metadata.finish_reason,
            taken=True if is_taken else None,
        )
        text = text_in(event.parts)
        await self._verdicts.settle(
            record.handle_id, cause, FinalMessage(text=text, message_id=event.message_id)
        )

    async def _on_own_error(self, live: LiveTurn, record: TurnRecord, event: ErrorEvent) -> None:
        live.last_error = event
        # A runner may hear of it only after the manager: then it says so by now.
        more = self._went_on(live, event) or self._continuations.is_pending(
            live.turn_id, event.message_id
        )
        if more or (
            is_retryable(event.error_type) and self._liveness.is_retrying(live.workspace_id)
        ):
            return  # what is to come ends it (T15)
        await self._settle_by_error(record, event)

    async def _settle_by_error(
        self, record: TurnRecord, event: ErrorEvent, said: str | None = None
    ) -> None:
        """``said``: what the runner made of it, which knows what was tried."""
        cause = TerminalStreamError(
            message_id=event.message_id, error_type=event.error_type, error=said or event.error
        )
        await self._verdicts.settle(record.handle_id, cause)

    async def _on_abandoned(
        self, live: LiveTurn, record: TurnRecord, event: AutoRetryAbandonedEvent
    ) -> None:
        """There will be no further try, for a reason."""
        failed = live.last_error
        if event.reason == "aborted" or live.streams:
            return  # its own events say how that ended
        if failed is not None and event.reason in {failed.error_type, *_CALLED_OFF_REASONS}:
            await self._settle_by_error(record, failed)
        elif failed is None and live.has_runner:
            return  # about an answer from before the turn
        elif event.reason in _CALLED_OFF_REASONS:
            await self._verdicts.settle(
                record.handle_id, UserStreamAbort(message_id=event.message_id)
            )
        else:
            await self._verdicts.settle(
                record.handle_id, RecoveryAdmissionFailure(error=event.reason or "no reason")
            )

    # ---- streams of others

    async def _on_other_end(
        self, live: LiveTurn, record: TurnRecord, event: StreamEndEvent
    ) -> None:
        if event.correlation is not None:
            # Of somebody who says so himself.
            await self._book.count_ignored_end(record.handle_id)
        else:
            await self._judge(live, record, event)
        await self._look_for_retry(live)

    async def _judge(self, live: LiveTurn, record: TurnRecord, event: StreamEndEvent) -> None:
        rows = await self._verdicts.read(record)
        judgement = (
            rows
            if isinstance(rows, Unreadable)
            else judge_uncorrelated(rows, record, event.message_id)
        )
        match judgement:
            case Superseded(message_id=message_id):
                await self._verdicts.settle(
                    record.handle_id, ManualSupersession(message_id=message_id)
                )
            case NotOurs():
                await self._book.count_ignored_end(record.handle_id)
            case Unreadable(why=why):
                live.unjudged = [*live.unjudged, event][-_KEPT_UNJUDGED:]
                _log.warning(
                    "the end of another stream can't be judged: the turn stays running",
                    handleId=record.handle_id,
                    messageId=event.message_id,
                    why=why,
                )
            case _:
                assert_never(judgement)

    async def _judge_again(self, live: LiveTurn) -> None:
        """What could not be read may be readable by now (T2)."""
        unjudged, live.unjudged = live.unjudged, []
        for event in unjudged:
            record = self._book.get(live.handle_id)
            if record.is_terminal:
                return
            await self._judge(live, record, event)

    async def _look_for_retry(self, live: LiveTurn) -> None:
        """Somebody else's stream took the place of a try that the turn waited for."""
        record = self._book.get(live.handle_id)
        failed = live.last_error
        if failed is None or record.is_terminal or live.streams or live.has_runner:
            return
        if not self._liveness.is_retrying(live.workspace_id):
            await self._settle_by_error(record, failed)

    # ---- the runner, and what an end waited for

    async def _on_runner_ended(
        self, live: LiveTurn, record: TurnRecord, exit_: Exit[None, TurnError]
    ) -> None:
        failed = live.last_error
        last = failed or live.deferred
        if (
            live.streams
            or (last is not None and _was_followed(live, last))
            or self._liveness.is_retrying(live.workspace_id)
        ):
            return  # their ends settle it
        if isinstance(exit_, fb.Success):
            if live.deferred is not None:
                await self._look_again(live, record)
            elif failed is not None:
                await self._settle_by_error(record, failed)
            elif not live.has_begun:
                await self._verdicts.settle(
                    record.handle_id, LaunchCanceled(reason="it ended without a stream")
                )
            return
        cause = exit_.failure()
        if cause.has_interrupts_only:
            reasons = {each.reason for each in cause.reasons if isinstance(each, fb.Interrupt)}
            # Of a stop that nobody else could settle it for (no stream of it was live, or its
            # record could not be written) this is the end.
            if "user" in reasons:
                await self._verdicts.settle(record.handle_id, ExplicitInterrupt(by="user"))
                return
            if reasons & RESUMABLE:
                return  # a shutdown leaves it to be taken up again (T14)
        error = cause.squash()
        said = "its runner was interrupted" if cause.has_interrupts_only else _said(error)
        kind = error.kind if isinstance(error, TurnError) else None
        if kind == SUSPENDED:
            return
        if failed is not None:
            words = _words_of(error) if isinstance(error, TurnError) else None
            await self._settle_by_error(record, failed, words)
        elif live.has_begun:
            await self._verdicts.settle(record.handle_id, ContinuationFailure(error=said))
        elif kind in INVALID:
            await self._verdicts.settle(record.handle_id, CreationValidationFailure(error=said))
        elif kind == CALLED_OFF:
            await self._verdicts.settle(record.handle_id, LaunchCanceled(reason=said))
        else:
            await self._verdicts.settle(record.handle_id, SendFailure(error=said))

    async def _look_again(self, live: LiveTurn, record: TurnRecord) -> None:
        waiting = live.deferred
        if (
            waiting is not None
            and not _was_followed(live, waiting)
            and not self._goes_on(live, waiting.message_id)
            and not self._book.has_active_descendants(record)
        ):
            await self._settle_by(record, waiting, is_taken=live.taken == waiting.message_id)


def _was_followed(live: LiveTurn, event: StreamEvent) -> bool:
    return live.last_begun not in (None, event.message_id)


def _is_own(record: TurnRecord, event: StreamEvent) -> bool:
    return correlates(record, event.workspace_id, event.correlation)


def _said(error: BaseException) -> str:
    return text_of(error).strip() or type(error).__name__


def _words_of(error: TurnError) -> str:
    """What it says besides its kind: the stream's own kind stands before it."""
    message = error.message.strip()
    return f"{message.removesuffix('.')}. {error.way_out}" if error.way_out else message
