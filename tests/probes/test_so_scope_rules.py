"""Probes SO: the rules of scopes, above all who waits for whom while one closes."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING, Any, Literal, Never

import pytest
from returns.maybe import Nothing
from returns.result import Success

import fibers as fb
from fibers import Die, Effect, Fail, Scope
from fibers.app import close_bounded
from tests.probes.kit_e import (
    Boom,
    Defect,
    add,
    add_callbacks,
    cause_of,
    chain,
    failed,
    interrupted,
    me,
    parked,
    pass_time,
    peek,
    raising,
    say,
    show,
    slow,
)
from tests.probes.kit_f import unhandled_failures

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from fibers.testing import TestClock

pytestmark = pytest.mark.lifecycle

DEADLOCKED = 5.0  # real seconds, after which a close that should take none counts as stuck

Strategy = Literal["sequential", "parallel"]
STRATEGIES: list[Strategy] = ["sequential", "parallel"]


# ---- states


@pytest.mark.spec("SO1")
async def test_a_scope_is_empty_then_open_then_closed(rt: fb.Runtime) -> None:
    """Open as soon as it holds a finalizer."""
    scope = Scope()
    states = [scope.state]

    await add(rt, scope, Effect.succeed(None))
    states.append(scope.state)
    await rt.run(scope.close())
    states.append(scope.state)

    assert states == ["empty", "open", "closed"]


@pytest.mark.spec("SO1")
async def test_an_empty_scope_can_be_closed(rt: fb.Runtime) -> None:
    """It is closed for good all the same."""
    scope = Scope()
    await rt.run(scope.close())

    assert scope.state == "closed"


@pytest.mark.spec("SO1")
@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_a_scope_is_marked_closed_before_its_first_finalizer_runs(
    rt: fb.Runtime, strategy: Strategy
) -> None:
    """A finalizer that looks finds it closed."""
    seen: list[str] = []
    scope = Scope(strategy)
    await add(rt, scope, Effect.sync(lambda: seen.append(scope.state)))

    await rt.run(scope.close())

    assert seen == ["closed"]


@pytest.mark.spec("SO1")
async def test_a_closed_scope_holds_no_finalizer(rt: fb.Runtime) -> None:
    """The count falls to zero with the close."""
    scope = Scope()
    for _ in range(3):
        await add(rt, scope, Effect.succeed(None))
    before = scope.finalizer_count

    await rt.run(scope.close())

    assert (before, scope.finalizer_count) == (3, 0)


@pytest.mark.spec("SO1")
async def test_a_finalizer_that_closes_its_own_scope_does_not_wait_for_itself(
    rt: fb.Runtime,
) -> None:
    """It is the second close: it returns at once."""
    log: list[str] = []
    scope = Scope()
    await add(rt, scope, say(log, "1"))
    await add(rt, scope, scope.close().flat_map(lambda _: say(log, "closed again")))

    await rt.run(scope.close())

    assert log == ["closed again", "1"]


# ---- late finalizers


@pytest.mark.spec("SO3")
async def test_a_finalizer_added_to_a_closing_scope_runs_at_once(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """With the closing exit, beside the finalizer that is still running."""
    log: list[str] = []
    scope = Scope()
    await add(rt, scope, slow(log, "1"))

    rt.run_fork(scope.close(failed(Fail(Boom("z")))))
    await rt.run(scope.add_finalizer(lambda ended: say(log, f"late {show(ended)}")))
    await pass_time(rt, clock)

    assert log == ["start1", "late Fail(z)", "end1"]


@pytest.mark.spec("SO3")
async def test_a_late_finalizer_runs_in_the_fiber_that_adds_it(rt: fb.Runtime) -> None:
    """Not in the one that closed the scope."""
    ran_in: list[int] = []
    scope = Scope()
    await rt.run(scope.close())

    adding = rt.run_fork(scope.add_finalizer(lambda _: Effect.sync(lambda: ran_in.append(me().id))))

    assert ran_in == [adding.id]


@pytest.mark.spec("SO3")
async def test_a_late_finalizer_is_awaited_by_the_caller(rt: fb.Runtime, clock: TestClock) -> None:
    """add_finalizer returns when it has ended."""
    log: list[str] = []
    scope = Scope()
    await rt.run(scope.close())

    adding = scope.add_finalizer(lambda _: slow(log, ""))
    rt.run_fork(adding.flat_map(lambda _: say(log, "added")))
    await pass_time(rt, clock)

    assert log == ["start", "end", "added"]


@pytest.mark.spec("SO3", "SO4")
async def test_the_failure_of_a_late_finalizer_is_not_in_the_close_that_is_running(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """It is the caller's alone."""
    defect = Defect()
    scope = Scope()
    await add(rt, scope, fb.sleep(1))

    closing = rt.run_fork(scope.close())
    adding = await rt.run_exit(scope.add_finalizer(lambda _: Effect.die(defect)))
    await pass_time(rt, clock)

    assert adding == failed(Die(defect))
    assert closing.poll() == Success(None)


