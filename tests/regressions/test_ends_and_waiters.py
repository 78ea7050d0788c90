"""Who waits for an end, stops waiting for it, or is let go, leaves nothing behind."""

from __future__ import annotations

import asyncio
import sys
import weakref
from typing import TYPE_CHECKING, Any, Literal, Never

import pytest
from returns.result import Success

import fibers as fb
from fibers import Die, Effect
from fibers.testing import TestLoop
from tests.probes.kit_f import (
    Boom,
    collector_off,
    endless,
    failed,
    inner_task,
    interrupted,
    interruptors,
    new_gate,
    running_fiber,
    turns,
    wait_for,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator

pytestmark = pytest.mark.lifecycle

Strategy = Literal["sequential", "parallel"]
STRATEGIES: list[Strategy] = ["sequential", "parallel"]


# ---- stopping to wait


async def test_a_joiner_that_was_interrupted_is_not_kept_by_whom_it_joined() -> None:
    """PD13: a long-lived fiber may be joined, in vain, any number of times."""
    target = fb.run_fork(endless())

    with collector_off():
        joiner = fb.run_fork(target.join())
        joiner.interrupt_unsafe()
        gone = weakref.ref(joiner)
        del joiner
        alive = gone() is not None
    await target.interrupt()

    assert not alive


async def test_an_interrupt_that_is_given_up_leaves_nothing_at_its_target() -> None:
    """PD13: of many that ask a busy fiber to end and do not wait, none stays."""
    gate = new_gate()
    target = fb.run_fork(wait_for(gate).uninterruptible())
    with collector_off():
        before = sys.getrefcount(target)
        for _ in range(10):
            fb.run_fork(target.interrupt()).interrupt_unsafe()
        after = sys.getrefcount(target)
    gate.set_result(0)
    await target.exit()

    assert after == before


@pytest.fixture
def two_loops() -> Generator[tuple[asyncio.AbstractEventLoop, asyncio.AbstractEventLoop]]:
    """Run in turns by one thread, so that who comes first is no matter of chance."""
    near, far = asyncio.new_event_loop(), asyncio.new_event_loop()
    yield near, far
    near.close()
    far.close()


async def call(f: Callable[[], Any]) -> Any:
    """``f()`` in a loop that runs, and what follows from it."""
    given = f()
    await turns()
    return given


def test_an_end_elsewhere_that_is_told_too_late_wakes_nobody(
    two_loops: tuple[asyncio.AbstractEventLoop, asyncio.AbstractEventLoop],
) -> None:
    """AT16: it was on its way when the asker was interrupted, which waits for something else by
    then.
    """
    near, far = two_loops
    log: list[str] = []
    gate: asyncio.Future[None] = far.create_future()
    other = fb.Latch()

    async def holding() -> None:
        await gate

    masked = Effect.promise(holding).uninterruptible()
    target = far.run_until_complete(call(lambda: fb.run_fork(masked)))

    async def asking() -> None:
        try:
            await target.interrupt()
        finally:
            await other.await_()
            log.append("cleaned")

    asker = near.run_until_complete(call(lambda: fb.run_fork(Effect.promise(asking))))
    far.run_until_complete(turns())
    gate.set_result(None)
    near.run_until_complete(call(asker.interrupt_unsafe))
    far.run_until_complete(turns())
    near.run_until_complete(turns())
    ended, early = target.done(), log.copy()
    near.run_until_complete(call(lambda: fb.run_fork(other.open())))

    assert ended
    assert early == []
    assert log == ["cleaned"]
    assert asker.done()


def test_a_fiber_of_a_closed_loop_is_ended_by_who_asks_from_another(
    two_loops: tuple[asyncio.AbstractEventLoop, asyncio.AbstractEventLoop],
) -> None:
    """AT16: nothing can be asked there any more, which is no defect of the one that asks."""
    near, far = two_loops
    target = far.run_until_complete(call(lambda: fb.run_fork(endless())))
    far.close()

    asker = near.run_until_complete(call(lambda: fb.run_fork(target.interrupt())))

    assert asker.poll() == Success(None)
    assert target.poll() == interrupted(by=asker.id)


def test_of_two_that_ask_from_another_loop_one_may_give_up(
    two_loops: tuple[asyncio.AbstractEventLoop, asyncio.AbstractEventLoop],
) -> None:
    """AT16: the other is told of the end."""
    near, far = two_loops
    gate: asyncio.Future[None] = far.create_future()
    masked = Effect.promise(lambda: gate).uninterruptible()
    target = far.run_until_complete(call(lambda: fb.run_fork(masked)))
    patient = near.run_until_complete(call(lambda: fb.run_fork(target.interrupt())))
    hasty = [near.run_until_complete(call(lambda: fb.run_fork(target.interrupt())))]
    far.run_until_complete(turns())
    near.run_until_complete(call(hasty.pop().interrupt_unsafe))
    far.run_until_complete(turns())
    gate.set_result(None)
    far.run_until_complete(turns())
    near.run_until_complete(turns())

    assert patient.poll() == Success(None)


def test_who_gives_up_from_another_loop_leaves_nothing_at_the_target(
    two_loops: tuple[asyncio.AbstractEventLoop, asyncio.AbstractEventLoop],
) -> None:
    """PD13, AT16: once the target's loop has had a turn."""
    near, far = two_loops
    gate: asyncio.Future[None] = far.create_future()
    masked = Effect.promise(lambda: gate).uninterruptible()
    target = far.run_until_complete(call(lambda: fb.run_fork(masked)))
    with collector_off():
        before = sys.getrefcount(target)
        for _ in range(10):
            hasty = [near.run_until_complete(call(lambda: fb.run_fork(target.interrupt())))]
            far.run_until_complete(turns())
            near.run_until_complete(call(hasty.pop().interrupt_unsafe))
            far.run_until_complete(turns())
        after = sys.getrefcount(target)
    gate.set_result(None)
    far.run_until_complete(turns())

    assert after == before


# ---- let go by a close


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_a_close_waits_for_a_cleanup_however_often_that_suspends(strategy: Strategy) -> None:
    """SO6: only one that waits for the closer is let go, whatever another waits for."""
    log: list[str] = []
    gates = [new_gate() for _ in range(3)]

    async def cleaning() -> None:
        try:
            await Effect.never()
        finally:
            for gate in gates:
                await gate
            log.append("cleaned")

    scope = fb.Scope(strategy)
    scope.fork(Effect.promise(cleaning), start_immediately=True)
    closer = fb.run_fork(scope.close().map(lambda _: log.append("closed")))
    for gate in gates:
        await turns()
        gate.set_result(0)
    await closer.exit()

    assert log == ["cleaned", "closed"]


async def test_a_close_that_let_one_fiber_go_twice_still_waits_for_the_other() -> None:
    """SO6, SC2: one that waits for the closer, by another way each time, counts once."""
    log: list[str] = []
    closers: list[fb.Fiber[Any, Any]] = []
    helpers: list[fb.Fiber[Any, Any]] = []
    ask, slow = new_gate(), new_gate()
    scope = fb.Scope("parallel")

    async def asking() -> None:
        try:
            await Effect.never()
        finally:
            await ask
            helpers.append(await closers[0].exit().fork_detach(start_immediately=True))
            await helpers[0].exit()
            log.append("asks again")
            await closers[0].exit()

    async def cleaning() -> None:
        try:
            await Effect.never()
        finally:
            await slow
            log.append("cleaned")

    asker = scope.fork(Effect.promise(asking), start_immediately=True)
    scope.fork(Effect.promise(cleaning), start_immediately=True)
    closer = fb.run_fork(Effect.suspend(scope.close).map(lambda _: log.append("closed")))
    closers.append(closer)
    await turns()
    ask.set_result(0)
    await turns()
    helpers[0].interrupt_unsafe()
    await turns()
    slow.set_result(0)
    await closer.exit()
    await asker.exit()

    assert log == ["asks again", "cleaned", "closed"]


class Mute(asyncio.Future[int]):
    """A future that doesn't say whether it is a gather, which a close wants to know."""

    @property
    def _children(self) -> Never:
        raise Boom


async def asked_at_each_wait(cleanup: Callable[[], Awaitable[None]]) -> fb.Fiber[None, Any]:
    """A fiber in such a cleanup, whose scope is being closed by a fiber that is awaited itself."""

    async def body() -> None:
        try:
            await Effect.never()
        finally:
            await cleanup()

    scope = fb.Scope()
    fiber = scope.fork(Effect.promise(body), start_immediately=True)
    fb.run_fork(fb.run_fork(scope.close()).exit())
    await turns()
    return fiber


async def test_a_wait_that_fails_as_it_begins_is_over() -> None:
    """The body goes on at once; what it would have waited for finds nobody, also after the end."""
    gate, awaited = new_gate(), Mute()
    waits_for: list[object] = []
    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))

    async def cleanup() -> None:
        await gate
        try:
            await awaited
        except Boom:
            task: Any = inner_task()
            waits_for.append(task._fut_waiter)

    fiber = await asked_at_each_wait(cleanup)
    gate.set_result(0)
    await turns()
    ended = fiber.done()
    awaited.set_result(0)
    await turns()

    assert waits_for == [None]
    assert ended
    assert told == []


