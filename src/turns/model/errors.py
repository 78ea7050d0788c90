"""The errors of turns as values."""

from __future__ import annotations

from typing import final


@final
class TurnError(Exception):
    """What was asked of a turn can't be had: ``kind`` says why, ``way_out`` what to do about it.

    raise TurnError("not_found", "there is no turn wst_1", "See the manager's `list`.")
    """

    def __init__(self, kind: str, message: str, way_out: str = "") -> None:
        super().__init__(kind, message, way_out)
        self.kind = kind
        self.message = message
        self.way_out = way_out

    def __str__(self) -> str:
        said = f"{self.kind}: {self.message}"
        return f"{said.removesuffix('.')}. {self.way_out}" if self.way_out else said
