"""Small effects and readers shared by the probes of interruption, finalizers and scopes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Never, TypeAlias, TypeVar

from returns.result import Failure, Success

import fibers as fb
from fibers import Cause, Die, Effect, Fail, Interrupt

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from fibers.testing import TestClock

A = TypeVar("A")
E = TypeVar("E", bound=Exception)


class Boom(Exception):
    """The expected error of these probes."""


class Defect(Exception):
    """The unexpected one."""


# ---- effects


def say(log: list[str], line: str) -> Effect[None, Never]:
    """Append `line` to the log."""
    return Effect.sync(lambda: log.append(line))


def chain(*effects: Effect[Any, E]) -> Effect[None, E]:
    """Run the effects one after the other and drop their values."""
    whole: Effect[Any, E] = Effect.succeed(None)
    for each in effects:
        whole = whole.flat_map(_always(each))
    return whole.map(_nothing)


def slow(log: list[str], name: str, seconds: float = 1.0) -> Effect[None, Never]:
    """Log start<name>, take `seconds`, log end<name>."""
    return chain(say(log, f"start{name}"), fb.sleep(seconds), say(log, f"end{name}"))


def parked(log: list[str], farewell: str, seconds: float = 0.0) -> Effect[None, Never]:
    """Stay suspended for good; when interrupted take `seconds`, then log `farewell`."""
    never: Effect[None, Never] = Effect.never()
    return never.on_interrupt(lambda _: chain(fb.sleep(seconds), say(log, farewell)))


def raising(error: BaseException) -> Callable[..., Never]:
    """A callback that raises `error`, whatever it is called with."""

    def throw(*_: object) -> Never:
        raise error

    return throw


def _always(effect: Effect[A, E]) -> Callable[[object], Effect[A, E]]:
    return lambda _: effect


def _nothing(_: object) -> None:
    return None


# ---- handlers

Recovery: TypeAlias = "Callable[[Effect[Any, Boom], Effect[Any, Never]], Effect[Any, Any]]"

# Each turns a failure of the first effect into the second one.
RECOVERIES: dict[str, Recovery] = {
    "catch": lambda eff, then: eff.catch(lambda _: then),
    "catch_tag": lambda eff, then: eff.catch_tag(Boom, lambda _: then),
    "catch_cause": lambda eff, then: eff.catch_cause(lambda _: then),
    "exit": lambda eff, then: eff.exit().flat_map(lambda _: then),
    "ignore": lambda eff, then: eff.ignore().flat_map(lambda _: then),
}


# ---- scopes

Finalizer: TypeAlias = "Callable[[fb.Exit[Any, Any]], Effect[Any, Never] | Awaitable[Any] | None]"


async def add(rt: fb.Runtime, scope: fb.Scope, *finalizers: Effect[Any, Never]) -> None:
    """Register effects as finalizers, in this order."""
    await add_callbacks(rt, scope, *(_always(each) for each in finalizers))


async def add_callbacks(rt: fb.Runtime, scope: fb.Scope, *finalizers: Finalizer) -> None:
    """Register callbacks that want to see the exit as finalizers, in this order."""
    for each in finalizers:
        await rt.run(scope.add_finalizer(each))


# ---- readers


def me() -> fb.Fiber[Any, Any]:
    """The running fiber."""
    fiber = fb.current_fiber()
    assert fiber is not None
    return fiber


def failed(*reasons: Fail[Any] | Die | Interrupt) -> fb.Exit[Any, Any]:
    """The exit with exactly these reasons."""
    return Failure(Cause(reasons))


def interrupted(*by: int | None, reason: str | None = None) -> fb.Exit[Any, Any]:
    """The exit with one interrupt for each of `by` and nothing else."""
    return failed(*(Interrupt(by=each, reason=reason) for each in by))


def cause_of(exit: fb.Exit[Any, Any] | None) -> Cause[Any]:
    """The cause of a failed exit."""
    assert isinstance(exit, Failure)
    cause: Cause[Any] = exit.failure()
    return cause


def show(exit: fb.Exit[Any, Any]) -> str:
    """An exit as one word of a log: `ok(5)`, `I(77)`, `Fail(x)+I(77)`."""
    if isinstance(exit, Success):
        return f"ok({exit.unwrap()})"
    return "+".join(_show_reason(reason) for reason in cause_of(exit).reasons)


def _show_reason(reason: Fail[Any] | Die | Interrupt) -> str:
    if isinstance(reason, Fail):
        return f"Fail({reason.error})"
    if isinstance(reason, Die):
        return f"Die({reason.defect})"
    return f"I({reason.by})"


def peek(fiber: fb.Fiber[Any, Any]) -> str:
    """How a fiber stands, as one word of a log: PENDING, or its exit."""
    exit = fiber.poll()
    return "PENDING" if exit is None else show(exit)


# ---- steering


async def pass_time(rt: fb.Runtime, clock: TestClock, seconds: float = 60.0) -> None:
    """Let `seconds` of virtual time go by."""
    await rt.run(clock.adjust(seconds))


async def interrupt_during(
    rt: fb.Runtime, clock: TestClock, eff: Effect[Any, Any], *, at: float = 0.0, by: int = 77
) -> fb.Exit[Any, Any] | None:
    """Start `eff`, interrupt it at second `at`, let a minute go by; how it ended, if it did."""
    fiber = rt.run_fork(eff)
    await pass_time(rt, clock, at)
    fiber.interrupt_unsafe(by=by)
    await pass_time(rt, clock)
    return fiber.poll()