async def test_a_body_whose_wait_fails_as_it_begins_runs_and_can_be_interrupted_as_such() -> None:
    """WI2: right after the segment that runs, and not in the middle of it."""
    gate, awaited = new_gate(), Mute()
    log: list[str] = []

    async def cleanup() -> None:
        await gate
        try:
            await awaited
        except Boom:
            running_fiber().interrupt_unsafe(again=True)
            log.append("segment done")
        await asyncio.sleep(0)
        log.append("went on")

    fiber = await asked_at_each_wait(cleanup)
    gate.set_result(0)
    await fiber.exit()

    assert log == ["segment done"]


def test_what_a_failed_wait_was_for_does_not_end_the_next_wait() -> None:
    """The timer of a sleep that failed as it began is cancelled."""
    log: list[str] = []

    async def main() -> None:
        gate, last, awaited = new_gate(), new_gate(), Mute()

        async def cleanup() -> None:
            await gate
            child = await wait_for(awaited).fork_child(start_immediately=True)
            try:
                await fb.sleep(60)
            except Boom:
                log.append("not asleep")
            awaited.set_result(0)
            while not child.done():
                await fb.sleep(0)
            value = await wait_for(last)
            log.append(f"woken by {value}")

        fiber = await asked_at_each_wait(cleanup)
        gate.set_result(0)
        await asyncio.sleep(120)
        last.set_result(7)
        await fiber.exit()

    with asyncio.Runner(loop_factory=TestLoop) as runner:
        runner.run(main())

    assert log == ["not asleep", "woken by 7"]


