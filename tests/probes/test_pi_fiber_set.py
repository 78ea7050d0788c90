"""Probes PI7: FiberSet, fibers that end with a scope."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import pytest
from returns.result import Success

import fibers as fb
from fibers import Die, Effect, Fail, Fiber, FiberDeadlockError, FiberSet, Scope
from tests.probes.kit_e import (
    Boom,
    Defect,
    cause_of,
    chain,
    failed,
    interrupted,
    me,
    pass_time,
    peek,
    say,
)
from tests.probes.kit_f import collector_off, unhandled_failures
from tests.probes.kit_owned import SEEDS, farewell, make_in, storm

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncIterator

    from fibers.testing import TestClock

MANY = 10_000
BOOM = Boom("boom")


@pytest.fixture
async def scope(rt: fb.Runtime) -> AsyncIterator[Scope]:
    """The scope that owns the set of a test."""
    scope = Scope()
    yield scope
    await rt.run(scope.close())


@pytest.fixture
async def members(rt: fb.Runtime, scope: Scope) -> FiberSet:
    """An empty set."""
    return await make_in(rt, scope, FiberSet.make())


def later(seconds: float, then: Effect[Any, Any]) -> Effect[Any, Any]:
    """``then`` after some time."""
    return fb.sleep(seconds).flat_map(lambda _: then)


def soon(then: Effect[Any, Any]) -> Effect[Any, Any]:
    """``then`` after the first segment."""
    return Effect.yield_now().flat_map(lambda _: then)


# ---- starting


@pytest.mark.spec("PI7")
async def test_run_starts_at_once(rt: fb.Runtime, members: FiberSet) -> None:
    """Up to the first suspension, before it gives the fiber."""
    log: list[str] = []

    await rt.run(members.run(farewell(log, "a")).flat_map(lambda _: say(log, "caller")))

    assert log == ["+a", "caller"]
    assert await rt.run(members.size()) == 1


@pytest.mark.spec("PI7")
async def test_a_member_is_nobodys_child(rt: fb.Runtime, members: FiberSet) -> None:
    """It outlives the fiber that started it."""
    caller = rt.run_fork(members.run(Effect.never()))
    await caller
    (member,) = members

    assert member.poll() is None


@pytest.mark.spec("PI7")
async def test_a_member_can_be_joined_like_any_fiber(rt: fb.Runtime, members: FiberSet) -> None:
    """What ``run`` gives is the fiber itself."""
    fiber = await rt.run(members.run(soon(Effect.succeed(7))))

    assert await rt.run(fiber.join()) == 7


@pytest.mark.spec("PI7")
async def test_a_fiber_that_runs_already_can_be_added(
    rt: fb.Runtime, scope: Scope, members: FiberSet
) -> None:
    """It ends with the set; twice added it is one member."""
    fiber: Fiber[None, Any] = rt.run_fork(Effect.never())

    await rt.run(chain(members.add(fiber), members.add(fiber)))
    size = await rt.run(members.size())
    await rt.run(scope.close())

    assert size == 1
    assert fiber.poll() is not None


# ---- closing


@pytest.mark.spec("PI7")
async def test_close_interrupts_all_members_in_the_name_of_the_closing_fiber(
    rt: fb.Runtime, scope: Scope, members: FiberSet
) -> None:
    """The interruptor is the fiber that runs the close."""
    fibers = [await rt.run(members.run(Effect.never())) for _ in range(3)]

    closer = rt.run_fork(scope.close())
    await closer

    expected = interrupted(closer.id, reason="scope closed")
    assert [fiber.poll() for fiber in fibers] == [expected] * 3


@pytest.mark.spec("PI7", "SO6")
async def test_a_parallel_close_interrupts_all_members_in_the_name_of_the_closing_fiber(
    rt: fb.Runtime,
) -> None:
    """Though its finalizers, the close of the set among them, run in fibers of their own."""
    scope = Scope("parallel")
    members = await make_in(rt, scope, FiberSet.make())
    fiber = await rt.run(members.run(Effect.never()))

    closer = rt.run_fork(scope.close())
    await closer

    assert fiber.poll() == interrupted(closer.id, reason="scope closed")


@pytest.mark.spec("PI7", "SO6")
async def test_a_member_that_closes_the_parallel_scope_of_its_set_goes_on(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """As the member of a set in a sequential scope does."""
    scope = Scope("parallel")
    members = await make_in(rt, scope, FiberSet.make())

    closer = await rt.run(members.run(later(1, scope.close())))
    await pass_time(rt, clock)

    assert peek(closer) == "ok(None)"


@pytest.mark.spec("PI7")
async def test_close_signals_all_members_before_it_waits_for_all(
    rt: fb.Runtime, clock: TestClock, scope: Scope, members: FiberSet
) -> None:
    """Finalizers of 2 s and 1 s end after 2 s, and then the close."""
    log: list[str] = []
    await rt.run(members.run(farewell(log, "a", 2)))
    await rt.run(members.run(farewell(log, "b", 1)))
    closing = rt.run_fork(scope.close().flat_map(lambda _: say(log, "closed")))

    await pass_time(rt, clock, 1.5)
    early = list(log)
    await pass_time(rt, clock, 0.5)

    assert early == ["+a", "+b", "-b"]
    assert log == ["+a", "+b", "-b", "-a", "closed"]
    assert peek(closing) == "ok(None)"


@pytest.mark.spec("PI7")
async def test_join_ends_when_the_scope_has_closed(
    rt: fb.Runtime, clock: TestClock, scope: Scope, members: FiberSet
) -> None:
    """With no value, and not before the members have ended."""
    log: list[str] = []
    await rt.run(members.run(farewell(log, "a", 1)))
    joined = rt.run_fork(members.join())
    rt.run_fork(scope.close())

    await pass_time(rt, clock, 0.5)
    early = joined.poll()
    await pass_time(rt, clock, 0.5)

    assert early is None
    assert joined.poll() == Success(None)
    await rt.run(members.join())


@pytest.mark.spec("PI7", "SO6")
async def test_a_member_may_close_the_scope_of_its_set(
    rt: fb.Runtime, clock: TestClock, scope: Scope, members: FiberSet
) -> None:
    """It is not interrupted and not waited for; the others are."""
    log: list[str] = []
    await rt.run(members.run(farewell(log, "other")))
    closer = await rt.run(
        members.run(later(1, scope.close().flat_map(lambda _: say(log, "closer goes on"))))
    )

    await pass_time(rt, clock)

    assert peek(closer) == "ok(None)"
    assert log == ["+other", "-other", "closer goes on"]


@pytest.mark.spec("PI7", "SO6")
async def test_a_close_does_not_wait_for_a_member_that_waits_for_the_closer(
    rt: fb.Runtime, clock: TestClock, scope: Scope, members: FiberSet
) -> None:
    """Not even where that member can't be interrupted."""
    closer = rt.run_fork(later(1, scope.close()))
    waiter = await rt.run(members.run(closer.join().uninterruptible()))

    await pass_time(rt, clock)

    assert closer.poll() == Success(None)
    assert waiter.poll() is not None


