"""Arguments that make no sense are refused at the call (PD18)."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar, cast

from returns.result import Failure, Success

from fibers.cause import Cause
from fibers.misplaced import check_kind, refuse

if TYPE_CHECKING:
    from fibers.exit import Exit

A = TypeVar("A")
E = TypeVar("E", bound=Exception)


def checked_count(n: object, what: str, *, least: int = 1) -> int:
    """``n`` if it is an int of at least ``least``, else a ValueError."""
    if isinstance(n, bool) or not isinstance(n, int) or n < least:
        wanted = "a positive int" if least == 1 else f"an int of at least {least}"
        raise ValueError(f"{what} must be {wanted}, not {n!r}")
    return n


def checked_exit(exit_: Exit[A, E], what: str) -> Exit[A, E]:
    """``exit_`` if it is one, else a TypeError: who waits would find out much later."""
    check_kind(exit_, (Success, Failure), what, "an Exit, Success(value) or Failure(cause)")
    return exit_


def checked_cause(cause: Cause[E], what: str) -> Cause[E]:
    """``cause`` if it is one, else a TypeError."""
    if not isinstance(cast("object", cause), Cause):
        refuse(cause, what, "a Cause", "for one error say fail(error)")
    return cause


def checked_lookup(lookup: object, what: str) -> None:
    """TypeError where ``lookup`` is no function: it would show at the first key."""
    if not callable(lookup):
        refuse(lookup, what, "a function of the key that gives an Effect")
