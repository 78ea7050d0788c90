"""From the URL of a history to where conversations and the records of turns are kept: files, or a
database.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from importlib import import_module
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, unquote

import fibers as fb
from streamengine import FileHistory, HistoryError, HistoryStore
from streamengine.history import hold
from streamengine.redact import Secret

from ..handles.store import FileTurnStore, TurnStore
from .errors import HostError, UsageError
from .logs import keep_secret

HISTORY_VARIABLE: Final = "FIBERSCOPE_HISTORY"
KNOWN: Final = "sqlite:////path/to/file or postgresql://user@host/name"
"""What ``--history`` may be, for a person."""

_DRIVERS: Final[Mapping[str, Collection[str]]] = {
    # The first is Python's own, whichever of the two a URL names.
    "sqlite": ("pysqlite", "aiosqlite"),
    "postgresql": ("asyncpg",),
}
_NEEDED: Final[Mapping[str, Collection[str]]] = {
    "sqlite": ("sqlalchemy",),
    "postgresql": ("sqlalchemy", "asyncpg"),
}
_SCHEME: Final = re.compile(r"([a-z][a-z0-9]{0,31})(?:\+([a-z][a-z0-9]{0,31}))?://")
_PASSWORD: Final = re.compile(r"://[^:/@]*:(?P<password>.*)@", re.DOTALL)


def database_of(url: str) -> Secret:
    """The URL of a database, once it makes sense. No log shows its password from then on.

    Raises UsageError; what is only wrong with the database itself is found out by its opening.
    """
    for password in _passwords_in(url):
        keep_secret(password)
    found = _SCHEME.match(url)
    if found is None:
        # Not quoted: it may be anything.
        raise UsageError(f"--history: that is no URL of a database: use {KNOWN}")
    kind, driver = found[1], found[2]
    if kind not in _DRIVERS:
        raise UsageError(f"--history: there is no kind of database {kind!r}: use {KNOWN}")
    if driver not in (None, *_DRIVERS[kind]):
        used = next(iter(_DRIVERS[kind]))
        raise UsageError(f"--history: {kind} is used through {used}, not {driver!r}")
    return Secret(url)


def kind_of(database: Secret | None) -> str:
    """What conversations are kept in, in a word that may be shown."""
    return "files" if database is None else database.reveal().partition("://")[0].partition("+")[0]


@fb.effect(raises=(HistoryError, HostError))
async def open_history(state: Path, database: Secret | None) -> HistoryStore:
    """The history, for as long as the scope in the context lives; None: in the state directory.

    The state directory is locked in any case: its token and its note are of one process. Fails with
    HostError where the extra isn't installed, else with what the history's own opening says.
    """
    if database is None:
        return await FileHistory.open(state)
    await hold(state)
    _check_installed(kind_of(database))
    # Only here: it is an extra.
    from streamengine.history.sql import SqlHistory

    return await SqlHistory.open(database.reveal())


@fb.effect(raises=HistoryError)
async def open_turn_store(state: Path, history: HistoryStore) -> TurnStore:
    """Where the records of turns are kept: in the state directory, or in the database that
    ``history`` is in; with that one's lock, and for as long as it is open.

    ``history``: what ``open_history`` gave for this state directory. Fails with "newer_version".
    """
    if isinstance(history, FileHistory):
        return FileTurnStore(state)
    # Only here: it is an extra.
    from streamengine.history.sql import SqlHistory

    from ..handles.sql import SqlTurnStore

    assert isinstance(history, SqlHistory), "open_history gives no other"
    return await SqlTurnStore.open(history)


def _check_installed(kind: str) -> None:
    for name in _NEEDED[kind]:
        try:
            import_module(name)
        except ImportError as error:
            raise HostError(
                f"--history: {name} isn't installed: pip install 'fiberscope[sql]' ({error})"
            ) from error


def _passwords_in(url: str) -> list[str]:
    """As they stand in the URL, and as they are meant."""
    found = _PASSWORD.search(url)
    written = [] if found is None else [found["password"]]
    query = parse_qsl(url.partition("?")[2])
    written += [value for name, value in query if "pass" in name.lower()]
    return [form for text in written for form in (text, unquote(text))]
