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
from returns.primitives.exceptions import UnwrapFailedError

import fibers as fb
from fibers import Effect
from fibers.loop import room, states
from fibers.loop.native import speed
from fibers.loop.run_loop import FiberCore
from fibers.ops.body import BodyOp
from fibers.ops.fork import ForkOp
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


async def test_one_frame_is_a_stack_as_two_are() -> None:
    """The twin makes no list for one body; who looks finds one all the same, and it stays right."""
    ready = asyncio.get_running_loop().create_future()

    @fb.effect
    async def inner() -> int:
        await ready
        return 1

    @fb.effect
    async def outer() -> int:
        return 1 + await inner()

    one, looked_at, two = (fb.run_fork(eff) for eff in (inner(), inner(), outer()))

    assert [len(fiber._stack) for fiber in (looked_at, two)] == [1, 2]
    assert looked_at.get_coro() is looked_at._stack[0]
    assert [f.f_code.co_name for f in two.get_stack()] == ["outer", "inner"]
    ready.set_result(None)
    assert [await one, await looked_at, await two] == [1, 1, 2]
    assert [list(fiber._stack) for fiber in (one, looked_at, two)] == [[], [], []]


async def test_an_interrupt_passes_one_frame_as_it_passes_two() -> None:
    """WI1: the body is taken off, whatever kept it."""
    log: list[str] = []

    @fb.effect
    async def inner() -> None:
        try:
            await Effect.never()
        finally:
            log.append("left")

    plain, looked_at = fb.run_fork(inner()), fb.run_fork(inner())
    assert len(looked_at._stack) == 1
    for fiber in (plain, looked_at):
        fiber.interrupt_unsafe(by=7)

    assert log == ["left", "left"]
    assert plain.cancelled()
    assert looked_at.cancelled()


async def test_an_edge_inside_a_fiber_has_its_services() -> None:
    """PD24: and one outside of any fiber has the default runtime's."""
    tag = fb.Tag[str]("greeting")

    @fb.effect
    async def caller() -> tuple[str, str]:
        scope = fb.Scope()
        by_run = fb.run_fork(tag).poll()
        by_scope = scope.fork(tag, start_immediately=True).poll()
        assert by_run is not None
        assert by_scope is not None
        return by_run.unwrap(), by_scope.unwrap()

    here = caller().provide_service(tag, "hello")

    assert fb.run_fork(here).result() == ("hello", "hello")
    outside = fb.run_fork(tag).ignore_failure().poll()
    assert outside is not None
    with pytest.raises(UnwrapFailedError):
        outside.unwrap()


async def test_the_exit_is_made_once() -> None:
    """FL1: each look gives the same object, of a success and of a failure."""
    for eff in (Effect.succeed(1), Effect.fail(ValueError("no"))):
        fiber = fb.run_fork(eff)

        assert fiber.poll() is not None
        assert fiber.poll() is fiber.poll()


def test_nodes_refuse_what_they_can_t_be_made_of() -> None:
    """The quick constructors leave all that is unusual to the careful one."""
    careless: list[tuple[Any, tuple[Any, ...]]] = [
        (BodyOp, (print, (), {})),
        (BodyOp, (print, (), {}, None, None)),
        (ForkOp, (None, 0, None, False, False)),
    ]
    for kind, given in careless:
        with pytest.raises(TypeError):
            kind(*given)


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
    target = native.build(tmp_path, strict=True)
    environment = {**os.environ, "FIBERS_PURE": "0"}

    done = subprocess.run(
        [sys.executable, "-c", SMOKE, str(target)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=50,
    )

    assert (done.stdout, done.stderr, done.returncode) == ("[0, 1, 2]\n", "", 0)
