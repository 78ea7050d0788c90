"""Settlement: the one choke point, its order, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import ValidationError
from structlog.testing import capture_logs

import fibers as fb
from fibers import Effect
from streamengine.model import (
    AssistantRow,
    Finish,
    Row,
    RowMetadata,
    StreamEndEvent,
    TextPart,
    UserRow,
)
from streamengine.model.base import CamelModel
from tests.streamengine.engine.kit import FINISH, TEXT_END, WHOLE, Line, says, text
from turns import Cause, TurnError, TurnHandle, TurnRecord
from turns.handles.evidence import Unreadable, judge_uncorrelated
from turns.model.cause import (
    ConservativeFallback,
    CorrelatedStreamEnd,
    CreationAdmissionFailure,
    ExplicitInterrupt,
    ManualSupersession,
    StaleRestart,
    TerminalStreamError,
    UserStreamAbort,
    is_transient,
    reason_of,
    status_of,
)
from turns.model.record import now

from .conftest import MakeProcess
from .kit import STORE_FAULT, WORKSPACE, Process, correlation, on_disk

CAUSES: dict[str, Cause] = {
    cause.kind: cause
    for cause in (
        each.model_construct(**dict.fromkeys(each.model_fields.keys() - {"kind"}, "x"))
        for each in get_args(Cause)
    )
}
KINDS = {
    "creation-admission-failure",
    "creation-validation-failure",
    "launch-canceled",
    "send-failure",
    "stale-history-recovery",
    "stale-restart",
    "correlated-stream-end",
    "user-stream-abort",
    "continuation-failure",
    "terminal-stream-error",
    "recovery-admission-failure",
    "explicit-interrupt",
    "manual-supersession",
    "conservative-fallback",
}

COMPLETED = CorrelatedStreamEnd(message_id="a_1", finish_reason="stop")


class Foreign(CamelModel):
    """A cause of somebody's own."""

    kind: str = "explicit-interrupt"
    by: str = "ada"


class Sub(ExplicitInterrupt):
    """A cause of somebody's own that passes for one of ours."""


def unchecked(model: Any, /, **fields: Any) -> Any:
    """As somebody makes one who checks no types."""
    return model.model_construct(**fields)


MALFORMED: dict[str, Any] = {
    "missing": None,
    "a kind alone": "explicit-interrupt",
    "fields": {"kind": "explicit-interrupt", "by": "ada"},
    "foreign": Foreign(),
    "a subclass": Sub(by="ada"),
    "the class": ExplicitInterrupt,
    "blank words": ExplicitInterrupt.model_construct(by=" \n"),
    "blank id": ManualSupersession.model_construct(message_id=""),
    "malformed id": ManualSupersession.model_construct(message_id="../up"),
    "no evidence": unchecked(ManualSupersession),
    "unknown kind": unchecked(ExplicitInterrupt, kind="because", by="ada"),
    "no reason": ConservativeFallback.model_construct(reason=""),
}


async def running(process: MakeProcess, **options: Any) -> tuple[Process, TurnHandle, Line]:
    line = Line()
    p = await process(line, WHOLE, **options)
    handle = await p.create(attention="notify", disposable=True)
    line.give(text("One, two"))
    await p.idle()
    return p, handle, line


def settle(p: Process, handle: TurnHandle, cause: Any) -> Effect[TurnRecord, TurnError]:
    return p.turns.settlement.settle(handle.handle_id, cause).map(lambda verdict: verdict.record)


# ---- a cause is needed


