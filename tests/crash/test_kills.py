"""A process that is killed for real, at every step on disk and in the middle of writes.

`make crash` kills five hundred and more; here are some dozen.
"""

from __future__ import annotations

import random
from itertools import islice
from pathlib import Path

import pytest

from .kills import check, kill, points
from .victim import Kill

pytestmark = [pytest.mark.lifecycle, pytest.mark.slow]

KILLS = 60
BATCH = 10


@pytest.mark.spec("P1", "P12", "R12")
@pytest.mark.parametrize("first", range(0, KILLS, BATCH))
def test_what_a_killed_process_leaves_is_whole(tmp_path: Path, first: int) -> None:
    deaths = 0
    batch = islice(enumerate(points(random.Random(1))), first, first + BATCH)
    for seed, point in batch:
        state = tmp_path / f"{seed}"
        known = kill(state, seed, point)
        if known is None:
            continue
        deaths += 1
        try:
            check(state, known)
        except BaseException as exc:
            exc.add_note(f"seed {seed}, killed at {point}")
            raise
    assert deaths > BATCH // 2


@pytest.mark.parametrize("seed", range(12))
def test_a_loop_that_ends_with_streams_in_flight_settles_them_all(
    tmp_path: Path, seed: int
) -> None:
    """The victim lives to its end and closes nothing. Its loop would stall on a completion that
    nobody settles: a failed stream that waited for its provider when the loop ended did that once.
    """
    assert kill(tmp_path, seed, Kill(1_000_000)) is None
