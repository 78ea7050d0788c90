"""Probes PI3: Semaphore, so many at a time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest
from returns.maybe import Nothing, Some
from returns.result import Success

import fibers as fb
from fibers import Effect, Fiber, Semaphore
from fibers.loop.states import OP_BUDGET_PRIMITIVES
from fibers.testing import TestClock, settle
from tests.probes.kit_f import Boom, failed, interrupted, note, turns


def inside(log: list[str], name: str) -> Effect[None]:
    """Log in<name>, let the others have a turn, log out<name>."""
    enter, leave = note(log, f"in{name}"), note(log, f"out{name}")
    return enter.flat_map(lambda _: Effect.yield_now()).flat_map(lambda _: leave)


def held(n: int = 1) -> Callable[[Semaphore], Effect[None]]:
    """Hold n permits for good."""

    def hold(semaphore: Semaphore) -> Effect[None]:
        never: Effect[None] = Effect.never()
        return semaphore.with_permits(n)(never)

    return hold


# ---- order


@pytest.mark.spec("PI3")
async def test_one_permit_lets_one_in_at_a_time_in_order() -> None:
    """in1, out1, in2, out2, in3, out3."""
    log: list[str] = []
    semaphore = Semaphore(1)

    for name in "123":
        fb.run_fork(semaphore.with_permits(1)(inside(log, name)))
    await turns()

    assert log == ["in1", "out1", "in2", "out2", "in3", "out3"]
    assert semaphore.available_unsafe() == 1


@pytest.mark.spec("PI3")
async def test_a_small_request_overtakes_a_big_one_that_cannot_be_met() -> None:
    """The big one goes on once there is enough."""
    log: list[str] = []
    semaphore = Semaphore(3)
    await semaphore.take(2)
    big = fb.run_fork(semaphore.with_permits(3)(note(log, "big")))
    small = fb.run_fork(semaphore.with_permits(1)(note(log, "small")))
    before = (big.poll(), small.poll())

    await semaphore.release(2)
    await turns()

    assert before == (None, Success(None))
    assert log == ["small", "big"]


@pytest.mark.spec("PI3")
async def test_a_small_waiter_overtakes_a_big_one_in_line() -> None:
    """Also where both had to wait."""
    log: list[str] = []
    semaphore = Semaphore(3)
    await semaphore.take(3)
    fb.run_fork(semaphore.with_permits(3)(note(log, "big")))
    fb.run_fork(semaphore.with_permits(1)(note(log, "small")))

    await semaphore.release(1)
    await turns()
    after_one = list(log)
    await semaphore.release(2)
    await turns()

    assert after_one == ["small"]
    assert log == ["small", "big"]


@pytest.mark.spec("PI3", "PD16")
async def test_release_wakes_through_the_ready_queue() -> None:
    """The waiter runs after the step of the one that released."""
    log: list[str] = []
    semaphore = Semaphore(1)
    await semaphore.take()
    fb.run_fork(semaphore.take().flat_map(lambda _: note(log, "taken")))

    @fb.effect
    async def release() -> None:
        await semaphore.release()
        log.append("released")

    await release()
    await turns()

    assert log == ["released", "taken"]


@pytest.mark.spec("PI3")
async def test_a_fiber_that_takes_again_at_once_starves_nobody() -> None:
    """The permit is set aside for the one that was woken."""
    log: list[str] = []
    semaphore = Semaphore(1)

    @fb.effect
    async def greedy() -> None:
        for _ in range(3):
            await semaphore.with_permits(1)(inside(log, "G"))

    fb.run_fork(greedy())
    fb.run_fork(semaphore.with_permits(1)(inside(log, "1")))
    await turns()

    assert log == ["inG", "outG", "in1", "out1", "inG", "outG", "inG", "outG"]


# ---- what the operations give


@pytest.mark.spec("PI3")
async def test_take_and_release_count() -> None:
    """take gives what it took, the others how many are free."""
    semaphore = Semaphore(5)

    answers = [
        await semaphore.take(2),
        await semaphore.available(),
        await semaphore.take(),
        await semaphore.release(),
        await semaphore.release_all(),
        semaphore.take_unsafe(5),
        semaphore.take_unsafe(1),
        semaphore.release_unsafe(2),
    ]

    assert answers == [2, 3, 1, 3, 5, True, False, 2]


@pytest.mark.spec("PI3")
async def test_if_available_runs_the_effect_or_gives_nothing() -> None:
    """Some and Nothing; the permits are back after both, and after a failure."""
    log: list[str] = []
    semaphore = Semaphore(2)
    fine: Effect[int, Boom] = note(log, "run").map(lambda _: 5)
    boom: Effect[int, Boom] = Effect.fail(Boom("boom"))

    some = await semaphore.with_permits_if_available(2)(fine)
    failure = await semaphore.with_permits_if_available(2)(boom).exit()
    await semaphore.take(1)
    nothing = await semaphore.with_permits_if_available(2)(fine)

    assert (some, nothing) == (Some(5), Nothing)
    assert isinstance(failure, type(failed()))
    assert log == ["run"]
    assert semaphore.available_unsafe() == 1


@pytest.mark.spec("PI3")
async def test_if_available_does_not_take_what_is_set_aside() -> None:
    """A woken waiter is not robbed before its step."""
    semaphore = Semaphore(1)
    await semaphore.take()
    waiter = fb.run_fork(semaphore.take())

    semaphore.release_unsafe()
    nothing = fb.run_sync(semaphore.with_permits_if_available(1)(Effect.succeed(1)))
    await turns()

    assert nothing == Nothing
    assert waiter.poll() == Success(1)


@pytest.mark.spec("PI3")
async def test_permits_come_back_after_each_way_out() -> None:
    """Success, failure, defect."""
    semaphore = Semaphore(1)
    hold = semaphore.with_permits(1)
    ways: list[Effect[Any, Any]] = [
        Effect.succeed(1),
        Effect.fail(Boom()),
        Effect.die(Boom()),
        Effect.interrupt(),
    ]

    for way in ways:
        await hold(way).exit()

    assert semaphore.available_unsafe() == 1


@pytest.mark.spec("PI3")
@pytest.mark.parametrize("n", [-1, 1.5, True, "1"])
def test_a_number_of_permits_that_makes_no_sense_is_refused_at_the_call(n: Any) -> None:
    """ValueError, also for nought where something is taken."""
    semaphore = Semaphore(1)

    for call in (
        Semaphore,
        semaphore.take,
        semaphore.release,
        semaphore.resize,
        semaphore.with_permits,
        semaphore.with_permits_if_available,
    ):
        with pytest.raises(ValueError, match="int"):
            call(n)
    with pytest.raises(ValueError, match="positive int, not 0"):
        semaphore.take(0)


# ---- resize


@pytest.mark.spec("PI3")
async def test_more_than_there_are_waits_for_resize() -> None:
    """For ever without."""
    semaphore = Semaphore(1)
    fiber = fb.run_fork(semaphore.take(3))
    await turns()
    before = fiber.poll()

    await semaphore.resize(3)
    await turns()

    assert before is None
    assert fiber.poll() == Success(3)


@pytest.mark.spec("PI3")
async def test_fewer_than_are_held_lets_nobody_in_until_enough_came_back() -> None:
    """What is held stays held."""
    semaphore = Semaphore(2)
    await semaphore.take(2)
    waiter = fb.run_fork(semaphore.take())

    await semaphore.resize(1)
    free = [await semaphore.available(), await semaphore.release()]
    await turns()
    after_one = waiter.poll()
    await semaphore.release()
    await turns()

    assert free == [-1, 0]
    assert after_one is None
    assert waiter.poll() == Success(1)


@pytest.mark.spec("PI3")
async def test_fewer_in_the_tick_of_a_release_takes_back_what_was_set_aside() -> None:
    """Called in vain, a waiter keeps its turn, and what it can't use goes to the next."""
    log: list[str] = []
    semaphore = Semaphore(3)
    await semaphore.take(3)
    fb.run_fork(semaphore.take(3).flat_map(lambda _: note(log, "three")))
    fb.run_fork(semaphore.take(2).flat_map(lambda _: note(log, "two")))

    semaphore.release_unsafe(3)
    fb.run_sync(semaphore.resize(2))
    await turns()
    two = list(log)
    semaphore.release_unsafe(2)
    await semaphore.resize(3)
    await turns()

    assert two == ["two"]
    assert log == ["two", "three"]


