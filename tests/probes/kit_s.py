"""What the probes of schedules share: when something ran, in milliseconds of virtual time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import fibers as fb
from fibers import Effect
from fibers.testing import TestClock

A = TypeVar("A")


class Boom(Exception):
    """The expected error of these probes; equal only to itself."""


def ms(milliseconds: float) -> float:
    """As a Duration."""
    return milliseconds / 1000


class Runs:
    """Effects that write down when they start."""

    def __init__(self, clock: TestClock) -> None:
        self.clock = clock
        self.times: list[int] = []

    def start(self) -> int:
        """A run starts now; which one it is, from 1."""
        self.times.append(round(self.clock.now() * 1000))
        return len(self.times)

    def counting(self) -> Effect[int]:
        """At once; gives the number of the run."""
        return Effect.sync(self.start)

    def taking(self, *durations: float) -> Effect[None]:
        """The first run takes so many milliseconds, the second so many, ...; the last goes on."""

        def run() -> Effect[None]:
            at = min(self.start(), len(durations))
            return fb.sleep(ms(durations[at - 1]))

        return Effect.suspend(run)

    def failing(self, errors: Iterable[Boom]) -> Effect[int, Boom]:
        """A run for each error fails with it; those after give the number of the run."""
        left = iter(errors)

        def run() -> Effect[int, Boom]:
            number = self.start()
            error = next(left, None)
            return Effect.succeed(number) if error is None else Effect.fail(error)

        return Effect.suspend(run)


async def times_of(
    rt: fb.Runtime,
    clock: TestClock,
    make: Callable[[Runs], Effect[Any, Any]],
    *,
    within: float = 60.0,
) -> tuple[list[int], fb.Exit[Any, Any] | None]:
    """Run what ``make`` gives for ``within`` seconds: when each run started, and how it ended."""
    runs = Runs(clock)
    fiber = rt.run_fork(make(runs)).ignore_failure()
    await rt.run(clock.adjust(within))
    return runs.times, fiber.poll()
