"""The rows of the drill: one situation each, from a server's start to what its end left on disk."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx

from fibers.app import OUTER_BUDGET_SECONDS, AppScope, close_bounded
from streamengine import FileHistory, StreamEngine, StreamRequest
from streamengine.providers.scripted import ScriptedProvider

from . import scripts
from .process import (
    Ended,
    Seen,
    Server,
    client,
    command,
    listen,
    partial_of,
    rows_of,
    running,
    say,
    serve_command,
    text_of,
)

ABORTED: Final = "streamManager.abortStream"
CLOSED: Final = "AppScope closed"
STOPPED: Final = "server.stop"
TIMED_OUT: Final = "teardown timed out"
ABANDONED: Final = "provider ignores its abort"
SHUTDOWN: Final = "[shutdown]"

THROTTLE_MS: Final = 500
WRITE_MS: Final = 150
"""What a write in flight may add to the throttle interval before text is called lost."""


@dataclass
class Row:
    """What one situation showed. ``broken`` names each bar that did not hold."""

    name: str
    close_ms: int | None = None
    exit_ms: float | None = None
    partial: str = "-"
    row_characters: str = "-"
    client_characters: str = "-"
    last_row: str = "-"
    broken: list[str] = field(default_factory=list[str])
    notes: str = ""
    log: list[str] = field(default_factory=list[str])
    """What the server said of its end."""

    def check(self, holds: bool, what: str) -> None:
        if not holds:
            self.broken.append(what)

    def saw(self, ended: Ended, number: int = signal.SIGTERM, *, late_ms: int = 0) -> None:
        """How the process ended after that signal, and the bars of every graceful end. ``late_ms``:
        how much later than its budget it may leave.
        """
        self.close_ms, self.exit_ms = ended.scope_close_ms(), ended.ms
        self.log = [line for line in ended.log if SHUTDOWN in line or ABANDONED in line]
        self.check(ended.code == 128 + number, f"exit code {ended.code}")
        self.check(ended.ms < OUTER_BUDGET_SECONDS * 1000 + late_ms, "over the outer budget")
        closes, stops = ended.at(CLOSED), ended.at(STOPPED)
        self.check(bool(closes and stops) and closes[0] < stops[0], "order of close and stop")


@dataclass
class Flow:
    """Streams under way in a running server."""

    server: Server
    state: Path
    seen: dict[str, Seen]


@asynccontextmanager
async def flowing(
    arguments: list[str], state: Path, count: int, *, seconds: float
) -> AsyncGenerator[Flow]:
    """A server with ``count`` streams that have been flowing for ``seconds``."""
    seen = {f"w{n}": Seen() for n in range(count)}
    async with running(arguments) as server, client() as http:
        readers = [
            asyncio.create_task(listen(http, server.url, workspace, one))
            for workspace, one in seen.items()
        ]
        answers = await asyncio.gather(*(say(http, server.url, w, "Tell me a story") for w in seen))
        for answer in answers:
            answer.raise_for_status()
        await asyncio.wait_for(asyncio.gather(*(s.first.wait() for s in seen.values())), 30)
        await asyncio.sleep(seconds)
        try:
            yield Flow(server, state, seen)
        finally:
            for reader in readers:
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(reader, 5)


def _judge(row: Row, flow: Flow, ended: Ended, *, supervised: bool = True) -> None:
    """The bars of a graceful end: the order, the partial, the text."""
    row.saw(ended)
    aborts, closes = ended.at(ABORTED), ended.at(CLOSED)
    if supervised:
        row.check(len(aborts) == len(flow.seen), f"{len(aborts)} aborts of {len(flow.seen)}")
    row.check(all(a < closes[0] for a in aborts if closes), "an abort after the close")
    _judge_disk(row, flow, supervised=supervised)


def _judge_disk(row: Row, flow: Flow, *, supervised: bool) -> None:
    partials = sum(partial_of(flow.state, w).exists() for w in flow.seen)
    row.partial = "absent" if not partials else f"{partials} present"
    stored, shown, lost = 0, 0, 0
    for workspace, seen in flow.seen.items():
        rows = rows_of(flow.state, workspace)
        last = text_of(rows[-1]) if rows and rows[-1].get("role") == "assistant" else ""
        row.last_row = _described(rows)
        stored += len(last)
        shown += len(seen.text)
        if not last.startswith(seen.text) or not seen.text:
            lost += 1
        if supervised:
            row.check(seen.terminals == ["stream-abort"], f"{workspace} saw {seen.terminals}")
    row.row_characters, row.client_characters = str(stored), str(shown)
    if supervised:
        row.check(not partials, "partial.json is left")
        row.check(not lost, f"{lost} row(s) lack text that a client saw")


def _described(rows: list[dict[str, Any]]) -> str:
    if not rows:
        return "none"
    meta = rows[-1].get("metadata", {})
    marks = ["partial"] if meta.get("partial") else []
    return " ".join([rows[-1]["role"], *marks, meta.get("abortReason") or ""]).strip()


async def idle(folder: Path) -> Row:
    row = Row("idle")
    state = folder / "state"
    async with running(serve_command(state, scripts.write("flowing", folder))) as server:
        ended = await server.end()
    row.saw(ended)
    row.check(ended.count(TIMED_OUT) == 0, "a time-out warning")
    return row


async def streams(folder: Path, count: int, *, kind: str = "flowing") -> Row:
    row = Row(f"{count} flowing" if kind == "flowing" else kind)
    state = folder / "state"
    model = scripts.write(kind, folder)
    arguments = command("tools.drill.server", str(state), model, "--streams", str(count + 8))
    if count <= 2:
        arguments = serve_command(state, model)
    async with flowing(arguments, state, count, seconds=1.0) as flow:
        ended = await flow.server.end()
    _judge(row, flow, ended)
    row.check(ended.count(TIMED_OUT) == 0, "a time-out warning")
    return row


async def ignoring(folder: Path) -> Row:
    row = await streams(folder, 1, kind="ignoring")
    row.name = "provider ignores its abort"
    row.check(row.close_ms is not None and row.close_ms < 400, f"close took {row.close_ms} ms")
    return row


async def wedged(folder: Path) -> Row:
    """A provider whose cleanup never ends, and a message that comes while it is shut down."""
    row = Row("provider's cleanup never ends")
    state = folder / "state"
    arguments = serve_command(state, scripts.write("wedged", folder))
    async with flowing(arguments, state, 1, seconds=0.5) as flow, client() as http:
        ending = asyncio.create_task(flow.server.end())
        await asyncio.sleep(0.7)
        refused = await say(http, flow.server.url, "late", "Too late")
        ended = await ending
    _judge(row, flow, ended)
    close_ms = row.close_ms or 0
    row.check(2000 <= close_ms <= 2100, f"close took {close_ms} ms")
    row.check(ended.count(TIMED_OUT) == 1, f"{ended.count(TIMED_OUT)} time-out warnings")
    named = ended.count(ABANDONED)
    row.check(named == 1, f"the provider is named in {named} warnings")
    row.check(refused.status_code == 503, f"a late message got {refused.status_code}")
    row.check("retry-after" in refused.headers, "503 without Retry-After")
    row.notes = f"a message during the shutdown: {refused.status_code}"
    return row


async def late_at_the_engine(folder: Path) -> Row:
    """A stream started in a closed scope, past the edge: aborted as "system", one terminal."""
    row = Row("late start at the engine")
    model = scripts.write("flowing", folder).removeprefix("scripted:")
    scope = AppScope()
    engine = StreamEngine(
        history=FileHistory(folder / "state"),
        provider=ScriptedProvider.from_file(Path(model)),
        scope=scope,
    )
    kinds: list[str] = []
    engine.events.subscribe(lambda event: kinds.append(event.type))
    await close_bounded(scope)
    handle = await engine.start_stream("w0", StreamRequest(text="Too late"))
    completion = await handle.completion
    row.notes = f"{completion.status}/{completion.abort_reason}, events {kinds}"
    row.check(completion.abort_reason == "system", row.notes)
    row.check(kinds == ["stream-abort"], row.notes)
    row.check(not engine.is_streaming("w0"), "still registered")
    return row


async def chat(folder: Path) -> Row:
    """``chat`` as a root of its own, and Ctrl-C in the middle of the answer."""
    row = Row("chat, Ctrl-C")
    state = folder / "state"
    process = await asyncio.create_subprocess_exec(
        *command("turns.host", "chat", "Tell me a story", "--state", str(state)),
        "--model",
        scripts.write("flowing", folder),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    printed = await asyncio.wait_for(process.stdout.readexactly(200), 30)
    started = time.perf_counter()
    process.send_signal(signal.SIGINT)
    printed += await process.stdout.read()
    code = await asyncio.wait_for(process.wait(), 10)
    row.exit_ms = (time.perf_counter() - started) * 1000
    row.check(code == 130, f"exit code {code}")
    rows = rows_of(state, "default")
    last = text_of(rows[-1]) if rows else ""
    shown = printed.decode().rstrip("\n")
    row.row_characters, row.client_characters = str(len(last)), str(len(shown))
    row.partial = "present" if partial_of(state, "default").exists() else "absent"
    row.last_row = _described(rows)
    row.check(row.partial == "absent", "partial.json is left")
    row.check(last.startswith(shown.rstrip()), "the row lacks text that was printed")
    return row


async def kills(folder: Path, times: int, seed: int) -> Row:
    """kill -9 at random moments, then a restart: what is lost, and what is there twice."""
    row = Row(f"kill -9, {times} times")
    dice = random.Random(seed)
    worst_ms = 0.0
    for n in range(times):
        state = folder / f"state{n}"
        seen = Seen()
        arguments = serve_command(state, scripts.write("flowing", folder))
        async with running(arguments) as server, client() as http:
            reader = asyncio.create_task(listen(http, server.url, "w0", seen))
            asked = asyncio.create_task(say(http, server.url, "w0", "Tell me a story"))
            await asyncio.sleep(dice.uniform(0.0, 1.5))
            server.process.kill()
            killed = time.monotonic()
            await server.process.wait()
            accepted = False
            with contextlib.suppress(httpx.HTTPError):
                accepted = (await asked).status_code == 202
            await reader
        async with running(arguments) as server:
            await server.end()
        rows = rows_of(state, "w0")
        users = [r for r in rows if r["role"] == "user"]
        said = [text_of(r) for r in rows if r["role"] == "assistant"]
        row.check(len(users) == 1 or (not accepted and not users), f"#{n}: {len(users)} user rows")
        row.check(len(said) <= 1, f"#{n}: {len(said)} assistant rows")
        row.check(all(text.strip() for text in said), f"#{n}: a blank row")
        row.check(not partial_of(state, "w0").exists(), f"#{n}: partial.json after the restart")
        worst_ms = max(worst_ms, _lost_ms(seen, said[0] if said else "", killed))
    row.notes = f"oldest text lost was {worst_ms:.0f} ms old"
    row.check(worst_ms <= THROTTLE_MS + WRITE_MS, row.notes)
    return row


def _lost_ms(seen: Seen, kept: str, killed: float) -> float:
    """The age, at the kill, of the oldest text that a client had seen and the disk had not."""
    length = 0
    for at, delta in seen.deltas:
        length += len(delta)
        if length > len(kept):
            return (killed - at) * 1000
    return 0.0


async def unsupervised(folder: Path) -> Row:
    """The same end with the engine's scope set to None: what supervision is for."""
    row = Row("1 flowing, unsupervised")
    state = folder / "state"
    arguments = command(
        "tools.drill.server", str(state), scripts.write("flowing", folder), "--unsupervised"
    )
    async with flowing(arguments, state, 1, seconds=1.0) as flow:
        ended = await flow.server.end()
    row.saw(ended)
    _judge_disk(row, flow, supervised=False)
    seen = flow.seen["w0"]
    unseen = int(row.row_characters) - len(seen.text)
    row.notes = (
        f"the client was told of no end ({seen.terminals or 'no terminal event'}), and {unseen} "
        "characters that the row has never reached it"
    )
    row.check(not seen.terminals, "the client was told: is it really unsupervised?")
    row.check(not ended.at(ABORTED), "an abort was awaited: is it really unsupervised?")
    return row


async def local(folder: Path, count: int) -> Row:
    row = Row("local model, idle" if not count else f"local model, {count} stream(s)")
    state = folder / "state"
    arguments = serve_command(state, "local")
    if not count:
        async with running(arguments) as server:
            ended = await server.end()
        row.saw(ended)
        return row
    async with flowing(arguments, state, count, seconds=1.0) as flow:
        ended = await flow.server.end()
    _judge(row, flow, ended)
    return row


@contextlib.contextmanager
def folder() -> Any:
    """A directory of a row's own."""
    with tempfile.TemporaryDirectory(prefix="drill-") as name:
        yield Path(name)