# ---- what a close reports


@pytest.mark.spec("SO4")
@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_each_failing_finalizer_is_reported_once(rt: fb.Runtime, strategy: Strategy) -> None:
    """One that dies and one that raises while building, nothing else."""
    dies, raises = Defect("dies"), Defect("raises")
    scope = Scope(strategy)
    await add(rt, scope, Effect.die(dies))
    await add_callbacks(rt, scope, raising(raises))

    exit = await rt.run_exit(scope.close())

    assert exit == failed(Die(raises), Die(dies))


@pytest.mark.spec("SO4", "PD8")
@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_a_failure_that_the_close_reports_is_not_reported_as_unhandled(
    rt: fb.Runtime, strategy: Strategy
) -> None:
    """Once means once: who gets it from the close has it."""
    unhandled: list[object] = []
    scope = Scope(strategy)
    await add(rt, scope, Effect.die(Defect()))
    await add_callbacks(rt, scope, raising(Defect()))

    fb.set_unhandled_failure_hook(lambda _, cause: unhandled.append(cause))
    try:
        exit = await rt.run_exit(scope.close())
        gc.collect()
    finally:
        fb.set_unhandled_failure_hook(None)

    assert len(cause_of(exit).defects) == 2
    assert unhandled == []


@pytest.mark.spec("SO4")
@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_a_forked_fibers_failure_is_not_reported_by_the_close(
    rt: fb.Runtime, strategy: Strategy
) -> None:
    """A fiber that the close interrupts is no failing finalizer, even if it dies of it."""
    scope = Scope(strategy)
    dies = Effect.never().on_interrupt(raising(Defect()))
    fiber = await rt.run(dies.fork_in(scope, start_immediately=True))

    exit = await rt.run_exit(scope.close())

    assert exit == Success(None)
    assert cause_of(fiber.poll()).has_dies


# ---- child scopes


@pytest.mark.spec("SO5")
async def test_a_fiber_forked_in_a_child_scope_is_interrupted_in_the_childs_place(
    rt: fb.Runtime,
) -> None:
    """The parent's close reaches everything below it, in order."""
    log: list[str] = []
    parent = Scope()
    await add(rt, parent, say(log, "p1"))
    child = parent.fork_scope()
    await rt.run(parked(log, "fiber").fork_in(child, start_immediately=True))
    await add(rt, parent, say(log, "p2"))

    await rt.run(parent.close())

    assert log == ["p2", "fiber", "p1"]


@pytest.mark.spec("SO5")
async def test_closing_a_child_scope_leaves_its_sibling_open(rt: fb.Runtime) -> None:
    """Only what is below it ends."""
    log: list[str] = []
    parent = Scope()
    first, second = parent.fork_scope(), parent.fork_scope()
    await add(rt, first, say(log, "first"))
    await add(rt, second, say(log, "second"))

    await rt.run(first.close())

    assert log == ["first"]
    assert second.state == "open"


# ---- fork_in


