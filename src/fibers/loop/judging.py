"""Which cause is it that an exception means, and what of it is the user's own (PD4, PD5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fibers.cause import Cause, Die, Fail, Interrupt, TaskCancel, add_note_once

if TYPE_CHECKING:
    from types import TracebackType

_AWAITING_MODULES = ("fibers.effect", "fibers.fiber")


def task_cancel(cause: Cause[Any]) -> TaskCancel | None:
    """The cancel() of an inner task that travels in ``cause``, else None."""
    for reason in cause.reasons:
        if type(reason) is TaskCancel:
            return reason
    return None


def published(cause: Cause[Any]) -> Cause[Any]:
    """The cause as others see it: a task cancel is an ordinary interrupt from here on."""
    if task_cancel(cause) is None:
        return cause
    return Cause(Interrupt(r.by, r.reason) if type(r) is TaskCancel else r for r in cause.reasons)


def classify(
    exc: BaseException,
    tb: TracebackType | None,
    raises: tuple[type[BaseException], ...],
    name: str | None,
    seen: Fail[Any] | Die | None,
) -> Fail[Any] | Die:
    """PD4: E is a guarantee. Only a declared type is a Fail, an awaited effect's defect never."""
    if isinstance(seen, Die):
        return Die(exc, tb)
    if isinstance(exc, Exception) and raises and isinstance(exc, raises):
        return Fail(exc, tb, name)
    if isinstance(seen, Fail):
        origin = seen._origin or "an awaited effect"
        add_note_once(exc, f"declared by {origin}; add it to raises= or catch it")
    return Die(exc, tb)


def passed_on(
    cause: Cause[Any],
    exc: BaseException,
    reason: Fail[Any] | Die,
    raises: tuple[type[BaseException], ...],
) -> Cause[Any]:
    """A body let go through what was thrown in: the whole cause, each Fail judged again."""
    if len(cause.reasons) == 1:
        return Cause((reason,))
    out: list[Any] = []
    for r in cause.reasons:
        if isinstance(r, Fail):
            if r.error is exc:
                out.append(reason)
                continue
            if not isinstance(r.error, raises):
                out.append(Die(r.error, r._tb))
                continue
        elif isinstance(r, Die) and r.defect is exc:
            out.append(reason)
            continue
        out.append(r)
    return Cause(out)


def clear_await(tb: TracebackType | None) -> None:
    """Drop what the frame of Effect.__await__ holds: an effect may hold the very error (PD13)."""
    while tb is not None:
        frame = tb.tb_frame
        if frame.f_code.co_name == "__await__" and (
            frame.f_globals.get("__name__") in _AWAITING_MODULES
        ):
            frame.clear()  # it has ended: what is thrown in at its yield leaves it
            return
        tb = tb.tb_next


def judged(cause: Cause[Any], raises: tuple[type[BaseException], ...]) -> Cause[Any]:
    """``cause`` as it leaves a body: what the body doesn't declare is a defect (PD4)."""
    if not cause.has_fails:
        return cause
    return Cause(
        Die(r.error, r._tb) if isinstance(r, Fail) and not isinstance(r.error, raises) else r
        for r in cause.reasons
    )


def user_part(tb: TracebackType | None) -> TracebackType | None:
    """Without the leading frames of this package; all of it where there is nothing else."""
    at = tb
    while at is not None and at.tb_frame.f_globals.get("__name__", "").startswith("fibers."):
        at = at.tb_next
    if at is None:
        return tb
    while tb is not at and tb is not None:
        try:
            # What is left leads back to these frames by f_back, and their locals to the fiber.
            tb.tb_frame.clear()
        except RuntimeError:
            pass  # still running: it drops its own names
        tb = tb.tb_next
    return at
