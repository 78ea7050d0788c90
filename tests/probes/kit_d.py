"""Small effects and readers shared by the probes of lifecycle, exits, forks and the runtime."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Never, TypeVar

from returns.result import Failure

import fibers as fb
from fibers import Effect

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from fibers.testing import TestClock

T = TypeVar("T")


class Boom(Exception):
    """The expected error of these probes."""


class Defect(Exception):
    """The unexpected one."""


# ---- effects


def say(log: list[str], entry: str) -> Effect[None, Never]:
    """Append `entry` to the log."""
    return Effect.sync(lambda: log.append(entry))


def steps(*effects: Effect[Any, Never]) -> Effect[None, Never]:
    """Run the effects one after the other and drop their values."""
    chain: Effect[Any, Never] = Effect.succeed(None)
    for each in effects:
        chain = chain.flat_map(_always(each))
    return chain.map(_nothing)


def parked(farewell: Effect[Any, Never]) -> Effect[None, Never]:
    """Stay suspended for good; run `farewell` when interrupted."""
    never: Effect[None, Never] = Effect.never()
    return never.on_interrupt(lambda _: farewell)


def slow_farewell(log: list[str], name: str, seconds: float) -> Effect[None, Never]:
    """Stay suspended; when interrupted log s<name>, take `seconds`, log e<name>."""
    return parked(steps(say(log, f"s{name}"), fb.sleep(seconds), say(log, f"e{name}")))


def new_gate() -> asyncio.Future[int]:
    """A plain future that the test settles when it likes."""
    return asyncio.get_running_loop().create_future()


def at_gate(gate: asyncio.Future[T]) -> Effect[T, Never]:
    """Wait on a plain future without owning it."""
    return Effect.promise(lambda: gate)


async def settle(rt: fb.Runtime, clock: TestClock) -> None:
    """Run until no fiber is ready; virtual time stands still."""
    await rt.run(clock.adjust(0))


async def loop_turns(count: int = 10) -> None:
    """Give asyncio and the fibers that many turns of the loop."""
    for _ in range(count):
        await asyncio.sleep(0)


def throwing(error: BaseException) -> Callable[..., Never]:
    """A callback that raises `error`, whatever it is called with."""

    def throw(*_: object) -> Never:
        raise error

    return throw


def _always(effect: Effect[Any, Never]) -> Callable[[object], Effect[Any, Never]]:
    return lambda _: effect


def _nothing(_: object) -> None:
    return None


# ---- readers


def my_id() -> int:
    """The id of the running fiber."""
    me = fb.current_fiber()
    assert me is not None
    return me.id


def cause_of(exit: fb.Exit[Any, Any] | None) -> fb.Cause[Any]:
    """The cause of a failed exit."""
    assert isinstance(exit, Failure)
    cause: fb.Cause[Any] = exit.failure()
    return cause


def interrupted_by(exit: fb.Exit[Any, Any] | None) -> list[int | None]:
    """The interruptors in order, of an exit that is interrupts and nothing else."""
    reasons = cause_of(exit).reasons
    interrupts = [reason for reason in reasons if isinstance(reason, fb.Interrupt)]
    assert len(interrupts) == len(reasons) > 0
    return [interrupt.by for interrupt in interrupts]


# ---- what reaches the outside


@contextmanager
def loop_errors() -> Generator[list[Mapping[str, Any]], None, None]:
    """Collect what reaches the exception handler of the running loop."""
    loop = asyncio.get_running_loop()
    seen: list[Mapping[str, Any]] = []
    loop.set_exception_handler(lambda _, context: seen.append(context))
    try:
        yield seen
    finally:
        loop.set_exception_handler(None)


@contextmanager
def unhandled_failures() -> Generator[list[fb.Cause[Any]], None, None]:
    """Collect the causes that reach the hook for failures nobody handled."""
    seen: list[fb.Cause[Any]] = []
    fb.set_unhandled_failure_hook(lambda _, cause: seen.append(cause))
    try:
        yield seen
    finally:
        fb.set_unhandled_failure_hook(None)
