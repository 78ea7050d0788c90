"""Graceful interrupts, hard aborts, and stops before a turn begins."""

from __future__ import annotations

from typing import Any

import pytest

import fibers as fb
from fibers import AbortSignal, Effect
from streamengine.model import StreamAbortEvent
from tests.streamengine.engine.kit import (
    FAULT,
    FINISH,
    WHOLE,
    WORKSPACE,
    Hand,
    Line,
    Wedged,
    calls,
    echo,
    text,
)
from turns.events import (
    InterruptReceivedEvent,
    SubturnEndEvent,
    ToolSkippedEvent,
    TurnErrorEvent,
    TurnEvent,
)
from turns.loop.gate import SKIPPED_FOR_INTERRUPT
from turns.model.errors import TurnError
from turns.subturns import SpawnRequest

from .conftest import MakeRoom
from .kit import Room, error_of, failure_of
from .test_steering import Slow

pytestmark = pytest.mark.lifecycle


# ---- graceful


@pytest.mark.spec("U26")
async def test_a_graceful_interrupt_skips_the_tools_and_has_one_last_call_without_any(
    room: MakeRoom,
) -> None:
    slow, other = Slow(), echo()
    r = room(calls("slow", "echo"), WHOLE, tools=[slow.hand, other])
    fiber = await r.start()

    await r.do(r.loop.interrupt(r.turn_id))
    slow.go.set()
    await r.desk.idle()

    assert fiber.poll() == fb.Success(None)
    assert r.ends == ["completed"]
    assert other.uses == []
    assert r.outputs() == ["done", {"success": False, "error": SKIPPED_FOR_INTERRUPT}]
    assert [event.tool_name for event in r.of(ToolSkippedEvent)] == ["echo"]
    assert r.prompts == ["Go", r.loop.config.hint]
    assert (len(r.desk.provider.calls), r.request(1).tools) == (2, ())
    assert [event.kind for event in r.of(InterruptReceivedEvent)] == ["graceful"]


@pytest.mark.spec("U26")
async def test_a_model_that_calls_a_tool_in_its_last_call_is_done_all_the_same(
    room: MakeRoom,
) -> None:
    slow, other = Slow(), echo()
    r = room(calls("slow"), calls("echo"), tools=[slow.hand, other])
    fiber = await r.start()
    await r.do(r.loop.interrupt(r.turn_id, hint="Stop now."))
    slow.go.set()
    await r.desk.idle()

    assert fiber.poll() == fb.Success(None)
    assert (len(r.desk.provider.calls), other.uses) == (2, [])
    assert r.prompts[-1] == "Stop now."


@pytest.mark.spec("U26")
async def test_an_answer_under_way_is_followed_by_the_last_call(room: MakeRoom) -> None:
    line = Line()
    r = room(line, WHOLE)
    fiber = await r.start()
    await r.do(r.loop.finish(r.turn_id, hard=False))
    await r.do(r.loop.interrupt(r.turn_id))  # once more: it is one interrupt
    line.give(text("long"), FINISH)
    line.end()
    await r.desk.idle()

    assert fiber.poll() == fb.Success(None)
    assert r.prompts == ["Go", r.loop.config.hint]
    assert len(r.of(InterruptReceivedEvent)) == 1


async def test_steering_that_comes_during_the_last_call_waits_for_the_next_turn(
    room: MakeRoom,
) -> None:
    slow, line = Slow(), Line()
    r = room(calls("slow"), line, WHOLE, tools=[slow.hand])
    await r.start()
    await r.do(r.loop.interrupt(r.turn_id))
    slow.go.set()
    await r.desk.idle()
    await r.steer("one more thing")
    line.give(text("Summary"), FINISH)
    line.end()
    await r.desk.idle()

    assert (r.content, r.prompts[-1]) == ("Summary", r.loop.config.hint)
    assert r.loop.steering.waits(WORKSPACE)


async def test_after_a_hard_abort_it_is_refused(room: MakeRoom) -> None:
    r = room(Wedged())
    await r.start()
    aborting = r.rt.run_fork(r.loop.hard_abort(WORKSPACE))

    with pytest.raises(TurnError) as caught:
        await r.rt.run(r.loop.interrupt(r.turn_id))

    assert caught.value.kind == "aborted"
    await r.desk.pass_time(5)
    assert aborting.poll() == fb.Success(True)


# ---- hard


async def aborted(r: Room) -> bool:
    return await r.do(r.loop.hard_abort(WORKSPACE))


