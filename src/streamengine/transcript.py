"""Transcript: what a provider says becomes events and recorded parts, in this order (E18).

One part a delta, each with the timestamp of its event. Nothing that was recorded changes: a later
word on a reasoning or a tool call is a further part of it, and model/fold.py reads them as one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, final

import structlog

from .history.partial import is_commit_worthy
from .model.events import (
    ReasoningDeltaEvent,
    ReasoningEndEvent,
    StreamDeltaEvent,
    ToolCallDeltaEvent,
    ToolCallEndEvent,
    ToolCallExecutionStartEvent,
    ToolCallStartEvent,
)
from .model.parts import (
    FilePart,
    MessagePart,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningPart,
    ReasoningStart,
    TextPart,
    ToolCall,
    ToolCallDelta,
    ToolError,
    ToolPart,
    ToolResult,
)
from .model.plain import is_mapping, plain, plain_mapping, plain_or_words
from .model.refused import refusal_of
from .model.tool_output import ABORTED, failure
from .payloads import message_of

if TYPE_CHECKING:
    from .events.spine import EventSpine
    from .partials import PartialWriter
    from .stream import Stream
    from .tokens import TokenTracker

_log = structlog.get_logger("streamengine.transcript")

ORPHAN_WARNINGS: Final = 3
"""How many tool results without a call a stream warns of."""


@dataclass(frozen=True, slots=True)
class OpenCall:
    """A tool call that has no result yet."""

    part: ToolPart
    """As it was recorded last."""

    @property
    def id(self) -> str:
        return self.part.tool_call_id


@final
class Transcript:
    """Records one stream. Only the stream's pump calls it, and the canceller once that is over.

    ``said_before``: what an earlier try of the same answer has said; its call ids are taken.
    """

    def __init__(
        self,
        stream: Stream,
        *,
        events: EventSpine,
        writer: PartialWriter,
        tokens: TokenTracker,
        said_before: Iterable[MessagePart] = (),
    ) -> None:
        self._stream = stream
        self._events = events
        self._writer = writer
        self._tokens = tokens
        self._open: dict[str, ToolPart] = {}
        self._answered = {p.tool_call_id for p in said_before if isinstance(p, ToolPart)}
        # A provider's own name of a call -> the id it has in this answer.
        self._ids: dict[str, str] = {}
        self._orphans = 0

    def _record(self, part: MessagePart) -> None:
        self._stream.parts.append(part)
        self._writer.changed()

    # ---- text, reasoning, files

    def text(self, text: str) -> None:
        """More text; nothing where there is none."""
        if not text:
            return
        timestamp_ms = self._stream.next_timestamp_ms()
        try:
            # The event first: a reader who takes a snapshot of the parts meanwhile must not get
            # the same text twice (E18).
            self._events.emit(
                StreamDeltaEvent(
                    **self._stream.about,
                    delta=text,
                    timestamp_ms=timestamp_ms,
                    tokens=self._tokens.told(text),
                )
            )
        finally:
            self._record(TextPart(text=text, timestamp_ms=timestamp_ms))

    def reasoning_start(self, part: ReasoningStart) -> None:
        """A block of reasoning begins: only what the provider says of it is recorded."""
        if part.provider_metadata:
            self._reasoning("", None, part.provider_metadata)

    def reasoning_delta(self, part: ReasoningDelta) -> None:
        """More reasoning, or a seal or other metadata of what was said."""
        signature = part.signature or _signature_in(part.provider_metadata)
        if part.text or signature or part.provider_metadata:
            self._reasoning(part.text, signature, part.provider_metadata)

    def reasoning_end(self, part: ReasoningEnd) -> None:
        """The block is over. What is said of it now is of the reasoning just before, if any."""
        parts = self._stream.parts
        try:
            if part.provider_metadata and parts and isinstance(parts[-1], ReasoningPart):
                signature = _signature_in(part.provider_metadata)
                self._reasoning("", signature, part.provider_metadata)
        finally:
            self._events.emit(ReasoningEndEvent(**self._stream.about))

    def _reasoning(
        self, text: str, signature: str | None, provider_metadata: Mapping[str, Any] | None
    ) -> None:
        metadata = plain_mapping(provider_metadata)
        timestamp_ms = self._stream.next_timestamp_ms()
        try:
            if text or signature is not None:
                self._events.emit(
                    ReasoningDeltaEvent(
                        **self._stream.about,
                        delta=text,
                        timestamp_ms=timestamp_ms,
                        tokens=self._tokens.told(text),
                        signature=signature,
                    )
                )
        finally:
            self._record(
                ReasoningPart(
                    text=text,
                    timestamp_ms=timestamp_ms,
                    signature=signature,
                    provider_metadata=metadata,
                )
            )

    def file(self, part: FilePart) -> None:
        """A file of the answer. It has no event of its own: stream-end and a snapshot have it."""
        timestamp_ms = self._stream.next_timestamp_ms()
        self._record(part.model_copy(update={"timestamp_ms": timestamp_ms}))

    def refused(self, said: Sequence[MessagePart]) -> None:
        """The model doesn't stand by what it said last. Not told: it was read already."""
        if said:
            timestamp_ms = self._stream.next_timestamp_ms()
            mark = refusal_of(said, model=self._stream.model, timestamp_ms=timestamp_ms)
            self._record(mark)

    # ---- tools

    def tool_call(self, call: ToolCall) -> None:
        """A call, with no suspension between its event and its part."""
        call_id = self._new_id(call.tool_call_id)
        args = plain_or_words(call.input)
        timestamp_ms = self._stream.next_timestamp_ms()
        part = ToolPart(
            tool_call_id=call_id,
            tool_name=call.tool_name,
            state="input-available",
            input=args,
            timestamp_ms=timestamp_ms,
            provider_executed=call.provider_executed,
        )
        try:
            self._events.emit(
                ToolCallStartEvent(
                    **self._stream.about,
                    tool_call_id=call_id,
                    tool_name=call.tool_name,
                    args=args,
                    timestamp_ms=timestamp_ms,
                    tokens=self._tokens.told(part.to_json()),
                )
            )
        finally:
            self._open[call_id] = part
            self._record(part)

    def tool_call_delta(self, part: ToolCallDelta) -> None:
        """A piece of a call's input: told, never recorded."""
        delta = plain_or_words(part.delta)
        self._events.emit(
            ToolCallDeltaEvent(
                **self._stream.about,
                tool_call_id=self._id_of_piece(part.tool_call_id),
                tool_name=part.tool_name,
                delta=delta,
                timestamp_ms=self._stream.next_timestamp_ms(),
                tokens=self._tokens.told(delta) if isinstance(delta, str) else None,
            )
        )

    def execution_started(self, call_id: str) -> None:
        """The engine runs the tool of an open call now."""
        timestamp_ms = self._stream.next_timestamp_ms()
        part = self._open[call_id].model_copy(update={"execution_started_at_ms": timestamp_ms})
        try:
            self._events.emit(
                ToolCallExecutionStartEvent(
                    **self._stream.about,
                    tool_call_id=call_id,
                    tool_name=part.tool_name,
                    timestamp_ms=timestamp_ms,
                )
            )
        finally:
            self._open[call_id] = part
            self._record(part)

    async def provider_result(self, part: ToolResult | ToolError) -> None:
        """The result of a call that the provider ran itself."""
        call_id = self._ids.get(part.tool_call_id, part.tool_call_id)
        if isinstance(part, ToolError):
            output: object = failure(message_of(part.error))
        else:
            output = part.output
        executed = part.provider_executed if isinstance(part, ToolResult) else None
        await self.result(call_id, part.tool_name, output, provider_executed=executed)

    async def result(
        self,
        call_id: str,
        tool_name: str,
        output: object,
        *,
        provider_executed: bool | None = None,
    ) -> None:
        """Record a result, write it, then tell it (E20). A call has one: the first counts."""
        if call_id in self._answered:
            _log.debug("a second result of a tool call is passed over", toolCallId=call_id)
            return
        try:
            output = plain(output)
        except ValueError as error:
            output = failure(f"the result is no JSON: {error}")
        part = self._settle(call_id, tool_name, output, provider_executed)
        # What went wrong with the write is logged there, and tried again with the next one. The
        # result is told all the same: whoever waits for it waits for the tool, not for the disk.
        await self._writer.flush(durable=True)
        if self._stream.terminal is not None:
            return  # the write hung for longer than a stop waits: nothing is told after the end
        assert part.completed_at_ms is not None
        self._events.emit(
            ToolCallEndEvent(
                **self._stream.about,
                tool_call_id=call_id,
                tool_name=tool_name,
                result=output,
                timestamp_ms=part.completed_at_ms,
                provider_executed=part.provider_executed,
            )
        )

    def _settle(
        self, call_id: str, tool_name: str, output: object, provider_executed: bool | None
    ) -> ToolPart:
        call = self._open.pop(call_id, None)
        self._answered.add(call_id)
        now_ms = self._stream.next_timestamp_ms()
        if call is None:
            self._warn_of_orphan(call_id, tool_name)
            call = ToolPart(
                tool_call_id=call_id,
                tool_name=tool_name,
                state="input-available",
                timestamp_ms=now_ms,
                provider_executed=provider_executed,
            )
        part = call.model_copy(
            update={"state": "output-available", "output": output, "completed_at_ms": now_ms}
        )
        self._record(part)
        return part

    def _warn_of_orphan(self, call_id: str, tool_name: str) -> None:
        self._orphans += 1
        if self._orphans <= ORPHAN_WARNINGS:
            _log.warning(
                "a tool result has no call",
                messageId=self._stream.message_id,
                toolCallId=call_id,
                toolName=tool_name,
            )

    @property
    def open_calls(self) -> list[OpenCall]:
        """The calls without a result, in order."""
        return [OpenCall(part) for part in self._open.values()]

    def close_open_calls(self, output: Mapping[str, object] = ABORTED) -> None:
        """Record ``output`` as the result of each open call: a later request must not have a call
        without one (P22). Not told: the terminal event ends them.

        Nothing where nothing else was said: unfinished calls alone make no row (P7).
        """
        if self._open and is_commit_worthy(self._stream.parts):
            for call in self.open_calls:
                self.close_call(call, output)

    def close_call(self, call: OpenCall, output: Mapping[str, object]) -> None:
        """Record ``output`` as the result of one open call, without telling it."""
        self._settle(call.id, call.part.tool_name, dict(output), None)

    def _new_id(self, said: str) -> str:
        """The id of a call in this answer. Some providers number the calls of each step anew."""
        call_id = self._ids[said] = self._free_id(said)
        return call_id

    def _id_of_piece(self, said: str) -> str:
        """The id of the call that a piece of input is of: one that is open, else the next."""
        known = self._ids.get(said)
        return known if known is not None and known in self._open else self._free_id(said)

    def _free_id(self, said: str) -> str:
        call_id, count = said, 1
        while call_id in self._open or call_id in self._answered:
            count += 1
            call_id = f"{said}-{count}"
        return call_id


def _signature_in(provider_metadata: Mapping[str, Any] | None) -> str | None:
    for entry in (provider_metadata or {}).values():
        if is_mapping(entry):
            signature = entry.get("signature")
            if isinstance(signature, str) and signature:
                return signature
    return None
