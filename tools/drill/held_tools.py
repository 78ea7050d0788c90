"""The tools in flight when a drill ends its server, and a witness of what the model is asked."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final, final

import fibers as fb
from fibers import AbortSignal
from streamengine import Provider, StreamRequest, Tool, ToolSpec, ToolUse
from streamengine.model import ProviderPart, UnknownPart
from streamengine.providers.dialogue import Call, Result, dialogue_of

FOR_EVER_SECONDS: Final = 3600.0
IN_A_THREAD_SECONDS: Final = 30.0
"""Far beyond the budget of a teardown, and not so long that a broken one holds up the drill."""


class Quick:
    """Done at once: its result is on disk before a client hears of it."""

    spec = ToolSpec(name="quick", description="The answer.")

    async def run(self, call: ToolUse, signal: AbortSignal) -> object:
        return {"found": 42}


class Slow:
    """Waits, and ends when it is interrupted."""

    spec = ToolSpec(name="slow", description="Takes an hour.")

    async def run(self, call: ToolUse, signal: AbortSignal) -> object:
        await fb.sleep(FOR_EVER_SECONDS)
        return {"found": "too late"}


class Deaf:
    """Ends neither on its signal nor on an interrupt, for as long as the process lives."""

    spec = ToolSpec(name="deaf", description="Hears nothing.")

    async def run(self, call: ToolUse, signal: AbortSignal) -> object:
        while True:
            try:
                await asyncio.sleep(FOR_EVER_SECONDS)
            except asyncio.CancelledError:
                continue


class Threaded:
    """Blocks a thread, which nothing can end."""

    spec = ToolSpec(name="threaded", description="Blocks a thread.")

    async def run(self, call: ToolUse, signal: AbortSignal) -> object:
        await asyncio.to_thread(time.sleep, IN_A_THREAD_SECONDS)
        return {"found": "too late"}


def tools() -> list[Tool]:
    return [Quick(), Slow(), Deaf(), Threaded()]


@final
class Witness:
    """A provider that notes what each request would tell an API: the tool calls in it, and the
    results. One line of JSON a request.
    """

    def __init__(self, provider: Provider, file: Path) -> None:
        self._provider = provider
        self._file = file

    def stream(
        self, request: StreamRequest, signal: AbortSignal
    ) -> AsyncIterator[ProviderPart | UnknownPart]:
        pieces = [piece for said in dialogue_of(request) for piece in said.pieces]
        seen: dict[str, Any] = {
            "text": request.text,
            "calls": [piece.id for piece in pieces if isinstance(piece, Call)],
            "results": [[piece.id, piece.text] for piece in pieces if isinstance(piece, Result)],
        }
        with self._file.open("a") as file:
            file.write(json.dumps(seen) + "\n")
        return self._provider.stream(request, signal)
