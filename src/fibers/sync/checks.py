"""Arguments that make no sense are refused at the call (PD18)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from returns.result import Failure, Success

from fibers.cause import Cause

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
    given: Any = exit_  # annotations bind nobody who runs no type checker
    if not isinstance(given, Success | Failure):
        raise TypeError(f"{what} takes an Exit, Success(value) or Failure(cause), not {given!r}")
    return exit_


def checked_cause(cause: Cause[E], what: str) -> Cause[E]:
    """``cause`` if it is one, else a TypeError."""
    given: Any = cause
    if not isinstance(given, Cause):
        raise TypeError(f"{what} takes a Cause, not {given!r}: for one error say fail(error)")
    return cause


def checked_lookup(lookup: object, what: str) -> None:
    """TypeError where ``lookup`` is no function: it would show at the first key."""
    if not callable(lookup):
        raise TypeError(f"{what} takes a function of the key that gives an Effect, not {lookup!r}")
