"""The rows of the engine and of turns, in this process: this Python, this build, asyncio's loop.

python -m bench.engine --only engine-close
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import sys
import time
from pathlib import Path

from bench.engine.groups import groups_named
from bench.engine.stand import quiet
from bench.measure import BUILD
from bench.report import ResultRow, write_rows


def main() -> int:
    """Exit status 0 whatever the numbers are; 2 where the arguments are wrong."""
    parser = argparse.ArgumentParser(prog="bench.engine", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a part of each sample: for a look")
    parser.add_argument("--only", metavar="NAME", help="groups whose key or title contains NAME")
    parser.add_argument("--into", type=Path, metavar="FILE", help="write the rows there, as JSON")
    options = parser.parse_args()
    groups = groups_named(options.only)
    if not groups:
        parser.error(f"no group is named like {options.only!r}")
    quiet()
    python = platform.python_version()
    cores = os.cpu_count()
    print(
        f"{BUILD} build, Python {python}, asyncio, load {os.getloadavg()[0]:.1f} on {cores} cores"
    )
    rows: list[ResultRow] = []
    for group in groups:
        if BUILD != "pure" and not group.every_build:
            continue
        began = time.monotonic()
        figures = asyncio.run(group.work(options.quick))
        load = os.getloadavg()[0]
        print(f"{group.title} ({time.monotonic() - began:.0f} s, load {load:.1f})")
        for figure in figures:
            print(figure.line(), flush=True)
            rows.append(figure.result_row("asyncio", python))
    if options.into is not None:
        write_rows(rows, options.into)
    return 0


if __name__ == "__main__":
    sys.exit(main())
