"""Which ends of streams end a turn, and which don't."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, final

import pytest
from structlog.testing import capture_logs

import fibers as fb
from fibers import Effect
from streamengine import StreamEngine, StreamError, StreamRequest
from streamengine.model import Finish, RowMetadata, StreamEndEvent
from tests.streamengine.engine.kit import (
    FINISH,
    TEXT_END,
    WHOLE,
    Answer,
    Line,
    says,
    text,
)
from turns import OpenTurn, TurnEnd, TurnError, TurnHandle, TurnRunner
from turns.handles.aftermath import REMOVAL_SECONDS
from turns.handles.continuation import Continuations
from turns.handles.creation import new_record
from turns.handles.plain import PlainTurn
from turns.open_turn import BareTurn
from turns.release import RELEASE_SECONDS

from .conftest import MakeProcess
from .kit import OWNER, WORKSPACE, Conductor, Process, correlation, on_disk

TOOL_STEP: Answer = says(text("Let me see. "), TEXT_END, Finish(finish_reason="tool-calls"))


async def running_turn(process: MakeProcess, *further: Answer) -> tuple[Process, TurnHandle, Line]:
    """A turn whose stream is in the middle of its answer; what else is asked gets ``further``."""
    line = Line()
    p = await process(line, *further)
    handle = await p.create()
    line.give(text("One, two"))
    await p.idle()
    return p, handle, line


async def wake(p: Process) -> str:
    """A stream of a machine in the workspace, which adds no row and says nothing of whose it is.
    Gives its message id once it has ended.
    """
    await p.desk.stop("system")
    request = StreamRequest(text="a monitor fired")
    handle = await p.rt.run(p.desk.engine.resume_stream(WORKSPACE, request))
    await p.desk.done(handle)
    return handle.message_id


async def go_on(p: Process, handle: TurnHandle, words: str = "Go on") -> str:
    """A further stream of the turn, by whoever runs it; ended."""
    stream = await p.stream(words, correlation=correlation(handle))
    await p.desk.done(stream)
    return stream.message_id


def end_of(message_id: str, **fields: Any) -> StreamEndEvent:
    """An end as a broken or a hostile sender tells it."""
    return StreamEndEvent(
        workspace_id=WORKSPACE,
        message_id=message_id,
        metadata=RowMetadata(finish_reason="stop"),
        parts=(),
        **fields,
    )


# ---- its own ends


@pytest.mark.spec("T1", "T7")
async def test_a_turn_of_one_stream_completes_with_what_it_said(
    process: MakeProcess, tmp_path: Any
) -> None:
    p = await process(WHOLE)

    handle = await p.create()

    record = await p.get(handle)
    assert record.status == "completed"
    assert record.cause == "correlated-stream-end"
    assert record.final_message == "Hello there"
    evidence = {"messageId": record.message_id, "finishReason": "stop", "superseded": False}
    assert record.evidence == evidence
    stored = on_disk(tmp_path, handle)
    assert (stored["cause"], stored["evidence"]) == ("correlated-stream-end", evidence)
    assert p.store.statuses(handle.handle_id) == ["queued", "starting", "running", "completed"]


async def test_all_streams_of_a_turn_carry_its_correlation(process: MakeProcess) -> None:
    p = await process(WHOLE)

    handle = await p.create()

    [call] = p.desk.provider.calls
    assert dict(call.request.correlation or {}) == correlation(handle)


@pytest.mark.parametrize("finish_reason", ["length", "error", "other-reason"])
async def test_an_answer_that_did_not_finish_is_an_error(
    process: MakeProcess, finish_reason: str
) -> None:
    p = await process(says(text("Once"), TEXT_END, Finish(finish_reason=finish_reason)))

    handle = await p.create()

    record = await p.get(handle)
    assert (record.status, record.cause) == ("error", "correlated-stream-end")
    assert record.evidence is not None
    assert record.evidence["finishReason"] == finish_reason


# ---- ends of others


@pytest.mark.spec("T2")
async def test_an_uncorrelated_end_alone_settles_nothing(process: MakeProcess) -> None:
    p, handle, _ = await running_turn(process, WHOLE)
    waiter = p.waiting(handle)

    await wake(p)

    record = await p.get(handle)
    assert (record.status, record.cause, record.error) == ("running", None, None)
    assert waiter.poll() is None
    assert p.told.attention == []
    assert p.told.disposed == []
    assert record.ignored_ends == 1


@pytest.mark.spec("T3")
async def test_after_an_ignored_end_the_correlated_one_completes(process: MakeProcess) -> None:
    p, handle, _ = await running_turn(process, WHOLE)
    waiter = p.waiting(handle)
    await wake(p)

    last = await go_on(p, handle)

    record = await p.get(handle)
    assert (record.status, record.final_message_ref) == ("completed", last)
    await p.idle()
    assert waiter.poll() is not None


@pytest.mark.spec("T4")
async def test_a_continuation_over_tool_calls_and_a_wake_in_between_completes(
    process: MakeProcess,
) -> None:
    conductor = Conductor()
    conductor.more = True
    p = await process(TOOL_STEP, WHOLE, conductor=conductor)
    handle = await p.create()
    deferred = await p.get(handle)
    assert deferred.status == "running"
    assert len(deferred.deferred_message_ids) == 1

    await wake(p)
    assert await p.status(handle) == "running"
    conductor.go_on("The results")

    record = await p.get(handle)
    assert (record.status, record.final_message) == ("completed", "Hello there")
    assert record.message_id not in deferred.deferred_message_ids


async def test_an_end_that_waited_in_vain_settles_the_turn(process: MakeProcess) -> None:
    """What was to come after it did not come."""
    conductor = Conductor()
    conductor.more = True
    p = await process(WHOLE, conductor=conductor)
    handle = await p.create()
    assert await p.status(handle) == "running"

    conductor.more = False
    conductor.end()

    record = await p.get(handle)
    assert (record.status, record.final_message) == ("completed", "Hello there")


async def test_a_continuation_that_fails_is_an_error_of_the_turn(process: MakeProcess) -> None:
    conductor = Conductor()
    conductor.more = True
    p = await process(TOOL_STEP, conductor=conductor)
    handle = await p.create()

    conductor.end(TurnError("loop", "the tool is gone"))

    record = await p.get(handle)
    assert (record.status, record.cause) == ("error", "continuation-failure")
    assert record.evidence == {"error": "loop: the tool is gone"}


@pytest.mark.spec("T5", "T7")
async def test_a_person_who_writes_meanwhile_supersedes_the_turn(process: MakeProcess) -> None:
    p, handle, _ = await running_turn(process, WHOLE)
    waiter = p.waiting(handle)

    stream = await p.stream("I do it myself")
    await p.desk.done(stream)

    record = await p.get(handle)
    manual = next(
        row["id"]
        for row in p.desk.disk.rows()
        if row["role"] == "user" and "correlation" not in row["metadata"]
    )
    assert (record.status, record.cause) == ("interrupted", "manual-supersession")
    assert record.evidence == {"messageId": manual}
    exit_ = waiter.poll()
    assert exit_ is not None
    assert "person" in str(exit_.failure().squash())


@pytest.mark.spec("T5")
async def test_a_person_who_wrote_before_the_prompt_supersedes_nothing(
    process: MakeProcess,
) -> None:
    """Strictly between anchor and end: not the anchor, not what lies before it."""
    p = await process(WHOLE, Line(), WHOLE)
    await p.desk.whole("An earlier question")
    handle = await p.create()

    await wake(p)

    record = await p.get(handle)
    assert (record.status, record.ignored_ends) == ("running", 1)


async def test_what_a_machine_sent_supersedes_nothing(process: MakeProcess) -> None:
    p, handle, _ = await running_turn(process, WHOLE, WHOLE, WHOLE)

    for mark in ({"type": "heartbeat"}, {"synthetic": True}):
        await p.desk.done(await p.stream("still there?", correlation=mark))
    p.desk.engine.events.emit(end_of(p.desk.disk.rows()[-1]["id"]))

    record = await p.get(handle)
    assert record.status == "running"
    assert record.ignored_ends == 3


@pytest.mark.spec("T12")
async def test_an_end_from_before_the_prompt_is_stale(process: MakeProcess) -> None:
    p = await process(WHOLE, Line())
    await p.desk.whole("An earlier question")
    [early] = [row["id"] for row in p.desk.disk.rows() if row["role"] == "assistant"]
    handle = await p.create()

    p.desk.engine.events.emit(end_of(early))

    record = await p.get(handle)
    assert (record.status, record.ignored_ends) == ("running", 1)


@pytest.mark.spec("T13")
@pytest.mark.parametrize(
    "wrong",
    [
        {"turnId": "turn_old"},
        {"ownerWorkspaceId": "somebody"},
        {"taskHandleId": "wst_other"},
        {"taskHandleId": 5},
        {"turnId": None},
    ],
)
async def test_an_end_of_another_turn_with_some_of_the_same_names_is_ignored(
    process: MakeProcess, wrong: dict[str, Any]
) -> None:
    p, handle, _ = await running_turn(process)
    # With nothing of it running, an end of its own would settle it.
    await p.desk.stop("system")

    p.desk.engine.events.emit(end_of("a_1", correlation={**correlation(handle), **wrong}))

    assert await p.status(handle) == "running"


@pytest.mark.spec("T13")
async def test_an_end_in_another_workspace_is_ignored(process: MakeProcess) -> None:
    p, handle, _ = await running_turn(process)
    # With nothing of it running, an end of its own would settle it.
    await p.desk.stop("system")

    end = end_of("a_1", correlation=correlation(handle))
    p.desk.engine.events.emit(end.model_copy(update={"workspace_id": "w9"}))

    assert await p.status(handle) == "running"


@pytest.mark.spec("T2")
@pytest.mark.parametrize("next_event", ["another end", "its own end"])
async def test_an_end_that_cant_be_judged_settles_nothing_until_it_can(
    process: MakeProcess, next_event: str
) -> None:
    p, handle, _ = await running_turn(process, WHOLE, WHOLE)
    manual = Line()
    p.desk.provider.answers[1] = manual
    stream = await p.stream("I do it myself")
    p.desk.history.fail("read")
    manual.give(text("Here you are"), TEXT_END, FINISH)
    manual.end()
    with capture_logs() as logs:
        await p.desk.done(stream)
    assert any("stays running" in log["event"] for log in logs)
    assert await p.status(handle) == "running"

    p.desk.history.mend()
    if next_event == "its own end":
        p.desk.engine.events.emit(end_of("a_1", correlation=correlation(handle)))
    else:
        p.desk.engine.events.emit(end_of("a_unheard_of"))

    assert await p.cause(handle) == "manual-supersession"


@pytest.mark.spec("T2")
@pytest.mark.parametrize("missing", ["row", "anchor"])
async def test_an_end_whose_evidence_is_missing_settles_nothing(
    process: MakeProcess, missing: str
) -> None:
    p, handle, _ = await running_turn(process, WHOLE)
    if missing == "row":
        p.desk.engine.events.emit(end_of("a_never_stored"))
    else:
        chat = p.desk.disk.directory() / "chat.jsonl"
        chat.write_text("")
        p.desk.engine.events.emit(end_of("a_1"))

    with capture_logs() as logs:
        record = await p.get(handle)

    assert (record.status, record.ignored_ends) == ("running", 0)
    assert any("stays running" in log["event"] for log in logs)


@pytest.mark.spec("T22")
async def test_an_own_end_in_a_history_that_breaks_interrupts_the_turn(
    process: MakeProcess,
) -> None:
    """Not only in one that fails by its rules: with the end lost, the turn would run for ever."""
    p, handle, line = await running_turn(process)
    p.desk.history.fail("read", RuntimeError("broken"))

    line.give(TEXT_END, FINISH)
    line.end()

    record = await p.get(handle)
    assert (record.status, record.cause) == ("interrupted", "conservative-fallback")
    assert "broken" in (record.error or "")


@pytest.mark.spec("T9")
async def test_a_settlement_whose_store_breaks_is_tried_again(process: MakeProcess) -> None:
    p, handle, line = await running_turn(process)
    p.store.before_write = lambda _record: Effect.die(RuntimeError("broken"))

    with capture_logs() as logs:
        line.give(TEXT_END, FINISH)
        line.end()
        assert await p.status(handle) == "running"
    p.store.before_write = None
    await p.desk.pass_time(1)

    assert await p.status(handle) == "completed"
    assert {log["error"] for log in logs if "tried again" in log["event"]} == {"broken"}


# ---- stops


@pytest.mark.spec("T14")
async def test_a_persons_stop_of_the_stream_interrupts_the_turn(process: MakeProcess) -> None:
    p, handle, _ = await running_turn(process)

    await p.desk.stop("user")

    record = await p.get(handle)
    assert (record.status, record.cause) == ("interrupted", "user-stream-abort")
    assert record.evidence == {"messageId": record.message_id}


@pytest.mark.spec("T14")
@pytest.mark.parametrize("reason", ["system", "startup"])
async def test_another_stop_of_the_stream_leaves_the_turn_running(
    process: MakeProcess, reason: Any
) -> None:
    p, handle, _ = await running_turn(process)
    waiter = p.waiting(handle)

    await p.desk.stop(reason)

    assert await p.status(handle) == "running"
    assert waiter.poll() is None


@pytest.mark.spec("T14")
async def test_a_shutdown_leaves_the_record_running_and_nothing_behind(
    process: MakeProcess, tmp_path: Any
) -> None:
    p, handle, _ = await running_turn(process)

    await p.crash()

    assert on_disk(tmp_path, handle)["status"] == "running"
    assert p.turns.describe() == {"running": [], "queued": []}
    [abort] = p.desk.tape.terminals
    assert (abort.type, getattr(abort, "abort_reason", None)) == ("stream-abort", "system")


# ---- descendants


async def test_a_turn_waits_for_turns_that_its_workspace_started(process: MakeProcess) -> None:
    below = Line()
    p, handle, line = await running_turn(process, below)
    child = await p.create("Help", "w2", owner=WORKSPACE)
    line.give(TEXT_END, FINISH)
    line.end()
    assert await p.status(handle) == "running"

    below.give(text("Done"), TEXT_END, FINISH)
    below.end()

    assert await p.status(child) == "completed"
    assert await p.status(handle) == "completed"


async def test_turns_of_two_workspaces_for_each_other_do_not_wait_in_a_circle(
    process: MakeProcess,
) -> None:
    one, other = Line(), Line()
    p = await process(one, other)
    first = await p.create("Help", "w1", owner="w2")
    second = await p.create("Help", "w2", owner="w1")
    for line in (one, other):
        line.give(text("Done"), TEXT_END, FINISH)
        line.end()

    assert await p.status(first) == "completed"
    assert await p.status(second) == "completed"


async def test_an_owner_is_any_workspace(process: MakeProcess) -> None:
    p = await process(WHOLE, WHOLE)
    first = await p.create(owner=WORKSPACE)
    second = await p.create(owner=WORKSPACE)

    assert [await p.status(first), await p.status(second)] == ["completed", "completed"]


# ---- a runner that does not listen


@final
class Deaf(TurnRunner):
    """A runner that ignores its interrupt until it is let go."""

    def __init__(self) -> None:
        self.go = asyncio.Event()

    @fb.effect(raises=TurnError)
    async def run(self, turn: OpenTurn, prompt: str, correlation: Mapping[str, Any]) -> None:
        with fb.uninterruptible():
            await self.go.wait()


@pytest.fixture
def deaf(process: MakeProcess) -> Iterator[Deaf]:
    """Let go before the process ends."""
    runner = Deaf()
    yield runner
    runner.go.set()


class OpenedTurns:
    """Opens plain turns, and keeps them."""

    def __init__(self) -> None:
        self.turns: list[OpenTurn] = []

    def __call__(self, *about: Any) -> OpenTurn:
        self.turns.append(PlainTurn(*about))
        return self.turns[-1]


@pytest.mark.spec("O1")
async def test_a_deaf_runner_keeps_its_workspace_but_nothing_that_its_turn_held(
    process: MakeProcess,
    deaf: Deaf,
) -> None:
    opened = OpenedTurns()
    p = await process(runner=deaf, open_turn=opened)
    handle = await p.create()
    after = await p.create()

    with capture_logs() as logs:
        await p.rt.run(p.turns.interrupt(handle.handle_id, by="ada"))
        await p.desk.pass_time(2)

    assert opened.turns[0].scope.state == "closed"
    assert [log["handleId"] for log in logs if log["log_level"] == "warning"] == [handle.handle_id]
    assert await p.status(after) == "queued"
    deaf.go.set()
    await p.idle()
    assert await p.status(after) != "queued"


@pytest.mark.spec("T19")
async def test_a_deaf_runner_keeps_the_word_from_nobody(process: MakeProcess, deaf: Deaf) -> None:
    p = await process(runner=deaf)
    handle = await p.create(attention="notify")
    await p.rt.run(p.turns.interrupt(handle.handle_id, by="ada"))
    await p.desk.pass_time(REMOVAL_SECONDS - 1)
    assert p.told.attention == []

    await p.desk.pass_time(1)

    assert [record.handle_id for record in p.told.attention] == [handle.handle_id]


@pytest.mark.spec("T14", "O1")
async def test_a_shutdown_gives_back_what_the_turn_of_a_deaf_runner_holds(
    process: MakeProcess, deaf: Deaf, tmp_path: Path
) -> None:
    opened = OpenedTurns()
    p = await process(runner=deaf, open_turn=opened)
    handle = await p.create()

    closing = p.rt.run_fork(p.scope.close(reason="system"))
    await p.desk.pass_time(2)

    assert opened.turns[0].scope.state == "closed"
    assert on_disk(tmp_path, handle)["status"] == "starting"
    deaf.go.set()
    await p.idle()
    assert closing.poll() is not None


@pytest.mark.spec("O1")
async def test_a_finalizer_that_never_ends_keeps_no_workspace(process: MakeProcess) -> None:
    gate = asyncio.Event()

    def opened(*about: Any) -> OpenTurn:
        turn = PlainTurn(*about)
        fb.run_sync(turn.scope.add_finalizer(lambda _exit: gate.wait()))
        return turn

    p = await process(WHOLE, open_turn=opened)
    handle = await p.create()
    after = await p.create()
    assert (await p.status(handle), await p.status(after)) == ("completed", "queued")

    with capture_logs() as logs:
        await p.desk.pass_time(RELEASE_SECONDS)

    assert await p.status(after) == "completed"
    assert [log["turn"] for log in logs if "does not end" in log["event"]] == [handle.handle_id]
    gate.set()
    await p.idle()


# ---- what can't be run


@pytest.mark.spec("T1", "T7")
@pytest.mark.parametrize("prompt", [None, "", " \n"])
async def test_a_queued_turn_without_a_prompt_settles_before_it_begins(
    process: MakeProcess, prompt: str | None
) -> None:
    """As somebody's hand may have left it on disk; nobody is asked nothing."""
    made = new_record(owner=OWNER, workspace_id=WORKSPACE, prompt="x")
    p = await process(WHOLE, unstarted=True)
    await p.rt.run(p.store.write(made.changed(prompt=prompt)))

    await p.rt.run(p.turns.start(p.scope))
    await p.idle()

    record = await p.rt.run(p.turns.get(made.handle_id))
    assert (record.status, record.cause) == ("error", "creation-validation-failure")
    assert record.evidence == {"error": "its prompt has no text"}
    assert p.desk.provider.calls == []


