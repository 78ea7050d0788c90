"""What a caller may say between the provider's calls of one answer."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from streamengine import SendError, StartOptions, StreamRequest
from streamengine.model import Finish, MessagePart, TextPart

from .conftest import MakeDesk
from .kit import FINISH, WHOLE, calls, echo, says, text


class Say:
    """Steps that do what the test says, and note what they were asked."""

    def __init__(
        self, *, after_tools: str | None = None, at_end: str = "", system: str | None = None
    ) -> None:
        self.asked: list[str] = []
        self._after_tools = after_tools
        self._at_end = at_end
        self._system = system

    def before_call(self, request: StreamRequest) -> StreamRequest:
        self.asked.append("before_call")
        return request.model_copy(update={"system": f"{request.system or ''}{self._system}"})

    def after_tools(self, said: Sequence[MessagePart]) -> str | None:
        self.asked.append(f"after_tools {len(said)}")
        return self._after_tools

    def at_end(self, finish: Finish | None, said: Sequence[MessagePart]) -> str:
        words = "".join(part.text for part in said if isinstance(part, TextPart))
        self.asked.append(f"at_end {finish and finish.finish_reason} {words}")
        return self._at_end


async def test_they_are_asked_in_the_order_of_the_answer(desk: MakeDesk) -> None:
    steps = Say(system="now")
    d = desk(calls("echo"), WHOLE, tools=[echo()])

    completion = await d.whole(options=StartOptions(steps=steps))

    assert completion.status == "completed"
    assert steps.asked == ["before_call", "after_tools 3", "before_call", "at_end stop Hello there"]


async def test_what_one_call_is_given_does_not_add_up(desk: MakeDesk) -> None:
    d = desk(calls("echo"), WHOLE, tools=[echo()])

    await d.whole(system="S", options=StartOptions(steps=Say(system="+")))

    assert [call.request.system for call in d.provider.calls] == ["S+", "S+"]


async def test_a_text_after_the_tools_ends_the_answer_there(desk: MakeDesk) -> None:
    d = desk(calls("echo"), WHOLE, tools=[echo()])

    completion = await d.whole(options=StartOptions(steps=Say(after_tools="enough")))

    assert completion.status == "completed"
    assert len(d.provider.calls) == 1
    assert d.tape.said == "enough"
    assert d.disk.answers() == ["enough"]
    assert [part["state"] for part in d.parts() if part["type"] == "dynamic-tool"] == [
        "output-available"
    ]


async def test_an_empty_text_ends_it_too_and_adds_nothing(desk: MakeDesk) -> None:
    d = desk(calls("echo"), WHOLE, tools=[echo()])

    completion = await d.whole(options=StartOptions(steps=Say(after_tools="")))

    assert completion.status == "completed"
    assert len(d.provider.calls) == 1
    assert [part["type"] for part in d.parts()] == ["dynamic-tool"]


async def test_an_answer_that_ended_at_its_tools_can_be_gone_on_with(desk: MakeDesk) -> None:
    d = desk(calls("echo"), WHOLE, tools=[echo()])
    await d.whole(options=StartOptions(steps=Say(after_tools="")))

    handle = await d.rt.run(d.engine.resume_stream("w1"))

    assert (await d.done(handle)).status == "completed"
    assert d.disk.roles() == ["user", "assistant", "assistant"]


async def test_a_text_at_the_end_is_told_and_stored_with_the_answer(desk: MakeDesk) -> None:
    d = desk(WHOLE)

    await d.whole(options=StartOptions(steps=Say(at_end=" and more")))

    assert d.tape.said == "Hello there and more"
    assert d.disk.answers() == ["Hello there and more"]
    assert d.tape.types[-1] == "stream-end"


async def test_a_text_makes_an_answer_of_one_that_said_nothing(desk: MakeDesk) -> None:
    steps = Say(at_end="nothing to say")
    d = desk(says(FINISH))

    completion = await d.whole(options=StartOptions(steps=steps))

    assert completion.status == "completed"
    assert d.disk.answers() == ["nothing to say"]
    assert steps.asked[-1] == "at_end None "
    assert len(d.provider.calls) == 2


async def test_without_a_text_an_empty_answer_is_the_error_it_was(desk: MakeDesk) -> None:
    d = desk(says(FINISH))

    completion = await d.whole(options=StartOptions(steps=Say()))

    assert completion.error_type == "empty_output"


async def test_blanks_with_a_text_are_an_answer(desk: MakeDesk) -> None:
    d = desk(says(text("\n\n"), FINISH))

    completion = await d.whole(options=StartOptions(steps=Say(at_end="well")))

    assert completion.status == "completed"


async def test_what_is_raised_before_the_first_call_is_the_starts_failure(desk: MakeDesk) -> None:
    class Refuses(Say):
        def before_call(self, request: StreamRequest) -> StreamRequest:
            raise RuntimeError("no room")

    d = desk(WHOLE)

    with pytest.raises(SendError, match="no room"):
        await d.start(options=StartOptions(steps=Refuses()))

    assert d.tape.events == []


async def test_what_is_raised_later_is_the_streams_failure(desk: MakeDesk) -> None:
    class Refuses(Say):
        def at_end(self, finish: Finish | None, said: Sequence[MessagePart]) -> str:
            raise RuntimeError("no words")

    d = desk(WHOLE)

    completion = await d.whole(options=StartOptions(steps=Refuses()))

    assert (completion.status, completion.error) == ("failed", "no words")
