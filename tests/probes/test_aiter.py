"""Async iteration: effects pulled as an async iterator, async iterators that effects consume."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator
from contextlib import aclosing
from typing import Any, Never

import pytest

import fibers as fb
from fibers import Cause, Die, Effect, EffectGen, Fail, Failure, Interrupt, Success
from fibers.testing import TestClock
from tests.probes.kit_f import (
    Boom,
    cause_of,
    collector_off,
    endless,
    failed,
    failing,
    interrupted,
    note,
    note_start_and_end,
    running_fiber,
    turns,
)

Pull = Effect[int, StopAsyncIteration]
Exits = list[fb.Exit[Any, Any]]


def pull_of(items: Iterable[int]) -> Pull:
    """Each run gives the next item; then StopAsyncIteration."""
    left = iter(items)

    def step() -> Pull:
        item = next(left, None)
        return Effect.fail(StopAsyncIteration()) if item is None else Effect.succeed(item)

    return Effect.suspend(step)


def noting(exits: Exits) -> Callable[[fb.Exit[Any, Any]], Effect[None]]:
    """An on_close that writes down what it was told."""
    return lambda exit_: Effect.sync(lambda: exits.append(exit_))


# ---- to_async_iterable: items and the end


async def test_the_items_of_a_pull_then_its_end() -> None:
    """on_close gets a success, once; aclose after it does nothing."""
    exits = Exits()

    async with aclosing(fb.to_async_iterable(pull_of([1, 2, 3]), on_close=noting(exits))) as items:
        got = [item async for item in items]
        at_the_end = exits.copy()

    assert got == [1, 2, 3]
    assert at_the_end == [Success(None)]
    assert exits == [Success(None)]


async def test_an_iterator_that_has_ended_stays_ended() -> None:
    items = fb.to_async_iterable(pull_of([1]))
    assert [item async for item in items] == [1]

    with pytest.raises(StopAsyncIteration):
        await anext(items)


@pytest.mark.spec("AT10")
@pytest.mark.parametrize("where", ["fiber", "task"])
def test_on_close_runs_in_the_consuming_fiber_and_context(where: str) -> None:
    """A variable that the consumer set is seen, and one that on_close sets is seen after it."""
    variable = contextvars.ContextVar("variable", default="unset")
    seen, fibers = list[str](), list[fb.Fiber[Any, Any] | None]()

    def on_close(_: object) -> Effect[None]:
        def close() -> None:
            seen.append(variable.get())
            fibers.append(fb.current_fiber())
            variable.set("by on_close")

        return Effect.sync(close)

    async def consume() -> fb.Fiber[Any, Any] | None:
        variable.set("by the consumer")
        async with aclosing(fb.to_async_iterable(pull_of([1, 2]), on_close=on_close)) as items:
            async for _ in items:
                break
        seen.append(variable.get())
        return fb.current_fiber()

    consumer = fb.run(Effect.promise(consume)) if where == "fiber" else asyncio.run(consume())

    assert seen == ["by the consumer", "by on_close"]
    if where == "fiber":
        assert fibers == [consumer]


async def test_break_alone_closes_nothing() -> None:
    """As with every iterator in Python: aclosing does, or aclose."""
    exits = Exits()
    items = fb.to_async_iterable(pull_of([1, 2, 3]), on_close=noting(exits))

    async for _ in items:
        break
    before = exits.copy()
    await items.aclose()

    assert before == []
    assert exits == [Success(None)]


async def test_aclose_before_the_first_item() -> None:
    """No pull is run."""
    log, exits = list[str](), Exits()
    items = fb.to_async_iterable(note(log, "pull").map(lambda _: 1), on_close=noting(exits))

    await items.aclose()
    rest = [item async for item in items]

    assert rest == []
    assert log == []
    assert exits == [Success(None)]


# ---- to_async_iterable: failures


@pytest.mark.spec("VF14")
async def test_a_pull_that_fails_closes_then_raises_its_very_error() -> None:
    exits, boom = Exits(), Boom()
    items = fb.to_async_iterable(failing(boom).map(lambda _: 1), on_close=noting(exits))

    with pytest.raises(Boom) as raised:
        await anext(items)

    assert raised.value is boom
    assert exits == [failed(Fail(boom))]
    assert [item async for item in items] == []


@pytest.mark.spec("PD4")
async def test_a_failing_pull_keeps_its_kind_in_a_body() -> None:
    """A declared failure is one, a defect stays one, several reasons stay together."""
    boom, broken = Boom("fail"), Boom("die")

    def consume(cause: fb.Cause[Boom]) -> Effect[None, Boom]:
        @fb.effect(raises=Boom)
        async def body() -> None:
            pull: Effect[int, Boom] = Effect.fail_cause(cause)
            async for _ in fb.to_async_iterable(pull):
                pass

        return body()

    for reasons in ((Fail(boom),), (Die(broken),), (Fail(boom), Die(broken))):
        assert await consume(fb.Cause(reasons)).exit() == failed(*reasons)


@pytest.mark.spec("AT19")
async def test_a_failure_of_the_close_after_a_failure_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The first one is raised; a later aclose is quiet."""
    boom, closing = Boom("pull"), Boom("close")
    pull: Effect[int, Boom] = Effect.fail(boom)

    with caplog.at_level(logging.ERROR, "fibers"), pytest.raises(Boom) as raised:
        async with aclosing(
            fb.to_async_iterable(pull, on_close=lambda _: Effect.die(closing))
        ) as items:
            await anext(items)

    assert raised.value is boom
    assert "Boom(close)" in caplog.text


