"""resume_stream: the last message answered again, without another user row (P20)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

import fibers as fb
from fibers.testing import TestClock
from streamengine import Event, HistoryError, SendError, StreamRequest
from streamengine.model import (
    AbortReason,
    Finish,
    RowMetadata,
    TextPart,
    ToolCall,
    ToolPart,
    UserRow,
)
from streamengine.model.note import LastEnd, WorkspaceNote

from .kit import FINISH, TEXT_END, WHOLE, WORKSPACE, Desk, Line, make_desk, says, text

BROKEN = says(text("Once upon "), TEXT_END)
"""Ends without a finish: a truncated answer."""


async def resume(d: Desk, request: StreamRequest | None = None) -> str:
    handle = await d.rt.run(d.engine.resume_stream(WORKSPACE, request))
    return (await d.done(handle)).status


@pytest.mark.spec("P20", "R15")
async def test_a_failed_answer_is_asked_for_again_with_one_user_row(
    rt: fb.Runtime, clock: TestClock, tmp_path: Path
) -> None:
    broken = [says(text(word)) for word in ("a", "b", "c", "d", "e")]
    d = make_desk(rt, clock, tmp_path, *broken, WHOLE)
    await d.done(await d.start("Tell me"))
    for _ in broken[1:]:
        assert await resume(d) == "failed"
    assert await resume(d) == "completed"
    assert d.disk.roles().count("user") == 1
    assert d.disk.answers()[-1] == "Hello there"
    assert {call.request.text for call in d.provider.calls} == {"Tell me"}


async def test_the_provider_is_shown_what_came_before_the_message(
    rt: fb.Runtime, clock: TestClock, tmp_path: Path
) -> None:
    d = make_desk(rt, clock, tmp_path, WHOLE, BROKEN, WHOLE)
    await d.done(await d.start("first"))
    await d.done(await d.start("second"))
    assert await resume(d) == "completed"
    asked = d.provider.calls[-1].request
    assert asked.text == "second"
    assert [row.role for row in asked.history] == ["user", "assistant"]
    # Text alone is said anew; what tools did would be done twice.
    assert asked.so_far == ()


async def test_it_is_asked_with_what_the_message_was_sent_with(
    rt: fb.Runtime, clock: TestClock, tmp_path: Path
) -> None:
    """Also by the next process: the user row keeps it."""
    d = make_desk(rt, clock, tmp_path / "state", BROKEN, WHOLE)
    fields: dict[str, Any] = {
        "model": "m-1",
        "correlation": {"turnId": "t"},
        "prompt_id": "p",
        "system": "Be brief.",
        "temperature": 0.5,
        "max_output_tokens": 7,
        "fallback_models": ("m-2",),
        "mode": "plan",
        "agent_id": "x",
        "thinking_level": "high",
    }
    await d.done(await d.start("Tell me", **fields))
    after = make_desk(rt, clock, tmp_path / "state", WHOLE)
    assert await resume(after) == "completed"
    asked = after.provider.calls[-1].request
    assert {name: getattr(asked, name) for name in fields} == fields


async def test_a_request_of_ones_own_keeps_the_text(
    rt: fb.Runtime, clock: TestClock, tmp_path: Path
) -> None:
    d = make_desk(rt, clock, tmp_path, BROKEN, WHOLE)
    await d.done(await d.start("Tell me", model="m-1"))
    assert await resume(d, StreamRequest(text="ignored", model="m-9")) == "completed"
    asked = d.provider.calls[-1].request
    assert (asked.text, asked.model) == ("Tell me", "m-9")


async def test_there_is_nothing_to_resume_after_a_whole_answer_or_in_an_empty_workspace(
    rt: fb.Runtime, clock: TestClock, tmp_path: Path
) -> None:
    d = make_desk(rt, clock, tmp_path, WHOLE)
    with pytest.raises(SendError, match="nothing_to_resume"):
        await resume(d)
    await d.done(await d.start("Tell me"))
    with pytest.raises(SendError, match="nothing_to_resume"):
        await resume(d)
    assert d.is_idle
    assert d.disk.roles() == ["user", "assistant"]


async def test_an_answer_that_stopped_at_its_tools_is_gone_on_with(
    rt: fb.Runtime, clock: TestClock, tmp_path: Path
) -> None:
    call = ToolCall(tool_call_id="c", tool_name="look", provider_executed=True)
    d = make_desk(
        rt, clock, tmp_path, says(text("Let me see"), call, Finish(finish_reason="tool-calls"))
    )
    await d.done(await d.start("Tell me"))
    d.provider.answers = [WHOLE]
    d.provider.calls.clear()
    assert await resume(d) == "completed"
    (asked,) = d.provider.calls
    calls = [part for part in asked.request.so_far if isinstance(part, ToolPart)]
    assert [part.has_output for part in calls] == [True]


async def test_a_stream_that_runs_is_left_alone(
    rt: fb.Runtime, clock: TestClock, tmp_path: Path
) -> None:
    line = Line()
    d = make_desk(rt, clock, tmp_path, line, WHOLE)
    first = await d.start("Tell me")
    line.give(text("Once"))
    await d.idle()
    with pytest.raises(SendError, match="being answered"):
        await resume(d)
    line.give(TEXT_END, FINISH)
    line.end()
    assert (await d.done(first)).status == "completed"


async def test_two_at_once_answer_one_after_the_other(
    rt: fb.Runtime, clock: TestClock, tmp_path: Path
) -> None:
    d = make_desk(rt, clock, tmp_path, BROKEN, WHOLE)
    await d.done(await d.start("Tell me"))
    both = [rt.run_fork(d.engine.resume_stream(WORKSPACE).exit()) for _ in range(2)]
    await d.idle()
    assert all(fiber.poll() is not None for fiber in both)
    assert d.disk.roles().count("user") == 1
    assert len(d.tape.terminals) == len({event.message_id for event in d.tape.terminals})


# ---- the note


async def last_end(d: Desk) -> LastEnd | None:
    return (await d.rt.run(d.history.read_note(WORKSPACE))).last_end


async def test_an_end_that_is_not_a_whole_answer_is_noted_before_it_is_told(
    rt: fb.Runtime, clock: TestClock, tmp_path: Path
) -> None:
    d = make_desk(rt, clock, tmp_path, BROKEN)
    noted: list[bool] = []
    note = tmp_path / "workspaces" / WORKSPACE / "note.json"

    def look(event: Event) -> None:
        if event.type == "error":
            noted.append(note.exists())

    d.tape.on_event = look
    handle = await d.start("Tell me")
    await d.done(handle)
    assert noted == [True]
    end = await last_end(d)
    assert end == LastEnd(
        message_id=handle.message_id, after_sequence=0, error_type="stream_truncated"
    )


@pytest.mark.parametrize("reason", ["user", "startup", "system"])
async def test_a_stop_is_noted_with_its_reason(
    rt: fb.Runtime, clock: TestClock, tmp_path: Path, reason: AbortReason
) -> None:
    d = make_desk(rt, clock, tmp_path, Line())
    handle = await d.start("Tell me")
    await d.idle()
    await d.stop(reason)
    end = await last_end(d)
    assert end == LastEnd(message_id=handle.message_id, after_sequence=0, abort_reason=reason)


@pytest.mark.spec("R02")
async def test_a_stop_while_the_answer_is_only_starting_is_noted(
    rt: fb.Runtime, clock: TestClock, tmp_path: Path
) -> None:
    d = make_desk(rt, clock, tmp_path, WHOLE)
    hold = d.history.hold("reserve")
    starting = rt.run_fork(d.starting("Tell me"))
    await hold.begun.wait()
    stopping = rt.run_fork(d.stopping("user"))
    await d.idle()
    hold.go.set()
    await d.idle()
    assert stopping.poll() is not None
    handle = (await starting.exit()).unwrap()
    assert (await d.done(handle)).abort_reason == "user"
    assert d.tape.events == []
    end = await last_end(d)
    assert end == LastEnd(message_id=handle.message_id, after_sequence=0, abort_reason="user")


async def test_a_further_try_is_noted_before_its_first_event(
    rt: fb.Runtime, clock: TestClock, tmp_path: Path
) -> None:
    d = make_desk(rt, clock, tmp_path, BROKEN, Line())
    await d.done(await d.start("Tell me"))
    noted: list[str] = []

    def look(event: Event) -> None:
        if event.type == "stream-start":
            noted.append((tmp_path / "workspaces" / WORKSPACE / "note.json").read_text())

    d.tape.on_event = look
    handle = await d.rt.run(d.engine.resume_stream(WORKSPACE))
    await d.idle()
    (note,) = map(WorkspaceNote.model_validate_json, noted)
    assert note.last_end == LastEnd(message_id=handle.message_id, after_sequence=0)
    await d.stop()


async def test_a_stop_of_a_further_try_is_what_stays_noted(
    rt: fb.Runtime, clock: TestClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes while the begin is being noted, by a store that no interrupt reaches, and is done
    before that.
    """
    d = make_desk(rt, clock, tmp_path, BROKEN, Line())
    await d.done(await d.start("Tell me"))
    begun, go = asyncio.Event(), asyncio.Event()
    real = d.history.update_note

    def late(*what: Any) -> fb.Effect[WorkspaceNote, HistoryError]:
        begun.set()
        update = fb.Effect.promise(go.wait).flat_map(lambda _: real(*what))
        return update.uninterruptible()

    monkeypatch.setattr(d.history, "update_note", late)
    resuming = rt.run_fork(d.engine.resume_stream(WORKSPACE))
    await begun.wait()
    await d.stop("user")
    go.set()
    await d.pass_time(1)
    handle = (await resuming.exit()).unwrap()
    end = await last_end(d)
    assert end == LastEnd(message_id=handle.message_id, after_sequence=0, abort_reason="user")
    assert d.tape.of(handle.message_id) == ["stream-abort"]


