"""EventSpine: every event to every observer, in order, whatever an observer does."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar, final

import structlog

import fibers as fb

from ..model.events import (
    ErrorEvent,
    Event,
    StreamAbortEvent,
    StreamEndEvent,
    StreamStartEvent,
)
from .hooks import STREAM_END, STREAM_START, Hook, Step, Waterfall

C = TypeVar("C")

Observer = Callable[[Event], object]

_OF_HOOKS: Final = (StreamStartEvent, StreamEndEvent, StreamAbortEvent, ErrorEvent)
"""The events at which a hook is told: a tuple, which costs less to ask of each than a union."""

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
        self._hooked: dict[Hook[Any], dict[object, Callable[[Any], object]]] = {}
        self._waterfalls: dict[Hook[Any], Waterfall[Any]] = {}
        self._launched: set[str] = set()

    # ---- observers

    def subscribe(self, f: Observer) -> Callable[[], None]:
        """Call ``f(event)`` for each event from now on. Gives a function that stops it."""
        return _added(self._observers, f)

    def observe(self, hook: Hook[C], f: Callable[[C], object]) -> Callable[[], None]:
        """Call ``f`` with what happens at one hook: STREAM_START, STREAM_END, or one's own.

            spine.observe(STREAM_END, lambda event: released.add(event.message_id))

        It hears after the observers of all events. Gives a function that stops it.
        """
        return _added(self._hooked.setdefault(hook, {}), f)

    def notify(self, hook: Hook[C], what: C) -> None:
        """Tell the observers of ``hook``. Never raises."""
        if hook in self._hooked:
            _tell(self._hooked[hook], what, hook=hook.name)

    # ---- waterfalls

    def use(self, hook: Hook[C], step: Step[C], *, order: int = 0) -> Callable[[], None]:
        """Add a step to what is led through ``hook``; see Waterfall. Gives a function that takes it
        away.
        """
        waterfall = self._waterfalls.setdefault(hook, Waterfall(hook.name))
        return waterfall.use(step, order=order)

    def run(
        self, hook: Hook[C], context: C, terminal: Callable[[C], Awaitable[object]]
    ) -> fb.Effect[bool]:
        """Lead ``context`` through the steps of ``hook``, then to ``terminal``. Whether it came
        there.
        """
        waterfall: Waterfall[C] = self._waterfalls.get(hook) or Waterfall(hook.name)
        return waterfall.run(context, terminal)

    # ---- telling

    def emit(self, event: Event) -> None:
        """Hand ``event`` to every observer. Raises nothing but what ends the process."""
        _tell(self._observers, event, type=event.type, messageId=event.message_id)
        if not isinstance(event, _OF_HOOKS) or event.replay:
            return
        if isinstance(event, StreamStartEvent):
            if event.message_id not in self._launched:
                self._launched.add(event.message_id)
                self.notify(STREAM_START, event)
        # Aborted before its launch, it has a terminal event without a start.
        elif event.message_id in self._launched:
            self._launched.remove(event.message_id)
            self.notify(STREAM_END, event)


def _added(to: dict[object, Callable[[C], object]], f: Callable[[C], object]) -> Callable[[], None]:
    key = object()
    to[key] = f

    def remove() -> None:
        to.pop(key, None)

    return remove


def _tell(observers: dict[object, Callable[[C], object]], what: C, **about: str) -> None:
    for key in list(observers):
        f = observers.get(key)
        if f is None:
            continue  # an observer before it has unsubscribed it
        try:
            result = f(what)
        except (SystemExit, KeyboardInterrupt):
            raise  # the process ends
        # CancelledError too: the result of a cancelled future raises it, and it would pass for
        # an interrupt of whoever emits.
        except BaseException:  # noqa: BLE001  # logged; an observer reaches nobody else
            _log.exception("an observer raised", **about)
            continue
        # Nearly all give nothing, and asking costs as much as telling one.
        if result is not None and inspect.isawaitable(result):
            _run_detached(result)


def _run_detached(awaitable: Awaitable[Any]) -> None:
    def report(defect: BaseException) -> fb.Effect[None]:
        return fb.Effect.sync(lambda: _log.error("an async observer failed", exc_info=defect))

    fb.run_fork(fb.Effect.promise(lambda: awaitable).catch_defect(report))
