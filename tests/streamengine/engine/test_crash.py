"""A process that dies in the middle: what a fresh engine finds, at every step on disk."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import fibers as fb
from fibers.app import AppScope
from fibers.testing import TestClock
from streamengine import FileHistory, StreamEngine, StreamRequest
from streamengine.history.directory import Step
from streamengine.model import AssistantRow, Row, TextPart, UserRow

from .kit import (
    FINISH,
    TEXT_END,
    THROTTLE_SECONDS,
    WORKSPACE,
    Line,
    Provider,
    Tape,
    says,
    text,
)

pytestmark = pytest.mark.lifecycle

WORDS = [f"word{number} " for number in range(12)]


class Copies:
    """A copy of the state directory after every step on disk, with what had been told by then."""

    def __init__(self, live: Path, copies: Path) -> None:
        self.live = live
        self.copies = copies
        self.at: list[tuple[Path, Step, list[str], str]] = []
        self.tape: Tape | None = None

    def __call__(self, step: Step) -> None:
        path = self.copies / f"{len(self.at):03}"
        shutil.copytree(self.live, path)
        types = [] if self.tape is None else self.tape.types
        said = "" if self.tape is None else self.tape.said
        self.at.append((path, step, types, said))


def content(row: Row) -> str:
    return "".join(part.text for part in row.parts if isinstance(part, TextPart))


async def load_with_a_fresh_engine(state: Path) -> list[Row]:
    """Recover, and read. Twice: what a recovery makes must not change with the next one."""
    found: list[list[Row]] = []
    for _ in range(2):
        history = FileHistory(state, io="inline")
        await StreamEngine(history=history, provider=Provider(says(FINISH))).recover()
        found.append(await history.read(WORKSPACE))
    assert found[0] == found[1]
    return found[0]


async def play(
    rt: fb.Runtime,
    clock: TestClock,
    tmp_path: Path,
    end: Callable[[Line, StreamEngine, AppScope], fb.Effect[object]],
) -> Copies:
    """One stream, a word every 100 ms, ended as the test says; a copy of the disk at each step."""
    copies = Copies(tmp_path / "live", tmp_path / "copies")
    history = FileHistory(tmp_path / "live", io="inline", on_step=copies)
    scope = AppScope()
    line = Line()
    engine = StreamEngine(history=history, provider=Provider(line), scope=scope)
    copies.tape = Tape(engine)
    handle = await rt.run(engine.start_stream(WORKSPACE, StreamRequest(text="Hi")))
    for word in WORDS:
        line.give(text(word))
        await rt.run(clock.adjust(THROTTLE_SECONDS / 5))
    await rt.run(end(line, engine, scope))
    await rt.run(handle.completion)
    return copies


def completes(line: Line, _engine: StreamEngine, _scope: AppScope) -> fb.Effect[object]:
    line.give(TEXT_END, FINISH)
    line.end()
    return fb.Effect.succeed(None)


def fails(line: Line, _engine: StreamEngine, _scope: AppScope) -> fb.Effect[object]:
    line.fail(ConnectionError("reset"))
    return fb.Effect.succeed(None)


def is_stopped(_line: Line, engine: StreamEngine, _scope: AppScope) -> fb.Effect[object]:
    return engine.stop_stream(WORKSPACE, reason="user")


def is_closed(_line: Line, _engine: StreamEngine, scope: AppScope) -> fb.Effect[object]:
    return scope.close()


@pytest.mark.spec("VA13", "P12")
@pytest.mark.parametrize("end", [completes, fails, is_stopped, is_closed])
async def test_after_a_crash_at_any_step_the_conversation_is_whole(
    rt: fb.Runtime,
    clock: TestClock,
    tmp_path: Path,
    end: Callable[[Line, StreamEngine, AppScope], fb.Effect[object]],
) -> None:
    """The user row once, the answer at most once, its text at most one interval short."""
    copies = await play(rt, clock, tmp_path, end)
    assert len(copies.at) > 12

    for path, step, types, said in copies.at:
        rows = await load_with_a_fresh_engine(path)
        users = [row for row in rows if isinstance(row, UserRow)]
        answers = [row for row in rows if isinstance(row, AssistantRow)]
        where = (path.name, step, types)
        assert len(answers) <= 1, where
        if types:
            assert len(users) == 1, where
        kept = "".join(content(row) for row in answers)
        assert "".join(WORDS).startswith(kept), where
        # The interval holds five words, and the one that comes with its end may be on the way.
        missing = said[len(kept) :].split()
        assert len(missing) <= 6, where


@pytest.mark.spec("VA13")
async def test_a_kill_between_the_steps_of_an_abort_yields_the_same_single_row(
    rt: fb.Runtime, clock: TestClock, tmp_path: Path
) -> None:
    """After the last partial is written, after its row is, and after the partial is removed."""
    copies = await play(rt, clock, tmp_path, is_closed)
    steps = [step for _, step, _, _ in copies.at]
    # To the partial's log, then to the rows.
    last_write, last_append = [at for at, step in enumerate(steps) if step == "appended"][-2:]
    last_removal = len(steps) - 1 - steps[::-1].index("removed")
    assert last_write < last_append < last_removal

    found: list[list[tuple[str, str]]] = []
    for index in (last_write, last_append, last_removal):
        rows = await load_with_a_fresh_engine(copies.at[index][0])
        found.append([(row.id, content(row)) for row in rows])

    assert found[0] == found[1] == found[2]
    assert [said for _, said in found[0]] == ["Hi", "".join(WORDS)]


@pytest.mark.spec("P12", "BT2")
async def test_a_workspace_goes_on_after_a_crash_at_any_step(
    rt: fb.Runtime, clock: TestClock, tmp_path: Path
) -> None:
    """Without a recovery: the next message finds a place, and no sequence comes twice."""
    copies = await play(rt, clock, tmp_path, completes)

    for path, step, _, _ in copies.at:
        history = FileHistory(path, io="inline")
        answer = says(text("next answer"), FINISH)
        engine = StreamEngine(history=history, provider=Provider(answer))
        handle = await rt.run(engine.start_stream(WORKSPACE, StreamRequest(text="next")))
        assert (await rt.run(handle.completion)).status == "completed", (path.name, step)
        rows = await rt.run(history.read(WORKSPACE))
        sequences = [row.metadata.history_sequence for row in rows]
        assert len(set(sequences)) == len(sequences), (path.name, step)
        assert [content(row) for row in rows][-2:] == ["next", "next answer"], (path.name, step)
