"""A process that is killed for real, at every step on disk and in the middle of writes.

`make crash` kills five hundred and more; here are some dozen.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from .kills import check, kill, points
from .victim import Kill

pytestmark = [pytest.mark.lifecycle, pytest.mark.slow]

KILLS = 60


@pytest.mark.spec("P1", "P12", "R12")
def test_what_a_killed_process_leaves_is_whole(tmp_path: Path) -> None:
    deaths = 0
    for seed, point in zip(range(KILLS), points(random.Random(1)), strict=False):
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
    assert deaths > KILLS // 2


@pytest.mark.parametrize("seed", range(12))
def test_a_loop_that_ends_with_streams_in_flight_settles_them_all(
    tmp_path: Path, seed: int
) -> None:
    """The victim lives to its end and closes nothing. Its loop would stall on a completion that
    nobody settles: a failed stream that waited for its provider when the loop ended did that once.
    """
    assert kill(tmp_path, seed, Kill(1_000_000)) is None