async def test_a_failure_of_a_close_without_another_is_raised() -> None:
    """By the anext that met the end, and by each aclose: the outcome is remembered."""
    closing, runs = Boom(), list[str]()
    items = fb.to_async_iterable(
        pull_of([]), on_close=lambda _: note(runs, "close").flat_map(lambda _: Effect.die(closing))
    )

    for close in (items.__anext__, items.aclose, items.aclose):
        with pytest.raises(Boom) as raised:
            await close()
        assert raised.value is closing
    assert runs == ["close"]


async def test_athrow_closes_with_the_exception_and_raises_it() -> None:
    exits, boom = Exits(), Boom()
    items = fb.to_async_iterable(pull_of([1, 2]), on_close=noting(exits))
    await anext(items)

    with pytest.raises(Boom) as raised:
        await items.athrow(boom)
    with pytest.raises(StopAsyncIteration):
        await anext(items)

    assert raised.value is boom
    assert exits == [failed(Die(boom))]


async def test_athrow_takes_a_class() -> None:
    items = fb.to_async_iterable(pull_of([1, 2]))

    with pytest.raises(Boom, match="hello"):
        await items.athrow(Boom, "hello")


async def test_asend_takes_none_only() -> None:
    items = fb.to_async_iterable(pull_of([1, 2]))
    something: Any = 5

    assert await items.asend(None) == 1
    with pytest.raises(TypeError, match="use anext"):
        await items.asend(something)


# ---- to_async_iterable: a close while a pull is under way


async def test_aclose_interrupts_a_pull_and_waits_for_its_end(
    clock: TestClock, rt: fb.Runtime
) -> None:
    """The anext that waited ends the iteration; on_close comes after the pull's finalizer."""
    log = list[str]()
    pull: Effect[int] = (
        endless().on_interrupt(lambda _: note_start_and_end(log, "pull", 1.0)).map(lambda _: 1)
    )
    items = fb.to_async_iterable(pull, on_close=lambda _: note(log, "closed"))

    async def consume() -> None:
        async for _ in items:
            log.append("item")
        log.append("ended")

    consumer = rt.run_fork(Effect.promise(consume))
    closer = rt.run_fork(Effect.promise(items.aclose))
    await rt.run(clock.adjust(1))

    assert log == ["pull-start", "pull-end", "ended", "closed"]
    assert consumer.poll() == Success(None)
    assert closer.poll() == Success(None)


async def test_concurrent_closes_are_one(clock: TestClock, rt: fb.Runtime) -> None:
    """Each returns when it is done."""
    log = list[str]()
    items = fb.to_async_iterable(
        pull_of([1]), on_close=lambda _: note_start_and_end(log, "close", 1.0)
    )

    closers = [rt.run_fork(Effect.promise(items.aclose)) for _ in range(3)]
    await rt.run(clock.adjust(0.5))
    early = [closer.poll() for closer in closers]
    await rt.run(clock.adjust(0.5))

    assert early == [None, None, None]
    assert [closer.poll() for closer in closers] == [Success(None)] * 3
    assert log == ["close-start", "close-end"]


@pytest.mark.spec("PD3")
async def test_an_interrupt_of_the_closer_does_not_cut_the_close(
    clock: TestClock, rt: fb.Runtime
) -> None:
    """One that only waits for the close leaves at once."""
    log = list[str]()
    items = fb.to_async_iterable(
        pull_of([1]), on_close=lambda _: note_start_and_end(log, "close", 1.0)
    )

    closer = rt.run_fork(Effect.promise(items.aclose))
    waiter = rt.run_fork(Effect.promise(items.aclose))
    closer.interrupt_unsafe(by=7)
    waiter.interrupt_unsafe(by=7)
    early = (closer.poll(), waiter.poll())
    await rt.run(clock.adjust(1))

    assert early == (None, interrupted(by=7))
    assert log == ["close-start", "close-end"]
    assert interrupted(by=7) == closer.poll()