async def test_a_further_try_goes_on_where_it_cant_be_noted(
    rt: fb.Runtime, clock: TestClock, tmp_path: Path
) -> None:
    d = make_desk(rt, clock, tmp_path, BROKEN, WHOLE)
    await d.done(await d.start("Tell me"))
    d.history.fail("update_note")
    with capture_logs() as logs:
        assert await resume(d) == "completed"
    assert any("not noted" in log["event"] for log in logs)


async def test_a_whole_answer_leaves_no_note(
    rt: fb.Runtime, clock: TestClock, tmp_path: Path
) -> None:
    d = make_desk(rt, clock, tmp_path, WHOLE)
    await d.done(await d.start("Tell me"))
    assert await last_end(d) is None


async def test_a_note_that_cant_be_written_keeps_no_end_from_coming(
    rt: fb.Runtime, clock: TestClock, tmp_path: Path
) -> None:
    d = make_desk(rt, clock, tmp_path, BROKEN, Line())
    d.history.fail("update_note")
    assert (await d.done(await d.start("Tell me"))).status == "failed"
    handle = await d.start("Once more")
    await d.idle()
    await d.stop("user")
    assert (await d.done(handle)).status == "aborted"


def test_rows_of_a_newer_version_are_asked_with_what_is_known() -> None:
    row = UserRow(
        id="u",
        parts=(TextPart(text="Hi"),),
        metadata=RowMetadata(history_sequence=0, request={"mode": "plan", "invented": 1}),
    )
    assert StreamRequest.from_row(row) == StreamRequest(text="Hi", mode="plan")
    broken = row.model_copy(
        update={"metadata": RowMetadata(history_sequence=0, request={"temperature": "hot"})}
    )
    assert StreamRequest.from_row(broken) == StreamRequest(text="Hi")
