"""The rows of the drill in which tools are in flight when the server ends.

Each answer calls two tools: one whose result is there, and one that is still running. Whatever the
end was, what a client was told of the first is on disk; and after the restart a model that is asked
again is told one result for each call, as every API wants it (BT8, P22).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx

from .process import Ended, Seen, Server, client, command, listen, partial_of, rows_of, running, say
from .rows import ABANDONED, TIMED_OUT, Flow, Row, flowing
from .scripts import HELD_CALL, QUICK_CALL, with_tools

QUICK_RESULT: Final = {"found": 42}
ABORTED_RESULT: Final = {"success": False, "error": "aborted"}
LONGEST_CLOSE_MS: Final = 1000
"""Of tools that end when they are interrupted."""
EXIT_ROOM_MS: Final = 300
"""A thread that nothing can end holds the process until its budget is over; then it leaves."""


@dataclass(frozen=True)
class Place:
    """Where a row's servers keep their state, and what they are started with."""

    folder: Path
    held: str

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def asked(self) -> Path:
        return self.folder / "asked.jsonl"

    @property
    def arguments(self) -> list[str]:
        model = with_tools(self.held, self.folder)
        return command("tools.drill.server", str(self.state), model, "--asked", str(self.asked))


async def tools(folder: Path, held: str, count: int, number: int = signal.SIGTERM) -> Row:
    """A tool runs in each of ``count`` answers; then the signal."""
    row = Row(f"{count} {held} tool(s), {signal.Signals(number).name}")
    place = Place(folder, held)
    async with flowing(place.arguments, place.state, count, seconds=0) as flow:
        await _in_flight(flow)
        ended = await flow.server.end(number)
    row.saw(ended, number, late_ms=EXIT_ROOM_MS if held == "threaded" else 0)
    _judge_end(row, ended, held)
    for workspace, seen in flow.seen.items():
        row.check(seen.terminals == ["stream-abort"], f"{workspace} saw {seen.terminals}")
        outputs = _outputs(place.state, workspace)
        expected = {QUICK_CALL: QUICK_RESULT, HELD_CALL: ABORTED_RESULT}
        row.check(outputs == expected, f"{workspace} has the results {outputs}")
    _look(row, place, flow.seen)
    await _asked_again(row, place, list(flow.seen))
    return row


async def second_signal(folder: Path) -> Row:
    """A tool that doesn't end, and a second SIGTERM while the first waits for it."""
    row = Row("1 deaf tool, SIGTERM twice")
    place = Place(folder, "deaf")
    async with flowing(place.arguments, place.state, 1, seconds=0) as flow:
        await _in_flight(flow)
        process = flow.server.process
        process.send_signal(signal.SIGTERM)
        await flow.server.said("[shutdown] begins")
        ended = await flow.server.end(signal.SIGTERM)
    row.exit_ms = ended.ms
    row.check(ended.code == 128 + signal.SIGTERM, f"exit code {ended.code}")
    row.check(ended.count("second signal") > 0, "it did not leave at once")
    _kept(row, place.state, flow.seen)
    await _asked_again(row, place, list(flow.seen))
    _look(row, place, flow.seen)
    return row