# ---- interrupts


@pytest.mark.spec("PI3")
async def test_an_interrupted_holder_gives_its_permits_to_the_next() -> None:
    """with_permits releases however its effect ends."""
    semaphore = Semaphore(1)
    holder = fb.run_fork(held()(semaphore))
    waiter = fb.run_fork(semaphore.with_permits(1)(Effect.succeed("in")))

    holder.interrupt_unsafe(by=7)
    await turns()

    assert holder.poll() == interrupted(7)
    assert waiter.poll() == Success("in")
    assert semaphore.available_unsafe() == 1


@pytest.mark.spec("PI3")
async def test_an_interrupted_waiter_takes_nothing_and_leaves_the_line() -> None:
    """Ten thousand of them leave nothing."""
    semaphore = Semaphore(1)
    await semaphore.take()
    waiters = [fb.run_fork(semaphore.with_permits(1)(Effect.never())) for _ in range(10_000)]
    waiting = len(semaphore._line)

    for waiter in waiters:
        waiter.interrupt_unsafe()
    await semaphore.release()

    assert waiting == 10_000
    assert not semaphore._line
    assert semaphore.available_unsafe() == 1
    assert waiters[0].poll() == interrupted(None)


@pytest.mark.spec("PI3")
@pytest.mark.parametrize("wrap", [False, True], ids=["take", "with_permits"])
async def test_an_interrupt_in_the_tick_of_the_release_leaves_the_permit(wrap: bool) -> None:
    """Woken and not run yet: the permit is there for anybody."""
    semaphore = Semaphore(1)
    await semaphore.take()
    eff = semaphore.with_permits(1)(Effect.succeed(1)) if wrap else semaphore.take()
    waiter = fb.run_fork(eff)

    semaphore.release_unsafe()
    waiter.interrupt_unsafe(by=7)

    assert waiter.poll() == interrupted(7)
    assert semaphore.available_unsafe() == 1
    assert semaphore.take_unsafe()


