"""How a command finds the server of its state directory: ``server.json``, while it runs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from streamengine import HistoryError
from streamengine.history import StateDirLocked
from streamengine.history.lock import StateDirLock

from .errors import HostError
from .state import read_private, remove, write_private

SERVER_FILE: Final = "server.json"


class ServerNote(BaseModel):
    """Where a server is. That it still runs is for the lock of the state directory to say."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)

    url: Annotated[str, Field(pattern=r"^http://[^/?#\s]+$")]
    """Without a path."""
    pid: Annotated[int, Field(ge=1)]


def announce(state: Path, url: str) -> None:
    """Say that this process serves at ``url``. Raises HostError."""
    write_private(state, SERVER_FILE, ServerNote(url=url, pid=os.getpid()).model_dump_json() + "\n")


def withdraw(state: Path) -> None:
    """Take the note back. Raises HostError."""
    remove(state, SERVER_FILE)


def find_running(state: Path) -> ServerNote | None:
    """The note of the server that works on ``state`` now, if there is one. Raises HostError."""
    # The lock is tried only where a note says that there is somebody: trying it takes it, for a
    # moment in which another server could not start.
    if read_private(state, SERVER_FILE) is None:
        return None
    try:
        with StateDirLock(state):
            return None  # left by one that was killed
    except StateDirLocked as locked:
        return None if locked.holder is None else find(state, locked.holder.pid)
    except HistoryError as error:
        raise HostError(str(error)) from error


def find(state: Path, pid: int) -> ServerNote | None:
    """The note of the process ``pid``, which holds the lock; that of another one is stale."""
    text = read_private(state, SERVER_FILE)
    if text is None:
        return None
    try:
        fields = cast("dict[str, Any]", json.loads(text))
        note = ServerNote.model_validate(fields)
    except (ValueError, ValidationError):
        return None
    return note if note.pid == pid else None
