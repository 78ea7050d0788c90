"""Chat completions, which OpenAI and most servers of open models speak."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from typing import Any, Final, final

import httpx

from ...model.parts import ProviderPart, ToolCallDelta
from ...model.request import StreamRequest
from ...model.tools import ToolSpec
from ...model.usage import Usage
from ...redact import Secret
from .. import failures, loose
from ..api import Reader
from ..dialogue import Call, File, Piece, Result, Text, Utterance, dialogue_of
from ..failures import Subject
from ..http import KeyHeader
from ..loose import Fields
from ..telling import CallDraft, Telling
from .usage import usage_of

EFFORTS: Final = frozenset({"minimal", "low", "medium", "high", "xhigh"})
"""What a request's thinking level may be to be passed on; another one is left to the model."""

_REASONS: Final[Mapping[str, str]] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool-calls",
    "function_call": "tool-calls",
    "content_filter": "content-filter",
}


@final
class ChatApi:
    """``POST chat/completions``."""

    path = "chat/completions"

    def __init__(self, *, names_completion_tokens: bool) -> None:
        """``names_completion_tokens``: the bound of the answer is `max_completion_tokens`, which
        OpenAI wants and others don't know, not `max_tokens`.
        """
        self._bound = "max_completion_tokens" if names_completion_tokens else "max_tokens"

    def auth(self, key: Secret) -> httpx.Auth:
        return KeyHeader("authorization", key, prefix="Bearer ")

    def headers(self) -> Mapping[str, str]:
        return {}

    def body(self, request: StreamRequest, model: str) -> dict[str, Any]:
        messages: list[dict[str, Any]] = []
        if request.system:
            messages.append({"role": "system", "content": request.system})
        for utterance in dialogue_of(request):
            if utterance.role == "assistant":
                messages.append(_assistant(utterance))
            else:
                messages.extend(_user(utterance))
        body: dict[str, Any] = {
            "model": model,
            "messages": messages,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if request.tools:
            body["tools"] = [_tool(spec) for spec in request.tools]
        if request.temperature is not None:
            body["temperature"] = request.temperature
        if request.max_output_tokens is not None:
            body[self._bound] = request.max_output_tokens
        if request.thinking_level in EFFORTS:
            body["reasoning_effort"] = request.thinking_level
        return body

    def reader(self, subject: Subject) -> Reader:
        return ChatReader(subject)


def _assistant(utterance: Utterance) -> dict[str, Any]:
    # Reasoning is left out: there is no place for it that all of these servers take.
    text = "".join(piece.text for piece in utterance.pieces if isinstance(piece, Text))
    calls = [_call(piece) for piece in utterance.pieces if isinstance(piece, Call)]
    message: dict[str, Any] = {"role": "assistant", "content": text or None}
    if calls:
        message["tool_calls"] = calls
    return message


def _call(call: Call) -> dict[str, Any]:
    arguments = json.dumps(call.arguments, ensure_ascii=False, default=str)
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": arguments},
    }


def _user(utterance: Utterance) -> Iterator[dict[str, Any]]:
    content: list[dict[str, Any]] = []
    for piece in utterance.pieces:
        if isinstance(piece, Result):
            # Before what the user says: it has to follow the calls at once.
            yield {"role": "tool", "tool_call_id": piece.id, "content": piece.text}
        else:
            content.extend(_content(piece))
    if all(block["type"] == "text" for block in content):
        # Many servers know no other form.
        text = "\n\n".join(block["text"] for block in content)
        if text:
            yield {"role": "user", "content": text}
    else:
        yield {"role": "user", "content": content}


def _content(piece: Piece) -> Iterator[dict[str, Any]]:
    match piece:
        case Text():
            yield {"type": "text", "text": piece.text}
        case File() if piece.is_image:
            yield {"type": "image_url", "image_url": {"url": piece.url}}
        case File(media_type="application/pdf") if piece.data:
            named = {"filename": piece.name or "file.pdf", "file_data": piece.url}
            yield {"type": "file", "file": named}
        case File():
            yield {"type": "text", "text": piece.instead}
        case _:
            return


