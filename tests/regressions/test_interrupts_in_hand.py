"""What an interrupt that is being carried out leaves behind, and a second one meets."""

from __future__ import annotations

import asyncio
import contextlib
import weakref

import pytest

import fibers as fb
from fibers import Effect
from tests.probes.kit_f import (
    collector_off,
    interrupted,
    interruptors,
    new_gate,
    running_fiber,
    turns,
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


class Boom(Exception):
    """An error that a body handles."""


async def handles_a_failure() -> None:
    with contextlib.suppress(Boom):
        await Effect.fail(Boom())


async def test_a_body_awaited_in_a_cleanup_does_not_bring_the_interrupt_up_again() -> None:
    """PD2: the record of what was thrown is the interrupted body's alone."""
    log: list[str] = []

    async def body() -> None:
        try:
            await Effect.never()
        finally:
            await Effect.promise(handles_a_failure)
            await asyncio.sleep(0)
            log.append("cleaned")

    fiber = fb.run_fork(Effect.promise(body))
    fiber.interrupt_unsafe(by=7)
    await fiber.exit()

    assert log == ["cleaned"]


async def test_a_body_that_handled_a_failure_before_does_not_swallow_its_interrupt() -> None:
    """PD2, IN5: it has a record already, which the interrupt goes into."""
    log: list[str] = []

    async def body() -> int:
        await handles_a_failure()
        try:
            await Effect.never()
        except asyncio.CancelledError:
            log.append("swallowed")
        return 5

    fiber = fb.run_fork(Effect.promise(body))
    fiber.interrupt_unsafe(by=7)

    assert log == ["swallowed"]
    assert fiber.poll() == interrupted(by=7)


async def test_an_interrupt_that_a_body_lets_pass_goes_past_recovery() -> None:
    """WI5: no handler outside the body runs."""
    log: list[str] = []

    async def body() -> None:
        await Effect.never()

    recovered = Effect.promise(body).exit().map(lambda _: log.append("recovered"))
    fiber = fb.run_fork(recovered)
    fiber.interrupt_unsafe(by=7)

    assert log == []
    assert fiber.poll() == interrupted(by=7)


async def test_a_cleanup_gets_its_value_where_what_was_awaited_had_to_end_first() -> None:
    """WI1, PD2: the interrupt has landed by then."""
    log: list[int] = []
    gate = new_gate()

    async def slow_to_end() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await asyncio.sleep(0)

    async def body() -> None:
        try:
            await asyncio.create_task(slow_to_end())
        finally:
            log.append(await gate)

    fiber = fb.run_fork(Effect.promise(body))
    await turns()
    fiber.interrupt_unsafe(by=7)
    await turns()
    gate.set_result(5)
    exit = await fiber.exit()

    assert log == [5]
    assert exit == interrupted(by=7)