async def kills(folder: Path, times: int, seed: int) -> Row:
    """kill -9, then a restart and a further message: at random moments around the calls, and every
    other time where a client has seen that a tool runs.
    """
    row = Row(f"tools, kill -9, {times} times")
    dice = random.Random(seed)
    in_flight = 0
    for n in range(times):
        (folder / str(n)).mkdir()
        place = Place(folder / str(n), "slow")
        seen = {"w0": Seen()}
        async with running(place.arguments) as server, client() as http:
            reader = asyncio.create_task(listen(http, server.url, "w0", seen["w0"]))
            asked = asyncio.create_task(say(http, server.url, "w0", "Tell me a story"))
            if n % 2:
                await seen["w0"].until(lambda one: HELD_CALL in one.begun)
            await asyncio.sleep(dice.uniform(0.0, 0.12))
            server.process.kill()
            await server.process.wait()
            with contextlib.suppress(httpx.HTTPError):
                await asked
            await reader
        in_flight += HELD_CALL in seen["w0"].begun
        _kept(row, place.state, seen, f"#{n}: ")
        await _asked_again(row, place, ["w0"], f"#{n}: ")
        row.check(len(_said_by(place.state, "w0")) <= 2, f"#{n}: more answers than questions")
    row.notes = f"a tool ran in {in_flight} of them"
    row.check(in_flight >= times // 2, "a kill met no tool in flight")
    return row


# ---- what the rows look at


async def _in_flight(flow: Flow) -> None:
    """Wait until every answer has one result and one tool that runs."""
    for seen in flow.seen.values():
        await seen.until(lambda s: HELD_CALL in s.begun and QUICK_CALL in s.results)


def _judge_end(row: Row, ended: Ended, held: str) -> None:
    close_ms = row.close_ms or 0
    if held == "deaf":
        # Abandoned after its grace: the stream has ended long before the close gives up on it.
        row.check(2000 <= close_ms <= 2100, f"close took {close_ms} ms")
        row.check(ended.count(TIMED_OUT) == 1, f"{ended.count(TIMED_OUT)} time-out warnings")
        row.check(ended.count(ABANDONED) == 1, f"named in {ended.count(ABANDONED)} warnings")
    else:
        row.check(close_ms < LONGEST_CLOSE_MS, f"close took {close_ms} ms")
        row.check(ended.count(TIMED_OUT) == 0, "a time-out warning")


def _kept(row: Row, state: Path, seen: dict[str, Seen], name: str = "") -> None:
    """A result that was told is on disk, in what the dead process has left there (E20)."""
    for workspace, one in seen.items():
        if QUICK_CALL in one.results:
            written = _left(state, workspace)
            row.check('"found"' in written, f"{name}a result that was told is not on disk")


def _left(state: Path, workspace: str) -> str:
    partial = partial_of(state, workspace)
    files = (partial.with_name("chat.jsonl"), partial, partial.with_name("partial-log.jsonl"))
    return "".join(file.read_text() for file in files if file.exists())


async def _asked_again(row: Row, place: Place, workspaces: list[str], name: str = "") -> None:
    """Start a server on what was left, send a message, and look at what the model was asked."""
    async with running(place.arguments) as server, client() as http:
        for workspace in workspaces:
            await _answered(row, server, http, workspace, name)
        await server.end()
    for workspace in workspaces:
        left = partial_of(place.state, workspace).exists()
        row.check(not left, f"{name}{workspace}: partial.json after the restart")
        for role in ("user", "assistant"):
            ids = [r["id"] for r in rows_of(place.state, workspace) if r["role"] == role]
            row.check(len(ids) == len(set(ids)), f"{name}{workspace}: a row is there twice")
    asked = [json.loads(line) for line in place.asked.read_text().splitlines()]
    again = [one for one in asked if one["text"] == "And now?"]
    row.check(len(again) == len(workspaces), f"{name}asked {len(again)} times")
    for one in again:
        results: list[str] = [call_id for call_id, _ in one["results"]]
        row.check(sorted(one["calls"]) == sorted(results), f"{name}calls {one['calls']}, {results}")


async def _answered(
    row: Row, server: Server, http: httpx.AsyncClient, workspace: str, name: str
) -> None:
    seen = Seen()
    reader = asyncio.create_task(listen(http, server.url, workspace, seen))
    (await say(http, server.url, workspace, "And now?")).raise_for_status()
    await seen.until(lambda s: s.terminals)
    row.check(seen.terminals == ["stream-end"], f"{name}{workspace}: {seen.terminals}")
    reader.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await reader


def _said_by(state: Path, workspace: str) -> list[dict[str, Any]]:
    return [row for row in rows_of(state, workspace) if row["role"] == "assistant"]


def _outputs(state: Path, workspace: str) -> dict[str, Any]:
    """What stands on disk as the result of each tool call of the first answer."""
    said = _said_by(state, workspace)
    parts: list[dict[str, Any]] = said[0]["parts"] if said else []
    return {p["toolCallId"]: p.get("output") for p in parts if p["type"] == "dynamic-tool"}


def _look(row: Row, place: Place, seen: dict[str, Seen]) -> None:
    """The table's columns: the results in the place of the characters."""
    stored = [_outputs(place.state, workspace) for workspace in seen]
    results = sum(output is not None for outputs in stored for output in outputs.values())
    row.row_characters = f"{results} results"
    row.client_characters = f"{sum(len(one.results) for one in seen.values())} results"
    partials = sum(partial_of(place.state, workspace).exists() for workspace in seen)
    row.partial = "absent" if not partials else f"{partials} present"
    row.last_row = "; ".join(
        sorted({rows_of(place.state, w)[-1]["role"] for w in seen if rows_of(place.state, w)})
    )
