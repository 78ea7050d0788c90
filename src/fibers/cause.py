"""Why a fiber ended: typed failures, defects and interrupts, kept apart from raise to log line.

This module knows exceptions and nothing of effects, fibers or asyncio's tasks.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic, cast, final

from typing_extensions import TypeVar

if TYPE_CHECKING:
    from types import TracebackType

E_co = TypeVar("E_co", bound=Exception, covariant=True, default=Exception)
E = TypeVar("E", bound=Exception)
F = TypeVar("F", bound=Exception)

_INTERRUPT_MARK = "__fiber_interrupt__"


def same_error(left: BaseException, right: BaseException) -> bool:
    """Two errors are one if they are the same object or say that they are equal."""
    try:
        return left is right or bool(left == right)
    except Exception:  # noqa: BLE001  # whatever a comparison raises
        return False  # an error that can't be compared is only equal to itself


@final
class Fail(Generic[E_co]):
    """An expected, typed failure.

    ``Fail(NotFound("u1")).error`` is the very object that the effect failed with.
    """

    # _tb and _origin are no part of the content: the traceback of this occurrence (the exception
    # may be a shared instance) and the name of the effect that declared the error.
    __slots__ = ("_origin", "_tb", "error")
    __match_args__ = ("error",)

    error: E_co

    def __init__(
        self, error: E_co, tb: TracebackType | None = None, origin: str | None = None
    ) -> None:
        self.error = error
        self._tb = tb
        self._origin = origin

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Fail):
            return NotImplemented
        return same_error(self.error, cast("Fail[Exception]", other).error)

    def __hash__(self) -> int:
        return hash(("fail", self.error))

    def __str__(self) -> str:
        return _short(self)

    def __repr__(self) -> str:
        return f"Fail({self.error!r})"


@final
class Die:
    """A defect: an exception that nobody declared. ``Die(e).defect`` is the very object."""

    __slots__ = ("_tb", "defect")
    __match_args__ = ("defect",)

    defect: BaseException

    def __init__(self, defect: BaseException, tb: TracebackType | None = None) -> None:
        self.defect = defect
        self._tb = tb

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Die):
            return NotImplemented
        return same_error(self.defect, other.defect)

    def __hash__(self) -> int:
        return hash(("die", self.defect))

    def __str__(self) -> str:
        return _short(self)

    def __repr__(self) -> str:
        return f"Die({self.defect!r})"


class Interrupt:
    """The end was asked for: ``by`` is the interrupting fiber's id (None: an edge call, a signal,
    ``task.cancel()``), ``reason`` says why in words.
    """

    __slots__ = ("by", "reason")
    __match_args__ = ("by", "reason")

    by: int | None
    reason: str | None

    def __init__(self, by: int | None = None, reason: str | None = None) -> None:
        self.by = by
        self.reason = reason

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Interrupt):
            return NotImplemented
        return self.by == other.by and self.reason == other.reason

    def __hash__(self) -> int:
        return hash(("interrupt", self.by, self.reason))

    def __repr__(self) -> str:
        if self.reason is None:
            return f"Interrupt(by={self.by})"
        return f"Interrupt(by={self.by}, reason={self.reason!r})"


@final
class TaskCancel(Interrupt):
    """A ``cancel()`` of asyncio's own protocol on its way to the innermost body (PD11).

    It carries the very CancelledError, because asyncio.timeout and anyio recognise theirs by
    identity of the message. By content it is ``Interrupt(None, "task.cancel")``.
    """

    __slots__ = ("exc",)

    def __init__(self, exc: asyncio.CancelledError) -> None:
        super().__init__(None, "task.cancel")
        self.exc: asyncio.CancelledError = exc


@final
class Cause(Generic[E_co]):
    """All the reasons of one end, in the order in which they happened.

    ``Cause([Fail(e), Interrupt(7)])``. Equal by content; the empty cause is the identity of
    ``combine``.
    """

    __slots__ = ("reasons",)
    __match_args__ = ("reasons",)

    reasons: tuple[Fail[E_co] | Die | Interrupt, ...]

    def __init__(self, reasons: Iterable[Fail[E_co] | Die | Interrupt] = ()) -> None:
        self.reasons = tuple(reasons)

    @property
    def interruptors(self) -> frozenset[int]:
        """Ids of the fibers that interrupted; an Interrupt without a fiber adds none."""
        return frozenset(
            r.by for r in self.reasons if isinstance(r, Interrupt) and r.by is not None
        )

    @property
    def has_fails(self) -> bool:
        """Whether a typed failure is among the reasons."""
        return any(isinstance(r, Fail) for r in self.reasons)

    @property
    def has_dies(self) -> bool:
        """Whether a defect is among the reasons."""
        return any(isinstance(r, Die) for r in self.reasons)

    @property
    def has_interrupts(self) -> bool:
        """Whether an interrupt is among the reasons."""
        return any(isinstance(r, Interrupt) for r in self.reasons)

    @property
    def has_interrupts_only(self) -> bool:
        """True if there is an interrupt and nothing else; False for the empty cause."""
        return bool(self.reasons) and all(isinstance(r, Interrupt) for r in self.reasons)

    @property
    def failures(self) -> tuple[E_co, ...]:
        """The typed errors, in order."""
        return tuple(r.error for r in self.reasons if isinstance(r, Fail))

    @property
    def defects(self) -> tuple[BaseException, ...]:
        """The defects, in order."""
        return tuple(r.defect for r in self.reasons if isinstance(r, Die))

    def combine(self, other: Cause[F]) -> Cause[E_co | F]:
        """Both causes, equal reasons once. ``empty.combine(c) == c``."""
        if not other.reasons:
            return self
        if not self.reasons:
            return other
        merged: list[Any] = list(self.reasons)
        for reason in other.reasons:
            if reason not in merged:
                merged.append(reason)
        return Cause(merged)

    def map(self, f: Callable[[E_co], F]) -> Cause[F]:
        """Every Fail's error through ``f``; the rest as it is."""
        return Cause(
            # The occurrence's traceback goes along.
            Fail(f(r.error), r._tb, r._origin) if isinstance(r, Fail) else r
            for r in self.reasons
        )

    def squash(self) -> BaseException:
        """The one exception that stands for this cause: the first Fail, else the first Die, else
        FiberInterrupted. The other reasons stand in its notes; one reason alone adds none.
        """
        chosen = self._chosen()
        if chosen is None:
            if not self.reasons:
                return RuntimeError("the cause is empty: nothing failed and nobody interrupted")
            return FiberInterrupted(cast("Cause[Any]", self))
        error, tb = _error_of(chosen)
        BaseException.with_traceback(error, tb)
        for other in self.reasons:
            if other is not chosen:
                add_note_once(error, f"and: {_short(other)}")
        return error

    def _chosen(self) -> Fail[Any] | Die | None:
        for reason in self.reasons:
            if isinstance(reason, Fail):
                return reason
        for reason in self.reasons:
            if isinstance(reason, Die):
                return reason
        return None

    def pretty(self) -> str:
        """For a log: a block for each Fail and Die with traceback and notes, then one block that
        names every interruptor. The empty cause gives an empty string (EX7).
        """
        blocks: list[str] = []
        interrupts: list[Interrupt] = []
        for reason in self.reasons:
            if isinstance(reason, Interrupt):
                interrupts.append(reason)
                continue
            error, tb = _error_of(reason)
            kind = "Fail" if isinstance(reason, Fail) else "Die"
            text = "".join(traceback.format_exception(type(error), error, tb)).rstrip()
            blocks.append(f"{kind}: {_one_line(error)}\n{text}")
        if interrupts:
            lines = ["Interrupted"]
            for i in interrupts:
                who = "by nobody's fiber" if i.by is None else f"by fiber #{i.by}"
                why = "no reason given" if i.reason is None else i.reason
                lines.append(f"  {who}: {why}")
            blocks.append("\n".join(lines))
        return "\n".join(blocks)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Cause):
            return NotImplemented
        return self.reasons == cast("Cause[Exception]", other).reasons

    def __hash__(self) -> int:
        return hash(self.reasons)

    def __repr__(self) -> str:
        return f"Cause([{', '.join(map(repr, self.reasons))}])"

    def __str__(self) -> str:
        return f"Cause([{', '.join(map(_short, self.reasons))}])"


