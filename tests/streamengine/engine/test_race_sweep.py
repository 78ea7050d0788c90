"""Starts, stops and closes in random orders against hostile providers, on virtual time."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

import fibers as fb
from fibers import AbortController
from fibers.app import AppScope, close_bounded
from fibers.testing import TestClock
from streamengine import SendError, StreamHandle
from streamengine.history.store import IoMode
from streamengine.model import AbortReason, ErrorPart, UnknownPart

from .kit import FINISH, TEXT_END, WORKSPACE, Call, Desk, Given, Parts, make_desk, says, text

pytestmark = [pytest.mark.lifecycle, pytest.mark.slow]

SEEDS = 200
BATCH = 20


class Hostile:
    """A provider that does a random next thing, among them the worst ones."""

    def __init__(self, rng: random.Random, let_go: asyncio.Event) -> None:
        self.rng = rng
        self.let_go = let_go

    def __call__(self, call: Call) -> Parts:
        if self.rng.random() < 0.05:
            raise ValueError("refused")
        return self._play(call)

    async def _play(self, call: Call) -> AsyncGenerator[Given, None]:
        rng = self.rng
        for _ in range(rng.randrange(12)):
            match rng.randrange(12):
                case 0 | 1 | 2 | 3:
                    yield text(rng.choice(["a", "b ", "", "\n", "long " * 50]))
                case 4 | 5:
                    await fb.sleep(rng.choice([0, 0.01, 0.1, 0.6]))
                case 6:
                    yield TEXT_END
                case 7:
                    yield UnknownPart("odd", {"type": "odd"})
                case 8:
                    await asyncio.sleep(0)
                case 9 if rng.random() < 0.3:
                    yield ErrorPart(error={"message": "overloaded"})
                case 10 if rng.random() < 0.3:
                    raise rng.choice([OSError("gone"), asyncio.CancelledError("somebody's")])
                case 11 if rng.random() < 0.2:
                    while not self.let_go.is_set():
                        try:
                            await self.let_go.wait()
                        except asyncio.CancelledError:
                            continue
                    return
                case _:
                    if rng.random() < 0.5:
                        await call.signal.wait()
        if rng.random() < 0.8:
            yield FINISH


class Race:
    """One random interleaving, and what must hold after it."""

    def __init__(self, seed: int, d: Desk, scope: AppScope) -> None:
        self.rng = random.Random(seed)
        self.d = d
        self.scope = scope
        self.handles: list[StreamHandle] = []
        self.callers: list[AbortController] = []
        self.running: list[fb.Fiber[Any, Any]] = []

    def act(self) -> None:
        rng, d = self.rng, self.d
        match rng.randrange(11):
            case 0 | 1 | 2:
                self.fork(self.starting())
            case 3 | 4:
                reasons: list[AbortReason] = ["user", "startup", "system"]
                reason = rng.choice(reasons)
                abandon = rng.random() < 0.3
                self.fork(d.stopping(reason, abandon_partial=abandon))
            case 5:
                self.fork(d.stopping("user", soft=True))
            case 6 if self.handles:
                old = rng.choice(self.handles).message_id
                self.fork(d.stopping("user", message_id=old))
            case 7 if self.callers:
                rng.choice(self.callers).abort()
            case 8 if self.running:
                rng.choice(self.running).interrupt_unsafe()
            case 9 if rng.random() < 0.1:
                self.fork(fb.Effect.promise(lambda: close_bounded(self.scope)))
            case _:
                pass

    def fork(self, eff: fb.Effect[object, Exception]) -> None:
        self.running.append(self.d.rt.run_fork(eff.catch_tag(SendError, fb.Effect.succeed)))

    def starting(self) -> fb.Effect[object, Exception]:
        caller = AbortController()
        self.callers.append(caller)
        client_id = self.rng.choice([None, None, "c1", "c2"])
        start = self.d.starting("Hi", signal=caller.signal, client_message_id=client_id)
        return start.map(self.handles.append)

    async def run(self) -> None:
        for _ in range(self.rng.randrange(4, 16)):
            self.act()
            match self.rng.randrange(4):
                case 0:
                    await self.d.idle()
                case 1:
                    await self.d.pass_time(self.rng.choice([0.01, 0.3, 0.7]))
                case 2:
                    await asyncio.sleep(0)
                case _:
                    pass

    async def check(self) -> None:
        """A last stop, time for every grace; then each promise is looked at."""
        d = self.d
        self.fork(d.stopping("user"))
        await d.pass_time(3)
        assert [fiber for fiber in self.running if fiber.poll() is None] == []
        assert d.is_idle, d.engine.describe()
        for handle in self.handles:
            assert await d.is_settled(handle), handle
        ended = Counter(event.message_id for event in d.tape.terminals)
        assert set(ended) == {event.message_id for event in d.tape.events}
        assert set(ended.values()) <= {1}, ended
        for message_id in ended:
            told = d.tape.of(message_id)
            assert told[-1] in ("stream-end", "stream-abort", "error"), told
            assert told.count("stream-start") == (told[0] == "stream-start"), told
        sequences = [row["metadata"]["historySequence"] for row in d.disk.rows()]
        assert len(set(sequences)) == len(sequences)
        ids = [row["id"] for row in d.disk.rows()]
        assert len(set(ids)) == len(ids)

    async def check_next_start(self) -> None:
        d = self.d
        d.provider.answers = [says(text("done"), FINISH)]
        d.provider.calls.clear()
        completion = await d.done(await d.start("one more"))
        wanted = "aborted" if self.scope.state == "closed" else "completed"
        assert completion.status == wanted


def of_streams(lines: str) -> list[str]:
    """Fibers of streams and starts that are alive, as the dump names them."""
    names = ("pump of", "abort of", "supervisor of", "partial of", "provider of", "start in")
    return [line for line in lines.splitlines() if any(name in line for name in names)]


@pytest.mark.spec("E1", "E14", "E3")
@pytest.mark.parametrize("first", range(0, SEEDS, BATCH))
async def test_no_order_of_starts_stops_and_closes_breaks_a_promise(
    rt: fb.Runtime, clock: TestClock, tmp_path: Path, first: int
) -> None:
    for seed in range(first, first + BATCH):
        let_go = asyncio.Event()
        scope = AppScope()
        hostile = Hostile(random.Random(seed), let_go)
        io: IoMode = "thread" if seed % 4 == 0 else "inline"
        d = make_desk(rt, clock, tmp_path / f"{seed}", hostile, scope=scope, io=io)
        race = Race(seed, d, scope)
        try:
            await race.run()
            await race.check()
            await race.check_next_start()
            left = of_streams(fb.dump())
            assert [line for line in left if "provider of" not in line] == []
            let_go.set()
            await d.idle()
            assert of_streams(fb.dump()) == []
            assert d.engine.describe()["abandoned"] == []
        except AssertionError as error:
            error.add_note(f"seed {seed}, workspace {WORKSPACE}")
            raise
        finally:
            let_go.set()
