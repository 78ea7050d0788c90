"""Records of child processes, on disk: the next process finds what this one left running."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from typing import Final, final

import structlog

import fibers as fb
from streamengine.history.directory import DurableDirectory
from streamengine.model.errors import HistoryError

from .identity import ProcessIdentity, is_alive, marked

LOOK_SECONDS: Final = 0.02
DEATH_SECONDS: Final = 1.0
"""How long the death of a killed process is waited for."""

_SUFFIX: Final = ".json"
_log = structlog.get_logger("turns.process.records")


@final
class ProcessRecords:
    """One file a process. It is removed when that very process is known to be dead, not before."""

    def __init__(
        self,
        directory: DurableDirectory,
        *,
        is_alive: Callable[[ProcessIdentity], bool] = is_alive,
    ) -> None:
        self._directory = directory
        self._is_alive = is_alive

    @fb.effect(raises=HistoryError)
    async def add(self, process: ProcessIdentity) -> None:
        """Durable when it returns."""
        await asyncio.to_thread(self._write, process)

    @fb.effect(raises=HistoryError)
    async def all(self) -> list[ProcessIdentity]:
        """Those whose death is not confirmed. A file that is none is left, with a warning."""
        return await asyncio.to_thread(self._read)

    @fb.effect(raises=HistoryError)
    async def forget(self, process: ProcessIdentity) -> bool:
        """Remove the record if that process is dead. False, and it stays, where it isn't."""
        if self._is_alive(process):
            return False
        await asyncio.to_thread(self._remove, process)
        return True

    @fb.effect
    async def note(self, process: ProcessIdentity | None) -> None:
        """``add`` for who goes on without a record too: that is logged. None: it has ended."""
        exit_ = None if process is None else await self.add(process).exit()
        if isinstance(exit_, fb.Failure):
            _log.warning("no record of a child process", error=str(exit_.failure().squash()))

    @fb.effect
    async def strike(self, process: ProcessIdentity | None) -> None:
        """``forget`` for who can't do more about it: at the next start it is looked at again."""
        if process is not None:
            await self.forget(process).exit()

    @fb.effect(raises=HistoryError)
    async def end_left_over(self) -> list[ProcessIdentity]:
        """End what an earlier process left running, and all that was started by it, also where it
        has ended itself; gives those that are still not dead.

        Never by the number alone: a process with another start time is somebody else's.
        """
        left: list[ProcessIdentity] = []
        for process in await self.all():
            if self._is_alive(process):
                _kill(process)
            if not await self._ended(process) or not await self.forget(process):
                left.append(process)
                _log.warning(
                    "an old child process does not end; its record is kept",
                    pid=process.pid,
                    name=process.name,
                    wayOut="End it by hand; the record goes at the next start.",
                )
        return left

    async def _ended(self, process: ProcessIdentity) -> bool:
        """Whether it is dead, and all that bears its mark, within ``DEATH_SECONDS``."""
        clock = await fb.current_clock()
        until = clock.now() + DEATH_SECONDS
        while await asyncio.to_thread(_kill_marked, process) or self._is_alive(process):
            if clock.now() >= until:
                return False
            await fb.sleep(LOOK_SECONDS)
        return True

    def _write(self, process: ProcessIdentity) -> None:
        with self._directory.made() as directory:
            directory.replace(_name_of(process), process.to_json().encode(), durable=True)

    def _read(self) -> list[ProcessIdentity]:
        found: list[ProcessIdentity] = []
        with self._directory.opened() as directory:
            for name in [] if directory is None else directory.names():
                if not name.endswith(_SUFFIX) or directory is None:
                    continue
                try:
                    content = directory.read(name)
                    if content is not None:
                        found.append(ProcessIdentity.model_validate_json(content.data))
                except (HistoryError, ValueError) as error:
                    _log.warning(
                        "a record of a child process can't be read",
                        path=str(self._directory.path / name),
                        wayOut="Look whether such a process runs, then remove the file.",
                        error=str(error),
                    )
        return found

    def _remove(self, process: ProcessIdentity) -> None:
        with self._directory.opened() as directory:
            if directory is not None:
                directory.remove(_name_of(process), durable=True)


def _name_of(process: ProcessIdentity) -> str:
    return f"{process.pid}-{process.start_ticks}{_SUFFIX}"


def _kill_marked(process: ProcessIdentity) -> bool:
    """Whether there was something left of what it started. Who is killed may start others before
    that: once is not enough.
    """
    found = [] if process.mark is None else marked(process.mark)
    # Not this process, should a command of the one before have started it.
    left = [pid for pid in found if pid != os.getpid()]
    for pid in left:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    return bool(left)


def _kill(process: ProcessIdentity) -> None:
    try:
        # Its group where it leads one, as our children do.
        if os.getpgid(process.pid) == process.pid:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            os.kill(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass  # it has just ended, or is not ours to end
