"""subscription_iterable: a source that calls back, as an async iterator that somebody reads."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast, final

import fibers as fb
from fibers import AbortSignal, Clock, Effect, Runtime

from .buffer import Buffer, BufferAll
from .feed import Feed, Sink

if TYPE_CHECKING:
    from types import TracebackType

T = TypeVar("T")

_ROUNDING_SECONDS: Final = 0.5e-9
"""By so much a clock and a sum of its times may differ."""

HEARTBEAT_SECONDS: Final = 5.0

_NOTHING: Final = object()


def subscription_iterable(
    subscribe: Callable[[Sink[T]], Callable[[], object]],
    *,
    validate: Callable[[], object] | None = None,
    initialize: Callable[[Sink[T]], object] | None = None,
    initial: Callable[[], T | Awaitable[T]] | None = None,
    on_end: Callable[[], object] | None = None,
    heartbeat: Callable[[], T] | None = None,
    heartbeat_seconds: float = HEARTBEAT_SECONDS,
    buffer: Buffer[T] | None = None,
    take: int | None = None,
    signal: AbortSignal | None = None,
    runtime: Runtime[Any] | None = None,
) -> AsyncGenerator[T, None]:
    """The values of ``subscribe``'s source, for ``async for`` in a fiber or a plain task.

        events = subscription_iterable(
            lambda sink: engine.events.subscribe(sink.push),
            heartbeat=Heartbeat,
        )
        async with contextlib.aclosing(events):
            async for event in events:
                ...

    Nothing runs before the first ``anext`` (W1). Then, in this order: ``validate``; ``subscribe``,
    which gives the function that detaches; ``initialize``, which may push what the source has said
    before; ``initial``. The value of ``initial`` comes first, then what was pushed since
    ``subscribe`` (W2). The source detaches on every exit (W5), also where the iterator is dropped
    without a close, once it is collected.

    Each callable may give an awaitable; ``subscribe``, ``heartbeat`` and the detaching are plain
    calls. What one of them raises reaches the consumer as it is (W9).

    ``heartbeat`` makes a value for each ``heartbeat_seconds`` from the start on, on the clock in
    context or of ``runtime``: after what waits, never before ``initial`` is over, never after the
    end (W3, W4). ``buffer``: by default BufferAll(), which raises SubscriptionOverflowError past
    its limit. ``take``: the end after so many values; heartbeats don't count. ``signal``: its abort
    is an end without an error, also while something above still waits; what waits is dropped. After
    the source's own ``end()`` what waits is delivered, then ``on_end`` runs (W7). ``runtime``: what
    gives the callables their services.

    Raises ValueError for a ``take`` below 1, an interval that isn't positive, and for the overflow
    "snapshot" without ``initial``.
    """
    rules: Buffer[T] = BufferAll() if buffer is None else buffer
    if take is not None and take < 1:
        raise ValueError(f"take is at least 1, not {take}: there is nothing to wait for")
    if not heartbeat_seconds > 0:
        raise ValueError(f"heartbeat_seconds is positive, not {heartbeat_seconds}")
    if isinstance(rules, BufferAll) and rules.overflow == "snapshot" and initial is None:
        raise ValueError('the overflow "snapshot" needs `initial`, which makes it')
    plan = _Plan(
        subscribe, validate, initialize, initial, on_end, heartbeat, heartbeat_seconds, take, signal
    )
    return _Subscription(plan, Feed(rules), runtime)


@dataclass(frozen=True, slots=True)
class _Plan(Generic[T]):
    subscribe: Callable[[Sink[T]], Callable[[], object]]
    validate: Callable[[], object] | None
    initialize: Callable[[Sink[T]], object] | None
    initial: Callable[[], T | Awaitable[T]] | None
    on_end: Callable[[], object] | None
    heartbeat: Callable[[], T] | None
    heartbeat_seconds: float
    take: int | None
    signal: AbortSignal | None


@final
class _Beats(Generic[T]):
    """One heartbeat an interval, counted on a clock: late reads lose none."""

    def __init__(self, make: Callable[[], T], interval_seconds: float, clock: Clock) -> None:
        self.make = make
        self._interval = interval_seconds
        self._clock = clock
        self._start = clock.now()
        self._told = 0

    def take(self) -> bool:
        """Whether one is due; it counts as told then."""
        if self._clock.now() + _ROUNDING_SECONDS < self._start + (self._told + 1) * self._interval:
            return False
        self._told += 1
        return True


@final
class _Subscription(AsyncGenerator[T, None]):
    def __init__(self, plan: _Plan[T], feed: Feed[T], runtime: Runtime[Any] | None) -> None:
        self._plan = plan
        self._feed = feed
        self._runtime = runtime
        self._beats: _Beats[T] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # of the first anext
        self._left = plan.take
        self._reader: asyncio.Task[Any] | None = None
        self._read: asyncio.Future[None] | None = None
        self._unlink: Callable[[], None] = _nothing

    # ---- as Python asks for it

    async def __anext__(self) -> T:
        if self._read is not None:
            raise RuntimeError(
                "anext() of a subscription that is being read already: "
                "let one task read it, or subscribe twice"
            )
        read = self._read = asyncio.get_running_loop().create_future()
        self._reader = asyncio.current_task()
        try:
            value = await self._next()
        except BaseException:
            # The end, an error, or a cancelled consumer: none of them comes again.
            self._feed.stop()
            self._unlink()
            raise
        finally:
            self._read = self._reader = None
            read.set_result(None)
        return value

    async def asend(self, value: None, /) -> T:
        if cast("object", value) is not None:
            raise TypeError("nobody takes what is sent to a subscription: use anext()")
        return await self.__anext__()

    async def athrow(
        self,
        typ: type[BaseException] | BaseException,
        val: BaseException | object = None,
        tb: TracebackType | None = None,
        /,
    ) -> T:
        await self.aclose()
        exc = typ if isinstance(typ, BaseException) else val
        if not isinstance(exc, BaseException):
            exc = cast("type[BaseException]", typ)()
        raise exc if tb is None else exc.with_traceback(tb)

    async def aclose(self) -> None:
        """Detach, and wait until an ``anext`` that is under way has ended (W10)."""
        self._feed.stop()
        self._unlink()
        read = self._read
        # What runs inside that anext doesn't wait for itself.
        if read is not None and self._reader is not asyncio.current_task():
            await asyncio.shield(read)

    def __del__(self) -> None:
        # Dropped without a close, by a plain `break` say. The collector may run in any thread.
        loop = self._loop
        if loop is not None and not self._feed.stopped:
            self._unlink()
            with contextlib.suppress(RuntimeError):  # the loop is closed: so is its source
                loop.call_soon_threadsafe(self._feed.stop)

    # ---- one value

    async def _next(self) -> T:
        feed = self._feed
        if self._loop is None and not feed.stopped:
            first = await self._begin()
            if first is not _NOTHING and not feed.stopped:
                return self._given(cast("T", first))
        while not feed.stopped:
            if feed.waiting:
                return self._given(feed.waiting.take())
            if feed.stale:
                snapshot = await self._again()
                if not feed.stopped:
                    return self._given(snapshot)
            elif feed.overflow is not None:
                raise feed.overflow
            elif feed.closed:
                if feed.ended:
                    await self._unless_stopped(_awaited(self._plan.on_end))
                break
            elif self._beats is not None and self._beats.take():
                return self._beats.make()
            else:
                feed.ticked = False
                await feed.arrival()
        raise StopAsyncIteration

    def _given(self, value: T) -> T:
        if self._left is not None:
            self._left -= 1
            if not self._left:
                self._feed.stop()
                self._unlink()
        return value

    async def _begin(self) -> object:
        self._loop = asyncio.get_running_loop()
        plan, feed = self._plan, self._feed
        if plan.signal is not None:
            # Where it is aborted already, at once.
            self._unlink = plan.signal.add_listener(lambda _reason: feed.stop())
            if feed.stopped:
                return _NOTHING
        first = await self._unless_stopped(_begun(plan, feed))
        clock = await self._run(fb.current_clock())
        if plan.heartbeat is not None and not feed.stopped:
            self._beats = _Beats(plan.heartbeat, plan.heartbeat_seconds, clock)
            # One timer for all waits, a bound on each would cost more than the wait itself. It
            # knows the feed only: see Feed.
            ticking = _ticks(feed, plan.heartbeat_seconds).provide_service(fb.ClockTag, clock)
            fork = fb.run_fork if self._runtime is None else self._runtime.run_fork
            timer = fork(ticking)
            timer.set_name("heartbeat")
            feed.stopping.add_listener(lambda _reason: timer.interrupt_unsafe())
        return first

    async def _again(self) -> T:
        """Another snapshot, in place of what was dropped; what is pushed meanwhile comes after."""
        self._feed.stale = False
        return cast("T", await self._unless_stopped(_awaited(self._plan.initial)))

    async def _unless_stopped(self, eff: Effect[object]) -> object:
        """Its value, or nothing where the subscription is stopped first: then it is interrupted."""
        stopped = self._feed.stopping.wait().map(lambda _reason: _NOTHING)
        return await self._run(fb.race_first(eff, stopped))

    async def _run(self, eff: Effect[Any]) -> Any:
        return await (eff if self._runtime is None else self._runtime.run(eff))


@fb.effect
async def _ticks(feed: Feed[Any], interval_seconds: float) -> None:
    while True:
        await fb.sleep(interval_seconds)
        feed.tick()


@fb.effect
async def _begun(plan: _Plan[T], feed: Feed[T]) -> object:
    await _awaited(plan.validate)
    feed.attach(plan.subscribe(feed))
    if plan.initialize is not None:
        given = plan.initialize(feed)
        if inspect.isawaitable(given):
            await given
    return await _awaited(plan.initial)


@fb.effect
async def _awaited(f: Callable[[], object] | None) -> object:
    """What a plain or an async function gives; nothing for no function."""
    if f is None:
        return _NOTHING
    given = f()
    return await given if inspect.isawaitable(given) else given


def _nothing() -> None:
    return None
