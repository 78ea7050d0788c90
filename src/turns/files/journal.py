"""UndoJournal: what the files were before a turn changed them, on disk, a group a turn.

A line with the old content is durable before the file is written. So whatever was changed can be
taken back, also by the next process, and a crash in between leaves nothing to take back twice.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, final

from streamengine.history.directory import DurableDirectory, FsyncPolicy
from streamengine.model.errors import HistoryError

from ..model.errors import TurnError
from .folder import Folder
from .steps import Begun, Changed, Closed, Net, Step, decoded, digest, encoded, parse_step

KEPT_STEPS: Final = 50
MAX_GROUP_BYTES: Final = 32 << 20
"""Of old content that one group keeps."""

_STEP_NAME: Final = re.compile(r"\d{8}\.jsonl")


@dataclass(frozen=True, slots=True)
class UndoneStep:
    """What an undo took back."""

    turn_id: str
    paths: tuple[str, ...]


@final
class UndoJournal:
    """The undo steps of one workspace, the newest last. Every method blocks.

    group = journal.begin("turn-1")
    group.write("a.txt", b"new")
    journal.undo()  # once the turn has ended
    """

    def __init__(self, directory: Path, folder: Folder, *, fsync: FsyncPolicy = "terminal") -> None:
        self.folder = folder
        self._directory = DurableDirectory(directory, fsync=fsync)
        # Tools work in threads; a group must not end between a line and its write.
        self._lock = threading.RLock()
        self._open: set[str] = set()

    def begin(self, turn_id: str) -> UndoGroup:
        """A group; it is on disk from its first change on."""
        return UndoGroup(self, turn_id)

    def steps(self) -> list[str]:
        """The turns whose changes can be taken back, the oldest first. A step that can't be read is
        left out, with a warning.
        """
        found: list[str] = []
        with self._lock, _reported():
            for name in self._names():
                try:
                    step = self._read(name)
                except TurnError:
                    continue  # it has been told of
                if step.files:
                    found.append(step.turn_id)
        return found

    def undo(self) -> UndoneStep:
        """Take the newest step back. Raises TurnError: none there ("not_found"), a turn still
        writes ("busy"), a file was changed by somebody since ("conflict"; nothing is undone then).
        """
        with self._lock, _reported():
            if self._open:
                raise TurnError(
                    "busy", "a turn that changes files still runs", "Undo when it has ended."
                )
            for name in reversed(self._names()):
                undone = self._take_back(name)
                if undone.paths:  # else a crash came before the first change
                    return undone
            raise TurnError("not_found", "there is nothing to undo", "")

    # ------------------------------------------------------------------ for the group

    def _change(self, group: UndoGroup, path: str, data: bytes | None) -> None:
        before = self.folder.read(path)
        is_first = path not in group._seen
        if is_first:
            group._kept_bytes += 0 if before is None else len(before.data)
            if group._kept_bytes > MAX_GROUP_BYTES:
                raise TurnError(
                    "too_large",
                    f"the changes of this turn replace more than {MAX_GROUP_BYTES} bytes",
                    "End the turn and go on in the next one.",
                )
        line = Changed(
            path=path,
            is_first=is_first,
            before=encoded(before) if is_first else None,
            mode=None if before is None else before.mode,
            after=digest(data),
            made=tuple(() if data is None else self.folder.missing_directories(path)),
        )
        if group._name is None:
            name, now = self._new_name(), datetime.now(tz=UTC).isoformat()
            self._append(name, Begun(turn_id=group.turn_id, at=now))
            # Not before: lines without a first one are no step, and bar the way to older ones.
            group._name = name
            self._open.add(name)
        self._append(group._name, line)
        group._seen[path] = None
        if data is None:
            self.folder.remove(path)
        else:
            self.folder.write(path, data)

    def _end(self, name: str) -> None:
        self._open.discard(name)
        self._append(name, Closed())
        for old in self._names()[:-KEPT_STEPS]:
            if old not in self._open:
                with self._directory.made() as directory:
                    directory.remove(old, durable=False)

    def _take_back(self, name: str) -> UndoneStep:
        step = self._read(name)
        undone: list[tuple[str, Net]] = []
        for path, net in step.files.items():
            now = self.folder.read(path)
            found = digest(None if now is None else now.data)
            if found == digest(decoded(net.before)):
                continue  # a crash came before the write, or an undo was cut off after this one
            if found not in net.afters:
                raise TurnError(
                    "conflict",
                    f"{path} was changed after the turn {step.turn_id}",
                    "Nothing was undone. Move that file away, or take its change back, first.",
                )
            undone.append((path, net))
        for path, net in undone:
            before = decoded(net.before)
            if before is None:
                self.folder.remove(path)
                for made in reversed(net.made):
                    self.folder.remove_directory(made)
            else:
                self.folder.write(path, before, mode=net.mode)
        with self._directory.made() as directory:
            directory.remove(name, durable=True)
        return UndoneStep(step.turn_id, tuple(step.files))

    # ------------------------------------------------------------------ on disk

    def _names(self) -> list[str]:
        with self._directory.opened() as directory:
            names = [] if directory is None else directory.names()
        return [name for name in names if _STEP_NAME.fullmatch(name)]

    def _new_name(self) -> str:
        names = self._names()
        return f"{int(names[-1][:8]) + 1 if names else 1:08}.jsonl"

    def _append(self, name: str, line: Begun | Changed | Closed) -> None:
        with self._directory.made() as directory:
            directory.append_line(name, line.to_json().encode(), durable=True)

    def _read(self, name: str) -> Step:
        with self._directory.opened() as directory:
            content = None if directory is None else directory.read(name)
        return parse_step(b"" if content is None else content.data, self._directory.path / name)


@final
class UndoGroup:
    """The changes of one turn: one undo step. Made by ``UndoJournal.begin``."""

    def __init__(self, journal: UndoJournal, turn_id: str) -> None:
        self.turn_id = turn_id
        self._journal = journal
        self._name: str | None = None
        self._seen: dict[str, None] = {}
        self._kept_bytes = 0
        self._over = False

    @property
    def paths(self) -> Sequence[str]:
        """The files that it changed."""
        return tuple(self._seen)

    def write(self, path: str, data: bytes) -> None:
        """As ``Folder.write``, so that it can be undone. TurnError("ended") after the group."""
        self._do(path, data)

    def remove(self, path: str) -> None:
        """As ``Folder.remove``, so that it can be undone. TurnError("ended") after the group."""
        self._do(path, None)

    def edit(self, path: str, old: str, new: str) -> None:
        """Replace ``old``, which must occur once in the file."""
        with self._journal._lock, _reported():
            self._check()
            stored = self._journal.folder.read(path)
            if stored is None:
                raise TurnError("not_found", f"there is no {path}", "Write it instead.")
            try:
                text = stored.data.decode()
            except UnicodeDecodeError as error:
                raise TurnError(
                    "not_text", f"{path} is no UTF-8 text", "Write it whole."
                ) from error
            found = text.count(old) if old else 0
            if found != 1:
                raise TurnError(
                    "ambiguous" if found else "not_found",
                    f"the old text occurs {found} times in {path}",
                    "Give a piece of the file that occurs exactly once.",
                )
            self._do(path, text.replace(old, new).encode())

    def undo(self) -> UndoneStep | None:
        """Take back what it changed so far; the group goes on. None where that is nothing."""
        with self._journal._lock, _reported():
            self._check()
            if self._name is None:
                return None
            undone = self._journal._take_back(self._name)
            self._journal._open.discard(self._name)
            self._name = None
            self._seen.clear()
            self._kept_bytes = 0
            return undone

    def _end_if_active(self) -> bool:
        """End it: later changes are refused. False where it had ended before."""
        with self._journal._lock, _reported():
            if self._over:
                return False
            self._over = True
            if self._name is not None:
                self._journal._end(self._name)
            return True

    def _do(self, path: str, data: bytes | None) -> None:
        with self._journal._lock, _reported():
            self._check()
            self._journal._change(self, path, data)

    def _check(self) -> None:
        if self._over:
            raise TurnError("ended", f"the turn {self.turn_id} has ended", "Start another one.")


@contextmanager
def _reported() -> Generator[None]:
    try:
        yield
    except HistoryError as error:
        raise TurnError("journal", str(error), "No file was changed without it.") from error
