"""AbortController and AbortSignal: how code that listens is told to stop."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Never, final

from fibers.effect import Effect, make_signals_with
from fibers.loop.protocol import FAIL
from fibers.misplaced import check_function
from fibers.ops.body import AbortsSignal
from fibers.ops.wait import CallbackOp

if TYPE_CHECKING:
    from collections.abc import Callable

    from fibers.cause import Cause
    from fibers.loop.run_loop import FiberCore

_log = logging.getLogger("fibers")


class AbortError(Exception):
    """The default reason of ``abort()``."""


class _Waiting(CallbackOp, Effect[object, Never]):
    __slots__ = ()

    def _awaited(self) -> str:
        return "the abort of a signal"


@final
class AbortSignal:
    """Says whether, and why, the work should stop. Made by an AbortController."""

    __slots__ = ("_aborted", "_listeners", "_reason")

    def __init__(self) -> None:
        self._aborted = False
        self._reason: object = None
        self._listeners: dict[object, Callable[[object], None]] = {}

    @property
    def aborted(self) -> bool:
        """Whether the work should stop."""
        return self._aborted

    @property
    def reason(self) -> object:
        """What ``abort`` was called with; None before."""
        return self._reason

    def wait(self) -> Effect[object, Never]:
        """Wait until it is aborted; gives the reason."""

        def register(resume: Callable[[Any], None]) -> Effect[Any, Never] | None:
            remove = self.add_listener(lambda reason: resume(Effect.succeed(reason)))
            return Effect.sync(remove)

        return _Waiting(register)

    def add_listener(self, f: Callable[[object], None]) -> Callable[[], None]:
        """Call ``f(reason)`` at the abort, or now if it has happened. Gives a function that stops
        it. What ``f`` raises is logged: one listener never keeps the abort from the others.
        """
        check_function(f, "add_listener")
        if self._aborted:
            _call(f, self._reason)
            return _nothing
        key = object()
        self._listeners[key] = f
        return lambda: self._listeners.pop(key, None) and None

    def _abort(self, reason: object) -> None:
        if self._aborted:
            return
        self._aborted = True
        self._reason = reason
        listeners = list(self._listeners.values())
        self._listeners.clear()
        for f in listeners:
            _call(f, reason)


def _nothing() -> None:
    return None


def _call(f: Callable[[object], None], reason: object) -> None:
    try:
        f(reason)
    except Exception:  # noqa: BLE001  # logged: one listener never keeps the abort from the others
        _log.exception("a listener of an abort signal raised")


@final
class AbortController:
    """Who may abort. ``controller.signal`` goes to who has to stop."""

    __slots__ = ("signal",)

    signal: AbortSignal

    def __init__(self) -> None:
        self.signal = AbortSignal()

    def abort(self, reason: object = None) -> None:
        """Abort once; later calls change nothing. Without a reason: an AbortError."""
        self.signal._abort(AbortError("aborted") if reason is None else reason)


class _SignalEnd(AbortsSignal):
    """Under a promise with a signal: aborts it when the fiber is interrupted there (PR4, PR5)."""

    __slots__ = ("controller",)

    def __init__(self, controller: AbortController) -> None:
        self.controller = controller

    def abort(self) -> None:
        self.controller.abort()

    def _err(self, fiber: FiberCore, cause: Cause[Any]) -> Any:
        if cause.has_interrupts:
            self.abort()
        fiber._cause = cause
        return FAIL


def _new_signal() -> tuple[AbortSignal, AbortsSignal]:
    controller = AbortController()
    return controller.signal, _SignalEnd(controller)


make_signals_with(_new_signal)
