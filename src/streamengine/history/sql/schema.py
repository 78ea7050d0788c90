"""The tables, and how a database of an older version gets them.

A row's body is the same JSON as a line of `chat.jsonl`; the columns beside it are what is looked
for. What can be any text (a client's id of its message) is looked for by its digest: an index has
a greatest length, and not every database stores every character.
"""

from __future__ import annotations

import hashlib
from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Index,
    Integer,
    MetaData,
    Table,
    UniqueConstraint,
)

from .texts import Body, Name
from .versions import Migration, bring_up

_metadata: Final = MetaData()
_ID: Final = Name(64)
# SQLite numbers by itself only what is declared as its INTEGER.
_NUMBER: Final = BigInteger().with_variant(Integer, "sqlite")

version_table: Final = Table(
    "history_schema", _metadata, Column("version", Integer, nullable=False)
)

rows: Final = Table(
    "history_rows",
    _metadata,
    Column("number", _NUMBER, primary_key=True),
    Column("workspace_id", _ID, nullable=False),
    Column("sequence", BigInteger, nullable=False),
    Column("message_id", _ID, nullable=False),
    Column("role", Name(16), nullable=False),
    Column("client_key", Name(64)),
    Column("is_boundary", Boolean, nullable=False),
    Column("is_partial", Boolean, nullable=False),
    Column("has_usage", Boolean, nullable=False),
    Column("is_archived", Boolean, nullable=False),
    Column("body", Body, nullable=False),
    UniqueConstraint("workspace_id", "sequence", name="history_rows_by_sequence"),
    Index("history_rows_by_message", "workspace_id", "message_id"),
    Index("history_rows_by_client", "workspace_id", "client_key"),
)

partials: Final = Table(
    "history_partials",
    _metadata,
    Column("workspace_id", _ID, primary_key=True),
    Column("message_id", _ID, nullable=False),
    Column("sequence", BigInteger),
    Column("body", Body, nullable=False),
)

partial_log: Final = Table(
    "history_partial_log",
    _metadata,
    Column("number", _NUMBER, primary_key=True),
    Column("workspace_id", _ID, nullable=False),
    Column("lines", Body, nullable=False),
    Index("history_partial_log_by_workspace", "workspace_id", "number"),
)

usage: Final = Table(
    "history_usage",
    _metadata,
    Column("number", _NUMBER, primary_key=True),
    Column("workspace_id", _ID, nullable=False),
    Column("message_id", _ID, nullable=False),
    Column("body", Body, nullable=False),
    UniqueConstraint("workspace_id", "message_id", name="history_usage_by_message"),
)

notes: Final = Table(
    "history_notes",
    _metadata,
    Column("workspace_id", _ID, primary_key=True),
    Column("body", Body, nullable=False),
)

aside: Final = Table(
    "history_aside",
    _metadata,
    Column("number", _NUMBER, primary_key=True),
    Column("workspace_id", _ID, nullable=False),
    Column("kind", Name(16), nullable=False),
    Column("reason", Body, nullable=False),
    Column("body", Body, nullable=False),
)
"""What was in the way or could not be read: kept for a person to look at."""

holder: Final = Table("history_holder", _metadata, Column("body", Body, nullable=False))
"""The process that uses this database, in one row; only so that a refusal can name it."""


MIGRATIONS: list[Migration] = [_metadata.create_all]
"""Each brings a database from the version of its place to the next one. Only ever added to."""


def client_key(client_message_id: str) -> str:
    """What a client's id of its message is looked for by."""
    return hashlib.sha256(client_message_id.encode("utf-8", "surrogatepass")).hexdigest()


def migrate(connection: Connection, place: str) -> int:
    """Bring the history's tables to this version; as ``bring_up``."""
    return bring_up(connection, version_table, MIGRATIONS, place)
