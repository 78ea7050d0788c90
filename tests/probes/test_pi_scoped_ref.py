"""Probes PI10: ScopedRef, a resource that is exchanged, and Resource, one that is refreshed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from returns.result import Success

import fibers as fb
from fibers import Die, Effect, Fail, FiberDeadlockError, Resource, Schedule, Scope, ScopedRef
from tests.probes.kit_e import Boom, cause_of, chain, failed, interrupted, pass_time, peek, say
from tests.probes.kit_owned import SEEDS, Counted, make_in, storm

if TYPE_CHECKING:
    import random

    from fibers.testing import TestClock

BOOM = Boom("boom")


@pytest.fixture
async def scope(rt: fb.Runtime) -> AsyncIterator[Scope]:
    """The scope that owns the reference of a test."""
    scope = Scope()
    yield scope
    await rt.run(scope.close())


@pytest.fixture
def made() -> Counted:
    """Resources that are there at once."""
    return Counted()


# ---- ScopedRef


@pytest.mark.spec("PI10")
async def test_set_acquires_the_new_one_before_it_releases_the_old_one(
    rt: fb.Runtime, scope: Scope, made: Counted
) -> None:
    """The close releases the last one."""
    ref = await make_in(rt, scope, ScopedRef.from_acquire(made.acquire()))

    await rt.run(ref.set(made.acquire()))
    value = await rt.run(ref.get())
    await rt.run(scope.close())

    assert value == 2
    assert made.log == ["+1", "+2", "-1", "-2"]


@pytest.mark.spec("PI10")
async def test_a_failed_set_keeps_the_old_one(rt: fb.Runtime, scope: Scope, made: Counted) -> None:
    """What the new one had acquired so far is released."""
    ref = await make_in(rt, scope, ScopedRef.from_acquire(made.acquire()))
    half = made.acquire().flat_map(lambda _: Effect.fail(BOOM))

    exit_ = await rt.run(ref.set(half).exit())

    assert exit_ == failed(Fail(BOOM))
    assert await rt.run(ref.get()) == 1
    assert made.log == ["+1", "+2", "-2"]


@pytest.mark.spec("PI10")
async def test_a_failed_first_acquire_is_the_failure_of_the_make(
    rt: fb.Runtime, scope: Scope, made: Counted
) -> None:
    """And releases what it had acquired so far."""
    half = made.acquire().flat_map(lambda _: Effect.fail(BOOM))

    exit_ = await rt.run(scope.provide(ScopedRef.from_acquire(half)).exit())

    assert exit_ == failed(Fail(BOOM))
    assert made.log == ["+1", "-1"]
    assert scope.state == "empty"


@pytest.mark.spec("PI10")
async def test_a_reference_can_begin_with_a_plain_value(rt: fb.Runtime, scope: Scope) -> None:
    """Which needs no release."""
    made = Counted()
    ref = await make_in(rt, scope, ScopedRef.make(lambda: 0))
    before = await rt.run(ref.get())

    await rt.run(ref.set(made.acquire()))

    assert (before, await rt.run(ref.get())) == (0, 1)


@pytest.mark.spec("PI10")
async def test_sets_go_one_after_another(rt: fb.Runtime, clock: TestClock, scope: Scope) -> None:
    """In the order in which they came."""
    made = Counted(acquire_seconds=1, release_seconds=1)
    ref = await make_in(rt, scope, ScopedRef.make(lambda: 0))
    for _ in range(2):
        rt.run_fork(ref.set(made.acquire()))

    await pass_time(rt, clock, 2)
    first = list(made.log)
    await pass_time(rt, clock, 1)

    assert first == ["+1", "+2"]
    assert made.log == ["+1", "+2", "-1"]
    assert await rt.run(ref.get()) == 2
    closing = rt.run_fork(scope.close())
    await pass_time(rt, clock)
    assert peek(closing) == "ok(None)"


@pytest.mark.spec("PI10", "PD9")
async def test_a_set_inside_a_set_is_an_error(rt: fb.Runtime, scope: Scope, made: Counted) -> None:
    """It would wait for itself; later sets are none the worse."""
    ref = await make_in(rt, scope, ScopedRef.make(lambda: 0))
    inside = made.acquire().tap(lambda _: ref.set(made.acquire()))

    exit_ = await rt.run(ref.set(inside).exit())
    await rt.run(ref.set(made.acquire()))

    (reason,) = cause_of(exit_).reasons
    assert isinstance(reason, Die)
    assert isinstance(reason.defect, FiberDeadlockError)
    assert made.log == ["+1", "-1", "+2"]


@pytest.mark.spec("PI10")
async def test_a_set_that_has_begun_is_uninterruptible(
    rt: fb.Runtime, clock: TestClock, scope: Scope
) -> None:
    """It takes its effect; one that waits for its turn can be interrupted."""
    made = Counted(acquire_seconds=1)
    ref = await make_in(rt, scope, ScopedRef.make(lambda: 0))
    begun, waiting = [rt.run_fork(ref.set(made.acquire())) for _ in range(2)]

    for fiber in (waiting, begun):
        fiber.interrupt_unsafe(by=9)
    at_once = (begun.poll(), waiting.poll())
    await pass_time(rt, clock)

    assert at_once == (None, interrupted(9))
    assert begun.poll() == interrupted(9)
    assert await rt.run(ref.get()) == 1


@pytest.mark.spec("PI10")
async def test_set_and_get_after_the_close_are_interrupts(
    rt: fb.Runtime, scope: Scope, made: Counted
) -> None:
    """Nothing is acquired."""
    ref = await make_in(rt, scope, ScopedRef.from_acquire(made.acquire()))
    await rt.run(scope.close())

    sets, gets = rt.run_fork(ref.set(made.acquire()).exit()), rt.run_fork(ref.get().exit())

    assert await sets == interrupted(sets.id)
    assert await gets == interrupted(gets.id)
    assert made.log == ["+1", "-1"]


@pytest.mark.spec("PI10")
async def test_a_close_during_a_set_releases_both(
    rt: fb.Runtime, clock: TestClock, scope: Scope
) -> None:
    """The set ends with an Interrupt."""
    made = Counted(acquire_seconds=1)
    ref = await make_in(rt, scope, ScopedRef.make(lambda: 0))
    first = rt.run_fork(ref.set(made.acquire()))
    await pass_time(rt, clock)
    second = rt.run_fork(ref.set(made.acquire()))

    await rt.run(scope.close())
    await pass_time(rt, clock)

    assert peek(first) == "ok(None)"
    assert second.poll() == interrupted(second.id)
    assert made.live == 0


@pytest.mark.spec("PI10")
async def test_a_release_that_fails_is_the_failure_of_the_set(
    rt: fb.Runtime, scope: Scope, made: Counted
) -> None:
    """The new one is in place all the same."""
    bad = fb.acquire_release(Effect.succeed(0), lambda _, __: Effect.die(BOOM))
    ref = await make_in(rt, scope, ScopedRef.from_acquire(bad))

    exit_ = await rt.run(ref.set(made.acquire()).exit())

    assert exit_ == failed(Die(BOOM))
    assert await rt.run(ref.get()) == 1


@pytest.mark.spec("PI10")
async def test_ten_thousand_sets_leave_one_resource(
    rt: fb.Runtime, scope: Scope, made: Counted
) -> None:
    """And one entry in the scope."""
    ref = await make_in(rt, scope, ScopedRef.make(lambda: 0))
    for _ in range(10_000):
        await rt.run(ref.set(made.acquire()))

    assert made.live == 1
    assert ref._own.finalizer_count == 1


@pytest.mark.spec("PI10", "AT11")
@pytest.mark.parametrize("block", range(4))
async def test_exactly_one_resource_is_live_whenever_sets_are_interrupted(
    rt: fb.Runtime, clock: TestClock, block: int
) -> None:
    """Over many seeds; none after the close."""
    for seed in SEEDS[block::4]:
        scope, made = Scope(), Counted(acquire_seconds=seed % 2, release_seconds=seed % 3 / 2)
        made_one = scope.provide(ScopedRef.from_acquire(made.acquire()))
        first = rt.run_fork(made_one)
        await pass_time(rt, clock)
        ref = await first

        def user(
            dice: random.Random, ref: ScopedRef[int] = ref, made: Counted = made
        ) -> Effect[Any, Any]:
            acquire = made.acquire()
            if dice.random() < 0.3:
                acquire = acquire.flat_map(lambda _: Effect.fail(BOOM))
            return fb.sleep(dice.choice([0, 0.5])).flat_map(lambda _: ref.set(acquire))

        await storm(rt, clock, seed, user)
        live = made.live
        closing = rt.run_fork(scope.close())
        await pass_time(rt, clock)

        assert peek(closing) == "ok(None)", seed
        assert (live, made.live) == (1, 0), seed


# ---- Resource


@pytest.mark.spec("PI10")
async def test_a_manual_resource_is_acquired_once_and_at_each_refresh(
    rt: fb.Runtime, scope: Scope, made: Counted
) -> None:
    """The former value is released after the new one is there."""
    resource = await make_in(rt, scope, Resource.manual(made.acquire()))
    values = [await rt.run(resource.get()) for _ in range(2)]

    await rt.run(resource.refresh())

    assert values == [1, 1]
    assert await rt.run(resource.get()) == 2
    assert made.log == ["+1", "+2", "-1"]


@pytest.mark.spec("PI10")
async def test_a_refresh_that_fails_keeps_the_value(rt: fb.Runtime, scope: Scope) -> None:
    """The refresh fails with it."""
    results = iter([Effect.succeed(1), Effect.fail(BOOM)])
    acquire: Effect[int, Boom] = Effect.suspend(lambda: next(results))
    resource = await make_in(rt, scope, Resource.manual(acquire))

    exit_ = await rt.run(resource.refresh().exit())

    assert exit_ == failed(Fail(BOOM))
    assert await rt.run(resource.get()) == 1


@pytest.mark.spec("PI10")
async def test_a_first_acquire_that_fails_is_what_get_fails_with(
    rt: fb.Runtime, scope: Scope
) -> None:
    """Until a refresh succeeds."""
    results = iter([Effect.fail(BOOM), Effect.succeed(2)])
    acquire: Effect[int, Boom] = Effect.suspend(lambda: next(results))
    resource = await make_in(rt, scope, Resource.manual(acquire))

    first = await rt.run(resource.get().exit())
    await rt.run(resource.refresh())

    assert first == failed(Fail(BOOM))
    assert await rt.run(resource.get()) == 2


@pytest.mark.spec("PI10")
@pytest.mark.parametrize("policy", [10, timedelta(seconds=10), Schedule.spaced(10)])
async def test_an_auto_resource_is_refreshed_on_its_schedule(
    rt: fb.Runtime, clock: TestClock, scope: Scope, policy: Any
) -> None:
    """For the first time after the first delay; until the scope closes."""
    made = Counted()
    resource = await make_in(rt, scope, Resource.auto(made.acquire(), policy))

    values = [await rt.run(resource.get())]
    for _ in range(2):
        await pass_time(rt, clock, 10)
        values.append(await rt.run(resource.get()))
    await rt.run(scope.close())
    await pass_time(rt, clock, 100)

    assert values == [1, 2, 3]
    assert made.log == ["+1", "+2", "-1", "+3", "-2", "-3"]


@pytest.mark.spec("PI10")
async def test_an_automatic_refresh_that_fails_is_not_the_last(
    rt: fb.Runtime, clock: TestClock, scope: Scope
) -> None:
    """The value stays, and the next refresh comes in its time."""
    results = iter([Effect.succeed(1), Effect.fail(BOOM), Effect.succeed(3)])
    acquire: Effect[int, Boom] = Effect.suspend(lambda: next(results))
    resource = await make_in(rt, scope, Resource.auto(acquire, Schedule.spaced(10).up_to(2)))

    await pass_time(rt, clock, 10)
    stale = await rt.run(resource.get())
    await pass_time(rt, clock, 10)

    assert stale == 1
    assert await rt.run(resource.get()) == 3


@pytest.mark.spec("PI10")
async def test_a_resource_after_the_close_is_an_interrupt(rt: fb.Runtime, scope: Scope) -> None:
    """Its value is released by then."""
    log: list[str] = []
    value = fb.acquire_release(Effect.succeed(1), lambda _, __: say(log, "released"))
    resource = await make_in(rt, scope, Resource.manual(value))

    fiber = rt.run_fork(chain(scope.close(), resource.get()).exit())

    assert await fiber == interrupted(fiber.id)
    assert log == ["released"]
    assert fiber.poll() == Success(interrupted(fiber.id))
