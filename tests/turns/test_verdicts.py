"""What the loop says of a turn is what its record says."""

from __future__ import annotations

import pytest

from fibers.dump.tree import live_fibers
from streamengine import StreamError
from streamengine.model import Finish
from tests.streamengine.engine.kit import FINISH, Answer, Line, calls, echo, says, text
from turns.events import TurnEndEvent
from turns.loop import LoopConfig

from .kit import MakeHouse

CUT: Answer = says(text("Once upon"), Finish(finish_reason="length"))


def refused() -> Answer:
    """A call that the provider refuses as too long."""
    line = Line()
    line.fail(StreamError("context_exceeded", "prompt is too long"))
    return line


@pytest.mark.spec("U22")
async def test_an_answer_that_stays_cut_completes_its_turn(house: MakeHouse) -> None:
    h = house(CUT, CUT, CUT)
    ends: list[str] = []
    h.joined.loop.events.subscribe(
        lambda event: ends.append(event.status) if isinstance(event, TurnEndEvent) else None
    )

    record = await h.record(await h.create())

    assert (record.status, record.cause, record.error) == (
        "completed",
        "correlated-stream-end",
        None,
    )
    assert record.final_message == "Once upon"
    assert record.evidence is not None
    assert (record.evidence["finishReason"], record.evidence["taken"]) == ("length", True)
    assert ends == ["completed"]


@pytest.mark.spec("U26")
async def test_a_last_answer_that_is_cut_completes_its_turn(house: MakeHouse) -> None:
    line = Line()
    h = house(line, CUT)
    handle = await h.create()
    await h.do(h.turns.finish(handle.handle_id))
    line.give(text("Well. "), FINISH)
    line.end()
    await h.desk.idle()

    assert (await h.record(handle)).status == "completed"


async def test_the_limit_of_tool_calls_is_an_answer(house: MakeHouse) -> None:
    h = house(calls("echo"), tools=lambda _: [echo()], config=LoopConfig(max_iterations=2))

    record = await h.record(await h.create())

    assert record.status == "completed"
    assert record.final_message is not None
    assert record.final_message.endswith(h.joined.loop.config.tool_limit_text)


async def test_an_answer_that_ended_for_another_reason_is_an_error(house: MakeHouse) -> None:
    h = house(says(text("I"), Finish(finish_reason="other-reason")))

    record = await h.record(await h.create())

    assert (record.status, record.error) == ("error", "the answer ended with 'other-reason'")


@pytest.mark.spec("U21")
async def test_a_conversation_that_stays_too_long_says_so_and_the_way_out(
    house: MakeHouse,
) -> None:
    h = house(refused(), refused(), refused())

    record = await h.record(await h.create())

    assert (record.status, record.cause) == ("error", "terminal-stream-error")
    assert record.error == (
        "context_exceeded: context limit exceeded after 2 retries: prompt is too long. "
        "Begin a new conversation, or ask for less at a time."
    )


async def test_a_turn_whose_answer_cannot_be_stored_ends_as_an_error_for_both(
    house: MakeHouse,
) -> None:
    h = house(says(text("Three."), FINISH))
    ends: list[str] = []
    h.joined.loop.events.subscribe(
        lambda event: ends.append(event.status) if isinstance(event, TurnEndEvent) else None
    )
    h.desk.history.fail("finalize")

    record = await h.record(await h.create())

    assert (record.status, record.cause) == ("error", "terminal-stream-error")
    assert ends == ["error"]


@pytest.mark.parametrize("fiber", ["the loop", "the runner"])
async def test_whoever_interrupts_a_turn_after_its_last_word_ends_it_as_completed(
    house: MakeHouse, fiber: str
) -> None:
    h = house(says(text("Three."), FINISH))
    ends: list[str] = []
    h.joined.loop.events.subscribe(
        lambda event: ends.append(event.status) if isinstance(event, TurnEndEvent) else None
    )
    writing = h.desk.history.hold("finalize")
    handle = await h.create()
    await writing.begun.wait()

    name = f"turn {handle.turn_id}" if fiber == "the loop" else f"runner of {handle.handle_id}"
    next(each for each in live_fibers() if each.get_name() == name).interrupt_unsafe()
    await h.desk.idle()
    writing.go.set()
    await h.desk.idle()

    assert ((await h.record(handle)).status, ends) == ("completed", ["completed"])
