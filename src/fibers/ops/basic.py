"""Primitives that make a value or change one. No waiting, no forking, no masks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from returns.result import Failure, Success

from fibers.cause import (
    Cause,
    Die,
    Fail,
    Interrupt,
    with_defects_winning,
    without_fails,
)
from fibers.exit import failed, succeeded
from fibers.loop.native import speed
from fibers.loop.protocol import FAIL, NEXT, Around, Frame, Node, outcome_of
from fibers.misplaced import closed_coroutine, refuse_coroutine

if TYPE_CHECKING:
    from collections.abc import Callable

    from fibers.loop.run_loop import FiberCore


# ---------------------------------------------------------------------------- make


class _ValueFields:
    """What a node that gives a value consists of."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value: Any = value


if TYPE_CHECKING or speed is None:
    _ValueBase = _ValueFields
else:
    _ValueBase = speed.Value


class SucceedOp(_ValueBase, Node):
    """Gives ``value``."""

    __slots__ = ()

    def __reduce__(self) -> Any:
        return type(self), (self.value,)  # for copies: C fields are no slots

    def _ev(self, fiber: FiberCore) -> Any:
        return self.value


class FailCauseOp(Node):
    """Fails with ``cause``, as it is."""

    __slots__ = ("cause",)

    def __init__(self, cause: Cause[Any]) -> None:
        self.cause: Cause[Any] = cause

    def _ev(self, fiber: FiberCore) -> Any:
        fiber._cause = self.cause
        return FAIL


class SyncOp(Node):
    """Calls ``f`` at each run and gives what it returns."""

    __slots__ = ("f",)

    def __init__(self, f: Callable[[], Any]) -> None:
        self.f: Callable[[], Any] = f

    def _ev(self, fiber: FiberCore) -> Any:
        return self.f()


class SuspendOp(Node):
    """Calls ``f`` at each run and goes on with the effect or exit that it returns."""

    __slots__ = ("f",)

    def __init__(self, f: Callable[[], Any]) -> None:
        self.f: Callable[[], Any] = f

    def _ev(self, fiber: FiberCore) -> Any:
        return outcome_of(fiber, self.f())


class InterruptOp(Node):
    """The fiber fails with an interrupt of its own making: an ordinary failure, catchable."""

    __slots__ = ()

    def _ev(self, fiber: FiberCore) -> Any:
        fiber._cause = Cause((Interrupt(fiber.id),))
        return FAIL


class YieldOp(Node):
    """Gives the event loop a turn."""

    __slots__ = ()

    def _ev(self, fiber: FiberCore) -> Any:
        fiber._rv = None
        return fiber._yield_turn()


BREATHER = YieldOp()


class AccessOp(Node):
    """Whatever can be read off the running fiber."""

    __slots__ = ("f",)

    def __init__(self, f: Callable[[FiberCore], Any]) -> None:
        self.f: Callable[[FiberCore], Any] = f

    def _ev(self, fiber: FiberCore) -> Any:
        return self.f(fiber)


# ---------------------------------------------------------------------------- change


class MapOp(Around):
    """The value through a function."""

    __slots__ = ("f",)

    def __init__(self, first: Node, f: Callable[[Any], Any]) -> None:
        super().__init__(first)
        self.f: Callable[[Any], Any] = f

    def _val(self, fiber: FiberCore, value: Any) -> Any:
        return self.f(value)


class FlatMapOp(Around):
    """Goes on with the effect or exit that ``f`` makes of the value."""

    __slots__ = ("f",)

    def __init__(self, first: Node, f: Callable[[Any], Any]) -> None:
        super().__init__(first)
        self.f: Callable[[Any], Any] = f

    def _val(self, fiber: FiberCore, value: Any) -> Any:
        return outcome_of(fiber, self.f(value))


class _Give(Frame):
    """Replace the value that arrives by one that was there before."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def _val(self, fiber: FiberCore, value: Any) -> Any:
        return self.value


class TapOp(Around):
    """Runs what ``f`` makes of the value, then gives the value itself."""

    __slots__ = ("f",)

    def __init__(self, first: Node, f: Callable[[Any], Any]) -> None:
        super().__init__(first)
        self.f: Callable[[Any], Any] = f

    def _val(self, fiber: FiberCore, value: Any) -> Any:
        # The frame first: what f's effect gives is dropped, its failure passes through.
        fiber._stack.append(_Give(value))
        return outcome_of(fiber, self.f(value))


class ForeverOp(Around):
    """Again and again, with a turn of the loop between (IN24)."""

    __slots__ = ()

    def _val(self, fiber: FiberCore, value: Any) -> Any:
        fiber._rv = NEXT
        fiber._next = self
        return fiber._yield_turn()


class MatchCauseOp(Around):
    """Both ways out, each to a callback; the base of every recovery.

    ``on_cause`` gives an outcome, or None for "not mine: go on unwinding". It is skipped by an
    interrupt from outside (WI5), which drops the Fails that it would have handled (IN8).
    """

    __slots__ = ("on_cause", "on_value")

    def __init__(
        self,
        first: Node,
        on_cause: Callable[[FiberCore, Cause[Any]], Any],
        on_value: Callable[[FiberCore, Any], Any] | None = None,
    ) -> None:
        super().__init__(first)
        self.on_cause: Callable[[FiberCore, Cause[Any]], Any] = on_cause
        self.on_value: Callable[[FiberCore, Any], Any] | None = on_value

    def _val(self, fiber: FiberCore, value: Any) -> Any:
        return value if self.on_value is None else self.on_value(fiber, value)

    def _err(self, fiber: FiberCore, cause: Cause[Any]) -> Any:
        if fiber._skips(cause):
            fiber._cause = without_fails(cause)
            return FAIL
        return self.on_cause(fiber, cause)


class MapErrorOp(Around):
    """Every Fail's error through a function; no recovery, so nothing is dropped."""

    __slots__ = ("f",)

    def __init__(self, first: Node, f: Callable[[Any], Exception]) -> None:
        super().__init__(first)
        self.f: Callable[[Any], Exception] = f

    def _err(self, fiber: FiberCore, cause: Cause[Any]) -> Any:
        fiber._cause = without_fails(cause) if fiber._skips(cause) else cause.map(self.f)
        return FAIL


