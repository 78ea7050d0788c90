"""What both checkers have to refuse about turns: the marked lines, no other."""

from __future__ import annotations

from typing import assert_never

from turns import Cause, TurnManager
from turns.handles.settlement import Settlement
from turns.model.cause import (
    ConservativeFallback,
    ContinuationFailure,
    CorrelatedStreamEnd,
    CreationAdmissionFailure,
    CreationValidationFailure,
    LaunchCanceled,
    ManualSupersession,
    RecoveryAdmissionFailure,
    SendFailure,
    StaleHistoryRecovery,
    StaleRestart,
    TerminalStreamError,
    UserStreamAbort,
)


def a_decision_that_leaves_a_cause_out(cause: Cause) -> None:
    match cause:
        case UserStreamAbort() | ManualSupersession() | CreationAdmissionFailure():
            pass
        case CreationValidationFailure() | LaunchCanceled() | SendFailure() | StaleRestart():
            pass
        case StaleHistoryRecovery() | CorrelatedStreamEnd() | ContinuationFailure():
            pass
        case TerminalStreamError() | RecoveryAdmissionFailure() | ConservativeFallback():
            pass
        case _:
            assert_never(cause)  # rejected: arg-type, reportArgumentType


def a_settlement_without_a_cause(settlement: Settlement) -> None:
    settlement.settle("wst_1", None)  # rejected: arg-type, reportArgumentType


def a_settlement_for_words(settlement: Settlement) -> None:
    settlement.settle("wst_1", "stale-restart")  # rejected: arg-type, reportArgumentType


def an_interrupt_by_nobody(turns: TurnManager) -> None:
    turns.interrupt("wst_1")  # rejected: call-arg, reportCallIssue


def an_attention_of_ones_own(turns: TurnManager) -> None:
    turns.create_turn(
        owner="a",
        workspace_id="b",
        prompt="c",
        attention="shout",  # rejected: arg-type, reportArgumentType
    )
