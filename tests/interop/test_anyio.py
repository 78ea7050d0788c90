"""Effects inside anyio's groups and scopes, and anyio inside fibers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Literal

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread
import pytest
from returns.result import Failure, Success

import fibers as fb
from fibers import Effect
from tests.loops import LOOP_KINDS, every_loop
from tests.probes.kit_f import (
    Boom,
    endless,
    inner_task,
    interrupted,
    note,
    turns,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


def slow_farewell(log: list[str]) -> Effect[None, Any]:
    """Waits for ever; its finalizer takes some turns of the loop."""
    last = Effect.promise(lambda: turns(3)).flat_map(lambda _: note(log, "finalized"))
    return endless().on_interrupt(lambda _: last)


# ---- effects in anyio's tasks


@pytest.mark.spec("SO6", "AT21")
@pytest.mark.parametrize("strategy", ["sequential", "parallel"])
@every_loop
async def test_a_task_of_a_group_may_close_the_scope_of_the_fiber_that_waits_for_it(
    strategy: Literal["sequential", "parallel"],
) -> None:
    """The fiber is signalled and not awaited, as where a TaskGroup of asyncio's stands between."""
    log = list[str]()
    fibers = fb.Scope(strategy)

    async def close_it() -> None:
        await fibers.close()
        log.append("close returned")

    @fb.effect
    async def body() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(close_it)

    fiber = fibers.fork(body())
    async with asyncio.timeout(5):
        exit = await fiber.exit()

    assert isinstance(exit, Failure)
    assert exit.failure().has_interrupts_only
    assert log == ["close returned"]


@pytest.mark.spec("PD12", "AT21")
@pytest.mark.parametrize("how", ["move_on_after", "fail_after", "cancel", "sibling fails"])
@every_loop
async def test_a_cancel_of_anyios_interrupts_an_awaited_effect_and_waits_for_it(how: str) -> None:
    """The scope is left when the effect's finalizers are done, and it knows its own cancel."""
    log = list[str]()

    async def fails() -> None:
        raise Boom

    async def waits() -> None:
        await slow_farewell(log)

    async def group_with_a_failing_task() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(waits)
            await anyio.lowlevel.checkpoint()
            group.start_soon(fails)

    if how == "move_on_after":
        with anyio.move_on_after(0.001) as scope:
            await slow_farewell(log)
        assert scope.cancelled_caught
    elif how == "fail_after":
        with pytest.raises(TimeoutError), anyio.fail_after(0.001):
            await slow_farewell(log)
    elif how == "cancel":
        async with anyio.create_task_group() as group:
            group.start_soon(waits)
            await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()
    else:
        with pytest.raises(ExceptionGroup):
            await group_with_a_failing_task()
    await anyio.lowlevel.checkpoint()

    assert log == ["finalized"]


@pytest.mark.spec("PD12")
@every_loop
async def test_an_effect_in_a_shielded_scope_is_not_interrupted() -> None:
    """The outer scope's cancel waits for the shield."""
    log = list[str]()
    with anyio.CancelScope() as outer:
        outer.cancel()
        with anyio.CancelScope(shield=True):
            await fb.sleep(0.001).flat_map(lambda _: note(log, "slept"))
        await fb.sleep(60)
        log.append("not cancelled")

    assert log == ["slept"]


@pytest.mark.spec("PD12")
@every_loop
async def test_a_masked_effect_outlasts_a_cancel_of_anyios() -> None:
    """anyio asks again in each turn of the loop; the mask is left at its own end."""
    log = list[str]()
    with anyio.move_on_after(0.001) as scope:
        await fb.sleep(0.01).flat_map(lambda _: note(log, "slept")).uninterruptible()
        await anyio.lowlevel.checkpoint()
        log.append("not cancelled")

    assert scope.cancelled_caught
    assert log == ["slept"]


@pytest.mark.spec("EX8")
@pytest.mark.parametrize("kind", LOOP_KINDS)
def test_anyio_run_runs_effects(kind: str) -> None:
    """As its main coroutine's awaits."""

    async def main() -> int:
        return await fb.sleep(0.001).map(lambda _: 5)

    assert anyio.run(main, backend_options={"use_uvloop": kind == "uvloop"}) == 5


