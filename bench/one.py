"""One configuration: this Python, this build of fibers, one event loop.

`make bench` runs one process of this for each configuration; alone it is a look at a few rows:

    python -m bench.one --only scope --loop uvloop
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import uvloop

from bench.measure import BUILD, QUICK_PART, Measured, measure
from bench.report import heading, result_row, summary, table_line, write_rows
from bench.rows import NOT_MEASURED, rows_named

_LOOPS: Final[dict[str, Callable[[], asyncio.AbstractEventLoop]]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench.one", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a part of each sample: for a look")
    parser.add_argument("--only", metavar="NAME", help="only rows whose key or name contains NAME")
    parser.add_argument("--loop", choices=sorted(_LOOPS), default="asyncio")
    parser.add_argument("--into", type=Path, metavar="FILE", help="write the rows there, as JSON")
    return parser


def main() -> int:
    """Exit status 0 whatever the numbers are; 2 where the arguments are wrong."""
    parser = _parser()
    options = parser.parse_args()
    rows = rows_named(options.only)
    if not rows:
        parser.error(f"no row is named like {options.only!r}")
    if options.loop != "asyncio":
        rows = [row for row in rows if row.loop_matters]
    part = QUICK_PART if options.quick else 1
    python = platform.python_version()
    print(
        f"{BUILD} build, {platform.python_implementation()} {python}, {options.loop} loop, "
        f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
        f"{', quick' if options.quick else ''}"
    )
    for note in NOT_MEASURED:
        print(note)
    print(heading())
    all_found: list[Measured] = []
    group = ""
    for row in rows:
        if row.group != group:
            group = row.group
            print(group)
        found = measure(row, _LOOPS[options.loop], part)
        all_found.append(found)
        print(table_line(found), flush=True)
    print(summary(all_found))
    if options.into is not None:
        write_rows([result_row(found, options.loop, python) for found in all_found], options.into)
    return 0


if __name__ == "__main__":
    sys.exit(main())
