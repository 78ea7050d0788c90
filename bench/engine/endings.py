"""Closing an app scope full of flowing streams, beside what the disk takes for one fsync."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import fibers as fb
from bench.engine.figures import Figure, Group
from bench.engine.stand import Pacer
from bench.measure import BUILD
from fibers.app.scope import close_bounded
from streamengine import Event, FileHistory, StreamEngine, StreamRequest
from streamengine.history.files import WorkspaceFiles
from streamengine.history.recovery import load
from streamengine.model import AssistantRow, StreamAbortEvent, StreamDeltaEvent, TextPart

_INTERVALS_SECONDS: Final[Mapping[int, float]] = {100: 0.02, 1_000: 2.0}
"""Between two words of a stream, for so many streams. A thousand at 50 words a second are more than
a process carries: they would measure that, and not the close."""
_ROUNDS: Final = 3
_BARS_MS: Final[Mapping[int, float]] = {100: 500, 1_000: 2_000}
_LONG_SECONDS: Final = 60.0
"""The bound of a close that is to be measured to its end."""
_CUT_STREAMS: Final = 100
_CUT_SECONDS: Final = 0.05
_FSYNCS: Final = 100


class _Told:
    """What was said to whoever listens."""

    def __init__(self) -> None:
        self.text: dict[str, str] = {}
        self.aborts = 0

    def note(self, event: Event) -> None:
        if isinstance(event, StreamDeltaEvent):
            self.text[event.workspace_id] = self.text.get(event.workspace_id, "") + event.delta
        elif isinstance(event, StreamAbortEvent):
            self.aborts += 1


async def _flowing(folder: Path, streams: int) -> tuple[fb.Scope, _Told]:
    """An app scope with so many streams that flow."""
    scope, told = fb.Scope("parallel", name="app"), _Told()
    history = FileHistory(folder, fsync="terminal")
    interval_seconds = _INTERVALS_SECONDS[streams]
    engine = StreamEngine(history=history, provider=Pacer(interval_seconds), scope=scope)
    engine.events.subscribe(told.note)
    for n in range(streams):
        await engine.start_stream(f"w{n}", StreamRequest(text="a question"))
    await asyncio.sleep(max(1.0, interval_seconds))
    return scope, told


def _answer(files: WorkspaceFiles) -> str:
    """The text of the answer that the history has after a load."""
    rows = [row for row in load(files).rows if isinstance(row, AssistantRow)]
    return "".join(part.text for row in rows for part in row.parts if isinstance(part, TextPart))


def _files(folder: Path, n: int) -> WorkspaceFiles:
    return WorkspaceFiles(folder / "workspaces" / f"w{n}")


async def _closed(streams: int) -> tuple[float, float]:
    """Wall-clock milliseconds, CPU milliseconds; RuntimeError where a word is missing after it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        scope, told = await _flowing(folder, streams)
        cpu, began = time.process_time(), time.perf_counter()
        await close_bounded(scope, _LONG_SECONDS)
        wall_ms = (time.perf_counter() - began) * 1000
        cpu_ms = (time.process_time() - cpu) * 1000
        if told.aborts != streams:
            raise RuntimeError(f"{told.aborts} of {streams} streams were told as aborted")
        for n in range(streams):
            if _answer(_files(folder, n)) != told.text.get(f"w{n}", ""):
                raise RuntimeError(f"the history of w{n} is not what was told")
    return wall_ms, cpu_ms


def _cut(streams: int) -> tuple[int, int]:
    """A close whose bound is over long before it: how many streams were still open then, and how
    many have lost something that was on disk before it.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        still_open, written = asyncio.run(_cut_off(folder, streams))
        # The loop is gone, and with it all that was still at work: as after the end of a process.
        lost = sum(not _answer(_files(folder, n)).startswith(written[n]) for n in range(streams))
    return still_open, lost


async def _cut_off(folder: Path, streams: int) -> tuple[int, list[str]]:
    scope, told = await _flowing(folder, streams)
    partials = [_files(folder, n).read_partial().row for n in range(streams)]
    written = [
        "" if row is None else "".join(p.text for p in row.parts if isinstance(p, TextPart))
        for row in partials
    ]
    if not any(written):
        raise RuntimeError("nothing was written before the close: there is nothing to lose")
    await close_bounded(scope, _CUT_SECONDS)
    return streams - told.aborts, written


def _fsync_ms() -> list[float]:
    """A line added to a file and waited for, without anything of ours."""
    samples: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        handle = os.open(Path(folder) / "bare", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            for _ in range(_FSYNCS):
                os.write(handle, b"x" * 200 + b"\n")
                began = time.perf_counter()
                os.fsync(handle)
                samples.append((time.perf_counter() - began) * 1000)
        finally:
            os.close(handle)
    return samples


async def measure(quick: bool) -> list[Figure]:
    rows = [Figure("engine-close-fsync", "bare: one fsync of this disk", "ms", _fsync_ms())]
    for streams, bar_ms in _BARS_MS.items():
        if BUILD != "pure" and streams == max(_BARS_MS):
            continue  # half a minute at least: once is enough
        rounds = 1 if quick or streams == max(_BARS_MS) else _ROUNDS
        found = [await _closed(streams) for _ in range(rounds)]
        cpu_ms = sum(cpu for _, cpu in found) / len(found) / streams
        rows.append(
            Figure(
                f"engine-close-{streams}",
                f"closing {streams} flowing streams, fsync policy terminal",
                "ms",
                [wall for wall, _ in found],
                bar=bar_ms,
                note=f"{cpu_ms:.2f} ms of CPU a stream; every word that was told is in its row",
            )
        )
    still_open, lost = await asyncio.to_thread(_cut, _CUT_STREAMS)
    rows.append(
        Figure(
            "engine-close-cut",
            f"lost a word on disk, of {_CUT_STREAMS} with {_CUT_SECONDS * 1000:.0f} ms to close",
            "streams",
            [lost],
            bar=0,
            note=f"{still_open} were still open at the bound, and the loop ended then",
        )
    )
    return rows


ENDINGS: Final = Group("engine-close", "closing", measure)
