"""Ids of handles and turns, and the one place that says what a valid one is."""

from __future__ import annotations

import hashlib
import re
import uuid
from typing import Annotated, Final

from pydantic import AfterValidator

from streamengine.model import check_id

_HANDLE_ID: Final = re.compile(r"wst_[a-z0-9][a-z0-9_-]{0,59}")


def is_handle_id(value: str) -> bool:
    """Whether ``value`` can name a handle, and so its file."""
    return _HANDLE_ID.fullmatch(value) is not None


def check_handle_id(value: str) -> str:
    """``value`` itself, or ValueError when it can't name a handle."""
    if not is_handle_id(value):
        raise ValueError(
            f"{value[:80]!r} is not a handle id: wst_ and 1 to 60 of a-z, 0-9, '_' and '-', "
            "of which the first is a letter or a digit"
        )
    return value


HandleId = Annotated[str, AfterValidator(check_handle_id)]
TurnId = Annotated[str, AfterValidator(check_id)]


def new_handle_id() -> str:
    """An id for a handle."""
    return f"wst_{uuid.uuid4().hex}"


def handle_id_of(owner: str, workspace_id: str, client_turn_id: str) -> str:
    """The id for a handle that a client's own name of the turn leads to, the same each time."""
    named = "\0".join((owner, workspace_id, client_turn_id)).encode("utf-8", "surrogatepass")
    return f"wst_{hashlib.sha256(named).hexdigest()[:32]}"


def new_turn_id() -> str:
    """An id for a turn."""
    return f"turn_{uuid.uuid4().hex}"
