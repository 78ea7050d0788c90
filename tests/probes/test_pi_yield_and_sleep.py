"""Probes PI13: yielding and sleeping."""

from __future__ import annotations

import math

import pytest
from returns.result import Success

import fibers as fb
from fibers import Effect
from fibers.testing import TestClock
from tests.probes.kit_f import interrupted, note, turns


@pytest.mark.spec("PI13")
async def test_fibers_that_yield_take_turns() -> None:
    """a1, b1, a2, b2."""
    log: list[str] = []

    @fb.effect
    async def twice(name: str) -> None:
        log.append(f"{name}1")
        await Effect.yield_now()
        log.append(f"{name}2")

    @fb.effect
    async def both() -> None:
        for name in "ab":
            await twice(name).fork_child()
        await turns()

    await both()

    assert log == ["a1", "b1", "a2", "b2"]


@pytest.mark.spec("PI13")
async def test_an_interrupt_of_a_sleep_is_prompt(rt: fb.Runtime, clock: TestClock) -> None:
    """No time has to pass, on either clock, and the sleep is over for good."""
    log: list[str] = []
    virtual = rt.run_fork(fb.sleep(60).flat_map(lambda _: note(log, "woke")))
    real = fb.run_fork(fb.sleep(60).flat_map(lambda _: note(log, "woke")))

    virtual.interrupt_unsafe(by=7)
    real.interrupt_unsafe(by=7)
    ended = (virtual.poll(), real.poll())
    await rt.run(clock.adjust(120))

    assert ended == (interrupted(7), interrupted(7))
    assert log == []


@pytest.mark.spec("PI13")
async def test_an_infinite_sleep_never_wakes(rt: fb.Runtime, clock: TestClock) -> None:
    """Pending after years; an interrupt ends it."""
    virtual = rt.run_fork(fb.sleep(math.inf))
    real = fb.run_fork(fb.sleep(math.inf))

    await rt.run(clock.adjust(10**9))
    pending = (virtual.poll(), real.poll())
    virtual.interrupt_unsafe()
    real.interrupt_unsafe()

    assert pending == (None, None)
    assert (virtual.poll(), real.poll()) == (interrupted(None), interrupted(None))


@pytest.mark.spec("PI13")
async def test_a_negative_sleep_returns(rt: fb.Runtime) -> None:
    """At once on the virtual clock, after a turn of the loop on the real one."""
    virtual = rt.run_fork(fb.sleep(-5))
    real = fb.run_fork(fb.sleep(-5))
    at_once = (virtual.poll(), real.poll())
    await turns()

    assert at_once == (Success(None), None)
    assert real.poll() == Success(None)
