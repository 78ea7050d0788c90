"""A server process and its clients, as the drill sees them: from outside only."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

READY_SECONDS = 30.0
ENDING_SECONDS = 15.0
EVENT_SECONDS = 30.0


@dataclass
class Seen:
    """What one event stream showed its reader."""

    deltas: list[tuple[float, str]] = field(default_factory=list[tuple[float, str]])
    """When (seconds, monotonic) and what."""
    terminals: list[str] = field(default_factory=list[str])
    first: asyncio.Event = field(default_factory=asyncio.Event)
    begun: set[str] = field(default_factory=set[str])
    """The ids of the tool calls that were run."""
    results: dict[str, Any] = field(default_factory=dict[str, Any])
    """The results that were told, by the id of their call."""
    news: asyncio.Event = field(default_factory=asyncio.Event)
    """Set at each event; who waits for one clears it."""

    @property
    def text(self) -> str:
        return "".join(delta for _, delta in self.deltas)

    async def until(self, condition: Callable[[Seen], object]) -> None:
        async with asyncio.timeout(EVENT_SECONDS):
            while not condition(self):
                self.news.clear()
                await self.news.wait()


@dataclass
class Ended:
    """How a server process ended."""

    code: int
    ms: float
    log: list[str]

    def scope_close_ms(self) -> int | None:
        for line in self.log:
            if found := re.search(r"AppScope closed \{ms: (\d+)", line):
                return int(found[1])
        return None

    def count(self, words: str) -> int:
        return sum(words in line for line in self.log)

    def at(self, words: str) -> list[int]:
        return [n for n, line in enumerate(self.log) if words in line]


class Server:
    """A running ``fiberscope serve``."""

    def __init__(self, process: asyncio.subprocess.Process, url: str, log: list[str]) -> None:
        self.process = process
        self.url = url
        self.log = log
        self.reading: list[asyncio.Task[None]] = []

    async def said(self, words: str) -> None:
        """Wait until its log has these words."""
        async with asyncio.timeout(EVENT_SECONDS):
            while not any(words in line for line in self.log):  # noqa: ASYNC110  # a list tells of nothing
                await asyncio.sleep(0.001)

    async def end(self, number: int = signal.SIGTERM) -> Ended:
        started = time.perf_counter()
        self.process.send_signal(number)
        code = await asyncio.wait_for(self.process.wait(), ENDING_SECONDS)
        ms = (time.perf_counter() - started) * 1000
        await asyncio.gather(*self.reading)
        return Ended(code, ms, self.log)


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", *arguments]


def serve_command(state: Path, model: str) -> list[str]:
    return command(
        "turns.host", "serve", "--port", "0", "--state", str(state), "--model", model, "--no-auth"
    )


@asynccontextmanager
async def running(arguments: list[str]) -> AsyncGenerator[Server]:
    """Start a server and wait until it says that it is ready; it is killed if it is still there."""
    process = await asyncio.create_subprocess_exec(
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "FIBERSCOPE_LOG": "info", "PYTHONUNBUFFERED": "1"},
    )
    log: list[str] = []
    assert process.stdout is not None
    assert process.stderr is not None
    reading = asyncio.create_task(_read(process.stderr, log))
    try:
        line = await asyncio.wait_for(process.stdout.readline(), READY_SECONDS)
        if not line.startswith(b"Open "):
            await reading
            raise RuntimeError("the server did not start:\n" + "\n".join(log))
        server = Server(process, line.split()[1].decode(), log)
        server.reading = [reading, asyncio.create_task(_read(process.stdout, []))]
        yield server
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _read(stream: asyncio.StreamReader, lines: list[str]) -> None:
    async for line in stream:
        lines.append(line.decode(errors="replace").rstrip())  # noqa: PERF401  # seen as they come


async def listen(client: httpx.AsyncClient, url: str, workspace: str, seen: Seen) -> None:
    """Read the events of a workspace until the server ends them."""
    kind = ""
    try:
        async with client.stream("GET", f"{url}/api/workspaces/{workspace}/events") as answer:
            async for line in answer.aiter_lines():
                if line.startswith("event:"):
                    kind = line[6:].strip()
                elif line.startswith("data:"):
                    _note(seen, kind, line[5:])
    except httpx.HTTPError:
        return  # the server is gone: killed, or it gave the connection up


def _note(seen: Seen, kind: str, data: str) -> None:
    if kind == "stream-delta":
        fields: dict[str, Any] = json.loads(data)
        seen.deltas.append((time.monotonic(), fields["delta"]))
        seen.first.set()
    elif kind == "tool-call-execution-start":
        seen.begun.add(json.loads(data)["toolCallId"])
    elif kind == "tool-call-end":
        ended: dict[str, Any] = json.loads(data)
        seen.results[ended["toolCallId"]] = ended.get("result")
    elif kind in ("stream-end", "stream-abort", "error"):
        seen.terminals.append(kind)
    seen.news.set()


async def say(client: httpx.AsyncClient, url: str, workspace: str, text: str) -> httpx.Response:
    return await client.post(f"{url}/api/workspaces/{workspace}/messages", json={"text": text})


def client() -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    return httpx.AsyncClient(timeout=httpx.Timeout(30.0, read=None), limits=limits)


def rows_of(state: Path, workspace: str) -> list[dict[str, Any]]:
    file = state / "workspaces" / workspace / "chat.jsonl"
    if not file.exists():
        return []
    rows: list[dict[str, Any]] = []
    for line in file.read_text().splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue  # torn by a kill: the next start steps over it, and so does the drill
    return rows


def partial_of(state: Path, workspace: str) -> Path:
    return state / "workspaces" / workspace / "partial.json"


def text_of(row: dict[str, Any]) -> str:
    return "".join(part.get("text", "") for part in row.get("parts", ()))