async def test_a_value_that_is_there_when_the_close_comes_is_not_lost() -> None:
    """The pull has succeeded; its consumer only has not run yet."""
    gate: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    items = fb.to_async_iterable(Effect.promise(lambda: gate))

    async def first() -> int:
        return await anext(items)

    consumer = fb.run_fork(Effect.promise(first))
    await turns()
    gate.set_result(5)
    closer = fb.run_fork(Effect.yield_now().flat_map(lambda _: Effect.promise(items.aclose)))
    await closer

    assert await consumer == 5


@pytest.mark.spec("PD9")
async def test_a_pull_that_closes_its_own_iterator_out_of_a_group_is_a_deadlock_error() -> None:
    """The pull waits for the fiber that closes."""
    made = list[AsyncGenerator[Never, None]]()
    pull = Effect.promise(lambda: made[0].aclose()).timeout(10).flat_map(lambda _: endless())
    made.append(fb.to_async_iterable(pull.flat_map(_fail)))

    with pytest.raises(fb.FiberDeadlockError):
        await anext(made[0])


@pytest.mark.spec("PD9")
async def test_a_pull_that_closes_its_own_iterator_is_a_deadlock_error() -> None:
    """It would wait for itself; the iterator is closed with that failure."""
    exits = Exits()
    made = list[AsyncGenerator[Never, None]]()
    pull = Effect.promise(lambda: made[0].aclose()).flat_map(lambda _: endless()).flat_map(_fail)
    made.append(fb.to_async_iterable(pull, on_close=noting(exits)))

    with pytest.raises(fb.FiberDeadlockError):
        await anext(made[0])

    assert isinstance(cause_of(exits[0]).defects[0], fb.FiberDeadlockError)


async def test_an_on_close_that_closes_again_does_not_wait_for_itself() -> None:
    log = list[str]()
    made = list[AsyncGenerator[int, None]]()

    def on_close(_: object) -> Effect[None]:
        return Effect.promise(made[0].aclose).flat_map(lambda _: note(log, "closed"))

    made.append(fb.to_async_iterable(pull_of([1]), on_close=on_close))
    await made[0].aclose()

    assert log == ["closed"]


async def test_two_anexts_at_once_are_a_runtime_error() -> None:
    """As for a generator; the first goes on."""
    gate: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    items = fb.to_async_iterable(Effect.promise(lambda: gate))

    async def first() -> int:
        return await anext(items)

    consumer = fb.run_fork(Effect.promise(first))
    with pytest.raises(RuntimeError, match="asked already"):
        await anext(items)
    gate.set_result(5)

    assert await consumer == 5
    assert await anext(items) == 5


# ---- to_async_iterable: an interrupt of the consumer


@pytest.mark.spec("AT10")
async def test_an_interrupt_of_the_consumer_ends_the_pull_and_closes(
    clock: TestClock, rt: fb.Runtime
) -> None:
    """In this order, all of it before the consumer's exit; on_close is told who it was."""
    log, exits = list[str](), Exits()
    pull: Effect[int] = (
        endless().on_interrupt(lambda _: note_start_and_end(log, "pull", 1.0)).map(lambda _: 1)
    )

    def on_close(exit_: fb.Exit[Any, Any]) -> Effect[None]:
        exits.append(exit_)
        return note_start_and_end(log, "close", 1.0)

    @fb.effect
    async def consume() -> None:
        async for _ in fb.to_async_iterable(pull, on_close=on_close):
            log.append("item")

    consumer = rt.run_fork(consume())
    consumer.interrupt_unsafe(by=7, reason="enough")
    await rt.run(clock.adjust(1.5))
    early = consumer.poll()
    await rt.run(clock.adjust(0.5))

    assert early is None
    assert log == ["pull-start", "pull-end", "close-start", "close-end"]
    assert exits == [interrupted(7, "enough")]
    assert consumer.poll() == interrupted(7, "enough")


