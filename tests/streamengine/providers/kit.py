"""A reader of a provider's parts, and an engine whose time and files the test controls."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final, cast

import fibers as fb
from fibers import AbortController
from fibers.app import AppScope
from fibers.testing import TestClock
from streamengine import Completion, Event, FileHistory, Provider, StreamEngine, StreamRequest
from streamengine.model import Row
from streamengine.model.parts import ProviderPart, TextDelta, TextPart, UnknownPart

SCRIPTS: Final = Path(__file__).parent / "scripts"


class Reading:
    """Reads one answer in a fiber of the runtime, and notes what came when."""

    def __init__(self, rt: fb.Runtime, clock: TestClock, provider: Provider, text: str) -> None:
        self.controller = AbortController()
        self.parts: list[ProviderPart | UnknownPart] = []
        self.times_ms: list[int] = []
        """When each part came, in milliseconds of the virtual clock."""
        self._clock = clock
        request = StreamRequest(text=text)
        self.fiber = rt.run_fork(self._read(provider, request))

    @fb.effect(raises=Exception)
    async def _read(self, provider: Provider, request: StreamRequest) -> None:
        parts = provider.stream(request, self.controller.signal)
        async with aclosing(cast("Any", parts)):
            async for part in parts:
                self.parts.append(part)
                self.times_ms.append(round(self._clock.now() * 1000))

    @property
    def cause(self) -> fb.Cause[Any]:
        """Why the reading failed, which it must have."""
        match self.fiber.poll():
            case fb.Failure(cause):
                return cause
            case other:
                raise AssertionError(f"the reading has not failed: {other}")

    @property
    def text(self) -> str:
        return text_of(self.parts)

    @property
    def kinds(self) -> list[str]:
        return [part.type for part in self.parts]


def text_of(parts: Sequence[ProviderPart | UnknownPart]) -> str:
    return "".join(part.text for part in parts if isinstance(part, TextDelta))


def row_text(row: Row) -> str:
    return "".join(part.text for part in row.parts if isinstance(part, TextPart))


class Service:
    """A stream engine on the virtual clock, its files written at once, and what it told."""

    workspace = "w1"

    def __init__(
        self, rt: fb.Runtime, clock: TestClock, provider: Provider, directory: Path
    ) -> None:
        self.scope = AppScope()
        self.history = FileHistory(directory, io="inline", fsync="off")
        self.engine = StreamEngine(history=self.history, provider=provider, scope=self.scope)
        self.events: list[Event] = []
        self.engine.events.subscribe(self.events.append)
        self._rt = rt
        self._clock = clock

    async def send(self, text: str) -> fb.Fiber[Completion, Any]:
        """Send a message. Gives a fiber that waits for how its answer ends."""
        request = StreamRequest(text=text)
        handle = await self._rt.run(self.engine.start_stream(self.workspace, request))
        return self._rt.run_fork(handle.completion)

    async def answer(self, text: str) -> Completion:
        """Send a message and give it 200 virtual ms; if it goes on, stop it as a user does."""
        completion = await self.send(text)
        await self._rt.run(self._clock.adjust(0.2))
        if completion.poll() is None:
            self._rt.run_fork(self.engine.stop_stream(self.workspace, reason="user"))
            await self._rt.run(self._clock.adjust(1))
        return ended(completion)

    @property
    def told(self) -> list[str]:
        """The types of the events so far."""
        return [event.type for event in self.events]

    async def texts(self) -> list[str]:
        """What the rows of the conversation say, in order."""
        return [row_text(row) for row in await self._rt.run(self.history.read(self.workspace))]


def ended(completion: fb.Fiber[Completion, Any]) -> Completion:
    """How the stream ended, which it must have."""
    match completion.poll():
        case fb.Success(how):
            return how
        case other:
            raise AssertionError(f"the stream has not ended: {other}")
