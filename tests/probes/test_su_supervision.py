"""Probes SU: children, how a parent's end ends them, and what a fork inherits."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Never

import pytest
from returns.result import Failure, Success

import fibers as fb
from fibers import Cause, Die, Effect, Fail, Fiber, Interrupt, Tag
from tests.probes.kit_d import (
    Boom,
    Defect,
    at_gate,
    cause_of,
    interrupted_by,
    my_id,
    new_gate,
    parked,
    say,
    settle,
    slow_farewell,
    steps,
    unhandled_failures,
)

if TYPE_CHECKING:
    from fibers.testing import TestClock

pytestmark = pytest.mark.lifecycle

MODE: Tag[str] = Tag("mode", default="plain")
COLOUR: ContextVar[str] = ContextVar("colour", default="none")


@fb.effect
async def read_mode() -> str:
    """The service under MODE, as the running fiber sees it."""
    return await MODE


# ---- when a child starts


@pytest.mark.spec("SU1")
async def test_deferred_children_start_after_a_yield_immediate_ones_at_once() -> None:
    """Deferred is the default; start_immediately runs the child's first part at once."""
    log: list[str] = []

    @fb.effect
    async def parent() -> None:
        await steps(say(log, "d1"), say(log, "d2")).fork_child()
        await say(log, "i1").fork_child(start_immediately=True)
        log.append("parent")
        await Effect.yield_now()
        log.append("after-yield")

    await parent()

    assert log == ["i1", "parent", "d1", "d2", "after-yield"]


@pytest.mark.spec("SU1")
async def test_the_same_start_order_holds_in_a_chain_of_combinators() -> None:
    """Nothing of it depends on coroutine bodies."""
    log: list[str] = []

    await steps(
        steps(say(log, "d1"), say(log, "d2")).fork_child(),
        say(log, "i1").fork_child(start_immediately=True),
        say(log, "parent"),
        Effect.yield_now(),
        say(log, "after-yield"),
    )

    assert log == ["i1", "parent", "d1", "d2", "after-yield"]


@pytest.mark.spec("SU1")
async def test_deferred_children_start_in_the_order_of_their_forks() -> None:
    """First forked, first started."""
    log: list[str] = []

    await steps(
        say(log, "first").fork_child(),
        say(log, "second").fork_child(),
        say(log, "third").fork_child(),
        Effect.yield_now(),
    )

    assert log == ["first", "second", "third"]


@pytest.mark.spec("SU1", "PD16")
@pytest.mark.parametrize("levels", [1, 10_000])
async def test_immediate_children_nest_without_a_python_stack(levels: int) -> None:
    """Each level starts the next before its own fork returns, ten thousand deep."""
    log: list[str] = []

    def nest(level: int) -> Effect[Any, Never]:
        if level == 0:
            return say(log, "innermost")
        return Effect.suspend(lambda: nest(level - 1).fork_child(start_immediately=True))

    await steps(nest(levels), say(log, "back at the top"))

    assert log == ["innermost", "back at the top"]


@pytest.mark.spec("SU1", "PD16")
async def test_coroutine_bodies_that_fork_immediately_nest_without_a_python_stack() -> None:
    """The same ten thousand levels, written as bodies."""
    log: list[str] = []

    @fb.effect
    async def nest(level: int) -> None:
        if level == 0:
            log.append("innermost")
        else:
            await nest(level - 1).fork_child(start_immediately=True)

    await steps(nest(10_000), say(log, "back at the top"))

    assert log == ["innermost", "back at the top"]


@pytest.mark.spec("SU2")
async def test_a_deferred_child_of_a_parent_that_never_yields_does_not_start() -> None:
    """It is interrupted by the parent's end before its first step."""
    log: list[str] = []

    @fb.effect
    async def parent() -> tuple[int, Fiber[None, Never]]:
        return my_id(), await say(log, "child").fork_child()

    parent_id, child = await parent()

    assert log == []
    assert interrupted_by(child.poll()) == [parent_id]


