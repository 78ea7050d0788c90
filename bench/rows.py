"""All rows, in the order of the table."""

from __future__ import annotations

from typing import Final

from bench.batches import AIOJOBS_IS_HERE, BATCHES
from bench.forking import AWAITED, EDGE, ONE_BY_ONE
from bench.interrupts import CLOSES, INTERRUPTS
from bench.measure import Row
from bench.memory import BYTES, LEFT
from bench.scale import SCALE
from bench.steps import STEPS

ROWS: Final[tuple[Row, ...]] = (
    *EDGE,
    *ONE_BY_ONE,
    *BATCHES,
    *INTERRUPTS,
    *CLOSES,
    *STEPS,
    *AWAITED,
    *BYTES,
    *SCALE,
    *LEFT,
)

NOT_MEASURED: Final[tuple[str, ...]] = (
    () if AIOJOBS_IS_HERE else ("aiojobs is not installed: its row is not measured (bar 0.05)",)
)


def rows_named(part_of_name: str | None) -> list[Row]:
    """Those whose key or name contains ``part_of_name``, whatever its case; all for None."""
    if part_of_name is None:
        return list(ROWS)
    wanted = part_of_name.casefold()
    return [r for r in ROWS if wanted in r.key or wanted in r.title(part=1).casefold()]
