"""Telling: the parts of one step, with a start and an end around each block."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, final

from ..model.parts import (
    Finish,
    FinishStep,
    ProviderPart,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    TextDelta,
    TextEnd,
    TextStart,
    ToolCall,
)
from ..model.usage import Usage
from . import loose


@final
class Telling:
    """Which block is open. Every method gives the parts that say what happened."""

    def __init__(self) -> None:
        self._open: Literal["text", "reasoning"] | None = None
        self.has_calls: bool = False

    def text(self, delta: object) -> Iterator[ProviderPart]:
        """More text; nothing where there is none."""
        more = loose.text(delta)
        if not more:
            return
        if self._open != "text":
            yield from self.end()
            self._open = "text"
            yield TextStart()
        yield TextDelta(text=more)

    def reasoning(self, delta: object) -> Iterator[ProviderPart]:
        """More reasoning; nothing where there is none."""
        more = loose.text(delta)
        if not more:
            return
        if self._open != "reasoning":
            yield from self.end()
            self._open = "reasoning"
            yield ReasoningStart()
        yield ReasoningDelta(text=more)

    def mark_reasoning(self, metadata: Mapping[str, Any]) -> Iterator[ProviderPart]:
        """What belongs to the reasoning that was just said, which may have no text; it ends."""
        if self._open == "reasoning":
            yield ReasoningDelta(provider_metadata=metadata)
        else:
            yield from self.end()
            self._open = "reasoning"
            yield ReasoningStart(provider_metadata=metadata)
        yield from self.end()

    def end(self) -> Iterator[ProviderPart]:
        """The open block is over, if there is one."""
        was, self._open = self._open, None
        if was == "text":
            yield TextEnd()
        elif was == "reasoning":
            yield ReasoningEnd()

    def call(self, draft: CallDraft) -> Iterator[ProviderPart]:
        """A tool call is complete."""
        self.has_calls = True
        yield from self.end()
        yield ToolCall(tool_call_id=draft.id, tool_name=draft.name, input=draft.input)

    def finish(
        self,
        reason: str,
        raw: str | None,
        usage: Usage | None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Iterator[ProviderPart]:
        """The end of the step, and of the answer."""
        yield from self.end()
        yield FinishStep(finish_reason=reason, usage=usage, provider_metadata=metadata)
        yield Finish(finish_reason=reason, raw_finish_reason=raw)


@final
class CallDraft:
    """A tool call whose input the model still writes."""

    def __init__(self, call_id: str, name: str) -> None:
        self.id = call_id
        self.name = name
        self.written: list[str] = []
        self._input: object = None
        self._is_read = False

    @property
    def input(self) -> object:
        """What it wrote: as it stands where it is no JSON, so that the tool refuses it in words."""
        return self._input if self.is_whole() else "".join(self.written)

    def preset(self, value: object) -> None:
        """The input came at once, and read."""
        self._input = value
        self._is_read = True

    def is_whole(self) -> bool:
        """Whether what it wrote is JSON: it was not cut off."""
        if not self._is_read:
            text = "".join(self.written).strip()
            try:
                self._input = loose.parsed(text) if text else {}
            except ValueError:
                return False
            self._is_read = True
        return True
