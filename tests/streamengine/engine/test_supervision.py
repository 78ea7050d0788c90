"""What the close of the app scope does to streams, and to starts that haven't begun."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

import fibers as fb
from fibers.app import AppScope, Shutdown, close_bounded
from streamengine.history.store import IoMode
from streamengine.model import StreamAbortEvent

from .conftest import MakeDesk
from .kit import FINISH, GRACE_SECONDS, WHOLE, WORKSPACE, Desk, Line, Method, Wedged, text

pytestmark = pytest.mark.lifecycle


async def flowing(make: MakeDesk, scope: AppScope, io: IoMode = "inline") -> Desk:
    line = Line()
    d = make(line, scope=scope, io=io)
    await d.start()
    line.give(text("half"))
    await d.idle()
    return d


def aborts(d: Desk) -> list[str | None]:
    return [e.abort_reason for e in d.tape.events if isinstance(e, StreamAbortEvent)]


# ---- a close


@pytest.mark.spec("VA2", "E1")
@pytest.mark.parametrize("io", ["inline", "thread"])
async def test_a_dispose_has_aborted_the_stream_before_its_first_step(
    desk: MakeDesk, io: IoMode
) -> None:
    """The event told, the row committed, the partial gone: other services still work then."""
    scope = AppScope()
    d = await flowing(desk, scope, io=io)
    seen: list[object] = []

    async def first_step() -> None:
        seen.append((d.tape.types[-1], d.disk.answers(), d.disk.partial(), d.is_idle))

    shutdown = Shutdown(scope, [("first", first_step)])
    await d.rt.run(fb.Effect.promise(shutdown.dispose))

    assert seen == [("stream-abort", ["half"], None, True)]
    assert aborts(d) == ["system"]


@pytest.mark.spec("VA7")
async def test_two_streams_are_aborted_in_parallel(desk: MakeDesk) -> None:
    """Two wedged providers cost one grace, not two."""
    scope = AppScope()
    wedged = [Wedged(text("a")), Wedged(text("b"))]
    d = desk(*wedged, scope=scope)
    handles = [await d.start(workspace_id=name) for name in ("w1", "w2")]
    await d.idle()

    closing = d.rt.run_fork(fb.Effect.promise(lambda: close_bounded(scope)))
    await d.pass_time(GRACE_SECONDS)

    assert aborts(d) == ["system", "system"]
    assert {event.message_id for event in d.tape.terminals} == {h.message_id for h in handles}
    for w in wedged:
        w.let_go.set()
    assert await closing is True


@pytest.mark.spec("VA14")
async def test_each_supervised_abort_logs_one_line(desk: MakeDesk) -> None:
    scope = AppScope()
    d = desk(Line(), scope=scope)
    handles = [await d.start(workspace_id=name) for name in ("w1", "w2")]

    with capture_logs() as logs:
        await d.rt.run(scope.close())

    lines = [log for log in logs if log["event"] == "[shutdown] streamManager.abortStream"]
    told = {(line["workspaceId"], line["messageId"]) for line in lines}
    assert told == {("w1", handles[0].message_id), ("w2", handles[1].message_id)}
    assert len(lines) == 2
    assert all(isinstance(line["ms"], int) for line in lines)


@pytest.mark.spec("BT6")
async def test_a_completed_stream_leaves_nothing_in_the_scope(desk: MakeDesk) -> None:
    scope = AppScope()
    d = desk(WHOLE, scope=scope)
    before = scope.finalizer_count
    for number in range(50):
        await d.done(await d.start(f"message {number}"))

    assert scope.finalizer_count == before
    await d.rt.run(scope.close())
    assert aborts(d) == []


@pytest.mark.spec("E6")
async def test_a_close_after_the_loop_and_before_completed_yields_only_the_end(
    desk: MakeDesk,
) -> None:
    scope = AppScope()
    line = Line()
    d = desk(line, scope=scope)
    handle = await d.start()
    gate = d.history.hold("finalize")
    line.give(text("whole"), FINISH)
    line.end()
    await d.idle()

    closing = d.rt.run_fork(scope.close())
    await d.idle()
    assert closing.poll() is None
    gate.go.set()
    await closing

    assert (await d.done(handle)).status == "completed"
    assert [event.type for event in d.tape.terminals] == ["stream-end"]
    assert d.disk.partial() is None


@pytest.mark.spec("E4", "E5")
async def test_a_close_that_meets_a_stop_leaves_it_its_reason(desk: MakeDesk) -> None:
    scope = AppScope()
    d = await flowing(desk, scope)
    gate = d.history.hold("commit_partial")
    stopping = d.rt.run_fork(d.stopping("user"))
    await d.idle()

    closing = d.rt.run_fork(scope.close())
    await d.idle()
    assert closing.poll() is None, "the close waits for the cleanup of the stop"
    gate.go.set()
    await closing
    await stopping

    assert aborts(d) == ["user"]


async def test_a_fault_in_the_cleanup_does_not_keep_the_scope_open(desk: MakeDesk) -> None:
    scope = AppScope()
    d = await flowing(desk, scope)
    methods: list[Method] = ["append_partial", "commit_partial", "release"]
    for method in methods:
        d.history.fail(method, RuntimeError("a fault of the store"))

    assert await d.rt.run(fb.Effect.promise(lambda: close_bounded(scope)))

    assert aborts(d) == ["system"]


async def test_a_stream_of_an_engine_without_a_scope_outlives_every_close(desk: MakeDesk) -> None:
    d = desk(Line())
    handle = await d.start()
    await d.rt.run(AppScope().close())

    assert not await d.is_settled(handle)
    await d.stop("user")


# ---- late


@pytest.mark.spec("VA6")
@pytest.mark.parametrize("io", ["inline", "thread"])
async def test_a_stream_started_after_the_close_is_aborted_at_once(
    desk: MakeDesk, io: IoMode
) -> None:
    scope = AppScope()
    d = desk(WHOLE, scope=scope, io=io)
    await d.rt.run(scope.close())

    handle = await d.start()

    completion = await d.done(handle)
    assert (completion.status, completion.abort_reason) == ("aborted", "system")
    assert d.tape.types == ["stream-abort"]
    assert d.is_idle
    assert d.disk.roles() == ["user"]


@pytest.mark.spec("VA6", "E16")
async def test_a_start_after_the_close_that_is_stopped_too_gives_its_first_reason(
    desk: MakeDesk,
) -> None:
    scope = AppScope()
    d = desk(WHOLE, scope=scope)
    await d.rt.run(scope.close())
    gate = d.history.hold("reserve")
    starting = d.rt.run_fork(d.starting())
    await d.idle()
    stopping = d.rt.run_fork(d.stopping("user"))
    await d.idle()
    gate.go.set()
    await stopping

    assert (await d.done(await starting)).abort_reason == "user"
    assert d.tape.events == []


# ---- before the registration


@pytest.mark.spec("BT6")
@pytest.mark.parametrize("method", ["read", "commit_partial", "append_user", "reserve"])
async def test_a_close_during_a_start_aborts_it_and_waits_for_it(
    desk: MakeDesk, method: Method
) -> None:
    scope = AppScope()
    d = desk(WHOLE, scope=scope)
    gate = d.history.hold(method)
    starting = d.rt.run_fork(d.starting())
    await d.idle()
    assert gate.begun.is_set()

    closing = d.rt.run_fork(scope.close())
    await d.idle()
    assert closing.poll() is None
    gate.go.set()
    await closing

    completion = await d.done(await starting)
    assert (completion.status, completion.abort_reason) == ("aborted", "system")
    assert d.provider.calls == []
    assert d.tape.events == []
    assert d.disk.roles() == ["user"]


@pytest.mark.spec("BT6")
async def test_a_close_aborts_starts_that_wait_for_their_turn_too(desk: MakeDesk) -> None:
    scope = AppScope()
    d = desk(WHOLE, scope=scope)
    gate = d.history.hold("append_user")
    starts = [d.rt.run_fork(d.starting(name)) for name in ("a", "b", "c")]
    await d.idle()

    closing = d.rt.run_fork(scope.close())
    await d.idle()
    gate.go.set()
    await closing

    for start in starts:
        assert (await d.done(await start)).abort_reason == "system"
    assert d.tape.events == []
    assert len(d.disk.rows()) == 3


@pytest.mark.spec("BT6")
async def test_a_start_that_failed_leaves_nothing_in_the_scope(desk: MakeDesk) -> None:
    scope = AppScope()
    d = desk(WHOLE, scope=scope)
    before = scope.finalizer_count
    d.history.fail("append_user")
    for _ in range(3):
        exit_ = await d.rt.run(d.starting().exit())
        assert isinstance(exit_, fb.Failure)
    await d.idle()

    assert scope.finalizer_count == before


@pytest.mark.spec("BT6", "E1")
async def test_a_close_between_registration_and_launch_tells_no_start(desk: MakeDesk) -> None:
    scope = AppScope()
    d = desk(WHOLE, scope=scope)

    async def start_and_close() -> None:
        await d.starting()
        await scope.close()

    await d.rt.run(fb.Effect.promise(start_and_close))

    assert d.tape.types == ["stream-abort"]
    assert aborts(d) == ["system"]
    assert d.is_idle


@pytest.mark.spec("BT6")
async def test_the_caller_may_live_in_the_scope_that_closes(desk: MakeDesk) -> None:
    """A turn does: it is interrupted while its start is guarded and its stream supervised."""
    scope = AppScope()
    d = desk(WHOLE, scope=scope)
    gate = d.history.hold("reserve")

    async def turn() -> None:
        await d.rt.run(d.starting().fork_in(scope))

    await turn()
    await d.idle()
    assert gate.begun.is_set()

    assert await d.rt.run(fb.Effect.promise(lambda: close_bounded(scope)))

    assert d.tape.events == []
    assert d.is_idle


# ---- the occupant


async def test_the_engine_is_told_its_scope_by_the_host_as_well(desk: MakeDesk) -> None:
    """Given to the constructor and again at the start: one finalizer, and a close in time."""
    scope = AppScope()
    d = await flowing(desk, scope)
    before = scope.finalizer_count

    await d.rt.run(d.engine.start(scope))

    assert scope.finalizer_count == before
    assert await d.rt.run(fb.Effect.promise(lambda: close_bounded(scope)))
    assert aborts(d) == ["system"]


@pytest.mark.spec("BT6")
async def test_an_engine_that_gets_its_scope_late_is_supervised_from_then_on(
    desk: MakeDesk,
) -> None:
    scope = AppScope()
    d = desk(Line())
    await d.rt.run(d.engine.start(scope))
    await d.start()

    await d.rt.run(scope.close())

    assert aborts(d) == ["system"]


async def test_what_is_in_flight_is_described(desk: MakeDesk) -> None:
    d = desk(Line())
    handle = await d.start("first")
    gate = d.history.hold("append_user")
    starting = d.rt.run_fork(d.starting("second", "w2"))
    await d.idle()

    about = d.engine.describe()

    assert about["streams"] == [f"{WORKSPACE}/{handle.message_id}"]
    assert about["starting"] == ["w2"]
    gate.go.set()
    await starting


# ---- after a crash


async def test_a_recovery_puts_all_workspaces_in_order_although_one_cannot_be_read(
    desk: MakeDesk, tmp_path: Path
) -> None:
    line = Line()
    crashed = desk(line)
    for workspace_id in ("w1", "w2"):
        await crashed.start(workspace_id=workspace_id)
        line.give(text("half"))
        await crashed.idle()
    chat = crashed.disk.directory("w1") / "chat.jsonl"
    chat.unlink()
    chat.symlink_to(tmp_path / "elsewhere")
    d = desk(WHOLE)

    with capture_logs() as logs:
        await d.rt.run(d.engine.recover())

    assert d.disk.answers("w2") == ["half"]
    assert d.disk.partial("w2") is None
    warned = {log["workspaceId"] for log in logs if log["log_level"] == "warning"}
    assert warned == {"w1"}
