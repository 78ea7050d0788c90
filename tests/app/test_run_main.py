"""Probes EX12: the exit codes of run_main, in real processes with real signals."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

import fibers as fb
from fibers import Effect

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.lifecycle

# Every program of this file: its own body between imports and run_main.
PROLOGUE = """\
import asyncio
import fibers as fb
from fibers import Effect

def say(text):
    print(text, flush=True)
"""

WAITING = """
@fb.effect
async def main():
    try:
        say("ready")
        await Effect.never()
    finally:
        await fb.sleep(0.01)
        say("finalized")

fb.run_main(main())
"""

# No interrupt ends it; the budget is 0.2 s.
STUCK = """
@fb.effect
async def stuck_in_a_region():
    with fb.uninterruptible():
        say("ready")
        await Effect.never()

fb.run_main(stuck_in_a_region(), budget=0.2)
"""

# Its finally never ends, and the budget of ten minutes is longer than a test is willing to wait.
STUCK_IN_FINALLY = """
@fb.effect
async def stuck_in_finally():
    try:
        say("ready")
        await Effect.never()
    finally:
        say("first signal seen")
        await Effect.never()

fb.run_main(stuck_in_finally(), budget=600)
"""

LOOKING_AT_THE_WAKEUP = """
import signal

@fb.effect
async def main():
    number = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(number)
    say(number != -1)

fb.run_main(main())
"""

EITHER_SIGNAL = pytest.mark.parametrize(
    ("number", "expected"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143)],
    ids=["SIGINT", "SIGTERM"],
)

WAIT_SECONDS = 30


class Program:
    """A script in a process of its own."""

    def __init__(self, folder: Path, source: str) -> None:
        path = folder / "program.py"
        path.write_text(PROLOGUE + source, encoding="utf-8")
        self._process = subprocess.Popen(
            [sys.executable, str(path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def await_line(self, expected: str) -> None:
        """Block until the program has written this line to standard output."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline().rstrip("\n")
        if line != expected:
            _, errors = self._process.communicate(timeout=WAIT_SECONDS)
            pytest.fail(f"expected {expected!r}, got {line!r}; standard error:\n{errors}")

    def send(self, number: signal.Signals) -> None:
        """Send a signal to this process only."""
        self._process.send_signal(number)

    def end(self) -> tuple[int, str, str]:
        """Wait for the end: exit code, the rest of standard output, standard error."""
        output, errors = self._process.communicate(timeout=WAIT_SECONDS)
        return self._process.returncode, output, errors

    def close(self) -> None:
        """Leave no process behind, whatever the test did."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate(timeout=WAIT_SECONDS)


class Programs:
    """Starts programs, and ends those that a test left running."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: list[Program] = []

    def start(self, source: str) -> Program:
        """Start a program."""
        program = Program(self._folder, source)
        self._started.append(program)
        return program

    def close(self) -> None:
        """End all of them."""
        for program in self._started:
            program.close()


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Programs]:
    """A starter of programs that cleans up behind the test."""
    starter = Programs(tmp_path)
    yield starter
    starter.close()


# ---- ends without a signal


@pytest.mark.spec("EX12")
def test_a_success_exits_with_0(programs: Programs) -> None:
    """Whatever the value."""
    code, _, _ = programs.start("fb.run_main(Effect.succeed(5))").end()

    assert code == 0


@pytest.mark.spec("EX12")
def test_run_main_does_not_return(programs: Programs) -> None:
    """The process ends inside the call."""
    source = 'fb.run_main(Effect.sync(lambda: say("ran")))\nsay("returned")'

    _, output, _ = programs.start(source).end()

    assert output == "ran\n"


@pytest.mark.spec("EX12")
def test_a_fail_exits_with_1(programs: Programs) -> None:
    """An expected error that nobody handled."""
    code, _, _ = programs.start('fb.run_main(Effect.fail(ValueError("no such user")))').end()

    assert code == 1


@pytest.mark.spec("EX12")
def test_a_die_exits_with_1(programs: Programs) -> None:
    """A defect."""
    code, _, _ = programs.start('fb.run_main(Effect.die(ValueError("broken")))').end()

    assert code == 1


@pytest.mark.spec("EX12")
@pytest.mark.parametrize("kind", ["fail", "die"])
def test_a_failure_is_named_on_standard_error(programs: Programs, kind: str) -> None:
    """An exit code alone would tell nobody what went wrong."""
    source = f'fb.run_main(Effect.{kind}(ValueError("no such user")))'

    _, _, errors = programs.start(source).end()

    assert "no such user" in errors


