"""Folder: the files of a workspace, and nothing outside of it.

Each step of a path is opened relative to the one before and never through a symbolic link, so that
nobody can lead a tool out of the folder, also not by swapping a directory between a check and its
use. POSIX only.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, final

from ..model.errors import TurnError

MAX_FILE_BYTES: Final = 1 << 20
MAX_ENTRIES: Final = 1000
_MAX_PATH_BYTES: Final = 4096
_MAX_DEPTH: Final = 64

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: opening a named pipe must not wait for its other end.
_FILE: Final = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_NEW_FILE_MODE: Final = 0o644

EntryKind = Literal["file", "directory", "link", "other"]


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file as it was read, all of it."""

    data: bytes
    mode: int
    """Its permission bits."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A name in a directory."""

    name: str
    kind: EntryKind
    size_bytes: int


@final
class Folder:
    """Reads and writes below ``root``; every method blocks and may raise TurnError.

        folder = Folder(Path("/home/me/project"))
        folder.write("src/a.py", b"print(1)")

    A path is relative, with ``/`` between its steps; ``..`` is refused, and links are never
    followed, not even those that stay inside.
    """

    def __init__(self, root: Path, *, max_file_bytes: int = MAX_FILE_BYTES) -> None:
        self.root: Path = root.absolute()
        self.max_file_bytes = max_file_bytes

    def read(self, path: str) -> StoredFile | None:
        """None where there is no such file."""
        steps = self._steps(path)
        with self._reported(path, "read"):
            try:
                with self._parent(steps) as parent:
                    handle = os.open(steps[-1], os.O_RDONLY | _FILE, dir_fd=parent)
            except FileNotFoundError:
                return None
            try:
                status = os.fstat(handle)
                if not stat.S_ISREG(status.st_mode):
                    raise OSError(errno.ENXIO, "not a regular file")
                return StoredFile(self._content(handle, path), stat.S_IMODE(status.st_mode))
            finally:
                os.close(handle)

    def write(self, path: str, data: bytes, *, mode: int | None = None) -> None:
        """Put ``data`` in the file's place at one stroke; directories on the way are made.

        Without ``mode`` an existing file keeps its permission bits.
        """
        if len(data) > self.max_file_bytes:
            raise self._too_large(path, len(data))
        steps = self._steps(path)
        with self._reported(path, "write"), self._parent(steps, make=True) as parent:
            kept = self._mode_of(parent, steps[-1])
            temp = f".fiberscope-{secrets.token_hex(8)}.tmp"
            new = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FILE
            handle = os.open(temp, new, _NEW_FILE_MODE, dir_fd=parent)
            try:
                try:
                    _write_all(handle, data)
                    wanted = kept if mode is None else mode
                    if wanted is not None:
                        os.fchmod(handle, wanted & 0o777)
                finally:
                    os.close(handle)
                os.replace(temp, steps[-1], src_dir_fd=parent, dst_dir_fd=parent)
            except BaseException:
                _unlink_quietly(temp, parent)
                raise

    def remove(self, path: str) -> bool:
        """False where there was no such file."""
        steps = self._steps(path)
        with self._reported(path, "remove"):
            try:
                with self._parent(steps) as parent:
                    self._mode_of(parent, steps[-1])
                    os.unlink(steps[-1], dir_fd=parent)
            except FileNotFoundError:
                return False
        return True

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory. One that isn't empty, or isn't there, stays as it is."""
        steps = self._steps(path)
        try:
            with self._parent(steps) as parent:
                os.rmdir(steps[-1], dir_fd=parent)
        except OSError:
            pass  # somebody uses it by now

    def missing_directories(self, path: str) -> list[str]:
        """The directories that a write of ``path`` would make, the outermost first."""
        steps = self._steps(path)[:-1]
        for depth in range(len(steps)):
            try:
                with self._parent([*steps[: depth + 1], "x"]):
                    pass
            except FileNotFoundError:
                return ["/".join(steps[: end + 1]) for end in range(depth, len(steps))]
            except OSError:
                return []  # the write will say what is wrong
        return []

    def entries(self, path: str = ".") -> tuple[list[Entry], bool]:
        """What is in a directory, by name, and whether there was more than is given."""
        steps = [] if path in (".", "./") else self._steps(path)
        with self._reported(path, "list"), self._parent([*steps, "x"]) as handle:
            found: list[Entry] = []
            with os.scandir(handle) as entries:
                for entry in entries:
                    if len(found) == MAX_ENTRIES:
                        return sorted(found, key=lambda e: e.name), True
                    try:
                        status = entry.stat(follow_symlinks=False)
                    except FileNotFoundError:
                        continue  # removed since its name was read
                    found.append(Entry(entry.name, _kind_of(status.st_mode), status.st_size))
        return sorted(found, key=lambda e: e.name), False

    # ------------------------------------------------------------------ paths

    def _steps(self, path: str) -> list[str]:
        if not path or "\0" in path or len(os.fsencode(path)) > _MAX_PATH_BYTES:
            raise TurnError("bad_path", f"{path[:80]!r} is no path of a file", "Name one.")
        if path.startswith("/"):
            raise TurnError(
                "outside",
                f"{path!r} is absolute",
                "Name the file relative to the folder of the workspace.",
            )
        steps = [step for step in path.split("/") if step not in ("", ".")]
        if ".." in steps:
            raise TurnError(
                "outside", f"{path!r} goes up", "Only files below the folder can be used."
            )
        if not steps or len(steps) > _MAX_DEPTH:
            raise TurnError("bad_path", f"{path[:80]!r} is no path of a file", "Name one.")
        return steps

    @contextmanager
    def _parent(self, steps: Sequence[str], *, make: bool = False) -> Generator[int]:
        """The directory in which the last step lies, open."""
        handle = os.open(self.root, _DIRECTORY)
        try:
            for step in steps[:-1]:
                if make:
                    try:
                        os.mkdir(step, 0o755, dir_fd=handle)
                    except FileExistsError:
                        pass  # the open looks at what it is
                inner = os.open(step, _DIRECTORY, dir_fd=handle)
                os.close(handle)
                handle = inner
            yield handle
        finally:
            os.close(handle)

    def _mode_of(self, parent: int, name: str) -> int | None:
        """The permission bits of the file; None where there is none."""
        try:
            status = os.stat(name, dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError:
            return None
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.ELOOP, "not a regular file")
        return stat.S_IMODE(status.st_mode)

    # ------------------------------------------------------------------ content and errors

    def _content(self, handle: int, path: str) -> bytes:
        blocks: list[bytes] = []
        size_bytes = 0
        while block := os.read(handle, 1 << 16):
            size_bytes += len(block)
            if size_bytes > self.max_file_bytes:
                raise self._too_large(path, os.fstat(handle).st_size)
            blocks.append(block)
        return b"".join(blocks)

    def _too_large(self, path: str, size_bytes: int) -> TurnError:
        return TurnError(
            "too_large",
            f"{path} has {size_bytes} bytes; at most {self.max_file_bytes} are handled",
            "Work on a smaller file.",
        )

    @contextmanager
    def _reported(self, path: str, action: str) -> Generator[None]:
        try:
            yield
        except OSError as error:
            raise _turn_error(error, path, action) from error


def _turn_error(error: OSError, path: str, action: str) -> TurnError:
    reason = error.strerror or str(error)
    match error.errno:
        case errno.ENOENT:
            return TurnError("not_found", f"there is no {path}", "List the folder to see what is.")
        case errno.ELOOP | errno.ENOTDIR | errno.EISDIR | errno.ENXIO:
            return TurnError(
                "unsafe_path",
                f"will not {action} {path}: it is, or leads through, a link or a special file",
                "Links are never followed here; name the file itself.",
            )
        case errno.ENOSPC | errno.EDQUOT:
            return TurnError(
                "disk_full", f"there is no room to {action} {path} ({reason})", "Free some space."
            )
        case _:
            return TurnError(
                "io", f"could not {action} {path} ({reason})", "Look at the file, then try again."
            )


def _write_all(handle: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(handle, rest) :]


def _unlink_quietly(name: str, parent: int) -> None:
    try:
        os.unlink(name, dir_fd=parent)
    except OSError:
        pass  # it was put in its place, or the first error is the one to tell


def _kind_of(mode: int) -> EntryKind:
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "directory"
    return "link" if stat.S_ISLNK(mode) else "other"
