"""What a restart makes of turns, and what a pending retry means for them."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

import pytest
from freezegun import freeze_time
from structlog.testing import capture_logs

import fibers as fb
from fibers import Effect
from streamengine import SendError
from streamengine.model import ErrorPart
from tests.streamengine.engine.kit import FINISH, TEXT_END, WHOLE, Answer, Line, says, text
from turns import FileTurnStore, OpenTurn, TurnError, TurnHandle, TurnRecord, TurnRunner
from turns.handles.aftermath import REMOVAL_SECONDS
from turns.handles.streak import streak_of

from .conftest import MakeProcess
from .kit import OWNER, WORKSPACE, Conductor, Process, correlation, on_disk

BROKEN: Answer = says(text("Once "))
"""Ends without an end: tried again."""
REFUSED: Answer = says(ErrorPart(error={"message": "no such key", "status": 401}))


async def killed(
    process: MakeProcess, *answers: Answer, said: str = "One, two", **options: Any
) -> tuple[Process, TurnHandle]:
    """A process that dies with a turn in the middle of its answer: nothing more of it happens."""
    line = Line()
    p = await process(*(answers or (line,)), **options)
    handle = await p.create(attention="notify", disposable=True)
    line.give(text(said))
    await p.idle()
    return p, handle


# ---- reconciliation


@pytest.mark.spec("T16", "R19")
@pytest.mark.parametrize("how", ["shutdown", "kill"])
async def test_a_turn_without_a_final_answer_is_interrupted_after_a_restart(
    process: MakeProcess, tmp_path: Path, how: str
) -> None:
    before, handle = await killed(process)
    if how == "shutdown":
        await before.crash()

    after = await process(WHOLE)

    record = await after.get(handle)
    assert (record.status, record.cause) == ("interrupted", "stale-restart")
    assert "after a restart" in (record.error or "")
    assert on_disk(tmp_path, handle)["cause"] == "stale-restart"
    waiter = after.waiting(handle)
    await after.idle()
    assert isinstance(waiter.poll(), fb.Failure)


@pytest.mark.spec("T16", "T22")
async def test_a_turn_whose_history_is_gone_is_interrupted_and_its_workspace_goes_on(
    process: MakeProcess, tmp_path: Path
) -> None:
    before, handle = await killed(process)
    await before.crash()
    shutil.rmtree(tmp_path / "workspaces" / WORKSPACE)

    after = await process(WHOLE)
    further = await after.create("Again")

    record = await after.get(handle)
    assert (record.status, record.cause) == ("interrupted", "stale-restart")
    assert await after.status(further) == "completed"


@pytest.mark.spec("T16")
async def test_a_turn_whose_final_answer_is_in_the_history_is_completed_after_a_restart(
    process: MakeProcess,
) -> None:
    """It died between the row of the answer and the record of the turn."""
    line = Line()
    before = await process(line)
    handle = await before.create()
    before.store.dies = lambda _record: True
    line.give(text("All of them"), TEXT_END, FINISH)
    line.end()
    await before.idle()

    after = await process()

    record = await after.get(handle)
    assert (record.status, record.cause) == ("completed", "stale-history-recovery")
    assert record.final_message == "All of them"
    assert record.evidence == {"messageId": record.final_message_ref}


@pytest.mark.spec("T16")
@pytest.mark.parametrize("last", ["tool-calls", "a question", "an answer of somebody else"])
async def test_what_is_no_final_answer_of_the_turn_does_not_complete_it(
    process: MakeProcess, last: str
) -> None:
    conductor = Conductor()
    conductor.more = True
    tool_step = says(
        text("Let me see"), TEXT_END, FINISH.model_copy(update={"finish_reason": last})
    )
    before = await process(
        tool_step if last == "tool-calls" else Line(), Line(), conductor=conductor
    )
    handle = await before.create()
    if last == "an answer of somebody else":
        before.desk.provider.answers[1] = WHOLE
        before.store.dies = lambda _record: True
        await before.desk.done(await before.stream("I do it myself"))

    after = await process()

    assert await after.cause(handle) == "stale-restart"


@pytest.mark.spec("T22")
async def test_a_history_that_cant_be_read_at_the_restart_completes_nothing(
    process: MakeProcess, rt: fb.Runtime, clock: Any, tmp_path: Path
) -> None:
    line = Line()
    before = await process(line)
    handle = await before.create()
    before.store.dies = lambda _record: True
    line.give(text("All of them"), TEXT_END, FINISH)
    line.end()
    await before.idle()

    after = await process(failing_reads=True)

    record = await after.get(handle)
    assert (record.status, record.cause) == ("interrupted", "conservative-fallback")
    assert "the disk says no" in (record.error or "")


@pytest.mark.spec("T16", "I9")
async def test_the_records_are_read_then_the_retry_decides_then_the_rest_is_reconciled(
    process: MakeProcess,
) -> None:
    before, handle = await killed(process)
    await before.crash()
    log: list[str] = []
    store = FileTurnStore(before.desk.disk.path, io="inline", fsync="off")
    load = store.load

    def loading() -> Any:
        return load().tap(lambda _loaded: Effect.sync(lambda: log.append("load")))

    store.load = loading  # type: ignore[method-assign]  # heard from here
    recovery: Effect[Any] = Effect.sync(lambda: log.append("retry"))
    after = await process(WHOLE, store=store, recovery=recovery, unstarted=True)
    after.turns.observe(lambda record: log.append(record.status))

    await after.rt.run(after.turns.start(after.scope))
    await after.rt.run(after.turns.start(after.scope))
    await after.rt.run(after.turns.list())
    await after.idle()

    assert log[:3] == ["load", "retry", "interrupted"]
    assert log.count("load") == log.count("retry") == 1
    assert await after.cause(handle) == "stale-restart"


@pytest.mark.spec("T16", "I10")
async def test_a_turn_whose_answer_is_taken_up_again_goes_on(process: MakeProcess) -> None:
    before, handle = await killed(process, retrying=True)
    await before.crash()

    after = await process(WHOLE, retrying=True)
    assert await after.status(handle) == "running"
    waiter = after.waiting(handle)
    await after.desk.pass_time(1)

    assert await after.status(handle) == "completed"
    assert isinstance(waiter.poll(), fb.Success)
    assert after.turns.describe() == {"running": [], "queued": []}
    assert len(after.desk.provider.calls) == 1


@final
class Agent(TurnRunner):
    """A runner that offers everything, for the turns that it has begun itself."""

    @fb.effect(raises=TurnError)
    async def run(self, turn: OpenTurn, prompt: str, correlation: Mapping[str, Any]) -> None:
        await Effect.never()

    def steer(self, turn_id: str, text: str) -> Effect[None, TurnError]:
        raise AssertionError("it runs none")

    def answer_permission(
        self, turn_id: str, request_id: str, answer: object
    ) -> Effect[bool, TurnError]:
        raise AssertionError("it runs none")

    def spawn_subturn(self, turn_id: str, config: Mapping[str, Any]) -> Effect[object, TurnError]:
        raise AssertionError("it runs none")

    def finish(self, turn_id: str, *, hard: bool) -> Effect[None, TurnError]:
        raise AssertionError("it runs none")


@pytest.mark.spec("T16")
@pytest.mark.parametrize("call", ["steer", "answer", "spawn", "soft end", "hard end"])
async def test_a_turn_that_goes_on_without_its_agent_says_so(
    process: MakeProcess, call: str
) -> None:
    """Only its answer was taken up: "not found" would be said of a turn that everybody sees run."""
    before, handle = await killed(process, retrying=True)
    await before.crash()
    after = await process(Line(), retrying=True, runner=Agent())
    assert await after.status(handle) == "running"
    turns, handle_id = after.turns, handle.handle_id
    asked: Mapping[str, Effect[Any, TurnError]] = {
        "steer": turns.steer(handle_id, "left"),
        "answer": turns.answer_permission(handle_id, "q1", True),
        "spawn": turns.spawn_subturn(handle_id, {}),
        "soft end": turns.finish(handle_id),
        "hard end": turns.finish(handle_id, hard=True),
    }

    with pytest.raises(TurnError, match="goes on without its agent") as refused:
        await after.rt.run(asked[call])

    assert refused.value.kind == "without_agent"
    assert "interrupt it" in refused.value.way_out
    assert await after.status(handle) == "running"
    record = await after.rt.run(turns.interrupt(handle_id, by="ada"))
    assert record.status == "interrupted"


@pytest.mark.spec("T17", "I10")
@pytest.mark.parametrize("whose", ["a stream", "a pending retry"])
async def test_what_somebody_else_does_in_the_workspace_keeps_no_turn_alive(
    process: MakeProcess, whose: str
) -> None:
    before, handle = await killed(process, Line(), Line(), retrying=True)
    await before.stream("I do it myself")
    await before.crash()
    # That stop was one of the turn's stream as well: both wait for nothing but this process.
    after = await process(Line(), retrying=True, unstarted=True)
    if whose == "a stream":
        await after.stream("And again")
    await after.rt.run(after.turns.start(after.scope))

    assert await after.cause(handle) == "stale-restart"
    if whose == "a stream":
        assert after.desk.engine.is_streaming(WORKSPACE)
    else:
        assert after.retries is not None
        assert after.retries.state(WORKSPACE).pending


@pytest.mark.spec("T17")
async def test_a_stream_of_the_turn_itself_keeps_it_alive(process: MakeProcess) -> None:
    before, handle = await killed(process)
    await before.crash()
    line = Line()
    after = await process(line, unstarted=True)
    await after.stream("Go on", correlation=correlation(handle))

    await after.rt.run(after.turns.start(after.scope))

    assert await after.status(handle) == "running"
    line.give(text("Three"), TEXT_END, FINISH)
    line.end()
    assert (await after.get(handle)).final_message == "Three"


async def test_a_clock_that_was_set_back_changes_no_order(process: MakeProcess) -> None:
    with freeze_time("2026-05-01T12:00:00Z", real_asyncio=True) as wall:
        before = await process(Line())
        handles = [await before.create("one"), await before.create("two")]
        wall.move_to("2026-05-01T11:00:00Z")
        handles += [await before.create("three"), await before.create("four")]
        await before.crash()

        after = await process(WHOLE)
        records = [await after.get(handle) for handle in handles]

    assert [r.handle_id for r in await after.rt.run(after.turns.list())] == [
        handle.handle_id for handle in handles
    ]
    asked = [call.request.text for call in after.desk.provider.calls]
    assert asked == ["two", "three", "four"]
    assert all(record.created_at <= record.updated_at for record in records)


async def test_turns_that_settled_stay_in_the_order_of_their_creation_over_a_clock_set_back(
    process: MakeProcess,
) -> None:
    with freeze_time("2026-05-01T12:00:00Z", real_asyncio=True) as wall:
        before = await process(WHOLE)
        handles = [await before.create("one")]
        wall.move_to("2026-05-01T11:00:00Z")
        creating = [before.create(f"at once {n}", f"w{n}") for n in range(5)]
        handles += await asyncio.gather(*creating)
        await before.crash()

        for _ in range(2):  # the process after it, and the one after that
            after = await process(WHOLE)
            listed = await after.rt.run(after.turns.list())
            assert [r.handle_id for r in listed] == [handle.handle_id for handle in handles]
            assert {r.status for r in listed} == {"completed"}
            assert [r.sequence for r in listed] == list(range(len(listed)))
            handles.append(await after.create("the next"))
            await after.crash()


async def test_a_queued_turn_begins_after_the_restart(process: MakeProcess) -> None:
    before, first = await killed(process)
    second = await before.create("Then this")
    await before.crash()

    after = await process(WHOLE)

    assert await after.status(first) == "interrupted"
    assert await after.status(second) == "completed"
    assert [call.request.text for call in after.desk.provider.calls] == ["Then this"]


async def test_a_store_that_cant_be_listed_is_asked_again(process: MakeProcess) -> None:
    before, handle = await killed(process)
    await before.crash()
    after = await process(WHOLE, unstarted=True)
    workspaces = after.desk.disk.path / "workspaces"
    workspaces.rename(workspaces.with_name("away"))
    workspaces.write_text("")

    exit_ = await after.rt.run(after.turns.start(after.scope).exit())
    assert isinstance(exit_, fb.Failure)
    workspaces.unlink()
    workspaces.with_name("away").rename(workspaces)

    assert await after.cause(handle) == "stale-restart"


# ---- once, also across a restart


@pytest.mark.spec("T19")
async def test_an_owner_is_told_once_also_across_a_restart(
    process: MakeProcess, tmp_path: Path
) -> None:
    p = await process(WHOLE)
    handle = await p.create(attention="notify")
    await p.idle()
    assert [r.handle_id for r in p.told.attention] == [handle.handle_id]
    assert "terminalAttentionNotifiedAt" in on_disk(tmp_path, handle)
    await p.rt.run(p.turns.interrupt(handle.handle_id, by="ada"))
    await p.crash()

    after = await process()
    await after.idle()
    assert after.told.attention == []


@pytest.mark.spec("T19")
async def test_an_owner_who_was_not_told_yet_is_told_after_the_restart(
    process: MakeProcess,
) -> None:
    """The process died between the settlement and the word."""
    p = await process(WHOLE)
    p.store.dies = lambda record: record.terminal_attention_notified_at is not None
    handle = await p.create(attention="notify")
    assert p.told.attention == []

    after = await process()
    await after.idle()

    assert [r.handle_id for r in after.told.attention] == [handle.handle_id]


@pytest.mark.spec("T19")
async def test_an_owner_who_waits_is_not_told_beside(process: MakeProcess) -> None:
    p = await process(WHOLE)
    await p.create(attention="blocking")
    await p.idle()

    assert p.told.attention == []


async def test_an_owner_who_cant_be_told_changes_nothing(process: MakeProcess) -> None:
    def broken(_record: TurnRecord) -> None:
        raise OSError("nobody there")

    p = await process(WHOLE, on_attention=broken)

    with capture_logs() as logs:
        handle = await p.create(attention="notify")

    assert await p.status(handle) == "completed"
    assert any("could not be told" in log["event"] for log in logs)


@pytest.mark.spec("T21")
async def test_a_disposable_workspace_goes_once_after_its_turn_settled(
    process: MakeProcess,
) -> None:
    line = Line()
    p = await process(line, WHOLE)
    handle = await p.create(disposable=True)
    await p.create("Not this one", "w2")
    line.give(text("Done"), TEXT_END)
    await p.idle()
    assert p.told.disposed == []

    line.give(FINISH)
    line.end()
    await p.idle()
    assert [(r.handle_id, r.status) for r in p.told.disposed] == [(handle.handle_id, "completed")]
    await p.crash()
    after = await process()
    await after.idle()
    assert after.told.disposed == []


@pytest.mark.spec("T21")
async def test_a_disposable_workspace_outlives_all_its_turns(process: MakeProcess) -> None:
    first, second = Line(), Line()
    p = await process(first, second)
    await p.create(disposable=True)
    await p.create("Then this", disposable=False)
    first.give(text("Done"), TEXT_END, FINISH)
    first.end()
    await p.idle()
    assert p.told.disposed == []

    second.give(text("Done"), TEXT_END, FINISH)
    second.end()
    await p.idle()
    assert len(p.told.disposed) == 1


@pytest.mark.spec("T21")
async def test_no_turn_begins_in_a_workspace_while_it_is_removed(process: MakeProcess) -> None:
    begun, go = asyncio.Event(), asyncio.Event()
    log: list[str] = []

    @fb.effect
    async def removed() -> None:
        begun.set()
        await go.wait()
        log.append("removed")

    def dispose(_record: TurnRecord) -> Effect[object, Exception]:
        return removed()

    p = await process(WHOLE, dispose=dispose)
    p.desk.tape.on_event = lambda event: log.append(event.type)
    await p.create(disposable=True)
    await begun.wait()
    log.clear()

    handle = await p.create("Begin anew")
    assert (await p.status(handle), log) == ("queued", [])
    go.set()

    assert await p.status(handle) == "completed"
    assert log[:2] == ["removed", "stream-start"]


@pytest.mark.spec("T21")
async def test_a_turn_that_begins_before_the_removal_puts_it_off(process: MakeProcess) -> None:
    line = Line()
    p = await process(WHOLE, line)
    released = p.store.hold(lambda record: record.status == "completed")
    await p.create(disposable=True)
    await released.begun.wait()
    creating = p.rt.run_fork(
        p.turns.create_turn(owner=OWNER, workspace_id=WORKSPACE, prompt="And then")
    )
    await p.idle()
    released.go.set()
    await p.idle()

    assert isinstance(creating.poll(), fb.Success)
    assert p.told.disposed == []
    line.give(text("Done"), TEXT_END, FINISH)
    line.end()
    await p.idle()
    assert len(p.told.disposed) == 1


@pytest.mark.spec("T19", "T21")
@pytest.mark.parametrize("attention", ["notify", "blocking"])
@pytest.mark.parametrize("how", ["raises", "dies", "hangs"])
async def test_a_removal_that_breaks_or_hangs_keeps_the_word_from_nobody(
    process: MakeProcess, how: str, attention: str
) -> None:
    gate = fb.Latch()

    def dispose(_record: TurnRecord) -> Effect[object, Exception]:
        if how == "raises":
            raise RuntimeError("broken")
        return gate.await_() if how == "hangs" else Effect.die(RuntimeError("broken"))

    p = await process(WHOLE, dispose=dispose)
    with capture_logs() as logs:
        handle = await p.create(disposable=True, attention=attention)
        await p.desk.pass_time(REMOVAL_SECONDS if how == "hangs" else 0)

    told = [handle.handle_id] if attention == "notify" else []
    assert [r.handle_id for r in p.told.attention] == told
    (warning,) = [log for log in logs if log["log_level"] == "warning"]
    assert ("hangs" if how == "hangs" else "could not be removed") in warning["event"]
    assert (await p.get(handle)).workspace_disposed_at is None
    gate.open_unsafe()
    await p.idle()
    assert ((await p.get(handle)).workspace_disposed_at is not None) == (how == "hangs")


@pytest.mark.spec("T21")
async def test_a_workspace_that_could_not_be_removed_is_removed_at_the_next_start(
    process: MakeProcess,
) -> None:
    def fails(_record: TurnRecord) -> Effect[object, Exception]:
        return Effect.fail(OSError("busy"))

    p = await process(WHOLE, dispose=fails)
    with capture_logs() as logs:
        handle = await p.create(disposable=True, attention="notify")
    assert any("could not be removed" in log["event"] for log in logs)
    assert len(p.told.attention) == 1
    await p.crash()

    after = await process()
    await after.idle()
    assert [r.handle_id for r in after.told.disposed] == [handle.handle_id]


# ---- retries in a running process


@pytest.mark.spec("T15")
async def test_a_failure_that_is_tried_again_leaves_the_turn_running(
    process: MakeProcess,
) -> None:
    p = await process(BROKEN, BROKEN, WHOLE, retrying=True)
    handle = await p.create()
    waiter = p.waiting(handle)
    assert await p.status(handle) == "running"
    await p.desk.pass_time(1)
    assert await p.status(handle) == "running"
    await p.desk.pass_time(2)

    assert await p.status(handle) == "completed"
    assert isinstance(waiter.poll(), fb.Success)


@pytest.mark.spec("T15")
@pytest.mark.parametrize("first", [(), (BROKEN,), (BROKEN, BROKEN)])
async def test_the_final_failure_is_that_of_the_turn(
    process: MakeProcess, first: tuple[Answer, ...]
) -> None:
    p = await process(*first, REFUSED, retrying=True)
    handle = await p.create()
    for n, _ in enumerate(first):
        assert await p.status(handle) == "running"
        await p.desk.pass_time(2**n)

    record = await p.get(handle)
    assert (record.status, record.cause) == ("error", "terminal-stream-error")
    assert record.evidence is not None
    assert record.evidence["errorType"] == "authentication"


@pytest.mark.spec("T15")
async def test_a_retry_that_is_called_off_was_the_last(process: MakeProcess) -> None:
    p = await process(BROKEN, retrying=True)
    handle = await p.create()
    assert p.retries is not None

    await p.rt.run(p.retries.call_off(WORKSPACE))

    record = await p.get(handle)
    assert (record.status, record.cause) == ("error", "terminal-stream-error")


async def test_a_retry_that_cant_begin_is_an_error_of_the_turn(process: MakeProcess) -> None:
    p = await process(BROKEN, retrying=True)
    handle = await p.create()
    p.desk.history.fail("reserve")

    await p.desk.pass_time(1)

    record = await p.get(handle)
    assert (record.status, record.cause) == ("error", "recovery-admission-failure")


async def test_an_interrupt_calls_a_pending_retry_off(process: MakeProcess) -> None:
    p = await process(BROKEN, retrying=True)
    handle = await p.create()

    await p.rt.run(p.turns.interrupt(handle.handle_id, by="ada"))
    await p.desk.pass_time(120)

    assert await p.cause(handle) == "explicit-interrupt"
    assert len(p.desk.provider.calls) == 1


async def test_a_person_who_writes_while_a_retry_is_pending_supersedes_the_turn(
    process: MakeProcess,
) -> None:
    p = await process(BROKEN, WHOLE, retrying=True)
    handle = await p.create()

    await p.desk.done(await p.stream("I do it myself"))

    assert await p.cause(handle) == "manual-supersession"


async def test_a_failure_without_a_retry_that_somebody_else_ended_is_final(
    process: MakeProcess,
) -> None:
    """A person wrote while a retry was pending, and stopped that: nobody tries again."""
    p = await process(BROKEN, Line(), retrying=True)
    handle = await p.create()
    await p.stream("I do it myself")
    assert await p.status(handle) == "running"

    await p.desk.stop("user")

    assert await p.cause(handle) == "terminal-stream-error"


# ---- turns that begin by themselves


@pytest.mark.spec("I12")
async def test_a_turn_that_began_by_itself_arms_no_other(process: MakeProcess) -> None:
    p, handle = await killed(process)
    await p.crash()
    p = await process(Line())
    again = await p.rt.run(p.turns.continue_turn(handle.handle_id, prompt="Go on"))
    assert (await p.get(again)).continues == handle.handle_id
    await p.crash()

    p = await process(Line())
    with pytest.raises(SendError) as raised:
        await p.rt.run(p.turns.continue_turn(again.handle_id, prompt="Go on"))

    assert raised.value.kind == "continuation_refused"


@pytest.mark.spec("I12")
async def test_at_most_three_in_a_row_begin_by_themselves(process: MakeProcess) -> None:
    p = await process(Line())
    started = 0
    for _ in range(4):
        persons = await p.create("Count them")
        await p.crash()
        p = await process(Line())
        exit_ = await p.rt.run(p.turns.continue_turn(persons.handle_id, prompt="Go on").exit())
        await p.idle()
        started += isinstance(exit_, fb.Success)
        await p.crash()
        p = await process(Line())
    assert started == 3

    p.desk.provider.answers[:] = [WHOLE, Line()]
    await p.create("Count them")
    persons = await p.create("And again")
    await p.crash()
    p = await process(Line())
    await p.rt.run(p.turns.continue_turn(persons.handle_id, prompt="Go on"))
    assert streak_of(await p.rt.run(p.turns.list())) == 1


@pytest.mark.spec("I12")
async def test_of_two_who_go_on_with_one_turn_at_once_one_does(process: MakeProcess) -> None:
    p = await process(Line(), Line())
    handle = await p.create()
    await p.rt.run(p.turns.interrupt(handle.handle_id, by="ada"))

    slow = p.store.hold(lambda record: record.continues is not None)

    going_on = [
        p.rt.run_fork(p.turns.continue_turn(handle.handle_id, prompt="Go on")).ignore_failure()
        for _ in range(2)
    ]
    await p.idle()
    slow.go.set()
    await p.idle()

    first, second = (fiber.poll() for fiber in going_on)
    assert isinstance(first, fb.Success)
    assert isinstance(second, fb.Failure)
    error = second.failure().squash()
    assert isinstance(error, SendError)
    assert error.kind == "continuation_refused"
    assert streak_of(await p.rt.run(p.turns.list())) == 1


@pytest.mark.spec("I12")
async def test_three_in_a_row_are_three_also_where_all_begin_at_once(process: MakeProcess) -> None:
    p = await process(Line())
    for number in range(5):
        handle = await p.create(f"Count {number}")
        await p.rt.run(p.turns.interrupt(handle.handle_id, by="ada"))
    handles = [record.handle_id for record in await p.rt.run(p.turns.list())]

    slow = p.store.hold(lambda record: record.continues is not None)

    going_on = [
        p.rt.run_fork(p.turns.continue_turn(handle_id, prompt="Go on")).ignore_failure()
        for handle_id in handles
    ]
    await p.idle()
    slow.go.set()
    await p.idle()

    assert sum(isinstance(fiber.poll(), fb.Success) for fiber in going_on) == 3


@pytest.mark.parametrize("status", ["running", "completed"])
async def test_only_what_was_cut_off_is_gone_on_with(process: MakeProcess, status: str) -> None:
    answers: Mapping[str, Answer] = {"running": Line(), "completed": WHOLE}
    p = await process(answers[status])
    handle = await p.create()

    with pytest.raises(SendError) as raised:
        await p.rt.run(p.turns.continue_turn(handle.handle_id, prompt="Go on"))

    assert raised.value.kind == "nothing_to_continue"


@pytest.mark.spec("T16")
@pytest.mark.parametrize("asked", ["before", "after"])
async def test_nobody_waits_for_a_start_that_the_close_of_the_scope_cut_off(
    process: MakeProcess, asked: str
) -> None:
    p = await process(unstarted=True)
    p.store.before_load = fb.Latch().await_()
    if asked == "after":
        await p.crash()
    asking = p.rt.run_fork(p.turns.list()).ignore_failure()
    await p.idle()
    if asked == "before":
        await p.crash()
        await p.idle()

    exit_ = asking.poll()

    assert isinstance(exit_, fb.Failure)
    error = exit_.failure().squash()
    assert isinstance(error, TurnError)
    assert error.kind == "shutting_down"


async def test_a_store_that_breaks_at_the_start_is_told_and_asked_again(
    process: MakeProcess,
) -> None:
    p = await process(unstarted=True)
    p.store.before_load = Effect.die(RuntimeError("broken"))
    asking = p.rt.run_fork(p.turns.list()).ignore_failure()
    await p.idle()

    exit_ = asking.poll()
    p.store.before_load = None

    assert isinstance(exit_, fb.Failure)
    assert "broken" in str(exit_.failure().squash())
    assert list(await p.rt.run(p.turns.list())) == []