def _tool(spec: ToolSpec) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {
            "name": spec.name,
            "description": spec.description,
            "parameters": dict(spec.parameters),
        },
    }


@final
class ChatReader:
    """Reads the chunks of a completion. Only its first choice: one answer was asked for."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._telling = Telling()
        self._calls: list[CallDraft] = []
        self._at: dict[int, CallDraft] = {}
        self._usage: Usage | None = None
        self._reason: str | None = None
        self._refused = False
        self.is_said: bool = False
        self.is_over = False

    def read(self, event: Fields) -> Iterator[ProviderPart]:
        if event.get("error"):
            raise failures.of_event(self._subject, event["error"])
        self._usage = usage_of(event.get("usage")) or self._usage
        for choice in map(loose.fields, loose.items(event.get("choices"))):
            if choice.get("index") in (0, None):
                yield from self._choice(choice)

    def end(self) -> Iterator[ProviderPart]:
        if self._reason is not None:
            yield from self._telling.finish(self._kind(self._reason), self._reason, self._usage)

    def _choice(self, choice: Fields) -> Iterator[ProviderPart]:
        delta = loose.fields(choice.get("delta"))
        # Servers of open models have it under the first of these names, gateways the second.
        yield from self._telling.reasoning(delta.get("reasoning_content") or delta.get("reasoning"))
        yield from self._telling.text(delta.get("content"))
        refusal = loose.word(delta.get("refusal"))
        if refusal is not None:
            self._refused = True
            yield from self._telling.text(refusal)
        for call in map(loose.fields, loose.items(delta.get("tool_calls"))):
            yield from self._tool_call(call)
        reason = loose.word(choice.get("finish_reason"))
        if reason is not None and self._reason is None:
            yield from self._said(reason)

    def _tool_call(self, call: Fields) -> Iterator[ProviderPart]:
        function = loose.fields(call.get("function"))
        written = function.get("arguments")
        # Some send it whole, and not as text.
        delta = written if isinstance(written, str) else json.dumps(written) if written else ""
        draft = self._draft(call, function, delta)
        if draft is not None and delta:
            yield from self._telling.end()
            draft.written.append(delta)
            yield ToolCallDelta(tool_call_id=draft.id, tool_name=draft.name, delta=delta)

    def _draft(self, call: Fields, function: Fields, delta: str) -> CallDraft | None:
        """The call that a piece belongs to: by its index, or the latest where there is none."""
        call_id = loose.word(call.get("id"))
        name = loose.word(function.get("name"))
        index = loose.count(call.get("index"))
        latest = self._calls[-1] if self._calls else None
        known = latest if index is None else self._at.get(index)
        if known is not None and (name is None or call_id in (None, known.id)):
            # Some give no ids either: what follows an input that came whole is another call's.
            anew = name is not None and call_id is None and delta and len(known.written) == 1
            if not (anew and known.is_whole()):
                return known
        if name is None:
            return None  # nobody could run it
        draft = CallDraft(call_id or f"call_{uuid.uuid4().hex}", name)
        self._calls.append(draft)
        if index is not None:
            # Some give every call the index 0: the newest has it.
            self._at[index] = draft
        return draft

    def _said(self, reason: str) -> Iterator[ProviderPart]:
        self._reason = reason
        self.is_said = True
        yield from self._telling.end()
        if reason == "error":
            raise failures.of_event(self._subject, "the model failed in the middle of its answer")
        whole = self._kind(reason) in ("stop", "tool-calls")
        for draft in self._calls:
            # One that the bound of the answer has cut off must not be run.
            if whole or draft.is_whole():
                yield from self._telling.call(draft)

    def _kind(self, reason: str) -> str:
        kind = _REASONS.get(reason, "other")
        if self._refused and kind == "stop":
            return "refusal"
        # Some call it a stop also where tools shall be run.
        return "tool-calls" if kind == "stop" and self._calls else kind
