"""Failures that an owner tells of at its end, and a signal that arrives at one."""

from __future__ import annotations

import gc
from typing import Any

import pytest

import fibers as fb
from fibers import Effect
from tests.probes.kit_f import Boom, cause_of, new_gate, note, running_fiber, unhandled_failures
from tests.regressions.test_interrupts import run_apart

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


def test_a_signal_that_arrives_as_a_fiber_ends_stops_the_run() -> None:
    """PD7: a KeyboardInterrupt is raised between any two lines, also behind the last of a fiber."""
    program = """
        import _thread, signal
        import fibers as fb
        from fibers import Effect

        class Rings:
            # The signal is there when the fiber lets go of this observer, and is seen as the next
            # line begins.
            __del__ = _thread.interrupt_main

            def __call__(self, exit):
                print("told")

        async def main():
            signal.signal(signal.SIGINT, signal.default_int_handler)
            fiber = await Effect.yield_now().fork_detach()
            fiber.add_observer(Rings())
            await Effect.never()

        try:
            fb.run(Effect.promise(main))
        except KeyboardInterrupt:
            print("stopped")
    """

    assert run_apart(program, 30.0).stdout == "told\nstopped\n"
