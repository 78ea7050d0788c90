"""What the APIs say on the wire, as bytes: one dialect an API."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, Final

GIVEN: Final = 7
MADE: Final = 3


def event(data: object, name: str | None = None) -> bytes:
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data, ensure_ascii=False)}\n\n".encode()


class Dialect(ABC):
    """How one API says things."""

    key_header: str
    """The header that the key comes in."""

    @abstractmethod
    def begin(self) -> list[bytes]:
        """What comes before the text."""

    @abstractmethod
    def text(self, text: str) -> bytes:
        """A delta."""

    @abstractmethod
    def end(self, reason: str = "stop") -> list[bytes]:
        """What comes after the text, with the usage. ``reason``: ours."""

    @abstractmethod
    def failure(self, message: str) -> bytes:
        """An error inside the stream."""

    @abstractmethod
    def answer_calling(self, call_id: str, name: str, pieces: Iterable[str]) -> list[bytes]:
        """A whole answer that is one tool call, its input in pieces."""

    def answer(self, *texts: str) -> list[bytes]:
        return [*self.begin(), *map(self.text, texts), *self.end()]

    def refusal(self, code: str, message: str) -> str:
        """The body of an answer that isn't 200."""
        return json.dumps({"error": {"type": code, "code": code, "message": message}})


class ChatDialect(Dialect):
    key_header = "authorization"

    def begin(self) -> list[bytes]:
        return [self._chunk({"role": "assistant", "content": ""})]

    def text(self, text: str) -> bytes:
        return self._chunk({"content": text})

    def end(self, reason: str = "stop") -> list[bytes]:
        raw = {"content-filter": "content_filter", "tool-calls": "tool_calls"}.get(reason, reason)
        usage = {"prompt_tokens": GIVEN, "completion_tokens": MADE, "total_tokens": GIVEN + MADE}
        tail: dict[str, Any] = {**_CHUNK, "choices": [], "usage": usage}
        return [self._chunk({}, raw), event(tail), b"data: [DONE]\n\n"]

    def failure(self, message: str) -> bytes:
        return event({"error": {"message": message, "type": "server_error"}})

    def answer_calling(self, call_id: str, name: str, pieces: Iterable[str]) -> list[bytes]:
        opened = {"index": 0, "id": call_id, "type": "function"}
        first = {**opened, "function": {"name": name, "arguments": ""}}
        return [
            self._chunk({"role": "assistant", "tool_calls": [first]}),
            *(
                self._chunk({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]})
                for piece in pieces
            ),
            *self.end("tool-calls"),
        ]

    def _chunk(self, delta: dict[str, Any], reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        return event({**_CHUNK, "choices": [choice]})


_CHUNK: Final = {
    "id": "c1",
    "object": "chat.completion.chunk",
    "created": 1,
    "model": "m",
}


class ResponsesDialect(Dialect):
    key_header = "authorization"

    def begin(self) -> list[bytes]:
        return [
            self._event("response.created", response={"id": "r1", "status": "in_progress"}),
            self._event(
                "response.output_item.added",
                output_index=0,
                item={"type": "message", "id": "m1", "role": "assistant", "content": []},
            ),
        ]

    def text(self, text: str) -> bytes:
        return self._event(
            "response.output_text.delta", output_index=0, content_index=0, item_id="m1", delta=text
        )

    def end(self, reason: str = "stop") -> list[bytes]:
        usage = {"input_tokens": GIVEN, "output_tokens": MADE, "total_tokens": GIVEN + MADE}
        response: dict[str, Any] = {"id": "r1", "status": "completed", "usage": usage}
        name = "response.completed"
        if reason in ("length", "content-filter"):
            why = "max_output_tokens" if reason == "length" else "content_filter"
            name = "response.incomplete"
            response |= {"status": "incomplete", "incomplete_details": {"reason": why}}
        done = self._event(
            "response.output_item.done", output_index=0, item={"type": "message", "id": "m1"}
        )
        return [done, self._event(name, response=response)]

    def failure(self, message: str) -> bytes:
        error = {"code": "server_error", "message": message}
        return self._event("response.failed", response={"status": "failed", "error": error})

    def answer_calling(self, call_id: str, name: str, pieces: Iterable[str]) -> list[bytes]:
        pieces = list(pieces)
        item = {"type": "function_call", "id": "f1", "call_id": call_id, "name": name}
        whole = {**item, "arguments": "".join(pieces), "status": "completed"}
        kind = "response.function_call_arguments.delta"
        return [
            self._event("response.output_item.added", output_index=0, item=item),
            *(self._event(kind, output_index=0, item_id="f1", delta=piece) for piece in pieces),
            self._event("response.output_item.done", output_index=0, item=whole),
            self.end()[-1],
        ]

    def _event(self, kind: str, **fields: Any) -> bytes:
        return event({"type": kind, **fields}, kind)


class AnthropicDialect(Dialect):
    key_header = "x-api-key"

    def begin(self) -> list[bytes]:
        return [
            self._start(),
            self._event("content_block_start", index=0, content_block={"type": "text", "text": ""}),
            self._event("ping"),
        ]

    def text(self, text: str) -> bytes:
        return self._delta({"type": "text_delta", "text": text})

    def end(self, reason: str = "stop") -> list[bytes]:
        raw = {"stop": "end_turn", "length": "max_tokens", "content-filter": "refusal"}
        delta = {"stop_reason": raw.get(reason, "tool_use"), "stop_sequence": None}
        return [
            self._event("content_block_stop", index=0),
            self._event("message_delta", delta=delta, usage={"output_tokens": MADE}),
            self._event("message_stop"),
        ]

    def failure(self, message: str) -> bytes:
        return self._event("error", error={"type": "api_error", "message": message})

    def refusal(self, code: str, message: str) -> str:
        return json.dumps({"type": "error", "error": {"type": code, "message": message}})

    def answer_calling(self, call_id: str, name: str, pieces: Iterable[str]) -> list[bytes]:
        block: dict[str, Any] = {"type": "tool_use", "id": call_id, "name": name, "input": {}}
        return [
            self._start(),
            self._event("content_block_start", index=0, content_block=block),
            *(self._delta({"type": "input_json_delta", "partial_json": piece}) for piece in pieces),
            *self.end("tool-calls"),
        ]

    def _start(self) -> bytes:
        usage = {"input_tokens": GIVEN, "output_tokens": 1}
        return self._event("message_start", message={"id": "m1", "usage": usage})

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return self._event("content_block_delta", index=0, delta=delta)

    def _event(self, kind: str, **fields: Any) -> bytes:
        return event({"type": kind, **fields}, kind)