@final
class Cancelled(TurnRunner):
    """A runner that ends as interrupted, with no reason, although nobody has stopped its turn."""

    def __init__(self) -> None:
        self.engine: StreamEngine | None = None
        self.continuations = Continuations()

    @fb.effect(raises=TurnError)
    async def run(self, turn: OpenTurn, prompt: str, correlation: Mapping[str, Any]) -> None:
        if self.engine is not None:
            self.continuations.register(turn.turn_id, lambda _message_id: True)
            request = StreamRequest(text=prompt, correlation=correlation)
            await (await self.engine.start_stream(turn.workspace_id, request)).completion
        await Effect.interrupt()


@pytest.mark.spec("T1", "T7")
@pytest.mark.parametrize("begins", [True, False])
async def test_a_runner_that_is_interrupted_by_nobody_has_failed(
    process: MakeProcess, *, begins: bool
) -> None:
    """Nobody takes its turn up again in this process: its workspace would be kept for ever."""
    runner = Cancelled()
    p = await process(WHOLE, runner=runner, continuations=runner.continuations)
    if begins:
        runner.engine = p.desk.engine

    handles = [await p.create() for _ in range(2)]

    for handle in handles:
        record = await p.get(handle)
        cause = "continuation-failure" if begins else "send-failure"
        assert (record.status, record.cause) == ("error", cause)
        assert "interrupted" in (record.error or "")
    assert p.turns.describe() == {"running": [], "queued": []}


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("it can't be printed")


