"""``make drill``: a line a row while it runs, then the table. Exit status 1 if a bar broke."""

from __future__ import annotations

import argparse
import asyncio
import functools
import signal
import sys
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from . import rows, tool_rows
from .rows import Row

TRANSCRIPT_LINES = 8
"""Of each row's end; a hundred aborts say the same."""

Situation = Callable[[Path], Awaitable[Row]]


def _situations(kills: int, seed: int) -> list[Situation]:
    some: list[Situation] = [
        rows.idle,
        functools.partial(rows.streams, count=1),
        functools.partial(rows.streams, count=2),
        functools.partial(rows.streams, count=100),
        rows.ignoring,
        rows.wedged,
        rows.late_at_the_engine,
        rows.chat,
        functools.partial(rows.kills, times=kills, seed=seed),
        rows.unsupervised,
        functools.partial(tool_rows.tools, held="slow", count=1),
        functools.partial(tool_rows.tools, held="slow", count=8),
        functools.partial(tool_rows.tools, held="slow", count=1, number=signal.SIGINT),
        functools.partial(tool_rows.tools, held="deaf", count=1),
        functools.partial(tool_rows.tools, held="threaded", count=1),
        tool_rows.second_signal,
        functools.partial(tool_rows.kills, times=max(1, kills // 5), seed=seed),
    ]
    if find_spec("ik_llama_cpp") is None:
        print("local model: not installed here (make local), its rows are left out")
    else:
        some += [functools.partial(rows.local, count=count) for count in (0, 1, 2)]
    return some


def _name_of(situation: object) -> str:
    """Module and function, as ``--only`` knows it."""
    function: Any = getattr(situation, "func", situation)
    return f"{function.__module__.rpartition('.')[2]}.{function.__name__}"


async def _run(kills: int, seed: int, only: str) -> list[Row]:
    done: list[Row] = []
    for situation in _situations(kills, seed):
        if only and only not in _name_of(situation):
            continue
        with rows.folder() as folder:
            row = await situation(folder)
        verdict = "ok" if not row.broken else "BROKEN: " + "; ".join(row.broken)
        print(f"{row.name}: {verdict}" + (f" ({row.notes})" if row.notes else ""), flush=True)
        for line in row.log[:TRANSCRIPT_LINES]:
            print(f"    {line}")
        done.append(row)
    return done


def _show(done: list[Row]) -> None:
    table = Table(title="drill")
    for column in ("row", "close ms", "SIGTERM to exit ms", "partial", "last row"):
        table.add_column(column)
    for column in ("row chars", "client chars", "bars"):
        table.add_column(column)
    for row in done:
        table.add_row(
            row.name,
            "-" if row.close_ms is None else str(row.close_ms),
            "-" if row.exit_ms is None else f"{row.exit_ms:.0f}",
            row.partial,
            row.last_row,
            row.row_characters,
            row.client_characters,
            "hold" if not row.broken else "; ".join(row.broken),
        )
    Console(width=160).print(table)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.drill", description=__doc__)
    parser.add_argument("--kills", type=int, default=50, help="how many times kill -9")
    parser.add_argument("--seed", type=int, default=0, help="of the moments of the kills")
    parser.add_argument("--only", default="", help="rows whose function has this in its name")
    given = parser.parse_args()
    done = asyncio.run(_run(given.kills, given.seed, given.only))
    _show(done)
    broken = sum(bool(row.broken) for row in done)
    print(f"{len(done) - broken} rows hold, {broken} broken")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
