"""Probes PD16: the ready queue, its turns of the loop, and the stack that nothing needs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Never

import pytest
from returns.result import Success

import fibers as fb
from fibers import Effect, Scope
from tests.probes.kit_f import (
    Boom,
    cause_of,
    endless,
    interrupted,
    interruptors,
    new_gate,
    note,
    parked,
    turns,
    wait_for,
)

if TYPE_CHECKING:
    from collections.abc import Callable


LEVELS = 10_000


class LoopTurns:
    """Counts the turns of the running loop until stopped."""

    def __init__(self) -> None:
        self.count = 0
        self._loop = asyncio.get_running_loop()
        self._handle = self._loop.call_soon(self._tick)

    def _tick(self) -> None:
        self.count += 1
        self._handle = self._loop.call_soon(self._tick)

    def stop(self) -> int:
        """Stop counting; the turns seen."""
        self._handle.cancel()
        return self.count


class Resumable:
    """Fibers that wait for a callback, each resumed by its name."""

    def __init__(self) -> None:
        self._resumes: dict[str, Callable[[fb.Exit[None, Never] | Effect[None, Never]], None]] = {}

    def wait(self, name: str) -> Effect[None, Never]:
        """Wait until `resume(name)`."""

        def register(
            resume: Callable[[fb.Exit[None, Never] | Effect[None, Never]], None],
        ) -> Effect[Any, Never] | None:
            self._resumes[name] = resume
            return None

        return Effect.callback(register)

    def resume(self, name: str) -> None:
        """Let the waiting fiber go on."""
        self._resumes[name](Success(None))


# ---- PD16: the ready queue


@pytest.mark.spec("PD16")
async def test_a_resumed_fiber_does_not_run_on_the_resumers_stack() -> None:
    """It is ready, and runs when its turn comes."""
    log, waiting = list[str](), Resumable()
    fiber = fb.run_fork(waiting.wait("a").flat_map(lambda _: note(log, "went on")))

    waiting.resume("a")
    log.append("resume returned")
    await fiber

    assert log == ["resume returned", "went on"]


@pytest.mark.spec("PD16")
async def test_a_joiner_does_not_run_on_the_stack_of_the_fiber_that_ends() -> None:
    """Observers run there, joiners do not."""
    log = list[str]()
    target = fb.run_fork(endless())
    joiner = fb.run_fork(target.exit().flat_map(lambda _: note(log, "joiner")))

    target.interrupt_unsafe(by=7)
    log.append("interrupt returned")
    await joiner

    assert log == ["interrupt returned", "joiner"]


@pytest.mark.spec("PD16")
async def test_fibers_run_in_the_order_in_which_they_became_ready() -> None:
    """Not in that of their start."""
    log, waiting = list[str](), Resumable()

    def waiter(name: str) -> Effect[None, Never]:
        return waiting.wait(name).flat_map(lambda _: note(log, name))

    fibers = [fb.run_fork(waiter(name)) for name in ("a", "b", "c")]
    for name in ("c", "a", "b"):
        waiting.resume(name)
    for fiber in fibers:
        await fiber

    assert log == ["c", "a", "b"]


@pytest.mark.spec("PD16")
async def test_deferred_forks_start_in_order_of_the_forks() -> None:
    """They are ready from the fork on."""
    log = list[str]()

    @fb.effect
    async def parent() -> None:
        children = [await note(log, name).fork_child() for name in ("a", "b", "c")]
        for child in children:
            await child

    await parent()

    assert log == ["a", "b", "c"]


@pytest.mark.spec("PD16")
async def test_fibers_hand_over_without_a_turn_of_the_loop_each() -> None:
    """A hundred deferred forks, each joined before the next."""

    @fb.effect
    async def parent() -> int:
        counter = LoopTurns()
        for _ in range(100):
            await (await Effect.succeed(None).fork_child())
        return counter.stop()

    assert await parent() < 10


@pytest.mark.spec("PD16")
async def test_fibers_that_hand_over_do_not_starve_the_loop() -> None:
    """The drain has a budget: a callback of asyncio's gets its turn in between."""
    called = asyncio.Event()
    asyncio.get_running_loop().call_soon(called.set)

    @fb.effect
    async def parent() -> bool:
        for _ in range(100_000):
            if called.is_set():
                return True
            await (await Effect.succeed(None).fork_child())
        return False

    assert await parent()


