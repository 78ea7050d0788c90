"""What the history costs as it grows: bytes of a long answer, appends and tails of a long chat."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from unittest import mock

import fibers as fb
from bench.engine.figures import Figure, Group
from bench.engine.stand import FINISH
from fibers.testing import TestClock
from streamengine import Event, FileHistory, StreamEngine, StreamRequest
from streamengine.history.files import CHAT_FILE, WorkspaceFiles
from streamengine.model import RowMetadata, StreamDeltaEvent, TextPart, UserRow
from streamengine.providers.script import Answer, Give, Say, Script
from streamengine.providers.scripted import ScriptedProvider

_ANSWER_DELTAS: Final = 5_000
_WORD_MS: Final = 20
_STEP_SECONDS: Final = 1.0
_BYTES_BAR: Final = 4
_ROWS: Final = (1_000, 100_000)
_TIMES: Final = 200
_TAIL_ROWS: Final = 20


class Counted:
    """Bytes that went through a call of `os`."""

    size_bytes = 0


@contextmanager
def counted(call: str, size: Callable[[Any], int]) -> Generator[Counted]:
    """Count what ``os.<call>`` moves inside the block, on all threads."""
    count, real = Counted(), getattr(os, call)

    def counting(*args: Any) -> Any:
        result = real(*args)
        count.size_bytes += size(result)
        return result

    with mock.patch.object(os, call, counting):
        yield count


async def _answered(history: FileHistory, deltas: int) -> str:
    """A whole answer at 50 words a second of virtual time, so that its partial is written as often
    as in real time; gives what was told.
    """
    clock, words = TestClock(), list[str]()
    steps = (Say(text="word " * deltas, every_ms=_WORD_MS), Give(part=FINISH))
    provider = ScriptedProvider(Script(answers=(Answer(steps=steps),)))
    engine = StreamEngine(history=history, provider=provider, clock=clock)
    runtime = fb.Runtime(clock=clock)

    def note(event: Event) -> None:
        if isinstance(event, StreamDeltaEvent):
            words.append(event.delta)

    engine.events.subscribe(note)
    handle = await runtime.run(engine.start_stream("w", StreamRequest(text="a question")))
    while len(words) < deltas:
        await runtime.run(clock.adjust(_STEP_SECONDS))
    await handle.completion
    await runtime.dispose()
    return "".join(words)


async def _bytes_of_an_answer(deltas: int) -> Figure:
    """Written by a whole answer, as it streams: partial, log, row, note."""
    with tempfile.TemporaryDirectory() as folder:
        history = FileHistory(Path(folder), io="inline", fsync="off")
        with counted("write", int) as written:
            text = await _answered(history, deltas)
    size = len(text.encode())
    return Figure(
        "engine-history-bytes",
        f"bytes written for an answer of {size} bytes, told as {deltas} deltas",
        "bytes",
        [written.size_bytes],
        against=size,
        bar=_BYTES_BAR,
    )


def _row(n: int) -> UserRow:
    return UserRow(
        id=f"u{n}",
        parts=(TextPart(text=f"question {n}: {'x' * 80}"),),
        metadata=RowMetadata(history_sequence=n, timestamp_ms=1_700_000_000_000 + n),
    )


def _long_chat(folder: Path, rows: int) -> WorkspaceFiles:
    """A chat of so many rows, indexed: the first use after a start reads it once."""
    path = folder / f"w{rows}"
    path.mkdir()
    lines = (json.dumps(_row(n).to_mapping()) for n in range(rows))
    (path / CHAT_FILE).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    files = WorkspaceFiles(path, fsync="off")
    files.reserve("a_1")
    files.release("a_1")
    return files


def _appends_us(files: WorkspaceFiles, rows: int) -> float:
    began = time.process_time()
    for n in range(_TIMES):
        files.append_user(_row(rows + n))
    return (time.process_time() - began) / _TIMES * 1e6


async def measure(quick: bool) -> list[Figure]:
    figures = [await _bytes_of_an_answer(_ANSWER_DELTAS // 10 if quick else _ANSWER_DELTAS)]
    appends: dict[int, float] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for rows in _ROWS:
            files = _long_chat(folder, rows)
            _appends_us(files, rows)
            appends[rows] = _appends_us(files, rows + _TIMES)
        size = (folder / f"w{_ROWS[-1]}" / CHAT_FILE).stat().st_size
        # A new object, as in a process that has just started: nothing is indexed.
        cold = WorkspaceFiles(folder / f"w{_ROWS[-1]}", fsync="off")
        with counted("pread", len) as read:
            began = time.perf_counter()
            found = cold.tail(_TAIL_ROWS)
            tail_ms = (time.perf_counter() - began) * 1000
        if len(found) != _TAIL_ROWS:
            raise RuntimeError(f"the tail has {len(found)} rows, not {_TAIL_ROWS}")
    few, many = _ROWS
    figures += [
        Figure(
            "engine-history-append",
            f"a row added to {many} rows, against {few}",
            "us CPU",
            [appends[many]],
            against=round(appends[few], 1),
            bar=2,
        ),
        Figure(
            "engine-history-tail",
            f"bytes read for the last {_TAIL_ROWS} of {many} rows, against all of the file",
            "bytes",
            [read.size_bytes],
            against=size,
            bar=0.01,
            note=f"{tail_ms:.1f} ms in a process that had not read the file before",
        ),
    ]
    return figures


HISTORY: Final = Group("engine-history", "the history", measure, every_build=False)
