"""Standard output: where a conversation is written as it comes, and other commands at once."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Final, final

from .errors import HostError
from .program import complain
from .text import for_terminal

LEAVE_SECONDS: Final = 0.5
"""How long the last line waits for a reader."""


@final
class Terminal:
    """Writes what a model says. On a thread: a reader that doesn't read must not hold up the rest,
    least of all the commit after a Ctrl-C.
    """

    def __init__(self) -> None:
        self._at_line_start = True

    async def write(self, text: str) -> None:
        """Raises as ``write_out``."""
        shown = for_terminal(text)
        if shown:
            self._at_line_start = shown.endswith("\n")
            await asyncio.to_thread(write_out, shown)

    async def end_line(self) -> None:
        """So that what comes next begins on a line of its own."""
        if not self._at_line_start:
            await self.write("\n")

    async def leave(self, last_words: str | None) -> None:
        """The end of the conversation; ``last_words`` go to standard error. Bounded: the reader of
        the output may have stopped reading.
        """
        try:
            async with asyncio.timeout(LEAVE_SECONDS):
                await self.end_line()
        except TimeoutError:
            pass
        finally:
            if last_words is not None:
                complain(last_words)


def write_out(text: str) -> None:
    """To standard output, at once. Raises BrokenPipeError where nobody reads any more, HostError
    where it takes nothing: it is closed, or a file on a full disk.
    """
    if sys.stdout is None:
        raise HostError("standard output is closed: there is nowhere to write to")
    # An encoding that lacks a character must not keep the rest from being shown.
    data = text.encode(sys.stdout.encoding or "utf-8", "replace")
    try:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        give_up_output()
        raise HostError(f"standard output can't be written: {error.strerror}") from error


def give_up_output() -> None:
    """Nobody reads: what is buffered goes nowhere, and the exit of Python says nothing."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
    os.close(devnull)


def writes_to_terminal() -> bool:
    """Whether standard output is a terminal."""
    return sys.stdout is not None and sys.stdout.isatty()
