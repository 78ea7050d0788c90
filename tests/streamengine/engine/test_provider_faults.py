"""Providers that misbehave: at each point, and in each way that Python allows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import pytest
from structlog.testing import capture_logs

import fibers as fb
from fibers import AbortSignal
from fibers.app import AppScope, close_bounded
from streamengine.model import ErrorPart

from .conftest import MakeDesk
from .kit import FINISH, GRACE_SECONDS, WHOLE, Call, Given, Hand, Parts, Wedged, calls, text

pytestmark = pytest.mark.lifecycle


class HandMade(AsyncIterator[Given]):
    """An iterator that is no generator: its close is the provider's own code."""

    def __init__(self, *parts: Given) -> None:
        self.parts = list(parts)
        self.closed = 0

    async def __anext__(self) -> Given:
        if not self.parts:
            raise StopAsyncIteration
        return self.parts.pop(0)

    async def aclose(self) -> None:
        self.closed += 1


class ClosingRaises(HandMade):
    async def aclose(self) -> None:
        await super().aclose()
        raise OSError("the connection is gone already")


class ClosingHangs(HandMade):
    def __init__(self, *parts: Given) -> None:
        super().__init__(*parts)
        self.let_go = asyncio.Event()

    async def aclose(self) -> None:
        await super().aclose()
        while not self.let_go.is_set():
            try:
                await self.let_go.wait()
            except asyncio.CancelledError:
                continue


# ---- CancelledError


@pytest.mark.spec("E1")
@pytest.mark.parametrize("first", [[], [text("half")]])
async def test_a_provider_that_raises_cancelled_error_fails_its_stream(
    desk: MakeDesk, first: list[Given]
) -> None:
    """Some task inside of it was cancelled; nobody asked the stream to end."""

    async def play() -> AsyncGenerator[Given, None]:
        for part in first:
            yield part
        raise asyncio.CancelledError("somebody else's")

    d = desk(lambda _call: play(), WHOLE)

    completion = await d.done(await d.start())

    assert (completion.status, completion.error_type) == ("failed", "aborted")
    assert [event.type for event in d.tape.terminals] == ["error"]
    assert (await d.done(await d.start("next"))).status == "completed"


@pytest.mark.spec("E10", "E1")
async def test_a_provider_that_swallows_its_cancel_and_goes_on_is_cut_off(desk: MakeDesk) -> None:
    """Report R09: the run must end although a handler ate the cancellation."""

    def goes_on(_call: Call) -> Parts:
        async def play() -> AsyncGenerator[Given, None]:
            yield text("half")
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                pass
            for _ in range(3):
                yield text("late")
            yield FINISH

        return play()

    d = desk(goes_on)
    handle = await d.start()
    await d.idle()

    await d.stop("user")

    assert (await d.done(handle)).status == "aborted"
    assert d.tape.said == "half"
    assert d.disk.answers() == ["half"]
    assert d.engine.describe()["abandoned"] == []


@pytest.mark.spec("E1")
async def test_a_reading_that_somebody_cancels_fails_the_stream(desk: MakeDesk) -> None:
    """As a debugger or a framework does with asyncio.all_tasks()."""

    async def play() -> AsyncGenerator[Given, None]:
        yield text("half")
        await asyncio.Event().wait()

    d = desk(lambda _call: play())
    handle = await d.start()
    await d.idle()
    (reading,) = [t for t in asyncio.all_tasks() if t.get_name().startswith("provider of")]

    reading.cancel()

    assert (await d.done(handle)).status == "failed"
    assert [event.type for event in d.tape.terminals] == ["error"]


# ---- closing


async def test_an_iterator_is_closed_once_at_the_end(desk: MakeDesk) -> None:
    parts = HandMade(text("Hello"), FINISH)
    d = desk(lambda _call: parts)

    assert (await d.done(await d.start())).status == "completed"

    assert parts.closed == 1


async def test_an_iterator_whose_stream_was_stopped_before_the_launch_is_closed_unread(
    desk: MakeDesk,
) -> None:
    parts = HandMade(text("Hello"), FINISH)
    d = desk(lambda _call: parts)

    async def start_and_stop() -> None:
        await d.starting()
        await d.stopping("user")

    await d.rt.run(fb.Effect.promise(start_and_stop))

    assert parts.closed == 1
    assert len(parts.parts) == 2


async def test_a_close_that_raises_does_not_spoil_the_answer(desk: MakeDesk) -> None:
    d = desk(lambda _call: ClosingRaises(text("Hello"), FINISH))

    assert (await d.done(await d.start())).status == "completed"
    assert d.disk.answers() == ["Hello"]


@pytest.mark.spec("BT5")
async def test_a_close_that_hangs_does_not_hold_up_the_answer(desk: MakeDesk) -> None:
    parts = ClosingHangs(text("Hello"), FINISH)
    d = desk(lambda _call: parts)
    handle = await d.start()
    await d.idle()
    assert d.tape.types[-1] == "stream-end"

    await d.pass_time(GRACE_SECONDS)

    assert (await d.done(handle)).status == "completed"
    parts.let_go.set()
    await d.idle()


@pytest.mark.spec("BT5")
async def test_a_close_that_hangs_does_not_hold_up_a_stop_before_the_launch(
    desk: MakeDesk,
) -> None:
    parts = ClosingHangs(text("Hello"), FINISH)
    d = desk(lambda _call: parts)

    async def start_and_stop() -> None:
        await d.starting()
        await d.stopping("user")

    stopping = d.rt.run_fork(fb.Effect.promise(start_and_stop))
    await d.pass_time(GRACE_SECONDS)
    await stopping

    assert d.tape.types == ["stream-abort"]
    parts.let_go.set()
    await d.idle()


