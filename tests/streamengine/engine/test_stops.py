"""Stopping a stream: who stops it, when, how often, and what goes wrong meanwhile."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

import fibers as fb
from fibers import AbortController, Scope
from fibers.app import AppScope
from streamengine.history.store import IoMode
from streamengine.model import AbortReason, Event, HistoryError, StreamAbortEvent

from .conftest import MakeDesk
from .kit import (
    FINISH,
    GRACE_SECONDS,
    TEXT_END,
    WHOLE,
    WORKSPACE,
    Call,
    Desk,
    Given,
    Line,
    Method,
    Parts,
    Wedged,
    text,
)

pytestmark = pytest.mark.lifecycle


async def flowing(
    make: MakeDesk,
    line: Line,
    said: str = "half",
    *,
    scope: Scope | None = None,
    io: IoMode = "inline",
) -> Desk:
    """A desk with a stream that has said something."""
    d = make(line, WHOLE, scope=scope, io=io)
    await d.start()
    line.give(text(said))
    await d.idle()
    return d


# ---- one stop


@pytest.mark.spec("E1", "BT7")
@pytest.mark.parametrize("io", ["inline", "thread"])
async def test_a_stop_ends_the_stream_with_the_reason_given(desk: MakeDesk, io: IoMode) -> None:
    d = await flowing(desk, Line(), io=io)

    await d.stop("user")

    assert d.tape.types == ["stream-start", "stream-delta", "stream-abort"]
    (abort,) = d.tape.terminals
    assert isinstance(abort, StreamAbortEvent)
    assert abort.abort_reason == "user"
    assert d.is_idle


@pytest.mark.spec("E2", "E28")
async def test_the_row_of_an_abort_is_durable_when_the_abort_is_told(desk: MakeDesk) -> None:
    d = await flowing(desk, Line())
    seen: list[tuple[list[str], str | None]] = []

    def look(event: Event) -> None:
        if isinstance(event, StreamAbortEvent):
            seen.append((d.disk.answers(), d.disk.partial_text()))

    d.tape.on_event = look

    await d.stop("user")

    assert seen == [(["half"], None)]
    row = d.disk.rows()[-1]
    assert row["metadata"]["partial"] is True
    assert row["metadata"]["abortReason"] == "user"


async def test_the_row_of_an_abort_keeps_no_finish_reason(desk: MakeDesk) -> None:
    """An interrupted answer must not look finished (report R10)."""
    line = Line()
    d = await flowing(desk, line)
    line.give(FINISH, text(" more"))
    await d.idle()

    await d.stop("user")

    assert d.disk.answers() == ["half more"]
    assert "finishReason" not in d.disk.rows()[-1]["metadata"]


@pytest.mark.spec("P15")
@pytest.mark.parametrize("io", ["inline", "thread"])
async def test_an_abandoned_answer_leaves_neither_row_nor_partial(
    desk: MakeDesk, io: IoMode
) -> None:
    d = await flowing(desk, Line(), io=io)
    assert d.disk.partial_text() == "half"

    await d.stop("user", abandon_partial=True)

    assert d.disk.roles() == ["user"]
    assert d.disk.partial() is None
    (abort,) = d.tape.terminals
    assert isinstance(abort, StreamAbortEvent)
    assert abort.abandon_partial


@pytest.mark.spec("E24")
async def test_a_stop_of_an_idle_workspace_changes_nothing(desk: MakeDesk) -> None:
    """Nothing sticks: the next stream isn't stopped by it."""
    d = desk(WHOLE)

    await d.stop("user")
    assert d.tape.events == []
    assert d.history.calls == []

    assert (await d.done(await d.start())).status == "completed"


@pytest.mark.spec("E24")
async def test_a_second_stop_works_like_the_first(desk: MakeDesk) -> None:
    """Stop, new message, stop (report R27)."""
    d = desk(Line())
    for number in (1, 2):
        handle = await d.start(f"message {number}")
        await d.idle()
        await d.stop("user")
        assert (await d.done(handle)).abort_reason == "user"

    assert [event.type for event in d.tape.terminals] == ["stream-abort"] * 2


