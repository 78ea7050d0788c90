"""What a run shows: a line a row as soon as it is measured, and a JSON file for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal, TypedDict

from bench.measure import BUILD, Figures, Measured

RESULTS: Final = Path(__file__).resolve().parent / "results" / "latest.json"

_NAME_WIDTH: Final = 64
_FIGURE_WIDTH: Final = 20
_RATIO_WIDTH: Final = 17


class ResultRow(TypedDict):
    """One row of the file. Figures are for one operation, in the unit in brackets in ``name``."""

    name: str
    ours: float
    against: float | None
    ratio: float | None
    bar: float | None
    holds: bool | None
    build: Literal["pure", "native"]


def _result_row(found: Measured) -> ResultRow:
    return {
        "name": f"{found.title} [{found.row.group}]",
        "ours": round(found.ours.median, 4),
        "against": None if found.against is None else round(found.against.median, 4),
        "ratio": None if found.ratio is None else round(found.ratio, 4),
        "bar": found.row.bar,
        "holds": found.holds,
        "build": BUILD,
    }


def write_results(all_found: Sequence[Measured]) -> None:
    """Replace the file by the rows of this run."""
    RESULTS.parent.mkdir(exist_ok=True)
    rows = [_result_row(found) for found in all_found]
    RESULTS.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


# ---------------------------------------------------------------------------- the table


def _number(value: float) -> str:
    """Three digits that mean something, as far as decimals can give them."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"


def _with_spread(median: float, spread: tuple[float, float]) -> str:
    least, most = spread
    return f"{_number(median)} ({_number(least)}-{_number(most)})"


def _figures(figures: Figures | None) -> str:
    return "" if figures is None else _with_spread(figures.median, figures.spread)


def _line(name: str, ours: str, against: str, ratio: str, bar: str, aim: str, holds: str) -> str:
    return (
        f"{name:<{_NAME_WIDTH}} {ours:>{_FIGURE_WIDTH}} {against:>{_FIGURE_WIDTH}} "
        f"{ratio:>{_RATIO_WIDTH}} {bar:>5} {aim:>5}  {holds}"
    ).rstrip()


def heading() -> str:
    """The heads of the columns."""
    head = _line("", "ours", "against", "ratio", "bar", "aim", "holds")
    return f"{head}\n{'-' * (len(head) + 1)}"


def table_line(found: Measured) -> str:
    """One row of the table."""
    row = found.row
    ratio = ""
    if found.ratio is not None and found.ratio_spread is not None:
        ratio = _with_spread(found.ratio, found.ratio_spread)
    return _line(
        f"  {found.title}",
        _figures(found.ours),
        _figures(found.against),
        ratio,
        "" if row.bar is None else f"{row.bar:g}",
        "" if row.aim is None else f"{row.aim:g}",
        {True: "yes", False: "NO", None: ""}[found.holds],
    )


def summary(all_found: Sequence[Measured]) -> str:
    """How many bars hold, and those that do not, the farthest first."""
    judged = [found for found in all_found if found.holds is not None]
    missed = [found for found in judged if not found.holds]
    lines = [f"{len(judged) - len(missed)} of {len(judged)} bars hold"]
    for times_the_bar, found in sorted(((_excess(m), m) for m in missed), key=lambda p: -p[0]):
        lines.append(f"  {times_the_bar:5.2f} times its bar: {found.row.key}")
    return "\n".join(lines)


def _excess(found: Measured) -> float:
    assert found.ratio is not None
    assert found.row.bar is not None
    return found.ratio / found.row.bar