# ---- deep


LEVELS = 400


def test_hundreds_of_parallel_scopes_close_inside_each_others_finalizers() -> None:
    """PD16, SC2: no Python stack a level."""
    ends: list[int] = []

    def close_all_from(level: int) -> Effect[None, Never]:
        if level == LEVELS:
            return Effect.succeed(None)
        scope = fb.Scope("parallel")
        rest = Effect.suspend(lambda: close_all_from(level + 1))
        last = rest.map(lambda _: ends.append(level))
        return scope.add_finalizer(lambda _: last).flat_map(lambda _: scope.close())

    fb.run(close_all_from(0))

    assert ends == list(reversed(range(LEVELS)))


async def test_hundreds_of_parallel_scopes_signal_their_fibers_in_order() -> None:
    """PD16, SC2: however deep, a fiber unwinds before the next entry is touched; a mask holds."""
    log: list[tuple[str, int]] = []
    gate = new_gate()

    def close_all_from(level: int) -> Effect[None, Never]:
        scope = fb.Scope("parallel")
        if level == LEVELS:
            last = wait_for(gate).flat_map(lambda _: note_level("masked", level))
            forked = last.uninterruptible().fork_in(scope, start_immediately=True)
            return forked.flat_map(lambda _: scope.close())
        begun = note_level("fiber", level).flat_map(lambda _: close_all_from(level + 1))
        unwinding = endless().ensuring(begun)
        return (
            scope.add_finalizer(lambda _: note_level("finalizer", level))
            .flat_map(lambda _: unwinding.fork_in(scope, start_immediately=True))
            .flat_map(lambda _: scope.close())
        )

    def note_level(what: str, level: int) -> Effect[None, Never]:
        return Effect.sync(lambda: log.append((what, level)))

    closer = fb.run_fork(close_all_from(0))
    at_once = log.copy()
    gate.set_result(0)
    await closer.exit()

    down = [("fiber", level) for level in range(LEVELS)]
    assert at_once == down + [("finalizer", level) for level in reversed(range(LEVELS))]
    assert log[len(at_once) :] == [("masked", LEVELS)]


async def test_interrupts_inside_each_other_wait_for_each_others_ends() -> None:
    """PD16, WI6: also from the level on at which no fiber runs on another's stack any more."""
    ends: list[int] = []
    gate = new_gate()

    def made(level: int) -> Effect[None, Never]:
        if level == 20:
            return endless().ensuring(wait_for(gate)).ensuring(Effect.sync(lambda: ends.append(20)))
        inner = fb.run_fork(made(level + 1))
        end = inner.interrupt().map(lambda _: ends.append(level))
        return endless().ensuring(end)

    outermost = fb.run_fork(made(0))
    outermost.interrupt_unsafe()
    await turns()
    early = ends.copy()
    gate.set_result(0)
    await outermost.exit()

    assert early == []
    assert ends == list(reversed(range(21)))


@pytest.mark.parametrize("level", [0, 20])
@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_a_close_does_not_cut_a_cleanup_that_has_begun(
    strategy: Strategy, level: int
) -> None:
    """PD2, PD16: neither near the top nor where no fiber runs on another's stack any more."""
    log: list[str] = []
    gate = new_gate()
    scope = fb.Scope(strategy)
    closers: list[fb.Fiber[None, Never]] = []

    async def cleaning() -> None:
        try:
            await Effect.never()
        finally:
            await gate
            log.append("cleaned")

    def close_from(level: int) -> None:
        if level:
            fb.run_fork(Effect.sync(lambda: close_from(level - 1)))
        else:
            closers.append(fb.run_fork(scope.close()))

    fiber = scope.fork(Effect.promise(cleaning), start_immediately=True)
    fiber.interrupt_unsafe(by=7)
    close_from(level)
    await turns()
    ended_early = fiber.done()
    gate.set_result(0)
    await closers[0].exit()

    assert not ended_early
    assert log == ["cleaned"]
    assert interruptors(fiber.poll()) == [7, closers[0].id]


# ---- what a finalizer gives


async def test_a_finalizer_may_give_an_exit() -> None:
    """PD22, SC4: a failure is one of the close."""
    defect = ValueError("not closed")
    scope = fb.Scope()
    await scope.add_finalizer(lambda _: Success(5))
    await scope.add_finalizer(lambda _: failed(Die(defect)))

    exit = await fb.run_fork(scope.close()).exit()

    assert exit == failed(Die(defect))
