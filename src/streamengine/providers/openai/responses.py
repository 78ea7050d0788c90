"""The Responses API of OpenAI: answers as items, reasoning encrypted to be sent back."""

from __future__ import annotations

import json
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
from .chat import EFFORTS
from .usage import usage_of

THOUGHTS: Final = "openai"
"""The entry of provider metadata that is for this API."""

_CUT_REASONS: Final[Mapping[str, str]] = {
    "max_output_tokens": "length",
    "content_filter": "content-filter",
}


@final
class ResponsesApi:
    """``POST responses``. Nothing is stored at the other side unless ``extra`` asks for it."""

    path = "responses"

    def auth(self, key: Secret) -> httpx.Auth:
        return KeyHeader("authorization", key, prefix="Bearer ")

    def headers(self) -> Mapping[str, str]:
        return {}

    def body(self, request: StreamRequest, model: str) -> dict[str, Any]:
        goes_on = request.previous_response_id is not None
        body: dict[str, Any] = {
            "model": model,
            "input": [
                item
                for utterance in dialogue_of(request, only_new=goes_on)
                for item in _items(utterance)
            ],
            "stream": True,
            "store": False,
            "previous_response_id": request.previous_response_id,
            "instructions": request.system or None,
            "temperature": request.temperature,
            "max_output_tokens": request.max_output_tokens,
        }
        if request.tools:
            body["tools"] = [
                {
                    "type": "function",
                    "name": spec.name,
                    "description": spec.description,
                    "parameters": dict(spec.parameters),
                    "strict": False,
                }
                for spec in request.tools
            ]
        if request.thinking_level in EFFORTS:
            body["reasoning"] = {"effort": request.thinking_level}
            # Asked of a model that doesn't reason it is an error.
            body["include"] = ["reasoning.encrypted_content"]
        return body

    def reader(self, subject: Subject) -> Reader:
        return ResponsesReader(subject)


def _items(utterance: Utterance) -> Iterator[dict[str, Any]]:
    said: list[dict[str, Any]] = []

    def message() -> Iterator[dict[str, Any]]:
        if said:
            yield {"role": utterance.role, "content": list(said)}
            said.clear()

    for piece in utterance.pieces:
        content = _content(piece, utterance.role)
        if content is not None:
            said.append(content)
            continue
        yield from message()
        match piece:
            case Reasoning():
                for thought in thoughts_in(piece.parts, THOUGHTS):
                    summary = [{"type": "summary_text", "text": thought.text}]
                    yield {
                        "type": "reasoning",
                        "summary": summary if thought.text else [],
                        **thought.mark,
                    }
            case Call():
                yield {
                    "type": "function_call",
                    "call_id": piece.id,
                    "name": piece.name,
                    "arguments": json.dumps(piece.arguments, ensure_ascii=False, default=str),
                }
            case Result():
                yield {"type": "function_call_output", "call_id": piece.id, "output": piece.text}
            case _:
                pass
    yield from message()


def _content(piece: Piece, role: str) -> dict[str, Any] | None:
    match piece:
        case Text():
            kind = "output_text" if role == "assistant" else "input_text"
            return {"type": kind, "text": piece.text}
        case File() if piece.is_image:
            return {"type": "input_image", "image_url": piece.url}
        case File(media_type="application/pdf") if piece.data:
            named = {"filename": piece.name or "file.pdf", "file_data": piece.url}
            return {"type": "input_file", **named}
        case File():
            return {"type": "input_text", "text": piece.instead}
        case _:
            return None


