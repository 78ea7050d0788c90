"""Bytes in one directory, so that a crash at any moment leaves whole files and whole lines.

This module owns how things get to disk: temp file and rename, append with undo, fsync, modes, and
that no symbolic link is followed. It knows nothing of rows. POSIX only: everything happens
relative to an open directory, so that nobody can swap a path between a check and its use.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal, NamedTuple, final

from ..model.errors import HistoryError
from .faults import reported

FsyncPolicy = Literal["off", "terminal", "every-write"]
"""When the disk itself is waited for.

off: never; a power cut may cost the last seconds, a killed process costs nothing.
terminal: for what must be durable before somebody is told of it (user rows, final rows, tool
results), not for the text of a running stream.
every-write: always.
"""

Step = Literal[
    "directory-made",
    "temp-made",
    "temp-written",
    "temp-synced",
    "replaced",
    "appended",
    "append-synced",
    "cut",
    "file-synced",
    "removed",
    "set-aside",
    "directory-synced",
]
"""Something that has just changed on disk; a test looks at the directory after each."""

_FILE_MODE: Final = 0o600
_DIRECTORY_MODE: Final = 0o700
_OPEN_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: opening a named pipe that somebody put in a file's place must not wait for a writer.
_OPEN_FILE: Final = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_READ_BYTES: Final = 1 << 20
_TEMP_NAME: Final = re.compile(r"[a-z.-]+\.tmp-[0-9a-f]{16}")


class Fingerprint(NamedTuple):
    """Tells whether a file is still the one that was read."""

    inode: int
    size_bytes: int
    modified_ns: int


class FileContent(NamedTuple):
    """A file as it was read, all of it."""

    data: bytes
    fingerprint: Fingerprint


class Appended(NamedTuple):
    """Where an appended line begins, and the file after it."""

    offset_bytes: int
    fingerprint: Fingerprint


@final
class DurableDirectory:
    """A directory and the policy of its writes. Nothing is opened or made before it is used."""

    def __init__(
        self,
        path: Path,
        *,
        fsync: FsyncPolicy = "terminal",
        on_step: Callable[[Step], None] | None = None,
    ) -> None:
        self.path: Path = path.absolute()
        self.fsync: FsyncPolicy = fsync
        self._on_step = on_step

    @contextmanager
    def opened(self) -> Generator[OpenDirectory | None]:
        """The directory, open; None when it doesn't exist. Raises HistoryError."""
        handle = self._open()
        if handle is None:
            yield None
            return
        try:
            yield OpenDirectory(handle, self.path, self.fsync, self.step)
        finally:
            os.close(handle)

    @contextmanager
    def made(self) -> Generator[OpenDirectory]:
        """The directory, open, made (with its parents) if need be. Raises HistoryError."""
        handle = self._open()
        if handle is None:
            with reported(self.path, "make"):
                self._make(self.path)
            handle = self._open()
        if handle is None:
            raise HistoryError(
                "io", self.path, "the directory was removed while it was made", "Try again."
            )
        try:
            yield OpenDirectory(handle, self.path, self.fsync, self.step)
        finally:
            os.close(handle)

    def step(self, step: Step) -> None:
        if self._on_step is not None:
            self._on_step(step)

    def _open(self) -> int | None:
        # The parent too is opened without following a link: the directory that holds all
        # workspaces must be as real as each of them. What lies above is the host's choice.
        with reported(self.path.parent, "open"):
            try:
                parent = os.open(self.path.parent, _OPEN_DIRECTORY)
            except FileNotFoundError:
                return None
        with reported(self.path, "open"):
            try:
                return os.open(self.path.name, _OPEN_DIRECTORY, dir_fd=parent)
            except FileNotFoundError:
                return None
            finally:
                os.close(parent)

    def _make(self, path: Path) -> None:
        if not path.parent.exists():
            self._make(path.parent)
        try:
            path.mkdir(_DIRECTORY_MODE)
        except FileExistsError:
            return  # made by another workspace meanwhile; _open looks at what it is
        self.step("directory-made")
        if self.fsync != "off":
            parent = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                _fsync_directory(parent)
            finally:
                os.close(parent)