@pytest.mark.spec("T6")
@pytest.mark.parametrize("malformed", MALFORMED)
async def test_a_settlement_without_a_cause_has_no_effect(
    process: MakeProcess, tmp_path: Path, malformed: str
) -> None:
    p, handle, _ = await running(process)
    waiter = p.waiting(handle)
    await p.idle()
    before, stored = await p.get(handle), on_disk(tmp_path, handle)
    writes = len(p.store.written)

    with pytest.raises(TurnError) as raised:
        await p.rt.run(settle(p, handle, MALFORMED[malformed]))

    assert raised.value.kind == "invalid_cause"
    assert await p.get(handle) == before
    assert on_disk(tmp_path, handle) == stored
    assert len(p.store.written) == writes
    assert waiter.poll() is None
    assert (p.told.attention, p.told.disposed) == ([], [])


@pytest.mark.spec("T6")
async def test_a_cause_is_looked_at_under_the_lock_of_the_handle(process: MakeProcess) -> None:
    """Whoever holds it is never overtaken, not even by somebody who would be refused."""
    p, handle, _ = await running(process)
    async with p.turns.settlement._book.locks.hold(handle.handle_id):
        refused = p.rt.run_fork(settle(p, handle, None).exit())
        await p.idle()
        assert refused.poll() is None
    await p.idle()
    assert refused.poll() is not None


async def test_nobody_settles_a_turn_that_is_not_there(process: MakeProcess) -> None:
    p = await process()

    with pytest.raises(TurnError, match="not found"):
        await p.rt.run(p.turns.settlement.settle("wst_x", StaleRestart()))


def test_the_causes_are_those_of_the_rules() -> None:
    assert set(CAUSES) == KINDS


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_each_cause_has_a_status_a_reason_and_a_place(kind: str) -> None:
    cause = CAUSES[kind]

    assert (reason_of(cause) is None) == (status_of(cause) == "completed")
    if status_of(cause) == "completed":
        assert not is_transient(cause)


def test_words_of_evidence_are_not_blank() -> None:
    with pytest.raises(ValidationError):
        CreationAdmissionFailure(error=" ")


@pytest.mark.spec("T2")
def test_a_row_of_a_person_without_a_usable_id_is_no_evidence() -> None:
    record = TurnRecord(
        handle_id="wst_1",
        owner_workspace_id="o",
        workspace_id=WORKSPACE,
        turn_id="turn_1",
        created_at=now(),
        updated_at=now(),
    )
    mark = correlation(TurnHandle("wst_1", "turn_1"), "o")
    rows: list[Row] = [
        UserRow(id="u_1", metadata=RowMetadata(correlation=mark)),
        UserRow.model_construct(id="", parts=(), metadata=RowMetadata()),
        AssistantRow(id="a_1"),
    ]

    assert isinstance(judge_uncorrelated(rows, record, "a_1"), Unreadable)


# ---- the order of effects


@pytest.mark.spec("T9")
async def test_the_record_is_on_disk_before_a_waiter_wakes(
    process: MakeProcess, tmp_path: Path
) -> None:
    p, handle, line = await running(process)
    seen: list[str] = []
    gate = p.store.hold(lambda record: record.is_terminal)
    waiter = p.waiting(handle)
    waiter.add_observer(lambda _exit: seen.append(on_disk(tmp_path, handle)["status"]))
    line.give(TEXT_END, FINISH)
    line.end()
    await gate.begun.wait()
    await p.idle()
    assert waiter.poll() is None
    assert (await p.rt.run(p.turns.get(handle.handle_id))).status == "running"

    gate.go.set()
    await p.idle()
    assert seen == ["completed"]


async def test_the_effects_of_a_settlement_have_an_order(process: MakeProcess) -> None:
    log: list[str] = []

    def note(what: str) -> Effect[Any]:
        return Effect.sync(lambda: log.append(what))

    def dispose(_record: TurnRecord) -> Effect[object, Exception]:
        return note("workspace")

    def tell(_record: TurnRecord) -> None:
        log.append("attention")

    p, handle, _ = await running(process, dispose=dispose, on_attention=tell)
    p.store.before_write = lambda record: note(f"persist {record.status}")
    p.turns.observe(lambda record: log.append(f"mirror {record.status}"))
    waiter = p.waiting(handle)
    waiter.add_observer(lambda _exit: log.append("waiter"))
    await p.idle()

    await p.rt.run(settle(p, handle, StaleRestart()))
    await p.idle()

    marks = ["persist interrupted", "mirror interrupted"]
    assert log == [*marks, "waiter", "workspace", *marks, *marks, "attention"]


