"""`make flake`: the tests marked `lifecycle`, again and again.

Each run has a random order of its own. Half of the runs are made while every core is kept busy,
because a race that needs a slow machine does not show on an idle one. A failure is printed with
the seed that repeats its order.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

# Ends by itself if this process is gone and could not end it.
_BUSY: Final = "import os, sys\nwhile os.getppid() == int(sys.argv[1]): sum(range(10_000))"
_FAILED: Final = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


@dataclass(frozen=True)
class Run:
    """One repetition: its order, its exit status, and the tests that failed."""

    seed: int
    status: int
    failed: tuple[str, ...]
    output: str


@contextmanager
def busy(processes: int) -> Generator[None]:
    """Keep `processes` cores busy inside the block."""
    loops = [
        subprocess.Popen([sys.executable, "-c", _BUSY, str(os.getpid())]) for _ in range(processes)
    ]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
        for loop in loops:
            loop.wait()


def run_once(seed: int, arguments: list[str]) -> Run:
    """Run the marked tests in the order that `seed` gives."""
    command = [sys.executable, "-m", "pytest", "-q", "--no-spec-claims", "-m", "lifecycle"]
    done = subprocess.run(
        [*command, f"--randomly-seed={seed}", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return Run(seed, done.returncode, tuple(_FAILED.findall(done.stdout)), done.stdout)


def main() -> int:
    """Exit status 0 where no run failed and each ran a test."""
    parser = argparse.ArgumentParser(prog="tools.flake", description=__doc__)
    parser.add_argument("--runs", type=int, default=20, help="runs a condition (default 20)")
    parser.add_argument("arguments", nargs="*", help="further arguments for pytest, after --")
    options = parser.parse_args()
    cores = os.cpu_count() or 1
    failures = 0
    for condition, load in (("idle", 0), ("under load", cores)):
        with busy(load):
            for number in range(1, options.runs + 1):
                run = run_once(random.randrange(2**32), options.arguments)
                if run.status == 5:
                    print("no test is marked lifecycle", file=sys.stderr)
                    return 1
                verdict = "ok" if run.status == 0 else f"FAILED (status {run.status})"
                print(f"{condition} {number}/{options.runs} seed {run.seed}: {verdict}", flush=True)
                if run.status:
                    failures += 1
                    print("\n".join(f"  {test}" for test in run.failed) or run.output, flush=True)
    print(f"{2 * options.runs} runs, {options.runs} of them under load: {failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