@pytest.mark.spec("T1")
@pytest.mark.parametrize("where", ["its runner", "its factory"])
async def test_an_error_that_can_t_be_printed_settles_a_turn_too(
    process: MakeProcess, where: str
) -> None:
    @final
    class Broken(TurnRunner):
        @fb.effect(raises=TurnError)
        async def run(self, turn: OpenTurn, prompt: str, correlation: Mapping[str, Any]) -> None:
            raise Unprintable

    def opened(turn_id: str, workspace_id: str, clock: fb.Clock, scope: fb.Scope) -> OpenTurn:
        if where == "its factory":
            raise Unprintable
        return PlainTurn(turn_id, workspace_id, clock, scope)

    p = await process(runner=Broken(), open_turn=opened)
    handle = await p.create()

    record = await p.get(handle)

    assert record.status == "error"
    assert "Unprintable" in (record.error or "")
    assert p.turns.describe() == {"running": [], "queued": []}


@final
class Refusing(TurnRunner):
    """A runner that fails before its first stream."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    @fb.effect(raises=TurnError)
    async def run(self, turn: OpenTurn, prompt: str, correlation: Mapping[str, Any]) -> None:
        raise TurnError(self.kind, "there is no agent to run a turn", "Give one.")


@pytest.mark.spec("T1", "T7")
@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        ("invalid_turn", "creation-validation-failure"),
        ("no_agent", "creation-validation-failure"),
        ("history", "send-failure"),
    ],
)
async def test_why_a_turn_that_never_began_can_t_be_run_is_its_cause(
    process: MakeProcess, kind: str, cause: str
) -> None:
    p = await process(runner=Refusing(kind))
    handle = await p.create()

    record = await p.get(handle)

    assert (record.status, record.cause) == ("error", cause)
    assert "no agent" in str(record.evidence)


async def test_a_runner_that_breaks_when_it_is_asked_what_follows_keeps_no_workspace(
    process: MakeProcess,
) -> None:
    @final
    class Breaking(TurnRunner):
        @fb.effect(raises=TurnError)
        async def run(self, turn: OpenTurn, prompt: str, correlation: Mapping[str, Any]) -> None:
            raise TurnError("stream", "no")

        def take_unheard(self, workspace_id: str) -> str | None:
            raise RuntimeError("broken")

        def put_back_unheard(self, workspace_id: str, text: str) -> None:
            raise AssertionError("nothing was taken")

    p = await process(runner=Breaking())

    with capture_logs() as logs:
        handles = [await p.create() for _ in range(2)]

    assert [await p.status(handle) for handle in handles] == ["error", "error"]
    assert [log["handleId"] for log in logs if log["log_level"] == "error"] == [
        handle.handle_id for handle in handles
    ]
    assert p.turns.describe() == {"running": [], "queued": []}


@pytest.mark.spec("O3")
async def test_a_continuation_whose_mark_can_t_be_written_is_closed_as_a_failure(
    process: MakeProcess,
) -> None:
    """As a teardown it would leave behind what did get to the disk of the mark."""
    ends: list[str | None] = []

    class Unmarked(BareTurn):
        def close(self, end: TurnEnd) -> Effect[None]:
            ends.append(self._decide(end))
            return self._scope.close()

        def mark_continuation(self) -> Effect[None, Exception]:
            return Effect.fail(OSError("no room is left"))

    def opened(turn_id: str, workspace_id: str, clock: fb.Clock, scope: fb.Scope) -> OpenTurn:
        return Unmarked(turn_id, workspace_id, clock, scope.fork_scope())

    p = await process(Line(), open_turn=opened)
    cut_off = await p.create()
    await p.rt.run(p.turns.interrupt(cut_off.handle_id, by="ada"))
    await p.idle()
    ends.clear()

    handle = await p.rt.run(p.turns.continue_turn(cut_off.handle_id, prompt="Go on"))

    record = await p.get(handle)
    assert (record.status, record.cause) == ("error", "creation-admission-failure")
    assert "no room is left" in (record.error or "")
    assert ends == ["errored"]


# ---- a disk that is slow to store where the turn stands


@pytest.mark.spec("T4", "T9")
@pytest.mark.parametrize("last", ["fails", "completes"])
async def test_an_end_with_more_to_come_is_that_however_late_it_is_judged(
    process: MakeProcess, last: str
) -> None:
    line = Line()
    conductor = Conductor()
    conductor.more = True
    p = await process(TOOL_STEP, line, conductor=conductor)
    hold = p.store.hold(lambda record: record.status == "running")
    handle = await p.create()
    await hold.begun.wait()
    conductor.go_on("Go on")
    await p.idle()
    line.give(text("It is three."), TEXT_END, FINISH)
    if last == "fails":
        line.fail(StreamError("authentication", "no key"))
    line.end()
    conductor.end(TurnError("stream", "no key") if last == "fails" else None)
    await p.idle()

    hold.go.set()

    record = await p.get(handle)
    if last == "fails":
        assert (record.status, record.cause) == ("error", "terminal-stream-error")
    else:
        assert (record.status, record.final_message) == ("completed", "It is three.")


@pytest.mark.spec("T15", "T9")
async def test_a_failure_that_was_tried_again_is_that_however_late_it_is_judged(
    process: MakeProcess,
) -> None:
    broken = Line()
    broken.fail(StreamError("network", "gone"))
    conductor = Conductor()
    conductor.more = True
    p = await process(broken, WHOLE, conductor=conductor)
    hold = p.store.hold(lambda record: record.status == "running")
    handle = await p.create()
    waiter = p.waiting(handle)
    await hold.begun.wait()
    conductor.go_on("Again")
    conductor.end()
    await p.idle()

    hold.go.set()
    await p.idle()

    exit_ = waiter.poll()
    assert isinstance(exit_, fb.Success)
    assert exit_.unwrap().status == "completed"


@pytest.mark.spec("T15", "T9")
async def test_a_failure_that_another_answer_has_followed_is_not_the_last(
    process: MakeProcess,
) -> None:
    """Tried again by the engine's retries, and done before the failure is judged."""
    broken = Line()
    broken.fail(StreamError("network", "gone"))
    p = await process(broken, WHOLE, retrying=True)
    hold = p.store.hold(lambda record: record.status == "running")
    handle = await p.create()
    waiter = p.waiting(handle)
    await hold.begun.wait()
    await p.desk.pass_time(2)
    assert len(p.desk.provider.calls) == 2

    hold.go.set()
    await p.idle()

    exit_ = waiter.poll()
    assert isinstance(exit_, fb.Success)
    assert exit_.unwrap().status == "completed"
