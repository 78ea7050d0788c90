"""What a running stream has on disk, and how late that may be."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from freezegun import freeze_time

from fibers import AbortController
from fibers.testing import TestClock
from streamengine import FileHistory, StreamEngine, StreamRequest
from streamengine.history.store import IoMode
from streamengine.model import Event, StreamDeltaEvent, StreamStartEvent

from .conftest import MakeDesk
from .kit import FINISH, THROTTLE_SECONDS, WORKSPACE, Disk, Line, Provider, says, text

pytestmark = pytest.mark.lifecycle


@pytest.mark.spec("P2")
@pytest.mark.parametrize("io", ["inline", "thread"])
async def test_the_first_part_is_written_at_once(desk: MakeDesk, io: IoMode) -> None:
    line = Line()
    d = desk(line, io=io)
    await d.start()

    line.give(text("first"))
    await d.idle()

    assert d.disk.partial_text() == "first"


@pytest.mark.spec("P2")
@pytest.mark.parametrize("size_characters", [1, 200_000])
async def test_later_parts_are_written_at_the_end_of_the_interval(
    desk: MakeDesk, size_characters: int
) -> None:
    line = Line()
    d = desk(line)
    await d.start()
    first = "x" * size_characters
    line.give(text(first))
    await d.idle()

    await d.pass_time(0.1)
    line.give(text(" b"), text(" c"))
    await d.pass_time(THROTTLE_SECONDS - 0.1 - 0.001)
    assert d.disk.partial_text() == first
    await d.pass_time(0.001)

    assert d.disk.partial_text() == f"{first} b c"


@pytest.mark.spec("P2")
async def test_many_parts_cost_one_write_an_interval(desk: MakeDesk) -> None:
    line = Line()
    d = desk(line)
    await d.start()
    for _ in range(20):
        line.give(text("word "))
        await d.pass_time(0.1)

    # At 0, then at 0.5, 1, 1.5 and 2 seconds.
    assert d.history.calls.count("write_partial") == 1
    assert d.history.calls.count("append_partial") == 4
    assert d.disk.partial_text() == "word " * 20


@pytest.mark.spec("P2")
async def test_a_part_that_came_during_a_write_waits_for_an_interval_after_it(
    desk: MakeDesk,
) -> None:
    """At most the write in flight and one interval late."""
    line = Line()
    d = desk(line)
    await d.start()
    gate = d.history.hold("write_partial")
    line.give(text("a"))
    await d.idle()
    line.give(text("b"))
    await d.pass_time(3)
    gate.go.set()
    await d.idle()

    await d.pass_time(THROTTLE_SECONDS)

    assert d.disk.partial_text() == "ab"


@pytest.mark.spec("P2")
async def test_a_write_that_failed_is_tried_again_after_an_interval(desk: MakeDesk) -> None:
    """Also when the provider says nothing more for a long time."""
    line = Line()
    d = desk(line)
    await d.start()
    d.history.fail("write_partial")
    line.give(text("a"))
    await d.idle()
    assert d.disk.partial() is None
    d.history.mend()

    await d.pass_time(THROTTLE_SECONDS)

    assert d.disk.partial_text() == "a"


@pytest.mark.spec("P2")
async def test_what_can_not_be_added_is_written_with_all_the_rest(desk: MakeDesk) -> None:
    """A log that can't be written to must not keep the text off the disk."""
    line = Line()
    d = desk(line)
    await d.start()
    line.give(text("a"))
    await d.idle()
    d.history.fail("append_partial")
    line.give(text("b"))
    await d.pass_time(THROTTLE_SECONDS)
    assert d.disk.partial_text() == "a"

    await d.pass_time(THROTTLE_SECONDS)

    assert d.disk.partial_text() == "ab"


@pytest.mark.spec("P17")
async def test_the_last_words_before_an_error_are_written_although_one_write_of_them_fails(
    desk: MakeDesk,
) -> None:
    line = Line()
    d = desk(line)
    handle = await d.start()
    line.give(text("a"))
    await d.idle()
    d.history.fail("append_partial")
    line.give(text("b"))
    line.fail(ConnectionError("reset"))
    assert (await d.done(handle)).status == "failed"

    partial = d.disk.partial()

    assert d.disk.partial_text() == "ab"
    assert partial is not None
    assert partial["metadata"]["errorType"] == "network"


