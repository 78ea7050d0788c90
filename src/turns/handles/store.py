"""Where records of turns are kept: the protocol, and the embedded default on files. ``sql/`` is the
same in a database.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final, Protocol, TypeVar, final

import structlog

from fibers import Effect, effect
from streamengine import HistoryError
from streamengine.history.directory import DurableDirectory, FsyncPolicy, OpenDirectory, Step
from streamengine.history.lane import Crew, Lane
from streamengine.history.store import WORKSPACES_DIRECTORY, IoMode
from streamengine.history.workspaces import Workspaces
from streamengine.model import is_valid_id

from ..model.errors import TurnError
from ..model.ids import is_handle_id
from ..model.record import TurnRecord
from .stored import Unusable, record_of

HANDLES_DIRECTORY: Final = "task-handles"
_SUFFIX: Final = ".json"
_TEMP_NAME: Final = re.compile(r"wst_[a-z0-9_-]+\.json\.tmp-[0-9a-f]{16}")

T = TypeVar("T")

_log = structlog.get_logger("turns.handles.store")


@dataclass(frozen=True, slots=True)
class LoadedRecords:
    """All records that could be read, and what to say of the others."""

    records: tuple[TurnRecord, ...]
    warnings: tuple[str, ...] = ()
    """One for each thing that is left as it is: where it is kept, what is wrong, the way out."""


class TurnStore(Protocol):
    """Keeps the record of each turn. One process at a time works on it."""

    def write(self, record: TurnRecord) -> Effect[None, TurnError]:
        """Put ``record`` durably in place of what was kept under its handle id. Fails with "store";
        what was kept before is then still there, whole.
        """
        ...

    def load(self) -> Effect[LoadedRecords, TurnError]:
        """All records, in the order of their creation. What can't be read is told in the warnings
        and hides nothing else; fails with "store" only where nothing at all can be listed.
        """
        ...


@contextmanager
def said_of_store() -> Generator[None]:
    """What a disk or a database refused in the block is a TurnError, "store", with the way out."""
    try:
        yield
    except HistoryError as error:
        raise TurnError("store", f"{error.path}: {error.message}", error.way_out) from error


def in_order(records: Iterable[TurnRecord], warnings: Iterable[str]) -> LoadedRecords:
    """What a load found, in the order of creation. The warnings are logged."""
    told = tuple(warnings)
    for warning in told:
        _log.warning("a record of a turn is left as it is", problem=warning)
    return LoadedRecords(tuple(sorted(records, key=_place_of)), told)


def _place_of(record: TurnRecord) -> tuple[int, datetime, str]:
    # Those of an older version, which counted none, were there before.
    number = -1 if record.sequence is None else record.sequence
    return number, record.created_at, record.handle_id


@final
class FileTurnStore(TurnStore):
    """One JSON file a handle, under ``<state directory>/workspaces/<owner>/task-handles``.

    store = FileTurnStore(Path("state"))
    """

    def __init__(
        self,
        state_directory: Path | str,
        *,
        fsync: FsyncPolicy = "terminal",
        io: IoMode = "thread",
        on_step: Callable[[Step], None] | None = None,
    ) -> None:
        """Touches no file. ``on_step`` is called after each change on disk, for tests."""
        self._path = Path(state_directory).absolute() / WORKSPACES_DIRECTORY
        self._fsync: FsyncPolicy = fsync
        self._io: IoMode = io
        self._on_step = on_step
        crew = Crew()
        self._all = Lane(crew)
        # One a handle: what waits for the disk waits for its own file only.
        self._lanes = Workspaces(lambda _handle: Lane(crew), is_idle=lambda lane: lane.is_idle)

    def write(self, record: TurnRecord) -> Effect[None, TurnError]:
        return self._done(lambda: self._lanes.get(record.handle_id), lambda: self._write(record))

    def load(self) -> Effect[LoadedRecords, TurnError]:
        return self._done(lambda: self._all, self._load)

    def path_of(self, record: TurnRecord) -> Path:
        """The file of this record."""
        return self._directory(record.owner_workspace_id).path / (record.handle_id + _SUFFIX)

    @effect(raises=TurnError)
    async def _done(self, lane: Callable[[], Lane], job: Callable[[], T]) -> T:
        with said_of_store():
            return job() if self._io == "inline" else await lane().run(job)

    def _directory(self, owner: str) -> DurableDirectory:
        path = self._path / owner / HANDLES_DIRECTORY
        return DurableDirectory(path, fsync=self._fsync, on_step=self._on_step)

    # ---- on a thread

    def _write(self, record: TurnRecord) -> None:
        data = record.to_json(indent_spaces=2).encode()
        with self._directory(record.owner_workspace_id).made() as directory:
            directory.replace(record.handle_id + _SUFFIX, data, durable=True)

    def _load(self) -> LoadedRecords:
        records: list[TurnRecord] = []
        warnings: list[str] = []
        with DurableDirectory(self._path, fsync=self._fsync).opened() as all_owners:
            owners = [] if all_owners is None else all_owners.directory_names()
        for owner in filter(is_valid_id, owners):
            try:
                self._load_owner(owner, records, warnings)
            except HistoryError as error:
                warnings.append(f"{error} Its turns are not shown.")
        return in_order(records, warnings)

    def _load_owner(self, owner: str, records: list[TurnRecord], warnings: list[str]) -> None:
        with self._directory(owner).opened() as directory:
            if directory is None:
                return
            for name in directory.names():
                if _TEMP_NAME.fullmatch(name):
                    # What a killed process did not get to put in its place.
                    directory.remove(name, durable=False)
                    continue
                try:
                    records.append(_read(directory, owner, name))
                except Unusable as problem:
                    warnings.append(str(problem))
                except HistoryError as error:
                    warnings.append(str(error))


def _read(directory: OpenDirectory, owner: str, name: str) -> TurnRecord:
    path = directory.path_of(name)
    handle_id = name.removesuffix(_SUFFIX)
    if handle_id == name or not is_handle_id(handle_id):
        raise Unusable(f"{path}: not the file of a handle. Move it away if it is not needed here.")
    content = directory.read(name)
    if content is None:
        raise Unusable(f"{path}: removed while it was read. Nothing needs to be done.")
    return record_of(content.data, place=str(path), handle_id=handle_id, owner=owner)
