"""Turns: their handles, their records, and decisions about every cause."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Literal, assert_never, assert_type

from fibers import Effect
from fibers.app import AppScope, Occupant
from streamengine import SendError, StreamEngine
from streamengine.autoretry import AutoRetry
from turns import (
    Cause,
    Continuations,
    FileTurnStore,
    TurnError,
    TurnHandle,
    TurnManager,
    TurnOptions,
    TurnRecord,
)
from turns.model.cause import (
    ConservativeFallback,
    ContinuationFailure,
    CorrelatedStreamEnd,
    CreationAdmissionFailure,
    CreationValidationFailure,
    ExplicitInterrupt,
    LaunchCanceled,
    ManualSupersession,
    RecoveryAdmissionFailure,
    SendFailure,
    StaleHistoryRecovery,
    StaleRestart,
    TerminalStreamError,
    UserStreamAbort,
)


def makes(engine: StreamEngine, retries: AutoRetry, scope: AppScope) -> TurnManager:
    options = TurnOptions(retries=retries, recovery=retries.recover())
    turns = TurnManager(
        engine=engine, store=FileTurnStore(Path("state")), scope=scope, options=options
    )
    occupants: list[Occupant] = [turns]
    assert occupants
    return turns


def uses(turns: TurnManager) -> None:
    created = turns.create_turn(owner="w1", workspace_id="w2", prompt="Hi", attention="notify")
    assert_type(created, Effect[TurnHandle, SendError])
    assert_type(turns.wait("wst_1", timeout=timedelta(minutes=1)), Effect[TurnRecord, TurnError])
    assert_type(turns.interrupt("wst_1", by="ada"), Effect[TurnRecord, TurnError])
    assert_type(turns.get("wst_1"), Effect[TurnRecord, TurnError])
    assert_type(turns.list(owner="w1"), Effect[Sequence[TurnRecord], TurnError])
    assert_type(turns.steer("wst_1", "left"), Effect[None, TurnError])
    assert_type(turns.answer_permission("wst_1", "q1", True), Effect[bool, TurnError])
    assert_type(turns.finish("wst_1", hard=True), Effect[None, TurnError])


def reads(record: TurnRecord) -> None:
    assert_type(
        record.status,
        Literal["queued", "starting", "running", "completed", "interrupted", "error"],
    )
    assert_type(record.cause, str | None)


def continues(continuations: Continuations) -> None:
    done = continuations.register("turn_1", lambda message_id: message_id == "a_1")
    assert_type(done, Callable[[], None])


def decides(cause: Cause) -> bool:
    """Whether a person decided it: each cause is named, and a further one would be refused here."""
    match cause:
        case UserStreamAbort() | ExplicitInterrupt() | ManualSupersession():
            return True
        case (
            CreationAdmissionFailure()
            | CreationValidationFailure()
            | LaunchCanceled()
            | SendFailure()
            | StaleHistoryRecovery()
            | StaleRestart()
            | CorrelatedStreamEnd()
            | ContinuationFailure()
            | TerminalStreamError()
            | RecoveryAdmissionFailure()
            | ConservativeFallback()
        ):
            return False
        case _:
            assert_never(cause)
