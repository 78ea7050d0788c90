"""What one delta costs: event, part, partial, and the way to one subscriber."""

from __future__ import annotations

import gc
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Final, final

import fibers as fb
from bench.engine.figures import Figure, Group
from bench.engine.stand import FINISH
from streamengine import Event, FileHistory, HistoryStore, StreamEngine, StreamRequest
from streamengine.events import BufferAll, Sink, subscription_iterable
from streamengine.history import MemoryHistory
from streamengine.model import StreamDeltaEvent
from streamengine.providers.script import Answer, Give, Say, Script
from streamengine.providers.scripted import ScriptedProvider

_DELTAS: Final = 10_000
_ROUNDS: Final = 3
_BAR_US: Final = 60
_AIM_US: Final = 25


@final
class _Span:
    """From the first delta that is told to the last one: the start and the end are not its."""

    def __init__(self) -> None:
        self.deltas = 0
        self._first = self._last = (0.0, 0.0)

    def note(self, event: Event) -> None:
        if isinstance(event, StreamDeltaEvent):
            # The whole process: with files, threads work too.
            self._last = (time.process_time(), time.perf_counter())
            self.deltas += 1
            if self.deltas == 1:
                self._first = self._last

    def each_us(self) -> tuple[float, float]:
        """CPU and wall-clock microseconds a delta."""
        cpu, wall = (last - first for first, last in zip(self._first, self._last, strict=True))
        return cpu / (self.deltas - 1) * 1e6, wall / (self.deltas - 1) * 1e6


def _engine(history: HistoryStore, deltas: int) -> StreamEngine:
    steps = (Say(text="word " * deltas), Give(part=FINISH))
    provider = ScriptedProvider(Script(answers=(Answer(steps=steps),)))
    return StreamEngine(history=history, provider=provider)


async def _told(history: HistoryStore, deltas: int) -> tuple[float, float]:
    """To an observer, a plain call."""
    engine, span = _engine(history, deltas), _Span()
    engine.events.subscribe(span.note)
    await _whole(engine)
    _check(span, deltas)
    return span.each_us()


async def _read(history: HistoryStore, deltas: int) -> tuple[float, float]:
    """To somebody who reads a subscription."""
    engine, span = _engine(history, deltas), _Span()

    def subscribe(sink: Sink[Event]) -> Callable[[], None]:
        return engine.events.subscribe(sink.push)

    async def read() -> None:
        events = subscription_iterable(subscribe, buffer=BufferAll[Event](limit=deltas + 10))
        async with aclosing(events):
            async for event in events:
                span.note(event)
                if event.type == "stream-end":
                    return

    reader = fb.run_fork(fb.Effect.promise(read))
    await _whole(engine)
    await reader
    _check(span, deltas)
    return span.each_us()


async def _whole(engine: StreamEngine) -> None:
    handle = await engine.start_stream("bench", StreamRequest(text="a question"))
    completion = await handle.completion
    if completion.status != "completed":
        raise RuntimeError(f"the stream ended as {completion}")


def _check(span: _Span, deltas: int) -> None:
    if span.deltas != deltas:
        raise RuntimeError(f"{span.deltas} of {deltas} deltas came")


async def measure(quick: bool) -> list[Figure]:
    """In memory and in files, told and read, in turn."""
    deltas = _DELTAS // 10 if quick else _DELTAS
    kinds = {"told": ("told to an observer", _told), "read": ("read from a subscription", _read)}
    samples: dict[str, list[tuple[float, float]]] = {}
    for number in range(_ROUNDS + 1):
        for kind, (_, work) in kinds.items():
            for where in ("memory", "files"):
                gc.collect()
                gc.freeze()
                gc.disable()
                try:
                    if where == "memory":
                        cost = await work(MemoryHistory(), deltas)
                    else:
                        with tempfile.TemporaryDirectory() as folder:
                            cost = await work(FileHistory(Path(folder)), deltas)
                finally:
                    gc.enable()
                    gc.unfreeze()
                if number:
                    samples.setdefault(f"{kind}-{where}", []).append(cost)
    rows: list[Figure] = []
    for where in ("memory", "files"):
        for kind, (title, _) in kinds.items():
            costs = samples[f"{kind}-{where}"]
            for index, clock in enumerate(("CPU", "wall")):
                judged = where == "memory" and clock == "CPU"
                rows.append(
                    Figure(
                        f"engine-delta-{kind}-{where}-{clock.lower()}",
                        f"a delta, {title}, history in {where}, {clock}",
                        f"us {clock}",
                        [cost[index] for cost in costs],
                        bar=_BAR_US if judged else None,
                        aim=_AIM_US if judged else None,
                    )
                )
    rows.append(await _bytes_kept(deltas))
    return rows


async def _bytes_kept(deltas: int) -> Figure:
    """What a running stream keeps of each delta: its part, and one for whoever comes late."""
    engine = _engine(MemoryHistory(), deltas)
    begun = 0

    def look(event: Event) -> None:
        nonlocal begun
        if isinstance(event, StreamDeltaEvent) and not begun:
            begun = tracemalloc.get_traced_memory()[0]

    engine.events.subscribe(look)
    tracemalloc.start()
    try:
        await _whole(engine)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    kept = [(most - begun) / deltas]
    return Figure(
        "engine-delta-bytes", "memory at most, for each delta of an answer", "bytes", kept
    )


DELTAS: Final = Group("engine-delta", "one delta", measure)
