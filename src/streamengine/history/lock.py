"""One process a state directory: a lock of the operating system, with a name on it.

The lock goes with the process, also when that is killed. Who holds it is written beside it, in a
file of its own, only so that the refusal can say it: that note decides nothing.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Final, Self, cast, final

from filelock import FileLock, Timeout
from pydantic import Field, ValidationError

from ..model.base import CamelModel
from ..model.errors import HistoryError
from ..redact import MASK, redact
from .directory import DurableDirectory

LOCK_FILE: Final = ".lock"
HOLDER_FILE: Final = ".lock-holder.json"

_COMMAND_SHOWN_CHARACTERS: Final = 200


class LockHolder(CamelModel):
    """The process that holds a state directory."""

    pid: Annotated[int, Field(ge=1)]
    since: datetime
    command: str

    def __str__(self) -> str:
        since = self.since.isoformat(sep=" ", timespec="seconds")
        return f"process {self.pid} since {since} ({self.command})"


class StateDirLocked(HistoryError):
    """Another process, or another part of this one, works on the state directory, or `what` it is.

    `holder` is None when its note could not be read.
    """

    def __init__(
        self, path: Path | str, holder: LockHolder | None, what: str = "state directory"
    ) -> None:
        named = "a process that left no note" if holder is None else str(holder)
        super().__init__(
            "locked",
            path,
            f"the {what} is in use by {named}",
            f"Stop that process first, or use another {what}.",
        )
        self.holder = holder
        self.what = what

    def __reduce__(self) -> tuple[type[StateDirLocked], tuple[str, LockHolder | None, str]]:
        return type(self), (self.path, self.holder, self.what)


@final
class StateDirLock:
    """The right to use a state directory, held inside a `with` block (or acquire, release).

    Forgetting the object gives it back, too.
    """

    def __init__(self, state_directory: Path) -> None:
        self._directory = DurableDirectory(state_directory.resolve(), fsync="off")
        self._lock = FileLock(
            self._directory.path / LOCK_FILE,
            timeout=0,
            mode=0o600,
            # Taken on one thread and given back on another.
            thread_local=False,
            # A lock that a killed process leaves behind would be worse than none.
            fallback_to_soft=False,
        )

    def acquire(self) -> None:
        """Take the lock; make the directory if need be. Raises StateDirLocked, HistoryError."""
        path = self._directory.path
        with self._directory.made() as directory:
            try:
                self._lock.acquire()
            except Timeout:
                raise StateDirLocked(path, self._holder()) from None
            except NotImplementedError as error:
                raise HistoryError(
                    "io",
                    path,
                    "its file system has no locks",
                    "Put the state directory on a local disk.",
                ) from error
            except OSError as error:
                raise HistoryError(
                    "io",
                    path,
                    f"could not lock it ({error.strerror or error})",
                    "Check that this user may write there, and the disk.",
                ) from error
            try:
                note = this_process().to_json().encode()
                directory.replace(HOLDER_FILE, note, durable=False)
            except BaseException:
                self._lock.release()
                raise

    def release(self) -> None:
        """Give it back; nothing happens if it isn't held. Raises HistoryError."""
        if not self._lock.is_locked:
            return
        try:
            with self._directory.opened() as directory:
                if directory is not None:
                    directory.remove(HOLDER_FILE, durable=False)
        finally:
            self._lock.release()

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()

    def _holder(self) -> LockHolder | None:
        try:
            with self._directory.opened() as directory:
                content = None if directory is None else directory.read(HOLDER_FILE)
        except HistoryError:
            return None
        if content is None:
            return None
        try:
            fields = cast("dict[str, Any]", json.loads(content.data))
            holder = LockHolder.model_validate(fields)
        except (ValueError, ValidationError):
            return None
        # The note of a process that was killed, read before the new holder has written its own.
        return holder if _is_alive(holder.pid) else None


def this_process() -> LockHolder:
    """This process, as another one that is refused shall read of it."""
    command = " ".join(shlex.join(map(_shown, sys.orig_argv)).split())  # on one line
    if len(command) > _COMMAND_SHOWN_CHARACTERS:
        command = command[:_COMMAND_SHOWN_CHARACTERS] + "..."
    return LockHolder(pid=os.getpid(), since=datetime.now(UTC), command=command)


def _shown(argument: str) -> str:
    """Without the password of a URL. One argument is known to be no more than one URL, so nothing
    in front of its last @ can be anything else.
    """
    return redact(re.sub(r"(://).*@", rf"\1{MASK}@", argument, flags=re.DOTALL))


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True  # it belongs to somebody else
    return True