@pytest.mark.spec("U15")
async def test_a_hard_abort_puts_the_conversation_back(room: MakeRoom) -> None:
    slow = Slow()
    r = room(WHOLE, calls("slow"), tools=[slow.hand])
    await r.whole("Before")
    before = r.desk.disk.rows()
    context = r.loop._parts.context_of(WORKSPACE)
    context.omitted = frozenset({"earlier"})
    fiber = await r.start("Then")
    await r.steer("and steering")
    context.omitted |= {"later"}

    assert await aborted(r)

    assert r.desk.disk.rows() == before
    assert r.desk.disk.partial() is None
    assert context.omitted == {"earlier"}
    assert r.ends == ["completed", "aborted"]
    cause = failure_of(fiber)
    assert [each.reason for each in cause.reasons if isinstance(each, fb.Interrupt)] == ["user"]
    abort = r.desk.tape.events[-1]
    assert isinstance(abort, StreamAbortEvent)
    assert abort.abort_reason == "user"


@pytest.mark.spec("U15", "U2")
async def test_the_turns_below_are_over_before_the_history_is_cut(room: MakeRoom) -> None:
    async def spawn(_given: dict[str, Any], _signal: AbortSignal) -> object:
        await r.loop.subturns.spawn(SpawnRequest(prompt="Below", model="m", critical=True))
        return "never"

    r = room(calls("spawn"), children=[Line()], tools=[Hand("spawn", spawn)])
    await r.start()
    assert len(r.loop.registry.children) == 1
    order: list[str] = []

    def note(event: TurnEvent) -> None:
        if isinstance(event, SubturnEndEvent):
            order.append(f"child over, cut: {'truncate' in r.desk.history.calls}")

    r.loop.events.subscribe(note)
    assert await aborted(r)

    assert order == ["child over, cut: False"]
    assert "truncate" in r.desk.history.calls
    assert r.desk.disk.rows() == []
    assert r.types[-1] == "turn.end"


@pytest.mark.spec("U16")
async def test_a_late_write_of_a_child_does_not_come_back(room: MakeRoom) -> None:
    """A child that ignores its interrupt, and says something afterwards."""
    wedged = Wedged(text("so far"))

    async def spawn(_given: dict[str, Any], _signal: AbortSignal) -> object:
        await r.loop.subturns.spawn(SpawnRequest(prompt="Below", model="m", delivers=True))
        return "never"

    r = room(calls("spawn"), children=[wedged], tools=[Hand("spawn", spawn)])
    await r.start()
    aborting = r.rt.run_fork(r.loop.hard_abort(WORKSPACE))
    await r.desk.pass_time(5)
    assert aborting.poll() == fb.Success(True)

    wedged.let_go.set()
    await r.desk.pass_time(5)

    assert r.desk.disk.rows() == []
    assert r.types.count("subturn.orphan") == 1
    assert r.types.count("subturn.result_delivered") == 0


@pytest.mark.spec("U17")
async def test_a_second_hard_abort_changes_nothing(room: MakeRoom) -> None:
    r = room(Wedged())
    await r.start()
    first = r.rt.run_fork(r.loop.hard_abort(WORKSPACE))

    second = await r.rt.run(r.loop.hard_abort(WORKSPACE))
    await r.desk.pass_time(5)

    assert (first.poll(), second) == (fb.Success(True), False)
    assert r.ends == ["aborted"]
    assert len(r.of(InterruptReceivedEvent)) == 1


@pytest.mark.spec("U17")
async def test_of_an_unknown_session_it_is_an_error(room: MakeRoom) -> None:
    with pytest.raises(TurnError) as caught:
        await room(WHOLE).loop.hard_abort("nobody")

    assert caught.value.kind == "not_found"


@pytest.mark.spec("U15")
async def test_a_cut_that_fails_is_told_and_the_turn_ends_all_the_same(room: MakeRoom) -> None:
    r = room(Line())
    await r.start()
    r.desk.history.fail("truncate", FAULT)

    assert await aborted(r)

    assert "could not be put back" in r.of(TurnErrorEvent)[0].error
    assert r.ends == ["aborted"]


async def test_what_an_earlier_answer_left_is_not_cut(room: MakeRoom) -> None:
    """The partial of an answer that failed is a row of the conversation, not of the turn."""
    line = Line()
    r = room(line, Line())
    line.give(text("half an answer"))
    line.fail(RuntimeError("cut off"))
    await r.start("Before")

    await r.start("Then")
    assert await aborted(r)

    assert r.prompts == ["Before"]
    assert r.desk.disk.answers() == ["half an answer"]


async def test_after_its_last_word_a_turn_is_not_taken_back(room: MakeRoom) -> None:
    r = room(WHOLE)
    hold = r.desk.history.hold("finalize")
    fiber = await r.start()
    await hold.begun.wait()

    was_aborted = await r.do(r.loop.hard_abort(WORKSPACE))
    hold.go.set()
    await r.desk.idle()

    assert (was_aborted, fiber.poll()) == (False, fb.Success(None))
    assert r.desk.disk.answers() == ["Hello there"]


async def test_who_asked_for_it_need_not_wait(room: MakeRoom) -> None:
    r = room(Line())
    await r.start()
    asking = r.rt.run_fork(r.loop.hard_abort(WORKSPACE))

    await r.do(asking.interrupt())

    assert (r.ends, r.desk.disk.rows()) == (["aborted"], [])


