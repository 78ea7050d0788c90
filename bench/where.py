"""Where the time of one row goes: own microseconds of each function, for one operation.

    python bench/where.py edge-run-fork [--against]

cProfile counts the calls and times them; what it adds to each call is measured and taken off, and
the rest is brought to what the operation costs without a profiler. Functions of C that Python code
calls have lines of their own. Run with FIBERS_PURE=1 where the compiled twin is built: a profiler
sees nothing of what that takes over.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import platform
import pstats
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Final, cast

if not __package__:
    # Run as a file, Python looks beside that file; the modules are named from the root.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from bench.measure import BUILD, Side, cpu_us
from bench.rows import ROWS

_ROUNDS: Final = 7
_CALLS: Final = 100_000


def _nothing() -> None:
    pass


def _call_nothing() -> float:
    started = cpu_us()
    for _ in range(_CALLS):
        _nothing()
    return cpu_us() - started


def _added_us() -> float:
    """What the profiler adds to one call."""
    plain = min(_call_nothing() for _ in range(_ROUNDS))
    profiler = cProfile.Profile(time.thread_time_ns, 1e-9)
    profiled = min(profiler.runcall(_call_nothing) for _ in range(_ROUNDS))
    return max(0.0, (profiled - plain) / _CALLS)


def _cost_us(side: Side, runner: asyncio.Runner, n: int) -> float:
    return statistics.median(side(runner, n) / n for _ in range(_ROUNDS))


def _profiled(side: Side, runner: asyncio.Runner, n: int) -> dict[tuple[str, int, str], Any]:
    profiler = cProfile.Profile(time.thread_time_ns, 1e-9)
    profiler.runcall(side, runner, n)
    return cast("Any", pstats.Stats(profiler)).stats  # type: ignore[no-any-return]  # not in its stub


def _name(function: tuple[str, int, str]) -> str:
    path, line, name = function
    if path == "~":
        return name
    return f"{'/'.join(Path(path).parts[-2:])}:{line} {name}"


def main() -> int:
    """Exit status 0; 2 where there is no such row."""
    parser = argparse.ArgumentParser(prog="bench/where.py", description=__doc__)
    parser.add_argument("row", choices=[row.key for row in ROWS], metavar="ROW")
    parser.add_argument("--against", action="store_true", help="the other side instead of ours")
    parser.add_argument("--top", type=int, default=16, metavar="N", help="functions to print (16)")
    options = parser.parse_args()
    row = next(row for row in ROWS if row.key == options.row)
    side = row.against if options.against else row.ours
    if side is None:
        parser.error("this row has no other side")
    n = row.operations(1)
    gc.disable()
    with asyncio.Runner() as runner:
        side(runner, n)
        cost = _cost_us(side, runner, n)
        stats = _profiled(side, runner, n)
    added = _added_us()
    own = {f: max(0.0, s[2] * 1e6 - s[1] * added) / n for f, s in stats.items() if s[1] * 50 > n}
    whole = sum(own.values())
    scale = cost / whole
    print(f"{row.title(1)}: {cost:.2f} us for one ({BUILD}, Python {platform.python_version()})")
    print(f"{'us':>7} {'share':>6} {'calls':>6}  function")
    for function, us in sorted(own.items(), key=lambda item: -item[1])[: options.top]:
        calls = stats[function][1] / n
        print(f"{us * scale:7.2f} {us / whole:6.1%} {calls:6.2f}  {_name(function)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
