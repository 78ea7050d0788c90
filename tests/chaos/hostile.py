"""A provider that does a random next thing, the worst among them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Final, final

import fibers as fb
from fibers import AbortSignal
from streamengine import StreamRequest
from streamengine.model import (
    ErrorPart,
    Finish,
    FinishStep,
    ProviderPart,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    StartStep,
    TextDelta,
    TextEnd,
    ToolCall,
    ToolCallDelta,
    ToolError,
    ToolResult,
    ToolSpec,
    UnknownPart,
    Usage,
)
from streamengine.tools import ToolUse

Given = ProviderPart | UnknownPart

PAUSES_SECONDS: Final = (0.0, 0.01, 0.1, 0.45, 0.6, 2.0)
FINISHES: Final = ("stop", "length", "tool-calls", "other", "content-filter")
TEXTS: Final = ("a", "b ", "", "\n", "  ", "word ", "long " * 50, "ü", "\ud800")


def cyclic() -> dict[str, Any]:
    payload: dict[str, Any] = {"code": 500}
    payload["cause"] = payload
    return payload


@final
class Hostile:
    """Answers from a seed. ``calls``: what it was asked, to be looked at afterwards.

    ``let_go`` frees whoever swallows interrupts, at the end of a scenario.
    """

    def __init__(self, rng: random.Random, let_go: asyncio.Event) -> None:
        self._rng = rng
        self._let_go = let_go
        self.calls: list[StreamRequest] = []
        self.is_tame = False

    def stream(self, request: StreamRequest, signal: AbortSignal) -> AsyncIterator[Given]:
        self.calls.append(request)
        if self.is_tame:
            return self._tame()
        # A stream of its own: which numbers one answer draws doesn't depend on the others' turns.
        rng = random.Random(self._rng.random())
        if rng.random() < 0.04:
            raise ValueError("refused")
        return self._talk(rng) if rng.random() < 0.3 else self._play(rng, signal)

    async def _talk(self, rng: random.Random) -> AsyncGenerator[Given]:
        """A long answer, word by word: there is much to lose at each moment."""
        for number in range(rng.randrange(10, 40)):
            yield TextDelta(text=f"word{number} ")
            await fb.sleep(0.15)
        yield TextEnd()
        yield Finish(finish_reason="stop")

    async def _tame(self) -> AsyncGenerator[Given]:
        yield TextDelta(text="done")
        yield Finish(finish_reason="stop")

    async def _play(self, rng: random.Random, signal: AbortSignal) -> AsyncGenerator[Given]:
        try:
            for _ in range(rng.randrange(14)):
                for part in self._parts(rng):
                    yield part
                await self._pause(rng, signal)
            if rng.random() < 0.8:
                usage = Usage(input_tokens=1, output_tokens=1)
                yield FinishStep(finish_reason="stop", usage=usage)
                yield Finish(finish_reason=rng.choice(FINISHES))
            if rng.random() < 0.1:
                yield TextDelta(text="after the end")
        finally:
            if rng.random() < 0.1:
                await fb.sleep(0.1)
            if rng.random() < 0.05:
                raise RuntimeError("the close failed")

    def _parts(self, rng: random.Random) -> list[Given]:
        call = rng.choice(["c1", "c2", "c3"])
        match rng.randrange(16):
            case 0 | 1 | 2 | 3 | 4 | 5:
                return [TextDelta(text=rng.choice(TEXTS))]
            case 6:
                return [TextEnd()]
            case 7:
                return [UnknownPart("odd", {"type": "odd"})]
            case 8:
                return [ReasoningStart(), ReasoningDelta(text=rng.choice(TEXTS))]
            case 9:
                signed = {"anthropic": {"signature": "s"}}
                return [ReasoningDelta(provider_metadata=signed), ReasoningEnd()]
            case 10 | 11:
                piece = ToolCallDelta(tool_call_id=call, tool_name="look", delta="{")
                made = ToolCall(
                    tool_call_id=call,
                    tool_name=rng.choice(["look", "look", "look", "unknown", "ask_user"]),
                    input=rng.choice([{}, None, "", "{", [1], cyclic()]),
                    provider_executed=rng.choice([True, None]),
                )
                return [piece, made]
            case 12:
                output = rng.choice([None, "found", {"deep": [1, None]}])
                return [ToolResult(tool_call_id=call, tool_name="look", output=output)]
            case 13:
                return [ToolError(tool_call_id=call, tool_name="look", error=cyclic())]
            case 14:
                usage = Usage(input_tokens=2, output_tokens=3)
                return [StartStep(), FinishStep(finish_reason="tool-calls", usage=usage)]
            case _:
                if rng.random() < 0.3:
                    return [ErrorPart(error=cyclic())]
                if rng.random() < 0.3:
                    raise rng.choice([OSError("gone"), asyncio.CancelledError("somebody's")])
                return []

    async def _pause(self, rng: random.Random, signal: AbortSignal) -> None:
        match rng.randrange(10):
            case 0 | 1 | 2 | 3:
                await fb.sleep(rng.choice(PAUSES_SECONDS))
            case 4:
                await asyncio.sleep(0)
            case 5 if rng.random() < 0.15:
                await signal.wait()
            case 6 if rng.random() < 0.1:
                while not self._let_go.is_set():
                    try:
                        await self._let_go.wait()
                    except asyncio.CancelledError:
                        continue  # it goes on talking, whatever anybody says (R09)
            case _:
                pass


@final
class Look:
    """A tool that the engine runs: it answers, or does what a tool should not."""

    spec = ToolSpec(name="look", description="Looks at something.")

    def __init__(self, rng: random.Random, let_go: asyncio.Event) -> None:
        self._rng = rng
        self._let_go = let_go

    async def run(self, call: ToolUse, signal: AbortSignal) -> object:
        rng = self._rng
        if rng.random() < 0.5:
            await fb.sleep(rng.choice(PAUSES_SECONDS))
        match rng.randrange(12):
            case 0:
                raise ValueError(f"{call.tool_call_id} can't be looked at")
            case 1:
                raise asyncio.CancelledError("the tool's own")
            case 2:
                return cyclic()
            case 3:
                return "x" * 2_000_000
            case 4:
                await signal.wait()
                return "stopped"
            case 5 if rng.random() < 0.2:
                while not self._let_go.is_set():
                    try:
                        await self._let_go.wait()
                    except asyncio.CancelledError:
                        continue
                return "at last"
            case _:
                return {"seen": call.tool_call_id}
