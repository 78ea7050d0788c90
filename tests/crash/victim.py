"""The process that is killed: an engine at work, which ends itself with SIGKILL at a given point.

A point is the n-th step on disk, or the n-th write, of which only some bytes get out. What it tells
the outside goes through a pipe at once, so that the survivor knows what had been promised.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, Literal, final

import fibers as fb
from fibers.app import AppScope
from fibers.testing.exploring import run_on_test_loop
from streamengine import Event, FileHistory, SendError, StreamEngine, StreamRequest
from tests.chaos.hostile import Hostile, Look
from tests.chaos.quiet import be_quiet
from tests.chaos.scenario import WORKSPACES

MESSAGES: Final = 5


@dataclass(frozen=True, slots=True)
class Kill:
    """Where to die. ``bytes_out``: of the n-th write; None: right after the n-th step on disk."""

    at: int
    bytes_out: int | None = None


@final
class Victim:
    """One engine that answers some messages, each stopped, dropped or let be, as the seed says."""

    def __init__(self, state: Path, seed: int, kill: Kill, told: Connection) -> None:
        self._rng = random.Random(seed)
        self._kill = kill
        self._told = told
        self._steps = 0
        self._writes = 0
        self._state = state
        if kill.bytes_out is not None:
            self._real_write = os.write
            os.write = self._write

    def _tell(
        self, kind: Literal["event", "accepted", "dropping", "dies", "ends"], what: object
    ) -> None:
        at = asyncio.get_running_loop().time()
        self._told.send_bytes(json.dumps([kind, at, what]).encode())

    def _die(self) -> None:
        self._tell("dies", None)
        os.kill(os.getpid(), signal.SIGKILL)

    def _step(self, _step: object) -> None:
        self._steps += 1
        if self._kill.bytes_out is None and self._steps == self._kill.at:
            self._die()

    def _write(self, fd: int, data: Any) -> int:
        self._writes += 1
        if self._writes == self._kill.at:
            assert self._kill.bytes_out is not None
            self._real_write(fd, bytes(data)[: self._kill.bytes_out])
            self._die()
        return self._real_write(fd, data)

    def _note(self, event: Event) -> None:
        self._tell("event", event.to_mapping())

    async def live(self) -> None:
        rng = self._rng
        let_go = asyncio.Event()
        history = FileHistory(self._state, io="inline", fsync="off", on_step=self._step)
        engine = StreamEngine(
            history=history,
            provider=Hostile(random.Random(rng.random()), let_go),
            scope=AppScope(),
            tools=[Look(random.Random(rng.random()), let_go)],
        )
        engine.events.subscribe(self._note)
        await engine.recover()
        for number in range(MESSAGES):
            workspace_id = rng.choice(WORKSPACES)
            text = f"{workspace_id} question {number}"
            started = await engine.start_stream(workspace_id, StreamRequest(text=text)).exit()
            if isinstance(started, fb.Failure):
                assert isinstance(started.failure().squash(), SendError)
                continue
            self._tell("accepted", text)
            await fb.sleep(rng.choice([0, 0.1, 0.7, 3]))
            drops = rng.random() < 0.2
            if drops:
                self._tell("dropping", workspace_id)
            if drops or rng.random() < 0.4:
                await engine.stop_stream(workspace_id, reason="user", abandon_partial=drops)
        let_go.set()
        self._tell("ends", None)


def die(state: str, seed: int, kill: Kill, told: Connection) -> None:
    """The whole life of the process. Returns only where the point never came."""
    be_quiet()
    victim = Victim(Path(state), seed, kill, told)
    run_on_test_loop(victim.live, seed=seed)
