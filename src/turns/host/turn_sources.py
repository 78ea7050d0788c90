"""Where a command finds the turns: at the server that runs, else on the state directory itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar, cast, final

import httpx
from pydantic import ValidationError

import fibers as fb
from fibers import Effect, Scope
from streamengine import HistoryError
from streamengine.history import StateDirLocked
from streamengine.redact import Secret

from ..handles.book import Book
from ..handles.settlement import Settlement
from ..handles.store import TurnStore
from ..handles.waiters import Waiters
from ..model.cause import ExplicitInterrupt
from ..model.errors import TurnError
from ..model.record import TurnRecord
from . import discovery, token
from .errors import HostError
from .histories import open_history, open_turn_store
from .remote import broken, check, client_of
from .state import is_there, located, prepare
from .stops import USER
from .turns_api import TURNS_PATH

A = TypeVar("A")

_NOT_FOUND: Final = 404


@dataclass(frozen=True, slots=True)
class Listed:
    """All turns, the oldest first, and what could not be read."""

    records: tuple[TurnRecord, ...]
    warnings: tuple[str, ...]


class TurnSource(Protocol):
    """The turns of one state directory, for a command. Every method may raise HostError."""

    async def all(self) -> Listed: ...

    async def one(self, handle_id: str) -> TurnRecord | None:
        """None where there is no such turn, or its record can't be read."""
        ...

    async def interrupt(self, handle_id: str, *, hard: bool) -> str:
        """End a turn; gives what became of it, for a person."""
        ...


@dataclass(frozen=True, slots=True)
class Place:
    """What turns a command is about."""

    state: Path
    database: Secret | None = None
    """Where no server runs: what records are kept in, see ServeConfig."""


@fb.effect(raises=(HostError, HistoryError))
async def with_turns(place: Place, ask: Callable[[TurnSource], Effect[A, HostError]]) -> A:
    """What ``ask`` gives of the turns: of the server that works on the state directory, if there
    is one, else of the directory itself, which is locked meanwhile.
    """
    state = located(place.state)
    if not is_there(state):
        # Not made: whoever looks at turns has mistyped it.
        raise HostError(f"there is no state directory {state}: name the right one with --state")
    prepare(state)
    outer = Scope(name="turns")
    try:
        return await outer.use(_ask_directory(state, place.database, ask))
    except StateDirLocked as locked:
        note = None if locked.holder is None else discovery.find(state, locked.holder.pid)
        if note is None:
            raise  # not by a server, or by one that is only starting
        return await _ask_server(state, note.url, ask)


# ---------------------------------------------------------------------------- the server


@fb.effect(raises=HostError)
async def _ask_server(
    state: Path, url: str, ask: Callable[[TurnSource], Effect[A, HostError]]
) -> A:
    try:
        async with client_of(url, token.load(state)) as client:
            return await ask(_ServerTurns(client))
    except httpx.HTTPError as error:
        raise broken(error) from error


@final
class _ServerTurns(TurnSource):
    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def all(self) -> Listed:
        response = await self._client.get(TURNS_PATH)
        if response.status_code == _NOT_FOUND:
            raise HostError("the server that runs has no turns: start it anew, with this version")
        await check(response)
        fields = cast("dict[str, Any]", response.json())
        records = tuple(_record_of(each) for each in fields["turns"])
        return Listed(records, tuple(fields["warnings"]))

    async def one(self, handle_id: str) -> TurnRecord | None:
        response = await self._client.get(f"{TURNS_PATH}/{handle_id}")
        if response.status_code == _NOT_FOUND:
            return None
        await check(response)
        return _record_of(response.json())

    async def interrupt(self, handle_id: str, *, hard: bool) -> str:
        path = f"{TURNS_PATH}/{handle_id}/interrupt"
        await check(await self._client.post(path, json={"hard": hard}))
        if not hard:
            return f"{handle_id} ends with one last answer"
        record = await self.one(handle_id)
        return _outcome(record) if record is not None else f"{handle_id} has ended"


def _record_of(fields: Mapping[str, Any]) -> TurnRecord:
    try:
        return TurnRecord.model_validate(fields)
    except ValidationError as error:
        raise HostError(
            "the server tells of a turn that this version can't read: use the server's own version"
        ) from error


# ---------------------------------------------------------------------------- the directory


@fb.effect(raises=(HostError, HistoryError))
async def _ask_directory(
    state: Path, database: Secret | None, ask: Callable[[TurnSource], Effect[A, HostError]]
) -> A:
    store = await open_turn_store(state, await open_history(state, database))
    return await ask(_StoredTurns(state, store))


@final
class _StoredTurns(TurnSource):
    """Records that nothing works on. Nothing of them begins here: that is for a server."""

    def __init__(self, state: Path, store: TurnStore) -> None:
        self._state = state
        self._book = Book(store)
        self._settlement = Settlement(self._book, Waiters(), release=_nothing, afterwards=_nothing)

    async def all(self) -> Listed:
        try:
            await self._book.load()
        except TurnError as error:
            raise _of_turn_error(error) from error
        return Listed(tuple(self._book.all()), self._book.warnings)

    async def one(self, handle_id: str) -> TurnRecord | None:
        await self.all()
        return self._book.find(handle_id)

    async def interrupt(self, handle_id: str, *, hard: bool) -> str:
        if hard:
            raise HostError(
                f"no server runs on {self._state}, and so nothing of a turn that could be taken "
                "back: without --hard it is settled as interrupted"
            )
        await self.all()
        try:
            verdict = await self._settlement.settle(handle_id, ExplicitInterrupt(by=USER))
        except TurnError as error:
            raise _of_turn_error(error) from error
        if not verdict.is_new:
            raise HostError(f"the turn {handle_id} is {verdict.record.status}")
        return _outcome(verdict.record)


def _outcome(record: TurnRecord) -> str:
    return f"{record.handle_id} is {record.status}: {record.error or record.cause or 'no reason'}"


def _of_turn_error(error: TurnError) -> HostError:
    return HostError(f"{error.message}. {error.way_out}" if error.way_out else error.message)


def _nothing(_record: TurnRecord) -> None:
    """No process has to be told: what is due after a turn, the next start does."""
