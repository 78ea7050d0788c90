"""sweep: an interrupt at each point, and what it finds."""

from __future__ import annotations

from typing import Any

import pytest

import fibers as fb
from fibers import Effect
from fibers.testing import Case, SweepError, sweep

from .locks import Gate, held_safely, held_with_a_gap


def check_free(gate: Gate) -> None:
    assert gate.free, "the lock is still held"


def test_a_safe_resource_passes() -> None:
    def case() -> Case:
        gate = Gate()
        return held_safely(gate, fb.sleep(1)), lambda _: check_free(gate)

    report = sweep(case)

    assert report.interrupted > 5
    assert len(report.places) > 1


def test_a_gap_between_take_and_release_is_found() -> None:
    def case() -> Case:
        gate = Gate()
        return held_with_a_gap(gate, fb.sleep(1)), lambda _: check_free(gate)

    with pytest.raises(SweepError, match="still held") as caught:
        sweep(case)

    assert caught.value.point is not None
    assert isinstance(caught.value.__cause__, AssertionError)


def contended(careless: bool) -> Case:
    gate = Gate(careless=careless)

    @fb.effect
    async def both() -> None:
        holder = await held_safely(gate, fb.sleep(1)).fork_child(start_immediately=True)
        await held_safely(gate, fb.sleep(1)).timeout(0.5).exit()
        await holder

    return both(), lambda _: check_free(gate)


def test_contention_passes_where_waiters_leave() -> None:
    sweep(lambda: contended(careless=False))


def test_a_waiter_that_stays_in_the_queue_is_found() -> None:
    with pytest.raises(SweepError):
        sweep(lambda: contended(careless=True))


def test_a_body_is_interrupted_at_every_await() -> None:
    """Of a coroutine body too: each place shows up once a run."""
    done: set[int] = set()

    def case() -> Case:
        seen = 0

        @fb.effect
        async def body() -> None:
            nonlocal seen
            for _ in range(4):
                await fb.sleep(1)
                seen += 1

        return body(), lambda _: done.add(seen)

    sweep(case)

    assert done == {0, 1, 2, 3, 4}


def test_a_fiber_that_is_left_alive_is_found() -> None:
    def case() -> Case:
        return Effect.never().fork_detach(), lambda _: None

    with pytest.raises(SweepError, match="left alive"):
        sweep(case)


def test_a_failure_without_any_interrupt_says_so() -> None:
    def case() -> Case:
        def never_right(_exit: object) -> None:
            raise AssertionError("no")

        return Effect.succeed(1), never_right

    with pytest.raises(SweepError, match="without an interrupt") as caught:
        sweep(case)
    assert caught.value.point is None


def test_a_check_may_be_an_effect() -> None:
    ran: list[str] = []

    def case() -> Case:
        return Effect.yield_now(), lambda _: Effect.sync(lambda: ran.append("checked"))

    sweep(case)
    assert ran


def test_an_effect_that_does_not_end_is_refused() -> None:
    with pytest.raises(RuntimeError, match="not ended after 10 steps"):
        sweep(lambda: (fb.sleep(1).forever().timeout(50), lambda _: None), max_points=10)


def test_an_effect_that_steps_for_ever_is_refused() -> None:
    """It never waits, so nothing else would end it."""
    with pytest.raises(RuntimeError, match="not ended after 20 steps"):
        sweep(lambda: (Effect.yield_now().forever(), lambda _: None), max_points=20)


def test_a_finalizer_that_steps_for_ever_is_found() -> None:
    def case() -> Case:
        return fb.sleep(1).on_interrupt(lambda _: Effect.yield_now().forever()), lambda _: None

    with pytest.raises(SweepError, match="has not ended 100 steps later") as caught:
        sweep(case, max_points=100)
    assert caught.value.point is not None


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True])
def test_a_limit_that_makes_no_sense_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="max_points must be a positive int"):
        sweep(lambda: (Effect.succeed(1), lambda _: None), max_points=wrong)


def test_the_op_budget_is_what_it_was_afterwards() -> None:
    from fibers.loop import run_loop

    sweep(lambda: (Effect.yield_now(), lambda _: None))
    assert vars(run_loop)["OP_BUDGET_PRIMITIVES"] == 2048
