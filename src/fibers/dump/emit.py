"""A dump on standard error, from a signal handler too."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from fibers.dump.render import dump
from fibers.threads import threads_waited_for

if TYPE_CHECKING:
    from types import FrameType

WRITE_SECONDS: Final = 1.0
"""For a reader of standard error that doesn't read: who leaves must not wait for it."""


def write_dump(why: str, *, threads: bool = False) -> None:
    """Write what is alive, below ``why``, to standard error; with ``threads`` also those that the
    end of the process would wait for. Never raises; bounded in time.

    Not through ``print``: a signal handler may run in the middle of another write, and the buffer
    refuses the second one.
    """
    try:
        lines = [f"thread {line}" for line in threads_waited_for()] if threads else []
        text = "\n".join([why, dump(), *lines, ""])
    except Exception as exc:  # noqa: BLE001  # the last words of a process: some are better than none
        text = f"{why}\nno dump: {type(exc).__name__}: {exc}\n"
    data = text.encode("utf-8", "backslashreplace")
    briefly(lambda: _write(data))


def briefly(write: Callable[[], object]) -> None:
    """Call what may wait for a reader, on a thread, and wait for it only as long as the dump may.
    What it raises is nobody's business any more.
    """

    def call() -> None:
        with contextlib.suppress(Exception):
            write()

    writer = threading.Thread(target=call, name="last words", daemon=True)
    writer.start()
    writer.join(WRITE_SECONDS)


def _write(data: bytes) -> None:
    try:
        handle = sys.stderr.fileno()
    except (OSError, ValueError, AttributeError):
        sys.stderr.write(data.decode())  # no file: a window, a service's own
        return
    while data:
        data = data[os.write(handle, data) :]


@contextmanager
def dump_on_signal() -> Generator[None]:
    """Inside: SIGQUIT (Ctrl-\\) writes a dump and nothing else happens. Where there is that signal,
    and in the main thread only.

    The handler is Python's own: it runs also while the loop is blocked, as soon as the interpreter
    is back from whatever it called.
    """
    number = getattr(signal, "SIGQUIT", None)
    if number is None or threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        write_dump("SIGQUIT: what is alive")

    before = signal.signal(number, on_signal)
    try:
        yield
    finally:
        signal.signal(number, before)