async def test_the_next_turn_of_the_session_runs_as_if_nothing_had_been(room: MakeRoom) -> None:
    slow = Slow()
    r = room(calls("slow", "slow"), WHOLE, tools=[slow.hand])
    await r.start()
    assert await aborted(r)

    assert await r.whole("Again") == "Hello there"

    assert r.request(1).history == ()


# ---- a person's stop


async def test_a_stop_drops_what_was_queued_and_aborts(room: MakeRoom) -> None:
    r = room(Line())
    await r.start()
    await r.steer("never heard")

    assert await r.do(r.loop.stop(WORKSPACE))

    assert r.ends == ["aborted"]
    assert not r.loop.steering.waits(WORKSPACE)


@pytest.mark.spec("U25")
async def test_a_stop_before_the_start_lets_it_not_begin_and_a_follow_up_still_runs(
    room: MakeRoom,
) -> None:
    r = room(WHOLE)
    hold = r.desk.history.hold("tail")
    fiber = await r.start()
    await hold.begun.wait()

    with pytest.raises(TurnError) as caught:
        await r.rt.run(r.loop.hard_abort(WORKSPACE))
    assert caught.value.kind == "initializing"
    assert await r.rt.run(r.loop.stop(WORKSPACE))
    await r.rt.run(r.loop.queue(WORKSPACE, "follow up"))
    hold.go.set()
    await r.desk.idle()

    assert error_of(fiber).kind == "launch_canceled"
    assert r.types == ["turn.end"]
    assert r.ends == ["aborted"]
    assert r.desk.provider.calls == []
    assert await r.do(r.loop.continue_session(r.open(), {}))
    assert (r.prompts, r.ends) == (["follow up"], ["aborted", "completed"])


@pytest.mark.spec("U25")
async def test_a_stop_of_an_idle_session_leaves_nothing_behind(room: MakeRoom) -> None:
    """Report R21: a stop became a turn of its own, or hit the next one."""
    r = room(WHOLE)
    exit_ = await r.do(r.loop.stop(WORKSPACE).exit())

    assert isinstance(exit_, fb.Failure)
    assert await r.whole() == "Hello there"


@pytest.mark.spec("U15", "U16")
@pytest.mark.parametrize("how", ["succeeds", "fails"])
async def test_what_a_slow_disk_writes_late_does_not_come_back_after_a_hard_abort(
    room: MakeRoom, how: str
) -> None:
    """The stop goes on without its store; the cut waits for it."""
    line = Line()
    r = room(line, WHOLE)
    await r.start()
    line.give(text("half"))
    await r.desk.idle()
    hold = r.desk.history.hold("commit_partial")

    aborting = r.rt.run_fork(r.loop.hard_abort(WORKSPACE))
    await r.desk.pass_time(60)
    assert aborting.poll() is None
    if how == "fails":
        r.desk.history.fail("update_note")  # so each step is tried alone, the partial too
    hold.go.set()
    await r.desk.idle()

    assert aborting.poll() == fb.Success(True)
    assert (r.desk.disk.rows(), r.desk.disk.partial()) == ([], None)
    assert r.ends == ["aborted"]
    r.desk.history.mend()
    assert await r.whole("Anew", r.open()) == "Hello there"
    assert r.prompts == ["Anew"]


@pytest.mark.spec("U15")
async def test_an_answer_that_was_stopped_before_a_turn_outlives_its_hard_abort(
    room: MakeRoom,
) -> None:
    """Also where the disk is so slow that it is written when the turn is asked for already."""
    before, line = Line(), Line()
    r = room(before, line)
    await r.desk.start("By hand")
    hold = r.desk.history.hold("write_partial")
    before.give(text("half"))
    await r.desk.idle()
    stopping = r.rt.run_fork(r.desk.stopping("user"))
    await r.desk.pass_time(60)
    assert stopping.poll() is not None

    await r.start("Go")
    hold.go.set()
    await r.desk.pass_time(1)
    assert r.prompts == ["By hand", "Go"]
    assert await r.do(r.loop.hard_abort(WORKSPACE))

    assert r.prompts == ["By hand"]
    assert r.desk.disk.answers() == ["half"]


# ---- questions


async def test_a_question_is_answered_for_the_live_turn_only(room: MakeRoom) -> None:
    r = room(Line())
    answered: list[tuple[str, object]] = []

    def answer(_turn: object, request_id: str, what: object) -> Effect[bool, TurnError]:
        answered.append((request_id, what))
        return Effect.succeed(True)

    r.loop._answer = answer
    await r.start()
    live = r.turn_id

    assert await r.do(r.loop.answer_permission(live, "q1", "yes"))
    assert not await r.do(r.loop.answer_permission(live, "", "yes"))
    assert not await r.do(r.loop.answer_permission("turn-0", "q1", "yes"))
    assert await aborted(r)
    assert not await r.do(r.loop.answer_permission(live, "q1", "yes"))

    assert answered == [("q1", "yes")]
