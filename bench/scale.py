"""Chains and recursion far beyond Python's own limit: that they run, and what a link costs."""

from __future__ import annotations

import fibers as fb
from bench.measure import Row, cpu_us, in_fiber


def _add_one(value: int) -> int:
    return value + 1


def _chain(links: int) -> fb.Effect[int]:
    eff: fb.Effect[int] = fb.Effect.succeed(0)
    for _ in range(links):
        eff = eff.map(_add_one)
    return eff


def _check(given: int, expected: int) -> None:
    if given != expected:
        raise RuntimeError(f"gave {given} instead of {expected}")


async def _build_chain(n: int) -> float:
    started = cpu_us()
    chain = _chain(n)
    took = cpu_us() - started
    del chain
    return took


async def _run_chain(n: int) -> float:
    chain = _chain(n)
    started = cpu_us()
    value = await chain
    took = cpu_us() - started
    _check(value, n)
    return took


@fb.effect
async def _depth(levels: int) -> int:
    return 1 + await _depth(levels - 1) if levels else 0


async def _recurse(n: int) -> float:
    started = cpu_us()
    levels = await _depth(n)
    took = cpu_us() - started
    _check(levels, n)
    return took


_ROUNDS = 3

SCALE = [
    Row(
        "chain-build",
        "map chain of {n}, made",
        "us per map",
        1_000_000,
        in_fiber(_build_chain),
        rounds=_ROUNDS,
        loop_matters=False,
    ),
    Row(
        "chain-run",
        "map chain of {n}, run",
        "us per map",
        1_000_000,
        in_fiber(_run_chain),
        rounds=_ROUNDS,
        loop_matters=False,
    ),
    Row(
        "recursion",
        "{n} levels of a body that awaits itself",
        "us per level",
        100_000,
        in_fiber(_recurse),
        rounds=_ROUNDS,
        loop_matters=False,
    ),
]