@pytest.mark.spec("PD16")
async def test_a_relay_of_many_fibers_does_not_starve_the_loop() -> None:
    """Each fiber only forks the next and ends: it is the drain that has a budget."""
    passed, finished, seen = list[int](), asyncio.Event(), list[int]()

    def runner(left: int) -> Effect[None, Never]:
        def hand_over() -> Effect[None, Never]:
            passed.append(left)
            if left == 0:
                return Effect.sync(finished.set)
            return runner(left - 1).fork_detach().map(lambda _: None)

        return Effect.suspend(hand_over)

    fb.run_fork(runner(LEVELS))
    asyncio.get_running_loop().call_soon(lambda: seen.append(len(passed)))
    await finished.wait()

    assert len(passed) == LEVELS + 1
    assert seen[0] < LEVELS


@pytest.mark.spec("PD16")
async def test_yield_now_gives_the_loop_a_turn() -> None:
    """A callback that waits runs first."""
    log = list[str]()

    @fb.effect
    async def body() -> None:
        asyncio.get_running_loop().call_soon(log.append, "loop")
        await Effect.yield_now()
        log.append("fiber")

    await body()

    assert log == ["loop", "fiber"]


@pytest.mark.spec("PD16")
async def test_sleep_zero_gives_the_loop_a_turn() -> None:
    """On the live clock it is a yield."""
    log = list[str]()

    @fb.effect
    async def body() -> None:
        asyncio.get_running_loop().call_soon(log.append, "loop")
        await fb.sleep(0)
        log.append("fiber")

    await body()

    assert log == ["loop", "fiber"]


@pytest.mark.spec("PD16", "WI9")
async def test_the_op_budget_gives_the_loop_a_turn() -> None:
    """A chain without a suspension is not done in one go."""
    done, seen = list[int](), list[int]()
    asyncio.get_running_loop().call_soon(lambda: seen.append(len(done)))
    work = fb.for_each(range(LEVELS), lambda item: Effect.sync(lambda: done.append(item)))

    await work

    assert len(done) == LEVELS
    assert 0 < seen[0] < LEVELS


@pytest.mark.spec("PD16", "WI9")
async def test_the_op_budget_counts_what_a_body_awaits() -> None:
    """A coroutine that only awaits ready effects gives the loop its turns too."""
    done, seen = list[int](), list[int]()
    asyncio.get_running_loop().call_soon(lambda: seen.append(len(done)))

    @fb.effect
    async def body() -> None:
        for item in range(LEVELS):
            done.append(await Effect.succeed(item))

    await body()

    assert len(done) == LEVELS
    assert 0 < seen[0] < LEVELS


# ---- PD16: no stack a level


@pytest.mark.spec("PD16")
async def test_ten_thousand_nested_immediate_forks_need_no_stack() -> None:
    """Each forks the next; the deepest has run before the first fork returns."""
    log = list[str]()

    def level(below: int) -> Effect[None, Never]:
        if below == 0:
            return note(log, "deepest")
        inner = Effect.suspend(lambda: level(below - 1))
        return inner.fork_detach(start_immediately=True).map(lambda _: None)

    await level(LEVELS).flat_map(lambda _: note(log, "first fork returned"))

    assert log == ["deepest", "first fork returned"]


@pytest.mark.spec("PD16")
async def test_ten_thousand_nested_immediate_forks_from_bodies_need_no_stack() -> None:
    """The same where every level is a coroutine, forked into one scope."""
    log, scope = list[str](), Scope()

    @fb.effect
    async def level(below: int) -> None:
        if below == 0:
            log.append("deepest")
        else:
            await level(below - 1).fork_in(scope, start_immediately=True)

    await level(LEVELS)
    log.append("first fork returned")

    assert log == ["deepest", "first fork returned"]
    assert scope.finalizer_count == 0


@pytest.mark.spec("PD16")
async def test_ten_thousand_nested_interrupts_need_no_stack() -> None:
    """Each fiber's finalizer interrupts the next; all have ended when the first returns."""
    fibers = list[fb.Fiber[None, Never]]()

    def link(index: int) -> Effect[None, Never]:
        def next_one(_: object) -> Effect[None, Never]:
            if index + 1 == LEVELS:
                return Effect.succeed(None)
            return fibers[index + 1].interrupt()

        return endless().on_interrupt(next_one)

    fibers.extend(fb.run_fork(link(index)) for index in range(LEVELS))
    await fibers[0].interrupt()

    assert all(cause_of(fiber.poll()).has_interrupts_only for fiber in fibers)


