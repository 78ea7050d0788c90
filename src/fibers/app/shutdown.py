"""Shutdown: one teardown, whoever asks for it and how often (VA1, VA8, VA10)."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from returns.maybe import Nothing
from returns.result import Failure

from fibers.app.budget import RUNTIME_DISPOSE_TIMEOUT_SECONDS
from fibers.app.scope import close_bounded
from fibers.app.steps import check_steps
from fibers.duration import Duration, checked_seconds, text_of
from fibers.effect import Effect, EffectGen, effect
from fibers.fiber import current_fiber
from fibers.misplaced import check_function
from fibers.runtime import run_fork
from fibers.scope import Scope
from fibers.waiting import waits_for

if TYPE_CHECKING:
    from fibers.fiber import Fiber
    from fibers.runtime import Runtime

log: logging.Logger = logging.getLogger("fibers.app")

Step = tuple[str, Callable[[], Awaitable[Any]]]


async def dispose_bounded(
    runtime: Runtime[Any], timeout: Duration = RUNTIME_DISPOSE_TIMEOUT_SECONDS
) -> bool:
    """Dispose of ``runtime``, and wait at most ``timeout`` (timedelta or seconds) for it.

    False, with one warning, where the wait was given up. Never raises.
    """
    seconds = checked_seconds(timeout, "a dispose's bound")
    started = time.perf_counter()
    disposing = run_fork(Effect.promise(runtime.dispose))
    outcome = await disposing.exit().timeout_option(seconds)
    if outcome == Nothing:
        log.warning("[shutdown] Runtime dispose timed out after %s; it continues", text_of(seconds))
        disposing.ignore_failure()
    elif isinstance(exit_ := outcome.unwrap(), Failure):
        log.warning("[shutdown] Runtime dispose failed\n%s", exit_.failure().pretty())
    log.info("[shutdown] Runtime disposed {ms: %.0f}", (time.perf_counter() - started) * 1000)
    return outcome != Nothing


class Shutdown:
    """The teardown of an application, in four parts: the latch, the scope's bounded close, the
    explicit steps in order, the runtime's bounded dispose.

        shutdown = Shutdown(app_scope, [("server.stop", server.stop)], runtime=runtime)
        await shutdown.dispose()

    There is one teardown, however many ask for it: no step runs twice, and who asks is answered
    when it is over (VA8). Who is waited for by the teardown, as a step is, gets an answer at once:
    it would wait for itself. ValueError where two steps have one name.
    """

    def __init__(
        self, scope: Scope, steps: Sequence[Step], runtime: Runtime[Any] | None = None
    ) -> None:
        check_steps("shutdown", steps)
        self._scope = scope
        self._steps = list(steps)
        self._runtime = runtime
        self._begun = False
        self._listeners: list[Callable[[], None]] = []
        # Fibers of their own: a caller that is cancelled doesn't take them along.
        self._own = Scope("parallel", name="shutdown")
        self._explicit: Fiber[None, Any] | None = None
        self._teardown: Fiber[None, Any] | None = None

    @property
    def is_shutting_down(self) -> bool:
        """True from the first ``begin``: new work is refused from then on (VA9)."""
        return self._begun

    def on_begin(self, f: Callable[[], None]) -> None:
        """Call ``f`` when the shutdown begins, before anything is closed; now if it has begun."""
        check_function(f, "Shutdown.on_begin")
        if self._begun:
            f()
        else:
            self._listeners.append(f)

    def begin(self) -> None:
        """Set the latch; a plain call, and only the first one does anything."""
        if self._begun:
            return
        self._begun = True
        for f in self._listeners:
            try:
                f()
            except Exception:
                log.exception("[shutdown] a begin listener raised")

    async def shutdown(self) -> None:
        """The lighter call: the latch and the explicit steps. Touches neither scope nor runtime."""
        self.begin()
        if self._explicit is None:
            # Nothing of it runs before it is known here: a step may ask again.
            self._explicit = self._own.fork(Effect.promise(self._run_steps))
        await _over(self._explicit)

    async def dispose(self) -> None:
        """The whole teardown. Never raises for what a part does."""
        self.begin()
        if self._teardown is None:
            self._teardown = self._own.fork(Effect.promise(self._run_teardown))
        await _over(self._teardown)

    async def _run_teardown(self) -> None:
        started = time.perf_counter()
        await close_bounded(self._scope)
        await self.shutdown()
        if self._runtime is not None:
            await dispose_bounded(self._runtime)
        log.info("[shutdown] completed {totalMs: %.0f}", (time.perf_counter() - started) * 1000)

    async def _run_steps(self) -> None:
        for name, step in self._steps:
            await run_step(name, step)


@effect
def _over(part: Fiber[None, Any]) -> EffectGen[None]:
    me = current_fiber()
    assert me is not None
    if not waits_for(part, me):
        yield from part.exit()


async def run_step(name: str, step: Callable[[], Awaitable[Any]]) -> None:
    """One step: its time in ms is logged also when it fails, and a failure stops nothing (VA14)."""
    started = time.perf_counter()
    exit_ = await Effect.promise(lambda: _called(step)).exit()
    ms = (time.perf_counter() - started) * 1000
    if isinstance(exit_, Failure):
        log.warning("[shutdown] %s failed {ms: %.0f}\n%s", name, ms, exit_.failure().pretty())
    else:
        log.info("[shutdown] %s {ms: %.0f}", name, ms)


async def _called(step: Callable[[], Awaitable[Any]]) -> None:
    await step()
