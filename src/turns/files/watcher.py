"""FolderWatcher: tells of files that changed, by looking now and then.

It looks at sizes and times instead of being told by the kernel: that works on every file system
(also on mounts from elsewhere), and a test moves it by its clock.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, NamedTuple, final

import structlog

import fibers as fb

from ..subscribers import Subscribers

INTERVAL_SECONDS: Final = 1.0
MAX_FILES: Final = 20_000
IGNORED_DIRECTORIES: Final = frozenset({".git", ".hg", "__pycache__", "node_modules"})

Author = Literal["agent", "person"]
ChangeKind = Literal["added", "changed", "removed"]
_log = structlog.get_logger("turns.files.watcher")


@dataclass(frozen=True, slots=True)
class FileChange:
    """A file that isn't what it was at the last look."""

    path: str
    """Relative to the folder, with ``/``."""
    kind: ChangeKind
    by: Author


class _Mark(NamedTuple):
    inode: int
    size_bytes: int
    modified_ns: int


@final
class FolderWatcher:
    """Looks every ``interval_seconds`` and tells its subscribers what changed.

        watcher = FolderWatcher(Path("project"), author=lambda: "person")
        watcher.subscribe(print)
        fiber = watcher.run().fork_in(scope)

    While it is held back nothing is looked at; what changed meanwhile is told at the next look, at
    once when the last of those that hold it back lets go.
    """

    def __init__(
        self,
        folder: Path,
        *,
        author: Callable[[], Author],
        interval_seconds: float = INTERVAL_SECONDS,
    ) -> None:
        self.folder = folder
        self._author = author
        self._interval_seconds = interval_seconds
        self._holders: set[object] = set()
        self._marks: Mapping[str, _Mark] | None = None
        self._subscribers = Subscribers[FileChange]("file changes")
        self._is_wanted = asyncio.Event()
        self._looking = asyncio.Lock()
        self._told_of_limit = False
        self.keep: Callable[[], Callable[[], None]] = lambda: lambda: None
        """Called by each who begins to hear; gives what is called when he ends. For whoever owns
        the folder: what somebody hears must not go.
        """

    @property
    def is_held(self) -> bool:
        """Whether a change group is open."""
        return bool(self._holders)

    def subscribe(self, f: Callable[[FileChange], object]) -> Callable[[], None]:
        """Call ``f`` with each change; gives what ends that."""
        self._is_wanted.set()
        let_go, stop = self.keep(), self._subscribers.subscribe(f)

        def end() -> None:
            stop()
            let_go()

        return end

    @fb.effect
    async def run(self) -> None:
        """Look again and again, as long as there is somebody to tell; never ends by itself."""
        while True:
            if not self._subscribers:
                # No timer meanwhile: a server has one of these for each workspace.
                self._is_wanted.clear()
                await self._is_wanted.wait()
            else:
                await self.refresh()
            await fb.sleep(self._interval_seconds)

    @fb.effect
    async def refresh(self) -> None:
        """Look now, unless it is held back. The first look tells nothing: it only remembers."""
        async with self._looking:
            if self._holders:
                return
            found = await asyncio.to_thread(self._scan)
            if self._holders:
                return  # a group began meanwhile; some of this may be its doing
            before, self._marks = self._marks, found
        if before is not None:
            by = self._author()
            for change in _changes(before, found, by):
                self._subscribers.tell(change)

    def _hold(self, holder: object) -> None:
        self._holders.add(holder)

    @fb.effect
    async def _let_go(self, holder: object) -> None:
        """Look at once when nobody holds it back any more. Idempotent."""
        if holder in self._holders:
            self._holders.discard(holder)
            # Without a first look there is nothing to compare with, and nobody to tell.
            if not self._holders and self._marks is not None:
                await self.refresh()

    def _scan(self) -> dict[str, _Mark]:
        found: dict[str, _Mark] = {}
        waiting = [(self.folder, "")]
        while waiting:
            directory, prefix = waiting.pop()
            try:
                with os.scandir(directory) as entries:
                    for entry in entries:
                        try:
                            status = entry.stat(follow_symlinks=False)
                        except OSError:
                            continue  # gone since its name was read: what comes after it is not
                        if stat.S_ISDIR(status.st_mode):
                            if entry.name not in IGNORED_DIRECTORIES:
                                waiting.append((Path(entry.path), f"{prefix}{entry.name}/"))
                        elif stat.S_ISREG(status.st_mode):
                            if len(found) == MAX_FILES:
                                self._tell_of_limit()
                                return found
                            found[prefix + entry.name] = _Mark(
                                status.st_ino, status.st_size, status.st_mtime_ns
                            )
            except OSError:
                continue  # gone, or not ours to read
        return found

    def _tell_of_limit(self) -> None:
        if not self._told_of_limit:
            self._told_of_limit = True
            _log.warning(
                "a folder has too many files to watch: only some are",
                folder=str(self.folder),
                watched=MAX_FILES,
            )


def _changes(
    before: Mapping[str, _Mark], after: Mapping[str, _Mark], by: Author
) -> list[FileChange]:
    changes = [FileChange(path, "removed", by) for path in before.keys() - after.keys()]
    for path, mark in after.items():
        if path not in before:
            changes.append(FileChange(path, "added", by))
        elif before[path] != mark:
            changes.append(FileChange(path, "changed", by))
    return sorted(changes, key=lambda change: change.path)