@pytest.mark.spec("P3")
async def test_a_write_that_waits_for_its_interval_does_not_come_after_the_end(
    desk: MakeDesk,
) -> None:
    line = Line()
    d = desk(line)
    handle = await d.start()
    line.give(text("a"))
    await d.idle()
    line.give(text("b"))
    await d.idle()
    line.give(FINISH)
    line.end()
    assert (await d.done(handle)).status == "completed"

    await d.pass_time(10)

    assert d.disk.partial() is None
    assert d.disk.answers() == ["ab"]


@pytest.mark.spec("P2")
async def test_who_aborts_outside_of_the_clock_does_not_stop_it(desk: MakeDesk) -> None:
    """A signal's listener runs in whatever context aborts it; the stream keeps its own clock."""
    caller = AbortController()
    line = Line()
    d = desk(line)
    handle = await d.start(signal=caller.signal)
    line.give(text("a"))
    await d.idle()
    line.give(text("b"))
    await d.idle()

    caller.abort()

    assert (await d.done(handle)).status == "aborted"
    assert d.disk.answers() == ["ab"]


@pytest.mark.spec("P2")
async def test_a_clock_that_the_engine_was_given_counts(tmp_path: Path) -> None:
    """Also where the caller has none, and where it stops the stream."""
    clock = TestClock()
    line = Line()
    engine = StreamEngine(
        history=FileHistory(tmp_path, io="inline"), provider=Provider(line), clock=clock
    )
    disk = Disk(tmp_path)
    await engine.start_stream(WORKSPACE, StreamRequest(text="Hi"))
    line.give(text("a"))
    await clock.adjust(0)
    line.give(text("b"))
    await clock.adjust(THROTTLE_SECONDS - 0.001)
    assert disk.partial_text() == "a"
    await clock.adjust(0.001)
    assert disk.partial_text() == "ab"

    await engine.stop_stream(WORKSPACE, reason="user")
    assert disk.answers() == ["ab"]


# ---- wall-clock time


@pytest.mark.spec("E19")
async def test_parts_of_one_millisecond_have_timestamps_that_grow(desk: MakeDesk) -> None:
    now = datetime(2024, 5, 1, 12, 0, 0, tzinfo=UTC)
    d = desk(says(text("a"), text("b"), text("c"), FINISH))
    stamps: list[int] = []

    def note(event: Event) -> None:
        if isinstance(event, StreamDeltaEvent):
            stamps.append(event.timestamp_ms)

    d.tape.on_event = note
    with freeze_time(now, real_asyncio=True):
        await d.done(await d.start())

    first = round(now.timestamp() * 1000)
    assert stamps == [first, first + 1, first + 2]


@pytest.mark.spec("E19")
async def test_timestamps_grow_although_the_wall_clock_is_set_back(desk: MakeDesk) -> None:
    line = Line()
    d = desk(line)
    stamps: list[int] = []

    def note(event: Event) -> None:
        if isinstance(event, StreamDeltaEvent):
            stamps.append(event.timestamp_ms)

    d.tape.on_event = note
    with freeze_time("2024-05-01 12:00:00", real_asyncio=True) as frozen:
        await d.start()
        line.give(text("a"))
        await d.idle()
        frozen.move_to("2024-05-01 11:00:00")
        line.give(text("b"))
        await d.idle()
        live = d.engine.live_text(WORKSPACE)

    assert stamps[1] == stamps[0] + 1
    assert live is not None
    assert [part.timestamp_ms for part in live[1]] == stamps


async def test_the_row_bears_the_time_at_which_the_stream_began(desk: MakeDesk) -> None:
    d = desk(says(text("a"), FINISH))
    with freeze_time("2024-05-01 12:00:00", real_asyncio=True) as frozen:
        handle = await d.start()
        frozen.tick(5)
        await d.done(handle)

    start = d.tape.events[0]
    assert isinstance(start, StreamStartEvent)
    began = datetime(2024, 5, 1, 12, 0, 0, tzinfo=UTC)
    assert start.start_time_ms == round(began.timestamp() * 1000)
    assert d.disk.rows()[-1]["metadata"]["timestamp"] == start.start_time_ms
