"""`make chaos`: the engine by the thousand seeds of tests/chaos, and the manager of turns by the
thousand examples of its models; on all cores. Prints what happened in them.

Exit status 1 where a promise is broken; each seed that did it is named with its failure and can be
replayed alone: `make chaos ARGS="--seed 17"`, `make chaos ARGS="--part turns --seed 17"`.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from fibers.testing.exploring import run_on_test_loop
from tests.chaos.quiet import be_quiet
from tests.chaos.scenario import Counts, run_seed
from tools import turn_model

BATCH_SEEDS: Final = 50
SHOWN_FAILURES: Final = 5


def play(first: int, count: int) -> tuple[Counts, list[tuple[int, str]]]:
    """Some seeds in a row, each in a directory of its own that goes with it."""
    be_quiet()
    total = Counts()
    failures: list[tuple[int, str]] = []
    for seed in range(first, first + count):

        async def one(seed: int = seed) -> None:
            with tempfile.TemporaryDirectory(prefix="chaos-") as place:
                total.merge(await run_seed(seed, Path(place)))

        try:
            run_on_test_loop(one, seed=seed)
        except Exception:  # noqa: BLE001  # the other seeds shall be tried all the same
            failures.append((seed, traceback.format_exc(limit=-6)))
    return total, failures


def batches(first: int, count: int) -> Iterator[tuple[int, int]]:
    """First seed and number of each batch."""
    for start in range(first, first + count, BATCH_SEEDS):
        yield start, min(BATCH_SEEDS, first + count - start)


def play_streams(first: int, seeds: int, workers: int) -> bool:
    """Whether every seed kept every promise."""
    began = time.monotonic()
    total = Counts()
    failures: list[tuple[int, str]] = []
    with concurrent.futures.ProcessPoolExecutor(workers) as pool:
        jobs = [pool.submit(play, *batch) for batch in batches(first, seeds)]
        for done in concurrent.futures.as_completed(jobs):
            counts, failed = done.result()
            total.merge(counts)
            failures += failed
    ends = ", ".join(f"{count} {kind}" for kind, count in sorted(total.ends.items()))
    print(
        f"{total.seeds} seeds in {time.monotonic() - began:.0f} s: {total.streams} streams ended "
        f"({ends}), {total.crashes} crashes, {total.closes} closes of the app scope,"
        f" {total.rows} rows read back"
    )
    for seed, text in sorted(failures)[:SHOWN_FAILURES]:
        print(f'\nseed {seed} (make chaos ARGS="--seed {seed}")\n{text}')
    print(f"{len(failures)} seeds broke a promise", flush=True)
    return not failures


def replay_stream(seed: int) -> bool:
    """One seed, here, with its log."""

    async def one() -> None:
        with tempfile.TemporaryDirectory(prefix="chaos-") as place:
            print(await run_seed(seed, Path(place)))

    run_on_test_loop(one, seed=seed)
    return True


def _number(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 on")
    return int(text)


def main() -> int:
    """Exit status 0 where no promise was broken."""
    parser = argparse.ArgumentParser(prog="tools.chaos", description=__doc__)
    parser.add_argument(
        "--part", choices=("streams", *turn_model.PARTS), help="only this one (all)"
    )
    parser.add_argument(
        "--seeds", type=_number, default=10_000, help="how many, of streams (10 000)"
    )
    parser.add_argument(
        "--examples",
        type=_number,
        default=os.environ.get(turn_model.EXAMPLES_VARIABLE, "10000"),
        help=f"how many of turns, with faults or not ({turn_model.EXAMPLES_VARIABLE}, or 10 000)",
    )
    parser.add_argument("--first", type=int, default=0, help="the first seed (0)")
    parser.add_argument("--seed", type=int, help="only this one, here; of streams unless --part")
    parser.add_argument("--workers", type=_number, default=os.cpu_count() or 1, help="one a core")
    options = parser.parse_args()
    if options.seed is not None:
        if options.part in turn_model.PARTS:
            return 0 if turn_model.replay(options.part, options.seed, options.examples) else 1
        return 0 if replay_stream(options.seed) else 1
    whole = True
    if options.part in (None, "streams"):
        whole &= play_streams(options.first, options.seeds, options.workers)
    for part in turn_model.PARTS:
        if options.part in (None, part):
            whole &= turn_model.play(part, options.first, options.examples, options.workers)
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main())
