"""A real child process as the agent of a bench, and virtual time."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar, final

import fibers as fb
from fibers import Effect
from streamengine.history.directory import DurableDirectory
from turns.client.crash_loop import CrashLoop
from turns.client.hub import AgentHub
from turns.client.stdio import StdioClient
from turns.open_turn import TurnEnd
from turns.process.records import ProcessRecords
from turns.turn import Turn

from .kit import ENDS, Bench

FAKE_CLI: Final = Path(__file__).resolve().parents[2] / "fake_cli.py"
SILENCE_SECONDS: Final = 0.001
BROUGHT_ABOUT: Final = tuple(end for end in ENDS if end != "interrupted")
"""The ends that an agent can bring about; that one is the manager's."""

T = TypeVar("T")

# What makes the fake agent's turn hold everything that it can hold, but the flag.
EVERYTHING: Final[tuple[dict[str, Any], ...]] = (
    {"say": {"type": "message", "messageId": "m1"}},
    {"say": {"type": "text", "text": "half a sen"}},
    {"say": {"type": "tool-start", "toolCallId": "c0", "toolName": "Task"}},
    {"say": {"type": "task-start", "taskId": "task-of-closed", "toolCallId": "c0"}},
    {"say": {"type": "tool-end", "toolCallId": "c0"}},
    {"say": {"type": "tool-start", "toolCallId": "c1", "toolName": "Bash", "canBeUndone": False}},
    {"say": {"type": "task-start", "taskId": "task-of-open", "toolCallId": "c1"}},
    {"say": {"type": "text", "text": "and the other"}},
    {"say": {"type": "usage", "tokens": 12, "costUsd": 0.5}},
    {"say": {"type": "permission", "requestId": "p1", "question": "May I?"}},
)
DONE: Final[dict[str, Any]] = {"say": {"type": "done"}}
ERROR: Final[dict[str, Any]] = {"say": {"type": "error", "error": "no"}}
STALL: Final[dict[str, Any]] = {"do": "stall"}
DIE: Final[dict[str, Any]] = {"do": "die"}


@final
class Agents:
    """A hub whose agents are fake_cli.py, started with ``arguments``."""

    def __init__(
        self, bench: Bench, *arguments: str, silence_seconds: float = SILENCE_SECONDS
    ) -> None:
        self.bench = bench
        self.command = [sys.executable, "-I", "-S", str(FAKE_CLI), *arguments]
        self.clients: list[StdioClient] = []
        self.records = ProcessRecords(DurableDirectory(bench.directory / "pids", fsync="off"))
        self.crash_loop = CrashLoop(bench.clock)
        self.hub = AgentHub(
            self._make,
            clock=bench.clock,
            scope=bench.scope,
            silence_seconds=silence_seconds,
            crash_loop=self.crash_loop,
        )

    def _make(self) -> StdioClient:
        client = StdioClient(
            self.command,
            folder=self.bench.folder,
            records=self.records,
            clock=self.bench.clock,
        )
        self.clients.append(client)
        return client

    @property
    def pid(self) -> int:
        """Of the last agent."""
        child = self.clients[-1].child
        assert child is not None
        return child.pid

    async def prompt(self, turn: Turn, *steps: dict[str, Any]) -> None:
        await self.bench.run(self.hub.send(json.dumps(steps), turn))

    async def take_all(self, turn: Turn, *, with_question: bool = True) -> None:
        """Let the turn hold everything. For a stall without a question, which excuses silence."""
        await self.bench.run(turn.continuation.mark())
        await self.prompt(turn, *(EVERYTHING if with_question else EVERYTHING[:-1]))
        readings = turn.workspace.readings
        await until(
            turn, lambda: readings.tokens == 12 and turn.permission.is_open == with_question
        )

    async def bring_about(self, turn: Turn, end: TurnEnd) -> None:
        """Let the turn hold everything, and end in that way."""
        await self.take_all(turn, with_question=end != "stalled")
        match end:
            case "completed":
                await self.prompt(turn, DONE)
            case "stalled":
                await self.bench.pass_time(SILENCE_SECONDS)
            case "errored":
                await self.prompt(turn, ERROR)
            case "died":
                await self.prompt(turn, DIE)
            case "suspended":
                self.crash_loop.died()
                self.crash_loop.died()
                await self.prompt(turn, DIE)
            case "torn-down":
                await self.pump(self.hub.teardown())
            case "interrupted":
                raise AssertionError("an agent brings that about with none of its words")
        await self.end_of(turn)

    async def end_of(self, turn: Turn) -> None:
        """Wait until the turn has ended by itself, and everything is given back."""
        await self.bench.run(self.ending(turn))

    @fb.effect
    async def ending(self, turn: Turn) -> None:
        ended = asyncio.Event()
        # In a closed scope it is called at once.
        await turn.scope.add_finalizer(lambda _exit: ended.set())
        await ended.wait()
        await turn.close("completed")  # which changes nothing any more

    async def pump(self, work: Effect[T, Any]) -> T:
        """Run what waits for a real process and for virtual time."""
        fiber = self.bench.rt.run_fork(work)
        while fiber.poll() is None:
            await asyncio.sleep(0.002)  # the process's own time; nobody tells of its steps
            await self.bench.pass_time(0.02)
        return await fiber


async def until(turn: Turn, condition: Callable[[], bool]) -> None:
    """Wait until something that the turn holds makes ``condition`` true."""
    news = asyncio.Event()
    stop = turn.observe(news.set)
    while not condition():
        await news.wait()
        news.clear()
    stop()


def text_of(turn: Turn) -> str:
    """What the agent said in the message."""
    return "".join(block.text for block in turn.workspace.message.blocks)


def saying(turn: Turn, text: str) -> Callable[[], bool]:
    return lambda: text in text_of(turn)