def catching(f: Callable[[Any], Any], wanted: Callable[[Any], bool] | None = None) -> Any:
    """``on_cause`` of catch, catch_if and catch_tag: the first Fail that is wanted, to ``f``.

    A Die beside it is a defect that no recovery may hide: the Fails become Dies (EX3).
    """

    def on_cause(fiber: FiberCore, cause: Cause[Any]) -> Any:
        if cause.has_dies:
            cause = with_defects_winning(cause)
        else:
            for reason in cause.reasons:
                if isinstance(reason, Fail):
                    verdict = wanted is None or wanted(reason.error)
                    refuse_coroutine(verdict)
                    if verdict:
                        return outcome_of(fiber, f(reason.error))
                    break
        fiber._cause = cause
        return FAIL

    return on_cause


def catching_defect(f: Callable[[Any], Any]) -> Any:
    """``on_cause`` of catch_defect: the first defect, to ``f``; without one the cause goes on."""

    def on_cause(fiber: FiberCore, cause: Cause[Any]) -> Any:
        for reason in cause.reasons:
            if isinstance(reason, Die):
                return outcome_of(fiber, f(reason.defect))
        fiber._cause = cause
        return FAIL

    return on_cause


def catching_cause(f: Callable[[Any], Any]) -> Any:
    """``on_cause`` of catch_cause: the whole cause, to ``f``."""

    def on_cause(fiber: FiberCore, cause: Cause[Any]) -> Any:
        return outcome_of(fiber, f(cause))

    return on_cause


def to_failed_exit(fiber: FiberCore, cause: Cause[Any]) -> Any:
    """``on_cause`` of exit: the exit of a failure is the value."""
    return failed(cause)


def to_succeeded_exit(fiber: FiberCore, value: Any) -> Any:
    """``on_value`` of exit: the exit of a success is the value."""
    return succeeded(value)


def fails_into_defects(fiber: FiberCore, cause: Cause[Any]) -> Any:
    """or_die: what was expected is a defect from here on."""
    fiber._cause = Cause(Die(r.error, r._tb) if isinstance(r, Fail) else r for r in cause.reasons)
    return FAIL


def ignoring_fails(fiber: FiberCore, cause: Cause[Any]) -> Any:
    """ignore: a failure gives None; defects and interrupts pass."""
    if cause.has_fails and not cause.has_dies:
        return None
    fiber._cause = with_defects_winning(cause)
    return FAIL


def exit_outcome(fiber: FiberCore, exit_: Any) -> Any:
    """Go on with an exit: its value, or its own cause (FL23)."""
    if isinstance(exit_, Success):
        return exit_._inner_value  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]  # an exit of anything
    if isinstance(exit_, Failure):
        fiber._cause = exit_._inner_value  # pyright: ignore[reportUnknownMemberType]  # an exit's failure is a Cause
        return FAIL
    closed_coroutine(exit_)
    raise TypeError(f"expected an Exit (Success or Failure), got {type(exit_).__name__}")


class ExitOp(Node):
    """Effect.from_exit."""

    __slots__ = ("given",)

    def __init__(self, given: Any) -> None:
        self.given: Any = given

    def _ev(self, fiber: FiberCore) -> Any:
        return exit_outcome(fiber, self.given)


# ---------------------------------------------------------------------------- environment


class _EnvEnd(Frame):
    __slots__ = ("env",)

    def __init__(self, env: dict[str, Any]) -> None:
        self.env = env

    def _val(self, fiber: FiberCore, value: Any) -> Any:
        fiber._env = self.env
        return value

    def _err(self, fiber: FiberCore, cause: Cause[Any]) -> Any:
        fiber._env = self.env
        fiber._cause = cause
        return FAIL


class ProvideOp(Node):
    """``first`` with services added; the outer ones are back afterwards, also after a failure."""

    __slots__ = ("first", "services")

    def __init__(self, first: Node, services: dict[str, Any]) -> None:
        self.first: Node = first
        self.services: dict[str, Any] = services

    def _ev(self, fiber: FiberCore) -> Any:
        fiber._stack.append(_EnvEnd(fiber._env))
        fiber._env = {**fiber._env, **self.services}
        fiber._next = self.first
        return NEXT