@pytest.mark.spec("PI7")
async def test_run_in_a_closed_set_runs_nothing(
    rt: fb.Runtime, scope: Scope, members: FiberSet
) -> None:
    """It gives a fiber that has been interrupted, by -1, and the caller goes on."""
    log: list[str] = []
    await rt.run(scope.close())

    fiber = await rt.run(members.run(say(log, "ran")))

    assert log == []
    assert fiber.poll() == interrupted(-1, reason="scope closed")


@pytest.mark.spec("PI7")
async def test_add_to_a_closed_set_interrupts_the_fiber(
    rt: fb.Runtime, scope: Scope, members: FiberSet
) -> None:
    """By -1."""
    fiber: Fiber[None, Any] = rt.run_fork(Effect.never())
    await rt.run(scope.close())

    await rt.run(members.add(fiber))

    assert fiber.poll() == interrupted(-1, reason="scope closed")


@pytest.mark.spec("PI7")
async def test_a_member_that_closes_its_set_in_its_first_segment_is_interrupted(
    rt: fb.Runtime, scope: Scope, members: FiberSet
) -> None:
    """When ``run`` looks at the set, after the start, the set is closed."""
    log: list[str] = []

    fiber = await rt.run(members.run(scope.close().flat_map(lambda _: farewell(log, "body"))))

    assert log == ["+body", "-body"]
    assert fiber.poll() == interrupted(-1, reason="scope closed")


# ---- join


@pytest.mark.spec("PI7")
async def test_join_fails_with_the_first_failure_of_a_member(
    rt: fb.Runtime, clock: TestClock, members: FiberSet
) -> None:
    """The very error; the other members go on."""
    other = await rt.run(members.run(Effect.never()))
    await rt.run(members.run(later(1, Effect.fail(BOOM))))
    joined = rt.run_fork(members.join().exit())

    await pass_time(rt, clock)

    assert joined.poll() == Success(failed(Fail(BOOM)))
    assert other.poll() is None