@pytest.mark.spec("PD12")
async def test_a_cancellation_of_a_plain_task_ends_the_pull_and_closes() -> None:
    log, exits = list[str](), Exits()
    pull: Effect[int] = endless().on_interrupt(lambda _: note(log, "pull ended")).map(lambda _: 1)

    async def consume() -> None:
        async for _ in fb.to_async_iterable(pull, on_close=noting(exits)):
            log.append("item")

    task = asyncio.create_task(consume())
    await turns()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert log == ["pull ended"]
    assert cause_of(exits[0]).has_interrupts_only


@pytest.mark.spec("AT10")
async def test_an_interrupt_between_two_items_closes_by_aclosing(
    clock: TestClock, rt: fb.Runtime
) -> None:
    log, exits = list[str](), Exits()

    @fb.effect
    async def consume() -> None:
        async with aclosing(fb.to_async_iterable(pull_of([1, 2]), on_close=noting(exits))) as items:
            async for item in items:
                log.append(f"item {item}")
                await fb.sleep(60)

    consumer = rt.run_fork(consume())
    consumer.interrupt_unsafe(by=7)

    assert log == ["item 1"]
    assert exits == [Success(None)]
    assert consumer.poll() == interrupted(7)


@pytest.mark.spec("AT13")
async def test_an_item_that_comes_in_the_tick_of_an_interrupt_is_not_lost() -> None:
    """Whoever asks next gets it; nothing was closed."""
    gate: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    later = iter([6, 7])
    pulls, exits = list[fb.Fiber[Any, Any]](), Exits()

    def pull() -> Effect[int]:
        pulls.append(running_fiber())
        return Effect.succeed(next(later)) if gate.done() else Effect.promise(lambda: gate)

    items = fb.to_async_iterable(Effect.suspend(pull), on_close=noting(exits))

    async def first() -> int:
        return await anext(items)

    consumer = fb.run_fork(Effect.promise(first))
    # Called after the consumer has been woken with the item, before it runs.
    pulls[0].add_observer(lambda _: consumer.interrupt_unsafe(by=7))
    gate.set_result(5)
    await turns()

    assert consumer.poll() == interrupted(7)
    assert exits == []
    assert [await anext(items), await anext(items)] == [5, 6]


@pytest.mark.spec("IN12")
async def test_a_masked_consumer_gets_its_item_first(clock: TestClock, rt: fb.Runtime) -> None:
    got = list[int]()
    items = fb.to_async_iterable(fb.sleep(1).map(lambda _: 5))

    @fb.effect
    async def consume() -> None:
        with fb.uninterruptible():
            got.append(await anext(items))
        await fb.sleep(60)

    consumer = rt.run_fork(consume())
    consumer.interrupt_unsafe(by=7)
    await rt.run(clock.adjust(1))

    assert got == [5]
    assert consumer.poll() == interrupted(7)


async def test_an_interrupt_while_the_end_is_closed_is_only_that(
    clock: TestClock, rt: fb.Runtime
) -> None:
    """That the items were over as well is no failure."""
    log = list[str]()

    @fb.effect
    async def consume() -> None:
        items = fb.to_async_iterable(
            pull_of([1]), on_close=lambda _: note_start_and_end(log, "close", 1.0)
        )
        async for item in items:
            log.append(f"item {item}")
        log.append("after")
        await fb.sleep(60)

    consumer = rt.run_fork(consume())
    consumer.interrupt_unsafe(by=7)
    await rt.run(clock.adjust(1))

    assert log == ["item 1", "close-start", "close-end"]
    assert consumer.poll() == interrupted(7)


@pytest.mark.spec("AT22")
async def test_an_asyncio_timeout_around_anext() -> None:
    """The pull is ended, the iterator closed, then it is a TimeoutError as everywhere."""
    exits = Exits()
    items = fb.to_async_iterable(endless().map(lambda _: 1), on_close=noting(exits))

    @fb.effect(raises=TimeoutError)
    async def consume() -> None:
        async with asyncio.timeout(0.01):
            await anext(items)

    with pytest.raises(TimeoutError):
        await consume()

    assert cause_of(exits[0]).has_interrupts_only
    assert [item async for item in items] == []


@pytest.mark.spec("PD13")
async def test_an_iterator_leaves_nothing_behind() -> None:
    """After each item, no child and no fiber is left; after it all, no cycle."""

    @fb.effect
    async def consume() -> int:
        total = 0
        async with aclosing(fb.to_async_iterable(pull_of(range(1000)))) as items:
            async for item in items:
                total += item
                assert not running_fiber()._children
        return total

    with collector_off():
        fiber = fb.run_fork(consume())
        assert await fiber == sum(range(1000))
        await turns()
        gone = weakref.ref(fiber)
        del fiber

        assert gone() is None


