"""How many turns a second a manager sees from their creation to their settled record."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Final

import fibers as fb
from bench.engine.figures import Figure, Group
from bench.turns.stand import Kind, Stand, completed, kinds, stand

_TURNS: Final = 300
_WARM_UPS: Final = 20
_WORKSPACES: Final = 100
_ROUNDS: Final = 3
_BAR_MS: Final = 20
_AIM_MS: Final = 5


async def _many(s: Stand, turns: int, at_once: int) -> tuple[float, float]:
    """Wall-clock and CPU milliseconds a turn."""

    def one(n: int) -> fb.Effect[object, Exception]:
        return fb.Effect.promise(lambda: completed(s, workspace_id=f"w{n % _WORKSPACES}"))

    cpu, began = time.process_time(), time.perf_counter()
    await fb.for_each(range(turns), one, concurrency=at_once, discard=True)
    wall_ms = (time.perf_counter() - began) * 1000
    return wall_ms / turns, (time.process_time() - cpu) * 1000 / turns


async def _rows(kind: Kind, turns: int, rounds: int) -> list[Figure]:
    found: dict[int, list[tuple[float, float]]] = {1: [], _WORKSPACES: []}
    for _ in range(rounds):
        for at_once, samples in found.items():
            with tempfile.TemporaryDirectory() as folder:
                async with stand(kind, Path(folder)) as s:
                    await _many(s, _WARM_UPS, 1)
                    samples.append(await _many(s, turns, at_once))
    return [
        Figure(
            f"turns-rate-{kind}-{at_once}",
            f"a turn, {f'{at_once} at a time' if at_once > 1 else 'one by one'}, {kind}",
            "ms",
            [wall for wall, _ in samples],
            bar=_BAR_MS,
            aim=_AIM_MS,
            note=f"{1000 / statistics.median(wall for wall, _ in samples):.0f} turns a second; "
            f"{statistics.median(cpu for _, cpu in samples):.1f} ms of CPU a turn",
        )
        for at_once, samples in found.items()
    ]


async def measure(quick: bool) -> list[Figure]:
    rows: list[Figure] = []
    with kinds() as found:
        for kind in found:
            rows += await _rows(kind, _TURNS // 5 if quick else _TURNS, 1 if quick else _ROUNDS)
    return rows


RATE: Final = Group("turns-rate", "turns a second", measure, every_build=False)