@pytest.mark.spec("PI7")
async def test_a_later_join_fails_with_the_first_failure_too(
    rt: fb.Runtime, clock: TestClock, members: FiberSet
) -> None:
    """The second failure has no part in it."""
    await rt.run(members.run(later(1, Effect.fail(BOOM))))
    second = await rt.run(members.run(later(2, Effect.fail(Boom("second")))))
    second.ignore_failure()
    await pass_time(rt, clock)

    assert await rt.run(members.join().exit()) == failed(Fail(BOOM))


@pytest.mark.spec("PI7")
async def test_a_member_that_failed_before_it_was_added_fails_join(
    rt: fb.Runtime, members: FiberSet
) -> None:
    """It is no member any more, but its failure counts."""
    fiber = rt.run_fork(Effect.fail(BOOM)).ignore_failure()

    await rt.run(members.add(fiber))

    assert await rt.run(members.size()) == 0
    assert await rt.run(members.join().exit()) == failed(Fail(BOOM))


@pytest.mark.spec("PI7")
async def test_the_interruption_of_a_member_is_no_failure(
    rt: fb.Runtime, members: FiberSet
) -> None:
    """Whoever it was; it leaves the set."""
    joined = rt.run_fork(members.join())
    fiber = await rt.run(members.run(Effect.never()))

    await rt.run(fiber.interrupt(by=9))

    assert joined.poll() is None
    assert await rt.run(members.size()) == 0


@pytest.mark.spec("PI7")
async def test_a_defect_beside_an_interrupt_is_a_failure(rt: fb.Runtime, members: FiberSet) -> None:
    """Of a finalizer, say."""
    defect = Defect("finalizer")
    never: Effect[None, Any] = Effect.never()
    fiber = await rt.run(members.run(never.on_interrupt(lambda _: Effect.die(defect))))

    await rt.run(fiber.interrupt(by=9))

    assert Die(defect) in cause_of(await rt.run(members.join().exit())).reasons


@pytest.mark.spec("PI7")
async def test_a_propagated_interruption_by_somebody_else_fails_join(
    rt: fb.Runtime, members: FiberSet
) -> None:
    """With the member's Interrupt."""
    fiber = await rt.run(members.run(Effect.never(), propagate_interruption=True))

    await rt.run(fiber.interrupt(by=9))

    assert await rt.run(members.join().exit()) == interrupted(9)


@pytest.mark.spec("PI7")
async def test_an_interruption_by_the_set_itself_is_never_propagated(
    rt: fb.Runtime, scope: Scope, members: FiberSet
) -> None:
    """Neither that of clear nor that of the close."""
    joined = rt.run_fork(members.join())
    await rt.run(members.run(Effect.never(), propagate_interruption=True))
    await rt.run(members.clear())
    cleared = joined.poll()
    await rt.run(members.run(Effect.never(), propagate_interruption=True))
    await rt.run(scope.close())
    await joined

    assert cleared is None
    assert joined.poll() == Success(None)


# ---- clear, await_empty


@pytest.mark.spec("PI7")
async def test_clear_interrupts_all_members_and_waits(
    rt: fb.Runtime, clock: TestClock, members: FiberSet
) -> None:
    """By -1; the set stays open."""
    log: list[str] = []
    fiber = await rt.run(members.run(farewell(log, "a", 1)))
    rt.run_fork(members.clear().flat_map(lambda _: say(log, "cleared")))

    await pass_time(rt, clock)
    again = await rt.run(members.run(Effect.never()))

    assert log == ["+a", "-a", "cleared"]
    assert fiber.poll() == interrupted(-1, reason="cleared")
    assert again.poll() is None


@pytest.mark.spec("PI7")
async def test_a_member_may_clear_its_set(rt: fb.Runtime, members: FiberSet) -> None:
    """It is interrupted like the others, and waits for the others only."""
    log: list[str] = []
    other = await rt.run(members.run(farewell(log, "other")))

    clearer = await rt.run(members.run(soon(members.clear()).flat_map(lambda _: say(log, "no"))))
    await rt.run(clearer.exit())

    assert other.poll() == interrupted(-1, reason="cleared")
    assert clearer.poll() == interrupted(-1, reason="cleared")
    assert "no" not in log


