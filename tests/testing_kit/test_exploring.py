"""explore: orders that are drawn from a seed, and come again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import fibers as fb
from fibers import Effect
from fibers.testing import TestLoop, explore
from fibers.testing.exploring import SEED_VARIABLE

SEEDS = 30


def order_of(seed: int | None) -> list[str]:
    """The order in which five fibers and five tasks get their steps."""
    log: list[str] = []

    @fb.effect
    async def fiber(name: str) -> None:
        for _ in range(3):
            await Effect.yield_now()
            log.append(name)

    async def task(name: str) -> None:
        for _ in range(3):
            await asyncio.sleep(0)
            log.append(name)

    async def main() -> None:
        fibers = [fb.run_fork(fiber(f"f{n}")) for n in range(5)]
        await asyncio.gather(*(task(f"t{n}") for n in range(5)))
        await fb.Fiber.join_all(fibers)

    with asyncio.Runner(loop_factory=lambda: TestLoop(seed=seed)) as runner:
        runner.run(main())
    return log


def test_a_seed_gives_its_order_again() -> None:
    assert [order_of(seed) for seed in range(5)] == [order_of(seed) for seed in range(5)]


def test_seeds_give_different_orders() -> None:
    assert len({tuple(order_of(seed)) for seed in range(SEEDS)}) > SEEDS // 2


def test_fibers_and_tasks_are_both_shuffled() -> None:
    def part(kind: str, seed: int) -> tuple[str, ...]:
        return tuple(name for name in order_of(seed) if name.startswith(kind))

    assert len({part("f", seed) for seed in range(SEEDS)}) > 1
    assert len({part("t", seed) for seed in range(SEEDS)}) > 1


def test_without_a_seed_the_order_is_the_usual_one() -> None:
    log = order_of(None)
    assert [name for name in log if name.startswith("f")] == [f"f{n}" for n in range(5)] * 3


async def lost_update() -> None:
    total = 0

    @fb.effect
    async def add() -> None:
        nonlocal total
        before = total
        if before == 0:
            await Effect.yield_now()
        total = before + 1

    async def begin(delay_turns: int) -> None:
        for _ in range(delay_turns):
            await asyncio.sleep(0)
        await add()

    await asyncio.gather(begin(0), begin(1))
    assert total == 2, total


def test_it_finds_an_order_that_fails_and_names_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SEED_VARIABLE, raising=False)
    with pytest.raises(AssertionError) as caught:
        explore(SEEDS)(lost_update)()
    (note,) = [n for n in caught.value.__notes__ if "seed" in n]
    seed = int(note.split("seed ")[1].split(":")[0])

    monkeypatch.setenv(SEED_VARIABLE, str(seed))
    with pytest.raises(AssertionError):
        explore(SEEDS)(lost_update)()


def test_it_tries_as_many_orders_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SEED_VARIABLE, raising=False)
    runs = 0

    async def count() -> None:
        nonlocal runs
        runs += 1

    explore(7)(count)()
    assert runs == 7


def test_a_test_may_give_an_effect() -> None:
    explore(2)(lambda: Effect.succeed(None))()


def test_bad_arguments_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong: list[Any] = [0, -1, 1.5, True, "7"]
    for seeds in wrong:
        with pytest.raises(ValueError, match="at least 1"):
            explore(seeds)
    monkeypatch.setenv(SEED_VARIABLE, "x")
    with pytest.raises(ValueError, match="whole number"):
        explore(1)(lambda: Effect.succeed(None))()
