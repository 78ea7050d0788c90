"""The engine on every kind of history, from the question to what a crash leaves of the answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

import fibers as fb
from streamengine import StreamEngine, StreamRequest
from streamengine.model import Event, StreamAbortEvent, StreamDeltaEvent, StreamEndEvent
from tests.streamengine.engine.kit import FINISH, Line, Provider, Tape, says, text

from .backends import Backend
from .kit import text_of

WORKSPACE = "w1"


@pytest.fixture
async def rt() -> AsyncIterator[fb.Runtime]:
    runtime = fb.Runtime()
    yield runtime
    await runtime.dispose()


async def conversation(rt: fb.Runtime, backend: Backend) -> list[str]:
    """What a process that starts now finds."""
    loaded = await rt.run((await backend.history()).load(WORKSPACE))
    return [text_of(row) for row in loaded.rows]


def when_said(tape: Tape, word: str) -> asyncio.Event:
    """Set once this word is told."""
    is_said = asyncio.Event()

    def look(event: Event) -> None:
        if isinstance(event, StreamDeltaEvent) and event.delta == word:
            is_said.set()

    tape.on_event = look
    return is_said


@pytest.mark.spec("E26", "BT2")
async def test_an_answer_is_stored_before_its_end_is_told(rt: fb.Runtime, backend: Backend) -> None:
    history = await backend.history()
    answer = says(text("Hel"), text("lo"), FINISH)
    engine = StreamEngine(history=history, provider=Provider(answer))
    tape = Tape(engine)

    handle = await rt.run(engine.start_stream(WORKSPACE, StreamRequest(text="Hi")))
    completion = await rt.run(handle.completion)

    assert completion.status == "completed"
    assert isinstance(tape.events[-1], StreamEndEvent)
    assert await conversation(rt, backend) == ["Hi", "Hello"]
    assert not await rt.run(history.read_partial(WORKSPACE))


@pytest.mark.spec("P5", "P16")
async def test_a_stopped_answer_is_a_row_before_its_abort_is_told(
    rt: fb.Runtime, backend: Backend
) -> None:
    line = Line()
    engine = StreamEngine(history=await backend.history(), provider=Provider(line))
    tape = Tape(engine)
    handle = await rt.run(engine.start_stream(WORKSPACE, StreamRequest(text="Hi")))
    is_said = when_said(tape, " of it")
    line.give(text("half"), text(" of it"))
    await is_said.wait()

    await rt.run(engine.stop_stream(WORKSPACE, reason="user"))

    assert (await rt.run(handle.completion)).status == "aborted"
    assert isinstance(tape.events[-1], StreamAbortEvent)
    assert await conversation(rt, backend) == ["Hi", "half of it"]


@pytest.mark.spec("P12")
async def test_after_a_crash_the_conversation_goes_on(rt: fb.Runtime, backend: Backend) -> None:
    line = Line()
    history = await backend.history()
    dying = StreamEngine(history=history, provider=Provider(line))
    tape = Tape(dying)
    await rt.run(dying.start_stream(WORKSPACE, StreamRequest(text="Hi")))
    is_said = when_said(tape, "half")
    line.give(text("half"))
    await is_said.wait()
    while await rt.run(history.read_partial(WORKSPACE)) is None:
        pass  # its first write is on the way

    # Another one, on what is there: the first is not asked any more.
    engine = StreamEngine(
        history=await backend.history(), provider=Provider(says(text("x"), FINISH))
    )
    handle = await rt.run(engine.start_stream(WORKSPACE, StreamRequest(text="and now?")))
    assert (await rt.run(handle.completion)).status == "completed"

    assert await conversation(rt, backend) == ["Hi", "half", "and now?", "x"]
    line.end()
    await rt.run(dying.stop_stream(WORKSPACE, reason="system"))
