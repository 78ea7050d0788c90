"""Done: what a source of items fails with when it has come to its end as planned."""

from __future__ import annotations

from typing import final


@final
class Done(Exception):
    """Everything was taken and no more will come: the failure of a ``take`` after ``Queue.end``."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Done)

    def __hash__(self) -> int:
        return hash(Done)
