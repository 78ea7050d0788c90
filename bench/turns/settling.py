"""From the end of a stream to the settled record of its turn on disk, and to who waits for it."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from bench.engine.figures import Figure, Group
from bench.turns.stand import Kind, completed, kinds, stand
from streamengine import Event
from streamengine.model import StreamEndEvent

_TURNS: Final = 400
_WARM_UPS: Final = 20
_BARS_MS: Final[Mapping[int, float]] = {50: 10, 99: 50}
"""By percentile. Two waits for the disk are in it: that of the file and that of its name."""
_AIMS_MS: Final[Mapping[int, float]] = {50: 2, 99: 20}


async def _latencies_ms(kind: Kind, turns: int) -> dict[str, list[float]]:
    """One turn after the other, each from its stream-end event on."""
    ended_at: dict[str, float] = {}

    def note(event: Event) -> None:
        if isinstance(event, StreamEndEvent) and event.correlation is not None:
            ended_at[str(event.correlation["taskHandleId"])] = time.perf_counter()

    found: dict[str, list[float]] = {"disk": [], "waiter": []}
    with tempfile.TemporaryDirectory() as folder:
        async with stand(kind, Path(folder)) as s:
            s.engine.events.subscribe(note)
            for n in range(_WARM_UPS + turns):
                record = await completed(s, workspace_id=f"w{n % 50}")
                woken_at = time.perf_counter()
                if n < _WARM_UPS:
                    continue
                end = ended_at[record.handle_id]
                found["disk"].append((s.store.settled_at[record.handle_id] - end) * 1000)
                found["waiter"].append((woken_at - end) * 1000)
    return found


def _percentile(samples: Sequence[float], percent: int) -> float:
    return statistics.quantiles(samples, n=100, method="inclusive")[percent - 1]


_WHAT: Final = {"disk": "its settled record on disk", "waiter": "the wake-up of who waits"}


async def measure(quick: bool) -> list[Figure]:
    turns = _TURNS // 4 if quick else _TURNS
    rows: list[Figure] = []
    with kinds() as kept:
        for kind in kept:
            found = await _latencies_ms(kind, turns)
            for to, samples in found.items():
                for percent, bar_ms in _BARS_MS.items():
                    rows.append(
                        Figure(
                            f"turns-settle-{kind}-{to}-p{percent}",
                            f"from the end of a stream to {_WHAT[to]}, {kind}, p{percent}",
                            "ms",
                            [_percentile(samples, percent)],
                            bar=bar_ms,
                            aim=_AIMS_MS[percent],
                        )
                    )
    return rows


SETTLING: Final = Group("turns-settle", "the settlement of a turn", measure, every_build=False)
