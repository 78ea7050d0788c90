"""One seed: hostile answers, starts and stops at random moments, closes, crashes and restarts.

A crash is the state directory as it was after some step on disk: what a killed process leaves. The
next process of the scenario finds that copy, not what came later.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, final

import fibers as fb
from fibers import AbortController, Effect
from fibers.app import AppScope, close_bounded
from streamengine import Event, FileHistory, SendError, StreamEngine, StreamHandle, StreamRequest
from streamengine.history.directory import Step
from streamengine.model import AbortReason, AssistantRow, Completion, Row
from streamengine.options import EngineOptions

from .hostile import Hostile, Look
from .promises import (
    TERMINALS,
    Told,
    check_events,
    check_requests,
    check_rows,
    check_told_is_kept,
    check_usage,
    text_of,
)

WORKSPACES: Final = ("w1", "w2")
THROTTLE_SECONDS: Final = 0.5
TICK_SECONDS: Final = 0.001
REASONS: Final[Sequence[AbortReason]] = ("user", "startup", "system")


@dataclass
class Counts:
    """How much happened, over all seeds: a scenario in which nothing happens proves nothing."""

    seeds: int = 0
    streams: int = 0
    ends: dict[str, int] = field(default_factory=dict[str, int])
    crashes: int = 0
    closes: int = 0
    rows: int = 0

    def add(self, told: Told) -> None:
        for _, event in told.events:
            if event.type in TERMINALS:
                self.streams += 1
                self.ends[event.type] = self.ends.get(event.type, 0) + 1

    def merge(self, other: Counts) -> None:
        self.seeds += other.seeds
        self.streams += other.streams
        self.crashes += other.crashes
        self.closes += other.closes
        self.rows += other.rows
        for kind, count in other.ends.items():
            self.ends[kind] = self.ends.get(kind, 0) + count


@final
class Crash:
    """Copies the state directory after the step with this number, with what was known by then."""

    def __init__(self, live: Path, copy: Path, at_step: int) -> None:
        self._live = live
        self._copy = copy
        self._left = at_step
        self.process: Process | None = None
        self.known: Known | None = None

    def __call__(self, _step: Step) -> None:
        self._left -= 1
        if self._left == 0:
            self.now()

    def now(self) -> None:
        """Here it is killed, as far as the next process can tell; only the first call counts."""
        if self.process is None or self.known is not None:
            return
        shutil.copytree(self._live, self._copy)
        self.known = self.process.known()


@dataclass(frozen=True)
class Known:
    """What the outside had been told at some moment."""

    at_seconds: float
    accepted: tuple[str, ...]
    told: Told
    abandoning: frozenset[str]
    """Workspaces in which somebody has asked to drop what was said."""


@final
class Process:
    """One life of a process over a state directory."""

    def __init__(self, rng: random.Random, state: Path, crash: Crash | None) -> None:
        self.rng = rng
        self.let_go = asyncio.Event()
        self.provider = Hostile(random.Random(rng.random()), self.let_go)
        self.history = FileHistory(state, io="inline", fsync="off", on_step=crash)
        self.scope = AppScope()
        self.engine = StreamEngine(
            history=self.history,
            provider=self.provider,
            scope=self.scope,
            tools=[Look(random.Random(rng.random()), self.let_go)],
            options=EngineOptions(max_steps=4, fallback_models=("another",)),
        )
        self.told = Told()
        self.engine.events.subscribe(self._note)
        self.accepted: list[str] = []
        self.handles: list[StreamHandle] = []
        self.callers: list[AbortController] = []
        self.acting: list[fb.Fiber[Any, Any]] = []
        self.abandoning: set[str] = set()
        if crash is not None:
            crash.process = self
            if rng.random() < 0.5:
                # Between two steps on disk, with nothing written since.
                at = fb.sleep(rng.uniform(0, 8)).map(lambda _: crash.now())
                fb.run_fork(at).set_name("kill")

    def _note(self, event: Event) -> None:
        self.told.events.append((self._now(), event))

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def known(self) -> Known:
        return Known(
            self._now(),
            tuple(self.accepted),
            Told(list(self.told.events)),
            frozenset(self.abandoning),
        )

    # ---- what happens

    async def live(self, texts: Texts) -> None:
        await self.engine.recover()
        for _ in range(self.rng.randrange(3, 14)):
            self._act(texts)
            await fb.sleep(self.rng.choice([0, 0, 0.01, 0.3, 0.7, 2]))

    def _act(self, texts: Texts) -> None:
        rng, engine = self.rng, self.engine
        workspace_id = rng.choice(WORKSPACES)
        match rng.randrange(12):
            case 0 | 1 | 2 | 3:
                self._fork(self._start(workspace_id, texts))
            case 4 | 5:
                abandon = rng.random() < 0.3
                if abandon:
                    self.abandoning.add(workspace_id)
                reason = rng.choice(REASONS)
                self._fork(engine.stop_stream(workspace_id, reason=reason, abandon_partial=abandon))
            case 6 | 7:
                self._fork(engine.stop_stream(workspace_id, reason="user", soft=True))
            case 8 if self.handles:
                message_id = rng.choice(self.handles).message_id
                self._fork(engine.stop_stream(workspace_id, reason="user", message_id=message_id))
            case 9 if self.callers:
                rng.choice(self.callers).abort(rng.choice(REASONS))
            case 10 if self.acting:
                rng.choice(self.acting).interrupt_unsafe()
            case _:
                pass

    def _start(self, workspace_id: str, texts: Texts) -> Effect[None, SendError]:
        caller = AbortController()
        self.callers.append(caller)
        text = texts.next(workspace_id)
        request = StreamRequest(
            text=text,
            client_message_id=text.replace(" ", "-") if self.rng.random() < 0.5 else None,
        )

        def started(handle: StreamHandle) -> None:
            self.accepted.append(text)
            self.handles.append(handle)

        start = self.engine.start_stream(workspace_id, request, signal=caller.signal)
        if request.client_message_id is not None and self.rng.random() < 0.3:
            again = self.engine.start_stream(workspace_id, request, signal=caller.signal)
            start = start.flat_map(lambda _: again)
        return start.map(started)

    def _fork(self, eff: Effect[object, SendError]) -> None:
        self.acting.append(fb.run_fork(eff.catch_tag(SendError, Effect.succeed)))

    # ---- how it ends

    async def close(self) -> None:
        in_time = await close_bounded(self.scope)
        self.let_go.set()
        await fb.sleep(5)
        if in_time:
            assert self.engine.describe()["abandoned"] == []
        for fiber in self.acting:
            assert fiber.poll() is not None, fb.dump()

    async def stop_all(self) -> None:
        for workspace_id in WORKSPACES:
            await self.engine.stop_stream(workspace_id, reason="user")

    async def completions(self) -> dict[str, Completion]:
        return {handle.message_id: await handle.completion.timeout(10) for handle in self.handles}

    async def check(self, accepted: Sequence[str]) -> None:
        """All of it over; every promise is looked at."""
        about = self.engine.describe()
        assert not about["streams"], about
        assert not about["starting"], about
        check_events(self.told)
        check_requests(self.provider.calls)
        for message_id, completion in (await self.completions()).items():
            types = {e.type for e in self.told.of(message_id)}
            wanted = {"completed": "stream-end", "aborted": "stream-abort", "failed": "error"}
            terminals = types & set(TERMINALS)
            assert terminals <= {wanted[completion.status]}, (message_id, completion, types)
        rows = [row for w in WORKSPACES for row in await self.history.read(w)]
        for workspace_id in WORKSPACES:
            mine = [text for text in accepted if text.startswith(workspace_id)]
            check_rows(await self.history.read(workspace_id), mine)
        check_told_is_kept(self.told, rows)
        entries = [entry for w in WORKSPACES for entry in await self.history.read_usage(w)]
        check_usage(self.told, rows, entries)

    async def check_goes_on(self, texts: Texts) -> None:
        """Every workspace takes a next message, and answers it (E27)."""
        self.provider.is_tame = True
        for workspace_id in WORKSPACES:
            text = texts.next(workspace_id)
            handle = await self.engine.start_stream(workspace_id, StreamRequest(text=text))
            self.accepted.append(text)
            self.handles.append(handle)
            wanted = "aborted" if self.scope.state == "closed" else "completed"
            assert (await handle.completion.timeout(10)).status == wanted


@final
class Texts:
    """Messages, no two of them the same."""

    def __init__(self) -> None:
        self._count = 0

    def next(self, workspace_id: str) -> str:
        self._count += 1
        return f"{workspace_id} question {self._count}"


def check_after_crash(known: Known, rows: Sequence[Row]) -> None:
    """P2, P12: each accepted message is there once, and of what was told before the last throttle
    interval not a character is missing.
    """
    by_id = {row.id: row for row in rows}
    for message_id in known.told.message_ids:
        events = known.told.of(message_id)
        aborts = [e for e in events if e.type == "stream-abort"]
        if any(getattr(abort, "abandon_partial", False) for abort in aborts):
            continue
        row = by_id.get(message_id)
        if any(e.type == "stream-end" for e in events):
            assert row is not None, message_id
            assert not row.is_partial, message_id
        # P2: an interval, and the write in flight, which may have begun a tick after the interval.
        due = known.told.said(message_id, known.at_seconds - THROTTLE_SECONDS - TICK_SECONDS)
        said = known.told.said(message_id)
        if row is None:
            asked_to_drop = events[0].workspace_id in known.abandoning
            assert asked_to_drop or not due.strip(), (message_id, due)
            continue
        assert isinstance(row, AssistantRow)
        kept = text_of(row)
        # Blank text alone is no row's, so it may be missing at the end.
        assert kept.startswith(due.rstrip()), (message_id, kept, due)
        assert said.startswith(kept) or not row.is_partial, (message_id, kept, said)


async def run_seed(seed: int, directory: Path) -> Counts:
    """Play one seed in a directory of its own. Raises AssertionError where a promise broke."""
    rng = random.Random(seed)
    counts = Counts(seeds=1)
    texts = Texts()
    accepted: list[str] = []
    state = directory / "0"
    for life in range(1, rng.randrange(2, 5)):
        copy = directory / f"{life}"
        crash = Crash(state, copy, rng.randrange(1, 60)) if rng.random() < 0.5 else None
        process = Process(rng, state, crash)
        await process.live(texts)
        if rng.random() < 0.5:
            counts.closes += 1
            await process.close()
            await process.check([*accepted, *process.accepted])
        else:
            await process.stop_all()
            await process.check([*accepted, *process.accepted])
            await process.check_goes_on(texts)
            await process.close()
            await process.check([*accepted, *process.accepted])
        counts.add(process.told)
        if crash is not None and crash.known is not None:
            # The next process finds what a kill at that step would have left.
            counts.crashes += 1
            state = copy
            after = FileHistory(state, io="inline", fsync="off")
            rows = [row for w in WORKSPACES for row in (await after.load(w)).rows]
            accepted += crash.known.accepted
            for workspace_id in WORKSPACES:
                mine = [text for text in accepted if text.startswith(workspace_id)]
                check_rows(await after.read(workspace_id), mine)
            check_after_crash(crash.known, rows)
        else:
            accepted += process.accepted
            rows = [row for w in WORKSPACES for row in await process.history.read(w)]
        counts.rows += len(rows)
    return counts
