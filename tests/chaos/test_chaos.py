"""Seeded chaos against the engine, on virtual time and in shuffled orders (E27).

`make chaos` runs ten thousand seeds; here are some hundred. A seed that fails is named, and
`make chaos ARGS="--seed N"` replays it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fibers.testing.exploring import run_on_test_loop

from .scenario import Counts, run_seed

pytestmark = [pytest.mark.lifecycle, pytest.mark.slow]

SEEDS = 300
BATCH = 30


@pytest.mark.spec("E1", "E27", "P12")
@pytest.mark.parametrize("first", range(0, SEEDS, BATCH))
def test_no_order_breaks_a_promise(tmp_path: Path, first: int) -> None:
    total = Counts()
    for seed in range(first, first + BATCH):

        async def play(seed: int = seed) -> None:
            total.merge(await run_seed(seed, tmp_path / f"{seed}"))

        try:
            run_on_test_loop(play, seed=seed)
        except BaseException as exc:
            exc.add_note(f'replay it with: make chaos ARGS="--seed {seed}"')
            raise
    # A scenario in which nothing happens proves nothing.
    assert total.streams > 2 * BATCH
    assert total.crashes > 0
    assert set(total.ends) == {"stream-end", "stream-abort", "error"}
