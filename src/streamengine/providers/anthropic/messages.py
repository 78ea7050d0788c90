"""Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, final

import httpx

from ...model.parts import ProviderPart, ToolCall, ToolCallDelta, ToolResult
from ...model.request import StreamRequest
from ...model.usage import Usage
from ...redact import Secret
from .. import failures, loose
from ..api import Reader
from ..dialogue import Call, File, Piece, Reasoning, Result, Text, Utterance, dialogue_of
from ..failures import Subject
from ..http import KeyHeader
from ..loose import Fields
from ..telling import CallDraft, Telling
from ..thoughts import ThoughtMarks, thoughts_in

VERSION: Final = "2023-06-01"
THOUGHTS: Final = "anthropic"
"""The entry of a reasoning part's metadata that is for this API."""

DEFAULT_OUTPUT_TOKENS: Final = 8192
"""The API wants a bound of each answer."""

_THINKING_TOKENS: Final[Mapping[str, int]] = {
    "minimal": 1024,
    "low": 2048,
    "medium": 8192,
    "high": 16384,
    "xhigh": 32768,
}
_REASONS: Final[Mapping[str, str]] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool-calls",
    "refusal": "refusal",
}


@final
class MessagesApi:
    """``POST messages``."""

    path = "messages"

    def auth(self, key: Secret) -> httpx.Auth:
        return KeyHeader("x-api-key", key)

    def headers(self) -> Mapping[str, str]:
        return {"anthropic-version": VERSION}

    def body(self, request: StreamRequest, model: str) -> dict[str, Any]:
        dialogue = dialogue_of(request)
        thinking = _THINKING_TOKENS.get(request.thinking_level or "", 0)
        body: dict[str, Any] = {
            "model": model,
            "max_tokens": (request.max_output_tokens or DEFAULT_OUTPUT_TOKENS) + thinking,
            "messages": _messages(dialogue),
            "stream": True,
            "system": request.system or None,
        }
        if thinking:
            body["thinking"] = {"type": "enabled", "budget_tokens": thinking}
        elif request.temperature is not None:
            # Beside thinking it is refused.
            body["temperature"] = request.temperature
        body.update(_tools(request, dialogue))
        return body

    def reader(self, subject: Subject) -> Reader:
        return MessagesReader(subject)


def _tools(request: StreamRequest, dialogue: list[Utterance]) -> dict[str, Any]:
    if request.tools:
        return {
            "tools": [
                {
                    "name": spec.name,
                    "description": spec.description,
                    "input_schema": dict(spec.parameters),
                }
                for spec in request.tools
            ]
        }
    # A conversation with calls in it needs the tools named, also where none may be called now.
    called = {p.name for said in dialogue for p in said.pieces if isinstance(p, Call)}
    if not called:
        return {}
    tools = [{"name": name, "input_schema": {"type": "object"}} for name in sorted(called)]
    return {"tools": tools, "tool_choice": {"type": "none"}}


