"""Slots alone: who waits, and who gets one."""

from __future__ import annotations

import pytest

import fibers as fb
from turns.subturns.slots import Slots


@pytest.mark.spec("U10")
async def test_a_slot_that_is_given_back_goes_to_who_waits_longest(rt: fb.Runtime) -> None:
    slots = Slots(1)
    held, first, second = slots.slot(), slots.slot(), slots.slot()
    await rt.run(held.acquire(1))
    waiting = [rt.run_fork(slot.acquire(1)) for slot in (first, second)]

    held.release()

    assert (first.is_held, second.is_held, slots.available, slots.waiting) == (True, False, 0, 1)
    await rt.run(waiting[0].join())
    first.release()
    await rt.run(waiting[1].join())
    assert (second.is_held, slots.waiting) == (True, 0)


@pytest.mark.spec("U9")
async def test_a_slot_is_given_back_once(rt: fb.Runtime) -> None:
    slots = Slots(2)
    held, never = slots.slot(), slots.slot()
    await rt.run(held.acquire(1))

    for slot in (held, held, never, never):
        slot.release()

    assert slots.available == 2


@pytest.mark.spec("U9")
async def test_who_gives_up_waiting_leaves_the_line(rt: fb.Runtime) -> None:
    slots = Slots(1)
    held, waiter = slots.slot(), slots.slot()
    await rt.run(held.acquire(1))
    fiber = rt.run_fork(waiter.acquire(1)).ignore_failure()

    await rt.run(fiber.interrupt())
    waiter.release()
    held.release()

    assert (slots.available, slots.waiting, waiter.is_held) == (1, 0, False)
