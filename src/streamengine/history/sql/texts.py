"""Texts of tables. SQLite keeps in a column of text whatever it was given, and must not make an
error of all rows for one of them: what is no text is read with its odd bytes as ``\\xff``, which is
no JSON and no id.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Dialect, String, Text
from sqlalchemy.types import TypeDecorator, TypeEngine


def decoded(data: bytes) -> str:
    """The text that these bytes are, or show as."""
    return data.decode("utf-8", "backslashreplace")


class Name(TypeDecorator[str]):
    """A text of so many characters at most."""

    impl: TypeEngine[Any] | type[TypeEngine[Any]] = String
    cache_ok: bool | None = True

    def process_result_value(self, value: str | bytes | None, dialect: Dialect) -> str | None:
        return _told(value)


class Body(TypeDecorator[str]):
    """A text of any length."""

    impl: TypeEngine[Any] | type[TypeEngine[Any]] = Text
    cache_ok: bool | None = True

    def process_result_value(self, value: str | bytes | None, dialect: Dialect) -> str | None:
        return _told(value)


def _told(value: str | bytes | None) -> str | None:
    return decoded(value) if isinstance(value, bytes) else value
