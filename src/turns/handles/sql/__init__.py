"""Records of turns in the database of a history. Needs the extra `sql`."""

from __future__ import annotations

from .store import SqlTurnStore

__all__ = ["SqlTurnStore"]
