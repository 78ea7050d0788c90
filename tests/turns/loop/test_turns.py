"""One turn from its prompt to its end."""

from __future__ import annotations

import pytest

import fibers as fb
from streamengine.model import AbortReason, Finish, StreamEndEvent, ToolCall
from tests.streamengine.engine.kit import (
    FAULT,
    FINISH,
    WHOLE,
    WORKSPACE,
    Line,
    calls,
    echo,
    says,
    text,
)
from turns.events import LlmRequestEvent, TurnEndEvent
from turns.loop import LoopConfig
from turns.model.errors import TurnError

from .conftest import MakeRoom
from .kit import correlation_of, error_of, fails, failure_of

pytestmark = pytest.mark.lifecycle


async def test_a_turn_gives_its_answer_and_is_told_of(room: MakeRoom) -> None:
    r = room(calls("echo"), WHOLE, tools=[echo()])

    assert await r.whole("Say hello") == "Hello there"

    assert r.types == [
        "turn.start",
        "llm.request",
        "tool.start",
        "tool.end",
        "llm.response",
        "llm.request",
        "llm.response",
        "turn.end",
    ]
    assert r.ends == ["completed"]
    assert {event.turn_id for event in r.told} == {r.turn_id}
    assert r.prompts == ["Say hello"]
    assert [event.call for event in r.of(LlmRequestEvent)] == [1, 2]


async def test_its_streams_carry_the_correlation(room: MakeRoom) -> None:
    r = room(WHOLE)

    await r.whole()

    assert {str(event.correlation) for event in r.desk.tape.events} == {
        str(correlation_of(r.turns[0]))
    }


async def test_the_agent_says_with_which_model_and_instructions(room: MakeRoom) -> None:
    r = room(WHOLE, system="Be brief.")

    await r.whole()

    assert (r.request(0).model, r.request(0).system) == ("m", "Be brief.")


async def test_a_session_has_one_turn_at_a_time(room: MakeRoom) -> None:
    r = room(Line(), WHOLE)
    first = await r.start()

    second = await r.start()

    assert error_of(second).kind == "turn_active"
    assert first.poll() is None


async def test_another_session_is_not_concerned(room: MakeRoom) -> None:
    r = room(Line(), WHOLE)
    await r.start()

    other = await r.start(turn=r.open("w2"))

    assert other.poll() == fb.Success(None)


async def test_the_bound_of_calls_ends_it_with_a_fixed_text(room: MakeRoom) -> None:
    config = LoopConfig(max_iterations=3)
    r = room(calls("echo"), tools=[echo()], config=config)

    assert await r.whole() == config.tool_limit_text

    assert len(r.desk.provider.calls) == 3
    assert r.ends == ["completed"]
    assert r.desk.disk.answers() == [config.tool_limit_text]


async def test_an_empty_answer_becomes_a_text(room: MakeRoom) -> None:
    r = room(says(FINISH))

    assert await r.whole() == r.loop.config.empty_text

    assert r.ends == ["completed"]


async def test_what_the_model_says_after_its_tools_is_the_answer(room: MakeRoom) -> None:
    call = ToolCall(tool_call_id="c1", tool_name="echo", input={})
    first = says(text("Let me see. "), call, Finish(finish_reason="tool-calls"))
    r = room(first, WHOLE, tools=[echo()])

    assert await r.whole() == "Hello there"


# ---- its failures


async def test_a_failure_that_nothing_mends_is_the_turns(room: MakeRoom) -> None:
    r = room(fails("the key is wrong"))

    fiber = await r.start()

    assert (error_of(fiber).kind, error_of(fiber).message) == ("stream", "the key is wrong")
    assert r.types[-2:] == ["error", "turn.end"]
    assert r.ends == ["error"]


async def test_an_answer_that_cannot_be_stored_ends_it_as_an_error(room: MakeRoom) -> None:
    r = room(WHOLE)
    r.desk.history.fail("finalize", FAULT)

    fiber = await r.start()

    assert error_of(fiber).kind == "stream"
    assert r.ends == ["error"]


async def test_a_history_that_cannot_be_read_lets_no_turn_begin(room: MakeRoom) -> None:
    r = room(WHOLE)
    r.desk.history.fail("tail", FAULT)

    fiber = await r.start()

    assert error_of(fiber).kind == "history"
    assert r.told == []
    r.desk.history.mend()
    assert await r.whole() == "Hello there"