@pytest.mark.spec("AT11", "AT13")
async def test_an_interrupt_at_every_turn_leaves_nothing_open() -> None:
    """Wherever it lands: pulls begun are pulls ended, the close runs once, after the last of them,
    and no item is given twice.
    """
    seen_ends = set[str]()

    for at in range(60):
        log, items = list[str](), list[int]()
        source = iter(range(5))

        def pull(log: list[str] = log, source: Iterator[int] = source) -> Effect[int]:
            log.append("begin")
            waited = Effect.yield_now().flat_map(lambda _: Effect.yield_now())
            ended = waited.on_exit(lambda _: Effect.yield_now())
            return ended.map(lambda _: next(source)).ensuring(note(log, "end"))

        def on_close(_: object, log: list[str] = log) -> Effect[None]:
            return Effect.yield_now().flat_map(lambda _: note(log, "close"))

        made = fb.to_async_iterable(Effect.suspend(pull), on_close=on_close)

        async def consume(made: AsyncGenerator[int, None] = made, items: list[int] = items) -> None:
            async with aclosing(made):
                async for item in made:
                    items.append(item)
                    if item == 3:
                        break
                    await asyncio.sleep(0)

        fiber = fb.run_fork(Effect.promise(consume))
        await turns(at)
        fiber.interrupt_unsafe(by=7)
        exit_ = await fiber.exit()

        assert log.count("begin") == log.count("end")
        assert log.count("close") == 1
        assert log[-1] == "close"
        assert items == list(range(len(items)))
        seen_ends.add("broke off" if isinstance(exit_, Failure) else "finished")

    assert seen_ends == {"broke off", "finished"}


# ---- for_each_async


class Source:
    """An async generator function that tells what becomes of it."""

    def __init__(self, items: Iterable[int]) -> None:
        self.items = items
        self.log = list[str]()
        self.fibers = list[fb.Fiber[Any, Any] | None]()

    async def __call__(self) -> AsyncGenerator[int, None]:
        self.log.append("open")
        try:
            for item in self.items:
                yield item
        finally:
            await asyncio.sleep(0)
            self.fibers.append(fb.current_fiber())
            self.log.append("closed")


async def test_for_each_async_gives_the_results_in_order() -> None:
    """The generator is closed; each run makes a new one."""
    source = Source([1, 2, 3])
    doubled = fb.for_each_async(source, lambda n: Effect.succeed(n * 2))

    assert await doubled == [2, 4, 6]
    assert await doubled == [2, 4, 6]
    assert source.log == ["open", "closed"] * 2


async def test_for_each_async_takes_an_iterable_too() -> None:
    """A generator can be iterated once."""
    seen = list[int]()
    eff = fb.for_each_async(
        Source([1, 2])(), lambda n: Effect.sync(lambda: seen.append(n)), discard=True
    )

    await eff
    await eff

    assert seen == [1, 2]


@pytest.mark.spec("AT10")
async def test_a_failure_in_the_loop_closes_the_generator_first() -> None:
    source, boom = Source([1, 2]), Boom()
    exit_ = await fb.for_each_async(source, lambda _: failing(boom)).exit()

    assert exit_ == failed(Fail(boom))
    assert source.log == ["open", "closed"]


@pytest.mark.spec("AT10")
async def test_an_interrupt_in_the_loop_awaits_the_close_in_the_consuming_fiber(
    clock: TestClock, rt: fb.Runtime
) -> None:
    """The exit comes after the generator's own cleanup."""
    source = Source([1, 2])
    fiber = rt.run_fork(fb.for_each_async(source, lambda _: fb.sleep(60)))

    fiber.interrupt_unsafe(by=7)
    early = fiber.poll()
    await rt.run(clock.adjust(0))

    assert early is None
    assert source.log == ["open", "closed"]
    assert source.fibers == [fiber]
    assert fiber.poll() == interrupted(7)


@pytest.mark.spec("AT10")
async def test_an_interrupt_while_the_generator_waits_reaches_it(
    clock: TestClock, rt: fb.Runtime
) -> None:
    """As CancelledError at its own await; its cleanup is awaited."""
    log = list[str]()

    async def source() -> AsyncGenerator[int, None]:
        try:
            await fb.sleep(60)
            yield 1
        except asyncio.CancelledError as exc:
            log.append(f"by {fb.interrupt_of(exc)}")
            await fb.sleep(1)
            log.append("closed")
            raise

    fiber = rt.run_fork(fb.for_each_async(source, Effect.succeed))
    fiber.interrupt_unsafe(by=7)
    await rt.run(clock.adjust(1))

    assert log == ["by Interrupt(by=7)", "closed"]
    assert fiber.poll() == interrupted(7)