async def test_a_record_that_cant_be_written_changes_nothing_and_is_tried_again(
    process: MakeProcess, tmp_path: Path
) -> None:
    p, handle, line = await running(process)
    waiter = p.waiting(handle)
    p.store.failing = STORE_FAULT
    line.give(TEXT_END, FINISH)
    line.end()
    with capture_logs() as logs:
        await p.idle()
    assert any("tried again" in log["event"] for log in logs)
    assert await p.status(handle) == "running"
    assert waiter.poll() is None

    await p.desk.pass_time(1)
    assert await p.status(handle) == "running"
    p.store.failing = None
    await p.desk.pass_time(2)

    assert await p.status(handle) == "completed"
    assert on_disk(tmp_path, handle)["status"] == "completed"
    assert waiter.poll() is not None


# ---- once


@pytest.mark.spec("T8")
@pytest.mark.parametrize(
    ("first", "second"),
    [
        (COMPLETED, ExplicitInterrupt(by="ada")),
        (COMPLETED, TerminalStreamError(message_id="a_1", error_type="unknown", error="no")),
        (ExplicitInterrupt(by="ada"), StaleRestart()),
        (StaleRestart(), TerminalStreamError(message_id="a_1", error_type="unknown", error="no")),
        # By an end of its own, which corrects nothing that a person decided, or that completed.
        (ExplicitInterrupt(by="ada"), COMPLETED),
        (UserStreamAbort(message_id="a_1"), COMPLETED),
        (ManualSupersession(message_id="u_1"), COMPLETED),
        (COMPLETED, CorrelatedStreamEnd(message_id="a_2", finish_reason="stop")),
        # An end that did not finish is no proof.
        (StaleRestart(), CorrelatedStreamEnd(message_id="a_2", finish_reason="length")),
    ],
    ids=lambda cause: cause.kind,
)
async def test_a_settled_turn_stays_as_it_is(
    process: MakeProcess, tmp_path: Path, first: Cause, second: Cause
) -> None:
    p, handle, _ = await running(process)
    await p.rt.run(settle(p, handle, first))
    await p.idle()
    before, stored = await p.get(handle), on_disk(tmp_path, handle)

    verdict = await p.rt.run(p.turns.settlement.settle(handle.handle_id, second))

    assert verdict.record == before
    assert not verdict.is_new
    assert on_disk(tmp_path, handle) == stored


@pytest.mark.spec("T8")
@pytest.mark.parametrize(
    "first",
    [
        StaleRestart(),
        ConservativeFallback(reason="unreadable"),
        TerminalStreamError(message_id="a_1", error_type="network", error="no"),
        CorrelatedStreamEnd(message_id="a_1", finish_reason="length"),
    ],
    ids=lambda cause: cause.kind,
)
async def test_an_end_of_its_own_corrects_what_was_transient(
    process: MakeProcess, tmp_path: Path, first: Cause
) -> None:
    p, handle, _ = await running(process)
    waiter = p.waiting(handle)
    await p.rt.run(settle(p, handle, first))
    await p.idle()
    woke = waiter.poll()
    told = (list(p.told.attention), list(p.told.disposed))

    p.desk.engine.events.emit(
        StreamEndEvent(
            workspace_id=WORKSPACE,
            message_id="a_2",
            correlation=correlation(handle),
            metadata=RowMetadata(finish_reason="stop"),
            parts=(TextPart(text="Three"),),
        )
    )

    record = await p.get(handle)
    assert (record.status, record.cause, record.error) == (
        "completed",
        "correlated-stream-end",
        None,
    )
    assert record.final_message == "Three"
    assert on_disk(tmp_path, handle)["status"] == "completed"
    # Who waited was told before, and nobody is told again.
    assert woke is not None
    assert isinstance(woke, fb.Failure)
    assert (p.told.attention, p.told.disposed) == told
    assert len(p.told.attention) == 1


