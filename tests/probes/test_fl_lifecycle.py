"""Probes FL: how a fiber starts, ends, is joined, watched and interrupted."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING, Never

import pytest
from returns.result import Failure, Success

import fibers as fb
from fibers import Cause, Die, Effect, Fail, Fiber, Interrupt
from tests.probes.kit_d import (
    Boom,
    Defect,
    at_gate,
    cause_of,
    interrupted_by,
    loop_errors,
    loop_turns,
    new_gate,
    parked,
    say,
    settle,
    slow_farewell,
    steps,
    throwing,
    unhandled_failures,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from fibers.testing import TestClock


# ---- start


@pytest.mark.spec("FL1")
async def test_a_synchronous_effect_has_ended_when_run_fork_returns() -> None:
    """The exit can be read at once, without a turn of the loop."""
    fiber = fb.run_fork(Effect.succeed(6).map(lambda n: n + 1))

    assert fiber.poll() == Success(7)


@pytest.mark.spec("FL1")
async def test_a_body_that_never_suspends_has_ended_when_run_fork_returns() -> None:
    """A coroutine body runs at once as well, effects awaited inline included."""

    @fb.effect
    async def body() -> int:
        return await Effect.succeed(6) + 1

    fiber = fb.run_fork(body())

    assert fiber.poll() == Success(7)


@pytest.mark.spec("FL1")
async def test_a_synchronous_failure_can_be_read_when_run_fork_returns() -> None:
    """A failed exit is there at once too, with the very error."""
    error = Boom("early")

    fiber = fb.run_fork(Effect.fail(error))

    assert fiber.poll() == Failure(Cause((Fail(error),)))


@pytest.mark.spec("FL2")
@pytest.mark.parametrize("make", [Effect.fail, Effect.die], ids=["fail", "die"])
async def test_a_failing_run_fork_never_reaches_the_loops_handler(
    make: Callable[[Boom], Effect[Never, Boom]],
) -> None:
    """Neither at the end of the fiber nor when its handle is collected."""
    with loop_errors() as errors, unhandled_failures():
        fiber = fb.run_fork(make(Boom()))
        await asyncio.sleep(0)
        del fiber
        gc.collect()
        await asyncio.sleep(0)

    assert errors == []


@pytest.mark.spec("FL2")
async def test_a_failure_after_a_suspension_never_reaches_the_loops_handler() -> None:
    """A fiber known to asyncio by then is as quiet as one that never suspended."""

    @fb.effect(raises=Boom)
    async def body() -> None:
        await asyncio.sleep(0)
        raise Boom("late")

    with loop_errors() as errors, unhandled_failures() as causes:
        fb.run_fork(body())
        await loop_turns()
        gc.collect()
        await loop_turns()

    assert [str(error) for cause in causes for error in cause.failures] == ["late"]
    assert errors == []


@pytest.mark.spec("FL2", "PD8")
async def test_an_unobserved_failure_of_run_fork_reaches_the_hook_once() -> None:
    """Where nobody kept the handle the hook is told at once, and only once."""
    error = Boom("nobody looks")

    with unhandled_failures() as causes:
        fb.run_fork(Effect.fail(error))
        told_at_once = list(causes)
        gc.collect()
        await asyncio.sleep(0)

    assert told_at_once == [Cause((Fail(error),))]
    assert causes == told_at_once


@pytest.mark.spec("FL3")
async def test_fiber_ids_are_ints_and_consecutive_fibers_differ_by_one() -> None:
    """Ids count fibers."""
    first, second, third = (fb.run_fork(Effect.succeed(None)) for _ in range(3))

    assert isinstance(first.id, int)
    assert [first.id + 1, first.id + 2] == [second.id, third.id]


@pytest.mark.spec("FL3")
async def test_ids_of_children_forked_one_after_the_other_differ_by_one() -> None:
    """Forks inside a fiber count in the same row."""

    @fb.effect
    async def parent() -> list[int]:
        return [(await Effect.succeed(None).fork_child()).id for _ in range(3)]

    first, second, third = await parent()

    assert [first + 1, first + 2] == [second, third]


@pytest.mark.spec("FL24")
async def test_a_child_that_failed_synchronously_is_done_right_after_its_fork() -> None:
    """With start_immediately the forker finds the exit already there."""
    error = Boom("at once")

    @fb.effect
    async def parent() -> fb.Exit[Never, Boom] | None:
        child = await Effect.fail(error).fork_child(start_immediately=True)
        return child.poll()

    assert Failure(Cause((Fail(error),))) == await parent()


@pytest.mark.spec("FL24")
async def test_a_body_that_raised_synchronously_is_done_right_after_its_fork() -> None:
    """The same for a coroutine body with a declared error."""
    error = Boom("at once")

    @fb.effect(raises=Boom)
    async def child() -> None:
        raise error

    @fb.effect
    async def parent() -> fb.Exit[None, Boom] | None:
        forked = await child().fork_child(start_immediately=True)
        return forked.poll()

    assert Failure(Cause((Fail(error),))) == await parent()


# ---- exit and poll


@pytest.mark.spec("FL4")
async def test_exit_of_a_died_fiber_succeeds_with_a_cause_of_one_die() -> None:
    """Waiting for an exit never fails; the defect is the very object."""
    defect = Defect("bug")
    fiber = fb.run_fork(Effect.die(defect))

    exit = await fiber.exit()

    assert exit == Failure(Cause((Die(defect),)))
    assert cause_of(exit).defects[0] is defect


@pytest.mark.spec("FL5")
async def test_poll_of_a_suspended_fiber_is_none() -> None:
    """Nothing to read before the end."""
    gate = new_gate()
    fiber = fb.run_fork(at_gate(gate))

    before = fiber.poll()
    gate.set_result(7)
    await fiber.exit()

    assert before is None
    assert fiber.poll() == Success(7)


@pytest.mark.spec("FL5")
@pytest.mark.parametrize(
    "ending",
    [Effect.succeed(7), Effect.fail(Boom()), Effect.die(Defect()), Effect.interrupt()],
    ids=["success", "fail", "die", "interrupt"],
)
async def test_exit_and_poll_agree(ending: Effect[int, Boom]) -> None:
    """Both give the same exit, however the fiber ended."""
    fiber = fb.run_fork(Effect.yield_now().flat_map(lambda _: ending))

    exit = await fiber.exit()

    assert exit == fiber.poll()


# ---- join


@pytest.mark.spec("FL6")
async def test_join_of_a_success_gives_the_value() -> None:
    """From a plain task as from a fiber."""
    fiber = fb.run_fork(Effect.succeed(7))

    assert await fiber.join() == 7
    assert await fiber == 7


@pytest.mark.spec("FL6")
async def test_join_of_a_failure_fails_with_the_same_typed_error() -> None:
    """The joiner's exit holds a Fail of the very object."""
    error = Boom("typed")
    fiber = fb.run_fork(Effect.fail(error))

    exit = await fiber.join().exit()

    assert exit == Failure(Cause((Fail(error),)))