@pytest.mark.spec("AT10")
@pytest.mark.parametrize("end", ["exhausted", "failure", "interrupt"])
async def test_the_generator_is_closed_in_the_context_that_iterated_it(end: str) -> None:
    """A token is good in no other Context: reset would raise."""
    variable = contextvars.ContextVar("variable", default="unset")
    log = list[str]()

    async def source() -> AsyncGenerator[int, None]:
        token = variable.set("by the generator")
        try:
            yield 1
        finally:
            await asyncio.sleep(0)
            variable.reset(token)
            log.append("reset")

    def work(_: int) -> Effect[None, Boom]:
        log.append(variable.get())
        if end == "exhausted":
            return Effect.succeed(None)
        return failing(Boom()) if end == "failure" else endless()

    fiber = fb.run_fork(fb.for_each_async(source, work)).ignore_failure()
    if end == "interrupt":
        fiber.interrupt_unsafe(by=7)
    await turns()

    assert log == ["by the generator", "reset"]
    if end == "interrupt":
        assert fiber.poll() == interrupted(7)


def is_over(generator: Any) -> bool:
    """Whether an async generator has run to its end."""
    over: bool = generator.ag_frame is None
    return over


@pytest.mark.spec("AT11")
async def test_an_interrupt_at_every_turn_finishes_the_generator() -> None:
    """What was opened is over before the exit, wherever the interrupt lands."""
    opened = list[AsyncGenerator[int, None]]()
    cut = 0

    async def numbers() -> AsyncGenerator[int, None]:
        try:
            for n in range(3):
                await asyncio.sleep(0)
                yield n
        finally:
            await asyncio.sleep(0)

    def source() -> AsyncGenerator[int, None]:
        opened.append(numbers())
        return opened[-1]

    def work(_: int) -> Effect[None]:
        return Effect.yield_now().flat_map(lambda _: Effect.yield_now())

    for at in range(30):
        fiber = fb.run_fork(fb.for_each_async(source, work))
        await turns(at)
        fiber.interrupt_unsafe(by=7)
        cut += isinstance(await fiber.exit(), Failure)

        assert is_over(opened[-1])

    assert len(opened) == 30
    assert 5 < cut < 30


@pytest.mark.spec("AT10", "AT19")
async def test_a_close_that_fails_joins_the_failure() -> None:
    """By the rule of finalizers: the defect wins."""
    boom, closing = Boom("loop"), Boom("close")

    async def source() -> AsyncGenerator[int, None]:
        try:
            yield 1
        finally:
            raise closing

    exit_ = await fb.for_each_async(source, lambda _: failing(boom)).exit()

    assert exit_ == failed(Die(boom), Die(closing))


@pytest.mark.spec("PR1")
async def test_what_the_iterable_raises_is_a_defect_or_what_catch_makes_of_it() -> None:
    """A failure of an effect that the generator awaits, too."""
    boom, plain = Boom("declared"), ValueError("plain")

    async def of_an_effect() -> AsyncGenerator[int, None]:
        yield 1
        await failing(boom)

    async def of_its_own() -> AsyncGenerator[int, None]:
        yield 1
        raise plain

    for source, error in ((of_an_effect, boom), (of_its_own, plain)):
        bare = fb.for_each_async(source, Effect.succeed)
        caught = fb.for_each_async(source, Effect.succeed, catch=lambda exc: Boom(str(exc)))
        assert await bare.exit() == failed(Die(error))
        (failure,) = cause_of(await caught.exit()).failures
        assert str(failure) == str(error)


@pytest.mark.spec("EX6")
async def test_a_callback_that_raises_is_a_defect() -> None:
    source, boom = Source([1]), Boom()

    def work(_: int) -> Effect[int]:
        raise boom

    assert await fb.for_each_async(source, work).exit() == failed(Die(boom))
    assert source.log == ["open", "closed"]


@pytest.mark.spec("PD22")
async def test_a_callback_may_give_an_exit() -> None:
    def work(n: int) -> fb.Exit[int, Boom]:
        return Success(n * 2)

    assert await fb.for_each_async(Source([1, 2]), work) == [2, 4]


async def test_an_iterator_without_aclose_is_fine() -> None:
    class Countdown:
        left = 3

        def __aiter__(self) -> AsyncIterator[int]:
            return self

        async def __anext__(self) -> int:
            if not self.left:
                raise StopAsyncIteration
            self.left -= 1
            return self.left

    assert await fb.for_each_async(Countdown(), Effect.succeed) == [2, 1, 0]