@pytest.mark.spec("PI3", "AT7")
async def test_a_wake_up_is_passed_on_when_the_woken_waiter_is_interrupted() -> None:
    """The next in line gets the permit without another release."""
    semaphore = Semaphore(1)
    await semaphore.take()
    first = fb.run_fork(semaphore.take())
    second = fb.run_fork(semaphore.take())

    semaphore.release_unsafe()
    first.interrupt_unsafe()
    await turns()

    assert second.poll() == Success(1)


@pytest.mark.spec("PI3")
async def test_a_bare_take_that_was_granted_keeps_the_permit_when_interrupted() -> None:
    """By design: with_permits is what gives it back."""
    semaphore = Semaphore(1)
    never: Effect[None] = Effect.never()
    later = fb.run_fork(semaphore.take().flat_map(lambda _: never))
    masked = fb.run_fork(semaphore.take().uninterruptible())

    later.interrupt_unsafe()
    masked.interrupt_unsafe()
    taken = semaphore.available_unsafe()
    semaphore.release_unsafe()
    await turns()

    assert taken == 0
    assert masked.poll() == interrupted(None)
    assert semaphore.available_unsafe() == 0


@pytest.mark.spec("PI3")
async def test_a_timeout_in_the_tick_of_the_release_leaves_the_permit() -> None:
    """asyncio's own cancellation of a body that waits."""
    semaphore = Semaphore(1)
    await semaphore.take()

    @fb.effect
    async def body() -> str:
        try:
            async with asyncio.timeout(None) as limit:
                limit.reschedule(asyncio.get_running_loop().time())
                asyncio.get_running_loop().call_soon(semaphore.release_unsafe)
                await held()(semaphore)
        except TimeoutError:
            return "timed out"
        return "never"

    assert await body() == "timed out"
    assert semaphore.available_unsafe() == 1


