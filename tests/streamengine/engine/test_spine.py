"""The spine: every event to every observer, in order, whatever an observer does."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

import fibers as fb
from streamengine import Event, EventSpine
from streamengine.model import ReasoningEndEvent

from .conftest import MakeDesk
from .kit import WHOLE


def an_event(message_id: str = "a1") -> Event:
    return ReasoningEndEvent(workspace_id="w1", message_id=message_id)


def test_observers_hear_in_the_order_in_which_they_came() -> None:
    spine = EventSpine()
    heard: list[str] = []
    spine.subscribe(lambda _event: heard.append("first"))
    spine.subscribe(lambda _event: heard.append("second"))

    spine.emit(an_event())

    assert heard == ["first", "second"]


def test_a_function_that_subscribed_twice_hears_twice_and_leaves_once() -> None:
    spine = EventSpine()
    heard: list[str] = []

    def observer(event: Event) -> None:
        heard.append(event.message_id)

    leave = spine.subscribe(observer)
    spine.subscribe(observer)
    spine.emit(an_event("a1"))
    leave()
    leave()
    spine.emit(an_event("a2"))

    assert heard == ["a1", "a1", "a2"]


def test_who_is_unsubscribed_by_an_earlier_observer_hears_nothing_more() -> None:
    spine = EventSpine()
    heard: list[str] = []
    spine.subscribe(lambda _event: leave())
    leave = spine.subscribe(lambda event: heard.append(event.message_id))

    spine.emit(an_event())

    assert heard == []


def test_who_subscribes_during_an_event_hears_the_next_one() -> None:
    spine = EventSpine()
    heard: list[str] = []
    added: list[object] = []

    def adds(_event: Event) -> None:
        if not added:
            added.append(spine.subscribe(lambda event: heard.append(event.message_id)))

    spine.subscribe(adds)
    spine.emit(an_event("a1"))
    spine.emit(an_event("a2"))

    assert heard == ["a2"]


class Base(BaseException):
    """What some libraries raise past every ``except Exception``."""


@pytest.mark.spec("E2", "W14")
@pytest.mark.parametrize(
    "error", [ValueError("no"), asyncio.CancelledError(), GeneratorExit(), Base()]
)
async def test_an_observer_that_raises_is_logged_and_reaches_nobody_else(
    desk: MakeDesk, error: BaseException
) -> None:
    """CancelledError too, which the result of a cancelled future raises: it would pass for an
    interrupt of the pump.
    """
    d = desk(WHOLE)

    def raises(_event: Event) -> None:
        raise error

    d.engine.events.subscribe(raises)
    after: list[str] = []
    d.engine.events.subscribe(lambda event: after.append(event.type))

    with capture_logs() as logs:
        completion = await d.done(await d.start())

    assert completion.status == "completed"
    assert after == d.tape.types
    assert len([log for log in logs if log["event"] == "an observer raised"]) == len(after)


async def test_an_observer_that_is_a_coroutine_function_is_not_waited_for(
    desk: MakeDesk,
) -> None:
    d = desk(WHOLE)
    gate = asyncio.Event()
    heard: list[str] = []

    async def slow(event: Event) -> None:
        await gate.wait()
        heard.append(event.type)

    d.engine.events.subscribe(slow)

    assert (await d.done(await d.start())).status == "completed"
    assert heard == []
    gate.set()
    await d.idle()
    assert heard == d.tape.types


async def test_what_a_coroutine_observer_raises_is_logged(desk: MakeDesk) -> None:
    d = desk(WHOLE)

    async def raises(_event: Event) -> None:
        await asyncio.sleep(0)
        raise ValueError("no")

    d.engine.events.subscribe(raises)

    with capture_logs() as logs:
        await d.done(await d.start())

    assert len([log for log in logs if log["event"] == "an async observer failed"]) == 4


async def test_an_observer_may_give_an_effect(desk: MakeDesk) -> None:
    d = desk(WHOLE)
    heard: list[str] = []
    d.engine.events.subscribe(lambda event: fb.Effect.sync(lambda: heard.append(event.type)))

    await d.done(await d.start())

    assert heard == d.tape.types