@pytest.mark.spec("PI7")
async def test_await_empty_waits_for_all_members(
    rt: fb.Runtime, clock: TestClock, members: FiberSet
) -> None:
    """Also for those that come while it waits, and whatever becomes of them."""
    waiting = rt.run_fork(members.await_empty())
    assert waiting.poll() == Success(None)

    failing = await rt.run(members.run(later(1, Effect.fail(BOOM))))
    failing.ignore_failure()
    waiting = rt.run_fork(members.await_empty())
    await rt.run(members.run(fb.sleep(2)))
    await pass_time(rt, clock, 1.5)
    early = waiting.poll()
    await pass_time(rt, clock, 0.5)

    assert early is None
    assert waiting.poll() == Success(None)


@pytest.mark.spec("PI7", "PD9")
async def test_await_empty_in_a_member_is_an_error(rt: fb.Runtime, members: FiberSet) -> None:
    """It would wait for itself."""
    fiber = await rt.run(members.run(soon(members.await_empty())))
    exit_ = await rt.run(fiber.exit())

    (reason,) = cause_of(exit_).reasons
    assert isinstance(reason, Die)
    assert isinstance(reason.defect, FiberDeadlockError)


# ---- what is left, and what is told


@pytest.mark.spec("PI7", "PD13")
async def test_ten_thousand_members_that_ended_leave_nothing(
    rt: fb.Runtime, members: FiberSet
) -> None:
    """No entry and no fiber, without the collector."""

    async def start() -> None:
        for _ in range(MANY):
            await rt.run(members.run(Effect.yield_now()))

    def fibers_alive() -> int:
        return sum(type(o) is Fiber for o in gc.get_objects())

    before = fibers_alive()
    with collector_off():
        await start()
        await rt.run(members.await_empty())

        assert await rt.run(members.size()) == 0
        assert fibers_alive() - before < 10


@pytest.mark.spec("PI7", "PD8")
async def test_a_failure_that_nobody_joins_is_reported_when_the_scope_closes(
    rt: fb.Runtime, scope: Scope, members: FiberSet
) -> None:
    """Once, and not before: a join could still come."""
    with unhandled_failures() as seen:
        await rt.run(members.run(Effect.fail(BOOM)))
        early = list(seen)
        await rt.run(scope.close())

        assert early == []
        assert [cause for _, cause in seen] == [cause_of(failed(Fail(BOOM)))]


@pytest.mark.spec("PI7", "PD8")
@pytest.mark.parametrize("joined_first", [True, False])
async def test_a_failure_that_is_joined_is_reported_to_nobody(
    rt: fb.Runtime, scope: Scope, members: FiberSet, joined_first: bool
) -> None:
    """Whether the join came before it or after."""
    with unhandled_failures() as seen:
        waiting = rt.run_fork(members.join().exit()) if joined_first else None
        await rt.run(members.run(Effect.fail(BOOM)))
        exit_ = await (waiting or rt.run_fork(members.join().exit()))
        await rt.run(scope.close())

        assert exit_ == failed(Fail(BOOM))
        assert seen == []


@pytest.mark.spec("PI7", "PD8")
async def test_a_join_that_was_interrupted_has_heard_of_nothing(
    rt: fb.Runtime, scope: Scope, members: FiberSet
) -> None:
    """A failure after it is still unheard."""
    with unhandled_failures() as seen:
        joined = rt.run_fork(members.join())
        await rt.run(joined.interrupt())
        await rt.run(members.run(Effect.fail(BOOM)))
        await rt.run(scope.close())

        assert len(seen) == 1


@pytest.mark.spec("PI7", "PD8")
async def test_a_second_failure_that_nobody_observes_is_reported(
    rt: fb.Runtime, members: FiberSet
) -> None:
    """The join tells of the first one only."""
    with unhandled_failures() as seen:
        joined = rt.run_fork(members.join().exit())
        await rt.run(members.run(Effect.fail(BOOM)))
        await rt.run(members.run(Effect.fail(Boom("second"))))
        await joined

        assert [str(cause.squash()) for _, cause in seen] == ["second"]


@pytest.mark.spec("PI7", "PD8")
async def test_a_failure_whose_handle_is_kept_unobserved_is_reported_at_the_close(
    rt: fb.Runtime, scope: Scope, members: FiberSet
) -> None:
    """Once, like that of a scope's fiber."""
    with unhandled_failures() as seen:
        joined = rt.run_fork(members.join().exit())
        await rt.run(members.run(Effect.fail(BOOM)))
        kept = await rt.run(members.run(Effect.fail(Boom("second"))))
        await joined
        early = list(seen)
        await rt.run(scope.close())

        assert early == []
        assert [fiber for fiber, _ in seen] == [kept.id]