async def test_the_scope_in_context_is_the_consumers() -> None:
    """What the callback acquires lives as long as it would without the loop."""
    log = list[str]()

    def work(n: int) -> Effect[None]:
        return fb.add_finalizer(lambda _: note(log, f"released {n}"))

    looped = fb.for_each_async(Source([1, 2]), work, discard=True)
    await fb.scoped(looped.flat_map(lambda _: note(log, "looped")))

    assert log == ["looped", "released 2", "released 1"]


# ---- from_async_iterable


@pytest.mark.spec("AT10")
async def test_a_pull_of_an_iterable_closed_by_its_scope() -> None:
    source, log = Source([1, 2, 3]), list[str]()

    @fb.effect
    def body() -> EffectGen[list[int], StopAsyncIteration]:
        pull = yield from fb.from_async_iterable(source)
        first = yield from pull
        second = yield from pull
        log.extend(source.log)
        return [first, second]

    assert await fb.scoped(body()) == [1, 2]
    assert log == ["open"]
    assert source.log == ["open", "closed"]


async def test_a_pull_of_an_iterable_ends_with_stop_async_iteration() -> None:
    """Each time that it is run from then on."""

    @fb.effect
    async def body() -> list[fb.Exit[int, StopAsyncIteration]]:
        pull = await fb.from_async_iterable(Source([1]))
        return [await pull.exit() for _ in range(3)]

    first, *rest = await fb.scoped(body())

    assert first == Success(1)
    for exit_ in rest:
        assert isinstance(cause_of(exit_).failures[0], StopAsyncIteration)


class Slow:
    """An async generator whose first item never comes; it takes an hour to clean up."""

    def __init__(self, clock: TestClock) -> None:
        self.log: list[str] = []
        self.clock = clock

    async def __call__(self) -> AsyncGenerator[int, None]:
        try:
            await fb.sleep(1_000_000)
            yield 1
        finally:
            await fb.sleep(3600)
            self.log.append(f"closed at {self.clock.now():g}")


@pytest.mark.spec("AT10")
async def test_a_scope_that_closes_ends_the_pull_of_another_fiber(
    clock: TestClock, rt: fb.Runtime
) -> None:
    """A generator that runs can't be closed: it would be left as it is, its file open."""
    source, scope = Slow(clock), fb.Scope()
    pull = await scope.provide(fb.from_async_iterable(source))
    fiber = rt.run_fork(pull)
    closing = rt.run_fork(scope.close())

    await rt.run(clock.adjust(3600))

    assert source.log == ["closed at 3600"]
    assert closing.poll() == Success(None)
    exit_ = fiber.poll()
    assert exit_ is not None
    assert isinstance(cause_of(exit_).failures[0], StopAsyncIteration)
    assert isinstance(cause_of(await pull.exit()).failures[0], StopAsyncIteration)


@pytest.mark.spec("AT10")
async def test_a_masked_pull_is_ended_by_its_scope_too(clock: TestClock, rt: fb.Runtime) -> None:
    source, scope = Slow(clock), fb.Scope()
    pull = await scope.provide(fb.from_async_iterable(source))
    fiber = rt.run_fork(pull.uninterruptible().exit())
    fiber.interrupt_unsafe(by=7)
    closing = rt.run_fork(scope.close())

    await rt.run(clock.adjust(3600))

    assert source.log == ["closed at 3600"]
    assert closing.done()
    assert fiber.done()


@pytest.mark.spec("AT10")
async def test_a_pull_that_is_interrupted_already_is_not_cut_twice(
    clock: TestClock, rt: fb.Runtime
) -> None:
    """The second cut would hit the cleanup."""
    source, scope = Slow(clock), fb.Scope()
    pull = await scope.provide(fb.from_async_iterable(source))
    fiber = rt.run_fork(pull)
    fiber.interrupt_unsafe(by=7)
    closing = rt.run_fork(scope.close())
    await rt.run(clock.adjust(3599))
    before = (closing.done(), list(source.log))

    await rt.run(clock.adjust(1))

    assert before == (False, [])
    assert source.log == ["closed at 3600"]
    assert fiber.poll() == Failure(Cause([Interrupt(by=7)]))
    assert closing.done()