@pytest.mark.spec("PD16")
async def test_ten_thousand_nested_interrupts_from_bodies_need_no_stack() -> None:
    """The same where every finalizer is the finally of a coroutine."""
    fibers = list[fb.Fiber[None, Never]]()

    @fb.effect
    async def link(index: int) -> None:
        try:
            await endless()
        finally:
            if index + 1 < LEVELS:
                await fibers[index + 1].interrupt()

    fibers.extend(fb.run_fork(link(index)) for index in range(LEVELS))
    await fibers[0].interrupt()

    assert all(cause_of(fiber.poll()).has_interrupts_only for fiber in fibers)


@pytest.mark.spec("PD16")
async def test_bodies_that_await_bodies_ten_thousand_deep_need_no_stack() -> None:
    """Neither does what each adds on the way back."""

    @fb.effect
    async def down(levels: int) -> int:
        return 0 if levels == 0 else 1 + await down(levels - 1)

    assert await down(LEVELS) == LEVELS


@pytest.mark.spec("PD16")
async def test_an_error_passes_ten_thousand_bodies() -> None:
    """The very object arrives."""
    boom = Boom()

    @fb.effect(raises=Boom)
    async def down(levels: int) -> None:
        if levels == 0:
            raise boom
        await down(levels - 1)

    with pytest.raises(Boom) as caught:
        await down(LEVELS)

    assert caught.value is boom


@pytest.mark.spec("PD16", "PD1")
async def test_an_interrupt_unwinds_ten_thousand_bodies() -> None:
    """Each finally runs, from the inside out."""
    deepest, left = asyncio.Event(), list[int]()

    @fb.effect
    async def down(levels: int) -> None:
        try:
            if levels == 0:
                deepest.set()
                await endless()
            await down(levels - 1)
        finally:
            left.append(levels)

    fiber = fb.run_fork(down(LEVELS))
    await deepest.wait()
    fiber.interrupt_unsafe(by=7)
    exit = await fiber.exit()

    assert left == list(range(LEVELS + 1))
    assert interrupted(by=7) == exit


def chained(step: Callable[[Effect[int, Never]], Effect[int, Never]]) -> Effect[int, Never]:
    """A yield that gives 0, wrapped ten thousand times."""
    work: Effect[int, Never] = Effect.yield_now().map(lambda _: 0)
    for _ in range(LEVELS):
        work = step(work)
    return work


@pytest.mark.spec("PD16")
async def test_a_chain_of_ten_thousand_maps_needs_no_stack() -> None:
    """Left-nested: each wraps the one before."""
    assert await chained(lambda inner: inner.map(lambda value: value + 1)) == LEVELS


@pytest.mark.spec("PD16")
async def test_ten_thousand_right_nested_flat_maps_need_no_stack() -> None:
    """A loop written as a recursion."""

    def count(value: int) -> Effect[int, Never]:
        return Effect.succeed(value) if value == LEVELS else up(value)

    def up(value: int) -> Effect[int, Never]:
        return Effect.succeed(value + 1).flat_map(count)

    assert await count(0) == LEVELS


@pytest.mark.spec("PD16", "IN14")
async def test_ten_thousand_nested_masks_need_no_stack() -> None:
    """Going in and coming out."""
    assert await chained(lambda inner: inner.uninterruptible()) == 0


@pytest.mark.spec("PD16", "PD23")
async def test_ten_thousand_nested_timeouts_need_no_stack() -> None:
    """Each runs what it bounds in a fiber of its own."""

    def bounded(inner: Effect[int, Never]) -> Effect[int, Never]:
        return inner.timeout(60).or_die()

    assert await chained(bounded) == 0


@pytest.mark.spec("PD16")
async def test_an_interrupt_runs_ten_thousand_finalizers() -> None:
    """From the inside out."""
    log, started = list[str](), asyncio.Event()
    work = Effect.sync(started.set).flat_map(lambda _: endless())
    for level in range(LEVELS):
        work = work.ensuring(note(log, str(level)))

    fiber = fb.run_fork(work)
    await started.wait()
    fiber.interrupt_unsafe(by=7)
    exit = await fiber.exit()

    assert log == [str(level) for level in range(LEVELS)]
    assert interrupted(by=7) == exit


