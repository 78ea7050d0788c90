"""What a provider says, part by part: what is told, what is recorded, and in which order."""

from __future__ import annotations

from typing import Any

import pytest
from freezegun import freeze_time
from structlog.testing import capture_logs

from streamengine import Event
from streamengine.model import (
    FilePart,
    ReasoningDelta,
    ReasoningDeltaEvent,
    ReasoningEnd,
    ReasoningStart,
    StartStep,
    StreamDeltaEvent,
    TextPart,
    ToolCall,
    ToolCallDelta,
    ToolCallDeltaEvent,
    ToolCallEndEvent,
    ToolCallExecutionStartEvent,
    ToolCallStartEvent,
    ToolError,
    ToolPart,
    ToolResult,
    parse_provider_part,
)

from .conftest import MakeDesk
from .kit import FINISH, TEXT_END, WORKSPACE, Desk, Line, echo, says, text, tokens

pytestmark = pytest.mark.lifecycle

CALL = ToolCall(tool_call_id="c1", tool_name="find", input={"q": "x"}, provider_executed=True)
RESULT = ToolResult(tool_call_id="c1", tool_name="find", output={"found": 3})


def of(d: Desk, kind: type[Any]) -> list[Any]:
    return [event for event in d.tape.events if isinstance(event, kind)]


# ---- reasoning


async def test_reasoning_is_told_and_kept_with_its_seal(desk: MakeDesk) -> None:
    """The seal comes after the text, in an entry of the provider; an event says it, empty."""
    d = desk(
        says(
            ReasoningStart(),
            ReasoningDelta(text="First "),
            ReasoningDelta(text="this."),
            ReasoningDelta(provider_metadata={"maker": {"signature": "seal"}}),
            ReasoningEnd(),
            text("So."),
            FINISH,
        )
    )

    await d.whole()

    told = [(e.delta, e.signature) for e in of(d, ReasoningDeltaEvent)]
    assert told == [("First ", None), ("this.", None), ("", "seal")]
    assert d.tape.types.count("reasoning-end") == 1
    reasoning, said = d.parts()
    assert (reasoning["text"], reasoning["signature"]) == ("First this.", "seal")
    assert reasoning["providerMetadata"] == {"maker": {"signature": "seal"}}
    assert said["text"] == "So."


async def test_metadata_without_text_is_kept_and_not_told(desk: MakeDesk) -> None:
    d = desk(
        says(
            ReasoningStart(provider_metadata={"maker": {"id": "r1"}}),
            ReasoningDelta(text="Hm."),
            ReasoningEnd(provider_metadata={"maker": {"id": "r1", "sealed": "s"}}),
            text("So."),
            FINISH,
        )
    )

    await d.whole()

    assert [e.delta for e in of(d, ReasoningDeltaEvent)] == ["Hm."]
    assert d.parts()[0]["text"] == "Hm."
    assert d.parts()[0]["providerMetadata"] == {"maker": {"id": "r1", "sealed": "s"}}


async def test_the_end_of_a_reasoning_that_said_nothing_makes_no_part(desk: MakeDesk) -> None:
    """Also what is said of it: after the text it would stand in the wrong place."""
    d = desk(says(text("So."), ReasoningEnd(provider_metadata={"maker": {"id": "r1"}}), FINISH))

    await d.whole()

    assert [part["type"] for part in d.parts()] == ["text"]


# ---- tools that the provider runs itself


@pytest.mark.spec("E18")
async def test_a_call_is_told_then_recorded_with_nothing_between(desk: MakeDesk) -> None:
    d = desk(says(text("I look."), CALL, RESULT, FINISH))
    seen: list[object] = []

    def look(event: Event) -> None:
        if isinstance(event, ToolCallStartEvent):
            snapshot = d.engine.snapshot(WORKSPACE)
            assert snapshot is not None
            seen.append([part.type for part in snapshot.parts])

    d.tape.on_event = look

    await d.whole()

    assert seen == [["text"]]
    call = d.parts()[1]
    assert (call["toolName"], call["input"], call["state"]) == (
        "find",
        {"q": "x"},
        "output-available",
    )


@pytest.mark.spec("E18")
async def test_an_interrupted_call_is_in_the_partial(desk: MakeDesk) -> None:
    line = Line()
    d = desk(line)
    await d.start()
    line.give(text("I look."))
    await d.idle()
    line.give(CALL)
    await d.pass_time(0.5)

    partial = await d.rt.run(d.history.read_partial(WORKSPACE))

    assert partial is not None
    assert [part.type for part in partial.parts] == ["text", "dynamic-tool"]