@pytest.mark.spec("EX12")
def test_finalizers_run_before_a_failed_program_exits(programs: Programs) -> None:
    """The exit code does not cut them."""
    source = """
@fb.effect
async def main():
    try:
        raise ValueError("broken")
    finally:
        await fb.sleep(0.01)
        say("finalized")

fb.run_main(main())
"""

    code, output, _ = programs.start(source).end()

    assert (code, output) == (1, "finalized\n")


# ---- a signal, and a graceful end


@pytest.mark.spec("EX12")
@EITHER_SIGNAL
def test_a_signal_interrupts_main_and_waits_for_its_finalizers(
    programs: Programs, number: signal.Signals, expected: int
) -> None:
    """130 for SIGINT, 143 for SIGTERM."""
    program = programs.start(WAITING)
    program.await_line("ready")

    program.send(number)
    code, output, _ = program.end()

    assert (code, output) == (expected, "finalized\n")


@pytest.mark.spec("EX12")
@EITHER_SIGNAL
def test_a_graceful_end_prints_no_traceback(
    programs: Programs, number: signal.Signals, expected: int
) -> None:
    """Somebody asked for it: nothing went wrong."""
    program = programs.start(WAITING)
    program.await_line("ready")

    program.send(number)
    code, _, errors = program.end()

    assert code == expected
    assert "Traceback" not in errors


@pytest.mark.spec("EX12")
def test_a_signal_finalizes_detached_fibers_too(programs: Programs) -> None:
    """The root scope closes, not main alone."""
    source = """
@fb.effect
async def background():
    try:
        await Effect.never()
    finally:
        say("background finalized")

@fb.effect
async def main():
    await background().fork_detach(start_immediately=True)
    say("ready")
    await Effect.never()

fb.run_main(main())
"""
    program = programs.start(source)
    program.await_line("ready")

    program.send(signal.SIGTERM)
    code, output, _ = program.end()

    assert (code, output) == (143, "background finalized\n")


@pytest.mark.spec("EX12")
def test_a_signal_waits_for_a_masked_part_within_the_budget(programs: Programs) -> None:
    """It ends by itself in time."""
    source = """
@fb.effect
async def main():
    with fb.uninterruptible():
        say("ready")
        await fb.sleep(0.2)
        say("masked part done")
    await Effect.never()

fb.run_main(main())
"""
    program = programs.start(source)
    program.await_line("ready")

    program.send(signal.SIGTERM)
    code, output, _ = program.end()

    assert (code, output) == (143, "masked part done\n")


@pytest.mark.spec("EX12", "PD2")
def test_a_main_that_swallows_the_signal_and_returns_still_exits_with_its_number(
    programs: Programs,
) -> None:
    """Its value is dropped, as for any interrupt."""
    source = """
@fb.effect
async def main():
    try:
        say("ready")
        await Effect.never()
    except asyncio.CancelledError:
        return 0

fb.run_main(main())
"""
    program = programs.start(source)
    program.await_line("ready")

    program.send(signal.SIGTERM)
    code, _, _ = program.end()

    assert code == 143


@pytest.mark.spec("EX12")
def test_a_signal_reaches_a_program_that_never_suspends(programs: Programs) -> None:
    """The op budget gives the loop its turns."""
    source = """
fb.run_main(Effect.sync(lambda: say("ready")).flat_map(
    lambda _: Effect.sync(lambda: None).forever()
))
"""
    program = programs.start(source)
    program.await_line("ready")

    program.send(signal.SIGTERM)
    code, _, _ = program.end()

    assert code == 143


# ---- where it can't run


def test_inside_a_running_loop_it_says_what_to_do() -> None:
    async def inside() -> None:
        with pytest.raises(RuntimeError, match="inside a running event loop: await the effect"):
            fb.run_main(Effect.succeed(1))

    asyncio.run(inside())


def test_in_a_thread_it_says_what_to_do() -> None:
    """Python tells signals to the main thread alone."""
    errors = list[BaseException]()

    def elsewhere() -> None:
        try:
            fb.run_main(Effect.succeed(1))
        except RuntimeError as exc:
            errors.append(exc)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()

    assert "in another thread use run()" in str(errors[0])


# ---- a signal, and no graceful end


@pytest.mark.spec("EX12")
@EITHER_SIGNAL
def test_an_exceeded_budget_exits_with_the_same_number(
    programs: Programs, number: signal.Signals, expected: int
) -> None:
    """0.2 s after the signal the process goes, whatever is still alive."""
    program = programs.start(STUCK)
    program.await_line("ready")

    program.send(number)
    code, _, _ = program.end()

    assert code == expected


@pytest.mark.spec("EX12", "PD11")
def test_an_exceeded_budget_dumps_what_is_left(programs: Programs) -> None:
    """The body that would not end stands in it."""
    program = programs.start(STUCK)
    program.await_line("ready")

    program.send(signal.SIGTERM)
    _, _, errors = program.end()

    assert "program.py" in errors or "stuck_in_a_region" in errors


