"""Kill a process, look at what it left, and hold that against what it had promised."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import random
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from fibers.testing.exploring import run_on_test_loop
from streamengine import FileHistory, StreamEngine, StreamRequest
from streamengine.model import parse_event
from tests.chaos.hostile import Hostile
from tests.chaos.promises import Told, check_requests, check_rows, check_usage
from tests.chaos.scenario import WORKSPACES, Known, check_after_crash

from .victim import Kill, die

LAST_POINT: Final = 30
"""Most lives have more steps on disk than this, and as many writes."""
UNKNOWN: Final = 255
"""The exit code of multiprocessing where the server of forks has lost it. What the process told
says then how it ended.
"""
LIFE_SECONDS: Final = 30.0
"""Of real time; a victim that takes longer hangs."""


def kill(state: Path, seed: int, point: Kill) -> Known | None:
    """Let a process live on ``state`` until it dies at ``point``; what it had told by then. None
    where it came to its end before.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.crash.victim"])
    ours, theirs = context.Pipe(duplex=False)
    victim = context.Process(target=die, args=(str(state), seed, point, theirs))
    victim.start()
    theirs.close()
    known = _heard(ours)
    victim.join(LIFE_SECONDS)
    ours.close()
    if victim.exitcode is None:
        victim.kill()
        victim.join()
        raise AssertionError(f"the process of seed {seed} hangs at {point}")
    if known is None:
        assert victim.exitcode in (0, UNKNOWN), (seed, point, victim.exitcode)
        return None
    assert victim.exitcode in (-signal.SIGKILL, UNKNOWN), (seed, point, victim.exitcode)
    return known


def _heard(pipe: Any) -> Known | None:
    told = Told()
    accepted: list[str] = []
    dropping: set[str] = set()
    died_at_seconds: float | None = None
    has_ended = False
    with suppress(EOFError):
        while True:
            what, at_seconds, value = json.loads(pipe.recv_bytes())
            match what:
                case "event":
                    told.events.append((at_seconds, parse_event(value)))
                case "accepted":
                    accepted.append(value)
                case "dropping":
                    dropping.add(value)
                case "ends":
                    has_ended = True
                case _:
                    died_at_seconds = at_seconds
    if died_at_seconds is None:
        assert has_ended, "the process told neither of its death nor of its end"
        return None
    return Known(died_at_seconds, tuple(accepted), told, frozenset(dropping))


def check(state: Path, known: Known) -> None:
    """What the next process finds, and that it goes on (P1-P22, R12)."""
    run_on_test_loop(lambda: _check(state, known), seed=None)


async def _check(state: Path, known: Known) -> None:
    history = FileHistory(state, io="inline", fsync="off")
    found = [(await history.load(workspace_id)).rows for workspace_id in WORKSPACES]
    again = [(await history.load(workspace_id)).rows for workspace_id in WORKSPACES]
    assert found == again  # P4
    for workspace_id, rows in zip(WORKSPACES, found, strict=True):
        mine = [text for text in known.accepted if text.startswith(workspace_id)]
        check_rows(rows, mine)
        directory = state / "workspaces" / workspace_id
        left = {path.name for path in directory.iterdir()} if directory.exists() else set[str]()
        assert not {name for name in left if "tmp" in name}, left
        assert "partial.json" not in left, left
    everything = [row for each in found for row in each]
    check_after_crash(known, everything)
    entries = [entry for w in WORKSPACES for entry in await history.read_usage(w)]
    ended = Told([(at, e) for at, e in known.told.events if _ended(known, e.message_id)])
    check_usage(ended, everything, entries)
    await _goes_on(history)


def _ended(known: Known, message_id: str) -> bool:
    """Told as ended: then all of it is durable. A killed answer may have lost its last usage."""
    return any(e.type in ("stream-end", "stream-abort") for e in known.told.of(message_id))


async def _goes_on(history: FileHistory) -> None:
    provider = Hostile(random.Random(0), asyncio.Event())
    provider.is_tame = True
    engine = StreamEngine(history=history, provider=provider)
    for workspace_id in WORKSPACES:
        handle = await engine.start_stream(workspace_id, StreamRequest(text="And now?"))
        assert (await handle.completion).status == "completed"
        rows = await history.read(workspace_id)
        assert [row.role for row in rows[-2:]] == ["user", "assistant"]
    check_requests(provider.calls)


def points(rng: random.Random) -> Iterator[Kill]:
    """Points to die at: after each step on disk in turn, and within writes, at any byte."""
    while True:
        for step in range(1, LAST_POINT + 1):
            yield Kill(step)
            yield Kill(rng.randrange(1, LAST_POINT), rng.choice([0, 1, 7, rng.randrange(400)]))
