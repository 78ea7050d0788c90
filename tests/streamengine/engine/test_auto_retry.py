"""AutoRetry: failed answers in a running process, interrupted ones at the start of the next."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from structlog.testing import capture_logs

import fibers as fb
from fibers.app import AppScope
from fibers.testing import TestClock
from streamengine import HistoryError
from streamengine.autoretry import AutoRetry
from streamengine.model import (
    AbortReason,
    AssistantRow,
    ErrorPart,
    RowMetadata,
    StreamRequest,
    TextPart,
    ToolPart,
    UserRow,
)
from streamengine.model.note import LastEnd, WorkspaceNote
from streamengine.retry import RetryState

from .kit import FAULT, WHOLE, WORKSPACE, Answer, Desk, Line, make_desk, says, text

BROKEN = says(text("Once "))
REFUSED = says(ErrorPart(error={"message": "no such key", "status": 401}))


@dataclass
class Service:
    """An engine in an app scope, and its retries."""

    desk: Desk
    scope: AppScope
    retries: AutoRetry

    async def recover(self) -> dict[str, str]:
        return dict(await self.desk.rt.run(self.retries.recover()))

    def said(self) -> list[str]:
        return [kind for kind in self.desk.tape.types if kind.startswith("auto-retry")]


async def serve(rt: fb.Runtime, clock: TestClock, state: Path, *answers: Answer) -> Service:
    scope = AppScope()
    desk = make_desk(rt, clock, state, *answers, scope=scope)
    retries = AutoRetry(desk.engine, desk.history, clock=clock)
    await rt.run(retries.start(scope))
    return Service(desk, scope, retries)


# ---- in a running process


@pytest.mark.spec("I10", "E30")
@pytest.mark.parametrize("failing", [BROKEN, says(ErrorPart(error={"status": 500}))])
async def test_a_persons_stop_of_a_pending_retry_holds_after_a_restart(
    rt: fb.Runtime, clock: TestClock, tmp_path: Path, failing: Answer
) -> None:
    s = await serve(rt, clock, tmp_path, failing)
    await s.desk.done(await s.desk.start("Tell me"))
    await rt.run(s.retries.call_off(WORKSPACE))
    await s.scope.close()

    after = await serve(rt, clock, tmp_path, WHOLE)
    assert await after.recover() == {WORKSPACE: "stopped"}
    await after.scope.close()


@pytest.mark.spec("I10", "E30")
@pytest.mark.parametrize("said", ["", "Once upon"])
async def test_a_persons_stop_of_what_was_taken_up_holds_after_a_restart(
    rt: fb.Runtime, clock: TestClock, tmp_path: Path, said: str
) -> None:
    dead = await serve(rt, clock, tmp_path, line := Line())
    await dead.desk.start("Tell me")
    line.give(text(said))
    await dead.desk.idle()
    second = await serve(rt, clock, tmp_path, WHOLE)
    assert await second.recover() == {WORKSPACE: "retry"}
    await rt.run(second.retries.call_off(WORKSPACE))
    await second.scope.close()

    third = await serve(rt, clock, tmp_path, WHOLE)
    assert await third.recover() == {WORKSPACE: "stopped"}
    await third.scope.close()
    await dead.scope.close()


async def test_a_stop_that_cant_be_remembered_is_a_stop_all_the_same(
    rt: fb.Runtime, clock: TestClock, tmp_path: Path
) -> None:
    s = await serve(rt, clock, tmp_path, BROKEN)
    await s.desk.done(await s.desk.start("Tell me"))
    s.desk.history.fail("update_note")

    with capture_logs() as logs:
        await rt.run(s.retries.call_off(WORKSPACE))

    assert any("not remembered" in log["event"] for log in logs)
    await s.desk.pass_time(120)
    assert len(s.desk.provider.calls) == 1
    await s.scope.close()


async def test_a_stop_and_an_opt_out_at_once_are_both_remembered(
    rt: fb.Runtime, clock: TestClock, tmp_path: Path
) -> None:
    s = await serve(rt, clock, tmp_path, Line())
    await s.desk.start()
    await s.desk.idle()
    gate = s.desk.history.hold("update_note")
    stopping = rt.run_fork(s.desk.stopping())
    await gate.begun.wait()
    await rt.run(s.retries.set_enabled(WORKSPACE, False))
    gate.go.set()
    await stopping

    note = await rt.run(s.desk.history.read_note(WORKSPACE))
    assert not note.auto_retry
    assert note.last_end is not None
    assert note.last_end.abort_reason == "user"
    await s.scope.close()


@pytest.mark.parametrize("end", ["success", "a failure for good"])
async def test_nothing_is_kept_of_a_workspace_whose_series_has_ended(
    rt: fb.Runtime, clock: TestClock, tmp_path: Path, end: str
) -> None:
    s = await serve(rt, clock, tmp_path, BROKEN, WHOLE if end == "success" else REFUSED)
    await s.desk.done(await s.desk.start("Tell me"))
    assert s.retries.describe() == {WORKSPACE: "try 1 pending"}
    await s.desk.pass_time(1)
    assert len(s.desk.provider.calls) == 2

    assert s.retries.describe() == {}
    await s.scope.close()


@pytest.mark.spec("I10")
async def test_what_somebody_else_tries_again_is_left_to_them_but_not_after_a_restart(
    rt: fb.Runtime, clock: TestClock, tmp_path: Path
) -> None:
    scope = AppScope()
    desk = make_desk(rt, clock, tmp_path, BROKEN, scope=scope)
    retries = AutoRetry(
        desk.engine,
        desk.history,
        clock=clock,
        tried_elsewhere=lambda event: event.correlation == {"turnId": "t1"},
    )
    await rt.run(retries.start(scope))
    await desk.done(await desk.start("Tell me", correlation={"turnId": "t1"}))
    await desk.pass_time(120)

    assert retries.describe() == {}
    assert len(desk.provider.calls) == 1
    await scope.close()
    after = await serve(rt, clock, tmp_path, WHOLE)
    assert await after.recover() == {WORKSPACE: "retry"}
    await after.scope.close()


@pytest.mark.spec("I10")
async def test_an_answer_that_nobody_waits_for_any_more_is_not_taken_up(
    rt: fb.Runtime, clock: TestClock, tmp_path: Path
) -> None:
    dead = await serve(rt, clock, tmp_path, Line())
    await dead.desk.start("Tell me", correlation={"turnId": "t1"})
    scope = AppScope()
    desk = make_desk(rt, clock, tmp_path, WHOLE, scope=scope)
    retries = AutoRetry(
        desk.engine,
        desk.history,
        clock=clock,
        is_over=lambda row: row.metadata.correlation == {"turnId": "t1"},
    )
    await rt.run(retries.start(scope))

    assert dict(await rt.run(retries.recover())) == {WORKSPACE: "is-over"}
    await desk.pass_time(120)
    assert desk.provider.calls == []
    await scope.close()
    await dead.scope.close()


@pytest.mark.spec("R15", "P20")
async def test_an_answer_that_fails_five_times_is_tried_five_times_with_one_user_row(
    rt: fb.Runtime, clock: TestClock, tmp_path: Path
) -> None:
    s = await serve(rt, clock, tmp_path, *[BROKEN] * 5, WHOLE)
    d = s.desk
    await d.done(await d.start("Tell me", correlation={"turnId": "t"}))
    for seconds in (1, 2, 4, 8, 16):
        assert s.retries.state(WORKSPACE).pending
        await d.pass_time(seconds)
    assert s.said() == ["auto-retry-scheduled", "auto-retry-starting"] * 5
    assert d.disk.roles().count("user") == 1
    assert d.disk.answers()[-1].endswith("Hello there")
    assert {c.request.text for c in d.provider.calls} == {"Tell me"}
    assert [c.request.correlation for c in d.provider.calls] == [{"turnId": "t"}] * 6
    assert s.retries.state(WORKSPACE) == RetryState(0, pending=False, enabled=True)
    assert s.retries.describe() == {}
    await s.scope.close()


@pytest.mark.spec("E30")
@pytest.mark.parametrize("reason", ["user", "startup", "system"])
async def test_no_stop_schedules_a_retry(
    rt: fb.Runtime, clock: TestClock, tmp_path: Path, reason: AbortReason
) -> None:
    s = await serve(rt, clock, tmp_path, Line(), WHOLE)
    await s.desk.start("Tell me")
    await s.desk.idle()
    await s.desk.stop(reason)
    await s.desk.pass_time(120)
    assert s.said() == []
    assert len(s.desk.provider.calls) == 1
    await s.scope.close()


async def test_a_new_message_takes_the_place_of_a_pending_retry(
    rt: fb.Runtime, clock: TestClock, tmp_path: Path
) -> None:
    s = await serve(rt, clock, tmp_path, BROKEN, WHOLE)
    d = s.desk
    await d.done(await d.start("Tell me"))
    await d.pass_time(0.5)
    await d.done(await d.start("Something else"))
    await d.pass_time(120)
    assert len(d.provider.calls) == 2
    assert d.disk.roles() == ["user", "assistant", "user", "assistant"]
    await s.scope.close()


async def test_a_persons_stop_calls_off_a_pending_retry(
    rt: fb.Runtime, clock: TestClock, tmp_path: Path
) -> None:
    s = await serve(rt, clock, tmp_path, BROKEN, WHOLE)
    d = s.desk
    await d.done(await d.start("Tell me"))
    await d.idle()
    await rt.run(s.retries.call_off(WORKSPACE))
    await rt.run(s.retries.call_off(WORKSPACE))
    await d.pass_time(120)
    assert s.said() == ["auto-retry-scheduled", "auto-retry-abandoned"]
    assert len(d.provider.calls) == 1
    await s.scope.close()


async def test_a_stop_of_a_try_ends_the_series(
    rt: fb.Runtime, clock: TestClock, tmp_path: Path
) -> None:
    s = await serve(rt, clock, tmp_path, BROKEN, Line(), WHOLE)
    d = s.desk
    await d.done(await d.start("Tell me"))
    await d.pass_time(1)
    assert d.engine.is_streaming(WORKSPACE)
    await d.stop("user")
    await d.pass_time(120)
    assert len(d.provider.calls) == 2
    assert s.retries.describe() == {}
    await s.scope.close()


async def test_a_shutdown_ends_a_pending_retry(
    rt: fb.Runtime, clock: TestClock, tmp_path: Path
) -> None:
    s = await serve(rt, clock, tmp_path, BROKEN, WHOLE)
    await s.desk.done(await s.desk.start("Tell me"))
    await s.scope.close()
    await s.desk.pass_time(120)
    assert len(s.desk.provider.calls) == 1


async def test_an_opt_out_is_kept_for_the_next_process(
    rt: fb.Runtime, clock: TestClock, tmp_path: Path
) -> None:
    s = await serve(rt, clock, tmp_path, BROKEN, WHOLE)
    d = s.desk
    await rt.run(s.retries.set_enabled(WORKSPACE, False))
    await d.done(await d.start("Tell me"))
    await d.pass_time(120)
    assert s.said() == []
    await s.scope.close()

    after = await serve(rt, clock, tmp_path, BROKEN, WHOLE)
    assert await after.recover() == {WORKSPACE: "opted-out"}
    await after.desk.done(await after.desk.start("Once more"))
    await after.desk.pass_time(120)
    assert after.said() == []
    await rt.run(after.retries.set_enabled(WORKSPACE, True))
    await after.scope.close()
    last = await serve(rt, clock, tmp_path, WHOLE)
    assert await last.recover() == {WORKSPACE: "retry"}
    await last.scope.close()


# ---- at the start of the next


@pytest.mark.spec("I10")
@pytest.mark.parametrize(("reason", "verdict"), [("system", "retry"), ("user", "stopped")])
async def test_what_a_shutdown_cut_off_is_taken_up_and_what_a_person_stopped_is_not(
    rt: fb.Runtime, clock: TestClock, tmp_path: Path, reason: str, verdict: str
) -> None:
    s = await serve(rt, clock, tmp_path, line := Line())
    await s.desk.start("Tell me")
    line.give(text("Once upon"))
    await s.desk.idle()
    if reason == "user":
        await s.desk.stop("user")
    await s.scope.close()

    after = await serve(rt, clock, tmp_path, WHOLE)
    assert await after.recover() == {WORKSPACE: verdict}
    await after.desk.pass_time(1)
    expected = ["Once upon", "Hello there"] if verdict == "retry" else ["Once upon"]
    assert after.desk.disk.answers() == expected
    assert after.desk.disk.roles().count("user") == 1
    await after.scope.close()


@pytest.mark.spec("I10")
async def test_what_a_crash_cut_off_is_taken_up(
    rt: fb.Runtime, clock: TestClock, tmp_path: Path
) -> None:
    dead = await serve(rt, clock, tmp_path, line := Line())
    await dead.desk.start("Tell me")
    line.give(text("Once upon"))
    await dead.desk.idle()

    # The files as they are now, with a process that knows nothing of the first.
    after = await serve(rt, clock, tmp_path, WHOLE)
    assert await after.recover() == {WORKSPACE: "retry"}
    await after.desk.pass_time(1)
    assert after.desk.disk.answers() == ["Once upon", "Hello there"]
    await after.scope.close()
    await dead.scope.close()


@pytest.mark.spec("I10", "E30")
@pytest.mark.parametrize("said", ["", "Once upon"])
@pytest.mark.parametrize("verdict", ["stopped", "not-retryable"])
async def test_a_further_try_that_a_crash_cut_off_is_taken_up_whatever_the_first_came_to(
    rt: fb.Runtime, clock: TestClock, tmp_path: Path, verdict: str, said: str
) -> None:
    """The try dies before its first word, so that nothing on disk but the note tells of it."""
    first, again = Line(), Line()
    dead = await serve(rt, clock, tmp_path, first, again)
    handle = await dead.desk.start("Tell me")
    first.give(text(said))
    await dead.desk.idle()
    if verdict == "stopped":
        await dead.desk.stop("user")
    else:
        first.give(ErrorPart(error={"message": "no such key", "status": 401}))
    assert (await dead.desk.done(handle)).status in ("aborted", "failed")
    left = await serve(rt, clock, tmp_path, WHOLE)
    assert await left.recover() == {WORKSPACE: verdict}
    await rt.run(dead.desk.engine.resume_stream(WORKSPACE))
    await dead.desk.idle()

    # The files as they are now, with a process that knows nothing of the first.
    after = await serve(rt, clock, tmp_path, WHOLE)
    assert await after.recover() == {WORKSPACE: "retry"}
    await after.scope.close()
    await left.scope.close()
    await dead.scope.close()


@pytest.mark.spec("I10")
async def test_a_failure_that_another_try_cant_mend_is_left_alone_by_the_next_process(
    rt: fb.Runtime, clock: TestClock, tmp_path: Path
) -> None:
    s = await serve(rt, clock, tmp_path, says(text("Well")), WHOLE)
    note = WorkspaceNote(
        last_end=LastEnd(message_id="a_1", after_sequence=0, error_type="authentication")
    )
    user = UserRow(id="u_1", parts=(TextPart(text="Hi"),))
    await rt.run(s.desk.history.append_user(WORKSPACE, user))
    await rt.run(s.desk.history.update_note(WORKSPACE, lambda _: note))
    assert await s.recover() == {WORKSPACE: "not-retryable"}
    await s.desk.pass_time(120)
    assert s.desk.provider.calls == []
    await s.scope.close()


async def test_an_unanswered_question_is_remembered_over_restarts(
    rt: fb.Runtime, clock: TestClock, tmp_path: Path
) -> None:
    """The partial that holds it makes no row (P7), and is gone after the first load."""
    s = await serve(rt, clock, tmp_path, WHOLE)
    history = s.desk.history
    user = UserRow(id="u_1", parts=(TextPart(text="Hi"),))
    await rt.run(history.append_user(WORKSPACE, user))
    sequence = await rt.run(history.reserve(WORKSPACE, "a_1"))
    question = ToolPart(tool_call_id="c", tool_name="ask_user", state="input-available")
    partial = AssistantRow(
        id="a_1",
        parts=(question,),
        metadata=RowMetadata(history_sequence=sequence, partial=True),
    )
    await rt.run(history.write_partial(WORKSPACE, partial, durable=True))
    await s.scope.close()
    for _ in range(2):
        after = await serve(rt, clock, tmp_path, WHOLE)
        assert await after.recover() == {WORKSPACE: "asks-a-person"}
        await after.desk.pass_time(120)
        assert after.desk.provider.calls == []
        await after.scope.close()


async def test_an_answer_that_somebody_began_meanwhile_is_not_begun_again(
    rt: fb.Runtime, clock: TestClock, tmp_path: Path
) -> None:
    s = await serve(rt, clock, tmp_path, BROKEN)
    await rt.run(s.retries.set_enabled(WORKSPACE, True))
    await s.desk.done(await s.desk.start("Tell me"))
    await s.scope.close()
    after = await serve(rt, clock, tmp_path, Line())
    await after.desk.start("Something else")
    assert await after.recover() == {WORKSPACE: "nothing-interrupted"}
    await after.desk.pass_time(120)
    assert len(after.desk.provider.calls) == 1
    await after.scope.close()


async def test_a_history_that_cant_be_read_is_tried_again_and_then_given_up(
    rt: fb.Runtime, clock: TestClock, tmp_path: Path
) -> None:
    s = await serve(rt, clock, tmp_path, BROKEN)
    await s.desk.done(await s.desk.start("Tell me"))
    await s.scope.close()

    after = await serve(rt, clock, tmp_path, WHOLE)
    after.desk.history.fail("load", HistoryError("io", "/state", "not now", "Wait."))
    assert await after.recover() == {}
    await after.desk.pass_time(1)
    after.desk.history.mend()
    await after.desk.pass_time(1)
    assert after.desk.provider.calls == []
    await after.desk.pass_time(1)
    assert after.said() == ["auto-retry-scheduled"]
    await after.scope.close()

    gone = await serve(rt, clock, tmp_path, WHOLE)
    gone.desk.history.fail("load", FAULT)
    assert await gone.recover() == {}
    await gone.desk.pass_time(600)
    assert gone.desk.history.calls.count("load") == 1 + 3
    assert gone.said() == []
    await gone.scope.close()


@pytest.mark.parametrize("who", ["engine", "retries", "retries, at their second try"])
async def test_what_was_found_is_logged_once_in_the_same_words(
    rt: fb.Runtime, clock: TestClock, tmp_path: Path, who: str
) -> None:
    dead = await serve(rt, clock, tmp_path, line := Line())
    await dead.desk.start("Tell me")
    line.give(text("Once upon"))
    await dead.desk.idle()

    after = await serve(rt, clock, tmp_path, WHOLE)
    with capture_logs() as logs:
        if who == "engine":
            await rt.run(after.desk.engine.recover())
        elif who == "retries":
            await after.recover()
        else:
            after.desk.history.fail("load", HistoryError("io", "/state", "not now", "Wait."))
            await after.recover()
            after.desk.history.mend()
            await after.desk.pass_time(1)
    found = [log for log in logs if log["event"] == "an interrupted message was found"]
    assert [(log["workspaceId"], log["outcome"]) for log in found] == [(WORKSPACE, "appended")]
    assert any("not recovered" in log["event"] for log in logs) == ("second" in who)
    await after.scope.close()
    await dead.scope.close()


async def test_workspaces_that_cant_be_listed_fail_the_recovery(
    rt: fb.Runtime, clock: TestClock, tmp_path: Path
) -> None:
    s = await serve(rt, clock, tmp_path, WHOLE)
    s.desk.history.fail("workspaces")
    with pytest.raises(HistoryError):
        await s.recover()
    await s.scope.close()


async def test_the_request_of_a_retry_after_a_restart_is_the_first_ones(
    rt: fb.Runtime, clock: TestClock, tmp_path: Path
) -> None:
    s = await serve(rt, clock, tmp_path, Line())
    request = StreamRequest(text="Tell me", model="m-1", correlation={"turnId": "t"})
    await rt.run(s.desk.engine.start_stream(WORKSPACE, request))
    await s.desk.idle()
    await s.scope.close()
    after = await serve(rt, clock, tmp_path, WHOLE)
    await after.recover()
    await after.desk.pass_time(1)
    (call,) = after.desk.provider.calls
    assert (call.request.model, call.request.correlation) == ("m-1", {"turnId": "t"})
    await after.scope.close()
