"""What an interrupt that is being carried out leaves behind, and a second one meets."""

from __future__ import annotations

import asyncio
import weakref

import pytest

import fibers as fb
from fibers import Effect
from tests.probes.kit_f import (
    collector_off,
    interrupted,
    interruptors,
    running_fiber,
)

pytestmark = pytest.mark.lifecycle


async def test_a_cleanup_that_follows_a_yield_can_interrupt_its_own_fiber_again() -> None:
    """PD2: the fiber runs then, though it stands in the queue for its turn as well."""
    log: list[str] = []

    async def body() -> None:
        running_fiber().interrupt_unsafe(by=7)
        try:
            await asyncio.sleep(0)
        finally:
            running_fiber().interrupt_unsafe(by=8, again=True)
            log.append("still in the same segment")
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                log.append("cut again")

    exit = await fb.run_fork(Effect.promise(body)).exit()

    assert log == ["still in the same segment", "cut again"]
    assert interruptors(exit) == [7, 8]


class Large:
    """What a body holds in a local."""


async def test_an_interrupted_fiber_keeps_nothing_of_its_body() -> None:
    """PD13: who keeps the fiber keeps its exit, not the frames that its interrupt went through."""
    gone: list[weakref.ref[Large]] = []

    async def body() -> None:
        large = Large()
        gone.append(weakref.ref(large))
        await Effect.never()

    with collector_off():
        fiber = fb.run_fork(Effect.promise(body))
        fiber.interrupt_unsafe(by=7)
        alive = gone[0]() is not None

    assert fiber.poll() == interrupted(by=7)
    assert not alive