@pytest.mark.spec("PI7")
async def test_a_dump_shows_a_set_below_its_scope(rt: fb.Runtime) -> None:
    """With its members."""
    scope = Scope(name="workers")
    members = await make_in(rt, scope, FiberSet.make())
    empty = members.state
    fiber = await rt.run(members.run(Effect.never()))

    lines = [line.strip() for line in fb.dump().splitlines()]
    at = lines.index("FiberSet, parallel, open, 1 to finalize")
    await rt.run(scope.close())

    assert lines[at - 1].startswith("Scope 'workers'")
    assert lines[at + 1].startswith(f"#{fiber.id},")
    assert (empty, members.state) == ("empty", "closed")


# ---- interrupts


@pytest.mark.spec("PI7")
async def test_a_caller_that_interrupts_itself_while_it_starts_a_member_loses_none(
    rt: fb.Runtime, scope: Scope, members: FiberSet
) -> None:
    """The first segment of the member interrupts the caller: the member is in the set all the
    same.
    """
    log: list[str] = []
    callers: list[Fiber[Any, Any]] = []
    cut = Effect.sync(lambda: callers[0].interrupt_unsafe(by=5))
    start = Effect.sync(lambda: callers.append(me())).flat_map(
        lambda _: members.run(cut.flat_map(lambda _: farewell(log, "member")))
    )

    caller = rt.run_fork(start)

    assert caller.poll() == interrupted(5)
    assert await rt.run(members.size()) == 1
    await rt.run(scope.close())
    assert log == ["+member", "-member"]


class Crowd:
    """Members of a set, counted at both ends."""

    def __init__(self, members: FiberSet) -> None:
        self.members = members
        self.started = 0
        self.ended = 0

    def member(self, seconds: float) -> Effect[None, Any]:
        def start() -> None:
            self.started += 1

        def end() -> None:
            self.ended += 1

        return fb.acquire_use_release(
            Effect.sync(start), lambda _: fb.sleep(seconds), lambda _, __: Effect.sync(end)
        )

    def caller(self, dice: random.Random) -> Effect[Any, Any]:
        run = self.members.run(self.member(dice.choice([0, 0.5, 1e6])))
        then = self.members.clear() if dice.random() < 0.2 else Effect.succeed(None)
        return fb.sleep(dice.choice([0, 0.5])).flat_map(lambda _: run).flat_map(lambda _: then)


@pytest.mark.spec("PI7")
@pytest.mark.parametrize("block", range(6))
async def test_no_member_is_lost_whenever_a_caller_is_interrupted(
    rt: fb.Runtime, clock: TestClock, block: int
) -> None:
    """Over many seeds: what was started has ended when the scope has closed."""
    for seed in SEEDS[block::6]:
        scope = Scope()
        crowd = Crowd(await make_in(rt, scope, FiberSet.make()))

        await storm(rt, clock, seed, crowd.caller)
        await rt.run(scope.close())

        assert crowd.started == crowd.ended, seed
        assert await rt.run(crowd.members.size()) == 0


@pytest.mark.spec("PI7")
async def test_a_set_says_whether_a_fiber_is_in_it(rt: fb.Runtime, members: FiberSet) -> None:
    """Only while it lives, and only those that were given to it."""
    fiber = await rt.run(members.run(Effect.never()))
    other = rt.run_fork(Effect.never())
    before = (fiber in members, other in members)

    await rt.run(fiber.interrupt())

    assert before == (True, False)
    assert fiber not in members


@pytest.mark.spec("PI7", "PD8", "SO6")
async def test_a_member_that_closes_its_set_and_fails_after_that_is_reported_at_once(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """Its owner has ended by then, so nobody will look."""
    scope = Scope()
    fibers: FiberSet = await make_in(rt, scope, FiberSet.make())
    defect = Defect("late")
    late = chain(fb.sleep(1), scope.close(), fb.sleep(1), Effect.die(defect))
    with unhandled_failures() as seen:
        fiber = await rt.run(fibers.run(late))
        await pass_time(rt, clock)
        at_once = [cause for _, cause in seen]

    assert at_once == [fb.Cause([Die(defect)])]
    assert fiber.done()