@pytest.mark.spec("PI3", "PD12")
async def test_a_plain_task_holds_permits_like_a_fiber() -> None:
    """Its cancellation gives them back before the task ends."""
    semaphore = Semaphore(1)

    async def hold() -> None:
        await held()(semaphore)

    holding = asyncio.create_task(hold())
    waiting = asyncio.create_task(hold())
    await turns()
    waiting.cancel()
    await asyncio.wait([waiting])
    before = semaphore.available_unsafe()
    holding.cancel()
    await asyncio.wait([holding])

    assert before == 0
    assert semaphore.available_unsafe() == 1
    assert not semaphore._line


@pytest.mark.spec("PI3", "AT11")
@pytest.mark.parametrize("wanted", [1, 2])
async def test_an_interrupt_at_any_step_leaves_no_permit_behind(wanted: int) -> None:
    """Interrupt the fiber after each number of turns of the ready queue, at each place."""
    for at in range(24):
        semaphore = Semaphore(2)
        inner = semaphore.with_permits(wanted)(
            Effect.yield_now().flat_map(lambda _: Effect.yield_now())
        )
        others = [fb.run_fork(inner) for _ in range(3)]
        fiber = fb.run_fork(inner)
        for _ in range(at):
            await asyncio.sleep(0)
        fiber.interrupt_unsafe()
        await settle()

        assert fiber.poll() is not None
        assert [other.poll() for other in others] == [Success(None)] * 3
        assert semaphore.available_unsafe() == 2
        assert semaphore._line.set_aside == 0


@pytest.mark.spec("PI3", "AT11")
@pytest.mark.parametrize("if_available", [False, True], ids=["waiting", "if_available"])
async def test_an_interrupt_between_any_two_primitives_leaves_no_permit_behind(
    if_available: bool,
) -> None:
    """The op budget, WI9, suspends the fiber between two primitives of with_permits, whichever they
    are: there it is interrupted.
    """
    entered = 0

    def enter() -> None:
        nonlocal entered
        entered += 1

    work: Effect[None] = Effect.sync(enter)
    cut_before, cut_inside = 0, 0
    for before in range(OP_BUDGET_PRIMITIVES - 24, OP_BUDGET_PRIMITIVES):
        semaphore = Semaphore(1)
        whole: Effect[Any] = (
            semaphore.with_permits_if_available(1)(work)
            if if_available
            else semaphore.with_permits(1)(work)
        )

        @fb.effect
        async def body(before: int = before, whole: Effect[Any] = whole) -> None:
            for _ in range(before):
                await Effect.succeed(None)
            await whole

        fiber = fb.run_fork(body())
        held = semaphore.available_unsafe() == 0
        fiber.interrupt_unsafe()
        await settle()

        if fiber.poll() == interrupted(None):
            cut_before += not held
            cut_inside += held
        assert semaphore.available_unsafe() == 1, before

    # It was cut at each place: not begun, while it held the permit, and not at all.
    assert cut_before > 0
    assert cut_inside > 1
    assert entered > 0


