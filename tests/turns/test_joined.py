"""The manager, the agent loop and the holds as one: what none of them shows alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fibers import Effect, Scope
from tests.streamengine.engine.kit import (
    FINISH,
    TEXT_END,
    WHOLE,
    WORKSPACE,
    Hand,
    Line,
    calls,
    says,
    text,
)
from turns import Continuations, TurnError, TurnOptions
from turns.agent_turns import agent_turns
from turns.loop import Background
from turns.tools import ShellTool

from .kit import MakeHouse

pytestmark = pytest.mark.lifecycle


@pytest.mark.spec("T3", "O10")
async def test_a_turn_completes_once_and_gives_all_back(house: MakeHouse) -> None:
    h = house(WHOLE)
    settled: list[str] = []
    h.turns.observe(lambda record: settled.append(record.status))

    handle = await h.create()

    record = await h.record(handle)
    assert (record.status, record.cause) == ("completed", "correlated-stream-end")
    assert settled.count("completed") == 1
    assert h.is_free
    assert not any(block.is_streaming for block in h.workspace.message.blocks)


@pytest.mark.spec("T4", "U20")
async def test_what_is_said_meanwhile_is_of_the_same_turn(house: MakeHouse) -> None:
    line = Line()
    h = house(line, WHOLE)
    handle = await h.create("Go")
    line.give(text("first"))
    await h.desk.idle()

    await h.do(h.turns.steer(handle.handle_id, "And then?"))
    line.give(TEXT_END, FINISH)
    line.end()
    await h.desk.idle()

    record = await h.record(handle)
    assert (record.status, record.cause) == ("completed", "correlated-stream-end")
    users = [row["parts"][0]["text"] for row in h.desk.disk.rows() if row["role"] == "user"]
    assert users == ["Go", "And then?"]
    assert h.desk.disk.answers() == ["first", "Hello there"]
    assert record.message_id == h.desk.disk.rows()[-1]["id"]


@pytest.mark.spec("U15", "T18")
async def test_a_hard_end_takes_back_what_was_said_and_settles_the_record(
    house: MakeHouse,
) -> None:
    line = Line()
    h = house(line)
    handle = await h.create()
    line.give(text("half"))
    await h.desk.idle()

    await h.do(h.turns.finish(handle.handle_id, hard=True))

    assert (await h.on_disk(handle)).status == "interrupted"
    assert h.desk.disk.rows() == []
    assert h.is_free


@pytest.mark.spec("T18")
async def test_a_hard_end_of_a_turn_without_a_live_stream_settles_it_too(
    house: MakeHouse,
) -> None:
    """It waits for work in the background: no stream is there whose abort would say it."""
    never = Hand("monitor", lambda _given, signal: signal.wait())
    h = house(calls("monitor"), says(text("Waiting."), FINISH), tools=lambda _: [Background(never)])
    handle = await h.create()
    assert (await h.record(handle)).status == "running"
    assert not h.desk.engine.is_streaming(WORKSPACE)

    await h.do(h.turns.finish(handle.handle_id, hard=True))

    record = await h.on_disk(handle)
    assert (record.status, record.cause) == ("interrupted", "explicit-interrupt")
    assert h.desk.disk.rows() == []
    assert h.is_free


@pytest.mark.spec("U26")
async def test_a_soft_end_completes_with_a_last_answer(house: MakeHouse) -> None:
    never = Hand("monitor", lambda _given, signal: signal.wait())
    h = house(
        calls("monitor"),
        says(text("Waiting."), FINISH),
        says(text("In short."), FINISH),
        tools=lambda _: [Background(never)],
    )
    handle = await h.create()

    await h.do(h.turns.finish(handle.handle_id))

    assert (await h.record(handle)).status == "completed"
    assert h.desk.disk.answers()[-1] == "In short."
    assert h.is_free


@pytest.mark.spec("R21")
async def test_a_stop_of_an_idle_workspace_leaves_nothing_behind(house: MakeHouse) -> None:
    h = house(WHOLE)
    with pytest.raises(TurnError) as idle:
        await h.do(h.joined.loop.stop(WORKSPACE))
    assert idle.value.kind == "not_found"
    await h.desk.stop("user")
    assert await h.do(h.turns.list()) == []

    handle = await h.create()

    assert (await h.record(handle)).status == "completed"


@pytest.mark.spec("R27")
@pytest.mark.parametrize("how", ["interrupt", "stop", "hard end"])
async def test_each_of_two_turns_in_a_row_can_be_stopped(house: MakeHouse, how: str) -> None:
    h = house(Line(), Line())

    for _ in range(2):
        handle = await h.create()
        assert (await h.record(handle)).status == "running"
        stops: dict[str, Callable[[], Effect[object, TurnError]]] = {
            "interrupt": partial(h.turns.interrupt, handle.handle_id, by="ada"),
            "stop": partial(h.joined.loop.stop, WORKSPACE),
            "hard end": partial(h.turns.finish, handle.handle_id, hard=True),
        }
        await h.do(stops[how]())
        assert (await h.record(handle)).status == "interrupted"
        assert h.is_free


@pytest.mark.spec("T14", "I9")
async def test_a_shutdown_gives_back_what_is_held_and_leaves_the_record_to_go_on(
    house: MakeHouse,
) -> None:
    line = Line()
    h = house(line)
    handle = await h.create()
    line.give(text("half"))
    await h.desk.idle()
    assert len(h.open_turns) == 1

    await h.do(h.scope.close(reason="system"))

    assert (await h.on_disk(handle)).status == "running"
    assert h.is_free
    assert h.desk.disk.answers() == ["half"]


@pytest.mark.spec("O12", "O13")
async def test_only_the_question_that_waits_can_be_answered_and_only_with_yes_or_no(
    house: MakeHouse,
) -> None:
    h = house(
        calls("shell", shell={"command": "true"}),
        WHOLE,
        tools=lambda open_turns: [ShellTool(open_turns, permission="ask")],
    )
    handle = await h.create()
    card = h.workspace.permissions.card
    assert card is not None

    def answer(request_id: str, said: object) -> Effect[bool, TurnError]:
        return h.turns.answer_permission(handle.handle_id, request_id, said)

    assert await h.do(answer("another", True)) is False
    with pytest.raises(TurnError) as refused:
        await h.do(answer(card.request_id, "yes"))
    assert refused.value.kind == "bad_answer"
    assert h.workspace.permissions.card == card
    assert await h.do(answer(card.request_id, {"allow": False})) is True

    assert (await h.record(handle)).status == "completed"
    with pytest.raises(TurnError) as late:
        await h.do(answer(card.request_id, True))
    assert late.value.kind == "not_running"
    assert h.is_free


@pytest.mark.spec("U12")
async def test_a_subturn_runs_below_a_turn_and_leaves_its_conversation_alone(
    house: MakeHouse,
) -> None:
    line = Line()
    h = house(line, children=[says(text("found it"), FINISH)])
    handle = await h.create()

    result = await h.do(
        h.turns.spawn_subturn(handle.handle_id, {"prompt": "Look", "agent": "main"})
    )

    assert getattr(result, "content", None) == "found it"
    assert [row["role"] for row in h.desk.disk.rows()] == ["user"]
    line.give(text("done"), TEXT_END, FINISH)
    line.end()
    await h.desk.idle()
    assert (await h.record(handle)).status == "completed"


def test_what_is_joined_here_cannot_be_given(tmp_path: Path) -> None:
    given: Any = dict.fromkeys(("engine", "history", "store", "open_turns", "agents"))

    with pytest.raises(ValueError, match=r"TurnOptions\.continuations"):
        agent_turns(
            **given,
            scope=Scope(),
            child_engine=lambda history: given[history],
            options=TurnOptions(continuations=Continuations()),
        )


@pytest.mark.spec("T1")
async def test_a_hard_end_whose_record_can_t_be_written_settles_once_it_can(
    house: MakeHouse,
) -> None:
    """No stream is live: nothing else would say that it has ended."""
    never = Hand("monitor", lambda _given, signal: signal.wait())
    h = house(calls("monitor"), says(text("Waiting."), FINISH), tools=lambda _: [Background(never)])
    handle = await h.create()

    h.store.failing = TurnError("store", "the disk says no", "Try again.")
    with pytest.raises(TurnError) as refused:
        await h.do(h.turns.finish(handle.handle_id, hard=True))
    h.store.failing = None
    await h.desk.pass_time(5)

    assert refused.value.kind == "store"
    record = await h.on_disk(handle)
    assert (record.status, record.cause) == ("interrupted", "explicit-interrupt")
    assert h.is_free


@pytest.mark.spec("T1")
async def test_an_answer_that_was_not_the_last_does_not_complete_a_turn_that_fails_after_it(
    house: MakeHouse,
) -> None:
    line = Line()
    h = house(line)
    handle = await h.create()
    line.give(text("first"))
    await h.desk.idle()
    await h.do(h.turns.steer(handle.handle_id, "And then?"))

    h.desk.history.fail("append_user")
    line.give(TEXT_END, FINISH)
    line.end()
    await h.desk.pass_time(30)

    record = await h.on_disk(handle)
    assert (record.status, record.cause) == ("error", "continuation-failure")
    assert h.is_free


@pytest.mark.spec("T1")
async def test_a_hard_end_after_the_last_word_changes_nothing(house: MakeHouse) -> None:
    """The answer is stored and stays: the record says so too."""
    h = house(WHOLE)
    hold = h.desk.history.hold("finalize")
    handle = await h.create()
    await hold.begun.wait()

    await h.do(h.turns.finish(handle.handle_id, hard=True))
    hold.go.set()
    await h.desk.idle()

    assert h.desk.disk.answers() == ["Hello there"]
    record = await h.on_disk(handle)
    assert (record.status, record.final_message) == ("completed", "Hello there")


@pytest.mark.parametrize("end", ["interrupt", "hard finish"])
@pytest.mark.spec("O1", "T18")
async def test_a_question_that_waits_goes_with_its_turn(house: MakeHouse, end: str) -> None:
    h = house(
        calls("shell", shell={"command": "true"}),
        tools=lambda open_turns: [ShellTool(open_turns, permission="ask")],
    )
    handle = await h.create()
    assert h.workspace.permissions.card is not None

    if end == "interrupt":
        await h.do(h.turns.interrupt(handle.handle_id, by="ada"))
    else:
        await h.do(h.turns.finish(handle.handle_id, hard=True))

    record = await h.on_disk(handle)
    assert (record.status, record.cause) == ("interrupted", "explicit-interrupt")
    assert h.is_free


@pytest.mark.spec("T7", "U15")
async def test_the_record_of_a_hard_end_says_by_whom_and_what_became_of_the_answer(
    house: MakeHouse,
) -> None:
    h = house(Line())
    handle = await h.create()

    await h.do(h.turns.finish(handle.handle_id, hard=True))

    record = await h.on_disk(handle)
    assert (record.status, record.cause) == ("interrupted", "explicit-interrupt")
    assert record.evidence == {"by": "user", "hard": True}
    assert record.error == "ended hard by user, with what it said taken back"


async def test_after_a_shutdown_nothing_that_is_queued_counts_as_running(house: MakeHouse) -> None:
    h = house(Line())
    running, queued = await h.create(), await h.create("And then")

    await h.do(h.scope.close(reason="system"))

    assert h.turns.describe()["running"] == []
    assert (await h.on_disk(running)).status == "running"
    assert (await h.on_disk(queued)).status == "queued"


@pytest.mark.spec("T16")
async def test_after_a_restart_an_answer_with_more_to_come_is_no_final_one(
    house: MakeHouse,
) -> None:
    never = Hand("monitor", lambda _given, signal: signal.wait())
    h = house(calls("monitor"), says(text("Waiting."), FINISH), tools=lambda _: [Background(never)])
    handle = await h.create()
    await h.do(h.scope.close(reason="system"))
    assert (await h.on_disk(handle)).status == "running"

    record = await house(WHOLE).record(handle)

    assert (record.status, record.cause) == ("interrupted", "stale-restart")


@pytest.mark.spec("T14")
async def test_a_turn_whose_agent_was_stopped_by_the_process_says_that_it_has_none(
    house: MakeHouse,
) -> None:
    """A person's stream took the place of its own; it stays running, as nobody stopped it."""
    h = house(Line(), Line())
    handle = await h.create()
    await h.desk.start("I do it myself")
    await h.desk.idle()
    assert (await h.record(handle)).status == "running"

    with pytest.raises(TurnError, match="goes on without its agent: that has ended") as refused:
        await h.do(h.turns.steer(handle.handle_id, "left"))

    assert refused.value.kind == "without_agent"
    record = await h.do(h.turns.interrupt(handle.handle_id, by="ada"))
    assert record.status == "interrupted"
