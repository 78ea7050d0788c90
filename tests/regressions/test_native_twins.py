"""Where the compiled twin and the pure modules once differed, and random programs to find more."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import fibers as fb
from fibers import Effect
from tools import native

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = 40


def _told(arguments: Sequence[str], *, pure: bool) -> list[str]:
    sources = Path(fb.__file__).resolve().parents[1]
    environment = {
        **os.environ,
        "FIBERS_PURE": "1" if pure else "0",
        "PYTHONHASHSEED": "0",
        "PYTHONPATH": os.pathsep.join([str(sources), str(ROOT)]),
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.regressions.twin_programs", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which(native.compiler()[0]) is None, reason="no C compiler: the twins stay uncompared"
)
@pytest.mark.skipif(sys.version_info >= (3, 14), reason="the twin is for 3.11 to 3.13")
def test_random_programs_say_the_same_with_the_twin_and_without(tmp_path: Path) -> None:
    """Every log, exit, count of steps; `python -m tests.regressions.twin_programs` runs more."""
    compiled = native.build(tmp_path, strict=True)

    pure = _told(["0", str(PROGRAMS)], pure=True)
    quick = _told(["0", str(PROGRAMS), str(compiled)], pure=False)

    assert len(pure) == PROGRAMS
    assert quick == pure


async def test_an_interrupt_asked_for_by_what_then_raises_joins_the_defect() -> None:
    """WI2: it lands right after the primitive, however that ended."""
    seen: list[type[BaseException]] = []

    def ask_and_raise() -> None:
        me = fb.current_fiber()
        assert me is not None
        me.interrupt_unsafe(by=7)
        raise ValueError("late")

    async def body() -> None:
        try:
            await Effect.sync(ask_and_raise)
        except BaseException as exc:
            seen.append(type(exc))
            raise

    with_body = await fb.run_fork(Effect.promise(body)).exit()
    alone = await fb.run_fork(Effect.sync(ask_and_raise)).exit()

    assert seen == [asyncio.CancelledError]
    for exit_ in (with_body, alone):
        assert [type(r) for r in exit_.failure().reasons] == [fb.Die, fb.Interrupt]


async def test_wait_for_in_a_plain_task_interrupts_its_fiber_when_it_is_cancelled() -> None:
    """PD11: wait_for takes a fiber as it takes a task, inside a fiber and outside."""
    fiber = fb.run_fork(Effect.never())
    waiting = asyncio.ensure_future(asyncio.wait_for(fiber, None))
    await asyncio.sleep(0)
    waiting.cancel()

    with pytest.raises(asyncio.CancelledError):
        await waiting

    assert fiber.cancelled()


async def test_wait_for_inside_a_fiber_interrupts_its_fiber_too() -> None:
    """PD11: also where 3.11's awaits it directly, without a timeout."""
    fiber = fb.run_fork(Effect.never())

    async def body() -> None:
        await asyncio.wait_for(fiber, None)

    waiting = fb.run_fork(Effect.promise(body))
    await asyncio.sleep(0)
    await waiting.interrupt()

    assert fiber.cancelled()


def test_run_sync_may_call_what_runs_a_loop_of_its_own() -> None:
    """PD12, PD15: what that loop runs is in no fiber; afterwards the caller's fiber is back."""

    async def main() -> tuple[int, int, object]:
        fiber = fb.run_fork(Effect.yield_now().map(lambda _: 5))
        return await Effect.succeed(3), await fiber, fb.current_fiber()

    def call() -> tuple[Any, fb.Fiber[Any, Any] | None]:
        return asyncio.run(main()), fb.current_fiber()

    told, after = fb.run_sync(Effect.sync(call))

    assert told == (3, 5, None)
    assert after is not None


class _Meddling:
    """A callback of somebody else's on the future, compared when the fiber takes its own back."""

    def __init__(self, meddle: Any) -> None:
        self.meddle = meddle

    def __call__(self, _future: object) -> None: ...

    def __eq__(self, other: object) -> bool:
        meddle, self.meddle = self.meddle, None
        if meddle is not None:
            meddle()
        return False

    def __hash__(self) -> int:
        return id(self)


def _waiting_on(future: asyncio.Future[None]) -> fb.Fiber[None, Any]:
    """As its owner: one that only waits for somebody's future leaves it a turn later."""

    async def body() -> None:
        await future

    return fb.run_fork(Effect.promise(body))


async def test_an_interrupt_in_the_middle_of_an_interrupt_joins_it() -> None:
    """IN10: the fiber unwinds once, with both reasons."""
    future = asyncio.get_running_loop().create_future()
    future.add_done_callback(_Meddling(lambda: fiber.interrupt_unsafe(by=8)))
    fiber: fb.Fiber[None, Any] = _waiting_on(future)

    fiber.interrupt_unsafe(by=7)
    exit_ = await fiber.exit()

    assert exit_.failure().reasons == (fb.Interrupt(7), fb.Interrupt(8))


async def test_an_interrupt_that_could_not_stop_the_waiting_can_be_asked_for_again() -> None:
    """The error is the caller's; the fiber waits on, and is not lost."""

    def fail() -> None:
        raise ValueError("not comparable")

    future = asyncio.get_running_loop().create_future()
    future.add_done_callback(_Meddling(fail))
    fiber = _waiting_on(future)

    with pytest.raises(ValueError, match="not comparable"):
        fiber.interrupt_unsafe(by=7)
    assert fiber.poll() is None
    fiber.interrupt_unsafe(by=8)

    assert fiber.cancelled()