# ---- abandoned


@pytest.mark.spec("BT5")
async def test_an_abandoned_provider_is_named_and_warned_of_once(desk: MakeDesk) -> None:
    wedged = Wedged(text("half"))
    d = desk(wedged)
    handle = await d.start()
    await d.idle()

    with capture_logs() as logs:
        stopping = d.rt.run_fork(d.stopping("user"))
        await d.pass_time(GRACE_SECONDS)
        await stopping
        await d.pass_time(60)

    name = f"abandoned provider of w1/{handle.message_id}"
    assert d.engine.describe()["abandoned"] == [name]
    assert name in fb.dump()
    warnings = [log for log in logs if log["log_level"] == "warning"]
    assert [log["messageId"] for log in warnings] == [handle.message_id]

    wedged.let_go.set()
    await d.idle()
    assert d.engine.describe()["abandoned"] == []
    assert d.tape.said == "half"


@pytest.mark.spec("BT5")
async def test_an_abandoned_tool_is_not_taken_for_the_provider(desk: MakeDesk) -> None:
    let_go = asyncio.Event()

    async def deaf(_given: dict[str, Any], _signal: AbortSignal) -> object:
        with fb.uninterruptible():
            await let_go.wait()
        return None

    d = desk(calls("deaf"), tools=[Hand("deaf", deaf)])
    handle = await d.start()
    await d.idle()

    with capture_logs() as logs:
        stopping = d.rt.run_fork(d.stopping("user"))
        await d.pass_time(GRACE_SECONDS)
        await stopping

    assert d.abandoned == [f"abandoned tool deaf of w1/{handle.message_id}"]
    (warning,) = [log for log in logs if log["log_level"] == "warning"]
    assert warning["event"].startswith("tool deaf ignores the abort")
    let_go.set()
    await d.idle()
    assert d.abandoned == []


@pytest.mark.spec("BT5")
async def test_nothing_but_the_provider_itself_outlives_an_abandoned_stream(
    desk: MakeDesk,
) -> None:
    wedged = Wedged(text("half"))
    d = desk(wedged)
    handle = await d.start()
    await d.idle()
    stopping = d.rt.run_fork(d.stopping("user"))
    await d.pass_time(GRACE_SECONDS)
    await stopping

    lines = [line.lstrip() for line in fb.dump().splitlines()]
    left = [line for line in lines if line.startswith("#") and handle.message_id in line]

    assert len(left) == 2, left  # what reads it, and what waits for that
    assert all("provider of" in line for line in left)
    wedged.let_go.set()
    await d.idle()


@pytest.mark.spec("BT5")
async def test_a_provider_that_outlives_a_failed_stream_is_let_go_at_its_next_part(
    desk: MakeDesk,
) -> None:
    """It swallows its interrupt, and its next part must not wait for a pump that is over."""

    def reports_then_goes_on(_call: Call) -> Parts:
        async def play() -> AsyncGenerator[Given, None]:
            yield ErrorPart(error="overloaded")
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                pass
            yield text("late")
            raise AssertionError("read on")

        return play()

    d = desk(reports_then_goes_on)

    completion = await d.done(await d.start())

    assert completion.status == "failed"
    assert d.engine.describe()["abandoned"] == []


@pytest.mark.spec("BT5")
async def test_a_wedged_provider_of_a_failed_stream_writes_nothing_any_more(
    desk: MakeDesk,
) -> None:
    """Not the partial, in particular, that the next message has already made a row of."""
    wedged = Wedged(text("one"), text(" two"), ErrorPart(error="overloaded"))
    d = desk(wedged, WHOLE)
    handle = await d.start("first")
    await d.pass_time(GRACE_SECONDS)
    assert (await d.done(handle)).status == "failed"
    await d.done(await d.start("second"))

    await d.pass_time(5)

    assert d.disk.partial() is None
    assert d.disk.answers() == ["one two", "Hello there"]
    assert {p.name for p in d.disk.directory().iterdir()} == {"chat.jsonl", "note.json"}
    wedged.let_go.set()
    await d.idle()


@pytest.mark.spec("BT5")
async def test_the_close_of_the_app_scope_waits_for_an_abandoned_provider_within_its_bound(
    desk: MakeDesk,
) -> None:
    """Also for one that is abandoned during the close; the stream itself has ended long before."""
    scope = AppScope()
    wedged = Wedged(text("half"))
    d = desk(wedged, scope=scope)
    handle = await d.start()
    await d.idle()
    closing = d.rt.run_fork(fb.Effect.promise(lambda: close_bounded(scope)))

    await d.pass_time(GRACE_SECONDS)
    assert (await d.done(handle)).abort_reason == "system"
    assert closing.poll() is None
    await d.pass_time(2.0 - GRACE_SECONDS - 0.001)
    assert closing.poll() is None
    await d.pass_time(0.001)

    assert await closing is False
    wedged.let_go.set()
    await d.idle()


@pytest.mark.spec("BT5")
async def test_the_close_is_in_time_when_the_abandoned_provider_ends_after_all(
    desk: MakeDesk,
) -> None:
    scope = AppScope()
    wedged = Wedged(text("half"))
    d = desk(wedged, scope=scope)
    await d.start()
    await d.idle()
    closing = d.rt.run_fork(fb.Effect.promise(lambda: close_bounded(scope)))
    await d.pass_time(1.0)

    wedged.let_go.set()

    assert await closing is True
    assert d.clock.now() == 1.0
