"""Probes SC: the order in which a scope closes, and what its close reports."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Literal, Never

import pytest
from returns.result import Success

import fibers as fb
from fibers import Cause, Die, Effect, Fail, Interrupt, Scope
from tests.probes.kit_e import (
    Boom,
    Defect,
    add,
    add_callbacks,
    cause_of,
    chain,
    failed,
    interrupt_during,
    interrupted,
    pass_time,
    peek,
    raising,
    say,
    show,
    slow,
)

if TYPE_CHECKING:
    from fibers.testing import TestClock

pytestmark = pytest.mark.lifecycle

Strategy = Literal["sequential", "parallel"]
STRATEGIES: list[Strategy] = ["sequential", "parallel"]

DEEP = 10_000  # nested levels, far beyond the recursion limit


# ---- order


@pytest.mark.spec("SC1", "SO2")
async def test_a_sequential_scope_runs_its_finalizers_last_in_first_out(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """Each is awaited before the next one starts."""
    log: list[str] = []
    scope = Scope()
    await add(rt, scope, slow(log, "1"), slow(log, "2"), slow(log, "3"))

    rt.run_fork(scope.close().flat_map(lambda _: say(log, "closed")))
    await pass_time(rt, clock)

    assert log == ["start3", "end3", "start2", "end2", "start1", "end1", "closed"]


@pytest.mark.spec("SC1")
async def test_a_sequential_scope_takes_the_sum_of_its_finalizers_times(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """Three of 1 second each close in 3 seconds."""
    scope = Scope()
    await add(rt, scope, fb.sleep(1), fb.sleep(1), fb.sleep(1))
    fiber = rt.run_fork(scope.close())

    await pass_time(rt, clock, 2.9)
    early = fiber.poll()
    await pass_time(rt, clock, 0.1)

    assert early is None
    assert fiber.poll() == Success(None)


@pytest.mark.spec("SC2", "SO2")
async def test_a_parallel_scope_starts_all_its_finalizers_last_in_first_out(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """They end as they can; the close returns after the last one."""
    log: list[str] = []
    scope = Scope("parallel")
    await add(rt, scope, *(slow(log, f"{n}", seconds=n) for n in (1, 2, 3)))

    rt.run_fork(scope.close().flat_map(lambda _: say(log, "closed")))
    await pass_time(rt, clock)

    assert log == ["start3", "start2", "start1", "end1", "end2", "end3", "closed"]


@pytest.mark.spec("SC2", "VF7")
async def test_a_parallel_scope_takes_the_time_of_its_longest_finalizer(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """Three of 1 second each close in 1 second."""
    scope = Scope("parallel")
    await add(rt, scope, fb.sleep(1), fb.sleep(1), fb.sleep(1))
    fiber = rt.run_fork(scope.close())

    await pass_time(rt, clock, 0.9)
    early = fiber.poll()
    await pass_time(rt, clock, 0.1)

    assert early is None
    assert fiber.poll() == Success(None)


@pytest.mark.spec("SC1")
async def test_ten_thousand_finalizers_close_in_order(rt: fb.Runtime) -> None:
    """Without a Python stack per finalizer."""
    log: list[int] = []
    scope = Scope()

    def note(n: int) -> Effect[None, Never]:
        return Effect.sync(lambda: log.append(n))

    await add(rt, scope, *(note(n) for n in range(DEEP)))
    await rt.run(scope.close())

    assert log == list(range(DEEP - 1, -1, -1))


# ---- failing finalizers


@pytest.mark.spec("SC3", "SO2")
@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_a_finalizer_that_dies_stops_no_other(rt: fb.Runtime, strategy: Strategy) -> None:
    """All run, in the scope's order."""
    log: list[str] = []
    scope = Scope(strategy)
    dies = say(log, "2").flat_map(lambda _: Effect.die(Defect()))
    await add(rt, scope, say(log, "1"), dies, say(log, "3"))

    await rt.run_exit(scope.close())

    assert log == ["3", "2", "1"]