@pytest.mark.spec("T8")
async def test_an_uncorrelated_end_corrects_nothing(process: MakeProcess) -> None:
    p, handle, _ = await running(process)
    await p.rt.run(settle(p, handle, StaleRestart()))

    for mark in (None, {**correlation(handle), "turnId": "turn_old"}):
        p.desk.engine.events.emit(
            StreamEndEvent(
                workspace_id=WORKSPACE,
                message_id="a_2",
                correlation=mark,
                metadata=RowMetadata(finish_reason="stop"),
                parts=(),
            )
        )

    assert await p.status(handle) == "interrupted"


@pytest.mark.spec("T8")
async def test_of_many_who_settle_at_once_one_decides(process: MakeProcess) -> None:
    p, handle, _ = await running(process)
    wishes = [ExplicitInterrupt(by=f"person {n}") for n in range(20)]

    verdicts = await p.rt.run(
        fb.all_(
            [p.turns.settlement.settle(handle.handle_id, wish) for wish in wishes],
            concurrency="unbounded",
        )
    )

    assert [verdict.is_new for verdict in verdicts].count(True) == 1
    assert len({verdict.record.error for verdict in verdicts}) == 1
    await p.idle()
    marks = ["terminal_attention_notified_at", "workspace_disposed_at"]
    settled = [r for r in p.store.written if r.is_terminal]
    assert [[mark for mark in marks if getattr(r, mark)] for r in settled] == [
        [],
        ["workspace_disposed_at"],
        marks,
    ]


# ---- history that can't be read


@pytest.mark.spec("T22")
@pytest.mark.parametrize("method", ["read", "read_archive"])
async def test_an_end_of_its_own_over_an_unreadable_history_is_never_completed(
    process: MakeProcess, method: Any
) -> None:
    p, handle, line = await running(process)
    if method == "read_archive":
        # Its prompt is not among the rows: it may have been sealed.
        (p.desk.disk.directory() / "chat.jsonl").write_text("")
    p.desk.history.fail(method)

    line.give(TEXT_END, FINISH)
    line.end()

    record = await p.get(handle)
    assert (record.status, record.cause) == ("interrupted", "conservative-fallback")
    assert record.evidence is not None
    assert "the disk says no" in record.evidence["reason"]


# ---- errors


@pytest.mark.spec("T1")
async def test_a_failed_stream_is_an_error_of_the_turn(process: MakeProcess) -> None:
    p = await process(says(text("Once "), Finish(finish_reason="other")))

    handle = await p.create()

    record = await p.get(handle)
    assert (record.status, record.cause) == ("error", "terminal-stream-error")
    assert record.evidence is not None
    assert record.evidence["messageId"] == record.message_id
    assert record.evidence["errorType"] == "stream_truncated"


@pytest.mark.spec("T1")
async def test_a_prompt_that_cant_be_sent_is_an_error_of_the_turn(process: MakeProcess) -> None:
    p = await process(WHOLE)
    p.desk.history.fail("append_user")

    handle = await p.create()

    record = await p.get(handle)
    assert (record.status, record.cause) == ("error", "send-failure")
    assert "the disk says no" in (record.error or "")


@pytest.mark.spec("T1")
async def test_a_turn_that_cant_be_opened_is_an_error(process: MakeProcess) -> None:
    def broken(*_: Any) -> Any:
        raise OSError("no room")

    p = await process(WHOLE, open_turn=broken)

    handle = await p.create()

    record = await p.get(handle)
    assert (record.status, record.cause) == ("error", "creation-admission-failure")
    assert record.evidence == {"error": "no room"}
    assert p.desk.provider.calls == []