@pytest.mark.spec("FL6")
async def test_join_of_a_failure_raises_the_same_object_in_a_body() -> None:
    """`except` in a joining body catches what the joined fiber failed with."""
    error = Boom("typed")
    fiber: Fiber[int, Boom] = fb.run_fork(Effect.fail(error))

    @fb.effect
    async def joiner() -> BaseException | None:
        try:
            await fiber
        except Boom as caught:
            return caught
        return None

    assert await joiner() is error


@pytest.mark.spec("FL6")
async def test_a_defect_reaches_the_joiner_as_a_die_of_the_same_object() -> None:
    """A bug of the joined fiber doesn't turn into a typed failure."""
    defect = Defect("bug")
    fiber = fb.run_fork(Effect.die(defect))

    exit = await fiber.join().exit()

    assert exit == Failure(Cause((Die(defect),)))


@pytest.mark.spec("FL6", "PD16")
async def test_ten_thousand_fibers_joined_in_a_row_all_get_the_value() -> None:
    """A long chain of joiners needs no Python stack."""
    gate = new_gate()
    last = fb.run_fork(at_gate(gate))
    for _ in range(10_000):
        last = fb.run_fork(last.join())

    gate.set_result(7)

    assert await last == 7


@pytest.mark.spec("FL7")
async def test_join_of_an_interrupted_fiber_fails_with_its_interrupt_cause() -> None:
    """The cause names who interrupted the joined fiber; `exit` catches it."""
    fiber = fb.run_fork(Effect.never())
    await fiber.interrupt(by=999)

    exit = await fiber.join().exit()

    assert exit == Failure(Cause((Interrupt(by=999, reason=None),)))


