"""Probes PD12: an effect awaited in a plain asyncio task."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Never

import pytest

import fibers as fb
from fibers import Effect, FiberInterrupted
from tests.probes.kit_f import (
    Boom,
    endless,
    expire,
    inner_task,
    is_face_of,
    new_gate,
    note,
    note_start_and_end,
    parked,
    running_fiber,
    turns,
    wait_for,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from fibers.testing import TestClock


# ---- PD12: an effect awaited in a plain task


@pytest.mark.spec("PD12")
async def test_an_effect_awaited_in_a_task_starts_at_once() -> None:
    """Before the loop gets a turn."""
    log = list[str]()
    asyncio.get_running_loop().call_soon(log.append, "loop")

    await note(log, "effect").flat_map(lambda _: Effect.yield_now())

    assert log == ["effect", "loop"]


@pytest.mark.spec("PD12")
async def test_an_effect_awaited_in_a_task_runs_in_a_fiber() -> None:
    """A root fiber, which has an id."""
    outside = fb.current_fiber()

    inside = await Effect.sync(fb.current_fiber)

    assert outside is None
    assert inside is not None


@pytest.mark.spec("PD12")
async def test_context_variables_set_by_an_awaited_effect_are_seen_afterwards() -> None:
    """As with a coroutine that is awaited."""
    variable = ContextVar("variable", default="unset")

    @fb.effect
    async def body() -> None:
        await Effect.yield_now()
        variable.set("set in the effect")

    await body()

    assert variable.get() == "set in the effect"


@pytest.mark.spec("PD12")
async def test_context_variables_set_by_a_failed_effect_are_seen_afterwards() -> None:
    """Also where the await raises."""
    variable = ContextVar("variable", default="unset")

    @fb.effect(raises=Boom)
    async def body() -> None:
        await Effect.yield_now()
        variable.set("set in the effect")
        raise Boom

    with pytest.raises(Boom):
        await body()

    assert variable.get() == "set in the effect"


@pytest.mark.spec("PD12")
async def test_an_awaited_effect_sees_the_context_variables_of_the_task() -> None:
    """As with a coroutine."""
    variable = ContextVar("variable", default="unset")
    variable.set("set in the task")

    assert await Effect.sync(variable.get) == "set in the task"


@pytest.mark.spec("PD12")
async def test_inside_an_awaited_effect_the_current_task_is_the_fibers() -> None:
    """Not the task that awaits."""
    outer = inner_task()

    @fb.effect
    async def body() -> tuple[bool, bool]:
        return is_face_of(inner_task(), running_fiber()), inner_task() == outer

    assert await body() == (True, False)


@pytest.mark.spec("PD12")
async def test_behind_an_awaited_effect_the_current_task_is_the_outer_one_again() -> None:
    """Also when the effect had suspended."""
    outer = inner_task()

    await Effect.yield_now()

    assert inner_task() is outer


@pytest.mark.spec("PD12")
async def test_cancelling_the_task_waits_for_the_finalizers_of_the_effect() -> None:
    """Only then CancelledError is raised in the task."""
    log, gate = list[str](), new_gate()
    cleanup = note(log, "finalizer start").flat_map(lambda _: wait_for(gate))
    work = endless().on_interrupt(lambda _: cleanup.tap(lambda _: note(log, "finalizer end")))

    async def main() -> None:
        try:
            await work
        except asyncio.CancelledError:
            log.append("cancelled")
            raise

    task = asyncio.create_task(main())
    await turns()
    task.cancel()
    await turns()
    before = log.copy()
    gate.set_result(1)
    with pytest.raises(asyncio.CancelledError):
        await task

    assert before == ["finalizer start"]
    assert log == ["finalizer start", "finalizer end", "cancelled"]


@pytest.mark.spec("PD12")
async def test_cancelling_the_task_is_not_swallowed_by_a_body_that_swallows_it() -> None:
    """The effect ends with a value all the same: the task is cancelled."""

    @fb.effect
    async def stubborn() -> int:
        try:
            await endless()
        except asyncio.CancelledError:
            pass
        return 5

    async def main() -> int:
        return await stubborn()

    task = asyncio.create_task(main())
    await turns()
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.spec("PD12")
async def test_cancelling_the_task_is_not_swallowed_by_a_masked_effect() -> None:
    """The masked effect ends in peace; then the CancelledError is raised."""
    log, gate = list[str](), new_gate()

    async def main() -> None:
        await wait_for(gate).flat_map(lambda _: note(log, "masked done")).uninterruptible()
        log.append("behind")

    task = asyncio.create_task(main())
    await turns()
    task.cancel()
    await turns()
    gate.set_result(1)
    with pytest.raises(asyncio.CancelledError):
        await task

    assert log == ["masked done"]


@pytest.mark.spec("PD12")
async def test_cancelling_the_task_is_not_swallowed_when_the_finalizer_fails() -> None:
    """The defect does not hide it."""

    async def main() -> None:
        await endless().on_interrupt(lambda _: Effect.die(Boom()))

    task = asyncio.create_task(main())
    await turns()
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.spec("PD12")
async def test_a_cancel_in_the_tick_of_the_effects_end_is_not_swallowed() -> None:
    """The value is there, the task was cancelled before it could take it."""
    gate = new_gate()

    async def main() -> int:
        return await wait_for(gate)

    task = asyncio.create_task(main())
    await turns()
    gate.set_result(1)
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.spec("PD12", "AT13")
async def test_a_cancel_that_comes_before_the_task_hears_of_the_effects_end_is_not_swallowed() -> (
    None
):
    """The fiber has ended well by then."""
    resumes: list[Callable[[Effect[int, Never]], None]] = []

    async def main() -> int:
        return await Effect.callback(resumes.append)

    task = asyncio.create_task(main())
    await turns()
    resumes[0](Effect.succeed(1))
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.spec("PD12")
async def test_cancelling_of_the_task_counts_its_own_cancel_only() -> None:
    """One request, one count, and one uncancel() gives it back."""
    seen = list[int]()

    async def main() -> None:
        try:
            await endless()
        except asyncio.CancelledError:
            task = inner_task()
            seen.extend([task.cancelling(), task.uncancel()])

    task = asyncio.create_task(main())
    await turns()
    task.cancel()
    await task

    assert seen == [1, 0]


@pytest.mark.spec("PD12")
async def test_a_timeout_around_an_awaited_effect_in_a_task_is_a_timeout_error() -> None:
    """asyncio.timeout sees the CancelledError that it asked for."""
    log, limits = list[str](), list[asyncio.Timeout]()

    async def main() -> None:
        async with asyncio.timeout(None) as limit:
            limits.append(limit)
            await parked(log, "interrupted")

    task = asyncio.create_task(main())
    await turns()
    expire(limits[0])
    with pytest.raises(TimeoutError):
        await task

    assert log == ["interrupted"]


@pytest.mark.spec("PD12")
async def test_a_caught_cancel_leaves_the_task_usable() -> None:
    """The next effect runs as usual."""
    task_of_main = list[asyncio.Task[Any]]()

    async def main() -> int:
        task_of_main.append(inner_task())
        try:
            await endless()
        except asyncio.CancelledError:
            inner_task().uncancel()
        return await Effect.yield_now().map(lambda _: 5)

    task = asyncio.create_task(main())
    await turns()
    task_of_main[0].cancel()

    assert await task == 5


@pytest.mark.spec("PD12", "PD14")
async def test_an_effect_that_interrupts_itself_raises_fiber_interrupted_in_a_task() -> None:
    """The task itself is not cancelled."""
    with pytest.raises(FiberInterrupted):
        await Effect.interrupt()

    assert inner_task().cancelling() == 0


@pytest.mark.spec("PD12", "PD5")
async def test_an_effect_that_fails_raises_the_very_object_in_a_task() -> None:
    """Unwrapped."""
    boom = Boom()

    with pytest.raises(Boom) as caught:
        await Effect.fail(boom)

    assert caught.value is boom


@pytest.mark.spec("PD12", "SU3")
async def test_an_awaited_effect_ends_after_its_children(clock: TestClock, rt: fb.Runtime) -> None:
    """The root fiber of a task supervises like any other."""
    log = list[str]()
    child = endless().on_interrupt(lambda _: note_start_and_end(log, "child", 1.0))

    @fb.effect
    async def body() -> int:
        await child.fork_child(start_immediately=True)
        return 5

    async def main() -> None:
        value = await rt.run(body())
        log.append(f"value {value}")

    task = asyncio.create_task(main())
    await turns()
    await rt.run(clock.adjust(1.0))
    await task

    assert log == ["child-start", "child-end", "value 5"]


@pytest.mark.spec("PD12")
async def test_an_awaited_effect_can_be_awaited_again() -> None:
    """An effect is a description; each await is a run of its own."""
    runs = list[int]()
    work: Effect[None, Never] = Effect.sync(lambda: runs.append(len(runs)))

    await work
    await work

    assert runs == [0, 1]


@pytest.mark.spec("PD12")
def test_a_plain_task_that_is_thrown_away_interrupts_its_fiber() -> None:
    """Closed by hand, or with its loop: nobody is left to wait, and nobody is told of a value."""
    log = list[str]()

    async def plain() -> None:
        await endless().on_interrupt(lambda _: note(log, "interrupted"))

    async def main() -> None:
        coro = plain()
        task = asyncio.ensure_future(coro)
        await turns(3)
        coro.close()
        log.append("closed")
        await turns(3)
        task.cancel()

    asyncio.run(main())

    assert log == ["interrupted", "closed"]
