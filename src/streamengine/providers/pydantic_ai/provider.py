"""PydanticAIProvider: the models of pydantic-ai behind the protocol of this engine."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack
from typing import Any, Final, final
from urllib.parse import urlsplit

from pydantic_ai.direct import model_request_stream
from pydantic_ai.exceptions import (
    ContentFilterError,
    ModelAPIError,
    ModelHTTPError,
    UserError,
)
from pydantic_ai.messages import (
    BaseToolCallPart,
    ModelMessage,
    ModelResponsePart,
    ModelResponseStreamEvent,
    NativeToolCallPart,
    NativeToolReturnPart,
    PartDeltaEvent,
    PartEndEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
    ToolCallPartDelta,
)
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse, infer_model
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.usage import RequestUsage

from fibers import AbortSignal

from ...model.errors import SendError, StreamError, categorize
from ...model.parts import (
    ProviderPart,
    StartStep,
    ToolCall,
    ToolCallDelta,
    ToolResult,
    UnknownPart,
)
from ...model.request import StreamRequest
from ...model.usage import Usage
from ...redact import redact, secrets_in
from .. import failures
from ..dialogue import dialogue_of
from ..errors import ProviderError
from ..failures import Subject
from ..keys import NOT_FOUND
from ..patience import Aborted, Patience
from ..telling import CallDraft, Telling
from ..thoughts import ThoughtMarks
from .messages import THOUGHTS, messages_of

_REASONS: Final[Mapping[str, str]] = {
    "stop": "stop",
    "length": "length",
    "content_filter": "content-filter",
    "tool_call": "tool-calls",
}
_EFFORTS: Final = ("minimal", "low", "medium", "high", "xhigh", "max")


@final
class PydanticAIProvider:
    """Answers with a model of pydantic-ai, which brings its own client and finds its own key.

        PydanticAIProvider("google:gemini-2.5-flash")
        PydanticAIProvider(FunctionModel(stream_function=...))

    A name becomes a model at the first message; a request may name another one. What keeps it from
    being one (an unknown name, a missing key or package) is raised by ``stream`` as SendError. A
    model behind a network whose answer gives no finish reason counts as cut off.
    """

    def __init__(self, model: Model | str, *, environment: Mapping[str, str] = os.environ) -> None:
        """``environment``: its keys and tokens are taken out of what errors say."""
        self._model = model
        self._by_name: dict[str, Model] = {}
        self._secrets = secrets_in(environment)

    def stream(
        self, request: StreamRequest, signal: AbortSignal
    ) -> AsyncIterator[ProviderPart | UnknownPart]:
        """Begin an answer. Raises SendError where the model can't be had."""
        model = self._named(request.model or self._model)
        host = urlsplit(model.base_url or "").netloc or model.system
        subject = Subject(host, model.model_name, "the environment", secrets=self._secrets)
        messages = messages_of(dialogue_of(request), request.system)
        return _parts(model, messages, request, signal, subject)

    def check_model(self) -> None:
        """Make the model now. Raises SendError as ``stream`` does."""
        self._named(self._model)

    def _named(self, model: Model | str) -> Model:
        if isinstance(model, Model):
            return model
        known = self._by_name.get(model)
        if known is not None:
            return known
        try:
            made = self._by_name[model] = infer_model(model)
            return made
        except (UserError, ImportError, ValueError) as error:
            what = redact(" ".join(str(error).split()), self._secrets)
            kind = NOT_FOUND if "API_KEY" in what else "model_not_available"
        raise SendError(kind, f"pydantic-ai has no model {model!r}: {what}")


def _settings(request: StreamRequest) -> ModelSettings:
    settings = ModelSettings()
    if request.temperature is not None:
        settings["temperature"] = request.temperature
    if request.max_output_tokens is not None:
        settings["max_tokens"] = request.max_output_tokens
    for effort in _EFFORTS:
        if request.thinking_level == effort:
            settings["thinking"] = effort
    return settings


async def _parts(
    model: Model,
    messages: list[ModelMessage],
    request: StreamRequest,
    signal: AbortSignal,
    subject: Subject,
) -> AsyncIterator[ProviderPart | UnknownPart]:
    tools = [
        ToolDefinition(
            name=spec.name,
            description=spec.description,
            parameters_json_schema=dict(spec.parameters),
        )
        for spec in request.tools
    ]
    opening = model_request_stream(
        model,
        messages,
        model_settings=_settings(request),
        model_request_parameters=ModelRequestParameters(function_tools=tools),
    )
    patience = Patience(signal)
    try:
        async with AsyncExitStack() as stack:
            stack.callback(patience.close)
            stream = await patience.within(None, stack.enter_async_context(opening))
            reader = _Reader(subject)
            yield StartStep()
            events = aiter(stream)
            while (event := await patience.within(None, anext(events, None))) is not None:
                for part in reader.read(event):
                    yield part
            for part in reader.end(stream, is_local=model.provider is None):
                yield part
        return
    except Aborted:
        return
    except StreamError:
        raise
    except Exception as error:  # noqa: BLE001  # told as a failure of the provider, without secrets
        failure = _failure(subject, error)
    # Out here, as what was caught may hold the request with its headers: no traceback shall.
    raise failure


