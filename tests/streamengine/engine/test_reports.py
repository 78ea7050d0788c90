"""Faults that users of comparable engines have reported, each as a whole kind of fault."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

import fibers as fb
from fibers import AbortController, AbortSignal
from streamengine import Event, StartOptions
from streamengine.model import (
    AbortReason,
    AssistantRow,
    Finish,
    FinishStep,
    ReasoningDelta,
    StreamAbortEvent,
    TextPart,
    ToolCall,
    ToolPart,
    parse_row,
)
from streamengine.model.note import LastEnd
from streamengine.startup import startup_verdict

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
    Hand,
    Line,
    Method,
    Wedged,
    echo,
    make_desk,
    says,
    text,
)

pytestmark = pytest.mark.lifecycle

CALL = ToolCall(tool_call_id="c1", tool_name="t", input={})
TOOLS_DONE = Finish(finish_reason="tool-calls", raw_finish_reason="tool_calls")


def is_acceptable(request: Any) -> bool:
    """What providers insist on: no blank answer, a result for each call."""
    for row in request.history:
        if not isinstance(row, AssistantRow):
            continue
        if not row.parts:
            return False
        for part in row.parts:
            if isinstance(part, TextPart) and not part.text.strip():
                return False
            if isinstance(part, ToolPart) and not part.has_output:
                return False
    return True


# ---- R01: an interrupt leaves a blank answer, which bricks the conversation


@pytest.mark.spec("R01", "P7", "P22")
@pytest.mark.parametrize(
    "said",
    [
        [text("\n\n"), CALL],
        [CALL],
        [text("\n\n")],
        [text(" "), text("\t"), CALL, text("\n")],
        [ReasoningDelta(text=" \n"), CALL],
        [],
    ],
    ids=lambda parts: "+".join(part.type for part in parts) or "nothing",
)
@pytest.mark.parametrize("how", ["hard", "soft"])
async def test_an_answer_of_blanks_and_open_calls_leaves_nothing_behind(
    desk: MakeDesk, said: list[Given], how: str
) -> None:
    line = Line()
    d = desk(line, WHOLE)
    await d.start()
    line.give(*said)
    await d.idle()
    if how == "hard":
        await d.stop()
    else:
        await d.stop(soft=True)
        line.give(TEXT_END)
        await d.idle()

    assert d.disk.roles() == ["user"]
    assert await d.rt.run(d.history.read_partial(WORKSPACE)) is None
    await d.whole("next")
    request = d.provider.calls[-1].request
    assert [row.role for row in request.history] == ["user"]


GATES: dict[str, Method] = {"append_user": "append_user", "read": "read", "reserve": "reserve"}

# ---- R02: a retry although the person interrupted the start


@pytest.mark.spec("R02", "E30")
@pytest.mark.parametrize("at", ["lock", "append_user", "read", "reserve", "admit", "fence"])
@pytest.mark.parametrize("reason", ["user", "startup", "system"])
async def test_a_stop_of_a_start_is_remembered_with_its_reason(
    desk: MakeDesk, at: str, reason: AbortReason
) -> None:
    """Wherever the start stands; who decides on a retry after a restart finds it."""
    d = desk(WHOLE)
    controller = AbortController()
    options = StartOptions()
    gate = None
    if at == "admit":
        options = StartOptions(admit=fb.Effect.never())
    elif at == "fence":
        options = StartOptions(stop_fence=lambda: reason)
    elif at == "lock":
        gate = d.history.hold("append_user")
        blocking = d.rt.run_fork(d.starting("before it", workspace_id=WORKSPACE))
        await d.idle()
        blocking.ignore_failure()
    else:
        gate = d.history.hold(GATES[at])
    starting = d.rt.run_fork(d.starting(signal=controller.signal, options=options))
    await d.idle()
    controller.abort(reason)
    if gate is not None:
        gate.go.set()
    await d.idle()

    exit_ = starting.poll()
    assert exit_ is not None
    handle = exit_.unwrap()
    assert (await d.done(handle)).abort_reason == reason
    note = await d.rt.run(d.history.read_note(WORKSPACE))
    assert note.last_end is not None
    assert (note.last_end.message_id, note.last_end.abort_reason) == (handle.message_id, reason)
    users = [row for row in d.disk.rows() if row["role"] == "user"]
    assert note.last_end.after_sequence == users[-1]["metadata"]["historySequence"]


@pytest.mark.spec("E30")
@pytest.mark.parametrize("reason", ["user", "startup", "system"])
@pytest.mark.parametrize("said", ["half", ""])
async def test_a_stop_of_a_stream_is_remembered_when_it_is_told(
    desk: MakeDesk, reason: AbortReason, said: str
) -> None:
    """By its row or, where there is none, by the note; a later process finds the same."""
    line = Line()
    d = desk(line)
    handle = await d.start()
    if said:
        line.give(text(said))
    await d.idle()
    on_disk: list[object] = []

    def look(event: Event) -> None:
        if isinstance(event, StreamAbortEvent):
            on_disk.append(d.disk.rows()[-1]["metadata"].get("abortReason"))
            note = d.disk.directory() / "note.json"
            on_disk.append(json.loads(note.read_text())["lastEnd"] if note.exists() else None)

    d.tape.on_event = look

    await d.stop(reason)

    if said:
        assert on_disk == [reason, None]
    else:
        end = LastEnd(message_id=handle.message_id, after_sequence=0, abort_reason=reason)
        assert on_disk == [None, end.to_mapping()]
    rows = await d.rt.run(d.history.read(WORKSPACE))
    note = await d.rt.run(d.history.read_note(WORKSPACE))
    assert startup_verdict(rows, note) == ("retry" if reason == "system" else "stopped")


async def test_an_error_is_remembered_and_an_opt_out_stays(desk: MakeDesk) -> None:
    d = desk(says(text("cut")))
    await d.rt.run(
        d.history.update_note(WORKSPACE, lambda note: note.with_fields(auto_retry=False))
    )

    await d.whole()

    note = await d.rt.run(d.history.read_note(WORKSPACE))
    assert note.last_end is not None
    assert note.last_end.error_type == "stream_truncated"
    assert not note.auto_retry


# ---- R04: two ends of one answer


@pytest.mark.spec("R04", "E1", "E10")
@pytest.mark.parametrize("how", ["while it yields", "in the same tick", "after a soft stop"])
async def test_a_finish_after_the_abort_ends_nothing_again(desk: MakeDesk, how: str) -> None:
    async def goes_on(call: Call) -> AsyncGenerator[Given, None]:
        yield text("half")
        while not call.signal.aborted:
            try:
                await asyncio.sleep(0)
                await call.signal.wait()
            except asyncio.CancelledError:
                break
        yield FINISH

    line = Line()
    d = desk(goes_on if how == "while it yields" else line)
    handle = await d.start()
    line.give(text("half"))
    await d.idle()
    if how == "after a soft stop":
        await d.stop(soft=True)
        line.give(TEXT_END, FINISH)
        line.end()
    elif how == "in the same tick":
        stopping = d.rt.run_fork(d.stopping())
        line.give(FINISH)
        line.end()
        await stopping
    else:
        await d.stop()

    assert (await d.done(handle)).status == "aborted"
    assert [e.type for e in d.tape.terminals] == ["stream-abort"]
    assert "finishReason" not in d.disk.rows()[-1]["metadata"]


# ---- R06, R12: an interrupted conversation can't go on


@pytest.mark.spec("P22", "BT8")
@pytest.mark.parametrize("before", [[], [text("I look.")]], ids=["tool only", "text before"])
async def test_a_stop_inside_a_tool_leaves_a_conversation_that_goes_on(
    desk: MakeDesk, before: list[Given]
) -> None:
    """Report R06."""

    async def sleeps(_given: dict[str, Any], _signal: AbortSignal) -> object:
        await asyncio.Event().wait()
        return None

    d = desk(says(*before, CALL, TOOLS_DONE), WHOLE, tools=[Hand("t", sleeps)])
    await d.start()
    await d.idle()
    await d.stop()

    assert (await d.whole("next")).status == "completed"
    assert is_acceptable(d.provider.calls[-1].request)
    assert d.disk.roles() == ["user", *["assistant"] * bool(before), "user", "assistant"]


@pytest.mark.spec("R12", "P22")
@pytest.mark.parametrize("before", [[], [text("I look.")]], ids=["tool only", "text before"])
async def test_a_crash_inside_a_tool_leaves_a_conversation_that_goes_on(
    desk: MakeDesk, rt: fb.Runtime, clock: Any, tmp_path: Path, before: list[Given]
) -> None:
    """The process dies; another one loads what is on disk, and sends."""

    async def sleeps(_given: dict[str, Any], _signal: AbortSignal) -> object:
        await asyncio.Event().wait()
        return None

    dead = desk(says(*before, CALL, TOOLS_DONE), tools=[Hand("t", sleeps)])
    await dead.start()
    await dead.pass_time(0.5)
    crashed = tmp_path / "crashed"
    (crashed / "workspaces").mkdir(parents=True)
    dead.disk.directory().rename(crashed / "workspaces" / WORKSPACE)
    alive = make_desk(rt, clock, crashed, WHOLE)

    await rt.run(alive.engine.recover())
    completion = await alive.whole("next")

    assert completion.status == "completed"
    assert is_acceptable(alive.provider.calls[-1].request)
    await dead.stop(abandon_partial=True)


# ---- R09: a provider swallows the cancellation


@pytest.mark.spec("R09", "E10")
@pytest.mark.parametrize("parts_after", [1, 1000])
async def test_a_provider_that_swallows_its_cancel_says_nothing_more(
    desk: MakeDesk, parts_after: int
) -> None:
    async def swallows(_call: Call) -> AsyncGenerator[Given, None]:
        yield text("half")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass
        for _ in range(parts_after):
            yield text("too late")
        yield FINISH

    d = desk(swallows)
    handle = await d.start()
    await d.idle()

    await d.stop()

    assert (await d.done(handle)).status == "aborted"
    assert d.tape.said == "half"
    assert d.disk.answers() == ["half"]


# ---- R10: a stale finish reason on an interrupted message


@pytest.mark.spec("R10")
@pytest.mark.parametrize("ending", ["abort", "soft abort", "error"])
async def test_an_interrupted_answer_has_no_finish_reason_of_an_earlier_step(
    desk: MakeDesk, ending: str
) -> None:
    line = Line()
    d = desk(
        says(text("One. "), CALL, FinishStep(finish_reason="tool-calls"), TOOLS_DONE),
        line,
        WHOLE,
        tools=[echo("t")],
    )
    await d.start()
    line.give(text("two"))
    await d.idle()
    if ending == "error":
        line.end()
    elif ending == "abort":
        await d.stop()
    else:
        await d.stop(soft=True)
        line.give(TEXT_END)
    await d.idle()
    if ending == "error":
        await d.whole("next")  # what it said becomes a row

    row = parse_row(next(row for row in d.disk.rows() if row["role"] == "assistant"))
    assert row.is_partial
    assert row.metadata.finish_reason is None
    assert row.metadata.raw_finish_reason is None


# ---- R23: the interrupt waits for a completion that never comes


@pytest.mark.spec("R23")
@pytest.mark.parametrize("soft_first", [False, True])
async def test_a_stop_of_a_provider_that_ignores_it_returns_within_the_bound(
    desk: MakeDesk, soft_first: bool
) -> None:
    wedged = Wedged(text("half"))
    d = desk(wedged)
    handle = await d.start()
    await d.idle()
    if soft_first:
        await d.stop(soft=True)
    stopping = d.rt.run_fork(d.stopping())

    await d.pass_time(GRACE_SECONDS)

    assert stopping.poll() is not None
    assert not d.engine.is_streaming(WORKSPACE)
    assert (await d.done(handle)).status == "aborted"
    wedged.let_go.set()
    await d.idle()


# ---- R25: a consumer shows "working" for ever


async def _completes(d: Desk, line: Line) -> None:
    line.give(text("a"), FINISH)
    line.end()
    await d.idle()


async def _fails(_d: Desk, line: Line) -> None:
    line.fail(RuntimeError("no"))


async def _is_cut_off(_d: Desk, line: Line) -> None:
    line.give(text("a"))
    line.end()


async def _is_stopped(d: Desk, _line: Line) -> None:
    await d.stop()


async def _is_stopped_softly(d: Desk, line: Line) -> None:
    await d.stop(soft=True)
    line.give(TEXT_END)


async def _is_abandoned(d: Desk, _line: Line) -> None:
    await d.stop(abandon_partial=True)


async def _is_replaced(d: Desk, _line: Line) -> None:
    await d.whole("another")


async def _is_stopped_in_a_tool(d: Desk, line: Line) -> None:
    line.give(ToolCall(tool_call_id="w", tool_name="waits"), TOOLS_DONE)
    line.end()
    await d.idle()
    await d.stop()


async def _cannot_be_stored(d: Desk, line: Line) -> None:
    d.history.fail("finalize")
    await _completes(d, line)


@pytest.mark.spec("R25", "E1")
@pytest.mark.parametrize(
    "scenario",
    [
        _completes, _fails, _is_cut_off, _is_stopped, _is_stopped_softly, _is_abandoned,
        _is_replaced, _is_stopped_in_a_tool, _cannot_be_stored,
    ],
)  # fmt: skip
async def test_who_counts_starts_and_ends_counts_nothing_open(
    desk: MakeDesk, scenario: Any
) -> None:
    async def waits(_given: dict[str, Any], _signal: AbortSignal) -> object:
        await asyncio.Event().wait()
        return None

    line = Line()
    d = desk(line, WHOLE, tools=[Hand("waits", waits)])
    working = 0

    def count(event: Event) -> None:
        nonlocal working
        working += event.type == "stream-start"
        working -= event.type in ("stream-end", "stream-abort", "error")

    d.engine.events.subscribe(count)
    await d.start()
    await d.idle()
    assert working == 1

    await scenario(d, line)
    await d.idle()

    assert working == 0
    assert d.is_idle