@pytest.mark.spec("PI3", "AT11")
@pytest.mark.parametrize("seed", range(200))
async def test_acquired_is_released_over_many_interleavings(seed: int) -> None:
    """Random sizes, waits and interrupts: never too many inside, everything back at the end."""
    rng = random.Random(seed)
    semaphore = Semaphore(3)
    inside_now = 0
    most = 0

    def work(n: int, waits: int) -> Effect[None]:
        def enter() -> None:
            nonlocal inside_now, most
            inside_now += n
            most = max(most, inside_now)

        def leave() -> None:
            nonlocal inside_now
            inside_now -= n

        middle: Effect[None] = Effect.succeed(None)
        for _ in range(waits):
            middle = middle.flat_map(lambda _: Effect.yield_now())
        busy = Effect.sync(enter).flat_map(lambda _: middle).ensuring(Effect.sync(leave))
        if rng.random() < 0.2:
            return semaphore.with_permits_if_available(n)(busy).map(lambda _: None)
        held = semaphore.with_permits(n)(busy)
        return held.uninterruptible() if rng.random() < 0.1 else held

    fibers: list[Fiber[None, Any]] = []
    for _ in range(60):
        fibers.append(fb.run_fork(work(rng.randint(1, 3), rng.randint(0, 3))))
        for _ in range(rng.randint(0, 2)):
            rng.choice(fibers).interrupt_unsafe()
        if rng.random() < 0.3:
            await asyncio.sleep(0)
    await settle()

    assert all(fiber.poll() is not None for fiber in fibers)
    assert most <= 3
    assert inside_now == 0
    assert semaphore.available_unsafe() == 3
    assert semaphore._line.set_aside == 0
    assert not semaphore._line


# ---- loops


@pytest.mark.spec("PI3", "AT16")
async def test_a_second_loop_gets_an_error_that_names_the_way_out() -> None:
    """While the first one runs; the fiber there dies of it, and nothing has changed."""
    semaphore = Semaphore(1)
    await semaphore.take()

    with pytest.raises(RuntimeError, match=r"another event loop.*call_soon_threadsafe"):
        await asyncio.to_thread(fb.run, semaphore.release())
    with pytest.raises(RuntimeError, match="another event loop"):
        await asyncio.to_thread(fb.run, semaphore.with_permits(1)(Effect.succeed(1)))
    with pytest.raises(RuntimeError, match="another event loop"):
        await asyncio.to_thread(semaphore.release_unsafe)

    assert semaphore.available_unsafe() == 0


@pytest.mark.spec("PI3")
def test_one_loop_after_the_other_may_use_it() -> None:
    """A module may make one before any loop runs."""
    semaphore = Semaphore(1)
    fb.run_sync(semaphore.take())
    semaphore.release_unsafe()

    for _ in range(2):
        fb.run(semaphore.with_permits(1)(fb.sleep(0)))

    assert semaphore.available_unsafe() == 1


@pytest.mark.spec("PI3")
async def test_a_waiter_of_a_closed_loop_keeps_nobody_else_waiting() -> None:
    """Its turn goes to the next in line at once."""
    semaphore = Semaphore(0)
    loop = asyncio.new_event_loop()

    def abandon() -> None:
        async def wait() -> Fiber[int, Any]:
            return fb.run_fork(semaphore.take())

        loop.run_until_complete(wait())
        loop.close()

    await asyncio.to_thread(abandon)
    here = fb.run_fork(semaphore.take())
    waiting = len(semaphore._line)
    semaphore.release_unsafe()
    await turns()

    assert waiting == 2
    assert here.poll() == Success(1)
    assert semaphore._line.set_aside == 0


@pytest.mark.spec("PI3")
async def test_time_in_a_permit_is_virtual(rt: fb.Runtime, clock: TestClock) -> None:
    """Three fibers of a second each take three seconds with one permit."""
    semaphore = Semaphore(1)
    fibers = [rt.run_fork(semaphore.with_permit(fb.sleep(1))) for _ in range(3)]

    await rt.run(clock.adjust(2))
    after_two = [fiber.poll() for fiber in fibers]
    await rt.run(clock.adjust(1))

    assert after_two == [Success(None), Success(None), None]
    assert fibers[2].poll() == Success(None)
