"""The release of what a turn held: waited for, but not for ever."""

from __future__ import annotations

from typing import Final

import structlog

import fibers as fb
from fibers import Effect, Scope
from fibers.app.scope import still_alive
from streamengine.abandoned import ended_within

RELEASE_SECONDS: Final = 10.0
"""How long the release of one turn is waited for: longer than its holds may take together."""

_log = structlog.get_logger("turns.release")


@fb.effect
async def given_back(release: Effect[None], scope: Scope, *, whose: str, workspace_id: str) -> None:
    """Do ``release``, which closes ``scope``, and wait for it. What takes no notice of its
    interrupt there, or a finalizer that never ends, is left behind after a while: it must not keep
    a workspace, or a slot. A warning names it. Never fails.
    """
    # Detached: the bound ends the wait, never the release.
    fiber = await release.uninterruptible().fork_detach(start_immediately=True)
    fiber.set_name(f"release of {whose}")
    fiber.ignore_failure()
    exit_ = await ended_within(fiber, await fb.current_clock(), RELEASE_SECONDS)
    if exit_ is None:
        _log.warning(
            "what a turn held does not end: it goes on without its turn",
            turn=whose,
            workspaceId=workspace_id,
            stillAlive=still_alive(scope, fiber),
            wayOut="`fiberscope ps` names it until it ends.",
        )
    elif isinstance(exit_, fb.Failure):
        _log.warning(
            "what a turn held could not be released whole",
            turn=whose,
            workspaceId=workspace_id,
            problem=exit_.failure().pretty(),
        )
