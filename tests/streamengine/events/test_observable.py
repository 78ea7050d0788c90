"""The observable face of the spine: what no observer can do to the producer or to the others.

Each fault of aioreactive that this face is built to keep out is shown first, on aioreactive's own
subject; where such a test fails, the fault is gone.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Any

import aioreactive as rx
import pytest
from aioreactive.observers import AsyncAnonymousObserver, AsyncIteratorObserver, safe_observer
from expression.system import AsyncDisposable
from structlog.testing import capture_logs

import fibers as fb
from streamengine.events import EventObservable, EventSpine, SubscriptionOverflowError
from streamengine.model import Event, StreamAbortEvent, StreamDeltaEvent

TICKS = 20


def delta(number: int, *, workspace: str = "w1", message: str = "a1") -> StreamDeltaEvent:
    return StreamDeltaEvent(
        workspace_id=workspace, message_id=message, delta=str(number), timestamp_ms=number
    )


def end(message: str = "a1") -> StreamAbortEvent:
    return StreamAbortEvent(workspace_id="w1", message_id=message, abort_reason="user")


async def turns() -> None:
    """Let everybody do what they can."""
    for _ in range(TICKS):
        await asyncio.sleep(0)


class Tape:
    """An observer that notes everything."""

    def __init__(self) -> None:
        self.log: list[object] = []

    async def send(self, event: Event) -> None:
        self.log.append(event.timestamp_ms if isinstance(event, StreamDeltaEvent) else event.type)

    async def throw(self, error: Exception) -> None:
        self.log.append(error)

    async def close(self) -> None:
        self.log.append("closed")

    async def on(self, observable: EventObservable) -> Any:
        return await observable.subscribe_async(self.send, self.throw, self.close)


@pytest.fixture
def spine() -> EventSpine:
    return EventSpine()


async def hangs(_event: object = None) -> None:
    await asyncio.Event().wait()


# ---- what it is for


async def test_an_observer_gets_the_events_in_order_until_it_is_disposed_of(
    spine: EventSpine,
) -> None:
    tape = Tape()
    subscription = await tape.on(EventObservable(spine))
    for number in (1, 2, 3):
        spine.emit(delta(number))
    await turns()
    await subscription.dispose_async()
    await subscription.dispose_async()
    spine.emit(delta(4))
    await turns()

    assert tape.log == [1, 2, 3]


async def test_it_is_restricted_to_a_workspace_or_a_message(spine: EventSpine) -> None:
    here, one = Tape(), Tape()
    first = await here.on(EventObservable(spine, workspace_id="w1"))
    second = await one.on(EventObservable(spine, message_id="a2"))
    spine.emit(delta(1, workspace="w2"))
    spine.emit(delta(2, message="a1"))
    spine.emit(delta(3, message="a2"))
    await turns()
    await first.dispose_async()
    await second.dispose_async()

    assert here.log == [2, 3]
    assert one.log == [3]


async def test_that_of_one_message_completes_after_its_terminal_event(spine: EventSpine) -> None:
    tape = Tape()
    await tape.on(EventObservable(spine, message_id="a1"))
    for event in (delta(1), end("a2"), end("a1"), delta(2)):
        spine.emit(event)
    await turns()

    assert tape.log == [1, "stream-abort", "closed"]


async def test_completion_comes_after_what_waits_and_for_late_comers_at_once(
    spine: EventSpine,
) -> None:
    early, late = Tape(), Tape()
    observable = EventObservable(spine)
    await early.on(observable)
    spine.emit(delta(1))
    observable.complete()
    observable.complete()
    spine.emit(delta(2))
    await late.on(observable)
    await turns()

    assert early.log == [1, "closed"]
    assert late.log == ["closed"]


async def test_the_operators_of_aioreactive_apply(spine: EventSpine) -> None:
    got: list[str] = []
    chain = (
        rx.AsyncRx(EventObservable(spine))
        .filter(lambda event: isinstance(event, StreamDeltaEvent))
        .map(lambda event: event.type)
    )

    async def send(kind: str) -> None:
        got.append(kind)

    subscription = await chain.subscribe_async(send)
    spine.emit(delta(1))
    spine.emit(end())
    spine.emit(delta(2))
    await turns()
    await subscription.dispose_async()

    assert got == ["stream-delta", "stream-delta"]


async def test_a_closed_scope_ends_the_delivery_and_the_subscription(spine: EventSpine) -> None:
    tape = Tape()
    scope = fb.Scope(name="observers")
    await tape.on(EventObservable(spine, scope=scope))
    await scope.close()
    spine.emit(delta(1))
    await turns()

    assert tape.log == []


# ---- fault: the producer waits for each observer


async def test_fault_a_subject_waits_for_an_observer_that_hangs() -> None:
    subject: rx.AsyncSubject[int] = rx.AsyncSubject()
    await subject.subscribe_async(hangs)
    sending = asyncio.ensure_future(subject.asend(1))
    await turns()

    assert not sending.done()
    sending.cancel()


@pytest.mark.spec("W14")
async def test_an_observer_that_hangs_holds_nobody_up(spine: EventSpine) -> None:
    observable = EventObservable(spine)
    stuck = await observable.subscribe_async(hangs)
    tape = Tape()
    await tape.on(observable)
    for number in range(100):
        spine.emit(delta(number))
    observable.complete()
    await turns()

    assert tape.log == [*range(100), "closed"]
    await stuck.dispose_async()


# ---- fault: an observer that raises


async def test_fault_one_that_raises_stops_the_producer_and_those_after_it() -> None:
    subject: rx.AsyncSubject[int] = rx.AsyncSubject()
    got: list[int] = []

    async def raises(_value: int) -> None:
        raise ValueError("no")

    async def takes(value: int) -> None:
        got.append(value)

    await subject.subscribe_async(raises)
    await subject.subscribe_async(takes)
    with pytest.raises(ValueError):
        await subject.asend(1)

    assert got == []


@pytest.mark.spec("W14")
@pytest.mark.parametrize("error", [ValueError("no"), asyncio.CancelledError()])
async def test_one_that_raises_loses_its_own_subscription(
    spine: EventSpine, error: BaseException
) -> None:
    observable = EventObservable(spine)
    calls: list[Event] = []

    async def raises(event: Event) -> None:
        calls.append(event)
        raise error

    with capture_logs() as logs:
        await observable.subscribe_async(raises)
        tape = Tape()
        await tape.on(observable)
        spine.emit(delta(1))
        spine.emit(delta(2))
        await turns()

    assert tape.log == [1, 2]
    assert len(calls) == 1
    assert [entry["event"].partition(":")[0] for entry in logs] == ["an observer raised"]
    observable.complete()
    await turns()


async def test_fault_the_safe_observer_keeps_a_subscription_that_has_failed() -> None:
    """After an observer has raised, everything that is sent still piles up for it."""
    disposed: list[bool] = []

    async def raises(_value: int) -> None:
        raise ValueError("no")

    async def dispose() -> None:
        disposed.append(True)

    observer = safe_observer(AsyncAnonymousObserver(raises), AsyncDisposable.create(dispose))
    await observer.asend(1)
    await turns()

    assert disposed == []


# ---- fault: an iterator that was left


async def test_fault_the_close_of_an_iterator_that_was_left_never_returns() -> None:
    subject: rx.AsyncSubject[int] = rx.AsyncSubject()
    iterator = AsyncIteratorObserver(subject)
    first = asyncio.ensure_future(anext(iterator))
    await turns()
    await subject.asend(1)
    assert await first == 1
    closing = asyncio.ensure_future(subject.aclose())
    await turns()

    assert not closing.done()
    closing.cancel()


async def test_an_iterator_that_is_left_blocks_neither_events_nor_completion(
    spine: EventSpine,
) -> None:
    observable = EventObservable(spine)
    iterator: AsyncIteratorObserver[Event] = AsyncIteratorObserver(observable)
    tape = Tape()
    await tape.on(observable)
    first = asyncio.ensure_future(anext(iterator))
    await turns()
    spine.emit(delta(1))
    assert await first == delta(1)
    for number in (2, 3):
        spine.emit(delta(number))
    observable.complete()
    await turns()

    assert tape.log == [1, 2, 3, "closed"]
    await iterator.dispose_async()


async def test_fault_a_cancelled_iterator_breaks_the_producer() -> None:
    subject: rx.AsyncSubject[int] = rx.AsyncSubject()
    iterator = AsyncIteratorObserver(subject)
    first = asyncio.ensure_future(anext(iterator))
    await turns()
    first.cancel()
    await turns()

    with pytest.raises(asyncio.InvalidStateError):
        await subject.asend(1)


async def test_a_cancelled_iterator_loses_only_itself(spine: EventSpine) -> None:
    observable = EventObservable(spine)
    iterator: AsyncIteratorObserver[Event] = AsyncIteratorObserver(observable)
    tape = Tape()
    await tape.on(observable)
    first = asyncio.ensure_future(anext(iterator))
    await turns()
    first.cancel()
    with capture_logs() as logs:
        spine.emit(delta(1))
        spine.emit(delta(2))
        await turns()

    assert tape.log == [1, 2]
    assert len(logs) == 1  # once: it has no subscription any more
    observable.complete()
    await turns()


# ---- fault: what it takes for an observer


async def test_fault_a_callable_that_is_no_coroutine_function_is_refused() -> None:
    subject: rx.AsyncSubject[int] = rx.AsyncSubject()

    class Sends:
        async def __call__(self, _value: int) -> None: ...

    with pytest.raises(AssertionError):
        await subject.subscribe_async(Sends())


async def test_whatever_gives_an_awaitable_observes(spine: EventSpine) -> None:
    observable = EventObservable(spine)
    got: list[tuple[str, Event]] = []

    class Sends:
        async def __call__(self, event: Event) -> None:
            got.append(("object", event))

    async def named(name: str, event: Event) -> None:
        got.append((name, event))

    observers: list[Callable[[Event], Awaitable[Any]]] = [
        Sends(),
        functools.partial(named, "partial"),
        lambda event: fb.Effect.sync(lambda: got.append(("effect", event))),
    ]
    for observer in observers:
        await observable.subscribe_async(observer)
    spine.emit(delta(1))
    await turns()
    observable.complete()

    assert sorted(name for name, _ in got) == ["effect", "object", "partial"]


# ---- one that never takes anything


@pytest.mark.spec("W14")
async def test_one_that_is_too_far_behind_gets_what_waits_and_an_error(spine: EventSpine) -> None:
    gate = asyncio.Event()
    tape = Tape()

    async def slow(event: Event) -> None:
        await gate.wait()
        await tape.send(event)

    await EventObservable(spine, limit=3).subscribe_async(slow, tape.throw, tape.close)
    await turns()
    for number in range(10):
        spine.emit(delta(number))
    gate.set()
    await turns()

    *events, error = tape.log
    assert events == [0, 1, 2]
    assert isinstance(error, SubscriptionOverflowError)


# ---- leaving


async def test_dispose_from_inside_the_observer_returns(spine: EventSpine) -> None:
    got: list[Event] = []

    async def once(event: Event) -> None:
        got.append(event)
        await subscription.dispose_async()
        await asyncio.sleep(0)
        got.append(event)

    subscription = await EventObservable(spine).subscribe_async(once)
    spine.emit(delta(1))
    spine.emit(delta(2))
    await turns()

    assert got == [delta(1), delta(1)]


async def test_dispose_interrupts_a_send_that_hangs(spine: EventSpine) -> None:
    log: list[str] = []

    async def waits(_event: Event) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            log.append("interrupted")

    subscription = await EventObservable(spine).subscribe_async(waits)
    spine.emit(delta(1))
    await turns()
    await subscription.dispose_async()
    await turns()

    assert log == ["interrupted"]


async def test_dispose_returns_in_a_task_that_is_being_cancelled(spine: EventSpine) -> None:
    log: list[str] = []
    tape = Tape()

    async def uses() -> None:
        subscription = await tape.on(EventObservable(spine))
        try:
            await asyncio.Event().wait()
        finally:
            task.cancel()
            await subscription.dispose_async()
            log.append("disposed")

    task = asyncio.create_task(uses())
    await turns()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    spine.emit(delta(1))
    await turns()

    assert log == ["disposed"]
    assert tape.log == []


async def test_an_observer_that_never_returns_from_its_close_holds_nobody_up(
    spine: EventSpine,
) -> None:
    observable = EventObservable(spine)
    tape = Tape()
    stuck = await observable.subscribe_async(tape.send, tape.throw, hangs)
    other = Tape()
    await other.on(observable)
    observable.complete()
    await turns()

    assert other.log == ["closed"]
    await stuck.dispose_async()
