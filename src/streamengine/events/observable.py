"""The spine as an aioreactive observable, which no observer can block or break.

A subject of aioreactive awaits each of its observers, one after another, inside the producer's own
call. So one that is slow, hangs, or was left by its iterator stops the producer and everybody else,
and one that raises keeps the event from those after it. Here the producer only puts the event down:
each observer has a buffer and a fiber of its own, and its trouble ends its own subscription.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, final

import structlog
from aioreactive import AsyncObservable, AsyncObserver
from expression.system import AsyncDisposable

import fibers as fb
from fibers import Effect, Fiber, Scope
from fibers.fiber import current_fiber

from ..model.events import Event, TerminalEvent
from .buffer import DEFAULT_LIMIT, BufferAll
from .feed import Feed
from .spine import EventSpine

Send = Callable[[Event], Awaitable[object]]
Throw = Callable[[Exception], Awaitable[object]]
Close = Callable[[], Awaitable[object]]

_log = structlog.get_logger("streamengine.events")


@final
class EventObservable(AsyncObservable[Event]):
    """Events of a spine, for ``subscribe_async`` and the operators of aioreactive.

        observable = EventObservable(engine.events, workspace_id="w1", scope=app_scope)
        subscription = await observable.subscribe_async(show)
        ...
        await subscription.dispose_async()

    Hot: an observer gets what is emitted from its subscription on, one event at a time, in order.
    ``workspace_id`` and ``message_id`` restrict it; that of one message completes after its
    terminal event. ``complete`` completes it for all. ``limit``: how many events may wait for an
    observer; past it, it gets what waits, then SubscriptionOverflowError through ``athrow``.

    An observer that raises, or is cancelled, is logged and loses its subscription, nobody else's.
    ``dispose_async`` never waits for the observer, so it returns also inside of it and in a task
    that is being cancelled; nothing is sent after it, and a send under way is interrupted.

    ``scope`` owns the fibers that deliver; None leaves them to the event loop.
    """

    __slots__ = ("_filter", "_limit", "_running", "_scope", "_spine")

    def __init__(
        self,
        spine: EventSpine,
        *,
        workspace_id: str | None = None,
        message_id: str | None = None,
        limit: int = DEFAULT_LIMIT,
        scope: Scope | None = None,
    ) -> None:
        super().__init__()
        self._spine = spine
        self._filter = (workspace_id, message_id)
        self._limit = limit
        self._scope = scope
        self._running: set[_Delivery] | None = set()  # None: completed

    async def subscribe_async(
        self,
        send: Send | AsyncObserver[Event] | None = None,
        throw: Throw | None = None,
        close: Close | None = None,
    ) -> AsyncDisposable:
        """Deliver to an observer, or to these functions, until it is disposed of."""
        feed: Feed[Event] = Feed(BufferAll(self._limit))
        if isinstance(send, AsyncObserver):
            observer: AsyncObserver[Event] = send  # pyright: ignore[reportUnknownVariableType]  # isinstance forgets of what
            delivery = _Delivery(feed, observer.asend, observer.athrow, observer.aclose)
        else:
            delivery = _Delivery(feed, send, throw, close)
        running = self._running
        if running is None:
            feed.end()
        else:
            feed.attach(self._spine.subscribe(lambda event: self._hear(feed, event)))
            running.add(delivery)
        delivery.start(self._scope, lambda: None if running is None else running.discard(delivery))
        return AsyncDisposable.create(delivery.dispose)

    def complete(self) -> None:
        """No more events: each observer gets what waits for it, then ``aclose``. A plain call that
        waits for nobody; twice is once.
        """
        running, self._running = self._running, None
        for delivery in list(running or ()):
            delivery.feed.end()

    def _hear(self, feed: Feed[Event], event: Event) -> None:
        workspace_id, message_id = self._filter
        if workspace_id is not None and event.workspace_id != workspace_id:
            return
        if message_id is None:
            feed.push(event)
        elif event.message_id == message_id:
            feed.push(event)
            if isinstance(event, TerminalEvent):
                feed.end()


@final
class _Delivery:
    """What one observer has still to get, and the fiber that gives it."""

    def __init__(
        self, feed: Feed[Event], send: Send | None, throw: Throw | None, close: Close | None
    ) -> None:
        self.feed = feed
        self._send = send
        self._throw = throw
        self._close = close
        self._fiber: Fiber[None, Any] | None = None

    def start(self, scope: Scope | None, gone: Callable[[], None]) -> None:
        work = self._deliver().catch_cause(_report)
        fiber = fb.run_fork(work) if scope is None else scope.fork(work)
        fiber.set_name("observer of the spine")
        self._fiber = fiber

        def over(_exit: object) -> None:
            # However: also where the scope has closed.
            self.feed.stop()
            gone()

        fiber.add_observer(over)

    async def dispose(self) -> None:
        # Nothing here waits. Whoever disposes may be the observer itself, or be cancelled.
        self.feed.stop()
        fiber = self._fiber
        if fiber is not None and fiber is not current_fiber():
            fiber.interrupt_unsafe()

    @fb.effect
    async def _deliver(self) -> None:
        feed = self.feed
        while not feed.stopped:
            if feed.waiting:
                event = feed.waiting.take()
                if self._send is not None:
                    await self._send(event)
            elif feed.overflow is not None:
                if self._throw is not None:
                    await self._throw(feed.overflow)
                return
            elif feed.closed:
                if self._close is not None:
                    await self._close()
                return
            else:
                await feed.arrival()


def _report(cause: fb.Cause[Any]) -> Effect[None]:
    return Effect.sync(
        lambda: _log.error("an observer raised: it is unsubscribed", exc_info=cause.squash())
    )
