"""The provider is asked again within one answer: after nothing, a refusal, a forgotten response."""

from __future__ import annotations

import pytest

from streamengine import EngineOptions, StreamError
from streamengine.model import (
    PREVIOUS_RESPONSE_NOT_FOUND,
    ErrorPart,
    Finish,
    ReasoningDelta,
    ReasoningPart,
    StreamEndEvent,
    TextPart,
    ToolCall,
)

from .conftest import MakeDesk
from .kit import (
    FINISH,
    TEXT_END,
    WHOLE,
    Answer,
    Call,
    Line,
    Parts,
    echo,
    says,
    text,
    text_in,
    tokens,
)

pytestmark = pytest.mark.lifecycle

NOTHING = says()
REFUSALS = [
    Finish(finish_reason="content-filter", raw_finish_reason="content_filter"),
    Finish(finish_reason="refusal", raw_finish_reason="refusal"),
]


# ---- an empty answer


@pytest.mark.spec("E13")
@pytest.mark.parametrize("empty", [NOTHING, says(FINISH), says(TEXT_END, tokens(1), FINISH)])
async def test_an_empty_answer_is_asked_for_once_more(desk: MakeDesk, empty: Answer) -> None:
    d = desk(empty, says(text("Hello"), FINISH))

    assert (await d.whole()).status == "completed"

    assert d.disk.answers() == ["Hello"]
    assert len(d.provider.calls) == 2
    assert d.tape.types.count("stream-start") == 1


@pytest.mark.spec("E13")
@pytest.mark.parametrize("empty", [NOTHING, says(FINISH)])
async def test_two_empty_answers_are_an_error(desk: MakeDesk, empty: Answer) -> None:
    d = desk(empty)

    completion = await d.whole()

    assert (completion.status, completion.error_type) == ("failed", "empty_output")
    assert len(d.provider.calls) == 2
    assert d.disk.roles() == ["user"]


@pytest.mark.spec("E13")
async def test_an_empty_answer_is_not_asked_for_again_when_a_stop_is_pending(
    desk: MakeDesk,
) -> None:
    line = Line()
    d = desk(line)
    handle = await d.start()
    await d.idle()
    await d.stop(soft=True)

    line.end()

    assert (await d.done(handle)).status == "aborted"
    assert len(d.provider.calls) == 1


@pytest.mark.spec("E13")
async def test_an_empty_answer_is_not_asked_for_again_when_it_is_aborted(desk: MakeDesk) -> None:
    line = Line()
    d = desk(line)
    await d.start()
    await d.idle()
    gate = d.history.hold("update_note")
    stopping = d.rt.run_fork(d.stopping())
    await gate.begun.wait()

    line.end()
    gate.go.set()
    await stopping

    assert len(d.provider.calls) == 1
    assert d.tape.types == ["stream-start", "stream-abort"]


async def test_a_call_with_only_a_tool_is_not_empty(desk: MakeDesk) -> None:
    d = desk(
        says(ToolCall(tool_call_id="c", tool_name="echo"), FINISH), says(FINISH), tools=[echo()]
    )

    assert (await d.whole()).status == "completed"
    assert len(d.provider.calls) == 2


# ---- a refusal


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda part: part.finish_reason)
async def test_a_refusal_without_another_model_is_an_error(desk: MakeDesk, refusal: Finish) -> None:
    d = desk(says(text("I will not."), refusal))

    completion = await d.whole(model="strict")

    assert (completion.status, completion.error_type) == ("failed", "model_refusal")
    assert completion.error == "the model strict refused to answer"


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda part: part.finish_reason)
async def test_another_model_answers_in_the_same_stream(desk: MakeDesk, refusal: Finish) -> None:
    """It doesn't get to see what the first one said; who read along has seen it."""
    d = desk(says(text("I will "), refusal), says(text("Sure."), FINISH))

    completion = await d.whole(model="strict", fallback_models=["mild"])

    assert completion.status == "completed"
    first, second = d.provider.calls
    assert (first.request.model, second.request.model) == ("strict", "mild")
    assert second.request.so_far == ()
    assert d.tape.said == "I will Sure."
    (end,) = d.tape.terminals
    assert isinstance(end, StreamEndEvent)
    assert end.metadata.model == "mild"
    assert d.tape.types.count("stream-start") == 1


