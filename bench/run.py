"""`make bench`: measure every configuration, print the table, write bench/results/latest.json.

The exit status says that the run was made, not that the numbers are good: 0 whatever they are, 1
where a configuration could not be measured to its end.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, get_args

if not __package__:
    # Run as a file, Python looks beside that file; the modules are named from the root.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from bench import effect
from bench.configurations import ROOT, Build, Configuration, Loop, configurations
from bench.report import RESULTS, ResultRow, matrix, read_rows, write_rows
from bench.rows import ROWS, rows_named

_BOUND_S: Final = 1200


def _parser() -> argparse.ArgumentParser:
    keys = ", ".join(row.key for row in ROWS)
    parser = argparse.ArgumentParser(
        prog="bench/run.py", description="Benchmarks of fibers.", epilog=f"rows: {keys}"
    )
    parser.add_argument(
        "--quick", action="store_true", help="a tenth of each sample: for a look, not for judging"
    )
    parser.add_argument("--only", metavar="NAME", help="only rows whose key or name contains NAME")
    parser.add_argument("--loop", choices=get_args(Loop), action="append")
    parser.add_argument("--build", choices=get_args(Build), action="append")
    parser.add_argument(
        "--python",
        metavar="PATH",
        action="append",
        help="an interpreter with the packages of this project, instead of those looked for",
    )
    return parser


def _run(configuration: Configuration, arguments: Sequence[str]) -> list[ResultRow]:
    """The rows of one configuration. RuntimeError where its process did not end well."""
    with tempfile.TemporaryDirectory() as folder:
        into = Path(folder) / "rows.json"
        command = [configuration.python.path, "-m", "bench.one", "--loop", configuration.loop]
        done = subprocess.run(
            [*command, "--into", str(into), *arguments],
            cwd=ROOT,
            env=configuration.environment(os.environ),
            timeout=_BOUND_S,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"it ended with {done.returncode}")
        rows = read_rows(into)
    if any(row["build"] != configuration.build for row in rows):
        raise RuntimeError(f"it measured another build than {configuration.build}")
    return rows


def main() -> int:
    """Exit status 0; 1 where a configuration failed; 2 where the arguments are wrong."""
    parser = _parser()
    options = parser.parse_args()
    if not rows_named(options.only):
        parser.error(f"no row is named like {options.only!r}; --help lists them")
    started = time.monotonic()
    builds: Sequence[Build] = options.build or get_args(Build)
    found, notes = configurations(options.python or (), builds, options.loop or ())
    for note in notes:
        print(f"!!!! {note}", flush=True)
    arguments = ["--quick"] if options.quick else []
    arguments += [] if options.only is None else ["--only", options.only]
    print("CPU time of one thread; each figure is a median, with least and most in brackets")
    measured: dict[Configuration, list[ResultRow]] = {}
    for configuration in found:
        print(f"\n==== {configuration} ({time.monotonic() - started:.0f} s)", flush=True)
        try:
            measured[configuration] = _run(configuration, arguments)
        except (RuntimeError, subprocess.TimeoutExpired) as exc:
            notes.append(f"{configuration} was NOT measured: {exc}")
            print(f"!!!! {notes[-1]}", flush=True)
    failed = len(measured) < len(found)
    rows = [row for each in measured.values() for row in each]
    print(f"\n==== all of them ({time.monotonic() - started:.0f} s)")
    print(matrix(measured))
    if measured:
        other, said = effect.compare(next(iter(measured.items())), measured, quick=options.quick)
        rows += other
        print(f"\n{said}")
    for note in notes:
        print(f"!!!! {note}")
    write_rows(rows, RESULTS)
    print(f"{len(rows)} rows in {RESULTS.relative_to(ROOT)}, {time.monotonic() - started:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