@pytest.mark.spec("E20")
async def test_a_result_is_on_disk_when_it_is_told(desk: MakeDesk) -> None:
    d = desk(says(text("I look."), CALL, RESULT, FINISH))
    seen: list[bool] = []

    def look(event: Event) -> None:
        if isinstance(event, ToolCallEndEvent):
            log = d.disk.directory() / "partial-log.jsonl"
            seen.append('"found":3' in log.read_text())

    d.tape.on_event = look

    await d.whole()

    assert seen == [True]
    (end,) = of(d, ToolCallEndEvent)
    assert (end.result, end.provider_executed) == ({"found": 3}, True)


@pytest.mark.spec("E20")
async def test_a_result_that_could_not_be_written_is_told_and_written_later(
    desk: MakeDesk,
) -> None:
    line = Line()
    d = desk(line)
    await d.start()
    line.give(text("I look."), CALL)
    await d.idle()
    d.history.fail("append_partial")
    line.give(RESULT)
    await d.idle()
    assert d.tape.types[-1] == "tool-call-end"

    d.history.mend()
    await d.pass_time(0.5)

    partial = await d.rt.run(d.history.read_partial(WORKSPACE))
    assert partial is not None
    call = partial.parts[1]
    assert isinstance(call, ToolPart)
    assert call.output == {"found": 3}


@pytest.mark.spec("E21")
async def test_a_result_without_a_call_makes_one_part_and_few_warnings(desk: MakeDesk) -> None:
    orphans = [ToolResult(tool_call_id=f"lost{n}", tool_name="find", output=n) for n in range(5)]
    d = desk(says(*orphans, FINISH))

    with capture_logs() as logs:
        await d.whole()

    assert [(p["toolCallId"], p.get("input"), p["output"]) for p in d.parts()] == [
        (f"lost{n}", None, n) for n in range(5)
    ]
    assert sum(log["event"] == "a tool result has no call" for log in logs) == 3


async def test_the_error_of_a_tool_is_its_output(desk: MakeDesk) -> None:
    error = ToolError(tool_call_id="c1", tool_name="find", error={"message": "no such place"})
    d = desk(says(text("I look."), CALL, error, FINISH))

    await d.whole()

    assert d.parts()[1]["output"] == {"success": False, "error": "no such place"}


async def test_the_first_result_of_a_call_counts(desk: MakeDesk) -> None:
    again = RESULT.model_copy(update={"output": "other"})
    d = desk(says(text("I look."), CALL, RESULT, again, FINISH))

    await d.whole()

    assert [e.result for e in of(d, ToolCallEndEvent)] == [{"found": 3}]
    assert d.parts()[1]["output"] == {"found": 3}


async def test_a_call_id_that_comes_again_is_another_call(desk: MakeDesk) -> None:
    """Some providers number the calls of each step anew."""
    d = desk(says(text("I look."), CALL, RESULT, CALL, RESULT, FINISH))

    await d.whole()

    assert [part.get("toolCallId") for part in d.parts()] == [None, "c1", "c1-2"]
    assert [e.tool_call_id for e in of(d, ToolCallEndEvent)] == ["c1", "c1-2"]


@pytest.mark.spec("BT8")
async def test_a_call_that_the_provider_leaves_without_a_result_gets_one(desk: MakeDesk) -> None:
    d = desk(says(text("I look."), CALL, FINISH))

    assert (await d.whole()).status == "completed"

    assert d.parts()[1]["output"] == {"success": False, "error": "the tool gave no result"}


async def test_pieces_of_a_call_are_told_and_never_kept(desk: MakeDesk) -> None:
    pieces = [ToolCallDelta(tool_call_id="c1", tool_name="find", delta=d) for d in ('{"q', '":1}')]
    d = desk(says(*pieces, text("Never mind."), FINISH))

    await d.whole()

    assert [e.delta for e in of(d, ToolCallDeltaEvent)] == ['{"q', '":1}']
    assert [part["type"] for part in d.parts()] == ["text"]


async def test_a_call_that_asks_a_person_is_on_disk_at_once(desk: MakeDesk) -> None:
    """It may wait for longer than the process lives."""
    line = Line()
    d = desk(line)
    await d.start()
    line.give(text("One question."))
    await d.idle()

    line.give(ToolCall(tool_call_id="c1", tool_name="ask_user", input={"question": "Which?"}))
    await d.idle()

    partial = await d.rt.run(d.history.read_partial(WORKSPACE))
    assert partial is not None
    assert [part.type for part in partial.parts] == ["text", "dynamic-tool"]


@pytest.mark.parametrize("value", ["cyclic", "object", "nan"])
async def test_what_can_be_no_json_does_not_spoil_the_answer(desk: MakeDesk, value: str) -> None:
    hostile: Any = {"nan": float("nan"), "object": object()}.get(value)
    if value == "cyclic":
        hostile = {}
        hostile["itself"] = hostile
    call = CALL.model_copy(update={"input": hostile})
    result = RESULT.model_copy(update={"output": hostile})
    d = desk(says(text("I look."), call, result, FINISH))

    assert (await d.whole()).status == "completed"

    output = d.parts()[1]["output"]
    assert output["success"] is False
    assert output["error"].startswith("the result is no JSON")


