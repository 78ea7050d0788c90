"""How an answer on the command line ended: what is said of it, and the exit code."""

from __future__ import annotations

from typing import Any, Final, assert_never

from returns.result import Failure

import fibers as fb
from fibers import Exit, Interrupt
from streamengine.model import ErrorEvent, StreamAbortEvent, StreamEndEvent

from .errors import FAILED
from .program import complain

INTERRUPTED: Final = "interrupted; what was said is kept"


def by_ctrl_c(exit_: Exit[Any, Any]) -> bool:
    """Whether a Ctrl-C ended it."""
    if not isinstance(exit_, Failure):
        return False
    cause: fb.Cause[Any] = exit_.failure()
    return any(isinstance(r, Interrupt) and r.reason == "SIGINT" for r in cause.reasons)


def told(event: StreamEndEvent | StreamAbortEvent | ErrorEvent) -> int:
    """Say how an answer ended, unless it is complete; gives the exit code."""
    match event:
        case StreamEndEvent():
            return 0
        case StreamAbortEvent():
            complain(f"stopped ({event.abort_reason}); what was said is kept")
            return FAILED
        case ErrorEvent():
            complain(f"the answer failed ({event.error_type}): {event.error}")
            return FAILED
        case _:
            assert_never(event)
