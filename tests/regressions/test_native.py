"""The compiled twin and the pure modules: one behaviour, whichever of the two runs this."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import subprocess
import sys
import weakref
from typing import TYPE_CHECKING, Any

import pytest

import fibers as fb
from fibers import Effect
from fibers.loop import room, states
from fibers.loop.native import speed
from fibers.loop.run_loop import FiberCore
from tools import native

if TYPE_CHECKING:
    from pathlib import Path

built = pytest.mark.skipif(speed is None, reason="`make native` has not been run, or FIBERS_PURE")


@built
def test_the_twin_was_given_all_that_it_needs() -> None:
    """A name that nobody hands over would be a crash at its first use."""
    assert speed.missing() == []


@built
def test_the_twin_has_the_same_limits() -> None:
    """Each number stands in two places."""
    assert speed.OP_BUDGET_PRIMITIVES == states.OP_BUDGET_PRIMITIVES
    assert speed.SHALLOW_CALLS == states.SHALLOW_CALLS
    assert speed.ROOM_CALLS == room.ROOM_CALLS
    assert speed.MORE_ROOM_CALLS == room.MORE_ROOM_CALLS


@built
def test_the_twin_is_in_use() -> None:
    """What has a twin is no Python function any more."""
    assert FiberCore._drive is speed.Fiber._drive
    assert vars(speed.Effect)["__await__"] is getattr(fb.Effect, "__await__")  # noqa: B009  # its type is unknown


async def test_an_inner_task_that_outlives_its_fiber_is_still_that_fiber() -> None:
    """PD11: by == and hash, also as the key of a dict, when the fiber has ended and gone."""

    async def own_task() -> Any:
        return asyncio.current_task()

    fiber = fb.run_fork(Effect.promise(own_task))
    task = fiber.result()
    known = {task: "here"}

    assert task == fiber
    assert hash(task) == hash(fiber)
    assert known[fiber] == "here"
    assert task.done()


async def test_a_value_that_holds_the_inner_task_makes_no_cycle() -> None:
    """PD13: the ended fiber holds the value, the value holds the task, the task lets go."""

    async def own_task() -> Any:
        return [asyncio.current_task()]

    gc.collect()
    gc.disable()
    try:
        fiber = fb.run_fork(Effect.promise(own_task))
        gone = weakref.ref(fiber)
        del fiber
        assert gone() is None
    finally:
        gc.enable()


async def test_joins_of_ended_fibers_give_the_loop_turns() -> None:
    """WI9: a loop of joins that have their value at once is no way to keep the loop."""
    turns: list[int] = []

    async def joining() -> None:
        ended = await Effect.succeed(1).fork_detach(start_immediately=True)
        asyncio.get_running_loop().call_soon(turns.append, 1)
        for _ in range(2 * states.OP_BUDGET_PRIMITIVES + 1):
            await ended

    await fb.run_fork(Effect.promise(joining))

    assert turns == [1]


async def test_an_interrupt_lands_at_the_join_of_an_ended_fiber() -> None:
    """WI2, IN21: the join is the next primitive, whether or not it has its value already."""
    log: list[str] = []

    async def body() -> None:
        ended = await Effect.succeed(1).fork_detach(start_immediately=True)
        me = fb.current_fiber()
        assert me is not None
        me.interrupt_unsafe(by=7)
        log.append("same segment")
        await ended
        log.append("not reached")

    fiber = fb.run_fork(Effect.promise(body))
    await fiber.exit()

    assert log == ["same segment"]
    assert fiber.cancelled()


async def test_a_body_that_lets_its_interrupt_pass_may_open_a_region_on_the_way() -> None:
    """PD2, PD17: the record of what was thrown is made late, and is whole then."""
    log: list[str] = []

    async def body() -> None:
        try:
            await Effect.never()
        finally:
            with fb.uninterruptible():
                await Effect.yield_now()
                log.append("cleaned")
            await Effect.yield_now()
            log.append("and on")

    fiber = fb.run_fork(Effect.promise(body))
    fiber.interrupt_unsafe(by=7)
    exit_ = await fiber.exit()

    assert log == ["cleaned", "and on"]
    assert exit_ == fb.run_sync(Effect.fail_cause(fb.Cause([fb.Interrupt(7)])).exit())


SMOKE = """
import asyncio, importlib.util, sys
spec = importlib.util.spec_from_file_location("fibers._speed", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
sys.modules["fibers._speed"] = module
import fibers as fb
from fibers.loop.native import speed
assert speed is module, speed
assert speed.missing() == [], speed.missing()

@fb.effect
async def child(n):
    await asyncio.sleep(0)
    return n

@fb.effect
async def main():
    fibers = [await child(n).fork_child() for n in range(3)]
    never = await fb.Effect.never().fork_child(start_immediately=True)
    await never.interrupt()
    return [await fiber for fiber in fibers]

print(fb.run(main()))
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which(native.compiler()[0]) is None, reason="no C compiler here")
@pytest.mark.skipif(sys.version_info >= (3, 14), reason="the twin is for 3.11 to 3.13")
def test_it_compiles_and_runs(tmp_path: Path) -> None:
    """Without a warning: they are errors."""
    target = native.build(tmp_path)
    environment = {**os.environ, "FIBERS_PURE": "0"}

    done = subprocess.run(
        [sys.executable, "-c", SMOKE, str(target)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=50,
    )

    assert (done.stdout, done.stderr, done.returncode) == ("[0, 1, 2]\n", "", 0)
