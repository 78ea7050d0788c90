"""Probes PI2: Latch, a gate that opens and closes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from returns.result import Success

import fibers as fb
from fibers import Effect, Fiber, Latch
from tests.probes.kit_f import interrupted, note, turns


def passer(latch: Latch, log: list[str], name: str) -> Fiber[None, Any]:
    """A fiber that writes its name once the latch lets it pass."""
    return fb.run_fork(latch.await_().flat_map(lambda _: note(log, name)))


@pytest.mark.spec("PI2")
async def test_a_closed_latch_blocks_and_an_open_one_lets_pass() -> None:
    """A latch begins closed unless told otherwise."""
    log: list[str] = []
    closed = passer(Latch(), log, "closed")
    passed = passer(Latch(open=True), log, "open")

    assert closed.poll() is None
    assert passed.poll() == Success(None)
    assert log == ["open"]
    closed.interrupt_unsafe()


@pytest.mark.spec("PI2")
async def test_open_wakes_all_in_order_after_the_opener() -> None:
    """Through the ready queue; who comes later passes at once."""
    log: list[str] = []
    latch = Latch()
    for name in ("w1", "w2", "w3"):
        passer(latch, log, name)

    opened = latch.open_unsafe()
    passer(latch, log, "newcomer")
    log.append("opener")
    await turns()

    assert opened
    assert log == ["newcomer", "opener", "w1", "w2", "w3"]


@pytest.mark.spec("PI2")
async def test_release_wakes_the_current_waiters_only() -> None:
    """Who comes after the call waits, also where the woken ones had no step yet."""
    log: list[str] = []
    latch = Latch()
    passer(latch, log, "w1")

    released = await latch.release()
    late = passer(latch, log, "late")
    await turns()

    assert released
    assert log == ["w1"]
    assert late.poll() is None
    assert not latch.is_open
    late.interrupt_unsafe()


@pytest.mark.spec("PI2")
async def test_a_close_after_open_blocks_newcomers_but_not_those_let_go() -> None:
    """Who was let go passes, whatever the gate is by then."""
    log: list[str] = []
    latch = Latch()
    passer(latch, log, "w1")

    latch.open_unsafe()
    closed = latch.close_unsafe()
    late = passer(latch, log, "late")
    await turns()

    assert closed
    assert log == ["w1"]
    assert late.poll() is None
    late.interrupt_unsafe()


@pytest.mark.spec("PI2")
async def test_each_operation_says_whether_the_gate_moved() -> None:
    """release says that the gate was closed, whoever waited."""
    latch = Latch()

    answers = [
        await latch.close(),
        await latch.release(),
        await latch.open(),
        latch.is_open,
        await latch.open(),
        await latch.release(),
        await latch.close(),
        latch.is_open,
        latch.release_unsafe(),
    ]

    assert answers == [False, True, True, True, False, False, True, False, True]


@pytest.mark.spec("PI2")
async def test_when_open_runs_an_effect_behind_the_gate() -> None:
    """The effect's value is the value."""
    log: list[str] = []
    latch = Latch()
    fiber = fb.run_fork(latch.when_open(note(log, "behind").map(lambda _: 5)))

    before = list(log)
    await latch.open()
    await turns()

    assert before == []
    assert log == ["behind"]
    assert fiber.poll() == Success(5)


@pytest.mark.spec("PI2")
async def test_an_interrupted_waiter_leaves_at_once() -> None:
    """Ten thousand of them leave nothing."""
    latch = Latch()
    waiters = [fb.run_fork(latch.await_()) for _ in range(10_000)]
    waiting = len(latch._line)

    for waiter in waiters:
        waiter.interrupt_unsafe()

    assert waiting == 10_000
    assert not latch._line
    assert waiters[0].poll() == interrupted(None)


@pytest.mark.spec("PI2")
async def test_a_waiter_interrupted_in_the_tick_of_open_ends_interrupted() -> None:
    """The others pass; nothing stays set aside."""
    log: list[str] = []
    latch = Latch()
    first = passer(latch, log, "first")
    passer(latch, log, "second")

    latch.open_unsafe()
    first.interrupt_unsafe(by=7)
    await turns()

    assert first.poll() == interrupted(7)
    assert log == ["second"]
    assert latch._line.set_aside == 0


@pytest.mark.spec("PI2")
@pytest.mark.parametrize("again", ["open", "close", "await"])
async def test_a_woken_waiter_may_use_the_latch_again(again: str) -> None:
    """Whatever it does in its first step, everybody who was let go passes."""
    log: list[str] = []
    latch = Latch()

    @fb.effect
    async def reenter() -> None:
        await latch
        log.append("first")
        if again == "open":
            assert not await latch.open()
        elif again == "close":
            assert await latch.close()
        else:
            await latch
        log.append("again")

    fiber = fb.run_fork(reenter())
    passer(latch, log, "second")
    latch.open_unsafe()
    await turns()

    assert log == ["first", "again", "second"]
    assert fiber.poll() == Success(None)
    assert latch.is_open == (again != "close")


@pytest.mark.spec("PI2")
async def test_a_released_waiter_that_waits_again_is_a_newcomer() -> None:
    """One release is one pass."""
    log: list[str] = []
    latch = Latch()
    fiber = fb.run_fork(latch.await_().flat_map(lambda _: note(log, "pass")).forever())

    for _ in range(3):
        latch.release_unsafe()
        await turns()

    assert log == ["pass"] * 3
    fiber.interrupt_unsafe()


@pytest.mark.spec("PI2", "PD12")
async def test_a_plain_task_waits_at_the_gate_like_a_fiber() -> None:
    """It is woken, and its cancellation leaves no waiter behind."""
    latch = Latch()

    async def wait() -> str:
        await latch
        return "passed"

    woken = asyncio.create_task(wait())
    cancelled = asyncio.create_task(wait())
    await turns()
    cancelled.cancel()
    await turns()
    waiting = len(latch._line)
    latch.open_unsafe()

    assert waiting == 1
    assert await woken == "passed"
    assert cancelled.cancelled()


@pytest.mark.spec("PI2")
async def test_a_masked_waiter_passes_before_its_interrupt_lands() -> None:
    """The wait goes on inside the mask."""
    log: list[str] = []
    latch = Latch()
    masked: Effect[None] = latch.when_open(note(log, "passed")).uninterruptible()
    fiber = fb.run_fork(masked)

    fiber.interrupt_unsafe(by=7)
    latch.open_unsafe()
    await turns()

    assert log == ["passed"]
    assert fiber.poll() == interrupted(7)
