"""Ids of workspaces and messages, and the one place that says what a valid id is.

A workspace id becomes the name of a directory, so the alphabet is narrow on purpose: no dot, no
slash, no upper case (two ids never meet on a file system that ignores case).
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Annotated, Final

from pydantic import AfterValidator

# `$` would also match before a newline at the end; fullmatch doesn't.
_ID = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")

_KEPT_IDS: Final = 1024
"""How many valid ids are remembered: every event of a stream brings the same two."""


def is_valid_id(value: str) -> bool:
    """Whether `value` can name a workspace or a message."""
    return _ID.fullmatch(value) is not None


@lru_cache(_KEPT_IDS)
def check_id(value: str) -> str:
    """`value` itself, or ValueError when it can't name a workspace or a message."""
    if not is_valid_id(value):
        shown = value if len(value) <= 80 else value[:80] + "..."
        raise ValueError(
            f"{shown!r} is not a valid id: 1 to 64 of a-z, 0-9, '_' and '-', "
            "starting with a letter or a digit"
        )
    return value


WorkspaceId = Annotated[str, AfterValidator(check_id)]
MessageId = Annotated[str, AfterValidator(check_id)]
