"""The state directory as a place for the host's own small files: private, and no link followed."""

from __future__ import annotations

import os
import stat
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import structlog

from streamengine import HistoryError
from streamengine.history.directory import DurableDirectory
from streamengine.history.lock import LOCK_FILE
from streamengine.history.store import WORKSPACES_DIRECTORY

from .errors import HostError

_OTHERS: Final = 0o077

_log = structlog.get_logger("turns.host.state")


def located(path: Path) -> Path:
    """Its real path, whether it is there or not. Raises HostError."""
    try:
        return path.expanduser().resolve()
    except (OSError, RuntimeError) as error:
        # RuntimeError: `~nobody`, or links that lead in a circle.
        raise HostError(_unusable(path, error)) from error


def is_there(path: Path) -> bool:
    """Whether there is such a directory. Raises HostError."""
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise HostError(_unusable(path, error)) from error


def _unusable(path: Path, error: Exception) -> str:
    why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return f"{path} can't be the state directory: {why.rstrip('.')}; name another one with --state"


def prepare(path: Path) -> Path:
    """Make the state directory, or see that nobody else can look into it. Gives its real path.

    One of ours that is open to others is closed to them; a directory of something else is not
    touched. Raises HostError.
    """
    real = located(path)
    with _as_host_error():
        with DurableDirectory(real, fsync="off").made():
            status = real.stat()
        if status.st_uid != os.geteuid():
            raise HostError(f"{real} belongs to another user: name another state directory")
        if stat.S_IMODE(status.st_mode) & _OTHERS:
            names = set(os.listdir(real))
            if names and not names & {LOCK_FILE, WORKSPACES_DIRECTORY}:
                raise HostError(
                    f"{real} is open to other users and holds files that are not ours: "
                    "name an empty or a new state directory"
                )
            real.chmod(0o700)
        return real


def read_private(state: Path, name: str) -> str | None:
    """The text of a small file; None when there is none, it isn't only ours, or isn't text."""
    with _as_host_error(), DurableDirectory(state, fsync="off").opened() as directory:
        if directory is None:
            return None
        try:
            status = os.stat(state / name, follow_symlinks=False)
        except FileNotFoundError:
            return None
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            return None
        if stat.S_IMODE(status.st_mode) & _OTHERS:
            return None
        content = directory.read(name)
    try:
        return None if content is None else content.data.decode()
    except UnicodeDecodeError:
        return None


def write_private(state: Path, name: str, text: str) -> None:
    """Put a small file, mode 0600, in place of what was there (a link is replaced, not followed).

    Raises HostError.
    """
    with _as_host_error(), DurableDirectory(state, fsync="off").made() as directory:
        directory.replace(name, text.encode(), durable=False)


def remove(state: Path, name: str) -> None:
    """Remove a small file; nothing happens where there is none. Raises HostError."""
    with _as_host_error(), DurableDirectory(state, fsync="off").opened() as directory:
        if directory is not None:
            directory.remove(name, durable=False)


def sweep(state: Path) -> None:
    """Remove the temporary files that a killed process left there. For who holds the directory,
    before it writes files of its own. Raises HostError.
    """
    with _as_host_error(), DurableDirectory(state, fsync="off").opened() as directory:
        left = () if directory is None else directory.sweep_temps()
    if left:
        _log.info("temp files of a crash removed", files=len(left))


@contextmanager
def _as_host_error() -> Generator[None]:
    try:
        yield
    except HistoryError as error:
        raise HostError(str(error)) from error
    except OSError as error:
        raise HostError(f"the state directory can't be used: {error}") from error