def _failure(subject: Subject, error: Exception) -> ProviderError:
    if isinstance(error, ModelHTTPError):
        return failures.of_answer(subject, error.status_code, error.body, error.retry_after)
    what = subject.clean(" ".join(str(error).split()) or type(error).__name__)
    if isinstance(error, ContentFilterError):
        return ProviderError("model_refusal", f"{subject.host} refuses: {what}")
    if isinstance(error, ModelAPIError):
        return ProviderError("network", f"{subject.host} gave no whole answer: {what}")
    return ProviderError(categorize(error), f"{subject.model} failed: {what}")


@final
class _Reader:
    """Reads the events of a streamed response."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._telling = Telling()
        self._marks = ThoughtMarks(THOUGHTS)
        self._calls: dict[int, tuple[str, str]] = {}
        """Id and name of a call, by its place in the response."""

    def read(self, event: ModelResponseStreamEvent) -> Iterator[ProviderPart]:
        if isinstance(event, PartStartEvent):
            yield from self._start(event.index, event.part)
        elif isinstance(event, PartDeltaEvent):
            yield from self._delta(event)
        elif isinstance(event, PartEndEvent):
            yield from self._end(event.part)

    def end(self, stream: StreamedResponse, *, is_local: bool) -> Iterator[ProviderPart]:
        response = stream.get()
        reason = response.finish_reason
        if reason == "error":
            raise failures.of_event(self._subject, "the model failed in the middle of its answer")
        for part in response.parts:
            # Only now: the pieces of several calls may come mixed.
            if isinstance(part, ToolCallPart):
                yield from self._telling.call(_draft(part))
        raw = (response.provider_details or {}).get("finish_reason")
        if not is_local and reason in (None, "stop", "tool_call") and raw is None:
            # Where the API has given none it is left out, or made up: it proves nothing.
            yield from self._telling.end()
            return
        kind = _REASONS.get(reason or "stop", "other")
        if kind == "stop" and self._telling.has_calls:
            kind = "tool-calls"
        said = raw if isinstance(raw, str) else reason or "stop"
        yield from self._telling.finish(kind, said, _usage_of(stream.usage))

    def _start(self, index: int, part: ModelResponsePart) -> Iterator[ProviderPart]:
        match part:
            case TextPart():
                self._marks.end_run()
                yield from self._telling.text(part.content)
            case ThinkingPart():
                yield from self._telling.reasoning(part.content)
            case ToolCallPart():
                self._marks.end_run()
                yield from self._telling.end()
                self._calls[index] = (part.tool_call_id, part.tool_name)
                yield from self._written(index, part.args)
            case NativeToolReturnPart():
                yield ToolResult(
                    tool_call_id=part.tool_call_id,
                    tool_name=part.tool_name,
                    output=part.content,
                    provider_executed=True,
                )
            case _:
                self._marks.end_run()
                yield from self._telling.end()

    def _delta(self, event: PartDeltaEvent) -> Iterator[ProviderPart]:
        match event.delta:
            case TextPartDelta(content_delta=more):
                yield from self._telling.text(more)
            case ThinkingPartDelta(content_delta=more):
                yield from self._telling.reasoning(more)
            case ToolCallPartDelta(args_delta=more):
                yield from self._written(event.index, more)
            case _:
                pass

    def _end(self, part: ModelResponsePart) -> Iterator[ProviderPart]:
        if isinstance(part, ThinkingPart) and (part.signature or part.id):
            mark = {
                "id": part.id,
                "signature": part.signature,
                "provider_name": part.provider_name,
                "provider_details": part.provider_details,
            }
            known = {name: value for name, value in mark.items() if value is not None}
            more = {"signature": part.signature} if part.signature else {}
            metadata = self._marks.end_block(len(part.content), known, **more)
            yield from self._telling.mark_reasoning(metadata)
        elif isinstance(part, NativeToolCallPart):
            draft = _draft(part)
            yield ToolCall(
                tool_call_id=draft.id,
                tool_name=draft.name,
                input=draft.input,
                provider_executed=True,
            )
        elif isinstance(part, TextPart | ThinkingPart):
            if isinstance(part, ThinkingPart):
                self._marks.skip_block(len(part.content))
            yield from self._telling.end()

    def _written(self, index: int, more: object) -> Iterator[ProviderPart]:
        if more and index in self._calls:
            call_id, name = self._calls[index]
            yield ToolCallDelta(tool_call_id=call_id, tool_name=name, delta=more)


def _draft(part: BaseToolCallPart[Any]) -> CallDraft:
    draft = CallDraft(part.tool_call_id, part.tool_name)
    if isinstance(part.args, str):
        draft.written.append(part.args)
    else:
        draft.preset(part.args or {})
    return draft


def _usage_of(usage: RequestUsage) -> Usage | None:
    if not usage.has_values():
        return None
    return Usage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        total_tokens=usage.total_tokens,
        reasoning_tokens=usage.details.get("reasoning_tokens"),
        cached_input_tokens=usage.cache_read_tokens,
    )
