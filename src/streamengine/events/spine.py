"""EventSpine: every event to every observer, in order, whatever an observer does."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, final

import structlog

import fibers as fb

from ..model.events import Event

Observer = Callable[[Event], object]

_log = structlog.get_logger("streamengine.events")


@final
class EventSpine:
    """Observers of the engine, in process.

    ``emit`` is a plain call: when it returns, every observer has had the event, in the order in
    which they subscribed. What an observer raises is logged and reaches nobody else. An observer
    that returns an awaitable isn't waited for; it runs in a fiber of its own.
    """

    def __init__(self) -> None:
        self._observers: dict[object, Observer] = {}

    def subscribe(self, f: Observer) -> Callable[[], None]:
        """Call ``f(event)`` for each event from now on. Gives a function that stops it."""
        key = object()
        self._observers[key] = f

        def unsubscribe() -> None:
            self._observers.pop(key, None)

        return unsubscribe

    def emit(self, event: Event) -> None:
        """Hand ``event`` to every observer. Never raises."""
        for key in list(self._observers):
            f = self._observers.get(key)
            if f is None:
                continue  # an observer before it has unsubscribed it
            try:
                result = f(event)
            # CancelledError too: the result of a cancelled future raises it, and it would pass for
            # an interrupt of whoever emits.
            except (Exception, asyncio.CancelledError):  # noqa: BLE001  # logged; an observer reaches nobody else
                _log.exception("an observer raised", type=event.type, messageId=event.message_id)
                continue
            if inspect.isawaitable(result):
                _run_detached(result)


def _run_detached(awaitable: Awaitable[Any]) -> None:
    def report(defect: BaseException) -> fb.Effect[None]:
        return fb.Effect.sync(lambda: _log.error("an async observer failed", exc_info=defect))

    fb.run_fork(fb.Effect.promise(lambda: awaitable).catch_defect(report))