async def test_three_calls_at_two_retries_each_later_than_the_one_before(room: MakeRoom) -> None:
    r = room(fails(ConnectionError("gone")))
    fiber = await r.start()

    seen = [len(r.desk.provider.calls)]
    for seconds in (1.9, 0.1, 3.9, 0.1):
        await r.desk.pass_time(seconds)
        seen.append(len(r.desk.provider.calls))

    assert seen == [1, 1, 2, 2, 3]
    assert error_of(fiber).kind == "stream"
    assert r.types.count("llm.retry") == 2
    assert r.prompts == ["Go"]


async def test_a_call_that_works_at_the_second_try_is_an_answer(room: MakeRoom) -> None:
    r = room(fails(ConnectionError("gone")), WHOLE)
    fiber = await r.start()
    assert r.pending[r.turn_id]("any")

    await r.desk.pass_time(2)

    assert fiber.poll() == fb.Success(None)
    assert (r.prompts, r.ends) == (["Go"], ["completed"])


async def test_a_turn_without_an_agent_does_not_begin(room: MakeRoom) -> None:
    r = room(WHOLE)
    r.loop._agents = type(r.loop._agents)()

    assert error_of(await r.start()).kind == "no_agent"


# ---- its other ends


@pytest.mark.parametrize("reason", ["user", "system"])
async def test_a_stream_that_somebody_stops_ends_it_for_that_reason(
    room: MakeRoom, reason: AbortReason
) -> None:
    r = room(Line())
    fiber = await r.start()

    await r.desk.stop(reason)
    await r.desk.idle()

    cause = failure_of(fiber)
    assert cause.has_interrupts_only
    assert [reason.reason for reason in cause.reasons if isinstance(reason, fb.Interrupt)] == [
        reason
    ]
    assert r.ends == ["aborted"]


async def test_a_shutdown_stops_its_stream_as_system_and_keeps_what_was_said(
    room: MakeRoom,
) -> None:
    line = Line()
    r = room(line)
    fiber = await r.start()
    line.give(text("so far"))
    await r.desk.idle()

    await r.do(fiber.interrupt(reason="system"))

    assert r.desk.tape.types[-1] == "stream-abort"
    assert r.ends == ["aborted"]
    assert r.desk.disk.answers() == ["so far"]


async def test_the_close_of_its_scope_ends_it(room: MakeRoom) -> None:
    r = room(Line())
    fiber = await r.start()

    await r.do(r.turns[0].close("stalled"))

    assert failure_of(fiber).has_interrupts_only
    assert r.ends == ["aborted"]


async def test_whether_more_is_to_come_is_known_at_the_end_of_each_stream(room: MakeRoom) -> None:
    """What a manager asks before it settles a turn."""
    r = room(calls("echo"), WHOLE, tools=[echo()])
    asked: list[bool] = []

    def ask(event: object) -> None:
        if isinstance(event, StreamEndEvent):
            asked.append(r.pending[r.turn_id](event.message_id))

    r.desk.tape.on_event = ask
    turn = r.open()
    await r.do(r.loop.queue(WORKSPACE, "and this"))

    await r.whole(turn=turn)

    assert asked == [True, False]
    assert r.pending == {}


async def test_of_a_turn_that_does_not_run_nothing_can_be_wanted(room: MakeRoom) -> None:
    r = room(WHOLE)
    await r.whole()

    for work in (
        r.loop.steer(r.turn_id, "more"),
        r.loop.interrupt(r.turn_id),
        r.loop.finish(r.turn_id, hard=False),
        r.loop.finish(r.turn_id, hard=True),
        r.loop.hard_abort(WORKSPACE),
        r.loop.stop(WORKSPACE),
        r.loop.spawn_subturn(r.turn_id, {"prompt": "x", "model": "m"}),
    ):
        with pytest.raises(TurnError) as caught:
            await r.do(work)
        assert caught.value.kind == "not_found"


async def test_the_end_is_told_once(room: MakeRoom) -> None:
    r = room(WHOLE)
    await r.whole()
    await r.do(r.turns[0].close("completed"))

    assert len(r.of(TurnEndEvent)) == 1


async def test_nothing_is_kept_of_a_session_whose_turns_have_ended(room: MakeRoom) -> None:
    r = room(WHOLE, *[WHOLE] * 9)
    for number in range(10):
        await r.whole("Go", r.open(f"w{number}"))

    assert r.loop._parts.contexts == {}