@pytest.mark.spec("FL7")
async def test_catch_cause_recovers_from_joining_an_interrupted_fiber() -> None:
    """A foreign interrupt is an ordinary failure to the joiner."""
    fiber: Fiber[str, Never] = fb.run_fork(Effect.never())
    await fiber.interrupt(by=999)

    told = await fiber.join().catch_cause(lambda cause: Effect.succeed(str(cause.interruptors)))

    assert told == str(frozenset({999}))


@pytest.mark.spec("FL7", "PD14")
async def test_joining_an_interrupted_fiber_raises_fiber_interrupted_in_a_body() -> None:
    """The body goes on after catching it, and suspends again undisturbed."""
    fiber: Fiber[None, Never] = fb.run_fork(Effect.never())
    await fiber.interrupt(by=999)

    @fb.effect
    async def joiner() -> frozenset[int]:
        try:
            await fiber
        except fb.FiberInterrupted as caught:
            await Effect.yield_now()
            return caught.cause.interruptors
        return frozenset()

    assert await joiner() == frozenset({999})


@pytest.mark.spec("FL7", "PD14")
async def test_fiber_interrupted_that_leaves_a_body_is_still_the_same_interrupt() -> None:
    """It does not become a defect of the joiner."""
    fiber: Fiber[None, Never] = fb.run_fork(Effect.never())
    await fiber.interrupt(by=999)

    @fb.effect
    async def joiner() -> None:
        await fiber

    exit = await joiner().exit()

    assert exit == Failure(Cause((Interrupt(by=999, reason=None),)))


@pytest.mark.spec("FL8")
async def test_join_of_an_interrupted_fiber_fires_the_joiners_on_interrupt() -> None:
    """Though nobody interrupted the joiner, which goes on after `exit`."""
    log: list[str] = []
    fiber: Fiber[None, Never] = fb.run_fork(Effect.never())
    await fiber.interrupt(by=999)
    joining = fiber.join().on_interrupt(lambda by: say(log, f"on_interrupt {sorted(by)}"))

    joiner = fb.run_fork(steps(joining.exit(), Effect.yield_now(), say(log, "after")))
    await joiner.exit()

    assert log == ["on_interrupt [999]", "after"]
    assert joiner.poll() == Success(None)


@pytest.mark.spec("FL8")
async def test_a_joining_body_that_lets_the_interrupt_out_fires_its_on_interrupt() -> None:
    """The handler sits around a coroutine body; the fiber goes on after it."""
    log: list[str] = []
    fiber: Fiber[None, Never] = fb.run_fork(Effect.never())

    @fb.effect
    async def joiner() -> None:
        try:
            await fiber
        finally:
            log.append("finally")

    guarded = joiner().on_interrupt(lambda by: say(log, f"on_interrupt {sorted(by)}"))
    joining = fb.run_fork(steps(guarded.exit(), say(log, "after")))
    await fiber.interrupt(by=999)
    await joining.exit()

    assert log == ["finally", "on_interrupt [999]", "after"]


# ---- several at once


