"""`make crash`: processes killed for real, at steps on disk and inside writes.

Exit status 1 where a killed process left something that breaks a promise; each is named and can be
replayed: `make crash ARGS="--seed 17"`.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import os
import random
import sys
import tempfile
import time
import traceback
from itertools import islice
from pathlib import Path
from typing import Final

from tests.chaos.quiet import be_quiet
from tests.crash.kills import check, kill, points
from tests.crash.victim import Kill

SHOWN_FAILURES: Final = 5


def one(seed: int, point: Kill) -> tuple[bool, str | None]:
    """Whether the process died at its point, and what was wrong with what it left."""
    be_quiet()
    with tempfile.TemporaryDirectory(prefix="crash-") as place:
        try:
            known = kill(Path(place), seed, point)
            if known is not None:
                check(Path(place), known)
        except Exception:  # noqa: BLE001  # the others shall be tried all the same
            return True, traceback.format_exc(limit=-6)
        return known is not None, None


def main() -> int:
    """Exit status 0 where every death left a state that keeps the promises."""
    parser = argparse.ArgumentParser(prog="tools.crash", description=__doc__)
    parser.add_argument("--lives", type=int, default=900, help="processes begun (900)")
    parser.add_argument("--seed", type=int, help="only this one")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="one a core")
    options = parser.parse_args()
    began = time.monotonic()
    count: int = options.lives
    lives = list(enumerate(islice(points(random.Random(1)), count)))
    if options.seed is not None:
        only: int = options.seed
        lives = lives[only : only + 1]
    deaths = {"at a step on disk": 0, "inside a write": 0}
    failures: list[tuple[int, Kill, str]] = []
    with concurrent.futures.ThreadPoolExecutor(options.workers) as pool:
        seeds, kills = [seed for seed, _ in lives], [point for _, point in lives]
        outcomes = pool.map(one, seeds, kills)
        for (seed, point), (died, failure) in zip(lives, outcomes, strict=True):
            if died:
                where = "at a step on disk" if point.bytes_out is None else "inside a write"
                deaths[where] += 1
            if failure is not None:
                failures.append((seed, point, failure))
    counted = ", ".join(f"{count} {where}" for where, count in deaths.items())
    print(
        f"{sum(deaths.values())} of {len(lives)} processes were killed ({counted}) "
        f"in {time.monotonic() - began:.0f} s"
    )
    for seed, point, text in failures[:SHOWN_FAILURES]:
        print(f'\n{point} (make crash ARGS="--seed {seed}")\n{text}')
    print(f"{len(failures)} left a state that breaks a promise")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