@final
class OpenDirectory:
    """What can be done to the files of a directory. Every method may raise HistoryError.

    `durable=True` on a write asks for an fsync under the policy "terminal".
    """

    def __init__(
        self, handle: int, path: Path, fsync: FsyncPolicy, step: Callable[[Step], None]
    ) -> None:
        self._handle = handle
        self._path = path
        self._fsync: FsyncPolicy = fsync
        self._step = step

    def path_of(self, name: str) -> Path:
        return self._path / name

    def names(self) -> list[str]:
        with reported(self._path, "list"):
            return sorted(os.listdir(self._handle))

    def directory_names(self) -> list[str]:
        """The names of the real directories in this one, in order; links are left out."""
        with reported(self._path, "list"), os.scandir(self._handle) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))

    def fingerprint(self, name: str) -> Fingerprint | None:
        """None when there is no such file."""
        with reported(self._path, "look at", name):
            try:
                status = os.stat(name, dir_fd=self._handle, follow_symlinks=False)
            except FileNotFoundError:
                return None
            return _fingerprint_of(status)

    def read(self, name: str) -> FileContent | None:
        """None when there is no such file."""
        with self._reading(name) as opened:
            if opened is None:
                return None
            handle, fingerprint = opened
            # Up to its end, not up to its size: who may write meanwhile only adds to it.
            return FileContent(_read(handle, 0, None), fingerprint)

    def read_span(self, name: str, start_byte: int, end_byte: int | None = None) -> bytes:
        """These bytes of the file, up to its end without `end_byte`; fewer where it ends before."""
        with self._reading(name) as opened:
            return b"" if opened is None else _read(opened[0], start_byte, end_byte)

    @contextmanager
    def _reading(self, name: str) -> Generator[tuple[int, Fingerprint] | None]:
        with reported(self._path, "read", name):
            try:
                handle = os.open(name, os.O_RDONLY | _OPEN_FILE, dir_fd=self._handle)
            except FileNotFoundError:
                yield None
                return
            try:
                yield handle, _fingerprint_of(os.fstat(handle))
            finally:
                os.close(handle)

    def replace(self, name: str, data: bytes, *, durable: bool) -> Fingerprint:
        """Put `data` in the file's place at one stroke: readers see the old or the new, whole."""
        temp = f"{name}.tmp-{secrets.token_hex(8)}"
        with reported(self._path, "write", name):
            try:
                handle = os.open(
                    temp,
                    os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OPEN_FILE,
                    _FILE_MODE,
                    dir_fd=self._handle,
                )
                try:
                    self._step("temp-made")
                    _write_all(handle, data)
                    self._step("temp-written")
                    if self._syncs(durable):
                        os.fsync(handle)
                        self._step("temp-synced")
                    fingerprint = _fingerprint_of(os.fstat(handle))
                finally:
                    os.close(handle)
                os.replace(temp, name, src_dir_fd=self._handle, dst_dir_fd=self._handle)
            except OSError:
                self._remove_quietly(temp)
                raise
            self._step("replaced")
            self._sync_directory(durable)
        return fingerprint

    def append_line(self, name: str, line: bytes, *, durable: bool) -> Appended:
        """Add a line (given without its newline), on a line of its own whatever the file ends with.

        If it can't be written whole, the file is cut back to what it was.
        """
        with reported(self._path, "append to", name):
            handle, is_new = self._open_for_append(name)
            try:
                before = _fingerprint_of(os.fstat(handle)).size_bytes
                torn = before > 0 and os.pread(handle, 1, before - 1) != b"\n"
                self._add(handle, before, b"\n" * torn + line + b"\n", durable)
                fingerprint = _fingerprint_of(os.fstat(handle))
            finally:
                os.close(handle)
            if is_new:
                self._sync_directory(durable)
        return Appended(before + torn, fingerprint)

    def append_at(self, name: str, offset_bytes: int, data: bytes, *, durable: bool) -> int | None:
        """Add `data` behind the first `offset_bytes` of the file; what else was there is cut off.

        Gives the size of the file then, or None when it is shorter than that: nothing was done.
        """
        with reported(self._path, "append to", name):
            handle, is_new = self._open_for_append(name)
            try:
                size_bytes = _fingerprint_of(os.fstat(handle)).size_bytes
                if size_bytes < offset_bytes:
                    return None
                if size_bytes > offset_bytes:
                    os.ftruncate(handle, offset_bytes)
                    self._step("cut")
                self._add(handle, offset_bytes, data, durable)
            finally:
                os.close(handle)
            if is_new:
                self._sync_directory(durable)
        return offset_bytes + len(data)

    def sync(self, name: str) -> None:
        """Make durable what was written to the file without it, unless the policy is "off"."""
        if not self._syncs(durable=True):
            return
        with reported(self._path, "sync", name):
            handle = os.open(name, os.O_RDONLY | _OPEN_FILE, dir_fd=self._handle)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
            self._step("file-synced")
            self._sync_directory(durable=True)

    def _add(self, handle: int, size_bytes: int, data: bytes, durable: bool) -> None:
        try:
            _write_all(handle, data)
            self._step("appended")
            if self._syncs(durable):
                os.fsync(handle)
                self._step("append-synced")
        except OSError:
            _cut_quietly(handle, size_bytes)
            raise

    def remove(self, name: str, *, durable: bool) -> bool:
        """False when there was no such file."""
        with reported(self._path, "remove", name):
            try:
                os.unlink(name, dir_fd=self._handle)
            except FileNotFoundError:
                return False
            self._step("removed")
            self._sync_directory(durable)
        return True

    def set_aside(self, name: str, stem: str, suffix: str) -> str:
        """Rename the file to `<stem>-<n><suffix>` with the first free n >= 1; gives that name."""
        taken = set(self.names())
        number = 1
        while (aside := f"{stem}-{number}{suffix}") in taken:
            number += 1
        with reported(self._path, "rename", name):
            os.rename(name, aside, src_dir_fd=self._handle, dst_dir_fd=self._handle)
            self._step("set-aside")
            self._sync_directory(durable=True)
        return aside

    def sweep_temps(self) -> tuple[str, ...]:
        """Remove the temp files that a crash left; gives their names.

        Only while nobody writes in this directory.
        """
        left = tuple(name for name in self.names() if _TEMP_NAME.fullmatch(name))
        for name in left:
            self.remove(name, durable=False)
        return left

    def _open_for_append(self, name: str) -> tuple[int, bool]:
        flags = os.O_RDWR | os.O_APPEND | _OPEN_FILE
        try:
            return os.open(name, flags, dir_fd=self._handle), False
        except FileNotFoundError:
            made = os.O_CREAT | os.O_EXCL
            return os.open(name, flags | made, _FILE_MODE, dir_fd=self._handle), True

    def _syncs(self, durable: bool) -> bool:
        return self._fsync == "every-write" or (durable and self._fsync == "terminal")

    def _sync_directory(self, durable: bool) -> None:
        if self._syncs(durable):
            _fsync_directory(self._handle)
            self._step("directory-synced")

    def _remove_quietly(self, name: str) -> None:
        try:
            os.unlink(name, dir_fd=self._handle)
        except OSError:
            pass  # the first error is the one to tell; a load sweeps what is left


# ---- system calls


def _write_all(handle: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        written = os.write(handle, rest)
        if written == 0:
            raise OSError(errno.EIO, "nothing was written")
        rest = rest[written:]


def _read(handle: int, start_byte: int, end_byte: int | None) -> bytes:
    blocks: list[bytes] = []
    while end_byte is None or start_byte < end_byte:
        wanted = _READ_BYTES if end_byte is None else min(_READ_BYTES, end_byte - start_byte)
        block = os.pread(handle, wanted, start_byte)
        if not block:
            break
        blocks.append(block)
        start_byte += len(block)
    return b"".join(blocks)


def _cut_quietly(handle: int, size_bytes: int) -> None:
    try:
        os.ftruncate(handle, size_bytes)
    except OSError:
        pass  # then a torn line stays; readers skip it, and the next append begins a new one


def _fsync_directory(handle: int) -> None:
    try:
        os.fsync(handle)
    except OSError as error:
        # Some file systems have nothing to sync for a directory and say so.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise


def _fingerprint_of(status: os.stat_result) -> Fingerprint:
    if stat.S_ISLNK(status.st_mode):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.ENOTDIR, "not a regular file")
    return Fingerprint(status.st_ino, status.st_size, status.st_mtime_ns)
