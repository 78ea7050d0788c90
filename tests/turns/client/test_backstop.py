"""SilenceBackstop: how long an agent may say nothing."""

from __future__ import annotations

import asyncio

import pytest

from fibers.testing import TestClock
from turns.client.backstop import SilenceBackstop


@pytest.mark.parametrize("heard_at_ms", [0, 2067, 2192])
async def test_the_rounding_of_a_clock_makes_no_silence_endless(heard_at_ms: int) -> None:
    """A test's clock stands still: a wait for a part of a nanosecond would be tried for ever."""
    clock = TestClock()
    await clock.adjust(heard_at_ms / 1000)
    backstop = SilenceBackstop(clock, silence_seconds=120.0, is_excused=lambda: False)
    watching = asyncio.ensure_future(backstop.watch())
    await clock.adjust(119.9)
    assert not watching.done()

    await clock.adjust(0.1)

    assert watching.done()


async def test_a_word_puts_the_end_of_the_silence_off() -> None:
    clock = TestClock()
    backstop = SilenceBackstop(clock, silence_seconds=10.0, is_excused=lambda: False)
    watching = asyncio.ensure_future(backstop.watch())
    await clock.adjust(9.0)
    backstop.heard()
    await clock.adjust(9.9)
    assert not watching.done()

    await clock.adjust(0.1)

    assert watching.done()


async def test_the_time_begins_anew_when_silence_is_no_longer_excused() -> None:
    clock, excused = TestClock(), True
    backstop = SilenceBackstop(clock, silence_seconds=10.0, is_excused=lambda: excused)
    watching = asyncio.ensure_future(backstop.watch())
    await clock.adjust(100.0)
    excused = False
    backstop.look()
    await clock.adjust(9.0)
    excused = True
    backstop.look()
    await clock.adjust(100.0)
    assert not watching.done()
    excused = False
    backstop.look()
    await clock.adjust(9.9)
    assert not watching.done()

    await clock.adjust(0.1)

    assert watching.done()
