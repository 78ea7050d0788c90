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
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, get_args

if not __package__:
    # Run as a file, Python looks beside that file; the modules are named from the root.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from bench import effect
from bench.configurations import ROOT, Build, Configuration, Loop, configurations
from bench.engine.groups import GROUPS, groups_named
from bench.report import RESULTS, ResultRow, matrix, read_rows, write_rows
from bench.rows import ROWS, rows_named

_BOUND_S: Final = 1200


def _parser() -> argparse.ArgumentParser:
    keys = ", ".join([row.key for row in ROWS] + [group.key for group in GROUPS])
    parser = argparse.ArgumentParser(
        prog="bench/run.py",
        description="Benchmarks of fibers, the engine and turns.",
        epilog=f"rows: {keys}",
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


def _run(
    configuration: Configuration, module: Sequence[str], arguments: Sequence[str]
) -> list[ResultRow]:
    """The rows of one configuration. RuntimeError where its process did not end well."""
    with tempfile.TemporaryDirectory() as folder:
        into = Path(folder) / "rows.json"
        command = [configuration.python.path, "-m", *module]
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
    of_fibers, of_engine = rows_named(options.only), groups_named(options.only)
    if not (of_fibers or of_engine):
        parser.error(f"no row is named like {options.only!r}; --help lists them")
    started = time.monotonic()
    builds: Sequence[Build] = options.build or get_args(Build)
    # The engine is measured on this Python alone: no environment is made for it.
    pythons = options.python or (() if of_fibers else (sys.executable,))
    found, notes = configurations(pythons, builds, options.loop or ())
    for note in notes:
        print(f"!!!! {note}", flush=True)
    arguments = ["--quick"] if options.quick else []
    arguments += [] if options.only is None else ["--only", options.only]
    print("CPU time of one thread; each figure is a median, with least and most in brackets")
    measured: dict[Configuration, list[ResultRow]] = {}
    engine: list[ResultRow] = []
    failed = False

    def attempt(name: str, run: Callable[[], None]) -> None:
        nonlocal failed
        print(f"\n==== {name} ({time.monotonic() - started:.0f} s)", flush=True)
        try:
            run()
        except (RuntimeError, subprocess.TimeoutExpired) as exc:
            failed = True
            notes.append(f"{name} was NOT measured: {exc}")
            print(f"!!!! {notes[-1]}", flush=True)

    def fibers_in(configuration: Configuration) -> None:
        module = ("bench.one", "--loop", configuration.loop)
        measured[configuration] = _run(configuration, module, arguments)

    def engine_in(configuration: Configuration) -> None:
        engine.extend(_run(configuration, ("bench.engine",), arguments))

    for configuration in found if of_fibers else ():
        attempt(str(configuration), partial(fibers_in, configuration))
    for configuration in found if of_engine else ():
        if configuration.loop == "asyncio" and configuration.python == found[0].python:
            attempt(f"engine and turns, {configuration}", partial(engine_in, configuration))
    rows = [row for each in measured.values() for row in each]
    rows += engine
    if measured:
        print(f"\n==== all of them ({time.monotonic() - started:.0f} s)")
        print(matrix(measured))
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
