"""What a run shows: a line a row as soon as it is measured, a table of all, a file for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypedDict

from bench.measure import BUILD, Figures, Measured

if TYPE_CHECKING:
    from bench.configurations import Configuration

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
    loop: str
    python: str
    key: str
    unit: str
    bar_of: Literal["ratio", "figure"]


def result_row(found: Measured, loop: str, python: str) -> ResultRow:
    """What a file says of one measured row."""
    return {
        "name": f"{found.title} [{found.row.group}]",
        "ours": round(found.ours.median, 4),
        "against": None if found.against is None else round(found.against.median, 4),
        "ratio": None if found.ratio is None else round(found.ratio, 4),
        "bar": found.row.bar,
        "holds": found.holds,
        "build": BUILD,
        "loop": loop,
        "python": python,
        "key": found.row.key,
        "unit": found.row.unit,
        "bar_of": "ratio",
    }


def write_rows(rows: Sequence[ResultRow], into: Path) -> None:
    """Replace the file ``into`` by these rows."""
    into.parent.mkdir(exist_ok=True)
    into.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


def read_rows(path: Path) -> list[ResultRow]:
    """What ``write_rows`` wrote."""
    rows: list[ResultRow] = json.loads(path.read_text(encoding="utf-8"))
    return rows


# ---------------------------------------------------------------------------- one configuration


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


# ---------------------------------------------------------------------------- all of them

_KEY_WIDTH: Final = 25
_COLUMN_WIDTH: Final = 8


def matrix(measured: Mapping[Configuration, Sequence[ResultRow]]) -> str:
    """The ratio of each row in each configuration, beside its bar; ``*`` where that is exceeded.

    Rows without another side are left out: a figure alone says nothing beside ratios.
    """
    columns = list(measured)
    cells = {
        (row["key"], column): row
        for column, rows in measured.items()
        for row in rows
        if row["ratio"] is not None
    }
    bars = {key: row["bar"] for (key, _), row in cells.items()}
    lines = [_cells(what, "", [_of(c, what) for c in columns]) for what in ("python", "loop")]
    lines.append(_cells("row", "bar", [c.build for c in columns]))
    lines.append("-" * len(lines[-1]))
    for key, bar in bars.items():
        ratios = [_ratio(cells.get((key, column))) for column in columns]
        lines.append(_cells(key, "" if bar is None else f"{bar:g}", ratios))
    holding = [_holding(measured[column]) for column in columns]
    lines.append(_cells("bars that hold", "", holding))
    return "\n".join(lines)


def _of(column: Configuration, what: str) -> str:
    return column.python.minor if what == "python" else column.loop


def _cells(key: str, bar: str, cells: Sequence[str]) -> str:
    row = "".join(f"{cell:>{_COLUMN_WIDTH}} " for cell in cells)
    return f"{key:<{_KEY_WIDTH}}{bar:>6} {row}".rstrip()


def _ratio(row: ResultRow | None) -> str:
    if row is None or row["ratio"] is None:
        return "-"
    return f"{_number(row['ratio'])}{'*' if row['holds'] is False else ' '}"


def _holding(rows: Sequence[ResultRow]) -> str:
    judged = [row["holds"] for row in rows if row["holds"] is not None]
    return f"{sum(judged)}/{len(judged)} "