@pytest.mark.spec("PD12")
@every_loop
async def test_a_thread_of_anyios_calls_back_into_effects() -> None:
    """from_thread.run takes a function that returns an awaitable."""

    async def gives() -> int:
        return await Effect.succeed(5)

    async def task() -> int:
        return await anyio.to_thread.run_sync(lambda: anyio.from_thread.run(gives))

    assert await task() == 5
    assert await fb.run_fork(Effect.promise(task)) == 5


@pytest.mark.spec("PD12")
def test_a_portal_of_anyios_runs_effects() -> None:
    """From a thread without a loop: what Starlette's test client does."""

    async def gives(n: int) -> int:
        return await Effect.succeed(n)

    with anyio.from_thread.start_blocking_portal() as portal:
        assert [portal.call(gives, n) for n in range(3)] == [0, 1, 2]


# ---- anyio in fibers


async def in_a_group(log: list[str]) -> None:
    async def child() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            log.append("child ended")

    async with anyio.create_task_group() as group:
        group.start_soon(child)
        await anyio.sleep_forever()


async def in_a_scope(log: list[str]) -> None:
    try:
        with anyio.CancelScope():
            await anyio.sleep_forever()
    finally:
        log.append("child ended")


async def in_a_group_of_effects(log: list[str]) -> None:
    async def child() -> None:
        await endless().on_interrupt(lambda _: note(log, "child ended"))

    async with anyio.create_task_group() as group:
        group.start_soon(child)
        await endless()


BODIES: dict[str, Callable[[list[str]], Awaitable[None]]] = {
    f.__name__: f for f in (in_a_group, in_a_scope, in_a_group_of_effects)
}


@pytest.mark.spec("AT21", "PD2")
@pytest.mark.parametrize("ask", ["interrupt_unsafe", "cancel"])
@pytest.mark.parametrize("body", BODIES)
@every_loop
async def test_an_interrupt_of_a_fiber_ends_its_anyio_groups(body: str, ask: str) -> None:
    """The group cancels its tasks and lets the interrupt through; no group wraps it."""
    log = list[str]()
    fiber = fb.run_fork(Effect.promise(lambda: BODIES[body](log)))
    await turns()
    getattr(fiber, ask)()
    exit = await fiber.exit()

    assert exit == interrupted(None)
    assert log == ["child ended"]


@pytest.mark.spec("AT21", "PD11")
@pytest.mark.parametrize("masked", [False, True])
@every_loop
async def test_a_cancelled_scope_in_a_fiber_leaves_nothing_pending(masked: bool) -> None:
    """Behind it cancelling() is 0 and the next awaits are not cancelled."""
    log = list[str]()

    async def body() -> None:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await anyio.sleep_forever()
        await turns(3)
        log.append(f"caught {scope.cancelled_caught}, cancelling {inner_task().cancelling()}")

    effect = Effect.promise(body)
    exit = await fb.run_fork(effect.uninterruptible() if masked else effect).exit()

    assert exit == Success(None)
    assert log == ["caught True, cancelling 0"]


@pytest.mark.spec("PD11", "AT22")
@pytest.mark.parametrize("first", ["scope", "fiber"])
@every_loop
async def test_a_scope_and_its_fiber_cancelled_in_one_tick_end_the_fiber(first: str) -> None:
    """The scope takes its own cancel, the interrupt is the exit."""
    scopes, log = list[anyio.CancelScope](), list[str]()

    async def body() -> None:
        with anyio.CancelScope() as scope:
            scopes.append(scope)
            await anyio.sleep_forever()
        await asyncio.sleep(0)
        log.append("went on")

    fiber = fb.run_fork(Effect.promise(body))
    await turns(2)
    steps: list[Callable[[], object]] = [lambda: scopes[0].cancel(), fiber.interrupt_unsafe]
    for step in steps if first == "scope" else reversed(steps):
        step()
    exit = await fiber.exit()

    assert exit == interrupted(None)
    assert log == []


@pytest.mark.spec("PD11")
@every_loop
async def test_a_scope_around_a_mask_waits_for_the_masks_end() -> None:
    """What was opened above a mask can't reach what runs under it."""
    log = list[str]()

    async def body() -> None:
        with anyio.move_on_after(0.001) as scope:
            await fb.sleep(0.01).flat_map(lambda _: note(log, "masked done")).uninterruptible()
            await anyio.lowlevel.checkpoint()
            log.append("not cancelled")
        log.append(f"caught {scope.cancelled_caught}")

    await fb.run_fork(Effect.promise(body))

    assert log == ["masked done", "caught True"]
