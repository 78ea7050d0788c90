from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamengine.model import (
    ErrorPart,
    Finish,
    FinishStep,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    StartStep,
    TextDelta,
    TextEnd,
    TextPart,
    TextStart,
    ToolCall,
    ToolCallDelta,
    ToolError,
    ToolPart,
    ToolResult,
    UnknownMessagePart,
    UnknownPart,
    Usage,
    UserRow,
    parse_provider_part,
    parse_row,
)


@pytest.mark.parametrize(
    ("raw", "part"),
    [
        ({"type": "text-start", "id": "0"}, TextStart(id="0")),
        ({"type": "text-delta", "text": "hi"}, TextDelta(text="hi")),
        ({"type": "text-end"}, TextEnd()),
        ({"type": "reasoning-start"}, ReasoningStart()),
        ({"type": "reasoning-delta", "text": "hm"}, ReasoningDelta(text="hm")),
        (
            {"type": "reasoning-end", "providerMetadata": {"x": 1}},
            ReasoningEnd(provider_metadata={"x": 1}),
        ),
        (
            {"type": "tool-call", "toolCallId": "c", "toolName": "t", "input": {"q": 1}},
            ToolCall(tool_call_id="c", tool_name="t", input={"q": 1}),
        ),
        (
            {"type": "tool-call-delta", "toolCallId": "c", "toolName": "t", "delta": "{"},
            ToolCallDelta(tool_call_id="c", tool_name="t", delta="{"),
        ),
        (
            {"type": "tool-result", "toolCallId": "c", "toolName": "t", "output": None},
            ToolResult(tool_call_id="c", tool_name="t", output=None),
        ),
        (
            {"type": "tool-error", "toolCallId": "c", "toolName": "t", "error": "no"},
            ToolError(tool_call_id="c", tool_name="t", error="no"),
        ),
        ({"type": "start-step"}, StartStep()),
        (
            {"type": "finish-step", "usage": {"inputTokens": 3}},
            FinishStep(usage=Usage(input_tokens=3)),
        ),
        ({"type": "error", "error": {"message": "x"}}, ErrorPart(error={"message": "x"})),
        (
            {"type": "finish", "finishReason": "stop", "rawFinishReason": "end_turn"},
            Finish(finish_reason="stop", raw_finish_reason="end_turn"),
        ),
    ],
)
def test_each_provider_part_is_read_from_its_json(raw: dict[str, Any], part: object) -> None:
    assert parse_provider_part(raw) == part


@pytest.mark.parametrize("key", ["text", "delta", "textDelta"])
def test_the_text_of_a_delta_is_found_under_any_of_its_names(key: str) -> None:
    assert parse_provider_part({"type": "text-delta", key: "hi"}) == TextDelta(text="hi")


def test_a_provider_part_of_an_unknown_type_is_handed_through() -> None:
    raw = {"type": "source", "url": "about:blank"}

    part = parse_provider_part(raw)

    assert part == UnknownPart("source", raw)


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        ({"type": "text-delta", "text": 5}, "valid string"),
        ({"type": "tool-call", "toolName": "t"}, "toolCallId"),
        ({"type": "finish"}, "finishReason"),
        ({"type": 7}, "no type"),
        ({}, "no type"),
    ],
)
def test_a_malformed_provider_part_is_unknown_and_says_why(
    raw: dict[str, Any], problem: str
) -> None:
    part = parse_provider_part(raw)

    assert isinstance(part, UnknownPart)
    assert part.problem is not None
    assert problem in part.problem


def test_the_problem_of_a_malformed_part_does_not_quote_it() -> None:
    part = parse_provider_part({"type": "text-delta", "text": {"secret": "swordfish"}})

    assert "swordfish" not in repr(part)


def test_an_error_part_may_hold_a_payload_that_holds_itself() -> None:
    payload: dict[str, Any] = {}
    payload["self"] = payload

    part = parse_provider_part({"type": "error", "error": payload})

    assert isinstance(part, ErrorPart)


@pytest.mark.parametrize(
    ("finish", "is_terminal"),
    [
        (Finish(finish_reason="stop"), True),
        (Finish(finish_reason="length", raw_finish_reason="max_tokens"), True),
        (Finish(finish_reason="other", raw_finish_reason="odd"), True),
        (Finish(finish_reason="other"), False),
    ],
)
def test_a_finish_that_a_client_library_made_up_is_not_terminal(
    finish: Finish, is_terminal: bool
) -> None:
    assert finish.is_terminal is is_terminal


def test_the_timestamp_of_a_part_is_called_timestamp_in_json() -> None:
    part = TextPart(text="hi", timestamp_ms=1_700_000_000_000)

    assert part.to_mapping() == {"type": "text", "text": "hi", "timestamp": 1_700_000_000_000}
    assert TextPart.model_validate(part.to_mapping()) == part


def test_a_message_part_of_an_unknown_type_survives_reading_and_writing() -> None:
    stored = {"type": "source-url", "url": "about:blank", "title": None, "n": [None]}

    row = parse_row({"id": "m", "role": "user", "parts": [stored]})

    assert isinstance(row.parts[0], UnknownMessagePart)
    assert row.to_mapping()["parts"] == [stored]


def test_fields_of_a_known_part_that_are_unknown_here_are_kept() -> None:
    part = TextPart.model_validate({"type": "text", "text": "x", "newerField": {"a": None}})

    assert part.to_mapping() == {"type": "text", "text": "x", "newerField": {"a": None}}


def test_a_tool_part_with_a_state_of_a_newer_version_is_readable_and_unfinished() -> None:
    part = ToolPart(tool_call_id="c", tool_name="t", state="output-redacted")

    assert not part.has_output


def test_a_null_inside_a_tool_output_stays() -> None:
    part = ToolPart(tool_call_id="c", tool_name="t", state="output-available", output={"a": None})

    assert part.to_mapping()["output"] == {"a": None}


def test_half_an_emoji_can_be_written() -> None:
    part = TextPart(text="\ud83d")

    assert json.loads(part.to_json()) == {"type": "text", "text": "\ud83d"}


def test_a_value_that_holds_itself_can_not_be_written() -> None:
    output: list[Any] = []
    output.append(output)
    part = ToolPart(tool_call_id="c", tool_name="t", state="output-available", output=output)

    with pytest.raises(ValueError):
        part.to_json()


def test_an_output_that_is_no_plain_data_is_written_as_its_text() -> None:
    class Odd:
        def __str__(self) -> str:
            return "odd"

    part = ToolPart(tool_call_id="c", tool_name="t", state="output-available", output=Odd())

    assert part.to_mapping()["output"] == "odd"


@settings(deadline=None)
@given(st.text(st.characters()))
def test_any_text_comes_back_as_it_was(text: str) -> None:
    row = UserRow(id="m", parts=(TextPart(text=text),))

    assert parse_row(row.to_mapping()) == row
