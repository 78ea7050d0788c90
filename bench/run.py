"""`make bench`: measure, print the table, write bench/results/latest.json.

The exit status says that the run was made, not that the numbers are good: 0 whatever they are.
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

if not __package__:
    # Run as a file, Python looks beside that file; the modules are named from the root.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import uvloop

from bench.measure import BUILD, Measured, measure
from bench.report import RESULTS, heading, summary, table_line, write_results
from bench.rows import NOT_MEASURED, ROWS, rows_named

_QUICK_PART: Final = 10

_LOOPS: Final[dict[str, Callable[[], asyncio.AbstractEventLoop]]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


def _parser() -> argparse.ArgumentParser:
    keys = ", ".join(row.key for row in ROWS)
    parser = argparse.ArgumentParser(
        prog="bench/run.py", description="Benchmarks of fibers.", epilog=f"rows: {keys}"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"1/{_QUICK_PART} of the operations in each sample: for a look, not for judging",
    )
    parser.add_argument("--only", metavar="NAME", help="only rows whose key or name contains NAME")
    parser.add_argument("--loop", choices=sorted(_LOOPS), default="asyncio")
    return parser


def main() -> int:
    """Exit status 0; 2 where the arguments are wrong."""
    parser = _parser()
    options = parser.parse_args()
    rows = rows_named(options.only)
    if not rows:
        parser.error(f"no row is named like {options.only!r}; --help lists them")
    part = _QUICK_PART if options.quick else 1
    print(
        f"{BUILD} build, {platform.python_implementation()} {platform.python_version()}, "
        f"{options.loop} loop, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
        f"{', quick' if options.quick else ''}"
    )
    print("CPU time of one thread; each figure is a median, with least and most in brackets")
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
    write_results(all_found)
    print(f"{len(all_found)} rows in {RESULTS}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
