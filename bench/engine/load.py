"""How many streams at 50 tokens a second each one process carries, and what one of them keeps."""

from __future__ import annotations

import asyncio
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, final

import fibers as fb
from bench.engine.figures import Figure, Group
from bench.engine.stand import Hub, Pacer
from streamengine import Event, FileHistory, StreamEngine, StreamRequest
from streamengine.events import Buffer, BufferAll, BufferLatest, Sink, subscription_iterable
from streamengine.model import StreamDeltaEvent, TerminalEvent

_INTERVAL_SECONDS: Final = 0.02
_BOUND_MS: Final = 100
_FIRST_STREAMS: Final = 20
_MORE: Final = 1 / 4
_SETTLING_SECONDS: Final = 0.3
_LOOK_SECONDS: Final = 1.0
_STARTING_SECONDS: Final = 4.0
_HOPELESS_MS: Final = 500
_MOST_STREAMS: Final = 2_000
_MEMORY_STREAMS: Final = 50

Delivery = Literal["all", "latest"]
_WORDS: Final[dict[Delivery, str]] = {"all": "one by one", "latest": "coalesced"}


@final
class _Ramp:
    """An engine whose number of streams grows; each stream has ``readers`` subscriptions."""

    def __init__(self, folder: Path, readers: int, delivery: Delivery) -> None:
        self._pacer = Pacer(_INTERVAL_SECONDS)
        self._scope = fb.Scope("parallel", name="load")
        history = FileHistory(folder)
        self._engine = StreamEngine(history=history, provider=self._pacer, scope=self._scope)
        self._hub = Hub()
        self._engine.events.subscribe(self._hub.tell)
        self._readers = readers
        self._delivery: Delivery = delivery
        self._late_ms: list[float] = []
        self._reading: list[fb.Fiber[None, Any]] = []
        self.streams = 0

    async def add(self, streams: int) -> bool:
        """False where they take so long to start that there are too many of them already."""
        began = time.monotonic()
        for _ in range(streams):
            if time.monotonic() - began > _STARTING_SECONDS:
                return False
            workspace_id = f"w{self.streams}"
            self.streams += 1
            for _ in range(self._readers):
                work = fb.Effect.promise(partial(self._read, workspace_id))
                self._reading.append(fb.run_fork(work))
            await self._engine.start_stream(workspace_id, StreamRequest(text="a question"))
        return True

    async def _read(self, workspace_id: str) -> None:
        hub = self._hub
        rules: Buffer[Event] = BufferLatest() if self._delivery == "latest" else BufferAll(100_000)

        def subscribe(sink: Sink[Event]) -> Callable[[], None]:
            hub.subscribe(workspace_id, sink)
            return lambda: hub.leave(workspace_id, sink)

        async with aclosing(subscription_iterable(subscribe, buffer=rules)) as events:
            async for event in events:
                if isinstance(event, StreamDeltaEvent):
                    self._late_ms.append((time.perf_counter() - float(event.delta)) * 1000)
                elif isinstance(event, TerminalEvent):
                    return

    async def p99_ms(self) -> float:
        """How late the values are that come from now on."""
        self._late_ms.clear()
        await asyncio.sleep(_LOOK_SECONDS)
        late = sorted(self._late_ms)
        if not late:
            return float("inf")
        return late[int(len(late) * 0.99)]

    async def close(self) -> None:
        self._pacer.stopped = True
        await self._scope.close()
        for reading in self._reading:
            await reading


async def _most(readers: int, delivery: Delivery, quick: bool) -> tuple[int, float, float]:
    """The most streams whose p99 was within the bound, that p99, and the one that was not."""
    held, held_ms = 0, 0.0
    with tempfile.TemporaryDirectory() as folder:
        ramp = _Ramp(Path(folder), readers, delivery)
        try:
            more = _FIRST_STREAMS
            while ramp.streams < _MOST_STREAMS:
                started = await ramp.add(more)
                await asyncio.sleep(_SETTLING_SECONDS)
                late_ms = await ramp.p99_ms()
                if started and _BOUND_MS < late_ms < _HOPELESS_MS:
                    # A neighbour, or the starts just now, may have held it up: once more.
                    late_ms = await ramp.p99_ms()
                if late_ms > _BOUND_MS:
                    return held, held_ms, late_ms
                held, held_ms = ramp.streams, late_ms
                more = max(_FIRST_STREAMS // 2, int(held * (2 if quick else 1) * _MORE))
            return held, held_ms, held_ms
        finally:
            await ramp.close()


async def _bytes_a_stream() -> float:
    """Of a stream with one reader that has said something, with all that the engine keeps of it."""
    with tempfile.TemporaryDirectory() as folder:
        ramp = _Ramp(Path(folder), 1, "all")
        try:
            await ramp.add(5)  # what is made once
            await asyncio.sleep(_SETTLING_SECONDS)
            tracemalloc.start()
            before, _ = tracemalloc.get_traced_memory()
            await ramp.add(_MEMORY_STREAMS)
            await asyncio.sleep(_SETTLING_SECONDS)
            after, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
        finally:
            await ramp.close()
    return (after - before) / _MEMORY_STREAMS


async def measure(quick: bool) -> list[Figure]:
    """One ramp for each kind of delivery, up to the first number of streams that is too many."""
    rows: list[Figure] = []
    for delivery, words in _WORDS.items():
        for readers in (1, 10):
            held, held_ms, over_ms = await _most(readers, delivery, quick)
            rows.append(
                Figure(
                    f"engine-streams-{delivery}-{readers}",
                    f"streams at 50 tokens/s within {_BOUND_MS} ms, {readers} subscribers, {words}",
                    "streams",
                    [held],
                    note=f"p99 {held_ms:.0f} ms there, {over_ms:.0f} ms at the next step",
                )
            )
    kept = await _bytes_a_stream() / 1024
    rows.append(Figure("engine-streams-memory", "memory of a flowing stream", "KiB", [kept]))
    return rows


LOAD: Final = Group("engine-streams", "many streams", measure, every_build=False)
