"""Versions of tables: how those of an older version are brought to this one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from sqlalchemy import Connection, Table, insert, inspect, select, update

from ...model.errors import HistoryError

Migration: TypeAlias = Callable[[Connection], None]


def bring_up(
    connection: Connection, versions: Table, migrations: Sequence[Migration], place: str
) -> int:
    """Bring tables to this version, in the transaction of the connection; gives the version that
    they had. ``versions`` holds it; each migration leads from the version of its place to the next.

    Raises HistoryError ("newer_version": another version of this program made them).
    """
    version = 0
    if inspect(connection).has_table(versions.name):
        version = connection.scalar(select(versions.c.version)) or 0
    if version > len(migrations):
        raise HistoryError(
            "newer_version",
            place,
            f"its tables have version {version}; this program knows them up to {len(migrations)}",
            "Use the program that made them, or a newer one; nothing was changed.",
        )
    for migration in migrations[version:]:
        migration(connection)
    if version == 0:
        connection.execute(insert(versions).values(version=len(migrations)))
    elif version < len(migrations):
        connection.execute(update(versions).values(version=len(migrations)))
    return version