@pytest.mark.parametrize("fallbacks", [["mild"], []], ids=["answered", "refused for good"])
async def test_what_was_refused_is_kept_and_shown_to_no_later_request(
    desk: MakeDesk, fallbacks: list[str]
) -> None:
    """A model that reads it refuses what comes next, too."""
    refused = says(ReasoningDelta(text="Hm. "), text("I will "), REFUSALS[0])
    answers = [says(ReasoningDelta(text="Well. "), text("Sure."), FINISH)] if fallbacks else []
    d = desk(refused, *answers, WHOLE)
    await d.whole(model="strict", fallback_models=fallbacks)

    await d.whole("next")

    said = [
        part
        for row in d.provider.calls[-1].request.history[1:]
        for part in row.parts
        if isinstance(part, TextPart | ReasoningPart)
    ]
    assert [part.text for part in said] == (["Well. ", "Sure."] if fallbacks else [])
    kept = d.disk.rows()[1]
    assert "I will " in text_in(kept)
    (mark,) = (part for part in kept["parts"] if part["type"] == "refused")
    assert (mark["model"], mark["textCharacters"], mark["reasoningCharacters"]) == ("strict", 7, 4)


async def test_models_are_asked_in_their_order_and_the_request_comes_first(
    desk: MakeDesk,
) -> None:
    no = says(text("No."), REFUSALS[0])
    options = EngineOptions(fallback_models=("house",))
    d = desk(no, no, says(text("Yes."), FINISH), no, options=options)

    await d.whole(model="a", fallback_models=["b", "c"])
    await d.whole("again", model="a")

    asked = [call.request.model for call in d.provider.calls]
    assert asked == ["a", "b", "c", "a", "house"]
    assert [e.type for e in d.tape.terminals] == ["stream-end", "error"]


async def test_a_refusal_after_tools_keeps_their_results(desk: MakeDesk) -> None:
    """And settles the calls of the refused step without running them."""
    tool = echo()
    d = desk(
        says(ToolCall(tool_call_id="a", tool_name="echo", input={"x": 1}), FINISH),
        says(ToolCall(tool_call_id="b", tool_name="echo"), REFUSALS[0]),
        says(text("Done."), FINISH),
        tools=[tool],
    )

    await d.whole(fallback_models=["other"])

    assert [use.tool_call_id for use in tool.uses] == ["a"]
    assert [part.type for part in d.provider.calls[2].request.so_far] == ["dynamic-tool"]
    refused = d.parts()[1]
    assert refused["output"] == {"success": False, "error": "not run: the model refused"}


async def test_a_refusal_while_a_stop_comes_is_a_stop(desk: MakeDesk) -> None:
    line = Line()
    d = desk(line)
    handle = await d.start(fallback_models=["other"])
    line.give(text("I "))
    await d.idle()
    await d.stop()

    line.give(REFUSALS[0])
    line.end()

    assert (await d.done(handle)).status == "aborted"
    assert len(d.provider.calls) == 1


# ---- a previous response that is gone


def gone() -> StreamError:
    return StreamError("api", "no such response", code=PREVIOUS_RESPONSE_NOT_FOUND)


@pytest.mark.parametrize("how", ["raises", "reports"])
async def test_a_forgotten_response_is_done_without(desk: MakeDesk, how: str) -> None:
    def answer(call: Call) -> Parts:
        if call.request.previous_response_id is None:
            return says(text("Hello"), FINISH)(call)
        line = Line()
        if how == "raises":
            line.fail(gone())
        else:
            line.give(ErrorPart(error={"code": PREVIOUS_RESPONSE_NOT_FOUND, "message": "no such"}))
        return line(call)

    d = desk(answer)

    assert (await d.whole(previous_response_id="r1")).status == "completed"

    asked = [call.request.previous_response_id for call in d.provider.calls]
    assert asked == ["r1", None]
    assert d.disk.answers() == ["Hello"]


async def test_a_forgotten_response_is_an_error_once_something_was_said(desk: MakeDesk) -> None:
    line = Line()
    d = desk(line)
    handle = await d.start(previous_response_id="r1")
    line.give(text("Hel"))
    line.fail(gone())

    completion = await d.done(handle)

    assert (completion.status, completion.error) == ("failed", "no such response")
    assert len(d.provider.calls) == 1


async def test_a_step_that_said_nothing_may_do_without_though_one_before_has_spoken(
    desk: MakeDesk,
) -> None:
    """What was said goes along, so that it isn't said twice."""
    line = Line()
    d = desk(line, says(text("two."), FINISH))
    handle = await d.start(previous_response_id="r1")
    line.give(text("One, "), tokens(1))
    line.fail(gone())

    assert (await d.done(handle)).status == "completed"

    assert d.disk.answers() == ["One, two."]
    (so_far,) = d.provider.calls[1].request.so_far
    assert isinstance(so_far, TextPart)
    assert so_far.text == "One, "


async def test_a_request_without_a_previous_response_is_not_repeated(desk: MakeDesk) -> None:
    line = Line()
    line.fail(gone())
    d = desk(line)

    assert (await d.whole()).status == "failed"
    assert len(d.provider.calls) == 1


async def test_the_row_reads_as_it_was_told(desk: MakeDesk) -> None:
    d = desk(says(text("No."), REFUSALS[0]), says(text(" Yes."), FINISH))

    await d.whole(fallback_models=["other"])

    assert text_in(d.disk.rows()[-1]) == d.tape.said
