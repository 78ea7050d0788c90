"""Readers of a provider: bare, and through the real engine on real files and the real clock."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import fibers as fb
from fibers import AbortController
from fibers.app import AppScope
from streamengine import (
    Completion,
    Event,
    FileHistory,
    Provider,
    StreamEngine,
    StreamHandle,
    StreamRequest,
    Tool,
)
from streamengine.model import ProviderPart, StreamDeltaEvent, TextDelta, UnknownPart

from .hostile_server import BOUND_SECONDS

WORKSPACE = "w1"
TERMINALS = ("stream-end", "stream-abort", "error")


class Reading:
    """Reads one answer in a task of its own."""

    def __init__(self, provider: Provider, text: str = "Hi", **fields: Any) -> None:
        self.controller = AbortController()
        self.parts: list[ProviderPart | UnknownPart] = []
        self._came = asyncio.Event()
        request = StreamRequest(text=text, **fields)
        # Any: what closes an iterator is no part of the protocol.
        self._source: Any = provider.stream(request, self.controller.signal)
        self.task = asyncio.get_running_loop().create_task(self._read())

    async def _read(self) -> None:
        try:
            async for part in self._source:
                self.parts.append(part)
                self._came.set()
        finally:
            self._came.set()
            await self._source.aclose()

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts if isinstance(part, TextDelta))

    @property
    def kinds(self) -> list[str]:
        return [part.type for part in self.parts]

    async def said(self, text: str) -> None:
        """Wait until it has said so much."""
        async with asyncio.timeout(BOUND_SECONDS):
            while text not in self.text:
                assert not self.task.done(), f"it ended before: {self.parts}"
                self._came.clear()
                await self._came.wait()

    async def end(self) -> None:
        """Wait for the end; raises what the provider raised."""
        await asyncio.wait_for(self.task, BOUND_SECONDS)

    async def failure(self) -> Exception:
        """How it failed, which it must."""
        try:
            await self.end()
        except Exception as error:
            return error
        raise AssertionError(f"it has not failed: {self.parts}")


async def all_parts(provider: Provider, **fields: Any) -> list[ProviderPart | UnknownPart]:
    reading = Reading(provider, **fields)
    await reading.end()
    return reading.parts


class Desk:
    """A stream engine on real files, and what it told."""

    def __init__(
        self, runtime: fb.Runtime, provider: Provider, state: Path, tools: Sequence[Tool] = ()
    ) -> None:
        self.scope = AppScope()
        self.history = FileHistory(state, io="inline", fsync="off")
        self.engine = StreamEngine(
            history=self.history, provider=provider, scope=self.scope, tools=tools
        )
        self.events: list[Event] = []
        self._state = state
        self._runtime = runtime
        self._came = asyncio.Event()
        self.engine.events.subscribe(self._note)

    def _note(self, event: Event) -> None:
        self.events.append(event)
        self._came.set()

    async def send(self, text: str = "Hi") -> StreamHandle:
        start = self.engine.start_stream(WORKSPACE, StreamRequest(text=text))
        return await asyncio.wait_for(self._runtime.run(start), BOUND_SECONDS)

    async def completion(self, handle: StreamHandle) -> Completion:
        return await asyncio.wait_for(self._runtime.run(handle.completion), BOUND_SECONDS)

    async def stop(self) -> None:
        stop = self.engine.stop_stream(WORKSPACE, reason="user")
        await asyncio.wait_for(self._runtime.run(stop), BOUND_SECONDS)

    async def close_scope(self) -> None:
        await asyncio.wait_for(self._runtime.run(self.scope.close()), BOUND_SECONDS)

    @property
    def text(self) -> str:
        return "".join(e.delta for e in self.events if isinstance(e, StreamDeltaEvent))

    async def said(self, text: str) -> None:
        async with asyncio.timeout(BOUND_SECONDS):
            while text not in self.text:
                self._came.clear()
                await self._came.wait()

    @property
    def terminals(self) -> list[str]:
        return [event.type for event in self.events if event.type in TERMINALS]

    async def rows(self) -> list[dict[str, Any]]:
        rows = await self._runtime.run(self.history.read(WORKSPACE))
        return [row.to_mapping() for row in rows]

    async def stored_answers(self) -> list[str]:
        """The text of the assistant's rows, once what is left of a stream was committed."""
        await self._runtime.run(self.history.load(WORKSPACE))
        rows = await self._runtime.run(self.history.read(WORKSPACE))
        return [
            "".join(part["text"] for part in row.to_mapping()["parts"] if part["type"] == "text")
            for row in rows
            if row.role == "assistant"
        ]

    def everything_told(self) -> str:
        """All events as JSON, and all files of the state directory."""
        told = "\n".join(event.to_json() for event in self.events)
        files = sorted(path for path in self._state.rglob("*") if path.is_file())
        return told + "\n".join(f"{path}\n{path.read_text('utf-8', 'replace')}" for path in files)

    def dump(self) -> str:
        return f"{fb.dump()}\n{json.dumps(dict(self.engine.describe()), default=repr)}"


@asynccontextmanager
async def a_desk(
    provider: Provider, state: Path, *, tools: Sequence[Tool] = ()
) -> AsyncGenerator[Desk]:
    runtime = fb.Runtime()
    desk = Desk(runtime, provider, state, tools)
    try:
        yield desk
    finally:
        await desk.close_scope()
        await runtime.dispose()
