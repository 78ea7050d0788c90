"""Provider: where the parts of an answer come from."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from typing import Protocol, runtime_checkable

from fibers import AbortSignal

from ..model.parts import ProviderPart, UnknownPart
from ..model.request import StreamRequest
from ..model.usage import Usage


class Provider(Protocol):
    """A source of answers.

    ``stream`` may raise at once (a missing key, say): the start fails and nothing was emitted. The
    iterator is read by one fiber of the stream; it should end soon after ``signal`` is aborted, and
    is interrupted if it doesn't. A part of an unknown type is passed over. An iterator that learns
    what it cost only after its last part may be a ``LateUsage``.
    """

    def stream(
        self, request: StreamRequest, signal: AbortSignal
    ) -> AsyncIterator[ProviderPart | UnknownPart]:
        """Begin an answer, or its next step. ``request.history`` is the conversation before
        ``request.text``; ``request.so_far`` what earlier steps of this answer have said.
        """
        ...


@runtime_checkable
class LateUsage(Protocol):
    """What the iterator of an answer may have besides its parts: a promise of its usage.

    It is asked where no finish-step part has said what the answer cost, after the iterator has
    ended (and was perhaps closed). The stream waits for it at most a second, on its own clock.
    """

    def final_usage(self) -> Awaitable[Usage | None]:
        """Tokens of everything that this iterator gave; None where that is not known."""
        ...