# ---- files, unknown parts


async def test_a_file_is_kept_in_its_place(desk: MakeDesk) -> None:
    file = parse_provider_part(
        {"type": "file", "mediaType": "image/png", "url": "data:image/png;base64,AA=="}
    )
    assert isinstance(file, FilePart)
    d = desk(says(text("Look:"), file, text("Nice."), FINISH))

    await d.whole()

    assert [part["type"] for part in d.parts()] == ["text", "file", "text"]
    assert d.parts()[1]["url"] == "data:image/png;base64,AA=="


async def test_steps_and_text_marks_say_nothing_by_themselves(desk: MakeDesk) -> None:
    d = desk(says(StartStep(), text("So."), TEXT_END, tokens(3), FINISH))

    await d.whole()

    assert d.tape.types == ["stream-start", "stream-delta", "usage-delta", "stream-end"]


# ---- timestamps, correlation


@pytest.mark.spec("E19")
async def test_timestamps_increase_strictly_with_the_clock_standing_still(
    desk: MakeDesk,
) -> None:
    """Text, reasoning, a provider's call and its result, an execution of a tool of ours."""
    step = says(
        text("a"), text("b"), ReasoningDelta(text="c"), CALL, RESULT,
        ToolCall(tool_call_id="e1", tool_name="echo", input={}),
        FINISH,
    )  # fmt: skip
    d = desk(step, says(text("d"), FINISH), tools=[echo()])

    with freeze_time("2024-05-01 12:00:00", real_asyncio=True):
        await d.whole()

    stamps = [
        e.timestamp_ms
        for e in d.tape.events
        if isinstance(
            e,
            StreamDeltaEvent
            | ReasoningDeltaEvent
            | ToolCallStartEvent
            | ToolCallExecutionStartEvent
            | ToolCallEndEvent,
        )
    ]
    assert len(stamps) == 9
    assert stamps == sorted(set(stamps))


@pytest.mark.spec("E19")
async def test_timestamps_increase_when_the_clock_jumps_back(desk: MakeDesk) -> None:
    line = Line()
    d = desk(line)
    with freeze_time("2024-05-01 12:00:00", real_asyncio=True) as frozen:
        await d.start()
        line.give(text("a"))
        await d.idle()

        frozen.move_to("2024-05-01 11:00:00")
        line.give(text("b"))
        await d.idle()

    first, second = of(d, StreamDeltaEvent)
    assert second.timestamp_ms == first.timestamp_ms + 1


@pytest.mark.spec("BT10")
async def test_every_event_carries_what_the_request_said(desk: MakeDesk) -> None:
    """The terminals of all three kinds as well."""
    whole = says(
        ReasoningDelta(text="r"), ReasoningEnd(), text("a"), CALL, RESULT, tokens(1), FINISH
    )
    cut = says(text("a"))
    d = desk(whole, cut, Line())
    for _ in range(3):
        await d.start(correlation={"job": 7}, prompt_id="p9")
        await d.idle()
    await d.stop()

    assert {e.type for e in d.tape.terminals} == {"stream-end", "error", "stream-abort"}
    assert {(str(e.correlation), e.prompt_id) for e in d.tape.events} == {("{'job': 7}", "p9")}


async def test_a_recorded_part_never_changes(desk: MakeDesk) -> None:
    """A snapshot taken early is a prefix of a later one."""
    line = Line()
    d = desk(line, tools=[echo()])
    await d.start()
    line.give(text("a"), ReasoningDelta(text="r"))
    await d.idle()
    early = d.engine.snapshot(WORKSPACE)
    line.give(ReasoningDelta(signature="seal"), CALL, RESULT)
    await d.idle()
    late = d.engine.snapshot(WORKSPACE)

    assert early is not None
    assert late is not None
    assert late.parts[: len(early.parts)] == early.parts
    assert isinstance(early.parts[0], TextPart)
    assert len(late.parts) == 5


async def test_a_piece_of_input_is_told_with_the_id_of_its_call(desk: MakeDesk) -> None:
    """Also where each step numbers its calls anew."""
    step = says(
        ToolCallDelta(tool_call_id="c", tool_name="echo", delta="{"),
        ToolCall(tool_call_id="c", tool_name="echo", input={}),
        ToolCallDelta(tool_call_id="c", tool_name="echo", delta="}"),
        FINISH,
    )
    d = desk(step, step, says(text("Done."), FINISH), tools=[echo()])

    await d.whole()

    assert [event.tool_call_id for event in of(d, ToolCallStartEvent)] == ["c", "c-2"]
    assert [e.tool_call_id for e in of(d, ToolCallDeltaEvent)] == ["c", "c", "c-2", "c-2"]