@pytest.mark.spec("E25", "BT7")
async def test_a_stop_of_an_older_message_leaves_the_live_one_alone(desk: MakeDesk) -> None:
    d = desk(WHOLE, Line())
    older = await d.start("first")
    await d.done(older)
    live = await d.start("second")

    await d.stop("user", message_id=older.message_id)
    assert d.engine.is_streaming(WORKSPACE)

    await d.stop("user", message_id=live.message_id)
    assert (await d.done(live)).abort_reason == "user"


@pytest.mark.spec("E25")
async def test_a_stop_of_an_older_message_leaves_a_pending_start_alone(desk: MakeDesk) -> None:
    d = desk(WHOLE)
    gate = d.history.hold("reserve")
    starting = d.rt.run_fork(d.starting())
    await d.idle()

    await d.stop("user", message_id="a_older")
    gate.go.set()

    assert (await d.done(await starting)).status == "completed"


@pytest.mark.spec("E1", "E5")
async def test_the_caller_s_signal_stops_the_live_stream(desk: MakeDesk) -> None:
    caller = AbortController()
    line = Line()
    d = desk(line)
    handle = await d.start(signal=caller.signal)
    line.give(text("half"))
    await d.idle()

    caller.abort()
    caller.abort()

    assert (await d.done(handle)).status == "aborted"
    assert [event.type for event in d.tape.terminals] == ["stream-abort"]
    assert d.disk.answers() == ["half"]


async def test_the_caller_s_signal_is_let_go_of_at_the_end(desk: MakeDesk) -> None:
    caller = AbortController()
    d = desk(WHOLE)
    handle = await d.start(signal=caller.signal)
    assert (await d.done(handle)).status == "completed"

    caller.abort()
    await d.idle()

    assert len(d.tape.terminals) == 1
    assert not d.provider.calls[0].signal.aborted


@pytest.mark.spec("E1")
async def test_a_stop_before_the_launch_emits_its_abort_and_no_start(desk: MakeDesk) -> None:
    """Registered, not yet launched: told once, the provider is never read."""
    line = Line()
    d = desk(line)

    async def start_and_stop() -> None:
        await d.starting()
        await d.stopping("user")

    await d.rt.run(fb.Effect.promise(start_and_stop))

    assert d.tape.types == ["stream-abort"]
    assert d.is_idle


# ---- several at once


@pytest.mark.spec("E3", "E5")
@pytest.mark.parametrize("io", ["inline", "thread"])
async def test_many_stops_at_once_are_one_abort_for_the_first_one_s_reason(
    desk: MakeDesk, io: IoMode
) -> None:
    d = await flowing(desk, Line(), io=io)
    order: list[str] = []
    d.tape.on_event = lambda event: order.append(event.type)

    def stop(reason: AbortReason) -> fb.Fiber[None]:
        stopping = d.stopping(reason)
        return d.rt.run_fork(stopping.map(lambda _: order.append("stopped")))

    reasons: list[AbortReason] = ["user", "system", "startup", "system"]
    stops = [stop(reason) for reason in reasons]
    for fiber in stops:
        await fiber

    assert order == ["stream-abort", *["stopped"] * 4]
    (abort,) = d.tape.terminals
    assert isinstance(abort, StreamAbortEvent)
    assert abort.abort_reason == "user"


@pytest.mark.spec("E5")
@pytest.mark.parametrize("abandon_first", [True, False])
async def test_the_first_stop_decides_what_becomes_of_the_text(
    desk: MakeDesk, abandon_first: bool
) -> None:
    d = await flowing(desk, Line(), io="thread")

    first = d.rt.run_fork(d.stopping("user", abandon_partial=abandon_first))
    second = d.rt.run_fork(d.stopping("user", abandon_partial=not abandon_first))
    await first
    await second

    assert d.disk.answers() == ([] if abandon_first else ["half"])
    assert d.disk.partial() is None


@pytest.mark.spec("E4", "E3")
async def test_a_stop_and_a_close_in_one_tick_join(desk: MakeDesk) -> None:
    scope = AppScope()
    d = await flowing(desk, Line(), scope=scope)

    stopping = d.rt.run_fork(d.stopping("user"))
    closing = d.rt.run_fork(scope.close())
    await closing
    await stopping

    (abort,) = d.tape.terminals
    assert isinstance(abort, StreamAbortEvent)
    assert abort.abort_reason == "user"