def add_note_once(error: BaseException, note: str) -> None:
    """A note on ``error``, unless it is there. An exception that can't be written to has none."""
    if note not in getattr(error, "__notes__", ()):
        try:
            error.add_note(note)
        except Exception:  # noqa: BLE001  # a frozen dataclass's __setattr__ may raise anything
            return


def forget_traceback(error: BaseException) -> None:
    """So that a shared instance doesn't grow with each raise (PD4). Not by assignment: a frozen
    exception class refuses that.
    """
    BaseException.with_traceback(error, None)


def _error_of(reason: Fail[Any] | Die) -> tuple[BaseException, TracebackType | None]:
    if isinstance(reason, Fail):
        return reason.error, reason._tb
    return reason.defect, reason._tb


def text_of_error(error: BaseException) -> str:
    """``str(error)``, whatever its class makes of that: who reports a failure must not fail."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001  # a __str__ of its own may raise anything
        return "<str() failed>"


def _one_line(error: BaseException) -> str:
    text = " ".join(text_of_error(error).split())
    if len(text) > 80:
        text = text[:77] + "..."
    return f"{type(error).__name__}({text})" if text else type(error).__name__


def _short(reason: Any) -> str:
    if isinstance(reason, Interrupt):
        return repr(reason)
    error, _ = _error_of(reason)
    return f"{type(reason).__name__}({_one_line(error)})"


EMPTY: Cause[Any] = Cause(())


class FiberInterrupted(Exception):
    """Somebody else's interrupt, as seen in a body: the joined fiber was interrupted, or an
    awaited effect interrupted itself (PD14). An ordinary exception: catch it, and go on.
    """

    def __init__(self, cause: Cause[Any]) -> None:
        super().__init__(str(cause))
        self.cause = cause


class FiberDeadlockError(RuntimeError):
    """The fiber would wait for itself and never wake (PD9)."""


class UnknownError(Exception):
    """What ``try_promise`` fails with without a ``catch``; ``__cause__`` is the original."""


def interrupt_of(exc: BaseException) -> Interrupt | None:
    """The interrupt that this CancelledError delivers, or None for a foreign one (PD2).

    In a body that has something to say about it:

        except asyncio.CancelledError as exc:
            if (why := fb.interrupt_of(exc)) is not None:
                log.info("stopped: %s", why.reason)
            raise
    """
    mark = getattr(exc, _INTERRUPT_MARK, None)
    return mark if isinstance(mark, Interrupt) else None


def interrupt_error(why: Interrupt) -> asyncio.CancelledError:
    """A CancelledError (exactly that class: a subclass comes out of TaskGroup as a group on 3.11
    and 3.12) that ``interrupt_of`` recognises.
    """
    exc = asyncio.CancelledError()
    setattr(exc, _INTERRUPT_MARK, why)
    return exc


_new_cause: Any = Cause.__new__
_fill_reasons: Any = cast("Any", Cause).reasons.__set__


def interrupt_cause(by: int | None, reason: str | None) -> Cause[Any]:
    """A cause of one interrupt, of its own. Each interrupted fiber gets one, so it is made without
    the detour through the constructor's iterable.
    """
    cause = _new_cause(Cause)
    _fill_reasons(cause, (Interrupt(by, reason),))
    return cast("Cause[Any]", cause)


def with_defects_winning(cause: Cause[Any]) -> Cause[Any]:
    """The defect rule (FI3): once a Die is in the cause every Fail in it is a Die too."""
    if not cause.has_dies:
        return cause
    merged: list[Any] = []
    for reason in cause.reasons:
        if isinstance(reason, Fail):
            error, tb = _error_of(reason)
            reason = Die(error, tb)
        if reason not in merged:
            merged.append(reason)
    return Cause(merged)


def without_fails(cause: Cause[Any]) -> Cause[Any]:
    """What is left when a skipped recovery handler drops the Fails (IN8)."""
    return Cause(r for r in cause.reasons if not isinstance(r, Fail))


def without_interrupts(cause: Cause[Any]) -> Cause[Any]:
    """Only the Fails and Dies, in their order."""
    return Cause(r for r in cause.reasons if not isinstance(r, Interrupt))


def landed(travelling: Cause[Any], own: Cause[Any]) -> Cause[Any]:
    """``travelling`` with the fiber's own interrupts joined to it.

    Whether an interrupt is the fiber's own is told by identity of the reason object, so an equal
    foreign one gives way to ours.
    """
    if travelling is own:
        return own
    merged: list[Any] = list(travelling.reasons)
    for reason in own.reasons:
        for at, there in enumerate(merged):
            if there == reason:
                merged[at] = reason
                break
        else:
            merged.append(reason)
    return Cause(merged)
