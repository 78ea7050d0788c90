"""What a database refused, as a HistoryError that says what to do about it."""

from __future__ import annotations

import errno
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from ...model.errors import HistoryError

_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def reported(place: str) -> Generator[None]:
    """Turn what a database or its connection raises in the block into a HistoryError."""
    try:
        yield
    except (SQLAlchemyError, OSError) as error:
        raise _history_error(error, place) from error


def _history_error(error: SQLAlchemyError | OSError, place: str) -> HistoryError:
    cause: object = error.orig if isinstance(error, DBAPIError) and error.orig else error
    reason = str(cause) or type(cause).__name__
    # PostgreSQL has five letters for it, SQLite only words.
    state = str(getattr(cause, "sqlstate", None) or "")
    if (
        state in ("53100", "54000")
        or "database or disk is full" in reason
        or (isinstance(cause, OSError) and cause.errno in _NO_ROOM)
    ):
        return HistoryError(
            "disk_full",
            place,
            f"there is no room to write ({reason})",
            "Free some space where the database keeps its files and try again; what was stored "
            "before is still there.",
        )
    if (
        state in ("25006", "42501", "28000", "28P01")
        or "readonly" in reason
        or "unable to open database file" in reason
        or isinstance(cause, PermissionError)
    ):
        return HistoryError(
            "unwritable",
            place,
            f"not allowed to use it ({reason})",
            "Make the database readable and writable for the user of this process.",
        )
    return HistoryError(
        "io",
        place,
        f"the database did not do it ({reason})",
        "Look whether the database runs and can be reached, then try again; what was stored "
        "before is untouched.",
    )