@pytest.mark.spec("E4", "E3")
async def test_a_listener_of_the_abort_that_stops_the_stream_too_joins(desk: MakeDesk) -> None:
    """The abort calls its listeners in the middle of the cleanup, on the first stop's stack."""
    caller = AbortController()
    line = Line()

    def ties_the_caller_in(call: Call) -> Parts:
        call.signal.add_listener(lambda _reason: caller.abort())
        return line(call)

    d = desk(ties_the_caller_in)
    handle = await d.start(signal=caller.signal)
    line.give(text("half"))
    await d.idle()

    await d.stop("user")

    assert (await d.done(handle)).abort_reason == "user"
    assert [event.type for event in d.tape.terminals] == ["stream-abort"]
    assert d.history.calls.count("conclude") == 1


async def test_an_interrupted_stopper_leaves_the_cleanup_running(desk: MakeDesk) -> None:
    d = await flowing(desk, Line())
    gate = d.history.hold("commit_partial")
    stopping = d.rt.run_fork(d.stopping("user"))
    await d.idle()

    await d.rt.run(stopping.interrupt())
    gate.go.set()
    await d.idle()

    assert d.tape.types[-1] == "stream-abort"
    assert d.disk.answers() == ["half"]


async def test_a_stop_from_inside_the_provider_does_not_wait_for_itself(desk: MakeDesk) -> None:
    """A tool that stops its own stream, and waits for that."""

    def stops_itself(_call: Call) -> Parts:
        async def play() -> AsyncGenerator[Given, None]:
            yield text("half")
            await d.stopping("user")

        return play()

    d = desk(stops_itself)
    handle = await d.start()

    await d.pass_time(GRACE_SECONDS)

    assert (await d.done(handle)).abort_reason == "user"
    assert d.engine.describe()["abandoned"] == []


# ---- a stop against the natural end


@pytest.mark.spec("E6", "E1")
@pytest.mark.parametrize("method", ["finalize", "delete_partial"])
@pytest.mark.parametrize("io", ["inline", "thread"])
async def test_a_stop_after_the_loop_and_before_completed_yields_only_the_end(
    desk: MakeDesk, method: Method, io: IoMode
) -> None:
    line = Line()
    d = await flowing(desk, line, io=io)
    gate = d.history.hold(method)
    line.give(text(" and whole"), FINISH)
    line.end()
    await d.idle()
    assert gate.begun.is_set()

    stopping = d.rt.run_fork(d.stopping("user"))
    await d.idle()
    gate.go.set()
    await stopping

    assert [event.type for event in d.tape.terminals] == ["stream-end"]
    assert d.disk.partial() is None
    (row,) = [row for row in d.disk.rows() if row["role"] == "assistant"]
    assert "partial" not in row["metadata"]
    assert d.disk.answers() == ["half and whole"]


@pytest.mark.spec("E7")
async def test_a_stop_of_a_completed_stream_waits_for_its_processing(desk: MakeDesk) -> None:
    """COMPLETED, told, and not over: the reservation is still being given back."""
    line = Line()
    d = await flowing(desk, line)
    gate = d.history.hold("release")
    line.give(FINISH)
    line.end()
    await d.idle()
    assert d.tape.types[-1] == "stream-end"

    stopping = d.rt.run_fork(d.stopping("user"))
    await d.idle()
    assert stopping.poll() is None
    gate.go.set()
    await stopping

    assert [event.type for event in d.tape.terminals] == ["stream-end"]
    assert not d.provider.calls[0].signal.aborted


@pytest.mark.spec("E1", "E12")
async def test_a_stop_of_a_failing_stream_leaves_its_error_partial(desk: MakeDesk) -> None:
    """The flush of the stop must not write over what says how the stream ended."""
    line = Line()
    d = await flowing(desk, line)
    gate = d.history.hold("append_partial")
    line.fail(ConnectionError("cut off"))
    await d.idle()
    assert gate.begun.is_set()

    stopping = d.rt.run_fork(d.stopping("user"))
    await d.idle()
    gate.go.set()
    await stopping

    assert [event.type for event in d.tape.terminals] == ["error"]
    partial = d.disk.partial()
    assert partial is not None
    assert partial["metadata"]["errorType"] == "network"


