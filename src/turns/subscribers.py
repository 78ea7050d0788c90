"""Subscribers: who is told of something, each apart from the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar, final

import structlog

from streamengine.payloads import text_of

T = TypeVar("T")

_log = structlog.get_logger("turns.subscribers")


@final
class Subscribers(Generic[T]):
    """Those who are told of ``what``, in the order in which they came."""

    def __init__(self, what: str) -> None:
        self._what = what
        # By a key of its own each: the same function may come twice, and go once.
        self._subscribers: dict[object, Callable[[T], object]] = {}

    def __len__(self) -> int:
        return len(self._subscribers)

    def subscribe(self, f: Callable[[T], object]) -> Callable[[], None]:
        """Call ``f`` from now on; gives what ends that."""
        key = object()
        self._subscribers[key] = f

        def stop() -> None:
            self._subscribers.pop(key, None)

        return stop

    def tell(self, value: T) -> None:
        """Call them all. A failure of one is logged; only what ends the process is raised."""
        for f in tuple(self._subscribers.values()):
            try:
                f(value)
            except (SystemExit, KeyboardInterrupt):
                raise  # the process ends
            # CancelledError too: it would pass for an interrupt of whoever tells.
            except BaseException as error:  # noqa: BLE001  # its own
                _log.warning(f"a subscriber of {self._what} failed", error=text_of(error))
