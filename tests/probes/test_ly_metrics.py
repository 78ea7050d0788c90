"""Probes LY6: counts of fibers, for who asks for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import fibers as fb
from fibers import Effect, FiberMetrics, Scope
from tests.probes.kit_e import Boom, Defect, chain, parked, pass_time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fibers.testing import TestClock


@pytest.fixture
def metrics() -> Iterator[FiberMetrics]:
    """Counts what begins in the test."""
    with FiberMetrics() as metrics:
        yield metrics


def counts(metrics: FiberMetrics) -> tuple[int, int, int, int]:
    """Started, succeeded, failed, interrupted."""
    return metrics.started, metrics.succeeded, metrics.failed, metrics.interrupted


@pytest.mark.spec("LY6")
@pytest.mark.parametrize(
    ("work", "expected"),
    [
        (Effect.succeed(5), (1, 1, 0, 0)),
        (Effect.fail(Boom()), (1, 0, 1, 0)),
        (Effect.die(Defect()), (1, 0, 1, 0)),
        (Effect.interrupt(), (1, 0, 0, 1)),
    ],
    ids=["success", "fail", "die", "interrupt"],
)
async def test_each_end_is_counted_as_what_it_is(
    metrics: FiberMetrics, work: Effect[Any, Any], expected: tuple[int, int, int, int]
) -> None:
    """Once."""
    await fb.run_fork(work).exit()

    # The second one is the wait for the first.
    started, succeeded, failed, interrupted = expected
    assert counts(metrics) == (started + 1, succeeded + 1, failed, interrupted)
    assert metrics.live == 0


@pytest.mark.spec("LY6")
async def test_what_is_alive_is_started_and_not_ended(
    rt: fb.Runtime, clock: TestClock, metrics: FiberMetrics
) -> None:
    """Suspended fibers, until they are interrupted."""
    fibers = [rt.run_fork(fb.sleep(60)) for _ in range(3)]
    before = metrics.live

    fibers[0].interrupt_unsafe()

    assert (before, metrics.live) == (3, 2)
    assert counts(metrics) == (3, 0, 0, 1)


@pytest.mark.spec("LY6")
async def test_forks_of_a_counted_fiber_are_counted_at_any_depth(
    rt: fb.Runtime, metrics: FiberMetrics
) -> None:
    """Children, detached ones, workers, those of a scope."""
    scope = Scope()
    leaf: Effect[None] = Effect.yield_now()
    deep = chain(
        chain(leaf.fork_child()).fork_child().flat_map(lambda child: child.join()),
        leaf.fork_detach(start_immediately=True),
        leaf.fork_in(scope),
        fb.for_each(range(3), lambda _: leaf, concurrency="unbounded", discard=True),
    )

    await rt.run(deep)
    await scope.close()

    # The root, two children, a detached one, one in the scope, three workers, the close.
    assert metrics.started == 9
    assert metrics.live == 0


@pytest.mark.spec("LY6", "WI8")
async def test_a_parent_that_waits_for_its_children_is_counted_once(
    rt: fb.Runtime, clock: TestClock, metrics: FiberMetrics
) -> None:
    """When it has ended, not when its body has."""
    fiber = rt.run_fork(parked([], "", seconds=5).fork_child(start_immediately=True))
    before = counts(metrics)
    live = metrics.live

    await pass_time(rt, clock)

    assert (before, live) == ((2, 0, 0, 0), 2)
    assert fiber.poll() is not None
    # The third is the adjust of the clock.
    assert counts(metrics) == (3, 2, 0, 1)


@pytest.mark.spec("LY6")
async def test_who_hears_of_an_end_reads_counts_that_hold_it(
    rt: fb.Runtime, metrics: FiberMetrics
) -> None:
    """An observer is called within the end."""
    seen: list[int] = []
    fiber = rt.run_fork(fb.sleep(60))
    fiber.add_observer(lambda _: seen.append(metrics.live))

    fiber.interrupt_unsafe()

    assert seen == [0]


@pytest.mark.spec("LY6")
async def test_nothing_is_counted_before_and_after(rt: fb.Runtime) -> None:
    """But what began while it counted is followed to its end."""
    metrics = FiberMetrics()
    early = rt.run_fork(fb.sleep(60))
    with metrics:
        counted = rt.run_fork(fb.sleep(60))
    late = rt.run_fork(fb.sleep(60))

    for fiber in (early, counted, late):
        fiber.interrupt_unsafe()

    assert counts(metrics) == (1, 0, 0, 1)


@pytest.mark.spec("LY6")
async def test_two_can_count_at_once(rt: fb.Runtime) -> None:
    """Each what began in its own time."""
    with FiberMetrics() as outer:
        rt.run_fork(Effect.succeed(1))
        with FiberMetrics() as inner:
            rt.run_fork(Effect.succeed(2))
        rt.run_fork(Effect.succeed(3))

    assert (outer.started, inner.started) == (3, 1)


@pytest.mark.spec("LY6")
async def test_a_second_start_changes_nothing(rt: fb.Runtime) -> None:
    """No fiber is counted twice."""
    metrics = FiberMetrics()
    metrics.start()
    metrics.start()
    rt.run_fork(Effect.succeed(1))
    metrics.stop()
    rt.run_fork(Effect.succeed(2))

    assert counts(metrics) == (1, 1, 0, 0)


@pytest.mark.spec("LY6")
async def test_fibers_that_nobody_counts_are_ordinary_ones(rt: fb.Runtime) -> None:
    """Off is free: the same class as ever, before and after."""
    before = type(rt.run_fork(Effect.succeed(1)))
    with FiberMetrics():
        during = type(rt.run_fork(Effect.succeed(2)))
    after = type(rt.run_fork(Effect.succeed(3)))

    assert before is after is fb.Fiber
    assert during is not fb.Fiber


@pytest.mark.spec("LY6")
def test_the_counts_can_be_read_at_a_glance(metrics: FiberMetrics) -> None:
    """For a log line."""
    fb.run(Effect.succeed(1))

    assert "live=0" in repr(metrics)
    assert metrics.ended == metrics.started
