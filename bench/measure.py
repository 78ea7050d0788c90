"""How a row is measured: two sides in turn, in one process and one event loop.

Ours, theirs, ours, theirs: whatever slows the machine for a second slows both. Each figure is the
median over the rounds. Time is CPU time of this thread, because no side ever waits for anything
outside of it; a busy neighbour would count in wall-clock time and says nothing about either side.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import trio

import fibers as fb
from fibers.loop.native import speed

if TYPE_CHECKING:
    from collections.abc import Coroutine

BUILD: Final[Literal["pure", "native"]] = "pure" if speed is None else "native"
"""What is measured: the Python modules alone, or with the compiled twin."""
ROUNDS: Final = 5
"""Samples of each side, the warm-up not counted."""
MANY_ROUNDS: Final = 15
"""The same, where a sample takes a few milliseconds only."""
QUICK_PART: Final = 10
"""--quick does one in so many operations."""

Work: TypeAlias = "Callable[[int], Coroutine[object, object, float]]"
"""Does so many operations; gives what they cost together: CPU microseconds, or bytes."""
Side: TypeAlias = "Callable[[asyncio.Runner, int], float]"
"""A Work with the place where it runs."""


def cpu_us() -> float:
    """CPU microseconds of this thread, from an arbitrary start."""
    return time.thread_time_ns() / 1000


def in_task(work: Work) -> Side:
    """Run in a plain asyncio task: the edge, for ours."""

    def side(runner: asyncio.Runner, n: int) -> float:
        return runner.run(work(n))

    return side


def in_fiber(work: Work) -> Side:
    """Run in the body of a fiber."""

    async def host(n: int) -> float:
        thunk: Callable[[], Awaitable[float]] = partial(work, n)
        return await fb.run_fork(fb.Effect.promise(thunk))

    return in_task(host)


def in_trio(work: Work) -> Side:
    """Run in trio's own event loop."""

    def side(runner: asyncio.Runner, n: int) -> float:
        return trio.run(work, n)

    return side


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    key: str
    """Short and without spaces, for --only."""
    what: str
    """The work; ``{n}`` stands for the number of operations in a sample."""
    unit: str
    """Of both figures, for one operation: "us per fork"."""
    size: int
    """Operations in a sample."""
    ours: Side
    versus: str = ""
    """The other side, in words; empty where there is none."""
    against: Side | None = None
    bar: float | None = None
    """The ratio that must not be exceeded."""
    aim: float | None = None
    """The ratio that is wished for."""
    rounds: int = ROUNDS
    warm_ups: int = 1
    """Rounds before those that count: caches, free lists, the adaptive interpreter."""
    loop_matters: bool = True
    """False: nothing of it reaches the event loop, and it is measured on asyncio's only."""

    def operations(self, part: int) -> int:
        """In a sample of 1/``part`` of the full size."""
        return max(1, self.size // part)

    @property
    def group(self) -> str:
        """What rows that are printed together have in common."""
        return f"{self.unit}, against {self.versus}" if self.versus else self.unit

    def title(self, part: int) -> str:
        """The work, with the number that is really done."""
        return self.what.format(n=f"{self.operations(part):,}".replace(",", " "))


@dataclass
class Figures:
    """Costs of one operation, a figure a round, in the unit of the row."""

    samples: list[float] = field(default_factory=list[float])

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def spread(self) -> tuple[float, float]:
        """Least and most."""
        return min(self.samples), max(self.samples)


@dataclass
class Measured:
    """A row with its figures."""

    row: Row
    title: str
    ours: Figures = field(default_factory=Figures)
    against: Figures | None = None

    @property
    def ratio(self) -> float | None:
        """Of the medians."""
        return None if self.against is None else self.ours.median / self.against.median

    @property
    def ratio_spread(self) -> tuple[float, float] | None:
        """Least and most within one round."""
        if self.against is None:
            return None
        pairs = zip(self.ours.samples, self.against.samples, strict=True)
        ratios = [ours / theirs for ours, theirs in pairs]
        return min(ratios), max(ratios)

    @property
    def holds(self) -> bool | None:
        """Whether the ratio is within the bar; None where there is no bar."""
        if self.row.bar is None or self.ratio is None:
            return None
        return self.ratio <= self.row.bar


@contextmanager
def _without_collector() -> Generator[None]:
    """Nothing is collected inside, and what was alive before is not looked at."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


def _sample(side: Side, runner: asyncio.Runner, n: int) -> float:
    with _without_collector():
        return side(runner, n) / n


def measure(
    row: Row, loop_factory: Callable[[], asyncio.AbstractEventLoop] | None, part: int = 1
) -> Measured:
    """Measure one row in a new event loop, with 1/``part`` of its operations a sample."""
    n = row.operations(part)
    found = Measured(row, row.title(part))
    if row.against is not None:
        found.against = Figures()
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        for number in range(row.warm_ups + row.rounds):
            ours = _sample(row.ours, runner, n)
            theirs = None if row.against is None else _sample(row.against, runner, n)
            if number < row.warm_ups:
                continue
            found.ours.samples.append(ours)
            if found.against is not None and theirs is not None:
                found.against.samples.append(theirs)
    return found