@pytest.mark.spec("E1", "P17")
async def test_a_stop_while_the_answer_cannot_be_stored_is_told_as_the_error(
    desk: MakeDesk,
) -> None:
    line = Line()
    d = await flowing(desk, line)
    gate = d.history.hold("finalize")
    d.history.fail("finalize")
    line.give(FINISH)
    line.end()
    await d.idle()

    stopping = d.rt.run_fork(d.stopping("user"))
    await d.idle()
    gate.go.set()
    await stopping

    assert [event.type for event in d.tape.terminals] == ["error"]
    assert d.disk.partial_text() == "half"


# ---- soft stops


@pytest.mark.spec("E9")
@pytest.mark.parametrize("io", ["inline", "thread"])
async def test_a_soft_stop_takes_effect_at_the_end_of_the_text(desk: MakeDesk, io: IoMode) -> None:
    """Not in the middle of it; and also where the flush before the abort has to wait."""
    line = Line()
    d = await flowing(desk, line, io=io)

    await d.stop("user", soft=True)
    line.give(text(" of it"))
    await d.idle()
    assert d.engine.is_streaming(WORKSPACE)
    line.give(TEXT_END, text("never"))
    await d.idle()

    assert d.tape.said == "half of it"
    (abort,) = d.tape.terminals
    assert isinstance(abort, StreamAbortEvent)
    assert abort.abort_reason == "user"
    assert d.disk.answers() == ["half of it"]
    assert d.is_idle


@pytest.mark.spec("E9")
async def test_a_soft_stop_waits_out_a_write_in_flight_at_the_boundary(desk: MakeDesk) -> None:
    """The stream stands still there: it is neither cut off nor at its end."""
    line = Line()
    d = await flowing(desk, line)
    await d.pass_time(0.5)
    await d.stop("user", soft=True)
    gate = d.history.hold("append_partial")
    line.give(text(" of it"), TEXT_END)
    await d.pass_time(0.5)
    assert gate.begun.is_set()
    assert d.tape.terminals == []

    gate.go.set()
    await d.idle()

    assert [event.type for event in d.tape.terminals] == ["stream-abort"]


@pytest.mark.spec("E9")
async def test_a_soft_stop_returns_at_once_also_from_a_start(desk: MakeDesk) -> None:
    d = desk(WHOLE)
    gate = d.history.hold("reserve")
    starting = d.rt.run_fork(d.starting())
    await d.idle()

    await d.stop("user", soft=True)
    gate.go.set()

    assert (await d.done(await starting)).abort_reason == "user"


@pytest.mark.spec("E9")
async def test_a_soft_stop_of_an_answer_without_a_boundary_lets_it_complete(
    desk: MakeDesk,
) -> None:
    line = Line()
    d = await flowing(desk, line)

    await d.stop("user", soft=True)
    line.give(FINISH)
    line.end()
    await d.idle()

    assert d.tape.types[-1] == "stream-end"


@pytest.mark.spec("E8")
@pytest.mark.parametrize("io", ["inline", "thread"])
async def test_a_soft_stop_at_its_boundary_and_a_hard_one_are_one_abort(
    desk: MakeDesk, io: IoMode
) -> None:
    line = Line()
    d = await flowing(desk, line, io=io)

    await d.stop("system", soft=True)
    line.give(TEXT_END)
    await d.stop("user")

    assert [event.type for event in d.tape.terminals] == ["stream-abort"]
    assert d.is_idle


@pytest.mark.spec("E8")
async def test_a_hard_stop_during_the_cleanup_of_a_soft_one_joins_it(desk: MakeDesk) -> None:
    line = Line()
    d = await flowing(desk, line)
    gate = d.history.hold("commit_partial")
    await d.stop("system", soft=True)
    line.give(TEXT_END)
    await d.idle()
    assert gate.begun.is_set()

    stopping = d.rt.run_fork(d.stopping("user"))
    await d.idle()
    gate.go.set()
    await stopping

    (abort,) = d.tape.terminals
    assert isinstance(abort, StreamAbortEvent)
    assert abort.abort_reason == "system"


# ---- after the abort


