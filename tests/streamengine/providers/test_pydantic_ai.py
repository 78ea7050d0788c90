"""The models of pydantic-ai behind the engine's protocol."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from pydantic_ai.exceptions import ContentFilterError, ModelAPIError, ModelHTTPError, UserError
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.function import (
    AgentInfo,
    DeltaThinkingPart,
    DeltaToolCall,
    DeltaToolCalls,
    FunctionModel,
)
from pydantic_ai.models.test import TestModel as PydanticTestModel

from fibers import AbortController
from streamengine import SendError, StreamRequest
from streamengine.model import ErrorType, ToolSpec, UnknownPart, categorize
from streamengine.providers.errors import ProviderError
from streamengine.providers.pydantic_ai import PydanticAIProvider

SIGNAL = AbortController().signal

Said = str | DeltaToolCalls | dict[int, DeltaThinkingPart]


class Model:
    """A function as a model: says what it is given, and keeps what it was asked."""

    def __init__(self, *said: Said | Exception) -> None:
        self._said = said
        self.asked: list[tuple[list[ModelMessage], AgentInfo]] = []
        self.provider = PydanticAIProvider(FunctionModel(stream_function=self._say))

    async def _say(self, messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        self.asked.append((messages, info))
        for said in self._said:
            if isinstance(said, Exception):
                raise said
            yield said


async def told(model: Model, **fields: Any) -> list[dict[str, Any]]:
    parts = model.provider.stream(StreamRequest(text="Hi", **fields), SIGNAL)
    return [part.to_mapping() async for part in parts if not isinstance(part, UnknownPart)]


async def test_calls_come_with_their_input() -> None:
    model = Model(
        "I look. ",
        {0: DeltaToolCall(name="look", json_args='{"at"', tool_call_id="c1")},
        {0: DeltaToolCall(json_args=': "a"}')},
        {1: DeltaToolCall(name="look", json_args="{}", tool_call_id="c2")},
    )

    parts = await told(model)

    calls = [(p["toolCallId"], p["input"]) for p in parts if p["type"] == "tool-call"]
    deltas = [p["delta"] for p in parts if p["type"] == "tool-call-delta"]
    assert calls == [("c1", {"at": "a"}), ("c2", {})]
    assert deltas == ['{"at"', ': "a"}', "{}"]
    assert parts[-1]["finishReason"] == "tool-calls"


async def test_thinking_keeps_its_signature() -> None:
    model = Model(
        {0: DeltaThinkingPart(content="Hm")},
        {0: DeltaThinkingPart(content="m.", signature="S1")},
        "Yes.",
    )

    parts = await told(model)

    (metadata,) = [p["providerMetadata"] for p in parts if "providerMetadata" in p]
    assert metadata["pydantic-ai"]["signature"] == "S1"
    assert metadata["pydantic-ai"]["blocks"][0]["characters"] == 4
    assert [p["type"] for p in parts][-5:] == [
        "text-start",
        "text-delta",
        "text-end",
        "finish-step",
        "finish",
    ]


async def test_the_model_is_told_of_tools_and_settings() -> None:
    model = Model("Hi.")

    await told(
        model,
        tools=(ToolSpec(name="look", description="Looks."),),
        temperature=0.5,
        max_output_tokens=9,
        thinking_level="low",
        system="Be brief.",
    )

    ((_, info),) = model.asked
    assert [tool.name for tool in info.function_tools] == ["look"]
    settings = dict(info.model_settings or {})
    assert (settings["temperature"], settings["max_tokens"]) == (0.5, 9)


async def test_usage_is_told() -> None:
    parts = await told(Model("one two three"))

    assert parts[-2]["type"] == "finish-step"
    assert parts[-2]["usage"]["outputTokens"] > 0


@pytest.mark.parametrize(
    ("error", "error_type", "text"),
    [
        (ModelHTTPError(401, "m", {"error": {"message": "No."}}), "authentication", "says: No."),
        (ModelHTTPError(529, "m", "busy"), "server_error", "busy"),
        (ModelAPIError("m", "the line is dead"), "network", "the line is dead"),
        (ContentFilterError("not that"), "model_refusal", "not that"),
        (RuntimeError("odd"), "unknown", "m failed: odd"),
        (TimeoutError("late"), "network", "late"),
    ],
)
async def test_a_failure_has_its_category(
    error: Exception, error_type: ErrorType, text: str
) -> None:
    model = Model("Well, ", error)
    model.provider = PydanticAIProvider(FunctionModel(stream_function=model._say, model_name="m"))

    with pytest.raises(ProviderError) as raised:
        await told(model)

    assert categorize(raised.value) == error_type
    assert text in str(raised.value)


async def test_what_a_failure_is_made_of_does_not_hang_on_it() -> None:
    with pytest.raises(ProviderError) as raised:
        await told(Model("Well, ", ModelHTTPError(401, "m", {"error": {"message": "No."}})))

    assert raised.value.__cause__ is None
    assert raised.value.__context__ is None


async def test_a_name_becomes_a_model() -> None:
    parts = PydanticAIProvider("test").stream(StreamRequest(text="Hi"), SIGNAL)

    assert [part.type async for part in parts][-1] == "finish"


async def test_a_request_may_name_another_model() -> None:
    provider = PydanticAIProvider(PydanticTestModel())

    with pytest.raises(SendError):
        provider.stream(StreamRequest(text="Hi", model="nobody:m"), SIGNAL)


@pytest.mark.parametrize(
    ("name", "kind", "text"),
    [
        ("nobody:m", "model_not_available", "Unknown model: nobody:m"),
        ("openai:gpt-4.1-mini", "api_key_not_found", "OPENAI_API_KEY"),
    ],
)
def test_a_model_that_can_not_be_had_is_refused_at_once(
    name: str, kind: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)

    with pytest.raises(SendError) as raised:
        PydanticAIProvider(name).stream(StreamRequest(text="Hi"), SIGNAL)

    assert raised.value.kind == kind
    assert text in raised.value.message


def test_a_refusal_at_once_holds_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    def infer(_name: str) -> Any:
        raise UserError("the key hush-hush-1 is wrong")

    monkeypatch.setattr("streamengine.providers.pydantic_ai.provider.infer_model", infer)
    make: Callable[[], Any] = lambda: PydanticAIProvider(  # noqa: E731  # said once
        "x:y", environment={"X_API_KEY": "hush-hush-1"}
    ).check_model()

    with pytest.raises(SendError, match=r"the key \[secret\] is wrong"):
        make()
