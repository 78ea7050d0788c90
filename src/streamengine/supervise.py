"""Supervision: what the close of the app scope does to streams, and what it waits for.

From its registration on each stream has one supervisor fiber in the scope. It waits for the
completion, not for the work, so that the time before the launch is covered too. A shutdown is the
same as "somebody pressed stop": the supervisor's interrupt takes the path of a user's stop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, final

import structlog

import fibers as fb
from fibers import Scope

from .abandoned import Abandoned, ended_within
from .cancel import Canceller
from .payloads import text_of
from .stream import StopWish, Stream

PROVIDER_GRACE_SECONDS: Final = 0.25
"""How long a stream waits for a provider that was told to stop; then it is abandoned (BT5)."""

_log = structlog.get_logger("streamengine.supervise")

SYSTEM: Final = StopWish("system")


@final
class Supervision:
    """The engine's side of one app scope; without a scope nothing is supervised (E29)."""

    def __init__(self, scope: Scope | None, canceller: Canceller, abandoned: Abandoned) -> None:
        self._canceller = canceller
        self._abandoned = abandoned
        self._supervisors: set[fb.Fiber[Any, Any]] = set()
        self._changed = asyncio.Event()
        self.scope: Scope | None = None
        if scope is not None:
            self.adopt(scope)

    def adopt(self, scope: Scope) -> None:
        """Supervise in ``scope`` from now on; a repeated call changes nothing.

        The close of the scope waits for all supervisors, then for the abandoned providers, also for
        those abandoned during the close; its bound decides how long.
        """
        if scope is self.scope:
            return
        self.scope = scope
        fb.run_sync(scope.add_finalizer(lambda _exit: self._wait_for_the_rest()))

    # ---- streams

    def supervise(self, stream: Stream) -> None:
        """Fork the supervisor, in the synchronous block of the registration. Into a closed scope
        it is interrupted at once, and the stream is aborted as "system" (VA6).
        """
        if self.scope is None:
            return
        watch = (
            stream.completing.wait()
            .on_interrupt(lambda _ids: self._abort(stream))
            .catch_defect(lambda defect: _log_defect(stream, defect))
        )
        fiber = self.scope.fork(watch, start_immediately=True)
        fiber.set_name(f"supervisor of {stream.workspace_id}/{stream.message_id}")
        self._track(self._supervisors, fiber)

    @fb.effect
    async def _abort(self, stream: Stream) -> None:
        started = time.perf_counter()
        await self._canceller.cancel(stream, SYSTEM)
        _log.info(
            "[shutdown] streamManager.abortStream",
            workspaceId=stream.workspace_id,
            messageId=stream.message_id,
            ms=round((time.perf_counter() - started) * 1000),
        )

    def guard_start(self, name: str, abort: Callable[[], None], over: fb.Effect[Any]) -> None:
        """While a start is before its registration: the close aborts it and waits for it (BT6).

        In a closed scope there is no guard: the start goes on, and its supervisor's late fork
        aborts it.
        """
        if self.scope is None or self.scope.state == "closed":
            return
        guard = over.on_interrupt(lambda _ids: fb.Effect.sync(abort).flat_map(lambda _: over))
        self.scope.fork(guard, start_immediately=True).set_name(name)

    # ---- what doesn't stop

    @fb.effect
    async def end_resources(
        self,
        scope: Scope,
        workspace_id: str,
        message_id: str,
        *,
        at_work: Callable[[], Sequence[str]],
    ) -> None:
        """Close a stream's own scope. A provider or a tool that doesn't end within the grace is
        abandoned: named in the dump, warned of once, and nobody but the app scope's close waits
        for it. ``at_work``: what that may be.
        """
        closing = fb.run_fork(scope.close(reason="stream ended"))
        exit_ = await ended_within(closing, await fb.ClockTag, PROVIDER_GRACE_SECONDS)
        if exit_ is not None:
            if isinstance(exit_, fb.Failure):
                _log.warning(
                    "a resource of a stream failed to close",
                    workspaceId=workspace_id,
                    messageId=message_id,
                    error=text_of(exit_.failure().squash()),
                )
            return
        who = " and ".join(at_work()) or "a resource"
        self._abandoned.add(closing, f"abandoned {who} of {workspace_id}/{message_id}")
        _log.warning(
            f"{who} ignores the abort: abandoned, it is still named in the dump",
            workspaceId=workspace_id,
            messageId=message_id,
            graceMs=round(PROVIDER_GRACE_SECONDS * 1000),
        )

    # ---- the close

    def _track(self, into: set[fb.Fiber[Any, Any]], fiber: fb.Fiber[Any, Any]) -> None:
        into.add(fiber)

        def gone(_exit: object) -> None:
            into.discard(fiber)
            self._changed.set()

        fiber.add_observer(gone)

    @fb.effect
    async def _wait_for_the_rest(self) -> None:
        while self._supervisors:
            self._changed.clear()
            await self._changed.wait()
        await self._abandoned.wait()


def _log_defect(stream: Stream, defect: BaseException) -> fb.Effect[None]:
    # A defect here must not become an unhandled failure of the loop (VF10).
    return fb.Effect.sync(
        lambda: _log.warning(
            "engine supervisor defect",
            workspaceId=stream.workspace_id,
            messageId=stream.message_id,
            error=repr(defect),
        )
    )
