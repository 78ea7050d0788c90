"""Causes: why a turn settled, each with the evidence for it. A turn settles for one of these only.

Every decision about a cause is a ``match`` over all of them: one that is added here and not decided
on there is refused by the type checkers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, TypeAlias, assert_never, get_args

from pydantic import Field, TypeAdapter, ValidationError

from streamengine.model import MessageId
from streamengine.model.base import CamelModel

from .errors import TurnError

TerminalStatus = Literal["completed", "interrupted", "error"]

Words = Annotated[str, Field(pattern=r"\S")]
"""Text that says something: blank evidence is none."""

TOOL_CALLS: Final = "tool-calls"
"""The finish reason of an answer that waits for the results of its tools."""


class _Cause(CamelModel):
    pass


class CreationAdmissionFailure(_Cause):
    """It was created, and could not be let in: nothing of it began."""

    kind: Literal["creation-admission-failure"] = "creation-admission-failure"
    error: Words


class CreationValidationFailure(_Cause):
    """It was created with something that turned out wrong before it began."""

    kind: Literal["creation-validation-failure"] = "creation-validation-failure"
    error: Words


class LaunchCanceled(_Cause):
    """Its first stream was called off before anything was told of it."""

    kind: Literal["launch-canceled"] = "launch-canceled"
    reason: Words


class SendFailure(_Cause):
    """Its first stream could not begin."""

    kind: Literal["send-failure"] = "send-failure"
    error: Words


class StaleHistoryRecovery(_Cause):
    """Nothing of it lived after a restart, and the history has its final answer."""

    kind: Literal["stale-history-recovery"] = "stale-history-recovery"
    message_id: MessageId


class StaleRestart(_Cause):
    """Nothing of it lived after a restart, and the history has no final answer."""

    kind: Literal["stale-restart"] = "stale-restart"


class CorrelatedStreamEnd(_Cause):
    """A stream that is provably its own ended, with nothing more to come."""

    kind: Literal["correlated-stream-end"] = "correlated-stream-end"
    message_id: MessageId
    finish_reason: str | None = None
    superseded: bool = False
    """Input that was queued behind it cut it short."""
    taken: Literal[True] | None = None
    """The model was cut off, and the turn took what it had said as its answer."""


class UserStreamAbort(_Cause):
    """A person stopped a stream that is provably its own."""

    kind: Literal["user-stream-abort"] = "user-stream-abort"
    message_id: MessageId


class ContinuationFailure(_Cause):
    """What was to come after its first stream failed."""

    kind: Literal["continuation-failure"] = "continuation-failure"
    error: Words


class TerminalStreamError(_Cause):
    """A stream that is provably its own failed, and nothing tries again."""

    kind: Literal["terminal-stream-error"] = "terminal-stream-error"
    message_id: MessageId
    error_type: Words
    error: str


class RecoveryAdmissionFailure(_Cause):
    """Its interrupted answer was to be taken up again, and that could not begin."""

    kind: Literal["recovery-admission-failure"] = "recovery-admission-failure"
    error: Words


class ExplicitInterrupt(_Cause):
    """Somebody interrupted the handle itself."""

    kind: Literal["explicit-interrupt"] = "explicit-interrupt"
    by: Words
    hard: Literal[True] | None = None
    """What the turn had said was taken back with it."""


class ManualSupersession(_Cause):
    """A person wrote in its workspace after its prompt, and that was answered."""

    kind: Literal["manual-supersession"] = "manual-supersession"
    message_id: MessageId
    """The person's row."""


class ConservativeFallback(_Cause):
    """It is over, and whether it completed can't be read."""

    kind: Literal["conservative-fallback"] = "conservative-fallback"
    reason: Words


Cause: TypeAlias = (
    CreationAdmissionFailure
    | CreationValidationFailure
    | LaunchCanceled
    | SendFailure
    | StaleHistoryRecovery
    | StaleRestart
    | CorrelatedStreamEnd
    | UserStreamAbort
    | ContinuationFailure
    | TerminalStreamError
    | RecoveryAdmissionFailure
    | ExplicitInterrupt
    | ManualSupersession
    | ConservativeFallback
)

_CLASSES: Final[tuple[type[Any], ...]] = get_args(Cause)
_cause: Final[TypeAdapter[Cause]] = TypeAdapter(Annotated[Cause, Field(discriminator="kind")])


