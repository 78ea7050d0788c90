"""Whatever fails or hangs while a stream is stopped: the abort is told, the completion settles."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

import fibers as fb
from fibers.app import AppScope
from fibers.testing import TestClock
from streamengine import EngineOptions, Event, FileHistory
from streamengine.model import StreamAbortEvent, ToolCall

from .conftest import MakeDesk
from .kit import (
    FINISH,
    TEXT_END,
    WHOLE,
    WORKSPACE,
    Answer,
    Desk,
    Line,
    Method,
    calls,
    echo,
    make_desk,
    text,
    tokens,
)

pytestmark = pytest.mark.lifecycle

STORE_GRACE_SECONDS = 5.0

STEPS: list[Method] = [
    "append_partial",
    "write_partial",
    "commit_partial",
    "record_usage",
    "update_note",
    "release",
]


async def _speaking(make: MakeDesk, line: Line, after: Answer = WHOLE) -> Desk:
    """A stream that has said something, used something, and has an open tool call."""
    d = make(line, after)
    await d.start()
    line.give(text("half"), tokens(7), ToolCall(tool_call_id="c", tool_name="t"))
    await d.idle()
    return d


async def _stop(d: Desk, line: Line, how: str) -> None:
    """Stopped at once, or at the end of the block."""
    if how == "hard":
        await d.stop()
    else:
        await d.stop(soft=True)
        line.give(TEXT_END)
        await d.idle()


def _check_told(d: Desk) -> None:
    assert [e.type for e in d.tape.terminals] == ["stream-abort"]
    assert not d.engine.is_streaming(WORKSPACE)
    assert d.engine.describe()["streams"] == []


@pytest.mark.spec("E28")
@pytest.mark.parametrize("how", ["hard", "soft"])
@pytest.mark.parametrize("error", ["of its kind", "a defect"])
@pytest.mark.parametrize("step", STEPS)
async def test_a_step_that_fails_keeps_nobody_waiting(
    desk: MakeDesk, step: Method, error: str, how: str
) -> None:
    line = Line()
    d = await _speaking(desk, line)
    if error == "a defect":
        d.history.fail(step, RuntimeError("a fault of the store"))
    else:
        d.history.fail(step)

    await _stop(d, line, how)

    _check_told(d)
    d.history.mend()
    assert (await d.whole("next")).status == "completed"
    assert d.disk.answers() == ["half", "Hello there"]


@pytest.mark.spec("E28")
@pytest.mark.parametrize("how", ["hard", "soft"])
@pytest.mark.parametrize("step", ["delete_partial", "record_usage"])
async def test_a_step_that_fails_for_an_abandoned_answer_keeps_nobody_waiting(
    desk: MakeDesk, step: Method, how: str
) -> None:
    line = Line()
    d = await _speaking(desk, line)
    d.history.fail(step)

    if how == "hard":
        await d.stop(abandon_partial=True)
    else:
        await d.stop(soft=True, abandon_partial=True)
        line.give(TEXT_END)
        await d.idle()

    _check_told(d)


@pytest.mark.spec("E28")
@pytest.mark.parametrize("how", ["hard", "soft"])
async def test_an_observer_that_raises_at_the_abort_keeps_nobody_waiting(
    desk: MakeDesk, how: str
) -> None:
    line = Line()
    d = await _speaking(desk, line)

    def fail(event: Event) -> None:
        if isinstance(event, StreamAbortEvent):
            raise RuntimeError("an observer's fault")

    d.engine.events.subscribe(fail)

    await _stop(d, line, how)

    _check_told(d)


@pytest.mark.spec("E28")
@pytest.mark.parametrize("how", ["hard", "soft"])
async def test_a_tokenizer_that_fails_keeps_nobody_waiting(desk: MakeDesk, how: str) -> None:
    def count(said: str) -> int:
        raise RuntimeError(f"cannot count {said}")

    line = Line()
    d = desk(line, options=EngineOptions(load_tokenizer=lambda _model: count))
    await d.start(model="m")
    line.give(text("half"))
    await d.idle()

    await _stop(d, line, how)

    _check_told(d)
    assert d.disk.answers() == ["half"]


# ---- a store that hangs


@pytest.mark.spec("R23")
@pytest.mark.parametrize("step", [step for step in STEPS if step != "write_partial"])
async def test_a_store_that_hangs_holds_up_a_stop_for_its_grace_at_most(
    desk: MakeDesk, step: Method
) -> None:
    line = Line()
    d = await _speaking(desk, line)
    if step == "record_usage":
        # It is asked only for what has no row.
        d.history.fail("append_partial")
        d.history.fail("write_partial")
    gate = d.history.hold(step)
    with capture_logs() as logs:
        stopping = d.rt.run_fork(d.stopping())
        # What each further step gets at least comes on top.
        await d.pass_time(STORE_GRACE_SECONDS)
        await d.pass_time(0.1)

    assert gate.begun.is_set()
    assert stopping.poll() is not None
    _check_told(d)
    assert len(d.abandoned) >= 1
    assert any("the stop goes on without it" in log["event"] for log in logs)

    gate.go.set()
    await d.idle()
    assert d.abandoned == []
    assert d.disk.answers() == ["half"]


@pytest.mark.spec("P2", "R23")
async def test_what_a_hung_stop_writes_late_leaves_the_answer_that_runs_meanwhile(
    desk: MakeDesk,
) -> None:
    first, second = Line(), Line()
    d = await _speaking(desk, first, second)
    gate = d.history.hold("commit_partial")
    stopping = d.rt.run_fork(d.stopping())
    await d.pass_time(STORE_GRACE_SECONDS)
    await d.pass_time(0.1)
    assert stopping.poll() is not None
    running = await d.start("next")
    second.give(text("what runs now"))
    await d.idle()

    d.history.fail("commit_partial")  # so each step is tried alone, the partial too
    gate.go.set()
    await d.pass_time(1)

    kept = d.disk.partial()
    assert kept is not None
    assert (kept["id"], kept["parts"][0]["text"]) == (running.message_id, "what runs now")
    assert list(d.disk.directory().glob("*corrupt*")) == []
    assert d.abandoned == []
    d.history.mend()
    second.give(FINISH)
    second.end()
    assert (await d.done(running)).status == "completed"
    assert d.disk.answers() == ["half", "what runs now"]


@pytest.mark.spec("R23", "E1")
async def test_a_final_row_that_hangs_holds_up_a_stop_for_its_grace_at_most(
    desk: MakeDesk,
) -> None:
    """The abort is told; when the row is written after all, no second terminal comes."""
    d = desk(WHOLE)
    gate = d.history.hold("finalize")
    handle = await d.start()
    await d.idle()
    assert gate.begun.is_set()
    stopping = d.rt.run_fork(d.stopping())

    await d.pass_time(STORE_GRACE_SECONDS)

    assert stopping.poll() is not None
    assert (await d.done(handle)).status == "aborted"
    gate.go.set()
    await d.idle()
    assert [e.type for e in d.tape.terminals] == ["stream-abort"]
    assert d.abandoned == []


@pytest.mark.spec("R23", "E1", "R25")
async def test_a_result_whose_write_hangs_is_not_told_after_the_abort(desk: MakeDesk) -> None:
    d = desk(calls("echo"), tools=[echo()])
    gate = d.history.hold("write_partial")
    await d.start()
    await d.idle()
    assert gate.begun.is_set()
    stopping = d.rt.run_fork(d.stopping(abandon_partial=True))
    await d.pass_time(STORE_GRACE_SECONDS)
    await d.pass_time(0.1)
    assert stopping.poll() is not None

    gate.go.set()
    await d.idle()

    assert d.tape.types[-1] == "stream-abort"
    assert "tool-call-end" not in d.tape.types
    assert d.abandoned == []


@pytest.mark.spec("R23")
@pytest.mark.parametrize("step", ["read", "append_user", "reserve"])
async def test_a_start_that_hangs_in_the_store_holds_up_a_stop_for_its_grace_at_most(
    desk: MakeDesk, step: Method
) -> None:
    d = desk(WHOLE)
    gate = d.history.hold(step)
    starting = d.rt.run_fork(d.starting())
    await d.idle()
    assert d.engine.is_starting(WORKSPACE)
    stopping = d.rt.run_fork(d.stopping())
    await d.pass_time(STORE_GRACE_SECONDS - 0.01)
    assert stopping.poll() is None

    await d.pass_time(0.01)

    assert stopping.poll() is not None
    gate.go.set()
    await d.idle()
    exit_ = starting.poll()
    assert exit_ is not None
    assert (await d.done(exit_.unwrap())).abort_reason == "user"
    assert d.tape.events == []


async def test_the_close_of_the_app_waits_for_a_store_that_comes_back(desk: MakeDesk) -> None:
    """Within the close's own bound: the row of the abort is durable then."""
    app = AppScope()
    line = Line()
    d = desk(line, scope=app)
    await d.start()
    line.give(text("half"))
    await d.idle()
    gate = d.history.hold("commit_partial")
    closing = d.rt.run_fork(app.close())
    await d.pass_time(1)
    assert closing.poll() is None

    gate.go.set()
    await d.idle()

    assert closing.poll() is not None
    assert d.disk.answers() == ["half"]


@pytest.mark.spec("P9")
async def test_a_partial_that_cannot_be_committed_is_durable_before_the_abort_is_told(
    rt: fb.Runtime, clock: TestClock, tmp_path: Path
) -> None:
    """Nothing else is written through to the disk at that moment."""
    line = Line()
    steps: list[str] = []
    history = FileHistory(tmp_path, io="inline", on_step=steps.append)
    d = make_desk(rt, clock, tmp_path, line, inner=history)
    await d.start()
    line.give(text("half"))
    await d.idle()
    d.history.fail("commit_partial")
    d.history.fail("update_note")
    steps.clear()
    synced: list[bool] = []
    d.tape.on_event = lambda _event: synced.append("file-synced" in steps)

    await d.stop()

    assert synced == [True]
    assert d.disk.partial() is not None
