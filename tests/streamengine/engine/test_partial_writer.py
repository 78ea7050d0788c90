"""The writer of a partial on its own: what a flush writes, and what it says of it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import fibers as fb
from fibers import AbortController, Scope
from fibers.testing import TestClock
from streamengine import FileHistory, HistoryError, StreamRequest
from streamengine.model import RowMetadata, TextPart, ToolPart, Usage
from streamengine.model.fold import fold_parts
from streamengine.partials import PartialWriter
from streamengine.stream import Completing, Stream

from .kit import WORKSPACE, Disk, FaultyHistory


class Bench:
    """A stream that only records, its writer, and what is on disk."""

    def __init__(self, rt: fb.Runtime, path: Path) -> None:
        self._rt = rt
        self.disk = Disk(path)
        self.history = FaultyHistory(FileHistory(path, io="inline"))
        self.stream = Stream(
            WORKSPACE,
            "a1",
            StreamRequest(text="Hi"),
            0,
            Completing(),
            AbortController(),
            TestClock(),
            Scope(),
        )
        self.writer = PartialWriter(self.stream, self.history)

    def say(self, *parts: TextPart | ToolPart) -> None:
        self.stream.parts.extend(parts)
        self.writer.changed()

    async def flush(self, *, durable: bool = False) -> bool:
        return await self._rt.run(fb.Effect.promise(lambda: self.writer.flush(durable=durable)))

    @property
    def log(self) -> bytes:
        path = self.disk.directory() / "partial-log.jsonl"
        return path.read_bytes() if path.exists() else b""


@pytest.fixture
async def bench(rt: fb.Runtime, tmp_path: Path) -> Bench:
    return Bench(rt, tmp_path)


def word(text: str, at: int = 1) -> TextPart:
    return TextPart(text=text, timestamp_ms=at)


def call(state: str = "input-available", output: object = None) -> ToolPart:
    return ToolPart(tool_call_id="c1", tool_name="look", state=state, output=output)


@pytest.mark.spec("P2")
async def test_a_flush_writes_only_what_is_new(bench: Bench) -> None:
    bench.say(word("x" * 10_000))
    assert await bench.flush()
    base = (bench.disk.directory() / "partial.json").read_bytes()
    bench.say(word(" one", 2), word(" two", 3))
    assert await bench.flush()
    before = len(bench.log)
    bench.say(word(" three", 4))
    assert await bench.flush()

    assert bench.log[before:] == b'" three"\n'
    assert (bench.disk.directory() / "partial.json").read_bytes() == base
    assert bench.disk.partial_text() == "x" * 10_000 + " one two three"
    assert bench.history.calls == ["write_partial", "append_partial", "append_partial"]


async def test_a_flush_of_nothing_writes_nothing(bench: Bench) -> None:
    assert await bench.flush()
    assert bench.disk.partial() is None
    assert bench.history.calls == []


@pytest.mark.spec("E20")
async def test_a_flush_that_failed_says_so_and_the_next_one_makes_it_good(bench: Bench) -> None:
    bench.say(word("let me see"), call())
    assert await bench.flush()
    bench.history.fail("append_partial")
    bench.say(call("output-available", {"found": 1}))

    assert not await bench.flush(durable=True)
    partial = bench.disk.partial()
    assert partial is not None
    assert partial["parts"][1]["state"] == "input-available"
    bench.history.mend()
    bench.say(word("found"))

    assert await bench.flush(durable=True)
    partial = bench.disk.partial()
    assert partial is not None
    assert partial["parts"] == [part.to_mapping() for part in fold_parts(bench.stream.parts)]
    assert partial["parts"][1]["output"] == {"found": 1}


async def test_a_first_write_that_failed_is_made_good_with_everything(bench: Bench) -> None:
    bench.say(word("one"))
    bench.history.fail("write_partial")
    assert not await bench.flush()
    bench.history.mend()
    bench.say(word(" two"))

    assert await bench.flush()
    assert bench.disk.partial_text() == "one two"


async def test_a_partial_that_somebody_removed_is_written_anew(bench: Bench) -> None:
    bench.say(word("one"))
    await bench.flush()
    for path in bench.disk.directory().iterdir():
        path.unlink()
    bench.say(word(" two"))

    assert await bench.flush()
    assert bench.disk.partial_text() == "one two"


async def test_what_is_said_during_a_write_is_written_by_the_next(
    bench: Bench, rt: fb.Runtime
) -> None:
    for method in ("write_partial", "append_partial"):
        gate = bench.history.hold(method)
        bench.say(word(f"[{method}"))
        writing = asyncio.ensure_future(bench.flush())
        await gate.begun.wait()
        bench.say(word("]"))
        gate.go.set()
        assert await writing

        assert bench.disk.partial_text() != "".join(
            part.text for part in bench.stream.parts if isinstance(part, TextPart)
        )
        await bench.flush()
        assert bench.disk.partial_text() == "".join(
            part.text for part in bench.stream.parts if isinstance(part, TextPart)
        )


@pytest.mark.spec("P3", "P16")
@pytest.mark.parametrize("is_begun", [False, True])
async def test_the_last_write_says_how_it_ended_and_none_comes_after_it(
    bench: Bench, rt: fb.Runtime, is_begun: bool
) -> None:
    usage = Usage(output_tokens=3)
    bench.say(word("one"))
    if is_begun:
        await bench.flush()
    bench.say(word(" two"))
    write = bench.writer.write_aborted("user", usage=usage, provider_metadata={"p": 1})
    assert await rt.run(fb.Effect.promise(lambda: write))
    bench.say(word(" late"))
    await bench.flush()
    error = bench.writer.write_error("late", "unknown")
    assert await rt.run(fb.Effect.promise(lambda: error))

    partial = bench.disk.partial()
    assert partial is not None
    assert bench.disk.partial_text() == "one two"
    metadata = RowMetadata.model_validate(partial["metadata"])
    assert (metadata.abort_reason, metadata.usage, metadata.error) == ("user", usage, None)
    assert metadata.provider_metadata == {"p": 1}
    assert metadata.duration_ms is not None


async def test_the_last_write_says_whether_it_was_made(bench: Bench, rt: fb.Runtime) -> None:
    bench.say(word("one"))
    bench.history.fail("write_partial", HistoryError("io", "/x", "no", "Wait."))

    write = bench.writer.write_error("cut", "network")

    assert not await rt.run(fb.Effect.promise(lambda: write))
