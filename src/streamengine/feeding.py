"""Feeding: the fiber that reads a provider and hands its parts to the pump (BT4)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import structlog

import fibers as fb

from .model.errors import StreamError
from .model.parts import ProviderPart, UnknownPart
from .payloads import text_of, type_of

if TYPE_CHECKING:
    from .handoff import Handoff
    from .stream import Stream

_log = structlog.get_logger("streamengine.feeding")

Parts: TypeAlias = AsyncIterator[ProviderPart | UnknownPart]
"""What a provider answers."""


def feed(parts: Parts, handoff: Handoff, stream: Stream) -> fb.Effect[None]:
    """Read the provider; however that ends, the pump hears of it, and the iterator is closed in
    this fiber and its Context: leaving a loop doesn't close a generator.
    """

    @fb.effect
    async def hand_over() -> None:
        # Part after part; each waits until the one before was taken (BT4).
        async for part in parts:
            if not await handoff.give(part):
                return

    def over(exit_: fb.Exit[None, Any]) -> fb.Effect[None]:
        # Before the close, which may take its time or never end: the answer has ended.
        handoff.end(_raised(exit_))
        return close_parts(parts, stream)

    return hand_over().on_exit(over)


@fb.effect
async def close_parts(parts: object, stream: Stream) -> None:
    """Close a provider's iterator. What that raises is logged: the answer is what was read."""
    close: Callable[[], Awaitable[object]] | None = getattr(parts, "aclose", None)
    if close is None:
        return
    exit_ = await fb.Effect.promise(close).exit()
    if isinstance(exit_, fb.Failure):
        _log.warning(
            "a provider's iterator failed to close",
            workspaceId=stream.workspace_id,
            messageId=stream.message_id,
            error=text_of(exit_.failure().squash()),
        )


def _raised(exit_: fb.Exit[None, Any]) -> Exception | None:
    """What ended the reading of a provider, as something that the pump can raise and catch."""
    if not isinstance(exit_, fb.Failure):
        return None
    exc = exit_.failure().squash()
    if isinstance(exc, Exception):
        return exc
    # A CancelledError would pass for an interrupt of the pump.
    error = StreamError(type_of(exc), f"the provider raised {type(exc).__name__}")
    error.__cause__ = exc
    return error
