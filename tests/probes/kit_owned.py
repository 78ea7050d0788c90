"""What the probes of owned fibers and resources share: counted resources, and ways to hold them."""

from __future__ import annotations

import contextlib
import random
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

import fibers as fb
from fibers import Effect, Scope
from fibers.dump import live_fibers
from fibers.loop import run_loop, states
from fibers.loop.native import set_op_budget
from tests.probes.kit_e import chain, pass_time, say
from tests.probes.kit_f import turns

if TYPE_CHECKING:
    from collections.abc import Callable

    from fibers.testing import TestClock

A = TypeVar("A")
E = TypeVar("E", bound=Exception)

SEEDS = range(300)
ONE_PRIMITIVE_A_TURN = 2  # the budget is used up before the primitive that would take the last one


async def make_in(rt: fb.Runtime, scope: Scope, make: Effect[A, E]) -> A:
    """Run ``make`` with ``scope`` in context; the scope stays open."""
    return await rt.run(scope.provide(make))


class Counted:
    """Resources numbered in the order of their acquires, and a log of both ends."""

    def __init__(self, *, acquire_seconds: float = 0.0, release_seconds: float = 0.0) -> None:
        self.acquire_seconds = acquire_seconds
        self.release_seconds = release_seconds
        self.log: list[str] = []
        self.acquired = 0
        self.released = 0

    def acquire(self, name: str = "") -> Effect[int, Any]:
        """A resource for the scope in context: its number. Takes time before, and at the end."""

        def begin() -> int:
            self.acquired += 1
            self.log.append(f"+{name}{self.acquired}")
            return self.acquired

        def end(number: int) -> None:
            self.released += 1
            self.log.append(f"-{name}{number}")

        resource = fb.acquire_release(
            Effect.sync(begin),
            lambda number, _: fb.sleep(self.release_seconds).map(lambda _: end(number)),
        )
        return fb.sleep(self.acquire_seconds).flat_map(lambda _: resource)

    @property
    def live(self) -> int:
        """How many are acquired and not released."""
        return self.acquired - self.released


def waiting_fibers() -> list[fb.Fiber[Any, Any]]:
    """The live fibers that wait for something."""
    return [fiber for fiber in live_fibers() if fiber._wait is not None]


def held(get: Effect[A, E], seconds: float) -> Effect[A, E]:
    """Get something into a scope of its own and hold it for ``seconds``."""
    return fb.scoped(get.tap(lambda _: fb.sleep(seconds)))


async def storm(
    rt: fb.Runtime,
    clock: TestClock,
    seed: int,
    work: Callable[[random.Random], Effect[Any, Any]],
    *,
    users: int = 8,
    steps: int = 30,
) -> None:
    """Start users of something at random moments and interrupt some at random moments: also in
    the tick of their start, of a completion, and one through another. All have ended at the end.

    Every other seed gives the loop a turn after each primitive: then a moment may be between any
    two of them.
    """
    dice = random.Random(seed)
    fibers: list[fb.Fiber[Any, Any]] = []
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as after:
        if seed % 2:
            after.callback(set_op_budget, states.OP_BUDGET_PRIMITIVES)
            set_op_budget(ONE_PRIMITIVE_A_TURN)
            patch.setattr(run_loop, "OP_BUDGET_PRIMITIVES", ONE_PRIMITIVE_A_TURN)
        for _ in range(steps):
            match dice.randrange(7):
                case 0 | 1 if len(fibers) < users:
                    fibers.append(rt.run_fork(work(dice)).ignore_failure())
                case 2 if fibers:
                    dice.choice(fibers).interrupt_unsafe(by=dice.randrange(100))
                case 3 | 4 | 5:
                    await turns(dice.randrange(1, 12))
                case _:
                    await pass_time(rt, clock, dice.choice([0.0, 0.5, 1.0]))
        await pass_time(rt, clock, 600)
    assert [fiber for fiber in fibers if fiber.poll() is None] == []


def farewell(log: list[str], name: str, seconds: float = 0.0) -> Effect[None, Any]:
    """Log ``+name``, stay suspended, and when interrupted take ``seconds`` to log ``-name``."""
    never: Effect[None, Any] = Effect.never()
    return say(log, f"+{name}").flat_map(
        lambda _: never.on_interrupt(lambda _: chain(fb.sleep(seconds), say(log, f"-{name}")))
    )
