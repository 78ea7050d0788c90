"""Problems of turns: what a caller is told when a turn can't do what is asked of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar

from fibers import Effect
from streamengine import HistoryError, SendError

from ..model.errors import TurnError
from .problems import Problem, later, of_history_error, of_send_error, shutting_down
from .root import Root

T = TypeVar("T")

_REFUSALS: Final[Mapping[str, tuple[int, str]]] = {
    "not_found": (409, "turn-not-running"),
    "not_running": (409, "turn-not-running"),
    "aborted": (409, "turn-is-aborted"),
    "empty_message": (422, "empty-message"),
    "depth_limit": (409, "depth-limit"),
    "invalid_subturn": (422, "invalid-subturn"),
    "agent_not_found": (422, "no-such-agent"),
}
"""Status and kind for each kind of error; any other is a 409 of its own name. A turn that is not
found any more, after its record was, ends just now."""

_LATER: Final[Mapping[str, tuple[int, str]]] = {
    "steering_full": (429, "steering-full"),
    "concurrency_timeout": (429, "too-many-subturns"),
}


async def asked(root: Root, work: Effect[T, Any]) -> T:
    """What ``work`` gives. Raises Problem where it fails as turns do."""
    try:
        return await root.runtime.run(work)
    except TurnError as error:
        raise of_turn_error(error) from error
    except SendError as error:
        raise of_creation_error(error) from error


def of_turn_error(error: TurnError) -> Problem:
    """Why a turn could not do it."""
    detail = f"{error.message}. {error.way_out}" if error.way_out else error.message
    if error.kind == "shutting_down":
        return shutting_down()
    if error.kind in _LATER:
        return later(*_LATER[error.kind], detail)
    if error.kind == "store":
        return _of_store(error, detail)
    status, kind = _REFUSALS.get(error.kind, (409, error.kind.replace("_", "-")))
    return Problem(status, kind, detail)


def of_creation_error(error: SendError) -> Problem:
    """Why no turn was created."""
    if error.kind == "shutting_down":
        return shutting_down()
    if error.kind in ("empty_message", "invalid_id"):
        return of_send_error(error)
    return _of_store(error, error.message)


def no_such_turn(handle_id: str) -> Problem:
    return Problem(404, "no-such-turn", f"there is no turn {handle_id}")


def _of_store(error: Exception, detail: str) -> Problem:
    """A record that can't be read or written; underneath is what the disk says."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, HistoryError):
        cause = cause.__cause__
    return Problem(500, "turns", detail) if cause is None else of_history_error(cause)
