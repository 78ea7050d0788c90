"""All groups of rows of the engine and of turns, in the order of the table."""

from __future__ import annotations

from typing import Final

from bench.engine.deltas import DELTAS
from bench.engine.endings import ENDINGS
from bench.engine.figures import Group
from bench.engine.history import HISTORY
from bench.engine.load import LOAD
from bench.engine.references import REFERENCES
from bench.turns.rate import RATE
from bench.turns.restart import RESTART
from bench.turns.settling import SETTLING

GROUPS: Final[tuple[Group, ...]] = (
    DELTAS,
    REFERENCES,
    LOAD,
    ENDINGS,
    HISTORY,
    SETTLING,
    RATE,
    RESTART,
)


def groups_named(part_of_name: str | None) -> list[Group]:
    """Those whose key or title contains ``part_of_name``, whatever its case; all for None."""
    wanted = "" if part_of_name is None else part_of_name.casefold()
    return [g for g in GROUPS if wanted in g.key or wanted in g.title]