def _messages(dialogue: list[Utterance]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    for utterance in dialogue:
        content = [block for piece in utterance.pieces for block in _blocks(piece)]
        if not content:
            continue  # it was only reasoning of somebody else
        if messages and messages[-1]["role"] == utterance.role:
            messages[-1]["content"].extend(content)
        else:
            messages.append({"role": utterance.role, "content": content})
    if messages and messages[-1]["role"] == "assistant":
        last: dict[str, Any] = messages[-1]["content"][-1]
        if last["type"] == "text":
            # The model writes on from there, and white space at that place is refused.
            last["text"] = last["text"].rstrip()
    return messages


def _blocks(piece: Piece) -> Iterator[dict[str, Any]]:
    match piece:
        case Text():
            yield {"type": "text", "text": piece.text}
        case Reasoning():
            for thought in thoughts_in(piece.parts, THOUGHTS):
                if "signature" in thought.mark:
                    yield {"type": "thinking", "thinking": thought.text, **thought.mark}
                else:
                    yield {"type": "redacted_thinking", **thought.mark}
        case Call():
            yield {
                "type": "tool_use",
                "id": piece.id,
                "name": piece.name,
                "input": dict(piece.arguments),
            }
        case Result():
            result: dict[str, Any] = {"type": "tool_result", "tool_use_id": piece.id}
            if piece.text.strip():
                result["content"] = piece.text
            if piece.is_error:
                result["is_error"] = True
            yield result
        case File() if piece.is_image:
            yield {"type": "image", "source": _source(piece)}
        case File(media_type="application/pdf"):
            yield {"type": "document", "source": _source(piece)}
        case File():
            yield {"type": "text", "text": piece.instead}


def _source(file: File) -> dict[str, Any]:
    if file.data is None:
        return {"type": "url", "url": file.url}
    return {"type": "base64", "media_type": file.media_type, "data": file.data}


@final
class _Block:
    """A content block that is open."""

    def __init__(self, kind: str, begun: Fields) -> None:
        self.kind = kind
        self.begun = begun
        self.characters = 0
        self.signature: list[str] = []
        self.draft = CallDraft(loose.text(begun.get("id")), loose.text(begun.get("name")))


@final
class MessagesReader:
    """Reads the events of a message."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._telling = Telling()
        self._marks = ThoughtMarks(THOUGHTS)
        self._blocks: dict[int | None, _Block] = {}
        self._cut: list[CallDraft] = []
        """Calls whose input is no JSON: whether they were cut off is told later."""
        self._usage: dict[str, int] = {}
        self._raw: str | None = None
        self.is_said: bool = False
        self.is_over: bool = False

    def read(self, event: Fields) -> Iterator[ProviderPart]:
        place = loose.count(event.get("index"))
        match event.get("type"):
            case "message_start":
                self._count(loose.fields(event.get("message")).get("usage"))
            case "content_block_start":
                yield from self._begin(place, loose.fields(event.get("content_block")))
            case "content_block_delta":
                block = self._blocks.get(place)
                if block is not None:
                    yield from self._more(block, loose.fields(event.get("delta")))
            case "content_block_stop":
                block = self._blocks.pop(place, None)
                if block is not None:
                    yield from self._end_of(block)
            case "message_delta":
                self._count(event.get("usage"))
                raw = loose.word(loose.fields(event.get("delta")).get("stop_reason"))
                if raw is not None:
                    yield from self._said(raw)
            case "message_stop":
                self.is_over = True
            case "error":
                raise failures.of_event(self._subject, event.get("error"))
            case _:
                pass

    def end(self) -> Iterator[ProviderPart]:
        if self._raw is not None:
            reason = _REASONS.get(self._raw, "other")
            yield from self._telling.finish(reason, self._raw, _usage_of(self._usage))

    def _said(self, raw: str) -> Iterator[ProviderPart]:
        self._raw = raw
        self.is_said = True
        if raw == "tool_use":
            for draft in self._cut:
                yield from self._telling.call(draft)

    def _begin(self, place: int | None, begun: Fields) -> Iterator[ProviderPart]:
        kind = loose.text(begun.get("type"))
        block = self._blocks[place] = _Block(kind, begun)
        if kind not in ("thinking", "redacted_thinking"):
            self._marks.end_run()
        match kind:
            case "text":
                yield from self._telling.text(begun.get("text"))
            case "thinking":
                yield from self._thought(block, begun.get("thinking"))
            case "redacted_thinking":
                mark = {"data": loose.text(begun.get("data"))}
                yield from self._telling.mark_reasoning(self._marks.end_block(0, mark))
            case _:
                yield from self._telling.end()

    def _more(self, block: _Block, delta: Fields) -> Iterator[ProviderPart]:
        match delta.get("type"):
            case "text_delta":
                yield from self._telling.text(delta.get("text"))
            case "thinking_delta":
                yield from self._thought(block, delta.get("thinking"))
            case "signature_delta":
                block.signature.append(loose.text(delta.get("signature")))
            case "input_json_delta":
                written = loose.text(delta.get("partial_json"))
                if written and block.draft.name:
                    block.draft.written.append(written)
                    yield ToolCallDelta(
                        tool_call_id=block.draft.id, tool_name=block.draft.name, delta=written
                    )
            case _:
                pass

    def _thought(self, block: _Block, delta: object) -> Iterator[ProviderPart]:
        block.characters += len(loose.text(delta))
        yield from self._telling.reasoning(delta)

    def _end_of(self, block: _Block) -> Iterator[ProviderPart]:
        draft = block.draft
        if block.kind == "thinking":
            yield from self._signed(block)
        elif block.kind.endswith("tool_result"):
            # Of a tool that ran at the other side.
            yield ToolResult(
                tool_call_id=loose.text(block.begun.get("tool_use_id")),
                tool_name=block.kind.removesuffix("_tool_result"),
                output=block.begun.get("content"),
                provider_executed=True,
            )
        elif block.kind not in ("tool_use", "server_tool_use"):
            yield from self._telling.end()
        elif draft.id and draft.name:
            if not draft.written and block.begun.get("input"):
                draft.preset(block.begun["input"])
            if block.kind == "server_tool_use":
                yield ToolCall(
                    tool_call_id=draft.id,
                    tool_name=draft.name,
                    input=draft.input,
                    provider_executed=True,
                )
            elif draft.is_whole():
                yield from self._telling.call(draft)
            else:
                self._cut.append(draft)

    def _signed(self, block: _Block) -> Iterator[ProviderPart]:
        signature = "".join(block.signature) or loose.text(block.begun.get("signature"))
        if not signature:
            self._marks.skip_block(block.characters)
            yield from self._telling.end()
            return
        mark = {"signature": signature}
        metadata = self._marks.end_block(block.characters, mark, signature=signature)
        yield from self._telling.mark_reasoning(metadata)

    def _count(self, usage: object) -> None:
        """Both events count the whole message so far; the later one may leave out what it knows
        no better.
        """
        for name, value in loose.fields(usage).items():
            number = loose.count(value)
            if number is not None:
                self._usage[name] = number


def _usage_of(counted: Mapping[str, int]) -> Usage | None:
    if not counted:
        return None
    cached = counted.get("cache_read_input_tokens", 0)
    given = counted.get("input_tokens", 0) + counted.get("cache_creation_input_tokens", 0) + cached
    made = counted.get("output_tokens", 0)
    return Usage(
        input_tokens=given,
        output_tokens=made,
        total_tokens=given + made,
        cached_input_tokens=cached,
    )
