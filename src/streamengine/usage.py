"""What a stream costs: the usage of its steps, summed as they end, and the late word of a provider.

A step's usage counts once, when its finish-step arrives. Nothing is taken back by a retry or a
change of the model: what was used was used (E22).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, final

import structlog

import fibers as fb

from .model.events import UsageDeltaEvent
from .model.plain import plain_mapping
from .model.usage import Usage

if TYPE_CHECKING:
    from .providers.base import LateUsage
    from .stream import Stream

LATE_USAGE_SECONDS: Final = 1.0
"""How long a stream that is otherwise complete waits for each provider call's late usage."""

_log = structlog.get_logger("streamengine.usage")


@final
class UsageMeter:
    """The sums of one stream."""

    def __init__(self) -> None:
        self.steps: int = 0
        """How many steps have said what they cost."""
        self.total: Usage = Usage()
        self.last_step: Usage | None = None
        self.provider_metadata: dict[str, Any] = {}
        """What providers said beside the numbers; of each one's entry the last."""

    def add(self, step: Usage, provider_metadata: Mapping[str, Any] | None = None) -> None:
        """Count the usage of one step."""
        self.steps += 1
        self.total = self.total.plus(step)
        self.last_step = step
        self.provider_metadata.update(provider_metadata or {})

    @property
    def spent(self) -> Usage | None:
        """The sum, if anything was used."""
        return self.total if self.total.is_spent else None

    @property
    def metadata(self) -> dict[str, Any]:
        """Its part of a row's metadata."""
        return {
            "usage": self.spent,
            "context_usage": None if self.spent is None else self.last_step,
            "provider_metadata": self.provider_metadata or None,
        }


def count_step(
    stream: Stream, usage: Usage, provider_metadata: Mapping[str, Any] | None = None
) -> UsageDeltaEvent:
    """Count a step of ``stream``; gives the event that tells of it."""
    metadata = plain_mapping(provider_metadata)
    stream.usage.add(usage, metadata)
    stream.last_usage = UsageDeltaEvent(
        **stream.about,
        usage=usage,
        cumulative_usage=stream.usage.total,
        provider_metadata=metadata,
        cumulative_provider_metadata=dict(stream.usage.provider_metadata) or None,
    )
    return stream.last_usage


@fb.effect
async def late_usage(stream: Stream, promise: LateUsage) -> Usage | None:
    """What ``promise`` says within its second, on the clock of the stream; None where it says
    nothing, fails, or the stream is stopped meanwhile. Never fails.
    """
    # In a fiber of the stream: a promise that ignores its interrupt is the scope's to abandon.
    asking = await fb.Effect.promise(promise.final_usage).fork_in(stream.work)
    stream.put_to_work(asking, "late usage")
    bound = stream.clock.sleep(LATE_USAGE_SECONDS)
    await fb.race_all_first([asking.exit(), bound, stream.controller.signal.wait()])
    exit_ = asking.poll()
    if isinstance(exit_, fb.Success):
        said = exit_.unwrap()
        return said if isinstance(said, Usage) else None
    asking.interrupt_unsafe(reason="the stream does not wait for it any longer")
    _log.warning(
        "the late usage of a provider is not known",
        workspaceId=stream.workspace_id,
        messageId=stream.message_id,
        error="it did not come in time" if exit_ is None else repr(exit_.failure().squash()),
    )
    return None
