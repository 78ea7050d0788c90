"""A row of the engine: a figure with a bar of its own, where those of fibers are ratios."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from bench.measure import BUILD
from bench.report import ResultRow

_NAME_WIDTH: Final = 78
_FIGURE_WIDTH: Final = 24


@dataclass(frozen=True)
class Figure:
    """One line of the table. ``bar``: what the ratio, or without ``against`` the figure itself, may
    be at most.
    """

    key: str
    what: str
    unit: str
    samples: Sequence[float]
    against: float | None = None
    bar: float | None = None
    aim: float | None = None
    note: str = field(default="", kw_only=True)
    """What has to be known beside the figure."""

    @property
    def ours(self) -> float:
        return statistics.median(self.samples)

    @property
    def ratio(self) -> float | None:
        return None if self.against is None else self.ours / self.against

    @property
    def holds(self) -> bool | None:
        if self.bar is None:
            return None
        return (self.ours if self.ratio is None else self.ratio) <= self.bar

    def result_row(self, loop: str, python: str) -> ResultRow:
        """What the file says of it."""
        return {
            "name": f"{self.what} [{self.unit}]",
            "ours": round(self.ours, 4),
            "against": self.against,
            "ratio": None if self.ratio is None else round(self.ratio, 4),
            "bar": self.bar,
            "holds": self.holds,
            "build": BUILD,
            "loop": loop,
            "python": python,
            "key": self.key,
            "unit": self.unit,
            "bar_of": "figure" if self.ratio is None else "ratio",
        }

    def line(self) -> str:
        """The row of the table."""
        figure = f"{self.ours:.4g} {self.unit}"
        if len(self.samples) > 1:
            figure = (
                f"{self.ours:.4g} ({min(self.samples):.4g}-{max(self.samples):.4g}) {self.unit}"
            )
        if self.ratio is not None:
            figure += f", {self.ratio:.3g} times {self.against:.6g}"
        bar = "" if self.bar is None else f"bar {self.bar:g}"
        aim = "" if self.aim is None else f"aim {self.aim:g}"
        held = {True: "yes", False: "NO", None: ""}[self.holds]
        line = (
            f"  {self.what:<{_NAME_WIDTH}} {figure:<{_FIGURE_WIDTH}}  {bar} {aim} {held}".rstrip()
        )
        return line if not self.note else f"{line}\n      {self.note}"


Work: TypeAlias = Callable[[bool], Coroutine[Any, Any, list[Figure]]]
"""Measures; ``quick`` takes a part of each sample."""


@dataclass(frozen=True)
class Group:
    """Rows that one piece of work measures together."""

    key: str
    title: str
    work: Work
    every_build: bool = True
    """False: measured with the pure modules only, as the build changes nothing, or for the time."""