@pytest.mark.spec("SO6", "FO5")
async def test_a_forked_fiber_is_a_finalizer_of_its_scope_until_it_ends(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """One while it lives, none after."""
    scope = Scope()
    await rt.run(fb.sleep(1).fork_in(scope))
    during = scope.finalizer_count

    await pass_time(rt, clock, 1)

    assert (during, scope.finalizer_count) == (1, 0)


@pytest.mark.spec("SO6")
@pytest.mark.parametrize("start_immediately", [False, True])
async def test_a_fiber_forked_by_a_plain_call_is_a_finalizer_as_well(
    rt: fb.Runtime, start_immediately: bool
) -> None:
    """scope.fork registers what fork_in registers."""
    scope = Scope()
    fiber = scope.fork(Effect.never(), start_immediately=start_immediately)
    during = scope.finalizer_count

    await rt.run(scope.close())

    assert (during, scope.finalizer_count) == (1, 0)
    assert cause_of(fiber.poll()).has_interrupts_only


@pytest.mark.spec("SO6", "PD20")
async def test_a_close_interrupts_the_fibers_of_the_scope_as_itself(rt: fb.Runtime) -> None:
    """The interruptor is the fiber that runs the close, the reason says why."""
    scope = Scope()
    fiber = await rt.run(Effect.never().fork_in(scope))

    closer = rt.run_fork(scope.close())
    await rt.run(closer.join())

    assert fiber.poll() == interrupted(closer.id, reason="scope closed")


@pytest.mark.spec("SO6", "PD20")
async def test_a_close_hands_its_reason_to_every_fiber_of_the_scope(rt: fb.Runtime) -> None:
    """In place of the usual one."""
    scope = Scope("parallel")
    first = await rt.run(Effect.never().fork_in(scope))
    second = await rt.run(Effect.never().fork_in(scope))

    closer = rt.run_fork(scope.close(reason="system"))
    await rt.run(closer.join())

    expected = interrupted(closer.id, reason="system")
    assert (first.poll(), second.poll()) == (expected, expected)


@pytest.mark.spec("SO6", "SO2")
async def test_a_sequential_close_awaits_each_fiber_before_it_interrupts_the_next(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """A fiber is a finalizer in the scope's order."""
    log: list[str] = []
    scope = Scope("sequential")
    for name in ("1", "2"):
        work = Effect.never().ensuring(slow(log, name))
        await rt.run(work.fork_in(scope, start_immediately=True))

    rt.run_fork(scope.close().flat_map(lambda _: say(log, "closed")))
    await pass_time(rt, clock)

    assert log == ["start2", "end2", "start1", "end1", "closed"]


@pytest.mark.spec("SO6", "SO2")
async def test_a_parallel_close_interrupts_all_fibers_before_it_awaits_one(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """Their clean-ups overlap."""
    log: list[str] = []
    scope = Scope("parallel")
    for name in ("1", "2"):
        work = Effect.never().ensuring(slow(log, name))
        await rt.run(work.fork_in(scope, start_immediately=True))

    rt.run_fork(scope.close().flat_map(lambda _: say(log, "closed")))
    await pass_time(rt, clock)

    assert log == ["start2", "start1", "end2", "end1", "closed"]


@pytest.mark.spec("SO6", "FO5")
@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_ten_thousand_fibers_of_one_scope_end_with_it(
    rt: fb.Runtime, strategy: Strategy
) -> None:
    """Each is a finalizer while it lives, and none is left."""
    scope = Scope(strategy)

    @fb.effect
    async def crowd() -> list[fb.Fiber[Any, Any]]:
        return [await Effect.never().fork_in(scope) for _ in range(10_000)]

    fibers = await rt.run(crowd())
    during = scope.finalizer_count
    await rt.run(scope.close())

    assert (during, scope.finalizer_count) == (10_000, 0)
    assert all(cause_of(fiber.poll()).has_interrupts_only for fiber in fibers)


@pytest.mark.spec("SO6", "FO8")
@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_a_close_waits_for_a_masked_fiber(
    rt: fb.Runtime, clock: TestClock, strategy: Strategy
) -> None:
    """As long as it takes."""
    log: list[str] = []
    scope = Scope(strategy)
    await rt.run(slow(log, "").uninterruptible().fork_in(scope, start_immediately=True))

    rt.run_fork(scope.close().flat_map(lambda _: say(log, "closed")))
    await pass_time(rt, clock)

    assert log == ["start", "end", "closed"]


@pytest.mark.spec("SO6", "SO2", "PD16")
@pytest.mark.parametrize("levels", [0, 30])
@pytest.mark.parametrize(
    ("strategy", "order"),
    [
        ("sequential", ["3", "end masked", "start2", "end2", "start1", "end1"]),
        ("parallel", ["3", "start2", "start1", "end masked", "end2", "end1"]),
    ],
)
async def test_a_close_inside_many_immediate_forks_ends_all_in_the_same_order(
    rt: fb.Runtime, clock: TestClock, strategy: Strategy, order: list[str], levels: int
) -> None:
    """Near the top what it ends runs on its own stack, deeper down by the trampoline."""
    log: list[str] = []
    scope = Scope(strategy)
    masked = fb.sleep(1.0).flat_map(lambda _: say(log, "end masked")).uninterruptible()
    await add(rt, scope, slow(log, "1"))
    await rt.run(Effect.never().ensuring(slow(log, "2")).fork_in(scope, start_immediately=True))
    await rt.run(masked.fork_in(scope, start_immediately=True))
    await add(rt, scope, say(log, "3"))

    def inside(level: int) -> Effect[None]:
        if level == 0:
            return scope.close()
        below = Effect.suspend(lambda: inside(level - 1)).fork_child(start_immediately=True)
        return below.flat_map(lambda fiber: fiber.join())

    fiber = rt.run_fork(inside(levels))
    await pass_time(rt, clock)

    assert log == order
    assert peek(fiber) == "ok(None)"


# ---- who closes


@fb.effect
async def closing(scope: Scope, log: list[str]) -> None:
    """Close the scope; log that the close has returned, whatever comes next."""
    try:
        await scope.close()
    finally:
        log.append("close returned")


@pytest.mark.spec("SO6", "FO6")
@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_a_fiber_that_closes_its_own_scope_is_left_out(
    rt: fb.Runtime, clock: TestClock, strategy: Strategy
) -> None:
    """It neither waits for itself nor interrupts itself: it goes on and succeeds."""
    log: list[str] = []
    scope = Scope(strategy)
    work = scope.close().flat_map(lambda _: say(log, "after close")).map(lambda _: 5)

    fiber = await rt.run(work.fork_in(scope))
    await pass_time(rt, clock)

    assert fiber.poll() == Success(5)
    assert log == ["after close"]


@pytest.mark.spec("SO6")
@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_a_fiber_that_closes_its_own_scope_waits_for_the_other_fibers(
    rt: fb.Runtime, clock: TestClock, strategy: Strategy
) -> None:
    """They are interrupted and awaited as by any other closer."""
    log: list[str] = []
    scope = Scope(strategy)
    await rt.run(Effect.never().ensuring(slow(log, "1")).fork_in(scope, start_immediately=True))

    work = fb.sleep(1).flat_map(lambda _: scope.close()).flat_map(lambda _: say(log, "after"))
    await rt.run(work.fork_in(scope))
    await rt.run(Effect.never().ensuring(slow(log, "2")).fork_in(scope, start_immediately=True))
    await pass_time(rt, clock)

    assert sorted(log[:-1]) == ["end1", "end2", "start1", "start2"]
    assert log[-1] == "after"


@pytest.mark.spec("SO6")
@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_a_child_may_close_the_scope_that_its_parent_was_forked_in(
    rt: fb.Runtime, clock: TestClock, strategy: Strategy
) -> None:
    """The parent is signalled and not waited for; the close returns."""
    log: list[str] = []
    scope = Scope(strategy)

    @fb.effect
    async def parent() -> None:
        try:
            child = await closing(scope, log).fork_child()
            await child.join()
        finally:
            log.append("parent left")

    fiber = await rt.run(parent().fork_in(scope))
    await pass_time(rt, clock)

    assert sorted(log) == ["close returned", "parent left"]
    assert cause_of(fiber.poll()).has_interrupts_only


@pytest.mark.spec("SO6")
@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_a_child_may_close_its_parents_scope_while_the_parent_does_not_look_at_it(
    rt: fb.Runtime, clock: TestClock, strategy: Strategy
) -> None:
    """Supervision alone makes the parent one that waits."""
    log: list[str] = []
    scope = Scope(strategy)

    @fb.effect
    async def parent() -> None:
        await closing(scope, log).fork_child()
        await Effect.never()

    fiber = await rt.run(parent().fork_in(scope))
    await pass_time(rt, clock)

    assert log == ["close returned"]
    assert cause_of(fiber.poll()).has_interrupts_only


@pytest.mark.spec("SO6")
@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_a_child_may_close_the_scope_of_a_parent_whose_body_has_ended(
    rt: fb.Runtime, clock: TestClock, strategy: Strategy
) -> None:
    """The parent's exit waits for the child, whose close does not wait for the parent."""
    log: list[str] = []
    scope = Scope(strategy)

    @fb.effect
    async def parent() -> None:
        child = fb.sleep(1).flat_map(lambda _: closing(scope, log))
        await child.uninterruptible().fork_child(start_immediately=True)

    other = Effect.never().ensuring(slow(log, ""))
    await rt.run(other.fork_in(scope, start_immediately=True))
    fiber = await rt.run(parent().fork_in(scope))
    await pass_time(rt, clock)

    assert log == ["start", "end", "close returned"]
    assert fiber.poll() is not None


@pytest.mark.spec("SO6")
@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_a_grandchild_may_close_the_scope_that_its_ancestor_was_forked_in(
    rt: fb.Runtime, clock: TestClock, strategy: Strategy
) -> None:
    """Whoever waits for the closer through others waits for it as well."""
    log: list[str] = []
    scope = Scope(strategy)

    @fb.effect
    async def middle() -> None:
        child = await closing(scope, log).fork_child()
        await child.join()

    @fb.effect
    async def top() -> None:
        child = await middle().fork_child()
        await child.join()

    fiber = await rt.run(top().fork_in(scope))
    await pass_time(rt, clock)

    assert log == ["close returned"]
    assert cause_of(fiber.poll()).has_interrupts_only


@pytest.mark.spec("SO6")
@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_a_close_by_a_child_signals_the_waiting_parent_as_the_closer(
    rt: fb.Runtime, clock: TestClock, strategy: Strategy
) -> None:
    """Left out of the wait, but not of the interrupt."""
    log: list[str] = []
    closers: list[int] = []
    scope = Scope(strategy)

    @fb.effect
    async def parent() -> None:
        child = await closing(scope, log).fork_child()
        closers.append(child.id)
        await child.join()

    fiber = await rt.run(parent().fork_in(scope))
    await pass_time(rt, clock)

    assert cause_of(fiber.poll()).interruptors == set(closers)


@pytest.mark.spec("SO6", "WI8")
async def test_what_a_signalled_parent_does_reaches_the_closing_child_after_its_close(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """The parent ends and interrupts its child; that lands when the close has returned."""
    log: list[str] = []
    children: list[fb.Fiber[Any, Any]] = []
    scope = Scope()
    await add(rt, scope, slow(log, ""))

    @fb.effect
    async def parent() -> None:
        work = scope.close().ensuring(say(log, "close returned"))
        children.append(await work.flat_map(lambda _: say(log, "after")).fork_child())
        await Effect.never()

    fiber = await rt.run(parent().fork_in(scope))
    await pass_time(rt, clock)

    assert log == ["start", "end", "close returned"]
    assert cause_of(children[0].poll()).interruptors == {fiber.id}


@pytest.mark.spec("SO6")
@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_a_plain_task_that_a_fiber_awaits_may_close_the_fibers_scope(
    rt: fb.Runtime, strategy: Strategy
) -> None:
    """The fiber is signalled, and the close returns without waiting for it."""
    log: list[str] = []
    scope = Scope(strategy)

    async def close_it() -> None:
        await closing(scope, log)

    @fb.effect
    async def body() -> None:
        try:
            await asyncio.create_task(close_it())
        finally:
            log.append("body left")

    fiber = await rt.run(body().fork_in(scope))
    async with asyncio.timeout(DEADLOCKED):
        exit = await rt.run(fiber.exit())

    assert cause_of(exit).has_interrupts_only
    assert log == ["close returned", "body left"]


async def in_a_gather(closing_it: Coroutine[Any, Any, None]) -> None:
    await asyncio.gather(closing_it)


async def in_wait(closing_it: Coroutine[Any, Any, None]) -> None:
    await asyncio.wait([asyncio.create_task(closing_it)])


async def in_wait_for(closing_it: Coroutine[Any, Any, None]) -> None:
    # As a task: wait_for awaits a bare coroutine inline, in the fiber itself (FO6).
    await asyncio.wait_for(asyncio.create_task(closing_it), 60)


async def in_a_task_group(closing_it: Coroutine[Any, Any, None]) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(closing_it)


@pytest.mark.spec("SO6", "AT21")
@pytest.mark.parametrize("waiting", [in_a_gather, in_wait, in_wait_for, in_a_task_group])
async def test_a_task_that_a_fiber_awaits_through_asyncio_may_close_the_fibers_scope(
    rt: fb.Runtime, waiting: Callable[[Coroutine[Any, Any, None]], Awaitable[None]]
) -> None:
    """The fiber waits for the closer, whatever asyncio puts in between."""
    log: list[str] = []
    scope = Scope()

    async def close_it() -> None:
        await closing(scope, log)

    @fb.effect
    async def body() -> None:
        await waiting(close_it())

    fiber = await rt.run(body().fork_in(scope))
    async with asyncio.timeout(DEADLOCKED):
        exit = await rt.run(fiber.exit())

    assert cause_of(exit).has_interrupts_only
    assert log == ["close returned"]


@pytest.mark.spec("SO6", "AT21")
@pytest.mark.parametrize("waiting", [in_a_gather, in_wait, in_wait_for, in_a_task_group])
async def test_a_task_awaited_by_a_task_that_a_fiber_awaits_may_close_the_fibers_scope(
    rt: fb.Runtime, waiting: Callable[[Coroutine[Any, Any, None]], Awaitable[None]]
) -> None:
    """Through plain tasks, too, the fiber waits for the closer."""
    log: list[str] = []
    scope = Scope()

    async def close_it() -> None:
        await closing(scope, log)

    async def between() -> None:
        await waiting(close_it())

    @fb.effect
    async def body() -> None:
        await asyncio.create_task(between())

    fiber = await rt.run(body().fork_in(scope))
    async with asyncio.timeout(DEADLOCKED):
        exit = await rt.run(fiber.exit())

    assert cause_of(exit).has_interrupts_only
    assert log == ["close returned"]


@pytest.mark.spec("SO6")
@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_a_plain_task_that_a_masked_fiber_awaits_may_close_the_fibers_scope(
    rt: fb.Runtime, strategy: Strategy
) -> None:
    """The signal is recorded; the fiber is still not waited for."""
    log: list[str] = []
    scope = Scope(strategy)

    async def close_it() -> None:
        await closing(scope, log)

    @fb.effect
    async def body() -> None:
        with fb.uninterruptible():
            await asyncio.create_task(close_it())
            log.append("region left")

    fiber = await rt.run(body().fork_in(scope))
    async with asyncio.timeout(DEADLOCKED):
        exit = await rt.run(fiber.exit())

    assert cause_of(exit).has_interrupts_only
    assert log == ["close returned", "region left"]


@pytest.mark.spec("SO6")
@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_a_fiber_that_a_masked_member_joins_may_close_the_scope(
    rt: fb.Runtime, clock: TestClock, strategy: Strategy
) -> None:
    """The member waits for the closer, so the close does not wait for the member."""
    log: list[str] = []
    scope = Scope(strategy)
    closer = await rt.run(fb.sleep(1).flat_map(lambda _: closing(scope, log)).fork_detach())
    joining = closer.join().flat_map(lambda _: say(log, "joined")).uninterruptible()

    fiber = await rt.run(joining.fork_in(scope, start_immediately=True))
    await pass_time(rt, clock)

    assert log == ["close returned", "joined"]
    assert fiber.poll() == interrupted(closer.id, reason="scope closed")


@pytest.mark.spec("SO6")
async def test_a_finalizer_of_the_scope_may_fork_a_fiber_that_closes_it(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """A second close from below the first one returns at once."""
    log: list[str] = []
    scope = Scope()

    @fb.effect
    async def finalizer() -> None:
        child = await closing(scope, log).fork_child()
        await child.join()

    await add(rt, scope, finalizer())
    rt.run_fork(scope.close().flat_map(lambda _: say(log, "closed")))
    await pass_time(rt, clock)

    assert log == ["close returned", "closed"]


# ---- waiting without forwarding


def gated(log: list[str], name: str, gate: asyncio.Event) -> Effect[None, Never]:
    """Log start<name>, wait for the gate, log end<name>."""
    waiting = Effect.promise(lambda: gate.wait())
    return chain(say(log, f"start{name}"), waiting, say(log, f"end{name}"))


@pytest.mark.spec("SO7", "PD12")
async def test_cancelling_a_task_that_closes_a_scope_loses_no_finalizer(rt: fb.Runtime) -> None:
    """Neither the one in flight nor those behind it."""
    log: list[str] = []
    gate = asyncio.Event()
    scope = Scope()
    await add(rt, scope, say(log, "1"))
    await add(rt, scope, gated(log, "2", gate))

    async def close_it() -> None:
        await scope.close()

    task = asyncio.create_task(close_it())
    await asyncio.sleep(0)  # the task reaches the finalizer
    task.cancel()
    await asyncio.sleep(0)  # the cancellation reaches the task
    log.append(f"task done: {task.done()}")
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert log == ["start2", "task done: False", "end2", "1"]


@pytest.mark.spec("SO7", "PD12")
async def test_a_task_cancelled_while_it_leaves_a_scope_block_ends_cancelled(
    rt: fb.Runtime,
) -> None:
    """The close does not swallow the cancellation of its closer."""
    log: list[str] = []
    gate = asyncio.Event()

    async def block() -> None:
        async with Scope() as scope:
            await scope.add_finalizer(lambda _: gated(log, "1", gate))
        log.append("behind the block")

    task = asyncio.create_task(block())
    await asyncio.sleep(0)  # the task reaches the finalizer
    task.cancel()
    await asyncio.sleep(0)  # the cancellation reaches the task
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert log == ["start1", "end1"]
    assert task.cancelled()


@pytest.mark.spec("SO7", "SC14")
@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_interrupting_the_closer_does_not_interrupt_the_fibers_it_waits_for_again(
    rt: fb.Runtime, clock: TestClock, strategy: Strategy
) -> None:
    """They keep the one interrupt that the close gave them."""
    log: list[str] = []
    scope = Scope(strategy)
    work = Effect.never().ensuring(slow(log, ""))
    fiber = await rt.run(work.fork_in(scope, start_immediately=True))

    closer = rt.run_fork(scope.close())
    await pass_time(rt, clock, 0.5)
    closer.interrupt_unsafe(by=77)
    await pass_time(rt, clock)

    assert fiber.poll() == interrupted(closer.id, reason="scope closed")
    assert closer.poll() == interrupted(77)
    assert log == ["start", "end"]


@pytest.mark.spec("SO7", "VA3")
@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_a_bound_on_a_close_abandons_the_wait_and_not_the_finalizer(
    rt: fb.Runtime, clock: TestClock, strategy: Strategy
) -> None:
    """close_bounded says that it ran out; the finalizer ends later, in its own time."""
    log: list[str] = []
    scope = Scope(strategy)
    await add(rt, scope, slow(log, "", seconds=5))

    @fb.effect
    async def bounded() -> None:
        closed = await close_bounded(scope, 1)
        log.append(f"closed in time: {closed}")

    rt.run_fork(bounded())
    await pass_time(rt, clock)

    assert log == ["start", "closed in time: False", "end"]


@pytest.mark.spec("SO7")
async def test_a_timeout_on_the_join_of_a_closer_leaves_it_closing(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """Who waits for a close may stop waiting; the close goes on."""
    log: list[str] = []
    scope = Scope()
    await add(rt, scope, say(log, "1"))
    await add(rt, scope, slow(log, "2", seconds=5))
    closer = rt.run_fork(scope.close())

    waiting = rt.run_fork(closer.join().timeout_option(1))
    await pass_time(rt, clock, 1)
    outcome = waiting.poll()
    log.append(f"closer {peek(closer)}")
    await pass_time(rt, clock)

    assert outcome == Success(Nothing)
    assert log == ["start2", "closer PENDING", "end2", "1"]


@pytest.mark.spec("SO6", "FL10")
@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_a_member_that_joins_the_closer_among_others_is_not_awaited(
    rt: fb.Runtime, clock: TestClock, strategy: Strategy
) -> None:
    """join_all waits for each of them."""
    log: list[str] = []
    scope = Scope(strategy)
    closer = await rt.run(fb.sleep(1).flat_map(lambda _: closing(scope, log)).fork_detach())
    other = await rt.run(fb.sleep(2).fork_detach())
    joining = fb.Fiber.join_all([other, closer]).flat_map(lambda _: say(log, "joined"))

    fiber = await rt.run(joining.uninterruptible().fork_in(scope, start_immediately=True))
    await pass_time(rt, clock)

    assert log == ["close returned", "joined"]
    assert fiber.poll() == interrupted(closer.id, reason="scope closed")


# ---- closers below a plain task


def by_the_runtime(rt: fb.Runtime, close_it: Effect[None, Never]) -> Awaitable[None]:
    return rt.run(close_it)


def by_a_task_that_runs_it(rt: fb.Runtime, close_it: Effect[None, Never]) -> Awaitable[None]:
    return asyncio.create_task(rt.run(close_it))


def by_a_child_that_an_effect_of_a_task_joins(
    _: fb.Runtime, close_it: Effect[None, Never]
) -> Awaitable[None]:
    @fb.effect
    async def root() -> None:
        child = await close_it.fork_child()
        await child.exit()

    async def task() -> None:
        await root()

    return asyncio.create_task(task())


def by_a_child_that_an_effect_of_a_task_leaves_behind(
    _: fb.Runtime, close_it: Effect[None, Never]
) -> Awaitable[None]:
    async def task() -> None:
        await close_it.fork_child(start_immediately=True)

    return asyncio.create_task(task())


def by_a_racer_of_an_effect_of_a_task(
    _: fb.Runtime, close_it: Effect[None, Never]
) -> Awaitable[None]:
    async def task() -> None:
        await fb.race(close_it, Effect.never())

    return asyncio.create_task(task())


def by_a_worker_of_a_child(rt: fb.Runtime, close_it: Effect[None, Never]) -> Awaitable[None]:
    workers = fb.all_([close_it, Effect.never()], concurrency=2, discard=True)
    return rt.run(workers.fork_child().flat_map(lambda child: child.join()))


@pytest.mark.spec("SO6", "PD12")
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    "close_by",
    [
        by_the_runtime,
        by_a_task_that_runs_it,
        by_a_child_that_an_effect_of_a_task_joins,
        by_a_child_that_an_effect_of_a_task_leaves_behind,
        by_a_racer_of_an_effect_of_a_task,
        by_a_worker_of_a_child,
    ],
)
async def test_what_a_fiber_awaits_may_close_its_scope_below_a_plain_task(
    rt: fb.Runtime,
    strategy: Strategy,
    close_by: Callable[[fb.Runtime, Effect[None, Never]], Awaitable[None]],
) -> None:
    """From the task the way leads through its effect, and on through children and workers."""
    log: list[str] = []
    scope = Scope(strategy)

    @fb.effect
    async def body() -> None:
        await close_by(rt, closing(scope, log))

    fiber = await rt.run(body().fork_in(scope))
    async with asyncio.timeout(DEADLOCKED):
        exit = await rt.run(fiber.exit())

    assert cause_of(exit).has_interrupts_only
    assert log == ["close returned"]


@pytest.mark.spec("SO6", "WI8")
@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_a_worker_of_a_child_that_its_parent_does_not_join_may_close_the_parents_scope(
    rt: fb.Runtime, clock: TestClock, strategy: Strategy
) -> None:
    """Supervision makes the parent wait; the worker closes before anyone is suspended."""
    log: list[str] = []
    scope = Scope(strategy)
    workers = fb.all_([closing(scope, log), Effect.never()], concurrency=2)

    work = workers.fork_child(start_immediately=True)
    fiber = await rt.run(work.fork_in(scope))
    await pass_time(rt, clock)

    assert fiber.done()
    assert log == ["close returned"]


# ---- parallel closes, whose finalizers run in fibers of their own


@pytest.mark.spec("SO6", "SO5", "FO6")
@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_a_fiber_of_a_child_scope_that_closes_the_parent_is_left_out(
    rt: fb.Runtime, clock: TestClock, strategy: Strategy
) -> None:
    """As of its own scope: the close of the child ends all but the closer, and then returns."""
    log: list[str] = []
    scope = Scope(strategy)
    child = scope.fork_scope()
    await add(rt, child, slow(log, "1"))
    await rt.run(Effect.never().ensuring(slow(log, "2")).fork_in(child, start_immediately=True))
    work = scope.close().flat_map(lambda _: say(log, "after close")).map(lambda _: 5)

    fiber = await rt.run(work.fork_in(child))
    await pass_time(rt, clock)

    assert fiber.poll() == Success(5)
    assert log == ["start2", "end2", "start1", "end1", "after close"]


@pytest.mark.spec("SO6", "SO5")
@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_a_child_may_close_the_parent_of_the_scope_that_its_own_parent_was_forked_in(
    rt: fb.Runtime, clock: TestClock, strategy: Strategy
) -> None:
    """The parent waits for the closer: signalled, not awaited, and the rest of its scope ends."""
    log: list[str] = []
    scope = Scope(strategy)
    child_scope = scope.fork_scope()
    await add(rt, child_scope, say(log, "finalizer"))

    @fb.effect
    async def parent() -> None:
        child = await closing(scope, log).fork_child()
        await child.join()

    fiber = await rt.run(parent().fork_in(child_scope))
    await pass_time(rt, clock)

    assert cause_of(fiber.poll()).has_interrupts_only
    assert log == ["finalizer", "close returned"]


@pytest.mark.spec("SO6", "PD20", "FO12")
@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_a_close_interrupts_the_fibers_of_child_scopes_as_itself(
    rt: fb.Runtime, strategy: Strategy
) -> None:
    """Not as some fiber that the reader of a cause has never heard of."""
    scope = Scope(strategy)
    inner = scope.fork_scope("parallel").fork_scope()
    fiber = await rt.run(Effect.never().fork_in(inner))

    closer = rt.run_fork(scope.close())
    await rt.run(closer.join())

    assert fiber.poll() == interrupted(closer.id, reason="scope closed")


@pytest.mark.spec("SO6", "SO4", "PD8")
async def test_a_finalizer_of_a_parallel_close_that_waits_for_the_closer_is_not_awaited(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """The close returns without its outcome; what it fails with later is told of."""
    log: list[str] = []
    scope = Scope("parallel")
    boom = Defect("late")
    closer = rt.run_fork(fb.sleep(1).flat_map(lambda _: closing(scope, log)).map(lambda _: 5))
    await add(rt, scope, say(log, "other"))
    await add(rt, scope, closer.exit().flat_map(lambda _: Effect.die(boom)))

    with unhandled_failures() as unhandled:
        await pass_time(rt, clock)

    assert closer.poll() == Success(5)
    assert log == ["other", "close returned"]
    assert [cause.defects for _, cause in unhandled] == [(boom,)]
