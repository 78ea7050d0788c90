"""The other holds, each by itself."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

import fibers as fb
from fibers import Clock
from turns.holds.continuation import Continuation, ContinuationFlag
from turns.holds.records import KEPT_CLOSED
from turns.holds.warnings import UndoWarning
from turns.open_turn import OpenTurn, TurnEnd

from .kit import UNCLEAN, Bench

# ---- the message


@pytest.mark.spec("O10")
async def test_only_the_last_block_of_a_message_streams(bench: Bench) -> None:
    turn = bench.open()
    message = bench.workspace.message
    turn.message.add("text", "before any message")
    turn.message.begin("m1")
    turn.message.add("reasoning", "hm")
    turn.message.add("text", "Hel")
    turn.message.add("text", "lo")
    turn.message.end_block()
    turn.message.add("text", "again")

    shown = [(block.kind, block.text, block.is_streaming) for block in message.blocks]

    assert shown == [
        ("reasoning", "hm", False),
        ("text", "Hello", False),
        ("text", "again", True),
    ]
    turn.message.begin("m2")
    assert (message.message_id, message.blocks) == ("m2", [])


@pytest.mark.spec("O10")
async def test_the_end_of_one_turn_leaves_the_message_of_the_next(bench: Bench) -> None:
    first, second = bench.open("t1"), bench.open("t2")
    first.message.begin("m1")
    await bench.close(first, "stalled")
    second.message.begin("m2")
    second.message.add("text", "x")
    await bench.close(first, "died")

    assert bench.workspace.message.is_streaming


@pytest.mark.spec("O10")
async def test_the_end_of_a_turn_leaves_a_message_that_took_the_place_of_its_own(
    bench: Bench,
) -> None:
    first, second = bench.open("t1"), bench.open("t2")
    first.message.begin("m1")
    first.message.add("text", "x")
    second.message.begin("m2")
    second.message.add("text", "y")
    first.message.add("text", "z")

    await bench.close(first, "stalled")

    shown = [(block.text, block.is_streaming) for block in bench.workspace.message.blocks]
    assert shown == [("y", True)]


# ---- records


@pytest.mark.parametrize("end", UNCLEAN)
@pytest.mark.spec("O14")
async def test_an_unclean_end_aborts_what_runs_and_keeps_what_was_done(
    bench: Bench, end: TurnEnd
) -> None:
    turn = bench.open()
    for number in range(3):
        turn.records.open(f"c{number}", "tool")
    turn.records.close("c0")
    turn.records.close("c1", failed=True)

    await bench.close(turn, end)

    states = [r.state for n in range(3) if (r := bench.workspace.records.get(f"c{n}"))]
    assert states == ["completed", "failed", "aborted"]


async def test_a_clean_end_says_that_what_still_ran_ended_with_it(bench: Bench) -> None:
    turn = bench.open()
    turn.records.open("c1", "tool")

    await bench.close(turn, "completed")

    record = bench.workspace.records.get("c1")
    assert record is not None
    assert record.state == "ended"


@pytest.mark.spec("O14")
async def test_an_end_touches_no_record_or_task_of_another_turn(bench: Bench) -> None:
    first, second = bench.open("t1"), bench.open("t2")
    second.records.open("c2", "tool")
    second.records.task_started("task2", "c2")

    await bench.close(first, "stalled")

    assert [record.tool_call_id for record in bench.workspace.records.running] == ["c2"]
    assert bench.workspace.records.call_of("task2") == "c2"


async def test_a_call_of_nobody_s_is_left_alone(bench: Bench) -> None:
    first, second = bench.open("t1"), bench.open("t2")
    second.records.open("c2", "tool")

    first.records.close("c2")
    first.records.alive("c2")
    first.records.task_started("task", "c2")
    first.records.close("unknown")

    record = bench.workspace.records.get("c2")
    assert record is not None
    assert (record.state, record.reports_itself_alive) == ("running", False)
    assert bench.workspace.records.task_ids == ()


async def test_old_records_are_forgotten_and_running_ones_never(bench: Bench) -> None:
    turn = bench.open()
    turn.records.open("first", "tool")
    for number in range(KEPT_CLOSED * 2):
        turn.records.open(f"c{number}", "tool")
        turn.records.close(f"c{number}")

    assert len(bench.workspace.records._records) <= KEPT_CLOSED + 2
    assert bench.workspace.records.get("first") is not None
    assert bench.workspace.records.get("c0") is None


async def test_a_task_is_forgotten_with_the_record_of_its_call(bench: Bench) -> None:
    """No end but a teardown forgets it: a workspace that lives for months would keep them all."""
    turn = bench.open()
    for number in range(KEPT_CLOSED * 2):
        turn.records.open(f"c{number}", "Task")
        turn.records.task_started(f"t{number}", f"c{number}")
        turn.records.close(f"c{number}")

    records = bench.workspace.records
    assert len(records.task_ids) <= KEPT_CLOSED + 2
    assert records.call_of(records.task_ids[-1]) == f"c{KEPT_CLOSED * 2 - 1}"
    assert all(records.get(records.call_of(task) or "") for task in records.task_ids)


# ---- the change group


@pytest.mark.spec("O11")
async def test_a_second_begin_joins_the_group_and_a_second_end_finds_none(bench: Bench) -> None:
    turn = bench.open()
    groups = {turn.changes.begin_if_needed() for _ in range(2)}
    (group,) = groups
    group.write("a", b"1")
    group.write("b", b"1")

    await bench.close(turn, "stalled", "stalled", "completed")

    assert bench.workspace.journal.steps() == ["t1"]
    assert not bench.workspace.watcher.is_held
    assert turn.changes._end_if_active() is None


@pytest.mark.spec("O11", "O15")
async def test_a_journal_that_can_not_be_written_leaves_the_watcher_free(bench: Bench) -> None:
    turn = bench.open()
    turn.changes.begin_if_needed().write("a", b"1")
    undo = bench.state / "undo"
    undo.rename(bench.state / "aside")
    undo.symlink_to("aside")

    with capture_logs() as logs:
        await bench.close(turn, "completed")

    assert not bench.workspace.watcher.is_held
    assert [log["hold"] for log in logs] == ["change group"]


async def test_a_write_under_way_ends_before_its_group_does(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = bench.open()
    group = turn.changes.begin_if_needed()
    folder = bench.workspace.folder
    begun, go = threading.Event(), threading.Event()
    write = folder.write

    def slow(path: str, data: bytes) -> None:
        begun.set()
        go.wait(10)
        write(path, data)

    monkeypatch.setattr(folder, "write", slow)
    writing = asyncio.ensure_future(asyncio.to_thread(group.write, "a", b"1"))
    await asyncio.to_thread(begun.wait, 10)
    closing = bench.rt.run_fork(turn.close("stalled"))
    await asyncio.sleep(0)
    assert closing.poll() is None
    go.set()
    await writing
    await bench.run(closing.join())

    assert bench.workspace.journal.steps() == ["t1"]
    assert (bench.folder / "a").read_bytes() == b"1"


# ---- warnings


@pytest.mark.parametrize("end", UNCLEAN)
@pytest.mark.spec("O6")
async def test_an_unclean_end_warns_of_nothing_then_or_later(bench: Bench, end: TurnEnd) -> None:
    turn = bench.open("t1")
    turn.warnings.add("shell")
    await bench.close(turn, end)

    after = bench.open("t2")
    await bench.close(after, "completed")

    assert bench.warnings == []


@pytest.mark.spec("O6")
async def test_a_turn_warns_of_its_own_tools_only(bench: Bench) -> None:
    first, second = bench.open("t1"), bench.open("t2")
    first.warnings.add("shell")
    second.warnings.add("mail")
    second.warnings.add("mail")

    await bench.close(second, "completed")

    assert bench.warnings == [UndoWarning("t2", ("mail",))]


async def test_who_raises_at_a_warning_keeps_nobody_from_hearing_it(bench: Bench) -> None:
    def broken(_warning: UndoWarning) -> None:
        raise RuntimeError("it is broken")

    warnings = bench.workspace.warnings
    heard: list[UndoWarning] = []
    warnings.subscribe(broken)
    stop = warnings.subscribe(heard.append)
    for turn_id in ("t1", "t2"):
        turn = bench.open(turn_id)
        turn.warnings.add("shell")
        with capture_logs():
            await bench.close(turn, "completed")
        stop()

    assert [warning.turn_id for warning in heard] == ["t1"]


# ---- attribution


async def test_changes_are_the_agent_s_while_any_turn_claims_them(bench: Bench) -> None:
    attribution = bench.workspace.attribution
    first, second = bench.open("t1"), bench.open("t2")
    authors = [attribution.author]
    for turn in (first, second):
        turn.attribution.claim()
        authors.append(attribution.author)
    for turn in (first, second):
        await bench.close(turn, "died")
        authors.append(attribution.author)

    assert authors == ["person", "agent", "agent", "agent", "person"]


# ---- the continuation flag


async def flag_of(bench: Bench) -> str | None:
    """The turn that the flag names, as another process would read it."""
    reloaded = Bench(bench.rt, bench.clock, bench.directory)
    flag = await bench.run(reloaded.workspace.continuation.read())
    return None if flag is None else flag.turn_id


@pytest.mark.spec("O3", "O8", "O9")
async def test_the_flag_is_on_disk_and_a_person_s_turn_does_not_set_it(bench: Bench) -> None:
    person = bench.open("t1")
    assert await bench.run(bench.workspace.continuation.may_arm())
    await bench.close(person, "completed")
    assert await flag_of(bench) is None

    await bench.run(bench.open("t2").continuation.mark())

    assert await flag_of(bench) == "t2"
    assert not await bench.run(bench.workspace.continuation.may_arm())


@pytest.mark.spec("O3")
async def test_an_end_does_not_clear_the_flag_of_another_turn(bench: Bench) -> None:
    first, second = bench.open("t1"), bench.open("t2")
    await bench.run(second.continuation.mark())

    await bench.close(first, "stalled")

    assert await flag_of(bench) == "t2"


@pytest.mark.parametrize(("end", "left"), [("stalled", None), ("torn-down", "t1")])
@pytest.mark.spec("O3")
async def test_an_end_while_the_flag_is_being_written_decides_about_it(
    bench: Bench, end: TurnEnd, left: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = bench.open()
    begun, go = threading.Event(), threading.Event()
    write = ContinuationFlag._write

    def slow(self: ContinuationFlag, flag: Continuation) -> None:
        begun.set()
        go.wait(10)
        write(self, flag)

    monkeypatch.setattr(ContinuationFlag, "_write", slow)
    marking = bench.rt.run_fork(turn.continuation.mark())
    await asyncio.to_thread(begun.wait, 10)
    closing = bench.rt.run_fork(turn.close(end))
    marking.interrupt_unsafe(reason="test")
    await asyncio.sleep(0)
    go.set()
    await bench.run(closing.join())
    await bench.run(marking.exit())

    assert await flag_of(bench) == left


@pytest.mark.parametrize("fault", ["no json", "a link"])
async def test_a_flag_that_can_not_be_read_counts_as_none_and_is_named(
    bench: Bench, fault: str
) -> None:
    bench.state.mkdir()
    path = bench.state / "continuation.json"
    if fault == "a link":
        path.symlink_to("/etc/passwd")
    else:
        path.write_text('{"turn')

    with capture_logs() as logs:
        assert await bench.run(bench.workspace.continuation.may_arm())

    assert [log["path"] for log in logs] == [str(path)]


# ---- readings and observers


async def test_a_reading_that_is_not_given_stays(bench: Bench) -> None:
    turn = bench.open()
    readings = bench.workspace.readings
    turn.readings.show(tokens=7)
    shown = [(readings.tokens, readings.cost_usd)]
    turn.readings.show(cost_usd=0.1)
    shown.append((readings.tokens, readings.cost_usd))

    assert shown == [(7, -1), (7, 0.1)]


async def test_an_end_leaves_the_readings_of_another_turn(bench: Bench) -> None:
    first, second = bench.open("t1"), bench.open("t2")
    first.readings.show(tokens=1)
    second.readings.show(tokens=2)

    await bench.close(first, "stalled")

    assert bench.workspace.readings.tokens == 2


async def test_an_observer_hears_of_each_change_until_it_stops(bench: Bench) -> None:
    turn = bench.open()
    heard: list[None] = []
    stop = turn.observe(lambda: heard.append(None))

    turn.readings.show(tokens=1)
    turn.message.begin("m1")
    stop()
    stop()
    turn.readings.show(tokens=2)

    assert len(heard) == 2


async def test_a_turn_is_found_by_its_id_while_it_is_open(bench: Bench) -> None:
    turn = bench.open("t1")
    with pytest.raises(ValueError, match="t1 is open already"):
        bench.open("t1")
    found = bench.turns.get("t1")
    await bench.close(turn, "completed")

    assert found is turn
    assert bench.turns.get("t1") is None
    assert len(bench.turns) == 0


async def test_who_opens_turns_is_what_a_manager_asks_for(bench: Bench) -> None:
    factory: Callable[[str, str, Clock, fb.Scope], OpenTurn] = bench.turns.open

    turn = factory("t1", "w1", bench.clock, bench.scope)

    assert (turn.turn_id, turn.workspace_id, turn.end) == ("t1", "w1", None)
    assert turn.clock is bench.clock
