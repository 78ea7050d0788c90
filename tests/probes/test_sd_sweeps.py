"""Retries, iterations and generator bodies, interrupted at every primitive and every suspension."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest

import fibers as fb
from fibers import Effect, EffectGen, Schedule
from fibers.testing import Case, sweep
from tests.probes.kit_s import Boom


class Ledger:
    """What was opened and closed, in order."""

    def __init__(self) -> None:
        self.open = list[str]()
        self.opened = 0

    def begin(self, name: str) -> None:
        self.open.append(name)
        self.opened += 1

    def end(self, name: str) -> None:
        self.open.remove(name)

    def holding(self, name: str, eff: Effect[Any, Boom]) -> Effect[Any, Boom]:
        """``eff``, with something open around it whose release takes its time."""
        return fb.acquire_use_release(
            fb.sleep(1).map(lambda _: self.begin(name)),
            lambda _: eff,
            lambda _, __: fb.sleep(1).map(lambda _: self.end(name)),
        )

    def settled(self, exit_: fb.Exit[Any, Any]) -> None:
        """Nothing is open, and an interrupted exit says so with one interrupt."""
        assert self.open == []
        if isinstance(exit_, fb.Failure):
            reasons = exit_.failure().reasons
            assert sum(isinstance(reason, fb.Interrupt) for reason in reasons) <= 1
            assert not any(isinstance(reason, fb.Die) for reason in reasons)


@pytest.mark.slow
@pytest.mark.spec("SD5", "AT11")
def test_a_retry_gives_back_what_each_run_took() -> None:
    def case() -> Case:
        ledger = Ledger()
        failing: Effect[None, Boom] = fb.sleep(1).flat_map(lambda _: Effect.fail(Boom()))
        schedule = Schedule.spaced(1).tap(lambda _: fb.sleep(1)).up_to(2)
        retried = ledger.holding("run", failing).retry(schedule, while_=slow_yes)
        return ledger.holding("all", retried).ignore(), ledger.settled

    report = sweep(case)

    assert report.interrupted > 50


@pytest.mark.slow
@pytest.mark.spec("SD1", "AT11")
def test_a_repeat_restores_what_is_in_context() -> None:
    """Whatever ends it: the metadata outside are those of outside."""

    def case() -> Case:
        ledger, attempts = Ledger(), list[int]()
        outside = fb.CurrentMetadata.map(lambda m: attempts.append(m.attempt))
        repeated = ledger.holding("run", fb.sleep(1)).repeat(Schedule.recurs(2))

        def check(exit_: fb.Exit[Any, Any]) -> None:
            ledger.settled(exit_)
            assert attempts in ([0], [])  # not if it never started

        return repeated.ensuring(outside), check

    report = sweep(case)

    assert report.interrupted > 50


@pytest.mark.slow
@pytest.mark.spec("AT10", "AT11")
def test_a_consumed_generator_is_over_and_the_loop_has_released() -> None:
    def case() -> Case:
        ledger, made = Ledger(), list[Any]()

        async def numbers() -> AsyncGenerator[int, None]:
            for n in range(2):
                await fb.sleep(1)
                yield n

        def source() -> AsyncGenerator[int, None]:
            generator = numbers()
            made.append(generator)
            return generator

        def check(exit_: fb.Exit[Any, Any]) -> None:
            ledger.settled(exit_)
            assert all(generator.ag_frame is None for generator in made)

        return fb.for_each_async(source, lambda _: ledger.holding("item", fb.sleep(1))), check

    report = sweep(case)

    assert report.interrupted > 50


@pytest.mark.slow
@pytest.mark.spec("AT10", "AT11")
def test_an_iterator_of_pulls_is_closed_once_after_the_last_pull() -> None:
    def case() -> Case:
        ledger, closes = Ledger(), list[int]()
        left = iter(range(2))

        def pull() -> Effect[int, StopAsyncIteration]:
            item = next(left, None)
            return Effect.fail(StopAsyncIteration()) if item is None else Effect.succeed(item)

        def on_close(_: object) -> Effect[None]:
            return fb.sleep(1).map(lambda _: closes.append(len(ledger.open)))

        pulled: Effect[int, Any] = ledger.holding("pull", Effect.suspend(pull))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # another error than Boom

        @fb.effect
        async def consume() -> list[int]:
            async with aclosing(fb.to_async_iterable(pulled, on_close=on_close)) as items:
                ledger.begin("consumer")
                try:
                    return [item async for item in items]
                finally:
                    ledger.end("consumer")

        def check(exit_: fb.Exit[Any, Any]) -> None:
            ledger.settled(exit_)
            # The consumer may be there still, a pull may not.
            assert closes in ([], [0], [1])
            assert bool(closes) is bool(ledger.opened)

        return consume(), check

    report = sweep(case)

    assert report.interrupted > 50


@pytest.mark.slow
@pytest.mark.spec("PD1", "PD17", "AT11")
def test_a_generator_body_cleans_up() -> None:
    """With a region, a hole in it, and a failure that is caught."""

    def case() -> Case:
        ledger = Ledger()

        @fb.effect
        def part(name: str) -> EffectGen[None, Boom]:
            ledger.begin(name)
            try:
                yield from fb.sleep(1)
                yield from Effect.fail(Boom(name))
            finally:
                with fb.uninterruptible():
                    yield from fb.sleep(1)
                    ledger.end(name)

        @fb.effect
        def body() -> EffectGen[None, Boom]:
            with fb.uninterruptible() as restore:
                ledger.begin("region")
                try:
                    with restore():
                        yield from part("hole").ignore()
                finally:
                    yield from fb.sleep(1)
                    ledger.end("region")
            try:
                yield from part("caught")
            except Boom:
                yield from fb.sleep(1)

        return body(), ledger.settled

    report = sweep(case)

    assert report.interrupted > 20


def slow_yes(_: object) -> Effect[bool]:
    return fb.sleep(1).map(lambda _: True)