def checked_cause(given: object) -> Cause:
    """``given`` itself, if it is a cause with its evidence. Raises TurnError.

    Its fields are looked at again: who constructs one unvalidated has not proved anything.
    """
    if type(given) not in _CLASSES:
        raise TurnError(
            "invalid_cause",
            f"a turn settles for a cause, and {given!r} is none",
            "Give one of the models in turns.model.cause.",
        )
    try:
        assert isinstance(given, CamelModel)
        return _cause.validate_python(given.model_dump(warnings=False))
    except ValidationError as error:
        raise TurnError(
            "invalid_cause",
            f"a cause without its evidence: {given!r}",
            "Give the id or the words that show it.",
        ) from error


def parse_cause(kind: str, evidence: Mapping[str, Any]) -> Cause | None:
    """The cause that a record keeps; None where this version doesn't know it."""
    try:
        return _cause.validate_python({**evidence, "kind": kind})
    except ValidationError:
        return None


def evidence_of(cause: Cause) -> dict[str, Any]:
    """All that a cause says besides its kind, as JSON values."""
    fields = cause.to_mapping()
    del fields["kind"]
    return fields


def status_of(cause: Cause) -> TerminalStatus:
    """What a handle is once it settled for ``cause``."""
    match cause:
        case StaleHistoryRecovery():
            return "completed"
        case CorrelatedStreamEnd(superseded=True):
            return "interrupted"
        case CorrelatedStreamEnd(finish_reason=finish_reason, taken=taken):
            return "completed" if taken or is_normal_finish(finish_reason) else "error"
        case (
            LaunchCanceled()
            | StaleRestart()
            | UserStreamAbort()
            | ExplicitInterrupt()
            | ManualSupersession()
            | ConservativeFallback()
        ):
            return "interrupted"
        case (
            CreationAdmissionFailure()
            | CreationValidationFailure()
            | SendFailure()
            | ContinuationFailure()
            | TerminalStreamError()
            | RecoveryAdmissionFailure()
        ):
            return "error"
        case _:
            assert_never(cause)


def is_transient(cause: Cause) -> bool:
    """Whether a turn that settled for it may prove, by an end of its own, to have completed (T8).

    What a person decided, and what completed, stays.
    """
    match cause:
        case CorrelatedStreamEnd():
            return status_of(cause) != "completed"
        case (
            SendFailure()
            | StaleRestart()
            | ContinuationFailure()
            | TerminalStreamError()
            | RecoveryAdmissionFailure()
            | ConservativeFallback()
        ):
            return True
        case (
            CreationAdmissionFailure()
            | CreationValidationFailure()
            | LaunchCanceled()
            | StaleHistoryRecovery()
            | UserStreamAbort()
            | ExplicitInterrupt()
            | ManualSupersession()
        ):
            return False
        case _:
            assert_never(cause)


def reason_of(cause: Cause) -> str | None:
    """Why a turn did not complete, for a person; None where it did."""
    match cause:
        case StaleHistoryRecovery():
            return None
        case CorrelatedStreamEnd(superseded=True):
            return "cut short by other input that was queued"
        case CorrelatedStreamEnd(finish_reason=finish_reason, taken=taken):
            if taken or is_normal_finish(finish_reason):
                return None
            return f"the answer ended with {finish_reason!r}"
        case LaunchCanceled(reason=reason):
            return f"called off before it began: {reason}"
        case StaleRestart():
            return "interrupted after a restart"
        case UserStreamAbort():
            return "stopped by a person"
        case ExplicitInterrupt(by=by, hard=True):
            return f"ended hard by {by}, with what it said taken back"
        case ExplicitInterrupt(by=by):
            return f"interrupted by {by}"
        case ManualSupersession():
            return "a person wrote in its workspace meanwhile"
        case ConservativeFallback(reason=reason):
            return f"over, and what it said can't be read: {reason}"
        case CreationAdmissionFailure(error=error) | CreationValidationFailure(error=error):
            return f"could not be created: {error}"
        case SendFailure(error=error):
            return f"could not begin: {error}"
        case ContinuationFailure(error=error):
            return f"could not go on: {error}"
        case TerminalStreamError(error=error, error_type=error_type):
            return f"{error_type}: {error}"
        case RecoveryAdmissionFailure(error=error):
            return f"could not be taken up again: {error}"
        case _:
            assert_never(cause)


def is_normal_finish(finish_reason: str | None) -> bool:
    """Whether an answer that finished so has said what it had to say."""
    return finish_reason in (None, "stop")
