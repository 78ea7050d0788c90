"""Where records of turns are kept: the protocol, and the embedded default on files."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar, cast, final

import structlog
from pydantic import ValidationError

from fibers import Effect, effect
from streamengine import HistoryError
from streamengine.history.directory import DurableDirectory, FsyncPolicy, OpenDirectory, Step
from streamengine.history.lane import Crew, Lane
from streamengine.history.store import WORKSPACES_DIRECTORY, IoMode
from streamengine.history.workspaces import Workspaces
from streamengine.model import is_valid_id

from ..model.errors import TurnError
from ..model.ids import is_handle_id
from ..model.record import RECORD_VERSION, TurnRecord

HANDLES_DIRECTORY: Final = "task-handles"
_SUFFIX: Final = ".json"
_TEMP_NAME: Final = re.compile(r"wst_[a-z0-9_-]+\.json\.tmp-[0-9a-f]{16}")
_FIRST_ERRORS: Final = 3

T = TypeVar("T")

_log = structlog.get_logger("turns.handles.store")


@dataclass(frozen=True, slots=True)
class LoadedRecords:
    """All records that could be read, and what to say of the others."""

    records: tuple[TurnRecord, ...]
    warnings: tuple[str, ...] = ()
    """One for each file or directory that is left as it is: its path, what is wrong, the way out.
    """


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


@final
class FileTurnStore(TurnStore):
    """One JSON file a handle, under ``<state directory>/workspaces/<owner>/task-handles``.

    store = FileTurnStore(Path("state"))
    """

    def __init__(
        self,
        state_directory: Path,
        *,
        fsync: FsyncPolicy = "terminal",
        io: IoMode = "thread",
        on_step: Callable[[Step], None] | None = None,
    ) -> None:
        """Touches no file. ``on_step`` is called after each change on disk, for tests."""
        self._path = state_directory.absolute() / WORKSPACES_DIRECTORY
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
        try:
            return job() if self._io == "inline" else await lane().run(job)
        except HistoryError as error:
            raise TurnError("store", f"{error.path}: {error.message}", error.way_out) from error

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
        for warning in warnings:
            _log.warning("a record of a turn is left as it is", problem=warning)
        records.sort(key=lambda record: (record.created_at, record.handle_id))
        return LoadedRecords(tuple(records), tuple(warnings))

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
                except _Unusable as problem:
                    warnings.append(str(problem))
                except HistoryError as error:
                    warnings.append(str(error))


class _Unusable(Exception):
    """A file that is no record that can be used here."""


def _read(directory: OpenDirectory, owner: str, name: str) -> TurnRecord:
    path = directory.path_of(name)
    handle_id = name.removesuffix(_SUFFIX)
    if handle_id == name or not is_handle_id(handle_id):
        raise _Unusable(f"{path}: not the file of a handle. Move it away if it is not needed here.")
    content = directory.read(name)
    if content is None:
        raise _Unusable(f"{path}: removed while it was read. Nothing needs to be done.")
    try:
        fields: Any = json.loads(content.data)
    except (ValueError, RecursionError) as error:
        raise _Unusable(f"{path}: not JSON ({error}). Mend it, or move it away.") from error
    version = cast("dict[str, Any]", fields).get("version") if isinstance(fields, dict) else None
    if isinstance(version, int) and version > RECORD_VERSION:
        raise _Unusable(
            f"{path}: written by a newer version (format {version}, this one reads up to "
            f"{RECORD_VERSION}). Use that version to read it."
        )
    try:
        record = TurnRecord.model_validate_json(_without_halves(content.data, fields), strict=True)
    except ValidationError as error:
        raise _Unusable(
            f"{path}: not the record of a turn ({_first_of(error)}). Mend it, or move it away."
        ) from error
    if (record.handle_id, record.owner_workspace_id) != (handle_id, owner):
        raise _Unusable(
            f"{path}: the record of {record.handle_id} of {record.owner_workspace_id}. "
            "Move it to the directory of its owner, under its own name."
        )
    return record


def _without_halves(data: bytes, fields: Any) -> bytes:
    """``data`` with a question mark for each half of a character: the strict reader refuses it, and
    for that no turn shall be lost.
    """
    if rb"\ud" not in data.lower():
        return data
    return json.dumps(fields, ensure_ascii=False).encode("utf-8", "replace")


def _first_of(error: ValidationError) -> str:
    said = [
        f"{'.'.join(map(str, each['loc'])) or 'it'}: {each['msg']}"
        for each in error.errors(include_url=False)[:_FIRST_ERRORS]
    ]
    return "; ".join(said)
