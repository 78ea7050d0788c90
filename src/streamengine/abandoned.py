"""What did not end in time: nobody waits for it any longer but the close of the app scope.

A provider or a tool that ignores its interrupt, a store whose write never returns. It is named in
the dump until it ends after all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol, final

import structlog

import fibers as fb

from .payloads import text_of

if TYPE_CHECKING:
    from .stream import Stream

STORE_GRACE_SECONDS: Final = 5.0
"""How long a stop waits for its store; then it goes on without it."""

LEAST_GRACE_SECONDS: Final = 0.05
"""What each step of a stop gets at least, also after one that has hung."""

_log = structlog.get_logger("streamengine.abandoned")


class Named(Protocol):
    """What a log line names: a stream, or a start that has none yet."""

    workspace_id: str
    message_id: str


@final
class Abandoned:
    """The set of one engine."""

    def __init__(self) -> None:
        self._fibers: dict[fb.Fiber[Any, Any], str] = {}
        # Of these, what still writes: by its workspace.
        self._writing: dict[fb.Fiber[Any, Any], str] = {}
        self._changed = asyncio.Event()

    @property
    def names(self) -> Mapping[fb.Fiber[Any, Any], str]:
        """The fiber and a name, until it ends."""
        return self._fibers

    def add(self, fiber: fb.Fiber[Any, Any], name: str, *, writes_in: str | None = None) -> None:
        """Keep ``fiber`` here until it ends. ``writes_in``: the workspace in which it still may."""
        fiber.set_name(name)
        fiber.ignore_failure()
        self._fibers[fiber] = name
        if writes_in is not None:
            self._writing[fiber] = writes_in
        fiber.add_observer(lambda _exit: self._ended(fiber))

    def _ended(self, fiber: fb.Fiber[Any, Any]) -> None:
        self._fibers.pop(fiber, None)
        self._writing.pop(fiber, None)
        self._changed.set()

    @fb.effect
    async def wait(self) -> None:
        """Wait until nothing is left, of what was abandoned meanwhile either."""
        while self._fibers:
            self._changed.clear()
            await self._changed.wait()

    @fb.effect
    async def wait_for_writes(self, workspace_id: str) -> None:
        """Wait until nothing that was abandoned writes in this workspace any more."""
        while fibers := [f for f, place in self._writing.items() if place == workspace_id]:
            await fb.Fiber.await_all(fibers)


@final
class Grace:
    """How long one stop waits for its store, over all its steps, on the clock of the stream.

    A step that doesn't end in time is abandoned, not interrupted: what hangs may come back.
    """

    def __init__(self, abandoned: Abandoned, stream: Stream) -> None:
        self._abandoned = abandoned
        self._stream = stream
        self._until = stream.clock.now() + STORE_GRACE_SECONDS

    @fb.effect
    async def wait(self, step: str, work: fb.Effect[Any, Any]) -> None:
        """Do ``work``, and wait for it as long as there is time. A failure is logged."""
        stream = self._stream
        fiber = fb.run_fork(work.provide_service(fb.ClockTag, stream.clock).uninterruptible())
        fiber.set_name(f"{step} of {stream.workspace_id}/{stream.message_id}")
        fiber.ignore_failure()
        exit_ = await self.wait_for(step, fiber)
        if isinstance(exit_, fb.Failure):
            _log_failure(step, stream, exit_.failure())

    async def wait_for(self, step: str, fiber: fb.Fiber[Any, Any]) -> fb.Exit[Any, Any] | None:
        """The exit of ``fiber``; None where there was no time left for it."""
        stream = self._stream
        left = max(self._until - stream.clock.now(), LEAST_GRACE_SECONDS)
        exit_ = await ended_within(fiber, stream.clock, left)
        if exit_ is None:
            name = f"abandoned {step} of {stream.workspace_id}/{stream.message_id}"
            self._abandoned.add(fiber, name, writes_in=stream.workspace_id)
            _log.warning(
                "a step of a stop hangs: the stop goes on without it",
                step=step,
                workspaceId=stream.workspace_id,
                messageId=stream.message_id,
                graceMs=round(STORE_GRACE_SECONDS * 1000),
            )
        return exit_


async def ended_within(
    fiber: fb.Fiber[Any, Any], clock: fb.Clock, seconds: float
) -> fb.Exit[Any, Any] | None:
    """The exit of ``fiber``; None where it has not ended in time.

    By observers and not as a race, which takes two more fibers: a thousand streams that are closed
    at once do this three thousand times.
    """
    until = clock.now() + seconds
    is_over = False
    # The end of the loop takes the timer along, but not who waits here: the rest is timed anew. It
    # is the timer that says when it is over. The clock may differ from `until` by a rounding, for
    # ever where a test holds it.
    while fiber.poll() is None and not is_over:
        timer = fb.run_fork(clock.sleep(until - clock.now()))
        await _first_of(fiber, timer)
        is_over = _has_rung(timer.poll())
    return fiber.poll()


def _has_rung(exit_: fb.Exit[None, Any] | None) -> bool:
    if isinstance(exit_, fb.Failure) and not exit_.failure().has_interrupts_only:
        # Timed anew it would break again, at once and for ever.
        error = text_of(exit_.failure().squash())
        _log.error("a clock broke: what was waited for gets no time", error=error)
        return True
    return isinstance(exit_, fb.Success)


async def _first_of(fiber: fb.Fiber[Any, Any], timer: fb.Fiber[None]) -> None:
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake(_exit: object) -> None:
        if not over.done():
            over.set_result(None)

    fiber.add_observer(wake)
    timer.add_observer(wake)
    try:
        await over
    finally:
        timer.interrupt_unsafe(reason="nobody waits any longer")


@fb.effect
async def guarded(step: str, stream: Named, work: fb.Effect[Any, Any]) -> fb.Exit[Any, Any]:
    """The exit of a step whose failure must not keep the next one from being done."""
    exit_ = await work.exit()
    if isinstance(exit_, fb.Failure):
        _log_failure(step, stream, exit_.failure())
    return exit_


def _log_failure(step: str, stream: Named, cause: fb.Cause[Any]) -> None:
    _log.warning(
        "a step of an ending failed",
        step=step,
        workspaceId=stream.workspace_id,
        messageId=stream.message_id,
        error=text_of(cause.squash()),
    )
