"""Dumps that nobody's code asks for: SIGQUIT, a second Ctrl-C, the end of a budget."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from fibers.dump import dump_on_signal, emit, write_dump
from tests.app.test_run_main import PROLOGUE, WAITING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.lifecycle,
    pytest.mark.skipif(not hasattr(signal, "SIGQUIT"), reason="there is no such signal here"),
]

WAIT_SECONDS = 30

# Holds the loop until there is a file.
BLOCKED = """
import os, time

@fb.effect
async def holds_the_loop():
    say("blocked")
    while not os.path.exists(__file__ + ".go"):
        time.sleep(0.005)

fb.run_main(holds_the_loop(), budget=600)
"""

LOOKING_AFTERWARDS = """
import signal

before = signal.getsignal(signal.SIGQUIT)  # ignored where a shell started it in the background
try:
    fb.run_main(Effect.succeed(None))
finally:
    say(signal.getsignal(signal.SIGQUIT) is before)
"""

FULL_STANDARD_ERROR = """
import fcntl, os

@fb.effect
async def main():
    os.set_blocking(2, False)
    try:
        while True:
            os.write(2, b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(2, True)
    with fb.uninterruptible():
        say("ready")
        while not fb.current_fiber().cancelling():
            await fb.sleep(0.005)
        say("first signal seen")
        await Effect.never()

fb.run_main(main(), budget=600)
"""


class Program:
    """A script in a process of its own."""

    def __init__(self, folder: Path, source: str) -> None:
        self.path = folder / "program.py"
        self.path.write_text(PROLOGUE + source, encoding="utf-8")
        self.process = subprocess.Popen(
            [sys.executable, str(self.path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def await_line(self, expected: str) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == f"{expected}\n"

    def await_error(self, words: str) -> str:
        """Standard error up to the line with these words."""
        assert self.process.stderr is not None
        seen = ""
        while words not in seen:
            line = self.process.stderr.readline()
            assert line, seen
            seen += line
        return seen

    def end(self) -> tuple[int, str, str]:
        output, errors = self.process.communicate(timeout=WAIT_SECONDS)
        return self.process.returncode, output, errors


@pytest.fixture
def start(tmp_path: Path) -> Iterator[list[Program]]:
    """The programs that a test has started; none is left."""
    started = list[Program]()
    yield started
    for program in started:
        program.process.kill()
        program.process.communicate(timeout=WAIT_SECONDS)


def begin(started: list[Program], folder: Path, source: str) -> Program:
    program = Program(folder, source)
    started.append(program)
    return program


@pytest.mark.slow
def test_sigquit_writes_a_dump_and_the_program_goes_on(
    start: list[Program], tmp_path: Path
) -> None:
    program = begin(start, tmp_path, WAITING)
    program.await_line("ready")

    program.process.send_signal(signal.SIGQUIT)
    errors = program.await_error("in main")
    program.process.send_signal(signal.SIGTERM)
    code, output, _ = program.end()

    assert errors.startswith("SIGQUIT: what is alive\n1 live fiber: 1 ")
    assert (code, output) == (143, "finalized\n")


@pytest.mark.slow
def test_sigquit_shows_what_holds_the_loop(start: list[Program], tmp_path: Path) -> None:
    """While it does."""
    program = begin(start, tmp_path, BLOCKED)
    program.await_line("blocked")

    program.process.send_signal(signal.SIGQUIT)
    errors = program.await_error("in holds_the_loop")
    (tmp_path / "program.py.go").touch()
    code, _, _ = program.end()

    assert "1 live fiber: 1 running" in errors
    # The signal may come a line before it waits.
    first = PROLOGUE.count("\n") + BLOCKED[: BLOCKED.index("say(")].count("\n") + 1
    lines = [f"program.py:{line} in holds_the_loop" for line in range(first, first + 3)]
    assert any(line in errors for line in lines)
    assert code == 0


@pytest.mark.slow
@pytest.mark.spec("EX12")
def test_a_second_ctrl_c_leaves_after_a_dump_though_the_loop_is_blocked(
    start: list[Program], tmp_path: Path
) -> None:
    """With what blocks it in the dump."""
    program = begin(start, tmp_path, BLOCKED)
    program.await_line("blocked")

    program.process.send_signal(signal.SIGINT)
    program.process.send_signal(signal.SIGQUIT)
    program.await_error("in holds_the_loop")  # so that the first one has been seen
    program.process.send_signal(signal.SIGINT)
    code, _, errors = program.end()

    assert code == 130
    assert "second signal (SIGINT): leaving\n" in errors
    assert "in holds_the_loop" in errors


@pytest.mark.slow
@pytest.mark.spec("EX12")
def test_a_standard_error_that_nobody_reads_does_not_hold_up_the_leaving(
    start: list[Program], tmp_path: Path
) -> None:
    """The pipe is full; the dump is given up, the process is not."""
    program = begin(start, tmp_path, FULL_STANDARD_ERROR)
    program.await_line("ready")

    program.process.send_signal(signal.SIGINT)
    program.await_line("first signal seen")
    program.process.send_signal(signal.SIGINT)

    assert program.process.wait(WAIT_SECONDS) == 130


@pytest.mark.slow
def test_after_run_main_sigquit_is_what_it_was(start: list[Program], tmp_path: Path) -> None:
    program = begin(start, tmp_path, LOOKING_AFTERWARDS)
    program.await_line("True")

    assert program.end()[0] == 0


def test_outside_the_main_thread_nothing_is_installed() -> None:
    """Python allows it nowhere else."""
    before = signal.getsignal(signal.SIGQUIT)
    inside = list[object]()

    def run() -> None:
        with dump_on_signal():
            inside.append(signal.getsignal(signal.SIGQUIT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(WAIT_SECONDS)

    assert inside == [before]


def test_without_a_standard_error_there_is_no_dump_and_no_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stderr", None)

    write_dump("nobody hears")


def test_a_standard_error_that_is_no_file_gets_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    said = io.StringIO()
    monkeypatch.setattr(sys, "stderr", said)

    write_dump("why")

    assert said.getvalue().startswith("why\n")


def test_a_dump_that_fails_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last words of a process: some are better than none."""

    def broken() -> str:
        raise ValueError("no")

    said = io.StringIO()
    monkeypatch.setattr(sys, "stderr", said)
    monkeypatch.setattr(emit, "dump", broken)

    write_dump("why")

    assert said.getvalue() == "why\nno dump: ValueError: no\n"


def test_what_is_written_whole_is_written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the file itself, in however many pieces it takes."""
    reader, writer = os.pipe()
    with os.fdopen(writer, "w", encoding="utf-8") as file:
        monkeypatch.setattr(sys, "stderr", file)
        write_dump("why")
        monkeypatch.undo()
    with os.fdopen(reader, encoding="utf-8") as file:
        assert file.read().startswith("why\n")
