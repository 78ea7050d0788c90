"""The events of an answer as parts, for each API."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from streamengine.model import ReasoningPart, Usage, categorize, fold_parts
from streamengine.model.errors import PREVIOUS_RESPONSE_NOT_FOUND
from streamengine.model.parts import MessagePart
from streamengine.providers.anthropic.messages import MessagesReader
from streamengine.providers.api import Reader
from streamengine.providers.errors import ProviderError
from streamengine.providers.failures import Subject
from streamengine.providers.openai.chat import ChatReader
from streamengine.providers.openai.responses import ResponsesReader
from streamengine.providers.thoughts import Thought, thoughts_in

SUBJECT = Subject("api.test", "m", "A_API_KEY")

Part = dict[str, Any]


def read(reader: Reader, *events: Part) -> list[Part]:
    """All parts of an answer, as JSON."""
    parts = [part for event in events for part in reader.read(event)]
    return [part.to_mapping() for part in [*parts, *reader.end()]]


def kinds(parts: list[Part]) -> list[str]:
    return [part["type"] for part in parts]


# ---- chat completions


def delta(finish_reason: str | None = None, **fields: Any) -> Part:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish_reason}]}


def call(index: int | None, arguments: Any = "", **fields: Any) -> Part:
    name = {"name": fields.pop("name")} if "name" in fields else {}
    numbered = {} if index is None else {"index": index}
    return {**numbered, **fields, "function": {**name, "arguments": arguments}}


def calls_in(parts: list[Part]) -> list[tuple[str, str, Any]]:
    return [
        (part["toolCallId"], part["toolName"], part.get("input"))
        for part in parts
        if part["type"] == "tool-call"
    ]


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_chat_tells_reasoning_apart(name: str) -> None:
    parts = read(
        ChatReader(SUBJECT),
        delta(**{name: "Hm"}),
        delta(**{name: "m."}),
        delta(content="Yes."),
        delta("stop"),
    )

    assert kinds(parts) == [
        "reasoning-start",
        "reasoning-delta",
        "reasoning-delta",
        "reasoning-end",
        "text-start",
        "text-delta",
        "text-end",
        "finish-step",
        "finish",
    ]


def test_chat_counts_what_its_server_counts() -> None:
    usage = {
        "prompt_tokens": 9,
        "completion_tokens": 5,
        "total_tokens": 14,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 2},
    }
    parts = read(ChatReader(SUBJECT), delta("stop"), {"choices": [], "usage": usage})

    assert Usage.model_validate(parts[0]["usage"]) == Usage(
        input_tokens=9,
        output_tokens=5,
        total_tokens=14,
        cached_input_tokens=4,
        reasoning_tokens=2,
    )


@pytest.mark.parametrize("odd", ["many", -1, True, 1.5, 10**400, None, []])
def test_a_count_that_is_none_is_left_out(odd: Any) -> None:
    parts = read(ChatReader(SUBJECT), delta("stop"), {"usage": {"prompt_tokens": odd, "x": 1}})

    assert parts[0]["usage"] == {}


@pytest.mark.parametrize(
    "pieces",
    [
        [call(0, '{"a"', id="c1", name="x"), call(0, ": 1}"), call(1, "", id="c2", name="y")],
        [call(0, '{"a": 1}', id="c1", name="x"), call(0, "", id="c2", name="y")],
        [call(None, '{"a": 1}', id="c1", name="x"), call(None, "", id="c2", name="y")],
        [
            call(0, '{"a"', id="c1", name="x"),
            call(0, ": 1}", id="c1", name="x"),
            call(1, {}, id="c2", name="y"),
        ],
        [call(0, {"a": 1}, id="c1", name="x"), call(1, None, id="c2", name="y")],
        [call(0, "", id="c1", name="x"), call(1, "", id="c2", name="y"), call(0, '{"a": 1}')],
    ],
    ids=["in order", "all at 0", "no index", "named again", "as objects", "mixed"],
)
def test_chat_puts_calls_together_however_they_are_numbered(pieces: list[Part]) -> None:
    parts = read(
        ChatReader(SUBJECT), *(delta(tool_calls=[piece]) for piece in pieces), delta("stop")
    )

    assert calls_in(parts) == [("c1", "x", {"a": 1}), ("c2", "y", {})]
    assert parts[-1]["finishReason"] == "tool-calls"


def test_a_call_without_an_id_gets_one() -> None:
    parts = read(ChatReader(SUBJECT), delta("tool_calls", tool_calls=[call(0, "{}", name="x")]))

    ((call_id, _, _),) = calls_in(parts)
    assert call_id.startswith("call_")


def test_calls_that_come_whole_under_one_number_and_without_ids_are_two() -> None:
    parts = read(
        ChatReader(SUBJECT),
        delta(tool_calls=[call(0, '{"a": 1}', name="x", id=""), call(0, {"b": 2}, name="x")]),
        delta("tool_calls"),
    )

    assert [(name, given) for _, name, given in calls_in(parts)] == [
        ("x", {"a": 1}),
        ("x", {"b": 2}),
    ]


def test_a_name_that_stands_at_every_piece_begins_no_other_call() -> None:
    pieces = [call(0, piece, name="x") for piece in ("", '{"a"', ": 1", "}", "")]
    parts = read(ChatReader(SUBJECT), delta(tool_calls=pieces), delta("tool_calls"))

    assert [(name, given) for _, name, given in calls_in(parts)] == [("x", {"a": 1})]


def test_a_call_without_a_name_is_nobody_s() -> None:
    parts = read(ChatReader(SUBJECT), delta("tool_calls", tool_calls=[call(0, "{}", id="c1")]))

    assert calls_in(parts) == []


def test_input_that_is_no_json_is_handed_on_as_it_stands() -> None:
    piece = call(0, '{"a": ', id="c1", name="x")

    parts = read(ChatReader(SUBJECT), delta("tool_calls", tool_calls=[piece]))

    assert calls_in(parts) == [("c1", "x", '{"a": ')]


@pytest.mark.parametrize("reason", ["length", "content_filter"])
def test_a_call_that_was_cut_off_is_not_run(reason: str) -> None:
    piece = call(0, '{"a": ', id="c1", name="x")

    parts = read(ChatReader(SUBJECT), delta(reason, tool_calls=[piece]))

    assert calls_in(parts) == []
    assert parts[-1]["finishReason"] == reason.replace("_", "-")


def test_chat_tells_a_refusal() -> None:
    parts = read(ChatReader(SUBJECT), delta(refusal="I won't."), delta("stop"))

    assert parts[1] == {"type": "text-delta", "text": "I won't."}
    assert parts[-1] == {"type": "finish", "finishReason": "refusal", "rawFinishReason": "stop"}


@pytest.mark.spec("E12")
def test_chat_without_a_reason_has_no_finish() -> None:
    assert kinds(read(ChatReader(SUBJECT), delta(content="Hm"))) == ["text-start", "text-delta"]


def test_a_model_that_fails_in_the_middle_is_a_failure() -> None:
    with pytest.raises(ProviderError, match="failed in the middle"):
        read(ChatReader(SUBJECT), delta("error"))


# ---- responses


def item(kind: str, place: int = 0, **fields: Any) -> Part:
    return {"type": f"response.output_item.{kind}", "output_index": place, "item": fields}


def completed(**fields: Any) -> Part:
    response = {"id": "r1", "status": "completed", **fields}
    return {"type": "response.completed", "response": response}


def responses_thinking() -> list[Part]:
    said = "response.reasoning_summary_text.delta"
    return [
        item("added", type="reasoning", id="rs1"),
        {"type": said, "delta": "First."},
        {"type": "response.reasoning_summary_part.added"},
        {"type": said, "delta": "Then."},
        item("done", type="reasoning", id="rs1", encrypted_content="E1"),
        item("added", 1, type="reasoning", id="rs2"),
        item("done", 1, type="reasoning", id="rs2", encrypted_content="E2"),
        item("added", 2, type="message"),
        {"type": "response.output_text.delta", "delta": "So."},
        item("done", 2, type="message"),
        completed(),
    ]


def messages_thinking() -> list[Part]:
    def block(place: int, **fields: Any) -> Part:
        return {"type": "content_block_start", "index": place, "content_block": fields}

    def more(place: int, **fields: Any) -> Part:
        return {"type": "content_block_delta", "index": place, "delta": fields}

    def stop(place: int) -> Part:
        return {"type": "content_block_stop", "index": place}

    return [
        block(0, type="redacted_thinking", data="D1"),
        stop(0),
        block(1, type="thinking", thinking="", signature=""),
        more(1, type="thinking_delta", thinking="First."),
        more(1, type="signature_delta", signature="S1"),
        stop(1),
        block(2, type="thinking", thinking="Then."),
        more(2, type="signature_delta", signature="S"),
        more(2, type="signature_delta", signature="2"),
        stop(2),
        block(3, type="text", text=""),
        more(3, type="text_delta", text="So."),
        stop(3),
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {}},
    ]


def recorded(parts: list[Part]) -> tuple[MessagePart, ...]:
    """The reasoning of these parts as a row keeps it."""
    said: list[MessagePart] = []
    for part in parts:
        if part["type"] in ("reasoning-start", "reasoning-delta", "reasoning-end"):
            metadata: Part | None = part.get("providerMetadata")
            entries: list[Part] = list((metadata or {}).values())
            signature = next((entry.get("signature") for entry in entries), None)
            said.append(
                ReasoningPart(
                    text=part.get("text", ""), signature=signature, provider_metadata=metadata
                )
            )
    return fold_parts(said)


@pytest.mark.parametrize(
    ("make", "events", "api", "expected"),
    [
        (
            ResponsesReader,
            responses_thinking,
            "openai",
            [
                Thought("First.\n\nThen.", {"id": "rs1", "encrypted_content": "E1"}),
                Thought("", {"id": "rs2", "encrypted_content": "E2"}),
            ],
        ),
        (
            MessagesReader,
            messages_thinking,
            "anthropic",
            [
                Thought("", {"data": "D1"}),
                Thought("First.", {"signature": "S1"}),
                Thought("Then.", {"signature": "S2"}),
            ],
        ),
    ],
    ids=["responses", "messages"],
)
def test_signed_thoughts_survive_being_kept_as_one_text(
    make: Callable[[Subject], Reader],
    events: Callable[[], list[Part]],
    api: str,
    expected: list[Thought],
) -> None:
    parts = read(make(SUBJECT), *events())

    row = [part for part in recorded(parts) if isinstance(part, ReasoningPart)]
    assert list(thoughts_in(row, api)) == expected
    assert kinds(parts)[-5:] == ["text-start", "text-delta", "text-end", "finish-step", "finish"]


def test_blocks_without_words_or_without_a_seal_shift_no_other_thought() -> None:
    """A row keeps them all as one reasoning: the seals of a run must still find their words."""

    def blocks(*given: Part) -> Iterator[Part]:
        for place, fields in enumerate(given):
            yield {"type": "content_block_start", "index": place, "content_block": fields}
            yield {"type": "content_block_stop", "index": place}

    given = blocks(
        {"type": "thinking", "thinking": "First.", "signature": "S1"},
        {"type": "redacted_thinking", "data": "D1"},
        {"type": "redacted_thinking", "data": "D2"},
        {"type": "thinking", "thinking": "Unsealed."},
        {"type": "thinking", "thinking": "Then.", "signature": "S2"},
        {"type": "text", "text": "So."},
    )
    said = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {}}

    parts = read(MessagesReader(SUBJECT), *given, said)

    row = [part for part in recorded(parts) if isinstance(part, ReasoningPart)]
    assert list(thoughts_in(row, "anthropic")) == [
        Thought("First.", {"signature": "S1"}),
        Thought("", {"data": "D1"}),
        Thought("", {"data": "D2"}),
        Thought("Then.", {"signature": "S2"}),
    ]


def test_a_responses_item_that_is_not_sealed_shifts_no_other() -> None:
    said = "response.reasoning_summary_text.delta"
    parts = read(
        ResponsesReader(SUBJECT),
        item("added", type="reasoning", id="rs1"),
        {"type": said, "delta": "Unsealed."},
        item("done", type="reasoning", id="rs1"),
        item("added", 1, type="reasoning", id="rs2"),
        {"type": said, "delta": "Then."},
        item("done", 1, type="reasoning", id="rs2", encrypted_content="E2"),
        completed(),
    )

    row = [part for part in recorded(parts) if isinstance(part, ReasoningPart)]
    assert list(thoughts_in(row, "openai")) == [
        Thought("Then.", {"id": "rs2", "encrypted_content": "E2"})
    ]


def test_the_signature_of_a_thought_is_told() -> None:
    parts = read(MessagesReader(SUBJECT), *messages_thinking())

    told = [part["providerMetadata"]["anthropic"] for part in parts if "providerMetadata" in part]
    assert [entry.get("signature") for entry in told] == [None, "S1", "S2"]


def test_responses_names_the_response_to_go_on_from() -> None:
    parts = read(ResponsesReader(SUBJECT), completed(usage={"input_tokens": 1}))

    assert parts[0]["providerMetadata"] == {"openai": {"responseId": "r1"}}
    assert parts[1] == {
        "type": "finish",
        "finishReason": "stop",
        "rawFinishReason": "completed",
    }


def test_responses_tells_a_refusal() -> None:
    refusal = {"type": "response.refusal.delta", "delta": "I won't."}

    parts = read(ResponsesReader(SUBJECT), refusal, completed())

    assert parts[-1]["finishReason"] == "refusal"


def test_responses_takes_a_call_that_comes_whole() -> None:
    item = {"type": "function_call", "call_id": "c1", "name": "x", "arguments": '{"a": 1}'}
    parts = read(
        ResponsesReader(SUBJECT),
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": {"status": "completed"}},
    )

    assert calls_in(parts) == [("c1", "x", {"a": 1})]
    assert parts[-1]["finishReason"] == "tool-calls"


def test_responses_tells_what_ran_at_the_other_side() -> None:
    search: Part = {
        "type": "web_search_call",
        "id": "ws1",
        "status": "completed",
        "action": {"q": "x"},
    }

    parts = read(ResponsesReader(SUBJECT), item("done", **search), completed())

    assert [(p["type"], p["providerExecuted"]) for p in parts[:2]] == [
        ("tool-call", True),
        ("tool-result", True),
    ]
    assert parts[-1]["finishReason"] == "stop"


def test_responses_says_when_the_earlier_one_is_gone() -> None:
    error = {"type": "error", "code": PREVIOUS_RESPONSE_NOT_FOUND, "message": "r1 not found"}

    with pytest.raises(ProviderError) as raised:
        read(ResponsesReader(SUBJECT), error)

    assert raised.value.code == PREVIOUS_RESPONSE_NOT_FOUND


@pytest.mark.parametrize(
    "error",
    [
        {"type": "error", "message": "Overloaded.", "code": "server_error"},
        {"type": "error", "error": {"message": "Overloaded.", "type": "server_error"}},
        {
            "type": "response.failed",
            "response": {"error": {"message": "x", "code": "server_error"}},
        },
    ],
)
def test_responses_fails_in_three_forms(error: Part) -> None:
    with pytest.raises(ProviderError) as raised:
        read(ResponsesReader(SUBJECT), error)

    assert categorize(raised.value) == "server_error"


# ---- messages


def block_of(*deltas: Part, **begun: Any) -> list[Part]:
    return [
        {"type": "content_block_start", "index": 0, "content_block": begun},
        *({"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": 0},
    ]


def stopped(reason: str, **usage: int) -> Part:
    return {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": usage}


def test_messages_counts_the_whole_prompt() -> None:
    given = {
        "input_tokens": 3,
        "cache_creation_input_tokens": 5,
        "cache_read_input_tokens": 7,
        "output_tokens": 1,
    }
    start = {"type": "message_start", "message": {"usage": given}}

    parts = read(MessagesReader(SUBJECT), start, stopped("end_turn", output_tokens=9))

    assert parts[0]["usage"] == {
        "inputTokens": 15,
        "cachedInputTokens": 7,
        "outputTokens": 9,
        "totalTokens": 24,
    }


def half(written: str) -> Part:
    return {"type": "input_json_delta", "partial_json": written}


CALLS: list[tuple[tuple[Part, ...], Part, str, list[Any]]] = [
    ((half('{"a"'), half(": 1}")), {}, "tool_use", [("t1", "x", {"a": 1})]),
    ((), {"input": {"a": 1}}, "tool_use", [("t1", "x", {"a": 1})]),
    ((), {"input": {}}, "tool_use", [("t1", "x", {})]),
    ((half('{"a"'),), {}, "tool_use", [("t1", "x", '{"a"')]),
    ((half('{"a"'),), {}, "max_tokens", []),
]


@pytest.mark.parametrize(
    ("deltas", "begun", "reason", "expected"),
    CALLS,
    ids=["in pieces", "at once", "none", "no JSON", "cut off"],
)
def test_messages_reads_the_input_of_a_call(
    deltas: tuple[Part, ...], begun: Part, reason: str, expected: list[Any]
) -> None:
    block = block_of(*deltas, type="tool_use", id="t1", name="x", **begun)

    assert calls_in(read(MessagesReader(SUBJECT), *block, stopped(reason))) == expected


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("refusal", "refusal"),
        ("pause_turn", "other"),
        ("from_next_year", "other"),
    ],
)
def test_messages_tells_why_it_ended(raw: str, reason: str) -> None:
    finish = read(MessagesReader(SUBJECT), stopped(raw))[-1]

    assert finish == {"type": "finish", "finishReason": reason, "rawFinishReason": raw}