@pytest.mark.spec("E10")
async def test_what_comes_after_the_abort_is_neither_told_nor_kept(desk: MakeDesk) -> None:
    """A provider that has parts ready, a finish among them (report R04)."""
    line = Line()
    d = await flowing(desk, line)

    async def abort_and_give() -> None:
        stopping = fb.run_fork(d.stopping("user"))
        line.give(text("late"), FINISH)
        line.end()
        await stopping

    await d.rt.run(fb.Effect.promise(abort_and_give))

    assert d.tape.said == "half"
    assert d.disk.answers() == ["half"]
    assert [event.type for event in d.tape.terminals] == ["stream-abort"]


@pytest.mark.spec("E10", "BT4")
async def test_a_part_that_waits_to_be_taken_at_the_abort_is_dropped(desk: MakeDesk) -> None:
    """The provider has given it, the pump is held up by an observer that stops the stream."""
    line = Line()
    d = desk(line)
    await d.start()

    def stop_at_once(event: Event) -> None:
        if event.type == "stream-delta":
            fb.run_fork(d.stopping("user"))

    d.tape.on_event = stop_at_once
    line.give(text("one"), text("two"), text("three"))
    await d.idle()

    assert d.tape.said == "one"
    assert d.disk.answers() == ["one"]


@pytest.mark.spec("E11")
async def test_a_provider_that_raises_after_the_abort_was_aborted(desk: MakeDesk) -> None:
    def raises(call: Call) -> Parts:
        async def play() -> AsyncGenerator[Given, None]:
            yield text("half")
            await call.signal.wait()
            raise ConnectionError("closed by us")

        return play()

    d = desk(raises)
    handle = await d.start()
    await d.idle()

    await d.stop("user")

    assert (await d.done(handle)).status == "aborted"
    assert [event.type for event in d.tape.terminals] == ["stream-abort"]


# ---- what goes wrong during an abort


@pytest.mark.spec("E28")
@pytest.mark.parametrize("method", ["append_partial", "commit_partial", "release"])
@pytest.mark.parametrize(
    "error", [HistoryError("io", "/x", "no", "Wait."), RuntimeError("a fault of the store")]
)
async def test_no_failing_step_keeps_the_abort_from_being_told(
    desk: MakeDesk, method: Method, error: Exception
) -> None:
    d = await flowing(desk, Line())
    d.history.fail(method, error)

    await d.stop("user")
    d.history.mend()

    assert [event.type for event in d.tape.terminals] == ["stream-abort"]
    assert d.is_idle
    assert d.disk.answers() == ["half"] or d.disk.partial_text() == "half"
    assert (await d.done(await d.start("next"))).status == "completed"
    assert d.disk.answers() == ["half", "Hello there"]


@pytest.mark.spec("E28")
async def test_a_failing_removal_keeps_no_abort_from_being_told(desk: MakeDesk) -> None:
    d = await flowing(desk, Line())
    d.history.fail("delete_partial")

    await d.stop("user", abandon_partial=True)

    assert [event.type for event in d.tape.terminals] == ["stream-abort"]
    assert d.is_idle


@pytest.mark.spec("E28", "E2")
async def test_an_observer_that_raises_keeps_nobody_waiting(desk: MakeDesk) -> None:
    d = await flowing(desk, Line())

    def raises(_event: Event) -> None:
        raise RuntimeError("an observer's own fault")

    d.engine.events.subscribe(raises)
    late: list[str] = []
    d.engine.events.subscribe(lambda event: late.append(event.type))

    await d.stop("user")

    assert late == ["stream-abort"]
    assert d.is_idle


# ---- a provider that ignores its abort


@pytest.mark.spec("BT5")
async def test_a_stop_of_a_wedged_stream_returns_after_the_grace(desk: MakeDesk) -> None:
    """Report R23: the workspace doesn't stay "running"."""
    wedged = Wedged(text("half"))
    d = desk(wedged, WHOLE)
    await d.start()
    await d.idle()

    stopping = d.rt.run_fork(d.stopping("user"))
    await d.pass_time(GRACE_SECONDS - 0.001)
    assert stopping.poll() is None
    assert wedged.interrupts == 1
    await d.pass_time(0.001)
    await stopping

    assert not d.engine.is_streaming(WORKSPACE)
    assert d.disk.answers() == ["half"]
    assert (await d.done(await d.start("next"))).status == "completed"
    wedged.let_go.set()
    await d.idle()
