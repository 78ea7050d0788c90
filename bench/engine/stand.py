"""Engines as the rows need them, and providers that cost next to nothing themselves."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Final, final

import structlog

from fibers import AbortSignal
from streamengine import Event, StreamRequest
from streamengine.events import Sink
from streamengine.model import Finish, ProviderPart, TextDelta, UnknownPart

FINISH: Final = Finish(finish_reason="stop")

Given = ProviderPart | UnknownPart


def quiet() -> None:
    """An engine under load says much; the rows say what has to be known."""
    level = structlog.make_filtering_bound_logger(logging.CRITICAL)
    structlog.configure(wrapper_class=level)
    logging.getLogger("fibers").setLevel(logging.CRITICAL)


@final
class Pacer:
    """Answers of one word an interval, until ``stopped``.

    A word is the time at which it was due, so that whoever gets it knows how late it is. It is of
    the plan, not of when the loop came to it: a loop that is late must not look as if it weren't.
    """

    def __init__(self, interval_seconds: float) -> None:
        self._interval = interval_seconds
        self.stopped = False
        self._calls = 0

    def stream(self, request: StreamRequest, signal: AbortSignal) -> AsyncIterator[Given]:
        self._calls += 1
        # Spread over the interval, as independent streams are.
        return self._play(signal, (self._calls * 0.618034) % 1 * self._interval)

    async def _play(self, signal: AbortSignal, offset: float) -> AsyncGenerator[Given, None]:
        due = time.perf_counter() + offset
        while not (self.stopped or signal.aborted):
            wait = due - time.perf_counter()
            if wait > 0:
                await asyncio.sleep(wait)
            yield TextDelta(text=f"{due:.4f} ")
            due += self._interval
        yield FINISH


@final
class Hub:
    """Every event to those who read its workspace: one observer of the engine, as a server has."""

    def __init__(self) -> None:
        self._sinks: dict[str, list[Sink[Event]]] = {}

    def tell(self, event: Event) -> None:
        for sink in self._sinks.get(event.workspace_id, ()):
            sink.push(event)

    def subscribe(self, workspace_id: str, sink: Sink[Event]) -> None:
        self._sinks.setdefault(workspace_id, []).append(sink)

    def leave(self, workspace_id: str, sink: Sink[Event]) -> None:
        self._sinks[workspace_id].remove(sink)
