"""Conversations in a database: SQLite, embedded, or PostgreSQL. Needs the extra `sql`."""

from __future__ import annotations

try:
    from .store import SqlHistory
except ModuleNotFoundError as _error:
    if _error.name not in ("sqlalchemy", "asyncpg"):
        raise
    raise ModuleNotFoundError(
        f"{_error.name} is not installed; a history in a database needs the extra: "
        "pip install 'fiberscope[sql]'",
        name=_error.name,
    ) from _error

__all__ = ["SqlHistory"]
