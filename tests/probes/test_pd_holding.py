"""Probes PD13: what holds a live fiber, and what a finished one leaves behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from typing import TYPE_CHECKING, Literal, Never

import pytest

import fibers as fb
from fibers import Effect, Scope
from tests.probes.kit_f import (
    Boom,
    collector_off,
    endless,
    new_gate,
    turns,
    wait_for,
)

if TYPE_CHECKING:
    from collections.abc import Callable

# ---- PD13: what is held, and what is left


@pytest.mark.spec("PD13")
async def test_a_live_fiber_is_held_by_its_owner() -> None:
    """Nothing else refers to it or to what it waits on; the collector leaves it alone."""
    log, scope = list[str](), Scope()

    @fb.effect
    async def body() -> None:
        try:
            # Fiber, frame and future refer to each other only.
            await asyncio.get_running_loop().create_future()
        finally:
            log.append("finally")

    scope.fork(body(), start_immediately=True)
    gc.collect()
    before = log.copy()
    await scope.close()

    assert before == []
    assert log == ["finally"]


@pytest.mark.spec("PD13", "AT9")
async def test_a_fiber_of_run_fork_is_held_until_it_has_ended() -> None:
    """Without a handle, too."""
    log, gates = list[str](), list[weakref.ref[asyncio.Future[int]]]()

    @fb.effect
    async def body() -> None:
        gate: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        gates.append(weakref.ref(gate))
        await gate
        log.append("done")

    fb.run_fork(body())
    gc.collect()
    gate = gates[0]()
    assert gate is not None
    gate.set_result(1)
    await turns()

    assert log == ["done"]


class Payload:
    """Something to watch the end of."""


@pytest.mark.spec("PD13")
async def test_a_finished_fiber_goes_with_its_last_reference() -> None:
    """It leaves no cycle: no collector needed."""
    gate = new_gate()

    @fb.effect
    async def body() -> int:
        return await gate

    with collector_off():
        fiber = fb.run_fork(body())
        gate.set_result(1)
        await fiber
        await turns()
        gone = weakref.ref(fiber)
        del fiber

        assert gone() is None


@pytest.mark.spec("PD13", "SO6")
@pytest.mark.parametrize("strategy", ["sequential", "parallel"])
async def test_a_fiber_that_a_close_has_awaited_goes_with_its_last_reference(
    strategy: Literal["sequential", "parallel"],
) -> None:
    """Its finalizer takes a turn, so that the close waits; they forget each other."""
    with collector_off():
        scope = Scope(strategy)
        fiber = scope.fork(endless().ensuring(Effect.yield_now()), start_immediately=True)
        await scope.close()
        await turns()
        gone = weakref.ref(fiber)
        ended = fiber.done()
        del fiber

        assert ended
        assert gone() is None


@pytest.mark.spec("PD13", "AT17")
async def test_a_failed_fiber_goes_though_its_error_is_kept() -> None:
    """The error's traceback holds neither the fiber nor the run loop."""
    gate, boom = new_gate(), Boom()

    @fb.effect(raises=Boom)
    async def body() -> None:
        await gate
        raise boom

    with collector_off():
        fiber = fb.run_fork(body())
        gate.set_result(1)
        await fiber.exit()
        await turns()
        gone = weakref.ref(fiber)
        del fiber

        assert gone() is None


@pytest.mark.spec("PD13", "AT17")
async def test_a_fiber_that_failed_in_a_callback_goes_with_its_last_reference() -> None:
    """Its own outcome doesn't lead back to it, by the frames that called the callback."""
    with collector_off():
        fiber = fb.run_fork(Effect.yield_now().map(_raise)).ignore_failure()
        await turns()
        gone = weakref.ref(fiber)
        ended = fiber.done()
        del fiber

        assert ended
        assert gone() is None


def _raise(_: object) -> Never:
    raise Boom


@pytest.mark.spec("PD13")
async def test_an_interrupted_fiber_goes_with_its_last_reference() -> None:
    """What was thrown into its body holds nothing back."""

    @fb.effect
    async def body() -> None:
        try:
            await endless()
        finally:
            await asyncio.sleep(0)

    with collector_off():
        fiber = fb.run_fork(body())
        fiber.interrupt_unsafe(by=7)
        await fiber.exit()
        await turns()
        gone = weakref.ref(fiber)
        del fiber

        assert gone() is None


@pytest.mark.spec("PD13")
async def test_the_value_of_a_finished_fiber_goes_with_it() -> None:
    """Nothing else keeps it."""
    with collector_off():
        fiber = fb.run_fork(Effect.yield_now().map(lambda _: Payload()))
        gone = weakref.ref(await fiber)
        await turns()
        del fiber

        assert gone() is None


@pytest.mark.spec("PD13", "VF6")
async def test_finished_fibers_leave_no_finalizer_in_their_scope() -> None:
    """Those that suspended and those that did not."""
    scope, gate = Scope(), new_gate()
    kinds = [wait_for(gate), Effect.succeed(1)]
    fibers = [scope.fork(kinds[index % 2]) for index in range(50)]

    gate.set_result(1)
    for fiber in fibers:
        await fiber

    assert scope.finalizer_count == 0


@pytest.mark.spec("PD13")
async def test_a_finished_fiber_does_not_hold_the_services_of_its_run() -> None:
    """Whoever keeps it keeps its exit."""
    gate, tag = new_gate(), fb.Tag[Payload]("payload")

    async def forked() -> tuple[fb.Fiber[int, Never], weakref.ref[Payload]]:
        payload = Payload()
        work = wait_for(gate).fork_detach(start_immediately=True)
        return await work.provide_service(tag, payload), weakref.ref(payload)

    with collector_off():
        fiber, gone = await Effect.promise(forked)
        held = gone() is not None
        gate.set_result(1)
        await fiber.exit()
        await turns()

        assert held
        assert gone() is None
        assert fiber.done()


@pytest.mark.spec("PD13", "AT2")
async def test_a_finished_fiber_does_not_hold_a_task_group_that_its_body_never_left() -> None:
    """Its errors and their frames with it."""
    groups = list[weakref.ref[asyncio.TaskGroup]]()

    async def fails() -> None:
        raise Boom

    @fb.effect
    async def body() -> None:
        group = await asyncio.TaskGroup().__aenter__()
        groups.append(weakref.ref(group))
        group.create_task(fails())
        with contextlib.suppress(asyncio.CancelledError):
            await endless()

    fiber = fb.run_fork(body())
    await fiber.exit()
    await turns()
    gc.collect()

    assert groups[0]() is None
    assert fiber.done()


@pytest.mark.spec("PD13", "PR6")
@pytest.mark.parametrize("how", ["resumed", "interrupted"])
async def test_who_keeps_the_resume_of_a_callback_does_not_keep_a_finished_fiber(how: str) -> None:
    """A list of listeners that nobody clears."""
    listeners: list[Callable[[Effect[int, Never]], None]] = []

    with collector_off():
        fiber = fb.run_fork(Effect.callback(listeners.append))
        if how == "resumed":
            listeners[0](Effect.succeed(1))
        else:
            fiber.interrupt_unsafe()
        await fiber.exit()
        await turns()
        gone = weakref.ref(fiber)
        del fiber

        assert gone() is None
