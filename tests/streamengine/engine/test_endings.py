"""How a stream that nobody stops ends: as an answer or as an error, once, and on disk first."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

import fibers as fb
from fibers.app import AppScope
from fibers.testing import assert_no_leaks
from streamengine import FileHistory, StreamEngine, StreamRequest
from streamengine.abandoned import STORE_GRACE_SECONDS
from streamengine.history.store import IoMode
from streamengine.model import (
    ErrorEvent,
    ErrorPart,
    Event,
    Finish,
    StreamDeltaEvent,
    StreamEndEvent,
    StreamStartEvent,
    TextPart,
    UnknownPart,
)

from .conftest import MakeDesk
from .kit import (
    FINISH,
    TEXT_END,
    WHOLE,
    WORKSPACE,
    Call,
    Desk,
    Disk,
    Given,
    Line,
    Method,
    Parts,
    Provider,
    Tape,
    says,
    text,
    text_in,
    tokens,
)

pytestmark = pytest.mark.lifecycle

# ---- success


@pytest.mark.spec("BT2", "E26")
@pytest.mark.parametrize("io", ["inline", "thread"])
async def test_at_stream_end_the_row_is_on_disk_and_the_partial_gone(
    desk: MakeDesk, io: IoMode
) -> None:
    d = desk(WHOLE, io=io)
    seen: list[object] = []

    def look(event: Event) -> None:
        if isinstance(event, StreamEndEvent):
            seen.append((d.disk.answers(), d.disk.partial()))

    d.tape.on_event = look

    handle = await d.start()

    assert (await d.done(handle)).status == "completed"
    assert seen == [(["Hello there"], None)]


@pytest.mark.spec("BT2")
async def test_a_success_stores_the_row_then_removes_the_partial_then_tells(
    desk: MakeDesk,
) -> None:
    d = desk(WHOLE)
    order: list[str] = []
    d.tape.on_event = lambda event: order.extend([*d.history.calls, event.type])

    await d.done(await d.start())

    end = order.index("stream-end")
    last_calls = [call for call in order[:end] if call in ("finalize", "delete_partial")]
    assert last_calls[-2:] == ["finalize", "delete_partial"]
    assert d.history.calls[-1] == "release"


@pytest.mark.spec("E26")
async def test_a_stream_is_streaming_until_its_row_is_durable(desk: MakeDesk) -> None:
    d = desk(WHOLE)
    gate = d.history.hold("delete_partial")
    handle = await d.start()
    await d.idle()
    assert gate.begun.is_set()
    assert d.disk.answers() == ["Hello there"]
    assert d.engine.is_streaming(WORKSPACE)

    gate.go.set()

    assert (await d.done(handle)).status == "completed"
    assert d.is_idle


@pytest.mark.spec("E2")
async def test_the_completion_settles_after_every_observer_has_had_the_end(
    desk: MakeDesk,
) -> None:
    d = desk(WHOLE)
    order: list[str] = []

    def observe(name: str) -> None:
        d.engine.events.subscribe(lambda event: order.append(f"{name} {event.type}"))

    observe("first")
    observe("second")
    handle = await d.start()
    waiting = d.rt.run_fork(handle.completion.map(lambda _: order.append("completion")))

    await waiting

    assert order[-3:] == ["first stream-end", "second stream-end", "completion"]


@pytest.mark.spec("BT3", "E12")
async def test_the_final_row_stands_under_the_sequence_that_was_reserved(desk: MakeDesk) -> None:
    """No row is there before: nothing blank to be found after a crash."""
    line = Line()
    d = desk(line)
    await d.start()
    await d.idle()
    assert d.disk.roles() == ["user"]
    (start,) = d.tape.events
    assert isinstance(start, StreamStartEvent)

    line.give(text("answer"), FINISH)
    line.end()
    await d.idle()

    row = d.disk.rows()[-1]
    assert row["metadata"]["historySequence"] == start.history_sequence


@pytest.mark.spec("P19")
@pytest.mark.parametrize("io", ["inline", "thread"])
async def test_a_reader_never_finds_neither_row_nor_partial(desk: MakeDesk, io: IoMode) -> None:
    line = Line()
    d = desk(line, io=io)
    await d.start()
    line.give(text("answer"))
    await d.idle()
    seen: list[bool] = []
    methods: list[Method] = ["finalize", "delete_partial", "release"]
    for method in methods:
        gate = d.history.hold(method)
        if method == "finalize":
            line.give(FINISH)
            line.end()
        await d.idle()
        assert gate.begun.is_set(), method
        seen.append(bool(d.disk.answers()) or d.disk.partial_text() == "answer")
        gate.go.set()
    await d.idle()

    assert seen == [True, True, True]


@pytest.mark.spec("P17", "BT2")
@pytest.mark.parametrize("error", [None, RuntimeError("a fault of the store")])
async def test_an_answer_that_cannot_be_stored_is_kept_and_ends_as_an_error(
    desk: MakeDesk, error: Exception | None
) -> None:
    d = desk(WHOLE)
    if error is None:
        d.history.fail("finalize")
    else:
        d.history.fail("finalize", error)

    handle = await d.start()

    completion = await d.done(handle)
    assert completion.status == "failed"
    assert [event.type for event in d.tape.terminals] == ["error"]
    assert d.disk.partial_text() == "Hello there"
    d.history.mend()
    await d.done(await d.start("next"))
    assert d.disk.answers()[0] == "Hello there"


@pytest.mark.spec("BT2")
@pytest.mark.parametrize("method", ["delete_partial", "release"])
async def test_what_fails_after_the_row_is_stored_does_not_spoil_the_answer(
    desk: MakeDesk, method: Method
) -> None:
    d = desk(WHOLE)
    d.history.fail(method)

    handle = await d.start()

    assert (await d.done(handle)).status == "completed"
    assert d.tape.types[-1] == "stream-end"
    assert d.disk.answers() == ["Hello there"]
    assert d.is_idle


@pytest.mark.spec("P17")
async def test_partials_that_cannot_be_written_do_not_spoil_the_answer(desk: MakeDesk) -> None:
    d = desk(WHOLE)
    d.history.fail("write_partial")

    handle = await d.start()

    assert (await d.done(handle)).status == "completed"
    assert d.disk.answers() == ["Hello there"]


@pytest.mark.spec("E29")
async def test_with_and_without_a_scope_the_events_are_the_same(desk: MakeDesk) -> None:
    told: list[list[str]] = []
    for scope in (None, AppScope()):
        d = desk(WHOLE, scope=scope)
        await d.done(await d.start())
        told.append(d.tape.types)

    assert told[0] == told[1] == ["stream-start", "stream-delta", "stream-delta", "stream-end"]


# ---- failure


@pytest.mark.spec("E12")
@pytest.mark.parametrize("last", [None, Finish(finish_reason="other")])
async def test_an_answer_without_a_real_finish_is_truncated(
    desk: MakeDesk, last: Finish | None
) -> None:
    """Also where the client library made a finish up."""
    d = desk(says(text("half an ans"), *([] if last is None else [last])))

    completion = await d.done(await d.start())

    assert (completion.status, completion.error_type) == ("failed", "stream_truncated")
    assert d.disk.roles() == ["user"]
    partial = d.disk.partial()
    assert partial is not None
    assert text_in(partial) == "half an ans"
    assert partial["metadata"]["errorType"] == "stream_truncated"


@pytest.mark.spec("E1", "E2")
async def test_the_error_partial_is_on_disk_when_the_error_is_told(desk: MakeDesk) -> None:
    line = Line()
    d = desk(line)
    seen: list[str | None] = []

    def look(event: Event) -> None:
        if isinstance(event, ErrorEvent):
            seen.append(d.disk.partial_text())

    d.tape.on_event = look
    handle = await d.start()
    line.give(text("half"), text(" an answer"))
    line.fail(ConnectionError("reset"))

    completion = await d.done(handle)

    assert seen == ["half an answer"]
    assert (completion.status, completion.error_type) == ("failed", "network")
    assert d.tape.types[-1] == "error"


async def test_the_text_of_a_failed_answer_becomes_a_row_before_the_next_message(
    desk: MakeDesk,
) -> None:
    d = desk(says(text("half an ans")), WHOLE)
    await d.done(await d.start("first"))

    await d.done(await d.start("second"))

    assert d.disk.roles() == ["user", "assistant", "user", "assistant"]
    half = d.disk.rows()[1]["metadata"]
    assert half["partial"] is True
    assert "error" not in half
    assert "errorType" not in half


@pytest.mark.spec("E12")
async def test_a_late_throttled_write_does_not_undo_the_error_partial(desk: MakeDesk) -> None:
    line = Line()
    d = desk(line)
    handle = await d.start()
    line.give(text("half"))
    await d.idle()
    line.give(text(" an answer"))
    await d.idle()
    line.fail(ConnectionError("reset"))
    await d.done(handle)

    await d.pass_time(5)

    partial = d.disk.partial()
    assert partial is not None
    assert partial["metadata"]["errorType"] == "network"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ({"error": {"message": "overloaded"}}, "overloaded"),
        ({"message": "bad request"}, "bad request"),
        ("plain words", "plain words"),
        (None, "None"),
        (ConnectionError("reset"), "reset"),
    ],
)
async def test_an_error_part_ends_the_stream_in_its_words(
    desk: MakeDesk, error: object, said: str
) -> None:
    d = desk(says(text("half"), ErrorPart(error=error), text("never"), FINISH))

    completion = await d.done(await d.start())

    assert completion.status == "failed"
    assert completion.error == said
    assert d.tape.said == "half"


async def test_a_failed_stream_tells_its_provider_by_the_signal(desk: MakeDesk) -> None:
    """A thread that listens to nothing else must not go on for an answer that is over."""
    d = desk(says(ErrorPart(error="overloaded"), text("never")))

    await d.done(await d.start())

    assert d.provider.calls[0].signal.aborted


class HostileError(Exception):
    """An error that can't even be printed."""

    def __str__(self) -> str:
        raise self