@final
class ResponsesReader:
    """Reads the events of a response."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._telling = Telling()
        self._marks = ThoughtMarks(THOUGHTS)
        self._calls: dict[int | None, CallDraft] = {}
        self._thought_characters = 0
        self._usage: Usage | None = None
        self._raw: str | None = None
        self._id: str | None = None
        self._kind = "stop"
        self._refused = False
        self.is_said: bool = False
        self.is_over: bool = False

    def read(self, event: Fields) -> Iterator[ProviderPart]:
        match event.get("type"):
            case "response.output_text.delta":
                yield from self._telling.text(event.get("delta"))
            case "response.refusal.delta":
                self._refused = True
                yield from self._telling.text(event.get("delta"))
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                yield from self._thought(event.get("delta"))
            case "response.reasoning_summary_part.added" if self._thought_characters:
                yield from self._thought("\n\n")  # the next paragraph of the same thought
            case "response.output_item.added":
                yield from self._begun(event.get("output_index"), loose.fields(event.get("item")))
            case "response.function_call_arguments.delta":
                draft = self._calls.get(_place(event.get("output_index")))
                delta = loose.text(event.get("delta"))
                if draft is not None and delta:
                    draft.written.append(delta)
                    yield ToolCallDelta(tool_call_id=draft.id, tool_name=draft.name, delta=delta)
            case "response.output_item.done":
                yield from self._done(event.get("output_index"), loose.fields(event.get("item")))
            case "response.completed" | "response.incomplete":
                self._end_response(loose.fields(event.get("response")))
            case "response.failed":
                response = loose.fields(event.get("response"))
                raise failures.of_event(self._subject, response.get("error") or "it failed")
            case "error":
                raise failures.of_event(self._subject, event.get("error") or event)
            case _:
                pass

    def end(self) -> Iterator[ProviderPart]:
        if self._raw is not None:
            # For a request that goes on from here: its previous_response_id.
            named = {THOUGHTS: {"responseId": self._id}} if self._id else None
            yield from self._telling.finish(self._kind, self._raw, self._usage, named)

    def _thought(self, delta: object) -> Iterator[ProviderPart]:
        self._thought_characters += len(loose.text(delta))
        yield from self._telling.reasoning(delta)

    def _begun(self, index: object, item: Fields) -> Iterator[ProviderPart]:
        match item.get("type"):
            case "reasoning":
                self._thought_characters = 0
            case "function_call":
                self._marks.end_run()
                call_id, name = loose.word(item.get("call_id")), loose.word(item.get("name"))
                if call_id is not None and name is not None:
                    self._calls[_place(index)] = CallDraft(call_id, name)
                    yield from self._telling.end()
            case _:
                self._marks.end_run()

    def _done(self, index: object, item: Fields) -> Iterator[ProviderPart]:
        kind = loose.text(item.get("type"))
        if kind == "reasoning":
            yield from self._thought_done(item)
        elif kind == "function_call":
            draft = self._calls.get(_place(index))
            if draft is None:
                # Some tell of a call only when it is whole.
                yield from self._begun(index, item)
                draft = self._calls.get(_place(index))
            if draft is None:
                return
            draft.written[:] = [loose.text(item.get("arguments")) or "".join(draft.written)]
            # One that the bound of the answer has cut off must not be run.
            if draft.is_whole() or item.get("status") == "completed":
                yield from self._telling.call(draft)
        elif kind.endswith("_call"):
            yield from self._ran_there(kind, item)
        else:
            yield from self._telling.end()

    def _thought_done(self, item: Fields) -> Iterator[ProviderPart]:
        encrypted = loose.word(item.get("encrypted_content"))
        characters, self._thought_characters = self._thought_characters, 0
        if encrypted is None:
            self._marks.skip_block(characters)
            yield from self._telling.end()
            return
        mark = {"id": loose.word(item.get("id")), "encrypted_content": encrypted}
        known = {name: value for name, value in mark.items() if value is not None}
        yield from self._telling.mark_reasoning(self._marks.end_block(characters, known))

    def _ran_there(self, kind: str, item: Fields) -> Iterator[ProviderPart]:
        """A tool of the API's own, such as a search: it has run when we hear of it."""
        call_id = loose.word(item.get("id"))
        if call_id is None:
            return
        yield from self._telling.end()
        name = kind.removesuffix("_call")
        given = item.get("action", item.get("queries", item.get("code")))
        yield ToolCall(tool_call_id=call_id, tool_name=name, input=given, provider_executed=True)
        found = {key: item[key] for key in ("status", "results", "outputs") if key in item}
        yield ToolResult(tool_call_id=call_id, tool_name=name, output=found, provider_executed=True)

    def _end_response(self, response: Fields) -> None:
        self.is_said = self.is_over = True
        self._usage = usage_of(response.get("usage"))
        self._id = loose.word(response.get("id"))
        why = loose.word(loose.fields(response.get("incomplete_details")).get("reason"))
        self._raw = why or loose.word(response.get("status")) or "completed"
        if why is not None:
            self._kind = _CUT_REASONS.get(why, "other")
        elif self._refused:
            self._kind = "refusal"
        elif self._telling.has_calls:
            self._kind = "tool-calls"


def _place(index: object) -> int | None:
    return loose.count(index)
