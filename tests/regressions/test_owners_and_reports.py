"""Failures that an owner tells of at its end, and a signal that arrives at one."""

from __future__ import annotations

import _thread
import asyncio
import gc
import signal
from typing import Any

import pytest

import fibers as fb
from fibers import Effect
from tests.probes.kit_f import (
    Boom,
    cause_of,
    new_gate,
    note,
    running_fiber,
    turns,
    unhandled_failures,
)

pytestmark = pytest.mark.lifecycle


@pytest.mark.parametrize("strategy", ["sequential", "parallel"])
async def test_a_close_that_has_finalizers_to_run_reports_unseen_failures(strategy: str) -> None:
    """PD8: the owner's end is the last moment, also for who keeps the fiber."""
    log: list[str] = []
    with unhandled_failures() as seen:
        scope = fb.Scope(strategy)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # one of the two, as a parameter
        await scope.add_finalizer(lambda _: note(log, "finalizer"))
        fiber = scope.fork(Effect.die(Boom()), start_immediately=True)
        before = len(seen)
        await scope.close()
        told = [id_ for id_, _ in seen]

    assert log == ["finalizer"]
    assert before == 0
    assert told == [fiber.id]


async def test_a_failure_in_the_cleanup_that_a_close_waits_for_is_reported() -> None:
    """PD8: that fiber is the last thing of its owner."""

    async def body() -> None:
        try:
            await Effect.never()
        finally:
            raise Boom

    with unhandled_failures() as seen:
        scope = fb.Scope()
        fiber = scope.fork(Effect.promise(body), start_immediately=True)
        await scope.close()
        told = [id_ for id_, _ in seen]

    assert told == [fiber.id]


async def test_a_failure_after_the_owner_has_ended_is_reported_at_once() -> None:
    """PD8, SO6: the scope is closed by the very fiber that fails, and nobody looks any more."""

    async def body() -> None:
        await scope.close()
        raise Boom

    with unhandled_failures() as seen:
        scope = fb.Scope()
        fiber = scope.fork(Effect.promise(body), start_immediately=True)
        told = [id_ for id_, _ in seen]

    assert told == [fiber.id]


async def test_a_failed_finalizer_of_a_parallel_scope_is_the_closes_failure_alone() -> None:
    """PD8, SC4: nobody left it unhandled."""
    with unhandled_failures() as seen:
        scope = fb.Scope("parallel")
        await scope.add_finalizer(lambda _: Effect.die(Boom()))
        exit = await scope.close().exit()
        gc.collect()

    assert [type(defect) for defect in cause_of(exit).defects] == [Boom]
    assert seen == []


async def test_a_finalizer_of_a_parallel_scope_is_masked() -> None:
    """PD3: it runs in a fiber of its own, which nobody can cut."""
    log: list[str] = []
    gate = new_gate()
    finalizers: list[fb.Fiber[Any, Any]] = []

    async def finalizer() -> None:
        finalizers.append(running_fiber())
        await gate
        log.append("finalized")

    scope = fb.Scope("parallel")
    await scope.add_finalizer(lambda _: Effect.promise(finalizer))
    closer = fb.run_fork(scope.close())
    finalizers[0].interrupt_unsafe()
    gate.set_result(0)
    await closer.exit()

    assert log == ["finalized"]


class Rings:
    """An observer that brings a signal as its fiber lets go of it: seen by the next function that
    is entered, when the fiber has ended.
    """

    __del__ = _thread.interrupt_main

    def __init__(self, log: list[str]) -> None:
        self._log = log

    def __call__(self, exit: fb.Exit[Any, Any]) -> None:
        self._log.append("told")


def rung_at_its_end(work: Effect[None, Any]) -> int:
    """Run ``work`` in a fiber that a signal comes for as it ends; its id, when that has stopped the
    run.
    """
    log: list[str] = []
    ids: list[int] = []

    async def main() -> None:
        # Not asyncio's own, which waits for a turn of the loop.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        fiber = await work.fork_detach()
        fiber.add_observer(Rings(log))
        ids.append(fiber.id)
        await turns()
        log.append("went on")

    before = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(KeyboardInterrupt):
            fb.run(Effect.promise(main))
    finally:
        signal.signal(signal.SIGINT, before)
    assert log == ["told"]
    return ids[0]


@pytest.mark.spec("PD7")
def test_a_signal_that_arrives_as_a_fiber_ends_stops_the_run() -> None:
    """A KeyboardInterrupt is raised between any two lines, also behind the last of a fiber."""
    rung_at_its_end(Effect.yield_now())


@pytest.mark.spec("PD7")
def test_a_signal_that_arrives_as_a_fiber_fails_stops_the_run_and_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The fiber has its outcome: it can't be failed by the signal any more."""
    failing = Effect.yield_now().flat_map(lambda _: Effect.die(Boom()))

    fiber_id = rung_at_its_end(failing)

    assert [record.getMessage() for record in caplog.records] == [
        f"the end of fiber #{fiber_id} was not taken well"
    ]


@pytest.mark.spec("FL15")
async def test_an_observer_that_raises_no_ordinary_exception_is_told_of_and_stops_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """future.result() of a cancelled future is enough."""
    told: list[str] = []

    def raising(_: object) -> None:
        raise asyncio.CancelledError

    fiber = fb.run_fork(Effect.yield_now())
    fiber.add_observer(raising)
    fiber.add_observer(lambda ended: told.append(str(ended)))
    await fiber
    (record,) = caplog.records

    assert told == ["<Success: None>"]
    assert record.getMessage() == f"an observer of fiber #{fiber.id} raised"
    assert record.exc_info is not None
    assert record.exc_info[0] is asyncio.CancelledError
