"""The source's side of a subscription: plain calls that never raise and never wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Generic, Protocol, TypeVar, final

import structlog

from fibers import AbortController, AbortSignal, Effect

from .buffer import Buffer, BufferAll, SubscriptionOverflowError, Waiting

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)

_log = structlog.get_logger("streamengine.events")


class Sink(Protocol[T_contra]):
    """Where a source puts its values. Plain calls, in the event loop of the consumer."""

    def push(self, value: T_contra, /) -> None:
        """Hand over a value. Never raises, never waits; nothing once it has ended."""
        ...

    def end(self) -> None:
        """No more values. What waits is still delivered."""
        ...


@final
class Feed(Generic[T]):
    """What a source has handed over and nobody has taken. It knows nothing of its consumer, so
    that one who was dropped without a close can be collected, and the source is left then too.
    """

    def __init__(self, buffer: Buffer[T]) -> None:
        self.waiting: Waiting[T] = Waiting(buffer)
        self.ended: bool = False
        self.overflow: SubscriptionOverflowError | None = None
        """Set where the consumer shall get it, after what waits."""
        self.stale: bool = False
        """Values were dropped, and are until the next snapshot is begun."""
        self.ticked: bool = False
        """Time has passed since the consumer looked at the clock."""
        self._closed = False  # nothing more is taken from the source
        self._stopping: Final = AbortController()
        self._detach: Callable[[], object] | None = None
        self._resume: Callable[[Effect[None]], None] | None = None

    # ---- the source

    def push(self, value: T, /) -> None:
        if self._closed or self.stale:
            return
        if not self.waiting.put(value):
            self._overflow()
        self._wake()

    def end(self) -> None:
        if not self._closed:
            self.ended = True
            self._close()
            self._wake()

    def tick(self) -> None:
        """Let the consumer look at the clock."""
        self.ticked = True
        self._wake()

    def _overflow(self) -> None:
        rules = self.waiting.rules
        assert isinstance(rules, BufferAll)
        if rules.on_overflow is not None:
            _call(rules.on_overflow, "an overflow could not be told")
        if rules.overflow == "snapshot":
            self.waiting.clear()
            self.stale = True
            return
        if rules.overflow == "raise":
            self.overflow = SubscriptionOverflowError(rules.limit)
        self._close()

    # ---- the consumer

    @property
    def stopped(self) -> bool:
        return self._stopping.signal.aborted

    @property
    def stopping(self) -> AbortSignal:
        return self._stopping.signal

    @property
    def closed(self) -> bool:
        """Whether what waits is all that comes."""
        return self._closed

    def attach(self, detach: Callable[[], object]) -> None:
        """How to leave the source; done at once where the end came before this."""
        self._detach = detach
        if self._closed:
            self._leave()

    def stop(self) -> None:
        """The consumer wants no more: leave the source, drop what waits. Twice is once."""
        self.waiting.clear()
        self._close()
        self._stopping.abort()
        self._wake()

    def arrival(self) -> Effect[None]:
        """Wait until there is something to look at."""

        def register(resume: Callable[[Any], None]) -> Effect[Any] | None:
            if self.waiting or self._closed or self.stale or self.ticked:
                resume(Effect.succeed(None))
                return None
            self._resume = resume
            return Effect.sync(self._nobody_waits)

        return Effect.callback(register)

    def _nobody_waits(self) -> None:
        self._resume = None

    def _wake(self) -> None:
        resume, self._resume = self._resume, None
        if resume is not None:
            resume(Effect.succeed(None))

    def _close(self) -> None:
        self._closed = True
        self._leave()

    def _leave(self) -> None:
        detach, self._detach = self._detach, None
        if detach is not None:
            _call(detach, "leaving a source failed")


def _call(f: Callable[[], object], problem: str) -> None:
    try:
        f()
    except Exception:  # noqa: BLE001  # neither the source nor the consumer can do anything about it
        _log.exception(problem)
