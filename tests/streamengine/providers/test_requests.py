"""A conversation as the body of a request, for each API."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest
from pydantic_ai.messages import ModelMessagesTypeAdapter

from streamengine import StreamRequest
from streamengine.model import Row, ToolSpec, parse_row
from streamengine.providers.anthropic.messages import MessagesApi
from streamengine.providers.api import Api
from streamengine.providers.dialogue import ABORTED, Call, Result, Text, dialogue_of
from streamengine.providers.http import json_bytes
from streamengine.providers.openai.chat import ChatApi
from streamengine.providers.openai.responses import ResponsesApi
from streamengine.providers.pydantic_ai.messages import messages_of

CHAT: Final = ChatApi(names_completion_tokens=False)
APIS: Final[list[Api]] = [CHAT, ResponsesApi(), MessagesApi()]


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def tool(call_id: str, output: Any = None, **fields: Any) -> dict[str, Any]:
    """A call with its result; ``state`` may say that it has none."""
    return {
        "type": "dynamic-tool",
        "toolCallId": call_id,
        "toolName": "look",
        "state": "output-available",
        "input": {"at": call_id},
        "output": output,
        **fields,
    }


def thought(words: str, api: str, *blocks: dict[str, Any]) -> dict[str, Any]:
    metadata = {api: {"blocks": list(blocks)}}
    return {"type": "reasoning", "text": words, "providerMetadata": metadata}


def user(*parts: dict[str, Any]) -> Row:
    return parse_row({"id": "u1", "role": "user", "parts": parts})


def assistant(*parts: dict[str, Any]) -> Row:
    return parse_row({"id": "a1", "role": "assistant", "parts": parts})


def asked(*history: Row, so_far: tuple[dict[str, Any], ...] = (), **fields: Any) -> StreamRequest:
    said = assistant(*so_far).parts
    return StreamRequest(text="And now?", history=history, so_far=said, **fields)


def roles_of(body: dict[str, Any]) -> list[str]:
    return [message["role"] for message in body["messages"]]


# ---- the dialogue, common to all


def test_both_sides_speak_in_turn() -> None:
    request = asked(user(text("A")), user(text("B")), assistant(text("C")), assistant(text("D")))

    dialogue = dialogue_of(request)

    assert [(said.role, said.pieces) for said in dialogue] == [
        ("user", [Text("A"), Text("B")]),
        ("assistant", [Text("C"), Text("D")]),
        ("user", [Text("And now?")]),
    ]


@pytest.mark.spec("P7")
def test_what_says_nothing_is_left_out() -> None:
    request = asked(user(text(" ")), user(text("A")), assistant(text("\n\n")), assistant())

    (said,) = dialogue_of(request)

    assert said.pieces == [Text("A"), Text("And now?")]


def test_the_user_begins_also_where_the_first_row_is_lost() -> None:
    request = asked(assistant(tool("c1", "x")), assistant(text("B")))

    (said,) = dialogue_of(request)

    assert said.pieces == [Text("And now?")]


@pytest.mark.spec("P22")
def test_every_call_has_its_result_right_behind_it() -> None:
    parts = (text("I look."), tool("c1", "x"), tool("c2", {"n": 1}), text("Seen."))

    dialogue = dialogue_of(asked(user(text("A")), assistant(*parts)))

    look = {name: Call(name, "look", {"at": name}) for name in ("c1", "c2")}
    assert [(said.role, said.pieces) for said in dialogue[1:]] == [
        ("assistant", [Text("I look."), look["c1"], look["c2"]]),
        (
            "user",
            [Result("c1", "look", "x", is_error=False), Result("c2", "look", '{"n": 1}', False)],
        ),
        ("assistant", [Text("Seen.")]),
        ("user", [Text("And now?")]),
    ]


@pytest.mark.spec("P22")
def test_a_call_without_a_result_is_answered_all_the_same() -> None:
    request = asked(user(text("A")), assistant(tool("c1", state="input-available")))

    results = [p for said in dialogue_of(request) for p in said.pieces if isinstance(p, Result)]

    assert results == [Result("c1", "look", ABORTED, is_error=True)]


def test_this_answer_goes_on_after_the_message() -> None:
    request = asked(user(text("A")), assistant(text("B")), so_far=(text("C"), tool("c1", "x")))

    assert [said.role for said in dialogue_of(request)] == [
        "user",
        "assistant",
        "user",
        "assistant",
        "user",
    ]


def test_ids_are_unique_and_taken_by_every_api() -> None:
    odd = "id with spaces, and far too long " * 3
    request = asked(
        user(text("A")),
        assistant(tool("call_0", "x"), tool(odd, "y")),
        assistant(tool("call_0", "z"), tool("", "w")),
    )

    calls = [p.id for said in dialogue_of(request) for p in said.pieces if isinstance(p, Call)]
    results = [p.id for said in dialogue_of(request) for p in said.pieces if isinstance(p, Result)]

    assert calls[0] == "call_0"
    assert len(set(calls)) == 4
    assert all(call.replace("_", "").isalnum() and len(call) <= 40 for call in calls)
    assert calls == results


def test_names_and_inputs_that_a_model_invented_are_made_to_fit() -> None:
    request = asked(
        user(text("A")), assistant(tool("c1", "x", toolName="a.b c" * 30, input="half {"))
    )

    (call,) = [p for said in dialogue_of(request) for p in said.pieces if isinstance(p, Call)]

    assert call.name == ("a_b_c" * 30)[:64]
    assert call.arguments == {"input": "half {"}


@pytest.mark.parametrize("api", APIS)
def test_rows_of_a_newer_version_do_not_stop_it(api: Any) -> None:
    strange = {"type": "hologram", "data": [1]}
    odd_tool = tool("c1", float("inf"), state="output-streaming")
    request = asked(user(strange, text("A")), assistant(strange, odd_tool, tool("c2", object())))

    body = api.body(request, "m")

    assert json.loads(json_bytes(body))["model"] == "m"


def test_half_of_an_emoji_becomes_a_mark() -> None:
    sent = json.loads(json_bytes({"text": "a\ud83d b \ud83c\udf27"}))

    assert sent == {"text": "a\ufffd b \U0001f327"}


# ---- chat completions


def test_chat_has_a_message_a_result() -> None:
    request = asked(
        user(text("A")), assistant(tool("c1", "x"), text("B")), system="Be brief.", temperature=0.1
    )

    body = CHAT.body(request, "m")

    assert body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "A"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "c1",
                    "type": "function",
                    "function": {"name": "look", "arguments": '{"at": "c1"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "x"},
        {"role": "assistant", "content": "B"},
        {"role": "user", "content": "And now?"},
    ]
    assert body["stream_options"] == {"include_usage": True}


def test_chat_names_the_bound_as_its_server_does() -> None:
    request = asked(max_output_tokens=9, thinking_level="high")

    assert CHAT.body(request, "m")["max_tokens"] == 9
    assert CHAT.body(request, "m")["reasoning_effort"] == "high"
    of_openai = ChatApi(names_completion_tokens=True).body(request, "m")
    assert (of_openai["max_completion_tokens"], "max_tokens" in of_openai) == (9, False)


def test_chat_shows_files() -> None:
    picture = {"type": "file", "mediaType": "image/png", "url": "https://x.test/a.png"}
    sound = {"type": "file", "mediaType": "audio/wav", "url": "data:,", "filename": "a.wav"}

    first, _ = CHAT.body(asked(user(picture, sound), assistant(text("B"))), "m")["messages"][:2]

    assert first["content"] == [
        {"type": "image_url", "image_url": {"url": "https://x.test/a.png"}},
        {"type": "text", "text": "[a file that can't be shown here: a.wav, audio/wav]"},
    ]


SPEC: Final = ToolSpec(name="look", description="Looks.", parameters={"type": "object"})


def test_each_api_declares_tools_in_its_own_form() -> None:
    request = asked(tools=(SPEC,))
    schema = {"type": "object"}

    chat, responses, messages = (api.body(request, "m")["tools"] for api in APIS)

    about = {"name": "look", "description": "Looks."}
    assert chat == [{"type": "function", "function": {**about, "parameters": schema}}]
    assert responses == [{"type": "function", **about, "parameters": schema, "strict": False}]
    assert messages == [{**about, "input_schema": schema}]


# ---- responses


def test_responses_gets_its_reasoning_back() -> None:
    first = {"id": "rs1", "encrypted_content": "E1", "characters": 5}
    second = {"id": "rs2", "encrypted_content": "E2", "characters": 0}
    said = (
        thought("Hmm, ", "openai", first),
        thought("", "openai", first, second),
        tool("c1", "x"),
    )

    body = ResponsesApi().body(asked(user(text("A")), so_far=said), "m")

    assert body["input"][1:] == [
        {
            "type": "reasoning",
            "id": "rs1",
            "encrypted_content": "E1",
            "summary": [{"type": "summary_text", "text": "Hmm, "}],
        },
        {"type": "reasoning", "id": "rs2", "encrypted_content": "E2", "summary": []},
        {
            "type": "function_call",
            "call_id": "c1",
            "name": "look",
            "arguments": '{"at": "c1"}',
        },
        {"type": "function_call_output", "call_id": "c1", "output": "x"},
    ]


def test_responses_goes_on_from_an_earlier_one_with_what_is_new() -> None:
    request = asked(user(text("A")), assistant(text("B")), previous_response_id="r1")

    body = ResponsesApi().body(request, "m")

    assert body["previous_response_id"] == "r1"
    assert body["input"] == [
        {"role": "user", "content": [{"type": "input_text", "text": "And now?"}]}
    ]


def test_responses_asks_for_reasoning_only_where_it_is_wanted() -> None:
    body = ResponsesApi().body(asked(thinking_level="low"), "m")

    assert body["reasoning"] == {"effort": "low"}
    assert body["include"] == ["reasoning.encrypted_content"]
    assert "include" not in ResponsesApi().body(asked(), "m")


# ---- messages


SIGNED: Final = {"signature": "S1", "characters": 4}
REDACTED: Final = {"data": "D1", "characters": 0}


def test_messages_alternate_with_results_first() -> None:
    request = asked(user(text("A")), assistant(tool("c1", {"success": False, "error": "no"})))

    body = MessagesApi().body(request, "m")

    assert roles_of(body) == ["user", "assistant", "user"]
    assert body["messages"][-1]["content"] == [
        {
            "type": "tool_result",
            "tool_use_id": "c1",
            "content": '{"success": false, "error": "no"}',
            "is_error": True,
        },
        {"type": "text", "text": "And now?"},
    ]


def test_messages_gets_its_thoughts_back_in_their_order() -> None:
    said = (
        thought("Hmm.", "anthropic", REDACTED, SIGNED),
        thought("", "anthropic", REDACTED, SIGNED, REDACTED),
        tool("c1", "x"),
    )

    body = MessagesApi().body(asked(so_far=said), "m")

    redacted = {"type": "redacted_thinking", "data": "D1"}
    assert body["messages"][1]["content"][:3] == [
        redacted,
        {"type": "thinking", "thinking": "Hmm.", "signature": "S1"},
        redacted,
    ]


@pytest.mark.parametrize(
    "said",
    [
        thought("Hmm.", "openai", {"id": "rs1", "encrypted_content": "E", "characters": 4}),
        {"type": "reasoning", "text": "Hmm."},
        thought("Hm", "anthropic", SIGNED),
        thought("Hmm.", "anthropic", {"signature": "S1", "characters": "many"}),
    ],
    ids=["another API's", "unsigned", "shortened", "damaged"],
)
def test_messages_gets_no_thoughts_that_are_not_its_own(said: dict[str, Any]) -> None:
    body = MessagesApi().body(asked(so_far=(said, text("B"))), "m")

    assert body["messages"][1]["content"] == [{"type": "text", "text": "B"}]


def test_messages_gets_no_thought_that_leads_to_nothing() -> None:
    history = (user(text("A")), assistant(text("B"), thought("Hmm.", "anthropic", SIGNED)))

    body = MessagesApi().body(asked(*history), "m")

    assert body["messages"][1]["content"] == [{"type": "text", "text": "B"}]
    only = MessagesApi().body(
        asked(user(text("A")), assistant(history[1].parts[1].to_mapping())), "m"
    )
    assert roles_of(only) == ["user"]


def test_messages_names_the_tools_of_a_conversation_with_calls() -> None:
    body = MessagesApi().body(asked(user(text("A")), assistant(tool("c1", "x"))), "m")

    assert body["tools"] == [{"name": "look", "input_schema": {"type": "object"}}]
    assert body["tool_choice"] == {"type": "none"}


def test_messages_makes_room_for_thinking() -> None:
    body = MessagesApi().body(
        asked(thinking_level="low", max_output_tokens=100, temperature=0.3), "m"
    )

    assert body["thinking"] == {"type": "enabled", "budget_tokens": 2048}
    assert body["max_tokens"] == 2148
    assert "temperature" not in body


def test_messages_ends_no_beginning_with_a_space() -> None:
    body = MessagesApi().body(asked(so_far=(text("And so \n"),)), "m")

    assert body["messages"][-1] == {
        "role": "assistant",
        "content": [{"type": "text", "text": "And so"}],
    }


# ---- pydantic-ai


def test_pydantic_ai_gets_requests_and_responses() -> None:
    mark = {"signature": "S1", "provider_name": "anthropic", "characters": 4}
    said = (thought("Hmm.", "pydantic-ai", mark), text("B"), tool("c1", "x"))
    request = asked(user(text("A")), assistant(*said))

    messages = messages_of(dialogue_of(request), "Be brief.")

    told = json.loads(ModelMessagesTypeAdapter.dump_json(messages))
    parts = [
        [(part["part_kind"], part.get("content", part.get("args"))) for part in message["parts"]]
        for message in told
    ]
    assert parts == [
        [("system-prompt", "Be brief."), ("user-prompt", "A")],
        [("thinking", "Hmm."), ("text", "B"), ("tool-call", {"at": "c1"})],
        [("tool-return", "x"), ("user-prompt", "And now?")],
    ]
    assert told[1]["parts"][0]["signature"] == "S1"
