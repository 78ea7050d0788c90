"""Continuations: whether more of a turn is to come when one of its streams ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, final, runtime_checkable


class ContinuationPending(Protocol):
    """Asked at the end of a stream of a turn, by a plain call."""

    def __call__(self, message_id: str, /) -> bool:
        """Whether the turn goes on after that message: queued steering, results of tools to be
        answered, a prompt that recovers what was cut.
        """
        ...


@runtime_checkable
class TakesAnswers(Protocol):
    """A ``ContinuationPending`` that also says which message is the answer of its turn."""

    def takes(self, message_id: str, /) -> bool:
        """Whether the turn has taken that message as its answer, although the model was cut off in
        it: it was asked again as often as it may be. Asked at the end of the stream.
        """
        ...


@final
class Continuations:
    """What the runners of turns say of that, by turn id.

        done = continuations.register(turn.turn_id, lambda message_id: bool(steering))
        ...
        done()                 # nothing more comes: an end that waited for it settles the turn

    A runner registers before it starts its first stream. Its own end is a ``done`` as well.
    """

    def __init__(self) -> None:
        self._pending: dict[str, ContinuationPending] = {}
        self.on_done: Callable[[str], object] = lambda _turn_id: None
        """Told of each ``done``: the manager looks again at what waited."""

    def register(self, turn_id: str, pending: ContinuationPending) -> Callable[[], None]:
        """Ask ``pending`` from now on. Gives what takes it back."""
        self._pending[turn_id] = pending

        def done() -> None:
            if self._pending.get(turn_id) is pending:
                del self._pending[turn_id]
                self.on_done(turn_id)

        return done

    def is_pending(self, turn_id: str, message_id: str) -> bool:
        """Whether more of this turn is to come after that message."""
        pending = self._pending.get(turn_id)
        return pending is not None and pending(message_id)

    def is_taken(self, turn_id: str, message_id: str) -> bool:
        """Whether that message is the turn's answer, however it ended."""
        pending: object = self._pending.get(turn_id)
        return isinstance(pending, TakesAnswers) and pending.takes(message_id)

    def forget(self, turn_id: str) -> None:
        """The turn is over, or its runner is."""
        self._pending.pop(turn_id, None)
