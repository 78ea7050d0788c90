"""The wait for what a stop has begun: bounded by its grace, and by nothing else."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

import fibers as fb
from fibers.testing import TestClock
from streamengine.abandoned import ended_within

GRACE_SECONDS = 5.0


@pytest.mark.parametrize("hangs", [False, True])
def test_the_end_of_the_loop_neither_cuts_a_grace_nor_takes_its_bound(*, hangs: bool) -> None:
    """A stop would go on, and tell of the end, before its row is on disk."""
    done, told = list[str](), list[tuple[list[str], bool]]()

    async def end_a_loop() -> None:
        clock, at_work, go_on = TestClock(), asyncio.Event(), asyncio.Event()

        @fb.effect
        async def work() -> None:
            at_work.set()
            await go_on.wait()
            done.append("work")

        @fb.effect
        async def wait() -> None:
            fiber = fb.run_fork(work().uninterruptible())
            exit_ = await ended_within(fiber, clock, GRACE_SECONDS)
            told.append((list(done), exit_ is not None))

        async def cancelled_with_the_rest() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                for _ in range(20):
                    await asyncio.sleep(0)
                if hangs:
                    await clock.adjust(GRACE_SECONDS)
                go_on.set()

        fb.run_fork(wait().uninterruptible())
        task = asyncio.create_task(cancelled_with_the_rest())
        await at_work.wait()
        assert not task.done()

    asyncio.run(end_a_loop())

    assert told == [([], False) if hangs else (["work"], True)]
    assert done == ["work"]


@pytest.mark.parametrize(("ms", "grace_seconds"), [(137, 5.0), (262, 5.0), (264, 0.3), (0, 5.0)])
async def test_the_rounding_of_a_clock_makes_no_grace_endless(
    ms: int, grace_seconds: float
) -> None:
    """A test's clock stands still: a wait for a part of a nanosecond would be tried for ever."""
    clock = TestClock()
    await clock.adjust(ms / 1000)
    hanging = fb.run_fork(fb.Effect.never())
    waiting = asyncio.ensure_future(ended_within(hanging, clock, grace_seconds))
    await asyncio.sleep(0)
    assert not waiting.done()

    await clock.adjust(grace_seconds)

    assert waiting.done()
    assert await waiting is None
    hanging.interrupt_unsafe()


@pytest.mark.timeout(20)
async def test_a_clock_that_breaks_ends_a_wait_and_holds_no_loop() -> None:
    """Tried anew at once and for ever, it would leave nobody else a turn."""

    class Broken:
        def now(self) -> float:
            return 0.0

        def sleep(self, d: fb.Duration) -> fb.Effect[None]:
            return fb.Effect.die(RuntimeError("the clock is broken"))

    hanging = fb.run_fork(fb.Effect.never())
    with capture_logs() as logs:
        assert await ended_within(hanging, Broken(), GRACE_SECONDS) is None

    assert [log["error"] for log in logs] == ["the clock is broken"]
    hanging.interrupt_unsafe()