@pytest.mark.spec("E1")
async def test_an_error_that_cannot_be_printed_ends_its_stream_too(desk: MakeDesk) -> None:
    line = Line()
    d = desk(line)
    handle = await d.start()
    line.fail(HostileError())

    completion = await d.done(handle)

    assert (completion.status, completion.error) == ("failed", "HostileError")


@pytest.mark.spec("E28")
@pytest.mark.parametrize("how", ["stop", "end"])
async def test_a_store_whose_error_can_t_be_printed_keeps_no_stream(
    desk: MakeDesk, how: str
) -> None:
    line = Line()
    d = desk(line)
    handle = await d.start()
    d.history.fail("write_partial", HostileError())
    line.give(text("Hello"))
    await d.pass_time(1)

    if how == "stop":
        await d.stop("user")
    else:
        line.give(FINISH)
        line.end()
    completion = await d.done(handle)

    assert completion.status == ("aborted" if how == "stop" else "completed")
    assert d.is_idle
    assert d.is_idle


async def test_an_answer_of_blanks_is_an_error_and_no_row(desk: MakeDesk) -> None:
    d = desk(says(text(" \n"), FINISH))

    completion = await d.done(await d.start())

    assert completion.error_type == "empty_output"
    assert d.disk.roles() == ["user"]


