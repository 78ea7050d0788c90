"""Child: one process in a session of its own, ended with its whole group."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process, SubprocessStreamProtocol
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, final

import fibers as fb

from .identity import MARK_VARIABLE, ProcessIdentity, identify, marked, members

TERM_SECONDS: Final = 0.1
"""Between the polite signal and the one that nobody can ignore."""
LOOK_SECONDS: Final = 0.01
GONE_SECONDS: Final = 1.0
"""How long the end of a killed group is waited for."""
MAX_LINE_BYTES: Final = 1 << 20

_SWEEPS: Final = 50
_INHERITED: Final = ("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR", "TZ", "USER")


def small_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """What a child gets of our environment: what programs need to run, and none of our secrets."""
    kept = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    return {"PATH": os.defpath, **kept, "TERM": "dumb", **(extra or {})}


class _Protocol(SubprocessStreamProtocol):
    """Tells when the process has ended. The base's own wait() goes on until nobody holds its output
    any more, and what a process left in the background holds it too.
    """

    def __init__(self, limit: int, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(limit=limit, loop=loop)
        self.exited = asyncio.Event()

    def process_exited(self) -> None:
        super().process_exited()
        self.exited.set()


@final
class Child:
    """A process that was started. Whoever started it sees to it that ``kill`` is called.

    child = await Child.start(["sh", "-c", "make"], folder=folder, merge_output=True)
    """

    def __init__(
        self,
        transport: asyncio.SubprocessTransport,
        process: Process,
        exited: asyncio.Event,
        mark: str,
    ) -> None:
        self._transport = transport
        self._process = process
        self._exited = exited
        self._mark = mark
        self._is_ended = False
        self._killing = asyncio.Lock()
        self.pid: int = process.pid
        found = identify(process.pid)
        self.identity: ProcessIdentity | None = (
            None if found is None else found.model_copy(update={"mark": mark})
        )
        """None where it had ended before anybody could look."""

    @staticmethod
    async def start(
        arguments: Sequence[str],
        *,
        folder: Path,
        environment: Mapping[str, str] | None = None,
        with_input: bool = False,
        merge_output: bool = False,
    ) -> Child:
        """Start it in a session, and so in a group, of its own. Raises OSError."""
        value = secrets.token_hex(8)
        loop = asyncio.get_running_loop()
        transport, protocol = await loop.subprocess_exec(
            lambda: _Protocol(limit=MAX_LINE_BYTES, loop=loop),
            *arguments,
            stdin=PIPE if with_input else DEVNULL,
            stdout=PIPE,
            stderr=STDOUT if merge_output else DEVNULL,
            cwd=folder,
            env=small_environment({**(environment or {}), MARK_VARIABLE: value}),
            start_new_session=True,
        )
        process = Process(transport, protocol, loop)
        return Child(transport, process, protocol.exited, f"{MARK_VARIABLE}={value}")

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative: the signal that ended it."""
        return self._transport.get_returncode()

    @property
    def output(self) -> asyncio.StreamReader:
        assert self._process.stdout is not None
        return self._process.stdout

    async def write_line(self, line: bytes) -> None:
        """Raises OSError where nobody reads any more."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + b"\n")
        await self._process.stdin.drain()

    def close_input(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()

    async def wait(self) -> int:
        """Its exit code, once it has ended; whatever it started may go on."""
        await self._exited.wait()
        return self._transport.get_returncode() or 0

    def close(self) -> None:
        """Read no more of it. What it wrote and nobody read is lost."""
        self._transport.close()

    def signal_group(self, number: signal.Signals) -> None:
        """To all that are left of its group."""
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):
            pass  # nobody is left

    @fb.effect
    async def kill(self, *, term_seconds: float = TERM_SECONDS) -> None:
        """End the whole group: SIGTERM, and after ``term_seconds`` SIGKILL; then what of it has
        left the group. Reaps the child. On the clock in context; once is enough.

        Not to be interrupted (run it masked): half a kill leaves processes that nobody knows of.
        """
        async with self._killing:
            if not self._is_ended:  # later its number may be somebody else's
                await self._kill(term_seconds)
                self._is_ended = True

    async def _kill(self, term_seconds: float) -> None:
        self.close_input()
        self.signal_group(signal.SIGTERM)
        if not await self._gone_within(term_seconds):
            self.signal_group(signal.SIGKILL)
            await self._gone_within(GONE_SECONDS)
        for _ in range(_SWEEPS):
            left = await asyncio.to_thread(marked, self._mark)
            if not left:
                break
            for pid in left:
                _kill_one(pid)
            await fb.sleep(LOOK_SECONDS)
        if identify(self.pid) is None:
            await self._exited.wait()

    async def _gone_within(self, seconds: float) -> bool:
        clock = await fb.current_clock()
        until = clock.now() + seconds
        while self._has_group() and len(await asyncio.to_thread(members, self.pid)) > 0:
            if clock.now() >= until:
                return False
            await fb.sleep(LOOK_SECONDS)
        return True

    def _has_group(self) -> bool:
        # Cheap, but true also of zombies that whoever inherited them doesn't reap.
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        return True


def _kill_one(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass  # it has just ended