@pytest.mark.spec("SU2")
async def test_a_deferred_body_of_a_parent_that_fails_without_yielding_does_not_start() -> None:
    """A failing parent ends its children in the same way; `finally` has nothing to undo."""
    log: list[str] = []
    children: list[Fiber[None, Never]] = []

    @fb.effect
    async def child() -> None:
        try:
            log.append("child")
        finally:
            log.append("finally")

    @fb.effect(raises=Boom)
    async def parent() -> None:
        children.append(await child().fork_child())
        raise Boom

    await parent().exit()
    (forked,) = children
    exit = await forked.exit()

    assert log == []
    assert cause_of(exit).has_interrupts_only


# ---- the parent's end


@pytest.mark.spec("SU3")
async def test_a_parents_exit_is_withheld_until_its_childs_finalizer_has_ended(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """The value is computed; the exit comes after the child's end."""
    log: list[str] = []

    @fb.effect
    async def parent() -> int:
        await parked(steps(fb.sleep(1), say(log, "child fin"))).fork_child()
        await Effect.yield_now()
        log.append("body end")
        return 1

    fiber = rt.run_fork(parent())
    await settle(rt, clock)
    log.append(f"poll {fiber.poll()}")
    await rt.run(clock.adjust(1))

    assert log == ["body end", "poll None", "child fin"]
    assert fiber.poll() == Success(1)


@pytest.mark.spec("SU3")
async def test_a_child_body_awaits_in_finally_before_its_parent_ends(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """The same with try/finally in a coroutine."""
    log: list[str] = []

    @fb.effect
    async def child() -> None:
        try:
            await fb.sleep(60)
        finally:
            await fb.sleep(1)
            log.append("child fin")

    fiber = rt.run_fork(child().fork_child(start_immediately=True).map(lambda _: 1))
    await settle(rt, clock)
    log.append(f"poll {fiber.poll()}")
    await rt.run(clock.adjust(1))

    assert log == ["poll None", "child fin"]
    assert fiber.poll() == Success(1)


@pytest.mark.spec("SU3", "WI8")
async def test_a_parent_interrupted_while_its_exit_is_withheld_loses_its_success(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """The value becomes the interrupt, still after the child's finalizer."""
    log: list[str] = []
    parent = slow_farewell(log, "child", 1).fork_child(start_immediately=True).map(lambda _: 1)
    fiber = rt.run_fork(parent)
    await settle(rt, clock)

    fiber.interrupt_unsafe(by=5)
    still = fiber.poll()
    await rt.run(clock.adjust(1))

    assert still is None
    assert log == ["schild", "echild"]
    assert interrupted_by(fiber.poll()) == [5]


@pytest.mark.spec("SU3", "WI8")
async def test_a_failed_parent_interrupted_while_withheld_keeps_its_failure(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """The interrupt is added after it."""
    error = Boom("kept")
    log: list[str] = []
    forking = slow_farewell(log, "child", 1).fork_child(start_immediately=True)
    fiber = rt.run_fork(forking.flat_map(lambda _: Effect.fail(error)))
    await settle(rt, clock)

    fiber.interrupt_unsafe(by=5)
    await rt.run(clock.adjust(1))

    assert fiber.poll() == Failure(Cause((Fail(error), Interrupt(by=5, reason=None))))


@pytest.mark.spec("SU4")
def test_run_returns_after_the_finalizer_of_a_live_child() -> None:
    """The edge gives its value only when nothing of the run is alive."""
    log: list[str] = []
    farewell = steps(Effect.yield_now(), Effect.yield_now(), say(log, "child fin"))

    value = fb.run(parked(farewell).fork_child(start_immediately=True).map(lambda _: 1))
    log.append(f"returned {value}")

    assert log == ["child fin", "returned 1"]


@pytest.mark.spec("SU4")
async def test_an_awaited_root_gives_its_value_after_the_childs_finalizer() -> None:
    """An effect awaited in a plain task ends its children first, too."""
    log: list[str] = []
    farewell = steps(Effect.yield_now(), Effect.yield_now(), say(log, "child fin"))

    value = await parked(farewell).fork_child(start_immediately=True).map(lambda _: 1)
    log.append(f"returned {value}")

    assert log == ["child fin", "returned 1"]


@pytest.mark.spec("SU5")
async def test_an_interrupt_unwinds_parent_then_child_then_grandchild() -> None:
    """Each level ends its own children when it has ended itself."""
    log: list[str] = []
    grandchild = parked(say(log, "grandchild"))
    child = steps(grandchild.fork_child(start_immediately=True), parked(say(log, "child")))
    parent = steps(child.fork_child(start_immediately=True), parked(say(log, "parent")))
    fiber = fb.run_fork(parent)

    await fiber.interrupt()

    assert log == ["parent", "child", "grandchild"]


@pytest.mark.spec("SU5")
async def test_nested_bodies_run_their_finally_from_the_outside_in() -> None:
    """The same order with try/finally; asynchronous parts don't change it."""
    log: list[str] = []

    @fb.effect
    async def family(name: str, *younger: str) -> None:
        if younger:
            await family(*younger).fork_child(start_immediately=True)
        try:
            await Effect.never()
        finally:
            await Effect.yield_now()
            log.append(name)

    fiber = fb.run_fork(family("parent", "child", "grandchild"))

    await fiber.interrupt()

    assert log == ["parent", "child", "grandchild"]


@pytest.mark.spec("SU5", "PD16")
async def test_ten_thousand_nested_children_are_all_interrupted() -> None:
    """The end of the top reaches the innermost child, without a Python stack."""
    log: list[str] = []

    def nest(level: int) -> Effect[Any, Never]:
        if level == 0:
            return parked(say(log, "innermost"))
        return Effect.suspend(
            lambda: steps(nest(level - 1).fork_child(start_immediately=True), Effect.never())
        )

    fiber = fb.run_fork(steps(nest(10_000)))

    await fiber.interrupt()

    assert log == ["innermost"]


@pytest.mark.spec("SU6")
async def test_children_are_interrupted_in_fork_order() -> None:
    """First forked, first signalled."""
    log: list[str] = []
    forks = [parked(say(log, name)).fork_child(start_immediately=True) for name in "abc"]

    await steps(*forks)

    assert log == ["a", "b", "c"]


@pytest.mark.spec("SU6")
async def test_every_child_is_signalled_before_one_is_awaited(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """A slow finalizer of the first doesn't hold up the second."""
    log: list[str] = []
    forks = [
        slow_farewell(log, name, seconds).fork_child(start_immediately=True)
        for name, seconds in (("1", 3.0), ("2", 2.0), ("3", 1.0))
    ]

    fiber = rt.run_fork(steps(*forks))
    await rt.run(clock.adjust(3))

    assert log == ["s1", "s2", "s3", "e3", "e2", "e1"]
    assert fiber.poll() == Success(None)


@pytest.mark.spec("SU6", "PD20")
async def test_children_are_interrupted_by_their_parent_because_it_ended() -> None:
    """Interruptor and reason name the supervision."""

    @fb.effect
    async def parent() -> tuple[int, list[Fiber[None, Never]]]:
        log: list[str] = []
        child = parked(say(log, "end"))
        return my_id(), [await child.fork_child(start_immediately=True) for _ in range(3)]

    parent_id, children = await parent()

    expected = Failure(Cause((Interrupt(by=parent_id, reason="parent ended"),)))
    assert [child.poll() for child in children] == [expected] * 3


@pytest.mark.spec("SU7")
@pytest.mark.parametrize(
    "ending", [Effect.fail(Boom()), Effect.die(Defect())], ids=["failure", "defect"]
)
async def test_a_child_that_goes_wrong_leaves_its_parent_alive(
    ending: Effect[Never, Boom],
) -> None:
    """Supervision goes down, never up."""

    @fb.effect
    async def parent() -> str:
        child = await ending.fork_child()
        await Effect.yield_now()
        return "alive" if child.poll() is not None else "child has not run"

    exit = await parent().exit()

    assert exit == Success("alive")


@pytest.mark.spec("SU7")
async def test_a_defect_in_a_childs_finalizer_does_not_change_the_parents_exit() -> None:
    """It stays in the child's exit."""
    defect = Defect("in the finalizer")

    fiber = fb.run_fork(parked(Effect.die(defect)).fork_child(start_immediately=True))
    child = (await fiber.exit()).unwrap()

    assert cause_of(child.poll()).defects == (defect,)


@pytest.mark.spec("SU8")
async def test_a_dying_parent_interrupts_its_children_and_keeps_its_own_defect_only() -> None:
    """The children's interrupts are not part of the parent's cause."""
    defect = Defect("parent")
    log: list[str] = []

    @fb.effect
    async def parent() -> None:
        await parked(say(log, "child")).fork_child(start_immediately=True)
        raise defect

    exit = await parent().exit()

    assert log == ["child"]
    assert exit == Failure(Cause((Die(defect),)))


@pytest.mark.spec("SU8")
async def test_a_failing_parent_interrupts_its_children_and_keeps_its_own_error_only() -> None:
    """The same for a typed failure."""
    error = Boom("parent")
    log: list[str] = []
    forking = parked(say(log, "child")).fork_child(start_immediately=True)

    exit = await fb.run_fork(forking.flat_map(lambda _: Effect.fail(error))).exit()

    assert log == ["child"]
    assert exit == Failure(Cause((Fail(error),)))


@pytest.mark.spec("SU10")
async def test_a_detached_fiber_survives_the_end_of_its_forker() -> None:
    """fork_detach has no supervisor."""
    gate = new_gate()
    parent = fb.run_fork(at_gate(gate).fork_detach(start_immediately=True))

    detached = (await parent.exit()).unwrap()
    after_the_parent = detached.poll()
    gate.set_result(7)

    assert after_the_parent is None
    assert await detached == 7


@pytest.mark.spec("SU10")
async def test_a_deferred_detached_fiber_starts_after_its_forker_has_ended() -> None:
    """The end of the forker doesn't take it away before its first step."""
    log: list[str] = []

    forker = fb.run_fork(say(log, "detached").fork_detach())
    before = list(log)
    detached = (await forker.exit()).unwrap()
    await detached.exit()

    assert before == []
    assert log == ["detached"]


@pytest.mark.spec("SU10")
async def test_a_detached_fiber_is_not_interrupted_with_its_forker() -> None:
    """Nor by an interrupt of the forker."""
    gate = new_gate()
    detached: list[Fiber[int, Never]] = []

    @fb.effect
    async def forker() -> None:
        detached.append(await at_gate(gate).fork_detach(start_immediately=True))
        await Effect.never()

    parent = fb.run_fork(forker())
    await parent.interrupt()
    (fiber,) = detached
    after_the_interrupt = fiber.poll()
    gate.set_result(7)

    assert after_the_interrupt is None
    assert await fiber == 7


@pytest.mark.spec("SU11")
async def test_a_parent_interrupted_in_a_join_of_its_child_interrupts_the_child() -> None:
    """Not through the join: by supervision, after the parent has unwound."""
    log: list[str] = []
    children: list[Fiber[None, Never]] = []

    @fb.effect
    async def parent() -> None:
        child = await parked(say(log, "child")).fork_child(start_immediately=True)
        children.append(child)
        try:
            await child.join()
        finally:
            log.append("parent")

    fiber = fb.run_fork(parent())
    await fiber.interrupt(by=5)

    assert log == ["parent", "child"]
    assert interrupted_by(fiber.poll()) == [5]
    assert interrupted_by(children[0].poll()) == [fiber.id]


@pytest.mark.spec("SU11")
async def test_a_chain_interrupted_in_a_join_of_its_child_interrupts_the_child() -> None:
    """The same without a coroutine body."""
    log: list[str] = []
    forking = parked(say(log, "child")).fork_child(start_immediately=True)
    joining = forking.flat_map(lambda child: child.join())
    fiber = fb.run_fork(joining.on_interrupt(lambda _: say(log, "parent")))

    await fiber.interrupt(by=5)

    assert log == ["parent", "child"]
    assert interrupted_by(fiber.poll()) == [5]


# ---- await_all_children


@pytest.mark.spec("SU13")
async def test_await_all_children_waits_for_those_forked_inside_not_for_earlier_ones(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """The child that existed before is still running afterwards."""
    log: list[str] = []

    @fb.effect
    async def parent() -> None:
        earlier = await fb.sleep(10).fork_child(start_immediately=True)
        inside = steps(fb.sleep(1), say(log, "inside"))
        await inside.fork_child(start_immediately=True).await_all_children()
        log.append(f"awaited, earlier {earlier.poll()}")

    fiber = rt.run_fork(parent())
    await rt.run(clock.adjust(1))

    assert log == ["inside", "awaited, earlier None"]
    assert fiber.poll() == Success(None)


@pytest.mark.spec("SU13")
async def test_await_all_children_waits_for_children_that_have_not_started_yet(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """Deferred children inside run to their end; the region gives its own value."""
    log: list[str] = []

    @fb.effect
    async def region() -> int:
        for name, seconds in (("slow", 2.0), ("quick", 1.0)):
            await steps(fb.sleep(seconds), say(log, name)).fork_child()
        return 7

    fiber = rt.run_fork(region().await_all_children())
    await rt.run(clock.adjust(2))

    assert log == ["quick", "slow"]
    assert fiber.poll() == Success(7)


@pytest.mark.spec("SU14")
async def test_await_all_children_of_a_failing_body_waits_and_then_fails(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """The failure is held back, the child runs to its end."""
    error = Boom("held back")
    log: list[str] = []

    @fb.effect(raises=Boom)
    async def region() -> None:
        await steps(fb.sleep(1), say(log, "child ended")).fork_child()
        raise error

    fiber = rt.run_fork(region().await_all_children())
    await settle(rt, clock)
    log.append(f"poll {fiber.poll()}")
    await rt.run(clock.adjust(1))

    assert log == ["poll None", "child ended"]
    assert fiber.poll() == Failure(Cause((Fail(error),)))


@pytest.mark.spec("SU14")
async def test_an_interrupt_while_await_all_children_waits_ends_parent_and_children() -> None:
    """The wait is interruptible; the children end by supervision."""
    log: list[str] = []
    children: list[Fiber[None, Never]] = []

    @fb.effect
    async def region() -> None:
        children.append(await parked(say(log, "child")).fork_child(start_immediately=True))

    waiting = region().await_all_children().on_interrupt(lambda _: say(log, "parent"))
    fiber = fb.run_fork(waiting)

    await fiber.interrupt(by=5)

    assert log == ["parent", "child"]
    assert interrupted_by(fiber.poll()) == [5]
    assert interrupted_by(children[0].poll()) == [fiber.id]


@pytest.mark.spec("SU14")
async def test_an_interrupt_joins_the_failure_that_await_all_children_holds_back() -> None:
    """Neither of the two is lost."""
    error = Boom("held back")
    log: list[str] = []
    forking = parked(say(log, "child")).fork_child(start_immediately=True)
    region = forking.flat_map(lambda _: Effect.fail(error))
    fiber = fb.run_fork(region.await_all_children())

    await fiber.interrupt(by=5)

    assert log == ["child"]
    assert fiber.poll() == Failure(Cause((Fail(error), Interrupt(by=5, reason=None))))


# ---- masks and forks


@pytest.mark.spec("SU15", "WI7")
async def test_a_child_forked_in_an_uninterruptible_parent_is_interruptible() -> None:
    """A fork does not inherit the mask."""

    @fb.effect
    async def parent() -> list[int | None]:
        child = await Effect.never().fork_child(start_immediately=True)
        await child.interrupt(by=9)
        return interrupted_by(child.poll())

    assert await parent().uninterruptible() == [9]


@pytest.mark.spec("SU15", "WI7")
async def test_a_child_forked_in_a_masked_region_of_a_body_is_interruptible() -> None:
    """Nor the mask of a region."""

    @fb.effect
    async def parent() -> list[int | None]:
        with fb.uninterruptible():
            child = await Effect.never().fork_child(start_immediately=True)
            await child.interrupt(by=9)
            return interrupted_by(child.poll())

    assert await parent() == [9]


@pytest.mark.spec("SU15", "WI7")
async def test_inherit_makes_the_child_of_an_uninterruptible_parent_uninterruptible() -> None:
    """The child runs to its end and keeps its success."""
    gate = new_gate()

    @fb.effect
    async def parent() -> tuple[object, fb.Exit[int, Never]]:
        child = await at_gate(gate).fork_child(start_immediately=True, uninterruptible="inherit")
        child.interrupt_unsafe(by=9)
        after_the_interrupt = child.poll()
        gate.set_result(5)
        return after_the_interrupt, await child.exit()

    assert await parent().uninterruptible() == (None, Success(5))


@pytest.mark.spec("SU15", "WI7")
async def test_inherit_from_a_masked_region_of_a_body_makes_the_child_uninterruptible() -> None:
    """Leaving the region later does not unmask the child."""
    gate = new_gate()

    @fb.effect
    async def parent() -> tuple[object, fb.Exit[int, Never]]:
        with fb.uninterruptible():
            child = await at_gate(gate).fork_child(uninterruptible="inherit")
        await Effect.yield_now()
        child.interrupt_unsafe(by=9)
        after_the_interrupt = child.poll()
        gate.set_result(5)
        return after_the_interrupt, await child.exit()

    assert await parent() == (None, Success(5))


@pytest.mark.spec("SU15", "WI7")
async def test_inherit_from_an_interruptible_parent_leaves_the_child_interruptible() -> None:
    """There is nothing to inherit."""

    @fb.effect
    async def parent() -> list[int | None]:
        child = await Effect.never().fork_child(uninterruptible="inherit")
        await child.interrupt(by=9)
        return interrupted_by(child.poll())

    assert await parent() == [9]


@pytest.mark.spec("SU16")
async def test_a_wholly_uninterruptible_parent_still_ends_its_children() -> None:
    """Its mask does not stop supervision, and its exit is its success."""
    log: list[str] = []
    forking = parked(say(log, "child")).fork_child(start_immediately=True)
    parent = steps(forking, say(log, "body end")).uninterruptible()

    exit = await fb.run_fork(parent).exit()

    assert log == ["body end", "child"]
    assert exit == Success(None)


@pytest.mark.spec("SU16")
async def test_a_wholly_masked_body_interrupts_its_children_at_its_end() -> None:
    """The same with a region around the whole body."""
    log: list[str] = []

    @fb.effect
    async def parent() -> str:
        with fb.uninterruptible():
            await parked(say(log, "child")).fork_child(start_immediately=True)
            await Effect.yield_now()
            log.append("body end")
            return "value"

    exit = await fb.run_fork(parent()).exit()

    assert log == ["body end", "child"]
    assert exit == Success("value")


# ---- context


@pytest.mark.spec("SU17", "PD10")
async def test_a_fork_takes_its_context_variables_when_it_is_forked() -> None:
    """What the parent sets later is invisible to a child that starts later still."""

    @fb.effect
    async def child() -> str:
        return COLOUR.get()

    @fb.effect
    async def parent() -> str:
        COLOUR.set("before the fork")
        forked = await child().fork_child()
        COLOUR.set("after the fork")
        return await forked

    fiber = fb.run_fork(parent())

    assert await fiber == "before the fork"


@pytest.mark.spec("SU17", "PD10")
async def test_what_a_child_sets_is_not_seen_by_its_parent() -> None:
    """Each fiber has its own Context."""

    @fb.effect
    async def child() -> None:
        COLOUR.set("child's")

    @fb.effect
    async def parent() -> str:
        COLOUR.set("parent's")
        await child().fork_child(start_immediately=True)
        return COLOUR.get()

    fiber = fb.run_fork(parent())

    assert await fiber == "parent's"


@pytest.mark.spec("SU17")
async def test_a_fork_takes_its_services_when_it_is_forked() -> None:
    """A service that the parent provides later is invisible to the child."""

    @fb.effect
    async def parent() -> str:
        child = await read_mode().fork_child().provide_service(MODE, "at the fork")
        return await child.join().provide_service(MODE, "later")

    assert await parent() == "at the fork"


@pytest.mark.spec("SU17")
async def test_a_reference_falls_back_to_its_default_outside() -> None:
    """Only what runs inside sees the provided one."""

    @fb.effect
    async def parent() -> list[str]:
        inside = await read_mode().provide_service(MODE, "provided")
        return [inside, await read_mode(), await MODE]

    assert await parent() == ["provided", "plain", "plain"]


@pytest.mark.spec("SU18")
@pytest.mark.parametrize("start_immediately", [False, True], ids=["deferred", "immediate"])
async def test_a_child_inherits_services(start_immediately: bool) -> None:
    """Whenever it starts."""
    forking = read_mode().fork_child(start_immediately=start_immediately)
    joining = forking.flat_map(lambda child: child.join())

    assert await joining.provide_service(MODE, "from the parent") == "from the parent"


@pytest.mark.spec("SU18")
async def test_a_grandchild_and_a_detached_fiber_inherit_services() -> None:
    """Down any number of levels, supervised or not."""

    @fb.effect
    async def child() -> list[str]:
        grandchild = await read_mode().fork_child()
        detached = await read_mode().fork_detach()
        return await Fiber.join_all([grandchild, detached])

    joining = child().fork_child().flat_map(lambda fiber: fiber.join())

    assert await joining.provide_service(MODE, "inherited") == ["inherited", "inherited"]


# ---- forks in finalizers


@pytest.mark.spec("SU19")
async def test_a_finalizer_of_an_interrupted_fiber_can_fork_and_await_a_child(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """The child runs to its end; the finalizer goes on after it."""
    log: list[str] = []

    @fb.effect
    async def farewell() -> None:
        child = await steps(fb.sleep(1), say(log, "child end")).fork_child()
        await child.join()
        log.append("finalizer end")

    fiber = rt.run_fork(parked(farewell()))
    fiber.interrupt_unsafe(by=5)
    await rt.run(clock.adjust(1))

    assert log == ["child end", "finalizer end"]
    assert interrupted_by(fiber.poll()) == [5]


@pytest.mark.spec("SU19")
async def test_a_finally_of_an_interrupted_body_can_fork_and_await_a_child(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """The same in a coroutine's own `finally`."""
    log: list[str] = []

    @fb.effect
    async def body() -> None:
        try:
            await fb.sleep(60)
        finally:
            child = await steps(fb.sleep(1), say(log, "child end")).fork_child()
            await child
            log.append("finally end")

    fiber = rt.run_fork(body())
    await settle(rt, clock)
    fiber.interrupt_unsafe(by=5)
    await rt.run(clock.adjust(1))

    assert log == ["child end", "finally end"]
    assert interrupted_by(fiber.poll()) == [5]


@pytest.mark.spec("SU19", "WI8")
async def test_a_child_forked_in_a_finalizer_and_not_awaited_is_interrupted_at_the_end() -> None:
    """Supervision holds for children of finalizers."""
    log: list[str] = []
    farewell = steps(
        parked(say(log, "child")).fork_child(start_immediately=True), say(log, "finalizer end")
    )
    fiber = fb.run_fork(parked(farewell))

    await fiber.interrupt()

    assert log == ["finalizer end", "child"]


@pytest.mark.spec("SU14", "WI5")
async def test_an_interrupt_of_the_body_of_await_all_children_waits_for_no_child() -> None:
    """It passes, and supervision ends the children."""
    log: list[str] = []

    @fb.effect
    async def parent() -> None:
        await (
            Effect.never()
            .on_interrupt(lambda _: say(log, "child"))
            .fork_child(start_immediately=True)
        )
        await Effect.never()

    fiber = fb.run_fork(parent().await_all_children().on_interrupt(lambda _: say(log, "parent")))
    fiber.interrupt_unsafe(by=7)

    assert log == ["parent", "child"]
    assert interrupted_by(fiber.poll()) == [7]


@pytest.mark.spec("PD8")
async def test_two_children_that_failed_unseen_are_both_reported_when_the_parent_ends() -> None:
    """Oldest first, each once."""
    kept: list[fb.Fiber[Any, Any]] = []
    first, second = Defect("first"), Defect("second")

    async def parent() -> None:
        kept.append(await Effect.die(first).fork_child(start_immediately=True))
        kept.append(await Effect.die(second).fork_child(start_immediately=True))
        await Effect.yield_now()

    with unhandled_failures() as seen:
        await fb.run_fork(Effect.promise(parent)).exit()

    assert seen == [fb.Cause([Die(first)]), fb.Cause([Die(second)])]


@pytest.mark.spec("PD8", "SO6")
async def test_two_fibers_of_a_scope_that_failed_unseen_are_both_reported_at_its_close() -> None:
    """The same where a scope owns them."""
    scope = fb.Scope()
    first, second = Defect("first"), Defect("second")
    with unhandled_failures() as seen:
        kept = [scope.fork(Effect.die(error), start_immediately=True) for error in (first, second)]
        before = list(seen)
        await scope.close()
        await scope.close()

    assert all(fiber.done() for fiber in kept)
    assert before == []
    assert seen == [fb.Cause([Die(first)]), fb.Cause([Die(second)])]
