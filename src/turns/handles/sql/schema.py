"""The tables of the records, and how a database of an older version gets them.

They have a version of their own: those of the history beside them change without them.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import Column, Connection, Integer, MetaData, Table

from streamengine.history.sql.texts import Body, Name
from streamengine.history.sql.versions import Migration, bring_up

_metadata: Final = MetaData()
_ID: Final = Name(64)

version_table: Final = Table("turn_schema", _metadata, Column("version", Integer, nullable=False))

records: Final = Table(
    "turn_records",
    _metadata,
    Column("handle_id", _ID, primary_key=True),
    Column("owner_workspace_id", _ID, nullable=False),
    Column("body", Body, nullable=False),
)
"""A body is the same JSON as the file of a handle, on one line."""

MIGRATIONS: list[Migration] = [_metadata.create_all]
"""Each brings a database from the version of its place to the next one. Only ever added to."""


def migrate(connection: Connection, place: str) -> int:
    """Bring the tables of the records to this version; as ``bring_up``."""
    return bring_up(connection, version_table, MIGRATIONS, place)
