"""Hooks of the spine: a start and an end once for each launched stream, and waterfalls."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

import fibers as fb
from streamengine.events import STREAM_END, STREAM_START, Blockable, EventSpine, Hook, Next
from streamengine.model import (
    ErrorEvent,
    Event,
    ReasoningEndEvent,
    RowMetadata,
    StreamAbortEvent,
    StreamEndEvent,
    StreamStartEvent,
)


def started(message_id: str = "a1", *, replay: bool | None = None) -> StreamStartEvent:
    return StreamStartEvent(
        workspace_id="w1",
        message_id=message_id,
        history_sequence=1,
        start_time_ms=1,
        replay=replay,
    )


def ended(message_id: str = "a1") -> StreamEndEvent:
    return StreamEndEvent(
        workspace_id="w1", message_id=message_id, metadata=RowMetadata(), parts=()
    )


def aborted(message_id: str = "a1") -> StreamAbortEvent:
    return StreamAbortEvent(workspace_id="w1", message_id=message_id, abort_reason="user")


def failed(message_id: str = "a1") -> ErrorEvent:
    return ErrorEvent(workspace_id="w1", message_id=message_id, error="no", error_type="api")


def a_spine() -> tuple[EventSpine, list[str]]:
    """A spine, and what its two hooks are told."""
    spine = EventSpine()
    log: list[str] = []
    spine.observe(STREAM_START, lambda event: log.append(f"start {event.message_id}"))
    spine.observe(STREAM_END, lambda event: log.append(f"{event.type} {event.message_id}"))
    return spine, log


@pytest.mark.parametrize("terminal", [ended(), aborted(), failed()], ids=lambda e: e.type)
def test_a_stream_starts_and_ends_once(terminal: Event) -> None:
    spine, log = a_spine()
    for event in (started(), ReasoningEndEvent(workspace_id="w1", message_id="a1"), terminal):
        spine.emit(event)

    assert log == ["start a1", f"{terminal.type} a1"]


@pytest.mark.spec("W13")
def test_a_replay_counts_as_neither() -> None:
    spine, log = a_spine()
    spine.emit(started())
    spine.emit(started(replay=True))
    spine.emit(ended().model_copy(update={"replay": True}))
    spine.emit(ended())
    spine.emit(ended().model_copy(update={"replay": True}))
    spine.emit(started(replay=True))

    assert log == ["start a1", "stream-end a1"]


def test_what_was_aborted_before_its_launch_has_no_end_here() -> None:
    spine, log = a_spine()
    spine.emit(aborted())

    assert log == []


def test_streams_are_told_apart() -> None:
    spine, log = a_spine()
    for event in (started("a1"), started("a2"), ended("a2"), failed("a1")):
        spine.emit(event)

    assert log == ["start a1", "start a2", "stream-end a2", "error a1"]


def test_an_observer_of_a_hook_hears_after_those_of_all_events_and_can_leave() -> None:
    spine = EventSpine()
    log: list[str] = []
    leave = spine.observe(STREAM_START, lambda _event: log.append("hook"))
    spine.subscribe(lambda _event: log.append("all"))
    spine.emit(started("a1"))
    leave()
    leave()
    spine.emit(started("a2"))

    assert log == ["all", "hook", "all"]


def test_an_observer_of_a_hook_that_raises_reaches_nobody_else() -> None:
    spine = EventSpine()
    log: list[str] = []

    def raises(_event: object) -> None:
        raise ValueError("no")

    spine.observe(STREAM_START, raises)
    spine.observe(STREAM_START, lambda _event: log.append("hook"))
    with capture_logs() as logs:
        spine.emit(started())

    assert log == ["hook"]
    assert [entry["hook"] for entry in logs] == ["stream.start"]


# ---- waterfalls


class Way(Blockable):
    def __init__(self) -> None:
        self.log: list[str] = []


WAY = Hook[Way]("way")


def step(name: str) -> Any:
    async def steps(way: Way, go_on: Next) -> None:
        way.log.append(f"{name} before")
        await go_on()
        way.log.append(f"{name} after")

    return steps


async def terminal(way: Way) -> None:
    way.log.append("terminal")


async def test_steps_stand_around_in_order_of_number_then_registration() -> None:
    spine = EventSpine()
    spine.use(WAY, step("second"))
    spine.use(WAY, step("third"))
    spine.use(WAY, step("first"), order=-1)
    way = Way()

    assert await spine.run(WAY, way, terminal)
    assert way.log == [
        "first before",
        "second before",
        "third before",
        "terminal",
        "third after",
        "second after",
        "first after",
    ]


async def test_without_steps_the_terminal_is_reached() -> None:
    way = Way()

    assert await EventSpine().run(WAY, way, terminal)
    assert way.log == ["terminal"]


async def test_a_step_that_was_taken_away_is_not_in_the_way() -> None:
    spine = EventSpine()
    remove = spine.use(WAY, step("gone"))
    remove()
    remove()
    way = Way()
    await spine.run(WAY, way, terminal)

    assert way.log == ["terminal"]


async def test_a_step_that_goes_on_twice_gets_an_assertion_error() -> None:
    spine = EventSpine()

    async def twice(_way: Way, go_on: Next) -> None:
        await go_on()
        await go_on()

    spine.use(WAY, twice)
    way = Way()
    with pytest.raises(AssertionError, match="way called next"):
        await spine.run(WAY, way, terminal)

    assert way.log == ["terminal"]


async def test_a_step_that_does_not_go_on_ends_the_way() -> None:
    spine = EventSpine()

    async def keeps(way: Way, _go_on: Next) -> None:
        way.log.append("kept")

    spine.use(WAY, step("first"))
    spine.use(WAY, keeps)
    spine.use(WAY, step("never"))
    way = Way()

    assert not await spine.run(WAY, way, terminal)
    assert way.log == ["first before", "kept", "first after"]


@pytest.mark.parametrize("blocks_last", [False, True])
async def test_a_blocked_context_never_reaches_the_terminal(blocks_last: bool) -> None:
    """Although the step that blocks it goes on."""
    spine = EventSpine()

    async def blocks(way: Way, go_on: Next) -> None:
        way.block("not today")
        way.block("a later reason")
        await go_on()

    spine.use(WAY, blocks)
    spine.use(WAY, step("other"), order=-1 if blocks_last else 1)
    way = Way()

    assert not await spine.run(WAY, way, terminal)
    assert way.blocked == "not today"
    assert way.log == (["other before", "other after"] if blocks_last else [])


async def test_what_a_step_raises_passes_through_the_steps_before_it() -> None:
    spine = EventSpine()
    error = LookupError("no")

    async def guards(way: Way, go_on: Next) -> None:
        try:
            await go_on()
        finally:
            way.log.append("guarded")

    async def raises(_way: Way, _go_on: Next) -> None:
        raise error

    spine.use(WAY, guards)
    spine.use(WAY, raises)
    way = Way()
    with pytest.raises(LookupError) as raised:
        await spine.run(WAY, way, terminal)

    assert raised.value is error
    assert way.log == ["guarded"]


async def test_a_step_may_give_an_effect_and_a_plain_one_is_refused() -> None:
    spine = EventSpine()
    spine.use(WAY, lambda _way, go_on: go_on().flat_map(lambda _: fb.sleep(0)))
    way = Way()
    assert await spine.run(WAY, way, terminal)

    def plain(_way: Way, _go_on: Next) -> Any:
        return None

    spine.use(WAY, plain)
    with pytest.raises(TypeError, match="awaitable"):
        await spine.run(WAY, way, terminal)