@pytest.mark.spec("EX12")
@EITHER_SIGNAL
def test_a_second_signal_exits_with_the_same_number(
    programs: Programs, number: signal.Signals, expected: int
) -> None:
    """At once: the rest of the budget is not waited for."""
    program = programs.start(STUCK_IN_FINALLY)
    program.await_line("ready")

    program.send(number)
    program.await_line("first signal seen")
    program.send(number)
    code, _, _ = program.end()

    assert code == expected


@pytest.mark.spec("EX12", "PD11")
def test_a_second_signal_dumps_what_is_left(programs: Programs) -> None:
    """The body that would not end stands in it."""
    program = programs.start(STUCK_IN_FINALLY)
    program.await_line("ready")

    program.send(signal.SIGTERM)
    program.await_line("first signal seen")
    program.send(signal.SIGTERM)
    _, _, errors = program.end()

    assert "program.py" in errors or "stuck_in_finally" in errors


@pytest.mark.spec("EX12")
def test_a_signal_wakes_a_loop_that_is_about_to_sleep(programs: Programs) -> None:
    """The interpreter writes it to a socket that the loop reads; else it could sleep on it."""
    program = programs.start(LOOKING_AT_THE_WAKEUP)
    program.await_line("True")
    code, _, _ = program.end()

    assert code == 0


# ---- run, which has no exit code but the same end


@pytest.mark.slow
@pytest.mark.spec("PD11")
def test_run_returns_though_a_fiber_stays_masked_and_dumps_it(programs: Programs) -> None:
    """Its shutdown is bounded; the value is there all the same."""
    source = """
@fb.effect
async def stuck_in_a_region():
    with fb.uninterruptible():
        await Effect.never()

@fb.effect
async def main():
    await stuck_in_a_region().fork_detach(start_immediately=True)
    return 5

say(f"returned {fb.run(main())}")
"""

    code, output, errors = programs.start(source).end()

    assert (code, output) == (0, "returned 5\n")
    assert "program.py" in errors or "stuck_in_a_region" in errors


# ---- ends that are neither a value nor a signal


@pytest.mark.spec("EX12")
@pytest.mark.parametrize(
    ("raised", "expected"),
    [("SystemExit(7)", 7), ("KeyboardInterrupt()", 130)],
    ids=["SystemExit", "KeyboardInterrupt"],
)
def test_what_ends_a_process_by_exception_keeps_its_code(
    programs: Programs, raised: str, expected: int
) -> None:
    """As Python's own exit does; finalizers run first, and nothing is printed (PD7)."""
    source = f"""
@fb.effect
async def main():
    try:
        await fb.sleep(0.01)
        raise {raised}
    finally:
        await fb.sleep(0.01)
        say("finalized")

fb.run_main(main())
"""

    code, output, errors = programs.start(source).end()

    assert (code, output, errors) == (expected, "finalized\n", "")


@pytest.mark.spec("EX12")
def test_a_main_that_interrupts_itself_exits_with_1_and_says_so(programs: Programs) -> None:
    """No signal asked for it: something in the program did."""
    code, _, errors = programs.start("fb.run_main(Effect.interrupt())").end()

    assert code == 1
    assert errors.startswith("interrupted: Cause([Interrupt(by=")


OWN_LOOP = """
import os, signal

class Policy(asyncio.DefaultEventLoopPolicy):
    def new_event_loop(self):
        {then}
        return super().new_event_loop()

asyncio.set_event_loop_policy(Policy())
"""
"""The last moment before there is a loop belongs to the program too."""


@pytest.mark.spec("EX12")
@EITHER_SIGNAL
def test_a_signal_before_there_is_a_loop_ends_it_before_it_begins(
    programs: Programs, number: signal.Signals, expected: int
) -> None:
    """Nothing of main runs."""
    source = OWN_LOOP.format(then=f"os.kill(os.getpid(), {int(number)})")
    source += 'fb.run_main(Effect.sync(lambda: say("main")))'

    code, output, _ = programs.start(source).end()

    assert (code, output) == (expected, "")


@pytest.mark.spec("EX12")
def test_a_program_without_a_loop_raises_and_has_its_signals_back(programs: Programs) -> None:
    """It never ran: there is no exit code to leave with."""
    source = OWN_LOOP.format(then='raise OSError("too many open files")')
    source += """
try:
    fb.run_main(Effect.succeed(1))
except OSError as exc:
    say(exc)
    say(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)
"""

    code, output, _ = programs.start(source).end()

    assert (code, output) == (0, "too many open files\nTrue\n")
