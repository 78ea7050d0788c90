"""Subturns as the loop runs them: their conversations, their results, the end of the parent."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import fibers as fb
from fibers import AbortSignal
from streamengine import HistoryStore
from streamengine.model import Finish, TextPart, ToolCall
from tests.streamengine.engine.kit import (
    FINISH,
    WHOLE,
    WORKSPACE,
    Given,
    Hand,
    Line,
    calls,
    echo,
    says,
    text,
    tokens,
)
from turns.events import SubturnEndEvent, SubturnOrphanEvent, SubturnSpawnEvent, TurnEvent
from turns.model.errors import TurnError
from turns.subturns import SpawnRequest, SubturnLimits, SubturnResult, TokenBudget

from .conftest import MakeRoom
from .kit import TOO_LONG, Room, cut, error_of, fails
from .test_steering import Slow

pytestmark = pytest.mark.lifecycle


def calling(*names: str) -> tuple[Given, ...]:
    """The end of a step that calls these tools."""
    made = [ToolCall(tool_call_id=f"{name}-1", tool_name=name, input={}) for name in names]
    return (*made, Finish(finish_reason="tool-calls", raw_finish_reason="tool_calls"))


async def spawn(
    r: Room, prompt: str = "Below", **fields: Any
) -> fb.Fiber[SubturnResult, TurnError]:
    """A child of the turn that runs, as far as it can get."""
    asked: dict[str, Any] = {"agent": "helper", **fields}
    request = SpawnRequest(prompt=prompt, **asked)
    fiber = r.rt.run_fork(r.loop.subturns.spawn(request, parent=r.state)).ignore_failure()
    await r.desk.idle()
    return fiber


def result_of(fiber: fb.Fiber[SubturnResult, TurnError]) -> SubturnResult:
    exit_ = fiber.poll()
    assert exit_ is not None, "the child still runs"
    return exit_.unwrap()


async def rows_of(r: Room, history: HistoryStore) -> list[str]:
    workspaces = await r.rt.run(history.workspaces())
    rows = await r.rt.run(history.read(workspaces[0]))
    return ["".join(p.text for p in row.parts if isinstance(p, TextPart)) for row in rows]


# ---- a conversation of its own


@pytest.mark.spec("U13")
async def test_a_childs_messages_are_nobody_elses(room: MakeRoom) -> None:
    r = room(Line(), children=[WHOLE])
    await r.start()

    child = await spawn(r)

    assert result_of(child).content == "Hello there"
    assert r.prompts == ["Go"]
    assert await rows_of(r, r.child_histories[0]) == ["Below", "Hello there"]
    assert not (r.desk.disk.path / "workspaces" / result_of(child).child_id).exists()
    assert r.child_provider.calls[0].request.model == "small"


@pytest.mark.spec("U13")
async def test_a_childs_conversation_keeps_its_newest_rows(room: MakeRoom) -> None:
    r = room(Line(), children=[WHOLE], limits=SubturnLimits(history_rows=3))
    await r.start()
    slow = Slow()
    child_tools = (slow.hand,)
    r.child_provider.answers[:] = [calls("slow"), WHOLE]
    child = await spawn(r, tools=child_tools)
    for words in ("one", "two", "three"):
        await r.do(r.loop.steer(r.loop.registry.children[0].turn_id, words))
    slow.go.set()
    await r.desk.idle()

    assert result_of(child).error is None
    assert await rows_of(r, r.child_histories[0]) == ["Hello there", "three", "Hello there"]


async def test_a_childs_tools_work_in_the_roots_workspace_and_in_its_name(room: MakeRoom) -> None:
    tool = echo()
    r = room(Line(), children=[calls("echo"), WHOLE], child_tools=[tool])
    await r.start()

    await spawn(r)

    assert tool.uses[0].workspace_id == WORKSPACE
    assert (tool.uses[0].correlation or {})["turnId"] == r.turn_id


@pytest.mark.spec("U13", "U21")
async def test_a_child_recovers_as_its_parent_does(room: MakeRoom) -> None:
    r = room(Line(), children=[fails(TOO_LONG), cut("half"), WHOLE])
    await r.start()

    child = await spawn(r)

    assert result_of(child).content == "Hello there"
    recovery = r.loop.config.recovery_prompt
    rows = await rows_of(r, r.child_histories[0])
    assert rows == ["Below", "half", recovery, "Hello there"]


async def test_a_child_that_fails_says_so_to_who_asked(room: MakeRoom) -> None:
    r = room(Line(), children=[fails("no key")])
    parent = await r.start()

    child = await spawn(r)

    assert result_of(child).content == "SubTurn failed: stream: no key"
    assert parent.poll() is None


# ---- results in the parent's loop


@pytest.mark.spec("U12")
async def test_a_result_that_comes_during_a_tool_is_heard_before_the_next_call(
    room: MakeRoom,
) -> None:
    slow = Slow()
    r = room(calls("slow"), WHOLE, children=[WHOLE], tools=[slow.hand])
    parent = await r.start()

    await spawn(r, delivers=True)
    slow.go.set()
    await r.desk.idle()

    assert parent.poll() == fb.Success(None)
    assert r.prompts == ["Go", "[SubTurn Result] Hello there"]
    assert len(r.desk.provider.calls) == 2


@pytest.mark.spec("U18")
async def test_results_that_come_after_the_last_call_are_in_the_answer(room: MakeRoom) -> None:
    line = Line()
    r = room(line, children=[says(text("late one"), FINISH), says(text("late two"), FINISH)])
    parent = await r.start()
    line.give(text("The answer."))
    await spawn(r, delivers=True)
    await spawn(r, delivers=True)

    line.give(FINISH)
    line.end()
    await r.desk.idle()

    assert parent.poll() == fb.Success(None)
    answer = "The answer.\n\n[SubTurn Result] late one\n\n[SubTurn Result] late two"
    assert r.content == answer
    assert r.desk.disk.answers() == [answer]
    assert r.desk.tape.said == answer


@pytest.mark.spec("U5", "U7")
async def test_a_result_after_the_last_look_is_an_orphan(room: MakeRoom) -> None:
    child_line = Line()
    r = room(WHOLE, children=[child_line])
    hold = r.desk.history.hold("finalize")
    await r.start()
    await hold.begun.wait()
    child = await spawn(r, delivers=True, critical=True)
    child_line.give(text("too late"), FINISH)
    child_line.end()
    await r.desk.idle()
    hold.go.set()
    await r.desk.idle()

    assert result_of(child).content == "too late"
    orphan = r.of(SubturnOrphanEvent)[0]
    assert (orphan.reason, orphan.content) == ("parent_finished", "too late")
    assert r.desk.disk.answers() == ["Hello there"]


# ---- the end of the parent


@pytest.mark.spec("U4")
async def test_a_child_stops_at_its_next_iteration_when_its_parent_has_ended(
    room: MakeRoom,
) -> None:
    slow, line = Slow(), Line()
    first = says(text("As far as I got."), *calling("slow"))
    r = room(line, children=[first, WHOLE], child_tools=[slow.hand])
    await r.start()
    child = await spawn(r)

    line.give(text("done"), FINISH)
    line.end()
    await r.desk.idle()
    await r.do(r.turns[0].close("completed"))
    assert child.poll() is None
    slow.go.set()
    await r.desk.idle()

    assert (result_of(child).content, result_of(child).error) == ("As far as I got.", None)
    assert len(r.child_provider.calls) == 1
    assert [event.status for event in r.of(SubturnEndEvent)] == ["completed"]


@pytest.mark.spec("U4")
async def test_one_whose_parent_has_ended_already_asks_nothing(room: MakeRoom) -> None:
    r = room(WHOLE, children=[WHOLE])
    hold = r.desk.history.hold("finalize")
    await r.start()
    await hold.begun.wait()

    child = await spawn(r)
    hold.go.set()
    await r.desk.idle()

    assert (result_of(child).error, r.child_provider.calls) == (None, [])


@pytest.mark.spec("U5")
async def test_a_critical_child_goes_on_to_its_end_and_its_result_is_kept(room: MakeRoom) -> None:
    slow, line = Slow(), Line()
    r = room(line, children=[calls("slow"), WHOLE], child_tools=[slow.hand])
    await r.start()
    child = await spawn(r, critical=True, delivers=True)
    line.give(text("done"), FINISH)
    line.end()
    await r.desk.idle()
    await r.do(r.turns[0].close("completed"))

    slow.go.set()
    await r.desk.idle()

    assert result_of(child).content == "Hello there"
    assert [event.reason for event in r.of(SubturnOrphanEvent)] == ["parent_finished"]


@pytest.mark.spec("U2")
async def test_a_child_that_outlived_its_parent_can_still_be_ended_hard(room: MakeRoom) -> None:
    """Report R31, the other half."""
    line = Line()
    r = room(line, children=[Line()])
    await r.start()
    child = await spawn(r, critical=True)
    line.give(text("done"), FINISH)
    line.end()
    await r.desk.idle()
    assert child.poll() is None

    await r.do(r.loop.finish(r.turn_id, hard=True))

    assert result_of(child).error == "the subturn was interrupted"
    assert r.ends == ["completed"]


@pytest.mark.spec("U6")
async def test_a_parent_whose_turn_fails_takes_its_children_with_it(room: MakeRoom) -> None:
    line = Line()
    r = room(line, children=[Line()])
    parent = await r.start()
    child = await spawn(r, critical=True)

    line.fail(RuntimeError("broken"))
    await r.desk.idle()

    assert error_of(parent).kind == "stream"
    assert result_of(child).error == "the subturn was interrupted"


@pytest.mark.spec("U6")
async def test_a_parent_whose_call_is_retried_keeps_its_children(room: MakeRoom) -> None:
    line = Line()
    r = room(line, WHOLE, children=[Line()])
    await r.start()
    child = await spawn(r, critical=True)

    line.fail(ConnectionError("gone"))
    await r.desk.pass_time(1)

    assert (child.poll(), r.ends) == (None, [])


@pytest.mark.spec("U6")
async def test_a_childs_own_timeout_stops_its_stream(room: MakeRoom) -> None:
    line = Line()
    r = room(Line(), children=[line])
    await r.start()
    child = await spawn(r, critical=True, timeout_seconds=9.0)

    await r.desk.pass_time(9)

    assert result_of(child).error == "it took longer than 9 s"
    assert line.is_closed


@pytest.mark.spec("U15", "U2")
async def test_a_hard_abort_reaches_a_grandchild(room: MakeRoom) -> None:
    async def deeper(_given: dict[str, Any], _signal: AbortSignal) -> object:
        await r.loop.subturns.spawn(SpawnRequest(prompt="Deeper", agent="helper"))
        return "never"

    bottom = Line()
    r = room(Line(), children=[calls("deeper"), bottom], child_tools=[Hand("deeper", deeper)])
    await r.start()
    child = await spawn(r)
    assert [state.depth for state in r.loop.registry.children] == [1, 2]

    assert await r.do(r.loop.hard_abort(WORKSPACE))

    assert result_of(child).error == "the subturn was interrupted"
    assert bottom.is_closed
    assert r.types.count("subturn.end") == 2
    assert r.ends == ["aborted"]


# ---- as others ask for one


async def test_a_subturn_is_spawned_by_plain_fields(room: MakeRoom) -> None:
    r = room(Line(), children=[WHOLE])
    await r.start()
    fields = {"prompt": "Below", "agent": "helper", "timeoutSeconds": 5, "tokenBudget": 100}

    result = await r.do(r.loop.spawn_subturn(r.turn_id, fields))

    assert result.content == "Hello there"


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"prompt": " "},
        {"prompt": "x", "colour": "red"},
        {"prompt": 7},
        {"prompt": "x"},
        {"prompt": "x", "model": "m", "timeoutSeconds": float("nan")},
        {"prompt": "x", "model": "m", "timeoutSeconds": float("inf")},
    ],
)
async def test_fields_that_are_no_request_are_refused(
    room: MakeRoom, fields: dict[str, object]
) -> None:
    r = room(Line(), children=[WHOLE])
    await r.start()

    with pytest.raises(TurnError) as caught:
        await r.do(r.loop.spawn_subturn(r.turn_id, fields))

    assert caught.value.kind == "invalid_subturn"
    assert r.loop.registry.children == ()


async def test_a_budget_that_is_spent_ends_the_child_before_its_next_call(room: MakeRoom) -> None:
    spending = says(text("Half."), tokens(7), *calling("echo"))
    r = room(Line(), children=[spending, WHOLE], child_tools=[echo()])
    await r.start()
    budget = TokenBudget(5)

    child = await spawn(r, token_budget=budget)

    assert (result_of(child).content, result_of(child).error) == ("Half.", None)
    assert (budget.used, budget.is_spent, len(r.child_provider.calls)) == (7, True, 1)


async def test_ten_children_of_the_loop_and_a_parent_that_looks_later(room: MakeRoom) -> None:
    slow = Slow()
    r = room(
        calls("slow"),
        WHOLE,
        children=[WHOLE],
        tools=[slow.hand],
        limits=SubturnLimits(pending_results=2),
    )
    parent = await r.start()
    children = [await spawn(r, delivers=True) for _ in range(10)]
    await asyncio.sleep(0)
    slow.go.set()
    await r.desk.idle()

    assert parent.poll() == fb.Success(None)
    assert all(result_of(child).error is None for child in children)
    # One is heard before the next call, and the others come with the answer to that.
    assert len(r.prompts) == 2
    assert r.content.count("[SubTurn Result]") == 9
    assert r.types.count("subturn.result_delivered") == 10


@pytest.mark.parametrize("ask", ["steer", "begin", "finish"])
async def test_a_subturn_that_was_begun_can_be_asked_at_once(room: MakeRoom, ask: str) -> None:
    line, below = Line(), Line()
    r = room(line, children=[below, below])
    turn = r.open()
    await r.start(turn=turn)
    fields = {"prompt": "Look", "agent": "helper"}

    @fb.effect(raises=TurnError)
    async def both() -> str:
        child_id = await r.loop.begin_subturn(turn.turn_id, fields)
        match ask:
            case "steer":
                await r.loop.steer(child_id, "Only in src")
            case "begin":
                await r.loop.begin_subturn(child_id, fields)
            case _:
                await r.loop.finish(child_id, hard=False)
        return child_id

    assert (await r.rt.run(both())).startswith("subturn-")


async def test_who_begins_a_subturn_that_never_runs_does_not_wait_for_it(room: MakeRoom) -> None:
    line = Line()
    r = room(line)
    turn = r.open()
    await r.start(turn=turn)
    begun: list[str] = []

    def stop_it(event: TurnEvent) -> None:
        if isinstance(event, SubturnSpawnEvent):
            begun.append(event.child_id)
            child = r.loop.registry.child(event.child_id)
            assert child is not None
            child.end(hard=True)

    r.loop.events.subscribe(stop_it)
    child_id = await r.rt.run(
        r.loop.begin_subturn(turn.turn_id, {"prompt": "Look", "agent": "helper"})
    )

    assert [child_id] == begun
