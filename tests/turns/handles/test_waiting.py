"""Waiting for a turn, interrupting it, and the queue of a workspace."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from freezegun import freeze_time

import fibers as fb
from fibers import Effect
from fibers.app import AppScope
from fibers.testing import assert_no_leaks
from streamengine import SendError
from tests.streamengine.engine.kit import FINISH, TEXT_END, WHOLE, Line, text
from turns import TurnError, TurnHandle, TurnRecord
from turns.handles.plain import PlainTurn
from turns.model.cause import StaleRestart

from .conftest import MakeProcess
from .kit import OWNER, STORE_FAULT, WORKSPACE, Conductor, Process, on_disk


async def running(process: MakeProcess, **options: Any) -> tuple[Process, TurnHandle, Line]:
    line = Line()
    p = await process(line, WHOLE, **options)
    handle = await p.create()
    line.give(text("One, two"))
    await p.idle()
    return p, handle, line


def error_of(fiber: fb.Fiber[Any, TurnError]) -> TurnError:
    exit_ = fiber.poll()
    assert isinstance(exit_, fb.Failure)
    error = exit_.failure().squash()
    assert isinstance(error, TurnError)
    return error


def holding(released: list[str | None]) -> Any:
    def opened(*given: Any) -> PlainTurn:
        turn = PlainTurn(*given)
        fb.run_sync(
            turn.scope.add_finalizer(lambda _exit: Effect.sync(lambda: released.append(turn.end)))
        )
        return turn

    return opened


# ---- waiters


@pytest.mark.spec("T10")
async def test_who_waits_for_a_settled_turn_has_its_answer_at_once(process: MakeProcess) -> None:
    p = await process(WHOLE)
    handle = await p.create()

    record = await p.rt.run(p.turns.wait(handle.handle_id, timeout=0))

    assert record.final_message == "Hello there"


@pytest.mark.spec("T10")
async def test_a_waiter_that_comes_while_the_turn_settles_is_answered(
    process: MakeProcess,
) -> None:
    """At every step of the settlement somebody comes: before the write, in it, right after it, and
    when the first waiter wakes.
    """
    p, handle, _ = await running(process)
    waiters = [p.waiting(handle)]
    p.store.before_write = lambda _record: Effect.sync(lambda: waiters.append(p.waiting(handle)))
    gate = p.store.hold(lambda _record: True)
    p.turns.observe(lambda _record: waiters.append(p.waiting(handle)))
    waiters[0].add_observer(lambda _exit: waiters.append(p.waiting(handle)))
    settling = p.rt.run_fork(p.turns.settlement.settle(handle.handle_id, StaleRestart()))
    await gate.begun.wait()
    waiters.append(p.waiting(handle))
    gate.go.set()
    await p.idle()

    assert settling.poll() is not None
    assert len(waiters) == 5
    assert [error_of(waiter).kind for waiter in waiters] == ["interrupted"] * 5


@pytest.mark.spec("T11")
@pytest.mark.parametrize("how", ["timeout", "interrupt", "resolution"])
async def test_a_waiter_is_gone_whatever_ended_its_wait(process: MakeProcess, how: str) -> None:
    p, handle, line = await running(process)
    waiters = p.turns._waiters
    waiter = p.waiting(handle, timeout=30)
    await p.idle()
    assert waiters.count(handle.handle_id) == 1

    match how:
        case "timeout":
            await p.desk.pass_time(30)
            assert error_of(waiter).kind == "timeout"
        case "interrupt":
            await p.rt.run(waiter.interrupt())
        case _:
            line.give(TEXT_END, FINISH)
            line.end()
            await p.idle()

    assert waiters.count(handle.handle_id) == 0
    assert waiters._waiting == {}


@pytest.mark.spec("T11", "T14")
@pytest.mark.parametrize("asked", ["before", "after"])
async def test_nobody_waits_for_a_turn_that_the_close_of_the_scope_leaves_running(
    process: MakeProcess, asked: str
) -> None:
    """A server that goes must not hold its clients for their whole timeout."""
    p, handle, _ = await running(process)
    if asked == "after":
        await p.crash()
    waiter = p.waiting(handle)
    await p.idle()
    if asked == "before":
        assert waiter.poll() is None
        await p.crash()
        await p.idle()

    error = error_of(waiter)

    assert error.kind == "shutting_down"
    assert error.way_out
    assert p.turns._waiters.count(handle.handle_id) == 0


async def test_who_waits_for_a_settled_turn_is_answered_after_the_close_too(
    process: MakeProcess,
) -> None:
    p = await process(WHOLE)
    handle = await p.create()
    await p.idle()
    await p.crash()

    record = await p.rt.run(p.turns.wait(handle.handle_id))

    assert record.status == "completed"


async def test_the_close_of_a_scope_that_a_manager_has_left_ends_no_wait(
    process: MakeProcess, rt: fb.Runtime
) -> None:
    p = await process(Line(), unstarted=True)
    first, p.scope = p.scope, AppScope()
    await rt.run(p.turns.start(p.scope))
    waiter = p.waiting(await p.create())

    await rt.run(first.close(reason="system"))
    await p.idle()

    assert waiter.poll() is None


@pytest.mark.spec("T11")
@pytest.mark.parametrize("options", [{}, {"timeout": timedelta(minutes=2)}, {"timeout": 120}])
async def test_a_wait_that_is_too_long_changes_nothing(
    process: MakeProcess, options: dict[str, Any]
) -> None:
    p, handle, line = await running(process)
    before = await p.get(handle)
    waiter = p.waiting(handle, **options)

    await p.desk.pass_time(119)
    assert waiter.poll() is None
    await p.desk.pass_time(1)

    assert "Timed out waiting for workspace turn" in str(error_of(waiter))
    assert await p.get(handle) == before
    line.give(TEXT_END, FINISH)
    line.end()
    assert await p.status(handle) == "completed"


async def test_nobody_waits_for_a_turn_that_is_not_there(process: MakeProcess) -> None:
    p = await process()

    with pytest.raises(TurnError, match="not found or out of scope") as raised:
        await p.rt.run(p.turns.wait("wst_x"))

    assert raised.value.kind == "not_found"


# ---- interrupts


@pytest.mark.spec("T18")
async def test_an_interrupt_is_on_disk_before_the_stream_is_stopped(
    process: MakeProcess, tmp_path: Path
) -> None:
    p, handle, line = await running(process)
    stored: list[str] = []
    p.desk.tape.on_event = lambda _event: stored.append(on_disk(tmp_path, handle)["status"])

    record = await p.rt.run(p.turns.interrupt(handle.handle_id, by="ada"))

    assert (record.status, record.cause) == ("interrupted", "explicit-interrupt")
    assert record.evidence == {"by": "ada"}
    assert stored == ["interrupted"]
    [abort] = p.desk.tape.terminals
    assert getattr(abort, "abort_reason", None) == "user"
    assert not p.desk.engine.is_streaming(WORKSPACE)
    await p.idle()
    assert line.is_closed


@pytest.mark.spec("T18")
async def test_an_interrupt_that_cant_be_stored_stops_nothing(process: MakeProcess) -> None:
    p, handle, line = await running(process)
    p.store.failing = STORE_FAULT

    with pytest.raises(TurnError, match="the disk says no"):
        await p.rt.run(p.turns.interrupt(handle.handle_id, by="ada"))

    assert p.desk.engine.is_streaming(WORKSPACE)
    p.store.failing = None
    line.give(TEXT_END, FINISH)
    line.end()
    assert await p.status(handle) == "completed"


@pytest.mark.spec("T18")
@pytest.mark.parametrize("before", ["interrupted", "completed"])
async def test_an_interrupt_of_a_settled_turn_changes_nothing(
    process: MakeProcess, before: str
) -> None:
    p, handle, line = await running(process)
    if before == "completed":
        line.give(TEXT_END, FINISH)
        line.end()
    else:
        await p.rt.run(p.turns.interrupt(handle.handle_id, by="ada"))
    first = await p.get(handle)
    writes = len(p.store.written)
    other = await p.stream("Something else")

    again = await p.rt.run(p.turns.interrupt(handle.handle_id, by="grace"))

    assert again == first
    assert len(p.store.written) == writes
    assert (await p.desk.done(other)).status == "completed"


@pytest.mark.spec("T18", "T8")
async def test_a_late_end_of_its_own_does_not_undo_an_interrupt(process: MakeProcess) -> None:
    p, handle, line = await running(process)
    line.give(TEXT_END, FINISH)
    gate = p.desk.history.hold("finalize")
    line.end()
    await gate.begun.wait()
    interrupting = p.rt.run_fork(p.turns.interrupt(handle.handle_id, by="ada"))
    await asyncio.sleep(0)
    gate.go.set()
    await p.idle()

    assert interrupting.poll() is not None
    assert await p.cause(handle) == "explicit-interrupt"


async def test_an_interrupt_stops_no_stream_of_somebody_else(process: MakeProcess) -> None:
    p, handle, _ = await running(process)
    theirs = Line()
    p.desk.provider.answers[1] = theirs
    stream = await p.stream("I do it myself")

    await p.rt.run(p.turns.interrupt(handle.handle_id, by="ada"))
    await p.idle()

    assert p.desk.engine.is_streaming(WORKSPACE)
    theirs.give(text("Done"), TEXT_END, FINISH)
    theirs.end()
    assert (await p.desk.done(stream)).status == "completed"


async def test_an_interrupt_of_a_start_ends_it(process: MakeProcess) -> None:
    p = await process(WHOLE)
    gate = p.desk.history.hold("append_user")
    creating = p.turns.create_turn(owner=OWNER, workspace_id=WORKSPACE, prompt="Count them")
    handle = await p.rt.run(creating)
    await gate.begun.wait()

    interrupting = p.rt.run_fork(p.turns.interrupt(handle.handle_id, by="ada"))
    await asyncio.sleep(0)
    gate.go.set()
    await p.idle()

    assert interrupting.poll() is not None
    assert await p.cause(handle) == "explicit-interrupt"
    assert p.desk.tape.terminals == []
    assert p.turns.describe() == {"running": [], "queued": []}


@pytest.mark.parametrize("by", ["", "  ", None])
async def test_an_interrupt_says_by_whom(process: MakeProcess, by: Any) -> None:
    p, handle, _ = await running(process)

    with pytest.raises(TurnError, match="invalid_cause"):
        await p.rt.run(p.turns.interrupt(handle.handle_id, by=by))

    assert await p.status(handle) == "running"


async def test_a_turn_that_was_interrupted_in_the_queue_is_not_said_to_wait(
    process: MakeProcess, rt: fb.Runtime
) -> None:
    line = Line()
    p = await process(line)
    await p.create()
    second, third = await p.create(), await p.create()

    await rt.run(p.turns.interrupt(second.handle_id, by="ada"))

    assert p.turns.describe()["queued"] == [third.handle_id]
    await rt.run(p.turns.interrupt(third.handle_id, by="ada"))
    line.give(text("All"), TEXT_END, FINISH)
    line.end()
    await p.idle()
    assert p.turns.describe() == {"running": [], "queued": []}
    assert p.turns._running.places._waiting == {}


async def test_an_interrupt_of_a_queued_turn_keeps_it_from_beginning(
    process: MakeProcess,
) -> None:
    p, first, line = await running(process)
    second = await p.create("Later")

    await p.rt.run(p.turns.interrupt(second.handle_id, by="ada"))
    line.give(TEXT_END, FINISH)
    line.end()

    assert await p.status(first) == "completed"
    assert await p.status(second) == "interrupted"
    assert len(p.desk.provider.calls) == 1


# ---- creating


async def test_turns_of_a_workspace_run_one_after_the_other(process: MakeProcess) -> None:
    p, first, line = await running(process)
    second = await p.create("Then this")
    elsewhere = await p.create("Meanwhile", "w2")
    assert await p.status(second) == "queued"
    assert await p.status(elsewhere) == "completed"
    described = p.turns.describe()
    assert described == {
        "running": [f"{WORKSPACE}/{first.handle_id}"],
        "queued": [second.handle_id],
    }

    line.give(TEXT_END, FINISH)
    line.end()

    assert [await p.status(first), await p.status(second)] == ["completed", "completed"]


async def test_the_record_is_on_disk_before_the_handle_is_given(
    process: MakeProcess, tmp_path: Path
) -> None:
    p = await process(WHOLE)
    creating = p.turns.create_turn(owner=OWNER, workspace_id=WORKSPACE, prompt="Count them")

    with freeze_time("2026-05-01T10:00:00Z", real_asyncio=True):
        handle = await p.rt.run(creating)
        stored = on_disk(tmp_path, handle)

    assert stored["prompt"] == "Count them"
    assert stored["createdAt"] == "2026-05-01T10:00:00Z"
    assert stored["attentionPolicy"] == "blocking_until_terminal"


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        ({"owner": "../up"}, "invalid_id"),
        ({"workspace_id": ""}, "invalid_id"),
        ({"prompt": " \n"}, "empty_message"),
        ({"attention": "shout"}, "invalid_attention"),
    ],
)
async def test_what_cant_be_a_turn_is_refused_and_leaves_nothing(
    process: MakeProcess, tmp_path: Path, wrong: dict[str, Any], kind: str
) -> None:
    p = await process(WHOLE)
    given: dict[str, Any] = {"owner": OWNER, "workspace_id": WORKSPACE, "prompt": "Hi", **wrong}

    with pytest.raises(SendError) as raised:
        await p.rt.run(p.turns.create_turn(**given))

    assert raised.value.kind == kind
    assert await p.rt.run(p.turns.list()) == []
    assert not (tmp_path / "workspaces" / OWNER).exists()


async def test_a_turn_that_cant_be_stored_is_none(process: MakeProcess) -> None:
    p = await process(WHOLE)
    p.store.failing = STORE_FAULT

    with pytest.raises(SendError, match="the disk says no"):
        await p.create()

    p.store.failing = None
    assert await p.rt.run(p.turns.list()) == []
    assert p.desk.provider.calls == []


async def test_into_a_closed_scope_no_turn_is_created(process: MakeProcess) -> None:
    p = await process(WHOLE)
    await p.crash()

    with pytest.raises(SendError) as raised:
        await p.create()

    assert raised.value.kind == "shutting_down"


async def test_records_are_listed_by_owner_the_oldest_first(process: MakeProcess) -> None:
    p = await process(WHOLE)
    first = await p.create("One")
    second = await p.create("Two", "w2", owner="somebody")
    third = await p.create("Three")

    async def listed(**options: Any) -> list[str]:
        return [r.handle_id for r in await p.rt.run(p.turns.list(**options))]

    assert await listed() == [first.handle_id, second.handle_id, third.handle_id]
    assert await listed(owner=OWNER) == [first.handle_id, third.handle_id]
    assert await listed(owner="nobody") == []


# ---- what is released


@pytest.mark.spec("O3", "O14")
async def test_what_a_turn_holds_is_released_with_it(process: MakeProcess) -> None:
    """And an interrupt is no teardown: its process stays, and it will never complete."""
    conductor = Conductor()
    conductor.more = True
    released: list[str | None] = []
    p = await process(Line(), conductor=conductor, open_turn=holding(released))
    handle = await p.create()
    assert released == []

    await p.rt.run(p.turns.interrupt(handle.handle_id, by="ada"))
    await p.idle()

    assert released == ["interrupted"]


@pytest.mark.parametrize(
    ("how", "end"), [("ends", "completed"), ("fails", "errored"), ("shutdown", "torn-down")]
)
async def test_how_a_turn_ends_for_what_it_holds(process: MakeProcess, how: str, end: str) -> None:
    released: list[str | None] = []
    line = Line()
    p = await process(line, open_turn=holding(released))
    await p.create()
    if how == "shutdown":
        await p.crash()
    elif how == "ends":
        line.give(text("Done"), TEXT_END, FINISH)
        line.end()
    else:
        line.fail(OSError("gone"))
    await p.idle()

    assert released == [end]


async def test_a_runner_that_does_not_end_is_stopped_after_its_grace(
    process: MakeProcess,
) -> None:
    p = await process(WHOLE, conductor=Conductor())
    handle = await p.create()
    assert await p.status(handle) == "completed"
    assert p.turns.describe()["running"] == [f"{WORKSPACE}/{handle.handle_id}"]

    await p.desk.pass_time(5)

    assert p.turns.describe()["running"] == []


@pytest.mark.spec("T11", "T14")
async def test_who_waits_at_a_shutdown_is_told_of_it(process: MakeProcess) -> None:
    """Also who comes after it: nothing settles here any more."""
    p, handle, _ = await running(process)
    waiters = [p.waiting(handle)]
    await p.idle()

    await p.crash()
    waiters.append(p.waiting(handle))
    await p.idle()

    for error in map(error_of, waiters):
        assert (error.kind, handle.handle_id in error.message) == ("shutting_down", True)
        assert error.way_out
    assert p.turns._waiters.count(handle.handle_id) == 0
    assert p.store.statuses(handle.handle_id)[-1] == "running"


async def test_a_hundred_turns_leave_nothing_behind(process: MakeProcess) -> None:
    p = await process(WHOLE)
    await p.create("Warm up", "w0")
    with assert_no_leaks("fibers", "tasks", "threads"):
        handles = [await p.create("Count", f"w{n % 7}") for n in range(100)]
        await p.idle()

    assert {await p.status(handle) for handle in handles} == {"completed"}
    assert p.turns.describe() == {"running": [], "queued": []}
    assert p.turns._waiters._waiting == {}
    assert len(p.turns.settlement._book.locks) == 0


@pytest.mark.parametrize("call", ["steer", "answer_permission", "spawn_subturn", "finish"])
async def test_what_the_runner_does_not_offer_is_said(process: MakeProcess, call: str) -> None:
    p, handle, _ = await running(process)
    asked: dict[str, Effect[Any, TurnError]] = {
        "steer": p.turns.steer(handle.handle_id, "left"),
        "answer_permission": p.turns.answer_permission(handle.handle_id, "q1", True),
        "spawn_subturn": p.turns.spawn_subturn(handle.handle_id, {}),
        "finish": p.turns.finish(handle.handle_id, hard=True),
    }

    with pytest.raises(TurnError) as raised:
        await p.rt.run(asked[call])

    assert raised.value.kind == "not_supported"
    assert raised.value.way_out


@pytest.mark.spec("T21")
async def test_a_workspace_is_removed_after_what_the_turn_held_in_it(
    process: MakeProcess,
) -> None:
    log: list[str | None] = []

    def dispose(_record: TurnRecord) -> Effect[object, Exception]:
        return Effect.sync(lambda: log.append("workspace"))

    conductor = Conductor()
    p = await process(WHOLE, conductor=conductor, open_turn=holding(log), dispose=dispose)
    handle = await p.create(disposable=True)
    assert await p.status(handle) == "completed"
    assert log == []

    conductor.end()
    await p.idle()

    assert log == ["completed", "workspace"]


@pytest.mark.spec("O1")
async def test_what_a_factory_puts_beside_its_turn_is_released_too(process: MakeProcess) -> None:
    released: list[str] = []

    def opened(*about: Any) -> PlainTurn:
        scope: fb.Scope = about[-1]
        fb.run_sync(scope.add_finalizer(lambda _exit: released.append("beside")))
        turn = PlainTurn(*about)
        fb.run_sync(turn.scope.add_finalizer(lambda _exit: released.append("held")))
        return turn

    p = await process(WHOLE, open_turn=opened)
    await p.create()

    assert released == ["held", "beside"]


# ---- the words


@pytest.mark.parametrize("message", ["none runs", "none runs."])
def test_an_error_and_its_way_out_are_two_sentences(message: str) -> None:
    assert str(TurnError("kind", message, "Start one.")) == "kind: none runs. Start one."
    assert str(TurnError("kind", "none runs")) == "kind: none runs"
