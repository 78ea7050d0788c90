"""Hold: what all that a turn holds has in common, and how it is given back."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, ClassVar, Final, Protocol

import structlog

import fibers as fb
from fibers import Clock
from streamengine.abandoned import ended_within
from streamengine.payloads import text_of

from ..model.errors import TurnError
from ..open_turn import TurnEnd

RELEASE_SECONDS: Final = 1.0
"""How long a turn waits for one of its holds to be given back; then it goes on to the next."""

_log = structlog.get_logger("turns.holds")


class Holder(Protocol):
    """The turn, as its holds see it."""

    @property
    def turn_id(self) -> str: ...

    @property
    def workspace_id(self) -> str: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def is_open(self) -> bool:
        """False from the moment on in which its end is decided."""
        ...

    def changed(self) -> None:
        """Something that it holds is not what it was."""
        ...


class Hold:
    """One kind of thing that a turn holds.

    There is no public way to give it back: a path that ends a turn and forgets one of them can't be
    written.
    """

    name: ClassVar[str]

    def __init__(self, holder: Holder) -> None:
        self._holder = holder

    def _release(self, end: TurnEnd) -> Awaitable[Any] | None:
        """Give it back. Called once, when the turn's end is decided; also if nothing is held."""
        raise NotImplementedError

    def _check_open(self) -> None:
        if not self._holder.is_open:
            raise TurnError(
                "ended", f"the turn {self._holder.turn_id} has ended", "Start another one."
            )


@fb.effect
async def released(hold: Hold, end: TurnEnd) -> None:
    """Give ``hold`` back. Never fails and takes at most RELEASE_SECONDS: it must not keep the turn
    from giving back the others.
    """
    holder = hold._holder
    # In a fiber of its own: one that hangs is left behind, not interrupted half-way.
    work = fb.Effect.suspend(lambda: _released(hold, end)).uninterruptible()
    fiber = fb.run_fork(work.provide_service(fb.ClockTag, holder.clock))
    fiber.set_name(f"release of {hold.name} of {holder.turn_id}")
    fiber.ignore_failure()
    exit_ = await ended_within(fiber, holder.clock, RELEASE_SECONDS)
    if isinstance(exit_, fb.Success):
        return
    _log.warning(
        "a hold of a turn could not be given back",
        hold=hold.name,
        turnId=holder.turn_id,
        workspaceId=holder.workspace_id,
        end=end,
        error="it takes too long" if exit_ is None else text_of(exit_.failure().squash()),
    )


def _released(hold: Hold, end: TurnEnd) -> fb.Effect[Any]:
    given = hold._release(end)
    return fb.Effect.succeed(None) if given is None else fb.Effect.promise(lambda: given)