# ---- parts


@pytest.mark.spec("E18")
async def test_the_event_of_a_text_comes_before_its_part(desk: MakeDesk) -> None:
    d = desk(WHOLE)
    seen: list[tuple[str, list[str]]] = []

    def look(event: Event) -> None:
        live = d.engine.live_text(WORKSPACE)
        if isinstance(event, StreamDeltaEvent) and live is not None:
            seen.append((event.delta, [part.text for part in live[1]]))

    d.tape.on_event = look

    await d.done(await d.start())

    assert seen == [("Hello ", []), ("there", ["Hello "])]


@pytest.mark.spec("E18")
async def test_a_part_is_kept_although_its_event_could_not_be_emitted(
    desk: MakeDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    d = desk(WHOLE)
    emit = d.engine.events.emit

    def broken(event: Event) -> None:
        if isinstance(event, StreamDeltaEvent):
            raise RuntimeError("the spine itself is broken")
        emit(event)

    monkeypatch.setattr(d.engine.events, "emit", broken)

    completion = await d.done(await d.start())

    assert completion.status == "failed"
    assert d.disk.partial_text() == "Hello "


@pytest.mark.spec("BT4")
async def test_the_provider_is_never_more_than_one_part_ahead(desk: MakeDesk) -> None:
    asked: list[str] = []

    async def play() -> AsyncGenerator[Given, None]:
        for word in ("one", "two", "three"):
            asked.append(f"give {word}")
            yield text(word)
        yield FINISH

    d = desk(lambda _call: play())

    def note(event: Event) -> None:
        if isinstance(event, StreamDeltaEvent):
            asked.append(f"told {event.delta}")

    d.tape.on_event = note

    await d.done(await d.start())

    assert asked.index("told one") < asked.index("give three")
    assert [item for item in asked if item.startswith("told")] == [
        "told one",
        "told two",
        "told three",
    ]


async def test_parts_that_nobody_knows_are_passed_over(desk: MakeDesk) -> None:
    """Also such that are no parts at all."""
    # Not what the types allow: a provider that nobody checked.
    odd: list[Any] = [UnknownPart("new-thing", {"type": "new-thing"}), None, 7, None]

    async def play() -> AsyncGenerator[Given, None]:
        yield text("a")
        for thing in odd:
            yield thing
        yield text("b")
        yield TEXT_END
        yield FINISH

    d = desk(lambda _call: play())

    assert (await d.done(await d.start())).status == "completed"
    assert d.disk.answers() == ["ab"]


# ---- report R25


@pytest.mark.spec("E1")
@pytest.mark.parametrize("how", ["end", "error", "abort", "soft", "replaced", "closed", "early"])
async def test_every_start_has_its_terminal(desk: MakeDesk, how: str) -> None:
    """Who counts starts minus terminals ends at nought, whatever happened (report R25)."""
    scope = AppScope()
    line = Line()
    d = desk(line, WHOLE, scope=scope)
    await d.start()
    if how != "early":
        line.give(text("half"))
        await d.idle()
    await _end(d, line, how, scope)
    await d.idle()

    registered = {event.message_id for event in d.tape.events}
    ended = [event.message_id for event in d.tape.terminals]
    assert sorted(ended) == sorted(registered)
    assert d.tape.types.count("stream-start") <= len(ended)
    assert d.is_idle


async def _end(d: Desk, line: Line, how: str, scope: AppScope) -> None:
    match how:
        case "end":
            line.give(FINISH)
            line.end()
        case "error":
            line.fail(OSError("gone"))
        case "soft":
            await d.stop("user", soft=True)
            line.give(TEXT_END)
        case "replaced":
            await d.start("next")
        case "closed":
            await d.rt.run(scope.close())
        case _:
            await d.stop("user")


# ---- the end of the loop


@pytest.mark.spec("E1")
@pytest.mark.parametrize("has_begun", [True, False])
def test_a_stream_that_nobody_supervises_ends_with_its_loop(
    has_begun: bool, tmp_path: Path
) -> None:
    """`run` interrupts what is left when its effect has ended; what was said is not lost."""
    tapes: list[Tape] = []

    @fb.effect
    async def main() -> None:
        answer = Line()
        engine = StreamEngine(history=FileHistory(tmp_path), provider=Provider(answer))
        tapes.append(Tape(engine))
        await engine.start_stream(WORKSPACE, StreamRequest(text="Hi")).or_die()
        if has_begun:
            answer.give(text("half"))
            while not tapes[0].said:
                await fb.Effect.yield_now()

    fb.run(main())

    assert [event.type for event in tapes[0].terminals] == ["stream-abort"]
    assert Disk(tmp_path).answers() == (["half"] if has_begun else [])


async def test_who_comes_after_the_terminal_event_finds_no_live_text(desk: MakeDesk) -> None:
    """Nothing more would come for a late reader; until then it finds the text so far."""
    d = desk(WHOLE)
    seen: list[tuple[str, bool]] = []
    d.engine.events.subscribe(
        lambda event: seen.append((event.type, d.engine.live_text("w1") is not None))
    )
    await d.done(await d.start())

    assert seen[0] == ("stream-start", True)
    assert seen[-1] == ("stream-end", False)


# ---- a reader who comes late


async def test_a_snapshot_has_what_the_stream_has_recorded(desk: MakeDesk) -> None:
    """Piece by piece, with the timestamps of the events: they can be told again."""
    line = Line()
    d = desk(line)
    handle = await d.start(correlation={"job": 1}, prompt_id="p1", model="m")
    assert d.engine.snapshot(WORKSPACE) is None
    await d.idle()
    line.give(text("one "), text("two"))
    await d.idle()

    snapshot = d.engine.snapshot(WORKSPACE)

    assert snapshot is not None
    start, *deltas = d.tape.events
    assert isinstance(start, StreamStartEvent)
    assert (snapshot.message_id, snapshot.model) == (handle.message_id, "m")
    assert (snapshot.correlation, snapshot.prompt_id) == ({"job": 1}, "p1")
    assert (snapshot.history_sequence, snapshot.start_time_ms) == (
        start.history_sequence,
        start.start_time_ms,
    )
    told = [(e.delta, e.timestamp_ms) for e in deltas if isinstance(e, StreamDeltaEvent)]
    assert told == [(p.text, p.timestamp_ms) for p in snapshot.parts if isinstance(p, TextPart)]


async def test_there_is_no_snapshot_from_the_terminal_event_on(desk: MakeDesk) -> None:
    d = desk(WHOLE)
    seen: list[object] = []

    def look(event: Event) -> None:
        if isinstance(event, StreamEndEvent):
            seen.append(d.engine.snapshot(WORKSPACE))

    d.tape.on_event = look

    await d.done(await d.start())

    assert seen == [None]


# ---- a store that hangs


@pytest.mark.spec("R23", "E1")
@pytest.mark.parametrize("step", ["append_partial", "record_usage", "update_note", "release"])
async def test_a_store_that_hangs_holds_up_an_error_for_its_grace_at_most(
    desk: MakeDesk, step: Method
) -> None:
    line = Line()
    d = desk(line, WHOLE)
    handle = await d.start()
    line.give(text("half"), tokens(7))
    await d.idle()
    gate = d.history.hold(step)
    line.fail(RuntimeError("gone"))
    await d.idle()
    assert gate.begun.is_set()

    await d.pass_time(STORE_GRACE_SECONDS)
    await d.pass_time(0.1)

    assert (await d.done(handle)).status == "failed"
    assert [e.type for e in d.tape.terminals] == ["error"]
    assert d.is_idle
    gate.go.set()
    await d.idle()
    assert d.abandoned == []
    assert (await d.whole("again")).status == "completed"
    assert d.disk.answers() == ["half", "Hello there"]


@pytest.mark.spec("R23", "E1")
@pytest.mark.parametrize("step", ["delete_partial", "release"])
async def test_a_store_that_hangs_after_the_row_holds_up_its_end_for_its_grace_at_most(
    desk: MakeDesk, step: Method
) -> None:
    d = desk(WHOLE)
    gate = d.history.hold(step)
    handle = await d.start()
    await d.idle()
    assert gate.begun.is_set()

    await d.pass_time(STORE_GRACE_SECONDS)
    await d.pass_time(0.1)

    assert (await d.done(handle)).status == "completed"
    assert [e.type for e in d.tape.terminals] == ["stream-end"]
    assert d.is_idle
    gate.go.set()
    await d.idle()
    assert d.abandoned == []
    assert d.disk.partial() is None


# ---- what is left


@pytest.mark.spec("E1")
@pytest.mark.parametrize("end", ["completed", "failed", "stopped", "dropped", "soft", "refused"])
async def test_no_ending_leaves_a_fiber_a_scope_or_a_task(desk: MakeDesk, end: str) -> None:
    line = Line()

    def refuse(_call: Call) -> Parts:
        raise RuntimeError("no key")

    d = desk(refuse if end == "refused" else line)
    with assert_no_leaks("fibers", "scopes", "tasks"):
        if end == "refused":
            await d.rt.run(d.starting().exit())
        else:
            handle = await d.start()
            line.give(text("half"), tokens(3))
            await d.idle()
            if end == "completed":
                line.give(FINISH)
                line.end()
            elif end == "failed":
                line.fail(RuntimeError("gone"))
            elif end == "soft":
                await d.stop(soft=True)
                line.give(TEXT_END)
            else:
                await d.stop(abandon_partial=end == "dropped")
            await d.done(handle)
            await d.idle()
            assert line.is_closed

    assert d.is_idle
