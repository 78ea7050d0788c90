"""Lost: a turn whose fiber ended before it had settled, and no shutdown took it. It settles all the
same: nobody else would ever end it.
"""

from __future__ import annotations

from typing import Final

from fibers import Interrupt
from streamengine.payloads import text_of

from ..model.cause import Cause, ContinuationFailure, ExplicitInterrupt
from .happenings import RESUMABLE

_SOMEBODY: Final = "somebody who stopped its fiber"
_USER: Final = "user"


def cause_of_loss(interrupt: Interrupt | None, error: BaseException) -> Cause | None:
    """Why a turn settles whose fiber ended by ``interrupt``, or else by ``error``; None where that
    says of itself that it is a shutdown: such a turn is to be taken up again (T14).
    """
    if interrupt is None:
        return ContinuationFailure(error=text_of(error).strip() or type(error).__name__)
    if interrupt.reason in RESUMABLE:
        return None
    return ExplicitInterrupt(by=_name_of(interrupt))


def _name_of(interrupt: Interrupt) -> str:
    if interrupt.reason == _USER:
        return _USER
    fiber = "" if interrupt.by is None else f" (fiber {interrupt.by})"
    why = (interrupt.reason or "").strip()
    return f"{_SOMEBODY}{fiber}" + (f": {why}" if why else "")