@pytest.mark.spec("PD16")
async def test_an_interrupt_of_the_outermost_of_ten_thousand_timeouts_reaches_the_innermost() -> (
    None
):
    """Each interrupts and awaits the fiber inside it."""
    log, started = list[str](), asyncio.Event()
    innermost = Effect.sync(started.set).flat_map(lambda _: parked(log, "innermost"))
    work: Effect[None, Exception] = innermost
    for _ in range(LEVELS):
        work = work.timeout(60)

    fiber = fb.run_fork(work)
    await started.wait()
    await fiber.interrupt()

    assert log == ["innermost"]
    assert cause_of(fiber.poll()).has_interrupts_only


@pytest.mark.spec("PD16")
async def test_a_chain_of_ten_thousand_joins_ends_with_its_first_fiber() -> None:
    """Each fiber joins the one before it."""
    gate = new_gate()
    last = fb.run_fork(wait_for(gate))
    for _ in range(LEVELS):
        last = fb.run_fork(last.join().map(lambda value: value + 1))
    gate.set_result(0)

    assert await last == LEVELS


# ---- PD16: plain calls nest


def chain_of_unsafe_interrupts(count: int) -> list[fb.Fiber[None, Never]]:
    """Fibers whose finalizers call interrupt_unsafe on the next one, from a plain callback."""
    fibers = list[fb.Fiber[None, Never]]()

    def link(index: int) -> Effect[None, Never]:
        def interrupt_next() -> None:
            if index + 1 < count:
                fibers[index + 1].interrupt_unsafe(by=7)

        return endless().on_interrupt(lambda _: Effect.sync(interrupt_next))

    fibers.extend(fb.run_fork(link(index)) for index in range(count))
    return fibers


@pytest.mark.spec("PD16")
async def test_nested_plain_interrupts_unwind_on_the_interruptors_stack() -> None:
    """Fifty levels: all have ended when the first call returns."""
    fibers = chain_of_unsafe_interrupts(50)

    fibers[0].interrupt_unsafe(by=7)

    assert [interruptors(fiber.poll()) for fiber in fibers] == [[7]] * 50


@pytest.mark.spec("PD16")
async def test_deeply_nested_plain_interrupts_go_through_the_queue() -> None:
    """Three hundred levels: beyond a hundred the rest waits for the queue, and comes."""
    fibers = chain_of_unsafe_interrupts(300)

    fibers[0].interrupt_unsafe(by=7)
    ended_at_once = sum(fiber.poll() is not None for fiber in fibers)
    await turns()

    assert 50 < ended_at_once < 300
    assert [interruptors(fiber.poll()) for fiber in fibers] == [[7]] * 300


def chain_of_plain_forks(
    scope: Scope, count: int
) -> tuple[list[fb.Fiber[None, Never]], list[int], list[Exception]]:
    """Each effect forks the next by a plain call; the fibers, the levels that ran, the errors."""
    fibers, ran, errors = list[fb.Fiber[None, Never]](), list[int](), list[Exception]()

    def start(level: int) -> None:
        ran.append(level)
        if level < count:
            try:
                inner = scope.fork(Effect.sync(lambda: start(level + 1)), start_immediately=True)
            except Exception as exc:
                errors.append(exc)
            else:
                fibers.append(inner)

    start(0)
    return fibers, ran, errors


@pytest.mark.spec("PD16")
async def test_nested_plain_forks_start_on_the_forkers_stack() -> None:
    """Fifty levels run to the deepest."""
    _, ran, errors = chain_of_plain_forks(Scope(), 50)

    assert ran == list(range(51))
    assert errors == []


@pytest.mark.spec("PD16")
async def test_deeply_nested_plain_forks_into_an_open_scope_raise_a_clear_error() -> None:
    """Once, at the level that is too deep; it is not Python's recursion limit that says so."""
    _, ran, errors = chain_of_plain_forks(Scope(), 300)

    (error,) = errors
    assert not isinstance(error, RecursionError)
    assert str(error) != ""
    assert 50 < len(ran) < 300


@pytest.mark.spec("PD16", "FO1")
async def test_deeply_nested_plain_forks_into_a_closed_scope_fail_closed() -> None:
    """Nothing is raised: the level that is too deep never runs, its exit is an interrupt."""
    scope = Scope()
    await scope.close()

    fibers, ran, errors = chain_of_plain_forks(scope, 300)
    deepest, *others = fibers

    assert errors == []
    assert 50 < len(ran) < 300
    assert cause_of(deepest.poll()).has_interrupts_only
    assert all(fiber.poll() == Success(None) for fiber in others)