@pytest.mark.spec("FL10")
async def test_join_all_gives_the_values_in_the_order_of_its_argument(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """A slow first fiber still comes first."""

    @fb.effect
    async def body() -> list[int]:
        slow = await fb.sleep(0.005).map(lambda _: 1).fork_child()
        quick = await Effect.succeed(2).fork_child()
        return await Fiber.join_all([slow, quick])

    fiber = rt.run_fork(body())
    await rt.run(clock.adjust(0.005))

    assert fiber.poll() == Success([1, 2])


@pytest.mark.spec("FL10")
async def test_join_all_accepts_a_one_shot_generator() -> None:
    """The iterable is read once."""
    fibers = [fb.run_fork(Effect.succeed(n)) for n in (1, 2, 3)]

    assert await Fiber.join_all(fiber for fiber in fibers) == [1, 2, 3]


@pytest.mark.spec("FL10")
async def test_join_all_of_nothing_is_an_empty_list() -> None:
    """No fiber to wait for, nothing to suspend on."""
    nobody: list[Fiber[int, Never]] = []

    assert fb.run_sync(Fiber.join_all(nobody)) == []


@pytest.mark.spec("FL11")
async def test_join_all_fails_as_soon_as_one_fiber_has_failed(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """A slower fiber that stands first in the list is not waited for and keeps running."""
    error = Boom("second of two")
    slow = rt.run_fork(fb.sleep(10))
    failing = rt.run_fork(fb.sleep(1).flat_map(lambda _: Effect.fail(error)))

    joiner = rt.run_fork(Fiber.join_all([slow, failing]))
    await rt.run(clock.adjust(1))

    assert joiner.poll() == Failure(Cause((Fail(error),)))
    assert slow.poll() is None


@pytest.mark.spec("FL12")
async def test_await_all_gives_exits_in_input_order_whatever_ended_first() -> None:
    """The second fiber ends before the first."""
    error = Boom("first to end")
    first, second = new_gate(), new_gate()
    ended: list[str] = []
    slow = fb.run_fork(at_gate(first).tap(lambda _: say(ended, "slow")))
    quick = fb.run_fork(
        at_gate(second).tap(lambda _: say(ended, "quick")).flat_map(lambda _: Effect.fail(error))
    )
    awaiter = fb.run_fork(Fiber.await_all([slow, quick]))

    second.set_result(2)
    await quick.exit()
    first.set_result(1)

    assert await awaiter == [Success(1), Failure(Cause((Fail(error),)))]
    assert ended == ["quick", "slow"]


@pytest.mark.spec("FL12")
async def test_await_all_accepts_a_one_shot_generator() -> None:
    """The iterable is read once."""
    fibers = [fb.run_fork(Effect.succeed(n)) for n in (1, 2)]

    assert await Fiber.await_all(fiber for fiber in fibers) == [Success(1), Success(2)]


@pytest.mark.spec("FL13")
async def test_interrupt_all_signals_every_fiber_before_it_awaits_one(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """Both finalizers start first; the quicker one ends first; then the caller goes on."""
    log: list[str] = []
    first = rt.run_fork(slow_farewell(log, "1", 0.020))
    second = rt.run_fork(slow_farewell(log, "2", 0.005))

    rt.run_fork(steps(Fiber.interrupt_all([first, second]), say(log, "done")))
    await rt.run(clock.adjust(0.020))

    assert log == ["s1", "s2", "e2", "e1", "done"]


@pytest.mark.spec("FL14")
async def test_interrupt_all_awaits_the_fibers_of_a_one_shot_generator(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """Signalling must not use the generator up."""
    log: list[str] = []
    fibers = [rt.run_fork(slow_farewell(log, str(n), 1.0)) for n in (1, 2)]

    caller = rt.run_fork(steps(Fiber.interrupt_all(fiber for fiber in fibers), say(log, "done")))
    await settle(rt, clock)
    waiting = caller.poll()
    await rt.run(clock.adjust(1.0))

    assert waiting is None
    assert log == ["s1", "s2", "e1", "e2", "done"]


@pytest.mark.spec("FL14")
async def test_interrupt_all_with_by_names_that_interruptor_and_still_awaits(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """A one-shot generator and `by=` together."""
    log: list[str] = []
    fibers = [rt.run_fork(slow_farewell(log, str(n), 1.0)) for n in (1, 2)]

    rt.run_fork(steps(Fiber.interrupt_all((fiber for fiber in fibers), by=999), say(log, "done")))
    await rt.run(clock.adjust(1.0))

    assert log == ["s1", "s2", "e1", "e2", "done"]
    assert [interrupted_by(fiber.poll()) for fiber in fibers] == [[999], [999]]


@pytest.mark.spec("FL14")
async def test_interrupt_all_without_by_names_the_calling_fiber() -> None:
    """As interrupt does."""
    fibers = [fb.run_fork(Effect.never()) for _ in range(2)]

    caller = fb.run_fork(Fiber.interrupt_all(fibers))
    await caller.exit()

    assert [interrupted_by(fiber.poll()) for fiber in fibers] == [[caller.id], [caller.id]]


# ---- observers


@pytest.mark.spec("FL15")
async def test_observers_are_called_in_the_order_of_registration() -> None:
    """Each one gets the exit."""
    log: list[str] = []
    gate = new_gate()
    fiber = fb.run_fork(at_gate(gate))
    fiber.add_observer(lambda end: log.append(f"a {end.unwrap()}"))
    fiber.add_observer(lambda end: log.append(f"b {end.unwrap()}"))
    fiber.add_observer(lambda end: log.append(f"c {end.unwrap()}"))

    gate.set_result(7)
    await fiber.exit()

    assert log == ["a 7", "b 7", "c 7"]


@pytest.mark.spec("FL15")
async def test_a_removed_observer_is_not_called() -> None:
    """add_observer returns the way out."""
    log: list[str] = []
    gate = new_gate()
    fiber = fb.run_fork(at_gate(gate))
    fiber.add_observer(lambda _: log.append("first"))
    remove = fiber.add_observer(lambda _: log.append("removed"))
    fiber.add_observer(lambda _: log.append("last"))

    remove()
    gate.set_result(7)
    await fiber.exit()

    assert log == ["first", "last"]


@pytest.mark.spec("FL15")
async def test_an_observer_that_an_earlier_one_removes_is_not_called() -> None:
    """Also while the end is being told."""
    log: list[str] = []
    gate = new_gate()
    fiber = fb.run_fork(at_gate(gate))
    removals: list[Callable[[], None]] = []

    def first(_: object) -> None:
        log.append("first")
        removals[0]()

    fiber.add_observer(first)
    removals.append(fiber.add_observer(lambda _: log.append("removed")))
    fiber.add_observer(lambda _: log.append("last"))
    gate.set_result(7)
    await fiber.exit()

    assert log == ["first", "last"]


@pytest.mark.spec("FL15")
async def test_an_observer_added_after_the_end_is_called_at_once() -> None:
    """With the exit, before add_observer returns."""
    seen: list[fb.Exit[int, Never]] = []
    fiber = fb.run_fork(Effect.succeed(7))

    fiber.add_observer(seen.append)

    assert seen == [Success(7)]


@pytest.mark.spec("FL15")
async def test_an_observer_runs_in_no_fiber() -> None:
    """The one that it hears of has ended by then."""
    seen: list[object] = []
    gate = new_gate()
    fiber = fb.run_fork(at_gate(gate))
    fiber.add_observer(lambda _: seen.append(fb.current_fiber()))

    gate.set_result(7)
    await fiber.exit()

    assert seen == [None]


# ---- interrupt


@pytest.mark.spec("FL18")
async def test_interrupt_unsafe_without_by_has_no_interruptor() -> None:
    """The reason is there, the set of interruptors is empty."""
    fiber = fb.run_fork(Effect.never())

    fiber.interrupt_unsafe()
    exit = fiber.poll()

    assert exit == Failure(Cause((Interrupt(by=None, reason=None),)))
    assert cause_of(exit).interruptors == frozenset()


@pytest.mark.spec("FL19")
async def test_interrupt_with_by_names_that_interruptor() -> None:
    """Whoever calls it."""
    fiber = fb.run_fork(Effect.never())

    await fiber.interrupt(by=999)

    assert fiber.poll() == Failure(Cause((Interrupt(by=999, reason=None),)))


@pytest.mark.spec("FL19")
async def test_interrupt_hands_its_reason_to_the_cause() -> None:
    """Who and why stand side by side."""
    fiber = fb.run_fork(Effect.never())

    await fiber.interrupt(by=999, reason="user pressed stop")

    assert fiber.poll() == Failure(Cause((Interrupt(by=999, reason="user pressed stop"),)))


@pytest.mark.spec("FL19")
async def test_interrupt_without_by_names_the_calling_fiber() -> None:
    """The fiber that runs interrupt is the interruptor."""
    fiber = fb.run_fork(Effect.never())

    caller = fb.run_fork(fiber.interrupt())
    await caller.exit()

    assert interrupted_by(fiber.poll()) == [caller.id]


@pytest.mark.spec("FL20")
@pytest.mark.parametrize(
    "ending",
    [Effect.succeed(7), Effect.fail(Boom()), Effect.die(Defect())],
    ids=["success", "fail", "die"],
)
async def test_interrupting_a_finished_fiber_returns_at_once_and_changes_nothing(
    ending: Effect[int, Boom],
) -> None:
    """It doesn't even suspend: run_sync would raise."""
    fiber = fb.run_fork(ending)
    exit = fiber.poll()

    fb.run_sync(fiber.interrupt(by=999))

    assert exit is not None
    assert fiber.poll() == exit


@pytest.mark.spec("FL21")
async def test_interrupt_returns_only_after_asynchronous_finalizers(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """The finalizer's last step comes before the interruptor's next one."""
    log: list[str] = []
    fiber = rt.run_fork(parked(steps(fb.sleep(1), say(log, "fin"))))

    rt.run_fork(steps(fiber.interrupt(), say(log, "returned")))
    await rt.run(clock.adjust(1))

    assert log == ["fin", "returned"]


@pytest.mark.spec("FL21")
async def test_interrupt_returns_only_after_the_finally_of_a_body(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """A body that awaits in `finally` is waited for in the same way."""
    log: list[str] = []

    @fb.effect
    async def body() -> None:
        try:
            await fb.sleep(60)
        finally:
            await fb.sleep(1)
            log.append("fin")

    fiber = rt.run_fork(body())

    rt.run_fork(steps(fiber.interrupt(), say(log, "returned")))
    await rt.run(clock.adjust(1))

    assert log == ["fin", "returned"]


@pytest.mark.spec("FL21")
async def test_interrupt_does_not_raise_what_the_finalizer_died_with() -> None:
    """The defect stays in the target's exit."""
    defect = Defect("in the finalizer")
    fiber = fb.run_fork(parked(Effect.die(defect)))

    exit = await fiber.interrupt(by=999).exit()

    assert exit == Success(None)
    assert cause_of(fiber.poll()).defects == (defect,)


@pytest.mark.spec("FL22")
async def test_an_interrupted_interruptor_ends_at_once_and_leaves_its_target_ending(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """Waiting for the target is interruptible; the target still ends by the first signal."""
    log: list[str] = []
    target = rt.run_fork(parked(steps(fb.sleep(1), say(log, "fin"))))
    killer = rt.run_fork(target.interrupt())
    await settle(rt, clock)

    killer.interrupt_unsafe(by=5)
    log.append(f"k {interrupted_by(killer.poll())} f {target.poll()}")
    await rt.run(clock.adjust(1))

    assert log == ["k [5] f None", "fin"]
    assert interrupted_by(target.poll()) == [killer.id]


@pytest.mark.spec("FL22")
async def test_an_interrupted_body_that_awaits_an_interrupt_ends_at_once(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """The same with coroutine bodies on both sides."""
    log: list[str] = []

    @fb.effect
    async def target_body() -> None:
        try:
            await fb.sleep(60)
        finally:
            await fb.sleep(1)
            log.append("fin")

    @fb.effect
    async def killer_body() -> None:
        await target.interrupt()
        log.append("not reached")

    target = rt.run_fork(target_body())
    killer = rt.run_fork(killer_body())
    await settle(rt, clock)

    killer.interrupt_unsafe(by=5)
    log.append(f"k {interrupted_by(killer.poll())} f {target.poll()}")
    await rt.run(clock.adjust(1))

    assert log == ["k [5] f None", "fin"]
    assert interrupted_by(target.poll()) == [killer.id]


# ---- an exit as an effect


@pytest.mark.spec("FL23")
async def test_from_exit_of_a_success_gives_its_value() -> None:
    """An exit turned back into an effect."""
    exit: fb.Exit[int, Boom] = Success(7)

    assert await Effect.from_exit(exit) == 7


@pytest.mark.spec("FL23")
async def test_from_exit_of_a_failure_fails_with_the_exits_own_cause() -> None:
    """Every reason of it, in order."""
    cause: Cause[Boom] = Cause((Fail(Boom()), Die(Defect()), Interrupt(by=5, reason="system")))
    exit: fb.Exit[int, Boom] = Failure(cause)

    assert await Effect.from_exit(exit).exit() == Failure(cause)


@pytest.mark.spec("FL23")
async def test_from_exit_raises_the_very_error_in_a_body() -> None:
    """Identity survives the way through an exit."""
    error = Boom("kept")
    exit: fb.Exit[int, Boom] = Failure(Cause((Fail(error),)))

    @fb.effect
    async def body() -> BaseException | None:
        try:
            await Effect.from_exit(exit)
        except Boom as caught:
            return caught
        return None

    assert await body() is error


@pytest.mark.spec("FL23")
async def test_the_exit_of_a_fiber_can_be_replayed_by_another() -> None:
    """The second fiber ends as the first did."""
    first = fb.run_fork(Effect.sync(throwing(Defect("once"))))
    exit = await first.exit()

    second = fb.run_fork(Effect.from_exit(exit))

    assert second.poll() == exit