async def test_what_a_consumer_has_around_a_cut_pull_goes_on(
    clock: TestClock, rt: fb.Runtime
) -> None:
    """The cut is taken back: no time-out around it takes it for its own, nothing stays pending."""
    scope, log = fb.Scope(), list[str]()
    pull = await scope.provide(fb.from_async_iterable(Slow(clock)))

    @fb.effect
    async def body() -> int:
        async with asyncio.timeout(3600):
            try:
                await pull
            except StopAsyncIteration:
                log.append("end")
            task = asyncio.current_task()
            assert task is not None
            await asyncio.sleep(0)
            return task.cancelling()

    fiber = rt.run_fork(body())
    closing = rt.run_fork(scope.close())
    await rt.run(clock.adjust(3600))

    assert (fiber.poll(), log) == (Success(0), ["end"])
    assert closing.done()


async def test_a_pull_that_closes_its_own_scope_would_wait_for_itself() -> None:
    scope = fb.Scope()

    async def closes() -> AsyncGenerator[int, None]:
        yield 1
        await scope.close()
        yield 2

    pull = await scope.provide(fb.from_async_iterable(closes))

    assert await pull == 1
    with pytest.raises(fb.FiberDeadlockError, match="waits for itself"):
        await pull


async def test_a_scope_closed_by_what_the_pull_waits_for_does_not_wait_for_ever() -> None:
    scope, log = fb.Scope(), list[str]()

    async def waits() -> AsyncGenerator[int, None]:
        try:
            await fb.run_fork(scope.close())
            yield 1
        finally:
            log.append("closed")

    pull = await scope.provide(fb.from_async_iterable(waits))

    with pytest.raises(StopAsyncIteration):
        await pull
    assert log == ["closed"]


async def test_all_pulls_of_an_iterator_that_allows_several_are_ended() -> None:
    """A queue, say: no generator would."""
    log = list[str]()

    class Many:
        def __aiter__(self) -> Many:
            return self

        async def __anext__(self) -> int:
            never: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            return await never

        async def aclose(self) -> None:
            log.append("closed")

    scope = fb.Scope()
    pull = await scope.provide(fb.from_async_iterable(Many()))
    fibers = [fb.run_fork(pull) for _ in range(3)]

    await scope.close()

    for fiber in fibers:
        assert isinstance(cause_of(await fiber.exit()).failures[0], StopAsyncIteration)
    assert log == ["closed"]


async def test_there_and_back_again() -> None:
    """A pull of an iterable is an iterable."""
    source = Source([1, 2, 3])

    @fb.effect
    async def body() -> list[int]:
        pull = await fb.from_async_iterable(source)
        async with aclosing(fb.to_async_iterable(pull)) as items:
            return [item async for item in items]

    assert await fb.scoped(body()) == [1, 2, 3]
    assert source.log == ["open", "closed"]


@pytest.mark.spec("AT10")
async def test_a_native_async_for_in_a_body_closes_in_its_fiber(
    clock: TestClock, rt: fb.Runtime
) -> None:
    """aclosing is all that it takes, on an interrupt too."""
    source = Source([1, 2])

    @fb.effect
    async def body() -> None:
        async with aclosing(source()) as items:
            async for _ in items:
                await fb.sleep(60)

    fiber = rt.run_fork(body())
    fiber.interrupt_unsafe(by=7)
    await rt.run(clock.adjust(0))

    assert source.fibers == [fiber]
    assert fiber.poll() == Failure(fb.Cause((Interrupt(7),)))


def _fail(_: object) -> Effect[Never]:
    return Effect.die(AssertionError("not reached"))


async def test_athrow_takes_a_class_with_its_instance() -> None:
    """The form in three parts, as contextlib and old code call it."""
    boom, given = Boom("hello"), list[BaseException]()
    items = fb.to_async_iterable(pull_of([1, 2]))

    try:
        await items.athrow(Boom, boom)
    except Boom as exc:
        given.append(exc)

    assert given == [boom]
    assert given[0] is boom


@pytest.mark.spec("AT13", "PD12")
@pytest.mark.parametrize("turns_until_cancel", [0, 1])
async def test_an_item_on_its_way_to_a_cancelled_task_is_the_next_ones(
    turns_until_cancel: int,
) -> None:
    """The effect has ended with it, and the task has not gone on yet: nobody got it."""
    items: fb.Queue[int] = fb.Queue.unbounded()
    async with aclosing(fb.to_async_iterable(items.take())) as pulled:
        consumer = asyncio.ensure_future(anext(pulled))
        await asyncio.sleep(0)
        items.offer_unsafe(1)
        await turns(turns_until_cancel)
        consumer.cancel()
        with pytest.raises(asyncio.CancelledError):
            await consumer

        items.offer_unsafe(2)
        assert [await anext(pulled), await anext(pulled)] == [1, 2]
