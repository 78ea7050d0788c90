"""`python -m tools.reconnects`: a reader that loses its connection ten times in one answer.

Serves on loopback, asks for one answer, and reads it over an event stream that is cut off again and
again; each time the reader comes back with its cursor, and the answer has gone on meanwhile. Prints
a line for each connection, then whether what was heard is exactly what was said. Exit code 1 if it
isn't.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
from httpx_sse import aconnect_sse

import fibers as fb
from fibers import AbortSignal
from streamengine import StreamRequest
from streamengine.model import Finish, ProviderPart, TextDelta, TextEnd
from turns.host.config import ServeConfig
from turns.host.serve import Ready, serve

BREAKS: Final = 10
HEARD_SECONDS: Final = 30.0
WORDS_WHILE_THERE: Final = 3
WORDS_WHILE_AWAY: Final = 2


class Speaker:
    """A provider that says a word when it is told to."""

    def __init__(self, words: int) -> None:
        self.words = [f"word{number} " for number in range(1, words + 1)]
        self._allowed = asyncio.Semaphore(0)
        self._said = 0
        self._changed = asyncio.Condition()

    @property
    def text(self) -> str:
        return "".join(self.words)

    def allow(self, words: int) -> None:
        """Let it say so many more."""
        for _ in range(words):
            self._allowed.release()

    async def until_said(self, words: int) -> None:
        """Wait until so many were taken from it: the one after was asked for."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._said >= min(words, len(self.words)))

    def stream(self, request: StreamRequest, signal: AbortSignal) -> AsyncIterator[ProviderPart]:
        return self._parts()

    async def _parts(self) -> AsyncIterator[ProviderPart]:
        for word in self.words:
            await self._allowed.acquire()
            yield TextDelta(text=word)
            async with self._changed:
                self._said += 1
                self._changed.notify_all()
        yield TextEnd()
        yield Finish(finish_reason="stop", raw_finish_reason="stop")


@dataclass
class Heard:
    """What the reader has: over all of its connections."""

    deltas: list[str] = field(default_factory=list[str])
    keys: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    terminals: int = 0
    cursor: str = ""

    @property
    def text(self) -> str:
        return "".join(self.deltas)

    def take(self, kind: str, data: dict[str, Any]) -> None:
        if kind == "stream-delta":
            self.deltas.append(data["delta"])
            self.keys.append((data["messageId"], data["timestamp"]))
        elif kind in ("stream-end", "stream-abort", "error"):
            self.terminals += 1


async def connection(
    client: httpx.AsyncClient, speaker: Speaker, heard: Heard, words: int
) -> tuple[str, int, int]:
    """Catch up, let so many words be said, and hang up after them, or at the end. Gives what was
    told again (full, since or live) and how many words came so, and live.
    """
    headers = {"last-event-id": heard.cursor} if heard.cursor else {}
    kind, replayed, live = "", 0, 0
    async with aconnect_sse(client, "GET", "/api/workspaces/w1/events", headers=headers) as source:
        async for event in source.aiter_sse():
            heard.cursor = event.id or heard.cursor
            data = json.loads(event.data)
            heard.take(event.event, data)
            if event.event == "caught-up":
                kind = data["replay"]
                speaker.allow(words)
            elif event.event == "stream-delta":
                replayed, live = (replayed, live + 1) if kind else (replayed + 1, live)
            if kind and (live >= words or heard.terminals):
                break
    return kind, replayed, live


async def run(state: Path, breaks: int, say: Callable[[str], object]) -> bool:
    """Whether the reader has heard the answer exactly once."""
    speaker = Speaker(breaks * (WORDS_WHILE_THERE + WORDS_WHILE_AWAY) + WORDS_WHILE_THERE)
    ready: asyncio.Future[Ready] = asyncio.get_running_loop().create_future()
    config = ServeConfig(state=state, port=0, auth=False)
    server = fb.run_fork(serve(config, ready.set_result, make_provider=lambda: speaker))
    server.ignore_failure()
    try:
        async with asyncio.timeout(HEARD_SECONDS):
            url = (await ready).url
            heard = Heard()
            async with httpx.AsyncClient(base_url=url, timeout=HEARD_SECONDS) as client:
                await _read(client, speaker, heard, breaks, say)
    finally:
        await server.interrupt(reason="done")
    return _verdict(speaker, heard, breaks, say)


async def _read(
    client: httpx.AsyncClient,
    speaker: Speaker,
    heard: Heard,
    breaks: int,
    say: Callable[[str], object],
) -> None:
    response = await client.post("/api/workspaces/w1/messages", json={"text": "Say words."})
    response.raise_for_status()
    for number in range(1, breaks + 1):
        speaker.allow(WORDS_WHILE_AWAY)
        await speaker.until_said((number - 1) * WORDS_WHILE_THERE + number * WORDS_WHILE_AWAY)
        before = heard.cursor
        told = await connection(client, speaker, heard, WORDS_WHILE_THERE)
        say(f"{_line(number, before, told, heard)}  -- connection lost")
    before = heard.cursor
    # One more than there are: the last connection ends with the answer.
    told = await connection(client, speaker, heard, len(speaker.words))
    say(f"{_line(breaks + 1, before, told, heard)}  -- the end")


def _line(number: int, cursor: str, told: tuple[str, int, int], heard: Heard) -> str:
    kind, replayed, live = told
    return (
        f"{number:2}  from {_short(cursor):24} {kind:5}  "
        f"{replayed:2} words again, {live:2} live, {len(heard.deltas):3} in all"
    )


def _short(cursor: str) -> str:
    message_id, _, place = cursor.partition(":")
    return f"{message_id[:6]}..:{place}" if place else "the start"


def _verdict(speaker: Speaker, heard: Heard, breaks: int, say: Callable[[str], object]) -> bool:
    exact = heard.text == speaker.text
    twice = len(heard.keys) - len(set(heard.keys))
    say(f"{breaks} connections lost; {len(heard.deltas)} of {len(speaker.words)} words heard")
    say(f"the text is {'exactly' if exact else 'NOT'} what was said; {twice} words came twice")
    say(f"{heard.terminals} terminal event")
    return exact and not twice and heard.terminals == 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.reconnects", description=__doc__)
    parser.add_argument("--breaks", type=int, default=BREAKS, help="how often it is cut off")
    breaks: int = parser.parse_args().breaks
    with tempfile.TemporaryDirectory() as state:
        return 0 if asyncio.run(run(Path(state), breaks, print)) else 1


if __name__ == "__main__":
    sys.exit(main())
