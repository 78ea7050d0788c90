"""Provider: where the parts of an answer come from."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from fibers import AbortSignal

from ..model.parts import ProviderPart, UnknownPart
from ..model.request import StreamRequest


class Provider(Protocol):
    """A source of answers.

    ``stream`` may raise at once (a missing key, say): the start fails and nothing was emitted. The
    iterator is read by one fiber of the stream; it should end soon after ``signal`` is aborted, and
    is interrupted if it doesn't. A part of an unknown type is passed over.
    """

    def stream(
        self, request: StreamRequest, signal: AbortSignal
    ) -> AsyncIterator[ProviderPart | UnknownPart]:
        """Begin an answer. ``request.history`` is the conversation before ``request.text``."""
        ...
