"""subscription_iterable: order, teardown, heartbeats, buffers."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fibers as fb
from fibers import AbortController, Runtime
from fibers.testing import TestClock, TestLoop
from streamengine.events import (
    Buffer,
    BufferAll,
    BufferLatest,
    Sink,
    SubscriptionOverflowError,
    subscription_iterable,
)


class Source:
    """Something that calls back, and notes who is attached."""

    def __init__(self) -> None:
        self.sinks: list[Sink[str]] = []
        self.log: list[str] = []

    def subscribe(self, sink: Sink[str]) -> Callable[[], None]:
        self.log.append("subscribe")
        self.sinks.append(sink)

        def detach() -> None:
            self.log.append("detach")
            self.sinks.remove(sink)

        return detach

    def push(self, *values: str) -> None:
        for sink in list(self.sinks):
            for value in values:
                sink.push(value)

    def end(self) -> None:
        for sink in list(self.sinks):
            sink.end()

    @property
    def left(self) -> bool:
        """Somebody was attached, and nobody is."""
        return self.log.count("subscribe") == self.log.count("detach") > 0 and not self.sinks


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture(params=["no context", "empty context", "a runtime"])
async def runtime(request: pytest.FixtureRequest) -> AsyncIterator[Runtime | None]:
    match request.param:
        case "no context":
            yield None
            return
        case "empty context":
            made = Runtime()
        case _:
            made = Runtime(clock=TestClock())
    yield made
    await made.dispose()


async def collected(values: AsyncGenerator[str, None]) -> list[str]:
    async with contextlib.aclosing(values):
        return [value async for value in values]


# ---- order


@pytest.mark.spec("W1", "W11")
async def test_nothing_runs_before_the_first_next(source: Source, runtime: Runtime | None) -> None:
    values = subscription_iterable(
        source.subscribe,
        validate=lambda: source.log.append("validate"),
        initialize=lambda _sink: source.log.append("initialize"),
        initial=lambda: "first",
        runtime=runtime,
    )
    await asyncio.sleep(0)
    assert source.log == []

    assert await anext(values) == "first"
    assert source.log == ["validate", "subscribe", "initialize"]
    await values.aclose()
    assert source.left


async def test_a_close_before_the_first_next_runs_nothing(source: Source) -> None:
    values = subscription_iterable(source.subscribe, initial=lambda: "first")
    await values.aclose()

    assert [value async for value in values] == []
    assert source.log == []


@pytest.mark.spec("W2")
async def test_the_snapshot_is_first_and_what_was_pushed_while_it_was_built_comes_after(
    source: Source, runtime: Runtime | None
) -> None:
    def subscribe(sink: Sink[str]) -> Callable[[], None]:
        detach = source.subscribe(sink)
        sink.push("in subscribe")
        return detach

    async def initialize(sink: Sink[str]) -> None:
        sink.push("in initialize 1")
        await asyncio.sleep(0)
        sink.push("in initialize 2")

    async def initial() -> str:
        source.push("in initial 1")
        await asyncio.sleep(0)
        source.push("in initial 2")
        return "snapshot"

    values = subscription_iterable(
        subscribe, initialize=initialize, initial=initial, runtime=runtime
    )
    got = [await anext(values)]
    source.push("later")
    source.end()
    got += await collected(values)

    assert got == [
        "snapshot",
        "in subscribe",
        "in initialize 1",
        "in initialize 2",
        "in initial 1",
        "in initial 2",
        "later",
    ]


async def test_a_burst_comes_in_order(source: Source) -> None:
    values = subscription_iterable(source.subscribe, initial=lambda: "0")
    await anext(values)
    burst = [str(number) for number in range(1, 1000)]
    source.push(*burst)
    source.end()

    assert await collected(values) == burst


async def test_a_value_wakes_a_reader_that_waits(source: Source, runtime: Runtime | None) -> None:
    values = subscription_iterable(source.subscribe, initial=lambda: "0", runtime=runtime)
    await anext(values)
    reader = asyncio.create_task(collected(values))
    await asyncio.sleep(0)
    source.push("1")
    await asyncio.sleep(0)
    source.push("2")
    source.end()

    assert await reader == ["1", "2"]


# ---- six ways to end, in each context


async def opened(
    source: Source, runtime: Runtime | None, **options: Any
) -> AsyncGenerator[str, None]:
    """Attached, its first value taken."""
    values = subscription_iterable(
        source.subscribe, initial=lambda: "first", runtime=runtime, **options
    )
    assert await anext(values) == "first"
    assert source.sinks
    return values


@pytest.mark.spec("W5", "W11")
async def test_a_break_detaches(source: Source, runtime: Runtime | None) -> None:
    values = subscription_iterable(source.subscribe, initial=lambda: "first", runtime=runtime)
    async with contextlib.aclosing(values):
        async for _ in values:
            break

    assert source.left


@pytest.mark.spec("W5")
async def test_a_break_without_a_close_detaches_once_it_is_collected(
    source: Source, runtime: Runtime | None
) -> None:
    async def reads() -> None:
        async for _ in subscription_iterable(
            source.subscribe,
            initial=lambda: "first",
            heartbeat=lambda: "beat",
            runtime=runtime,
        ):
            break

    await reads()
    gc.collect()
    await asyncio.sleep(0)

    assert source.left


@pytest.mark.spec("W5", "W11")
async def test_an_exception_in_the_consumer_detaches(
    source: Source, runtime: Runtime | None
) -> None:
    async def consumes() -> None:
        async with contextlib.aclosing(await opened(source, runtime)) as values:
            source.push("next")
            async for _ in values:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await consumes()

    assert source.left


@pytest.mark.spec("W5", "W11")
async def test_a_cancelled_consumer_detaches(source: Source, runtime: Runtime | None) -> None:
    values = await opened(source, runtime)
    reader = asyncio.ensure_future(anext(values))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader

    assert source.left
    assert [value async for value in values] == []


@pytest.mark.spec("W6", "W11")
async def test_a_signal_aborted_before_never_subscribes(
    source: Source, runtime: Runtime | None
) -> None:
    controller = AbortController()
    controller.abort()
    values = subscription_iterable(
        source.subscribe,
        validate=lambda: source.log.append("validate"),
        initial=lambda: "first",
        signal=controller.signal,
        runtime=runtime,
    )

    assert await collected(values) == []
    assert source.log == []


@pytest.mark.spec("W5", "W11")
async def test_an_abort_ends_a_read_that_waits(source: Source, runtime: Runtime | None) -> None:
    controller = AbortController()
    values = await opened(source, runtime, signal=controller.signal)
    reader = asyncio.create_task(collected(values))
    await asyncio.sleep(0)
    controller.abort()

    assert source.left  # at once, whatever the reader does
    assert await reader == []


@pytest.mark.spec("W5", "W11")
@pytest.mark.parametrize("where", ["validate", "initialize", "initial"])
async def test_an_abort_ends_a_start_that_hangs(
    source: Source, runtime: Runtime | None, where: str
) -> None:
    controller = AbortController()

    async def hangs(*_: object) -> str:
        await asyncio.Event().wait()
        return "never"

    hooks: Any = {where: hangs}
    values = subscription_iterable(
        source.subscribe, signal=controller.signal, runtime=runtime, **hooks
    )
    reader = asyncio.create_task(collected(values))
    for _ in range(5):
        await asyncio.sleep(0)
    controller.abort()

    assert await reader == []
    assert not source.sinks


@pytest.mark.spec("W5", "W7", "W11")
async def test_an_end_detaches_after_what_waits(source: Source, runtime: Runtime | None) -> None:
    values = await opened(source, runtime)
    source.push("1", "2")
    (sink,) = source.sinks
    sink.end()
    sink.push("late")
    sink.end()

    assert source.left
    assert await collected(values) == ["1", "2"]


@pytest.mark.spec("W5", "W11")
async def test_take_counts_the_snapshot_and_ends(source: Source, runtime: Runtime | None) -> None:
    values = await opened(source, runtime, take=3)
    source.push("1", "2", "3")

    assert await collected(values) == ["1", "2"]
    assert source.left


async def test_take_detaches_with_its_last_value(source: Source) -> None:
    values = subscription_iterable(source.subscribe, initial=lambda: "first", take=1)

    assert await anext(values) == "first"
    assert source.left


async def test_an_end_inside_subscribe_still_detaches(source: Source) -> None:
    def subscribe(sink: Sink[str]) -> Callable[[], None]:
        detach = source.subscribe(sink)
        sink.push("all")
        sink.end()
        return detach

    assert await collected(subscription_iterable(subscribe)) == ["all"]
    assert source.left


# ---- the end of the source


@pytest.mark.spec("W7", "W9")
async def test_on_end_runs_after_what_waits_and_its_error_reaches_the_consumer(
    source: Source, runtime: Runtime | None
) -> None:
    error = ValueError("at the end")

    async def on_end() -> None:
        raise error

    values = await opened(source, runtime, on_end=on_end)
    source.push("1")
    source.end()

    assert await anext(values) == "1"
    with pytest.raises(ValueError) as raised:
        await anext(values)
    assert raised.value is error
    assert [value async for value in values] == []


async def test_on_end_does_not_run_for_a_close_or_an_abort(source: Source) -> None:
    ran: list[bool] = []
    controller = AbortController()
    first = await opened(source, None, on_end=lambda: ran.append(True))
    second = await opened(source, None, on_end=lambda: ran.append(True), signal=controller.signal)
    await first.aclose()
    controller.abort()

    assert await collected(first) == await collected(second) == []
    assert ran == []


# ---- errors


@pytest.mark.spec("W9")
@pytest.mark.parametrize("where", ["validate", "initialize", "initial"])
@pytest.mark.parametrize("is_async", [False, True])
async def test_an_error_of_the_start_is_the_same_object(
    source: Source, runtime: Runtime | None, where: str, is_async: bool
) -> None:
    error = LookupError(where)

    def fails(*_: object) -> Any:
        raise error

    async def fails_later(*_: object) -> Any:
        await asyncio.sleep(0)
        raise error

    hooks: Any = {where: fails_later if is_async else fails}
    values = subscription_iterable(source.subscribe, runtime=runtime, **hooks)
    with pytest.raises(LookupError) as raised:
        await anext(values)

    assert raised.value is error
    assert not source.sinks
    assert [value async for value in values] == []


@pytest.mark.spec("W9")
async def test_an_error_of_subscribe_is_the_same_object(runtime: Runtime | None) -> None:
    error = LookupError("no such source")

    def subscribe(_sink: Sink[str]) -> Callable[[], None]:
        raise error

    with pytest.raises(LookupError) as raised:
        await anext(subscription_iterable(subscribe, runtime=runtime))
    assert raised.value is error


async def test_a_detach_that_raises_ends_nothing_else(source: Source) -> None:
    def subscribe(_sink: Sink[str]) -> Callable[[], None]:
        def detach() -> None:
            raise RuntimeError("no")

        return detach

    values = subscription_iterable(subscribe, initial=lambda: "first")
    await anext(values)
    await values.aclose()

    assert await collected(values) == []


# ---- closing


@pytest.mark.spec("W10")
async def test_a_second_close_is_as_the_first(source: Source, runtime: Runtime | None) -> None:
    values = await opened(source, runtime)
    closes: list[Awaitable[None]] = [values.aclose(), values.aclose()]

    assert await asyncio.gather(*closes) == [None, None]
    assert source.log.count("detach") == 1


@pytest.mark.spec("W10")
async def test_a_close_waits_for_the_read_under_way(
    source: Source, runtime: Runtime | None
) -> None:
    cleaned: list[bool] = []

    async def initialize(_sink: Sink[str]) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append(True)

    values = subscription_iterable(source.subscribe, initialize=initialize, runtime=runtime)
    reader = asyncio.create_task(collected(values))
    for _ in range(5):
        await asyncio.sleep(0)
    await values.aclose()

    assert cleaned == [True]
    assert await reader == []
    assert source.left


async def test_a_close_from_inside_does_not_wait_for_itself(source: Source) -> None:
    async def initialize(_sink: Sink[str]) -> None:
        await values.aclose()

    values = subscription_iterable(source.subscribe, initialize=initialize)
    async with asyncio.timeout(5):
        assert await collected(values) == []
    assert source.left


async def test_a_thrown_error_closes(source: Source) -> None:
    values = await opened(source, None)
    error = ValueError("thrown")
    with pytest.raises(ValueError) as raised:
        await values.athrow(error)

    assert raised.value is error
    assert source.left


async def test_two_readers_at_once_are_refused(source: Source) -> None:
    values = await opened(source, None)
    reader = asyncio.ensure_future(anext(values))
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="read already"):
        await anext(values)
    source.push("for the first")

    assert await reader == "for the first"
    await values.aclose()


# ---- heartbeats


class Beating:
    """A subscription with heartbeats on a clock that the test moves, and what it has read."""

    def __init__(self, source: Source, **options: Any) -> None:
        self.clock = TestClock()
        self.runtime = Runtime(clock=self.clock)
        self.values = subscription_iterable(
            source.subscribe, heartbeat=lambda: "beat", runtime=self.runtime, **options
        )
        self.got: list[str] = []
        self.reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for value in self.values:
            self.got.append(value)

    async def pass_(self, seconds: float) -> None:
        await self.runtime.run(self.clock.adjust(seconds))

    async def close(self) -> None:
        await self.values.aclose()
        await self.reader
        await self.runtime.dispose()


@pytest.mark.spec("W3")
async def test_a_heartbeat_an_interval_in_no_real_time(source: Source) -> None:
    beating = Beating(source)
    loop = asyncio.get_running_loop()
    started = loop.time()
    await beating.pass_(4.999)
    assert beating.got == []
    await beating.pass_(0.001)
    assert beating.got == ["beat"]
    await beating.pass_(999 * 5)

    assert beating.got == ["beat"] * 1000
    assert loop.time() - started < 5
    await beating.close()


@pytest.mark.spec("W3")
@pytest.mark.parametrize("start_ms", [0, 2, 4])
async def test_the_rounding_of_a_clock_makes_no_heartbeat_late(
    source: Source, start_ms: int
) -> None:
    clock = TestClock()
    await clock.adjust(start_ms / 1000)
    runtime = Runtime(clock=clock)
    values = await opened(source, runtime, heartbeat=lambda: "beat", heartbeat_seconds=0.1)
    got = list[str]()
    for _ in range(5):
        await runtime.run(clock.adjust(0.1))
        got.append(await asyncio.wait_for(anext(values), 1))

    assert got == ["beat"] * 5
    await values.aclose()
    await runtime.dispose()


@pytest.mark.spec("W3")
async def test_heartbeats_that_nobody_read_are_told_after_the_values(source: Source) -> None:
    clock = TestClock()
    runtime = Runtime(clock=clock)
    values = await opened(source, runtime, heartbeat=lambda: "beat", heartbeat_seconds=1)
    await runtime.run(clock.adjust(3))
    source.push("value")
    got = [await anext(values) for _ in range(4)]

    assert got == ["value", "beat", "beat", "beat"]
    await values.aclose()
    await runtime.dispose()


@pytest.mark.spec("W4")
async def test_no_heartbeat_before_the_snapshot_or_after_the_close(source: Source) -> None:
    built = asyncio.Event()

    async def initial() -> str:
        await built.wait()
        return "snapshot"

    beating = Beating(source, initial=initial)
    await beating.pass_(60)
    assert beating.got == []
    built.set()
    await beating.pass_(4)
    assert beating.got == ["snapshot"]
    await beating.pass_(1)
    assert beating.got == ["snapshot", "beat"]
    await beating.values.aclose()
    await beating.pass_(60)

    assert beating.got == ["snapshot", "beat"]
    await beating.close()


@pytest.mark.spec("W4")
async def test_no_heartbeat_after_the_end(source: Source) -> None:
    beating = Beating(source)
    await beating.pass_(5)
    source.end()
    await beating.pass_(60)

    assert beating.got == ["beat"]
    assert beating.reader.done()
    await beating.close()


@pytest.mark.spec("W11")
async def test_without_a_runtime_the_clock_in_context_beats(source: Source) -> None:
    clock = TestClock()
    got: list[str] = []

    @fb.effect
    async def reads() -> None:
        values = subscription_iterable(source.subscribe, heartbeat=lambda: "beat")
        async with contextlib.aclosing(values):
            async for value in values:
                got.append(value)
                if len(got) == 3:
                    return

    fiber = fb.run_fork(reads().provide_service(fb.ClockTag, clock))
    await clock.adjust(15)
    await fiber

    assert got == ["beat"] * 3
    assert source.left


@pytest.mark.spec("W11")
async def test_in_a_plain_task_the_machines_clock_beats(source: Source) -> None:
    values = subscription_iterable(
        source.subscribe, heartbeat=lambda: "beat", heartbeat_seconds=0.01
    )
    async with contextlib.aclosing(values):
        assert [await anext(values) for _ in range(3)] == ["beat"] * 3


# ---- buffers


@pytest.mark.spec("W8")
async def test_latest_gives_only_the_newest_that_nobody_took(source: Source) -> None:
    values = await opened(source, None, buffer=BufferLatest())
    source.push("1", "2", "3")
    assert await anext(values) == "3"
    source.push("4")
    assert await anext(values) == "4"
    source.push("5", "6")
    source.end()

    assert await collected(values) == ["6"]


@pytest.mark.spec("W8")
async def test_all_keeps_every_value_in_order(source: Source) -> None:
    values = await opened(source, None, buffer=BufferAll(limit=3))
    source.push("1", "2", "3")
    source.end()

    assert await collected(values) == ["1", "2", "3"]


@pytest.mark.spec("W14")
async def test_one_that_is_too_far_behind_gets_what_waits_and_an_error(source: Source) -> None:
    told: list[bool] = []
    buffer: Buffer[str] = BufferAll(limit=2, on_overflow=lambda: told.append(True))
    values = await opened(source, None, buffer=buffer)
    source.push("1", "2", "3", "4")

    assert told == [True]
    assert source.left  # nothing is held for it any more
    assert [await anext(values), await anext(values)] == ["1", "2"]
    with pytest.raises(SubscriptionOverflowError, match="at most 2"):
        await anext(values)


async def test_or_what_waits_and_the_end(source: Source) -> None:
    ran: list[bool] = []
    buffer: Buffer[str] = BufferAll(limit=2, overflow="close")
    values = await opened(source, None, buffer=buffer, on_end=lambda: ran.append(True))
    source.push("1", "2", "3")

    assert await collected(values) == ["1", "2"]
    assert source.left
    assert ran == []


async def test_or_a_fresh_snapshot_and_what_comes_after_it(source: Source) -> None:
    made = 0

    async def initial() -> str:
        nonlocal made
        made += 1
        if made > 1:
            source.push("during")
            await asyncio.sleep(0)
        return f"snapshot {made}"

    values = subscription_iterable(
        source.subscribe, initial=initial, buffer=BufferAll(limit=2, overflow="snapshot")
    )
    assert await anext(values) == "snapshot 1"
    source.push("1", "2", "3", "4")

    assert await anext(values) == "snapshot 2"
    assert await anext(values) == "during"
    source.push("after")
    assert await anext(values) == "after"
    await values.aclose()


async def test_a_value_of_any_size_reaches_one_that_is_not_behind(source: Source) -> None:
    values = await opened(source, None, buffer=BufferAll(limit=5, size=len))
    source.push("larger than five")
    assert await anext(values) == "larger than five"
    source.push("123", "45", "6")

    assert [await anext(values), await anext(values)] == ["123", "45"]
    with pytest.raises(SubscriptionOverflowError):
        await anext(values)


# ---- any order of things


STEPS = st.lists(st.sampled_from(["push", "push", "let others run", "read"]), max_size=40)


@pytest.mark.spec("W2", "W8")
@settings(max_examples=150, deadline=None)
@given(
    steps=STEPS,
    in_subscribe=st.integers(0, 3),
    in_initial=st.integers(0, 3),
    seed=st.integers(0, 2**16),
    latest=st.booleans(),
)
def test_nothing_is_lost_or_told_twice(
    steps: list[str], in_subscribe: int, in_initial: int, seed: int, latest: bool
) -> None:
    """However pushes, reads and the start interleave. Of the newest only: a subsequence, its last
    value the last.
    """

    async def main() -> tuple[list[int], list[int]]:
        pushed: list[int] = []
        sinks: list[Sink[int]] = []

        def push(times: int = 1) -> None:
            for _ in range(times):
                pushed.append(len(pushed) + 1)
                sinks[0].push(pushed[-1])

        def subscribe(sink: Sink[int]) -> Callable[[], None]:
            sinks.append(sink)
            push(in_subscribe)
            return sinks.clear

        async def initial() -> int:
            await asyncio.sleep(0)
            push(in_initial)
            await asyncio.sleep(0)
            return 0

        buffer: Buffer[int] = BufferLatest() if latest else BufferAll()
        values = subscription_iterable(subscribe, initial=initial, buffer=buffer)
        got = [await anext(values)]
        wanted = asyncio.Semaphore(0)

        async def reads() -> None:
            await wanted.acquire()
            async for value in values:
                got.append(value)
                await wanted.acquire()

        reader = asyncio.create_task(reads())
        for step in steps:
            if step == "push":
                push()
            elif step == "read":
                wanted.release()
            else:
                await asyncio.sleep(0)
        sinks[0].end()
        for _ in range(len(pushed) + 1):
            wanted.release()
        await reader
        return got, pushed

    with asyncio.Runner(loop_factory=lambda: TestLoop(seed=seed)) as runner:
        got, pushed = runner.run(main())
    assert got[0] == 0
    if latest:
        assert got == sorted(set(got))
        assert got[-1] == (pushed or [0])[-1]
    else:
        assert got == [0, *pushed]


# ---- misuse


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"take": 0}, "take"),
        ({"heartbeat_seconds": 0}, "heartbeat_seconds"),
        ({"heartbeat_seconds": float("nan")}, "heartbeat_seconds"),
        ({"buffer": BufferAll[str](overflow="snapshot")}, "initial"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    source: Source, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        subscription_iterable(source.subscribe, **options)


def test_a_buffer_for_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        BufferAll(limit=0)
