"""Subscribers: who is told of something, each apart from the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar, final

import structlog

T = TypeVar("T")

_log = structlog.get_logger("turns.subscribers")


@final
class Subscribers(Generic[T]):
    """Those who are told of ``what``, in the order in which they came."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._subscribers: list[Callable[[T], object]] = []

    def subscribe(self, f: Callable[[T], object]) -> Callable[[], None]:
        """Call ``f`` from now on; gives what ends that."""
        self._subscribers.append(f)
        return lambda: None if f not in self._subscribers else self._subscribers.remove(f)

    def tell(self, value: T) -> None:
        """Call them all. Never raises: a failure of one is logged."""
        for f in tuple(self._subscribers):
            try:
                f(value)
            except Exception as error:  # noqa: BLE001  # a subscriber's failure is its own
                _log.warning(f"a subscriber of {self._what} failed", error=repr(error))