@pytest.mark.spec("SC3")
async def test_a_sequential_close_reports_its_failures_in_run_order(rt: fb.Runtime) -> None:
    """The finalizer that ran first comes first."""
    first, second, third = Defect("1"), Defect("2"), Defect("3")
    scope = Scope()
    await add(rt, scope, Effect.die(first), Effect.die(second), Effect.die(third))

    exit = await rt.run_exit(scope.close())

    assert exit == failed(Die(third), Die(second), Die(first))


@pytest.mark.spec("SC3")
async def test_a_parallel_close_reports_its_failures_last_in_first_out(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """Not in the order in which they came."""
    defects = [Defect("1"), Defect("2"), Defect("3")]
    scope = Scope("parallel")

    def die_after(seconds: float, defect: Defect) -> Effect[None, Never]:
        return fb.sleep(seconds).flat_map(lambda _: Effect.die(defect))

    await add(rt, scope, *(die_after(n, defect) for n, defect in enumerate(defects, 1)))
    fiber = rt.run_fork(scope.close())
    await pass_time(rt, clock)

    assert fiber.poll() == failed(*(Die(defect) for defect in reversed(defects)))


@pytest.mark.spec("SC4", "SO4")
@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_the_exit_passed_to_close_is_not_in_its_result(
    rt: fb.Runtime, strategy: Strategy
) -> None:
    """A failure that ends the scope is not a failure of the close."""
    scope = Scope(strategy)
    await add(rt, scope, Effect.succeed(None))

    assert await rt.run_exit(scope.close(failed(Fail(Boom())))) == Success(None)


@pytest.mark.spec("SC4", "SO4")
@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_only_the_finalizers_failures_are_in_the_result_of_close(
    rt: fb.Runtime, strategy: Strategy
) -> None:
    """Also where the exit passed in is a failure."""
    defect = Defect()
    scope = Scope(strategy)
    await add(rt, scope, Effect.die(defect))

    assert await rt.run_exit(scope.close(failed(Fail(Boom())))) == failed(Die(defect))


@pytest.mark.spec("SC15", "SO4")
@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_a_callback_that_raises_while_building_stops_no_other_finalizer(
    rt: fb.Runtime, strategy: Strategy
) -> None:
    """The ones before and behind it run."""
    log: list[str] = []
    scope = Scope(strategy)
    await add(rt, scope, say(log, "1"))
    await add_callbacks(rt, scope, raising(Defect()))
    await add(rt, scope, say(log, "3"))

    await rt.run_exit(scope.close())

    assert log == ["3", "1"]


@pytest.mark.spec("SC15", "SO4")
@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_a_callback_that_raises_while_building_is_reported_once(
    rt: fb.Runtime, strategy: Strategy
) -> None:
    """As a defect of the very object."""
    defect = Defect()
    scope = Scope(strategy)
    await add(rt, scope, Effect.succeed(None))
    await add_callbacks(rt, scope, raising(defect))
    await add(rt, scope, Effect.succeed(None))

    exit = await rt.run_exit(scope.close())

    assert exit == failed(Die(defect))
    assert cause_of(exit).defects[0] is defect


@pytest.mark.spec("SC15", "SC5")
@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_a_second_close_does_not_report_the_failures_again(
    rt: fb.Runtime, strategy: Strategy
) -> None:
    """There is nothing left to close."""
    scope = Scope(strategy)
    await add_callbacks(rt, scope, raising(Defect()))
    await rt.run_exit(scope.close())

    assert await rt.run_exit(scope.close()) == Success(None)


# ---- closing twice, adding late


@pytest.mark.spec("SC5", "SO1")
async def test_a_second_close_returns_while_the_first_is_still_running(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """It neither waits nor runs anything."""
    log: list[str] = []
    scope = Scope()
    await add(rt, scope, slow(log, "1"))

    first = rt.run_fork(scope.close())
    second = rt.run_fork(scope.close())
    log.append(f"first {peek(first)}, second {peek(second)}")
    await pass_time(rt, clock)

    assert log == ["start1", "first PENDING, second ok(None)", "end1"]


@pytest.mark.spec("SC6", "SO3")
async def test_a_finalizer_added_to_a_closed_scope_runs_at_once(rt: fb.Runtime) -> None:
    """With the exit that the scope was closed with, before add_finalizer returns."""
    log: list[str] = []
    scope = Scope()
    await rt.run(scope.close(failed(Fail(Boom("z")))))

    added = scope.add_finalizer(lambda ended: say(log, show(ended)))
    await rt.run(added.flat_map(lambda _: say(log, "added")))

    assert log == ["Fail(z)", "added"]


@pytest.mark.spec("SC6", "SO3")
async def test_the_value_of_a_finalizer_added_to_a_closed_scope_is_nobodys(rt: fb.Runtime) -> None:
    """As where the scope is open: add_finalizer gives none."""
    scope = Scope()
    await rt.run(scope.close())

    of_an_effect = await rt.run_exit(scope.add_finalizer(lambda _: Effect.succeed(5)))
    of_an_exit = await rt.run_exit(scope.add_finalizer(lambda _: Success(5)))

    assert of_an_effect == of_an_exit == Success(None)


@pytest.mark.spec("SC6", "SO3")
async def test_the_failure_of_a_finalizer_added_to_a_closed_scope_is_the_callers(
    rt: fb.Runtime,
) -> None:
    """No close is left that could report it."""
    defect = Defect()
    scope = Scope()
    await rt.run(scope.close())

    exit = await rt.run_exit(scope.add_finalizer(lambda _: Effect.die(defect)))

    assert exit == failed(Die(defect))


@pytest.mark.spec("SC6", "SO3")
async def test_the_error_of_a_callback_added_to_a_closed_scope_is_the_callers(
    rt: fb.Runtime,
) -> None:
    """Raising while building its effect comes to the same."""
    defect = Defect()
    scope = Scope()
    await rt.run(scope.close())

    assert await rt.run_exit(scope.add_finalizer(raising(defect))) == failed(Die(defect))


# ---- child scopes


@pytest.mark.spec("SC8", "SO5")
async def test_a_child_scope_has_its_place_in_the_parents_order(rt: fb.Runtime) -> None:
    """It closes where it was forked: behind what came later, before what came earlier."""
    log: list[str] = []
    parent = Scope()
    await add(rt, parent, say(log, "p1"))
    child = parent.fork_scope()
    await add(rt, child, say(log, "c1"), say(log, "c2"))
    await add(rt, parent, say(log, "p2"))

    await rt.run(parent.close())

    assert log == ["p2", "c2", "c1", "p1"]
    assert child.state == "closed"


@pytest.mark.spec("SC8", "SO5")
async def test_a_child_scope_gets_the_parents_exit(rt: fb.Runtime) -> None:
    """Its finalizers see what ended the parent."""
    log: list[str] = []
    parent = Scope()
    child = parent.fork_scope()
    await add_callbacks(rt, child, lambda ended: say(log, show(ended)))

    await rt.run(parent.close(failed(Fail(Boom("z")))))

    assert log == ["Fail(z)"]


@pytest.mark.spec("SC8", "SO5")
async def test_closing_a_child_scope_detaches_it_from_its_parent(rt: fb.Runtime) -> None:
    """The parent holds nothing of it any more."""
    parent = Scope()
    before = parent.finalizer_count
    child = parent.fork_scope()
    held = parent.finalizer_count

    await rt.run(child.close())

    assert (before, held, parent.finalizer_count) == (0, 1, 0)
    assert parent.state != "closed"


@pytest.mark.spec("SC8")
async def test_a_failure_in_a_child_scope_is_reported_by_the_parents_close(rt: fb.Runtime) -> None:
    """In the child's place among the parent's own."""
    last, inner, first = Defect("last"), Defect("inner"), Defect("first")
    parent = Scope()
    await add(rt, parent, Effect.die(last))
    await add(rt, parent.fork_scope(), Effect.die(inner))
    await add(rt, parent, Effect.die(first))

    exit = await rt.run_exit(parent.close())

    assert exit == failed(Die(first), Die(inner), Die(last))


@pytest.mark.spec("SC8")
async def test_ten_thousand_nested_scopes_close_from_the_inside_out(rt: fb.Runtime) -> None:
    """Without a Python stack per scope."""
    log: list[int] = []

    def note(n: int) -> Effect[None, Never]:
        return Effect.sync(lambda: log.append(n))

    root = scope = Scope()
    for level in range(DEEP):
        await add(rt, scope, note(level))
        scope = scope.fork_scope()
    await rt.run(root.close())

    assert log == list(range(DEEP - 1, -1, -1))
    assert scope.state == "closed"


@pytest.mark.spec("SC9")
async def test_a_child_of_a_closed_scope_is_closed_with_the_same_exit(rt: fb.Runtime) -> None:
    """What is added to it runs at once and is told so."""
    log: list[str] = []
    parent = Scope()
    await rt.run(parent.close(failed(Fail(Boom("z")))))

    child = parent.fork_scope()
    state = child.state
    await add_callbacks(rt, child, lambda ended: say(log, show(ended)))

    assert state == "closed"
    assert log == ["Fail(z)"]


@pytest.mark.spec("SC10")
async def test_a_child_scope_closed_earlier_is_not_run_again(rt: fb.Runtime) -> None:
    """The parent's close finds only its own finalizers."""
    log: list[str] = []
    parent = Scope()
    child = parent.fork_scope()
    await add(rt, child, say(log, "c"))
    await add(rt, parent, say(log, "p"))

    await rt.run(child.close())
    log.append("child closed")
    await rt.run(parent.close())

    assert log == ["c", "child closed", "p"]


@pytest.mark.spec("SC10")
async def test_a_parallel_child_of_a_sequential_scope_closes_in_parallel(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """Its two finalizers of 1 and 2 seconds end in that order."""
    log: list[str] = []
    parent = Scope("sequential")
    child = parent.fork_scope("parallel")
    await add(rt, child, chain(fb.sleep(1), say(log, "c1")), chain(fb.sleep(2), say(log, "c2")))
    await add(rt, parent, say(log, "p"))

    rt.run_fork(parent.close())
    await pass_time(rt, clock, 2)

    assert log == ["p", "c1", "c2"]


@pytest.mark.spec("SC10")
async def test_a_sequential_child_of_a_parallel_scope_closes_in_sequence(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """Beside the parent's own finalizers, but one after the other."""
    log: list[str] = []
    parent = Scope("parallel")
    await add(rt, parent, slow(log, "P", seconds=3))
    await add(rt, parent.fork_scope("sequential"), slow(log, "1"), slow(log, "2"))

    rt.run_fork(parent.close())
    await pass_time(rt, clock, 3)

    assert log == ["start2", "startP", "end2", "start1", "end1", "endP"]


# ---- use, provide, scoped


@pytest.mark.spec("SC11")
@pytest.mark.parametrize(
    "ending", [Effect.succeed("v"), Effect.fail(Boom("b")), Effect.die(Defect("d"))]
)
async def test_use_closes_the_scope_with_the_effects_exit(
    rt: fb.Runtime, ending: Effect[str, Boom]
) -> None:
    """The finalizers see how the effect ended, and so does the caller."""
    seen: list[object] = []
    scope = Scope()
    await add_callbacks(rt, scope, lambda ended: Effect.sync(lambda: seen.append(ended)))

    exit = await rt.run_exit(scope.use(ending))

    assert seen == [exit]
    assert scope.state == "closed"


@pytest.mark.spec("SC11")
async def test_use_closes_the_scope_when_its_fiber_is_interrupted(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """The close is a finalizer: it ends before the fiber does."""
    log: list[str] = []
    scope = Scope()
    await add_callbacks(rt, scope, lambda ended: slow(log, f" {show(ended)}"))

    exit = await interrupt_during(rt, clock, scope.use(Effect.never()))

    assert exit == interrupted(77)
    assert log == ["start I(77)", "end I(77)"]


@pytest.mark.spec("SC11")
async def test_use_provides_its_scope(rt: fb.Runtime) -> None:
    """To add_finalizer and to current_scope()."""
    log: list[str] = []
    scope = Scope()
    added = fb.add_finalizer(lambda _: say(log, "finalizer"))

    current = await rt.run(scope.use(added.flat_map(lambda _: fb.current_scope())))

    assert current is scope
    assert log == ["finalizer"]


@pytest.mark.spec("SC11")
async def test_provide_does_not_close_the_scope(rt: fb.Runtime) -> None:
    """What the effect registers waits for somebody else's close."""
    log: list[str] = []
    scope = Scope()

    current = await rt.run(
        scope.provide(
            fb.add_finalizer(lambda _: say(log, "finalizer")).flat_map(lambda _: fb.current_scope())
        )
    )

    assert current is scope
    assert (scope.state, scope.finalizer_count, log) == ("open", 1, [])


@pytest.mark.spec("SC11")
async def test_after_use_the_outer_scope_is_current_again(rt: fb.Runtime) -> None:
    """A scope is provided to its effect only."""
    outer, inner = Scope(), Scope()
    work = inner.use(Effect.succeed(1)).flat_map(lambda _: fb.current_scope())

    assert await rt.run(outer.use(work)) is outer


@pytest.mark.spec("SC12")
async def test_a_finalizers_defect_after_a_success_is_the_exit_of_scoped(rt: fb.Runtime) -> None:
    """The value is lost."""
    defect = Defect()
    added = fb.add_finalizer(lambda _: Effect.die(defect))

    exit = await rt.run_exit(fb.scoped(added.map(lambda _: 5)))

    assert exit == failed(Die(defect))


@pytest.mark.spec("SC12", "FI3")
async def test_a_finalizers_defect_after_a_failure_joins_it_in_the_exit_of_scoped(
    rt: fb.Runtime,
) -> None:
    """By the defect rule: the failure has become a defect."""
    boom, defect = Boom(), Defect()
    added = fb.add_finalizer(lambda _: Effect.die(defect))

    exit = await rt.run_exit(fb.scoped(added.flat_map(lambda _: Effect.fail(boom))))

    assert exit == failed(Die(boom), Die(defect))


@pytest.mark.spec("SC12")
async def test_a_finalizers_defect_after_an_interrupt_joins_it_in_the_exit_of_scoped(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """The interrupt comes first."""
    defect = Defect()
    added = fb.add_finalizer(lambda _: Effect.die(defect))

    exit = await interrupt_during(rt, clock, fb.scoped(added.flat_map(lambda _: Effect.never())))

    assert exit == failed(Interrupt(by=77, reason=None), Die(defect))


@pytest.mark.spec("SC12")
async def test_ten_thousand_nested_scoped_effects_close_from_the_inside_out(
    rt: fb.Runtime,
) -> None:
    """Without a Python stack per level."""
    log: list[int] = []

    def level(n: int, inside: Effect[int, Never]) -> Effect[int, Never]:
        added = fb.add_finalizer(lambda _: Effect.sync(lambda: log.append(n)))
        return fb.scoped(added.flat_map(lambda _: inside))

    nest: Effect[int, Never] = Effect.succeed(5)
    for n in range(DEEP):
        nest = level(n, nest)

    assert await rt.run(nest) == 5
    assert log == list(range(DEEP))


@pytest.mark.spec("SC12")
async def test_scoped_gives_each_run_a_scope_of_its_own(rt: fb.Runtime) -> None:
    """An effect is a value: two runs, two scopes, each closed at the end of its run."""
    work = fb.scoped(fb.current_scope())

    first, second = await rt.run(work), await rt.run(work)

    assert first is not second
    assert (first.state, second.state) == ("closed", "closed")


# ---- interrupts


@pytest.mark.spec("SC14", "SO1")
@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_interrupting_a_fiber_that_closes_a_scope_cuts_no_finalizer(
    rt: fb.Runtime, clock: TestClock, strategy: Strategy
) -> None:
    """Close is uninterruptible: all of them end."""
    log: list[str] = []
    scope = Scope(strategy)
    ends = [chain(fb.sleep(4 - n), say(log, f"end{n}")) for n in (1, 2, 3)]
    await add(rt, scope, *ends)

    await interrupt_during(rt, clock, scope.close(), at=0.5)

    assert log == ["end3", "end2", "end1"]


@pytest.mark.spec("SC14", "SO1")
async def test_a_fiber_interrupted_while_it_closes_ends_interrupted_after_the_close(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """What would come next does not run."""
    log: list[str] = []
    scope = Scope()
    await add(rt, scope, slow(log, "1"))
    work = scope.close().flat_map(lambda _: say(log, "next"))

    exit = await interrupt_during(rt, clock, work, at=0.5)

    assert exit == interrupted(77)
    assert log == ["start1", "end1"]


@pytest.mark.spec("SC14", "PD1")
async def test_a_body_interrupted_while_it_closes_cuts_no_finalizer(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """The await of the close raises when the close has ended."""
    log: list[str] = []
    scope = Scope()
    await add(rt, scope, slow(log, "1"), slow(log, "2"))

    @fb.effect
    async def body() -> None:
        try:
            await scope.close()
        except asyncio.CancelledError:
            log.append("interrupted")
            raise

    exit = await interrupt_during(rt, clock, body(), at=0.5)

    assert exit == interrupted(77)
    assert log == ["start2", "end2", "start1", "end1", "interrupted"]


@pytest.mark.spec("SC18")
@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_finalizers_receive_an_interrupt_passed_to_close(
    rt: fb.Runtime, strategy: Strategy
) -> None:
    """Each of them, as it is."""
    seen: list[object] = []
    scope = Scope(strategy)

    def note(ended: fb.Exit[Any, Any]) -> Effect[None, Never]:
        return Effect.sync(lambda: seen.append(ended))

    await add_callbacks(rt, scope, note, note)

    exit = await rt.run_exit(scope.close(interrupted(5)))

    assert seen == [interrupted(5), interrupted(5)]
    assert exit == Success(None)


@pytest.mark.spec("SC18")
async def test_finalizers_receive_a_success_where_close_gets_no_exit(rt: fb.Runtime) -> None:
    """A plain close ends the scope well."""
    seen: list[object] = []
    scope = Scope()
    await add_callbacks(rt, scope, lambda ended: Effect.sync(lambda: seen.append(ended)))

    await rt.run(scope.close())

    assert seen == [Success(None)]


# ---- what a finalizer may do


@pytest.mark.spec("SC17")
@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_a_finalizer_may_fork_and_join(
    rt: fb.Runtime, clock: TestClock, strategy: Strategy
) -> None:
    """The close waits for what it joins."""
    log: list[str] = []

    @fb.effect
    async def finalizer() -> None:
        child = await fb.sleep(1).map(lambda _: 7).fork_child()
        log.append(f"joined {await child.join()}")

    scope = Scope(strategy)
    await add_callbacks(rt, scope, lambda _: finalizer())
    rt.run_fork(scope.close().flat_map(lambda _: say(log, "closed")))
    await pass_time(rt, clock)

    assert log == ["joined 7", "closed"]


@pytest.mark.spec("SC17")
async def test_a_finalizer_may_be_a_coroutine_function(rt: fb.Runtime, clock: TestClock) -> None:
    """Awaited like any other, in its place."""
    log: list[str] = []

    async def finalizer(exit: fb.Exit[Any, Any]) -> None:
        log.append(f"start {show(exit)}")
        await fb.sleep(1)
        log.append("end")

    scope = Scope()
    await add(rt, scope, say(log, "1"))
    await add_callbacks(rt, scope, finalizer)
    await add(rt, scope, say(log, "3"))
    rt.run_fork(scope.close())
    await pass_time(rt, clock)

    assert log == ["3", "start ok(None)", "end", "1"]


@pytest.mark.spec("SC17")
async def test_a_finalizer_may_be_a_plain_function(rt: fb.Runtime) -> None:
    """One that returns None is done when it returns."""
    log: list[str] = []
    scope = Scope()
    await add(rt, scope, say(log, "1"))
    await add_callbacks(rt, scope, lambda _: log.append("2"))
    await add(rt, scope, say(log, "3"))

    await rt.run(scope.close())

    assert log == ["3", "2", "1"]


@pytest.mark.spec("SC15", "SO4")
async def test_a_finalizer_coroutine_that_raises_is_reported_as_a_defect(rt: fb.Runtime) -> None:
    """Nothing is declared for it; the others run."""
    log: list[str] = []
    defect = Defect()

    async def finalizer(_: fb.Exit[Any, Any]) -> None:
        raise defect

    scope = Scope()
    await add(rt, scope, say(log, "1"))
    await add_callbacks(rt, scope, finalizer)

    exit = await rt.run_exit(scope.close())

    assert exit == failed(Die(defect))
    assert log == ["1"]


# ---- async with


@pytest.mark.spec("SC1", "SC11")
async def test_async_with_closes_the_scope_at_the_end_of_the_block(rt: fb.Runtime) -> None:
    """Also in a plain task."""
    log: list[str] = []

    async with Scope() as scope:
        await add(rt, scope, say(log, "1"), say(log, "2"))
        log.append("block ends")

    assert log == ["block ends", "2", "1"]
    assert scope.state == "closed"


@pytest.mark.spec("SC11", "FI19")
async def test_async_with_closes_the_scope_with_the_error_of_the_block(rt: fb.Runtime) -> None:
    """The finalizer sees the very object, and the block raises it."""
    seen: list[fb.Exit[Any, Any]] = []
    boom = Boom()

    async def block() -> None:
        async with Scope() as scope:
            await add_callbacks(rt, scope, lambda ended: Effect.sync(lambda: seen.append(ended)))
            raise boom

    with pytest.raises(Boom) as raised:
        await block()

    assert raised.value is boom
    assert [cause_of(exit).squash() for exit in seen] == [boom]


@pytest.mark.spec("SC11", "SC18")
async def test_async_with_in_a_body_closes_the_scope_with_its_interrupt(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """A block that is interrupted ends its scope as an interrupted effect would."""
    causes: list[Cause[Any]] = []

    def note(exit: fb.Exit[Any, Any]) -> Effect[None, Never]:
        return fb.sleep(1).map(lambda _: causes.append(cause_of(exit)))

    @fb.effect
    async def body() -> None:
        async with Scope() as scope:
            await scope.add_finalizer(note)
            await Effect.never()

    exit = await interrupt_during(rt, clock, body())

    assert exit == interrupted(77)
    assert [(cause.has_interrupts_only, cause.interruptors) for cause in causes] == [
        (True, frozenset({77}))
    ]


@pytest.mark.spec("PD14")
async def test_a_block_that_a_foreign_interrupt_leaves_closes_with_that_cause() -> None:
    """It is still that Interrupt, not a defect."""
    exits = list[fb.Exit[Any, Any]]()
    other = fb.run_fork(Effect.never())
    other.interrupt_unsafe(by=7, reason="user")

    @fb.effect
    async def body() -> None:
        async with Scope() as scope:
            await scope.add_finalizer(lambda end: Effect.sync(lambda: exits.append(end)))
            await other

    await body().exit()

    assert exits == [failed(Interrupt(7, "user"))]
