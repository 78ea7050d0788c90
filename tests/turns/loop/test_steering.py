"""Steering: what is said to a turn that runs, and when the turn hears it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

import fibers as fb
from fibers import AbortSignal
from tests.streamengine.engine.kit import (
    FINISH,
    WHOLE,
    WORKSPACE,
    Hand,
    Line,
    calls,
    echo,
    text,
)
from turns.events import InterruptReceivedEvent, SteeringInjectedEvent, ToolSkippedEvent
from turns.loop import LoopConfig
from turns.loop.gate import SKIPPED_FOR_STEERING
from turns.loop.steering import Steering
from turns.model.errors import TurnError

from .conftest import MakeRoom

pytestmark = pytest.mark.lifecycle


class Slow:
    """A tool that waits until the test lets it go."""

    def __init__(self, name: str = "slow") -> None:
        self.go = asyncio.Event()
        self.hand = Hand(name, self._run)

    async def _run(self, _given: dict[str, Any], _signal: AbortSignal) -> object:
        await self.go.wait()
        return "done"


@pytest.mark.spec("U20")
async def test_steering_during_a_tool_batch_skips_the_rest_and_is_heard_next(
    room: MakeRoom,
) -> None:
    slow, other = Slow(), echo()
    r = room(calls("slow", "echo"), WHOLE, tools=[slow.hand, other])
    fiber = await r.start()

    await r.steer("Look elsewhere")
    slow.go.set()
    await r.desk.idle()

    assert fiber.poll() == fb.Success(None)
    assert other.uses == []
    assert r.outputs() == ["done", {"success": False, "error": SKIPPED_FOR_STEERING}]
    assert [event.tool_name for event in r.of(ToolSkippedEvent)] == ["echo"]
    assert r.prompts == ["Go", "Look elsewhere"]
    assert r.request(1).text == "Look elsewhere"
    assert len(r.desk.provider.calls) == 2
    assert [event.messages for event in r.of(SteeringInjectedEvent)] == [1]
    assert [event.kind for event in r.of(InterruptReceivedEvent)] == ["steering"]


@pytest.mark.spec("U20")
async def test_the_next_request_has_a_result_for_every_call(room: MakeRoom) -> None:
    """Reports R06, R14: a call without a result spoils the conversation for ever."""
    slow = Slow()
    r = room(calls("slow", "echo"), WHOLE, tools=[slow.hand, echo()])
    await r.start()
    await r.steer("Look elsewhere")
    slow.go.set()
    await r.desk.idle()

    answer = r.request(1).history[-1]
    assert [part.has_output for part in answer.parts] == [True, True]


@pytest.mark.spec("U20")
async def test_the_eleventh_message_is_refused(room: MakeRoom) -> None:
    slow = Slow()
    r = room(calls("slow"), WHOLE, tools=[slow.hand])
    await r.start()
    for number in range(10):
        await r.steer(f"{number}")

    with pytest.raises(TurnError, match="steering queue is full") as caught:
        await r.steer("one too many")

    assert caught.value.kind == "steering_full"


async def test_steering_while_the_model_answers_continues_the_turn(room: MakeRoom) -> None:
    line = Line()
    r = room(line, WHOLE)
    fiber = await r.start()
    line.give(text("The first answer"))
    await r.steer("And what else?")

    line.give(FINISH)
    line.end()
    await r.desk.idle()

    assert fiber.poll() == fb.Success(None)
    assert r.prompts == ["Go", "And what else?"]
    assert r.desk.disk.answers() == ["The first answer", "Hello there"]
    assert (r.content, r.ends) == ("Hello there", ["completed"])


async def test_one_message_at_a_time_is_heard(room: MakeRoom) -> None:
    r = room(WHOLE)
    for words in ("one", "two"):
        await r.do(r.loop.queue(WORKSPACE, words))

    await r.whole()

    assert r.prompts == ["Go", "one", "two"]


async def test_a_turn_that_is_about_to_begin_hears_what_is_said_to_it(room: MakeRoom) -> None:
    """Its conversation is on a slow disk: whoever waits for it sees it running already."""
    r = room(WHOLE)
    hold = r.desk.history.hold("tail")
    fiber = await r.start()
    await hold.begun.wait()

    await r.steer("And in src only")
    hold.go.set()
    await r.desk.idle()

    assert fiber.poll() == fb.Success(None)
    assert r.prompts == ["Go", "And in src only"]
    with pytest.raises(TurnError) as over:
        await r.steer("too late")
    assert over.value.kind == "not_found"


async def test_or_all_of_them(room: MakeRoom) -> None:
    r = room(WHOLE, config=LoopConfig(steering_mode="all"))
    for words in ("one", "two"):
        await r.do(r.loop.queue(WORKSPACE, words))

    await r.whole()

    assert r.prompts == ["Go", "one\n\ntwo"]


async def test_what_comes_after_the_last_word_waits_for_the_next_turn(room: MakeRoom) -> None:
    r = room(WHOLE)
    hold = r.desk.history.hold("finalize")
    first = await r.start()
    await hold.begun.wait()

    await r.steer("too late")
    hold.go.set()
    await r.desk.idle()
    assert (first.poll(), r.prompts) == (fb.Success(None), ["Go"])
    turn = r.open()
    assert await r.do(r.loop.continue_session(turn, {}))

    assert r.prompts == ["Go", "too late"]
    assert r.ends == ["completed", "completed"]


async def test_without_anything_queued_nothing_is_continued(room: MakeRoom) -> None:
    r = room(WHOLE)

    assert not await r.do(r.loop.continue_session(r.open(), {}))

    assert r.told == []


async def test_two_who_continue_get_one_turn(room: MakeRoom) -> None:
    r = room(WHOLE)
    for words in ("one", "two"):
        await r.do(r.loop.queue(WORKSPACE, words))
    fibers = [r.rt.run_fork(r.loop.continue_session(r.open(), {})).ignore_failure() for _ in "ab"]
    await r.desk.idle()

    exits = [fiber.poll() for fiber in fibers]
    assert exits[0] == fb.Success(True)
    assert isinstance(exits[1], fb.Failure)
    assert len(r.ends) == 1


async def test_a_session_whose_own_queue_is_empty_takes_from_that_of_all(room: MakeRoom) -> None:
    r = room(WHOLE)
    await r.do(r.loop.queue(None, "for anybody"))
    await r.do(r.loop.queue(WORKSPACE, "for me"))

    await r.whole()

    assert r.prompts == ["Go", "for me", "for anybody"]


async def test_of_two_turns_that_wait_for_one_message_each_ends(room: MakeRoom) -> None:
    """The one that gets none would wait for ever for what the other was told."""
    lines = {"w1": Line(), "w2": Line()}
    r = room(*lines.values(), WHOLE)
    fibers = [await r.start("Go", r.open(name)) for name in lines]
    for line in lines.values():
        line.give(text("first"))
    await r.do(r.loop.queue(None, "for anybody"))

    for line in lines.values():
        line.give(FINISH)
        line.end()
    await r.desk.idle()

    assert [fiber.poll() for fiber in fibers] == [fb.Success(None)] * 2
    assert [event.messages for event in r.of(SteeringInjectedEvent)] == [1]


async def test_what_nobody_has_heard_at_a_shutdown_is_told(room: MakeRoom) -> None:
    r = room(WHOLE)
    for words in ("one", "two"):
        await r.do(r.loop.queue(WORKSPACE, words))

    with capture_logs() as logs:
        await r.do(r.app_scope.close(reason="system"))

    (warning,) = [log for log in logs if log["log_level"] == "warning"]
    assert (warning["workspaceId"], warning["messages"]) == (WORKSPACE, 2)


@pytest.mark.parametrize("mode", ["one-at-a-time", "all"])
async def test_messages_that_come_at_once_are_each_taken_once(mode: Any) -> None:
    steering = Steering(capacity=10, mode=mode)

    async def put(number: int) -> None:
        await asyncio.sleep(0)
        steering.put("s", str(number))

    await asyncio.gather(*(put(number) for number in range(10)))
    taken: list[str] = []
    while steering.waits("s"):
        taken += steering.take("s")

    assert sorted(taken, key=int) == [str(number) for number in range(10)]


def test_blanks_are_no_message() -> None:
    with pytest.raises(TurnError) as caught:
        Steering(capacity=1, mode="all").put("s", " \n")

    assert caught.value.kind == "empty_message"


def test_what_is_cleared_is_gone() -> None:
    steering = Steering(capacity=2, mode="all")
    steering.put("s", "a")
    steering.put("s", "b")

    assert (steering.clear("s"), steering.clear("s"), steering.waits("s")) == (2, 0, False)


@pytest.mark.parametrize("end", ["a history that can't be read", "an interrupt"])
async def test_what_was_queued_waits_on_where_its_turn_can_t_begin(
    room: MakeRoom, end: str
) -> None:
    r = room(WHOLE)
    await r.do(r.loop.queue(WORKSPACE, "hello"))
    hold = r.desk.history.hold("tail")
    if end != "an interrupt":
        r.desk.history.fail("tail")
    beginning = r.rt.run_fork(r.loop.continue_session(r.open(), {})).ignore_failure()
    await hold.begun.wait()
    if end == "an interrupt":
        beginning.interrupt_unsafe()
    hold.go.set()
    await r.desk.idle()
    assert isinstance(beginning.poll(), fb.Failure)

    r.desk.history.mend()
    assert await r.do(r.loop.continue_session(r.open(), {}))

    assert r.prompts == ["hello"]


async def test_a_register_that_raises_keeps_no_session(room: MakeRoom) -> None:
    r = room(WHOLE)

    def broken(_turn_id: str, _pending: Callable[[str], bool]) -> Callable[[], None]:
        raise RuntimeError("broken")

    register, r.loop._register = r.loop._register, broken
    with pytest.raises(RuntimeError, match="broken"):
        await r.do(r.loop.run(r.open(), "Go", {}))
    r.loop._register = register

    await r.whole()

    assert r.ends == ["completed"]
