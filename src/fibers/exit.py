"""Exit: how an effect ended, as a ``returns`` Result whose failure is a Cause.

``match`` over ``Success(value)`` and ``Failure(cause)`` is exhaustive for both type checkers.
"""

from __future__ import annotations

from typing import Any, TypeAlias, Union, cast

from returns.result import Failure, Success
from typing_extensions import TypeVar

from fibers.cause import Cause

A = TypeVar("A")
E = TypeVar("E", bound=Exception)

# Union, not |: the alias is subscripted at run time, also by users' annotations.
Exit: TypeAlias = Union[Success[A], Failure[Cause[E]]]  # noqa: UP007  # see above
"""How an effect ended: ``Success(value)`` or ``Failure(cause)``, both of ``returns``."""

# returns' constructors pass through two __init__ and a guarded __setattr__ (600 ns). An exit is
# made for each observed fiber, so the slot is filled directly; the object is the same.
_new_success: Any = Success.__new__
_new_failure: Any = Failure.__new__
_fill: Any = cast("Any", Success)._inner_value.__set__


def succeeded(value: A) -> Success[A]:
    """The exit of an effect that gave ``value``."""
    exit_: Success[A] = _new_success(Success)
    _fill(exit_, value)
    return exit_


def failed(cause: Cause[E]) -> Failure[Cause[E]]:
    """The exit of an effect that ended with ``cause``."""
    exit_: Failure[Cause[E]] = _new_failure(Failure)
    _fill(exit_, cause)
    return exit_
