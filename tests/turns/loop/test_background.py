"""Background tools: they go on while the turn does, and wake it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import fibers as fb
from fibers import AbortSignal
from streamengine.model import StreamEndEvent
from tests.streamengine.engine.kit import FINISH as STOP
from tests.streamengine.engine.kit import WHOLE, WORKSPACE, Hand, calls, says, text
from turns.loop import Background
from turns.loop.background import MAX_RESULT_BYTES
from turns.subturns import CURRENT_TURN

from .conftest import MakeRoom
from .kit import failure_of

pytestmark = pytest.mark.lifecycle


class Monitor:
    """A tool that watches until the test says what it saw."""

    def __init__(self) -> None:
        self.seen: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self.is_stopped = False
        self.hand = Hand("monitor", self._run)
        self.tool = Background(self.hand)

    async def _run(self, _given: dict[str, Any], _signal: AbortSignal) -> object:
        try:
            return await self.seen
        except asyncio.CancelledError:
            self.is_stopped = True
            raise


async def test_a_turn_with_background_work_waits_and_is_woken_by_it(room: MakeRoom) -> None:
    """Seed 001: the end of the stream that armed the monitor passed for the end of the turn."""
    monitor = Monitor()
    r = room(calls("monitor"), says(text("Waiting."), STOP), WHOLE, tools=[monitor.tool])
    asked: list[bool] = []

    def ask(event: object) -> None:
        if isinstance(event, StreamEndEvent):
            asked.append(r.pending[r.turn_id](event.message_id))

    r.desk.tape.on_event = ask
    fiber = await r.start()
    assert (fiber.poll(), asked, r.ends) == (None, [True], [])
    await r.desk.pass_time(3600)
    assert not monitor.is_stopped

    monitor.seen.set_result({"line": "ready"})
    await r.desk.idle()

    assert fiber.poll() == fb.Success(None)
    assert r.prompts == ["Go", '[Background] monitor-1 is done: {"line": "ready"}']
    assert asked == [True, False]
    assert (r.content, r.ends) == ("Hello there", ["completed"])
    assert r.outputs()[0]["started"] == "monitor-1"


async def test_what_was_seen_while_the_model_works_is_heard_before_its_next_call(
    room: MakeRoom,
) -> None:
    monitor = Monitor()
    monitor.seen.set_result("at once")
    r = room(calls("monitor"), WHOLE, tools=[monitor.tool])

    await r.whole()

    assert r.prompts == ["Go", "[Background] monitor-1 is done: at once"]


async def test_a_failure_wakes_it_too(room: MakeRoom) -> None:
    monitor = Monitor()
    r = room(calls("monitor"), WHOLE, tools=[monitor.tool])
    await r.start()

    monitor.seen.set_exception(RuntimeError("no such log"))
    await r.desk.idle()

    assert r.prompts[-1] == "[Background] monitor-1 failed: no such log"
    assert r.ends == ["completed"]


async def test_a_person_can_speak_to_a_turn_that_waits(room: MakeRoom) -> None:
    monitor = Monitor()
    r = room(calls("monitor"), WHOLE, tools=[monitor.tool])
    fiber = await r.start()

    await r.steer("Anything yet?")

    assert r.prompts[-1] == "Anything yet?"
    assert (fiber.poll(), monitor.is_stopped) == (None, False)


async def test_a_graceful_interrupt_of_a_turn_that_waits_ends_it(room: MakeRoom) -> None:
    monitor = Monitor()
    r = room(calls("monitor"), WHOLE, tools=[monitor.tool])
    fiber = await r.start()

    await r.do(r.loop.interrupt(r.turn_id))
    assert fiber.poll() == fb.Success(None)
    await r.do(r.turns[0].close("completed"))

    assert (r.ends, monitor.is_stopped) == (["completed"], True)


async def test_a_hard_abort_of_a_turn_that_waits_takes_it_back(room: MakeRoom) -> None:
    monitor = Monitor()
    r = room(calls("monitor"), WHOLE, tools=[monitor.tool])
    fiber = await r.start()

    assert await r.do(r.loop.hard_abort(WORKSPACE))
    await r.do(r.turns[0].close("torn-down"))

    assert failure_of(fiber).has_interrupts_only
    assert (r.ends, r.desk.disk.rows(), monitor.is_stopped) == (["aborted"], [], True)


async def test_the_stop_of_a_stream_leaves_the_work_to_the_turn(room: MakeRoom) -> None:
    """It is held by the turn, not by the stream that began it."""
    monitor = Monitor()
    r = room(calls("monitor"), WHOLE, tools=[monitor.tool])
    await r.start()

    await r.steer("and go on")

    assert len(r.desk.tape.terminals) == 2
    assert not monitor.is_stopped


async def test_a_result_that_is_no_json_is_told_in_words(room: MakeRoom) -> None:
    monitor = Monitor()
    loop: list[object] = []
    loop.append(loop)
    r = room(calls("monitor"), WHOLE, tools=[monitor.tool])
    await r.start()

    monitor.seen.set_result(loop)
    await r.desk.idle()

    assert r.prompts[-1].startswith("[Background] monitor-1 is done: (a result that is no JSON")


async def test_a_result_that_is_too_long_is_told_in_words(room: MakeRoom) -> None:
    """It would be a message: part of every later request, and a row of the conversation."""
    monitor = Monitor()
    r = room(calls("monitor"), WHOLE, tools=[monitor.tool])
    await r.start()

    monitor.seen.set_result("x" * (MAX_RESULT_BYTES + 1))
    await r.desk.idle()

    assert len(r.prompts[-1]) < 200
    assert f"a result of {MAX_RESULT_BYTES + 1} bytes" in r.prompts[-1]
    assert r.ends == ["completed"]


async def test_a_failure_that_has_no_words_wakes_it_all_the_same(room: MakeRoom) -> None:
    class Wordless(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    monitor = Monitor()
    r = room(calls("monitor"), WHOLE, tools=[monitor.tool])
    await r.start()

    monitor.seen.set_exception(Wordless())
    await r.desk.idle()

    assert r.prompts[-1].startswith("[Background] monitor-1 failed: ")
    assert r.ends == ["completed"]


async def test_background_work_finds_the_turn_that_it_is_of(room: MakeRoom) -> None:
    found: list[object] = []

    async def look(_given: dict[str, Any], _signal: AbortSignal) -> object:
        found.append(await CURRENT_TURN)
        return "looked"

    r = room(calls("look"), WHOLE, tools=[Background(Hand("look", look))])
    states: list[object] = []
    r.loop.events.subscribe(
        lambda _event: states.append(r.loop.registry.root(WORKSPACE)) if not states else None
    )

    await r.whole()

    assert found == states


async def test_without_the_loop_it_is_a_plain_tool() -> None:
    monitor = Monitor()
    monitor.seen.set_result("seen")
    use: Any = type("Use", (), {"input": {}})

    assert monitor.tool.spec is monitor.hand.spec
    assert await monitor.tool.run(use, fb.AbortController().signal) == "seen"
