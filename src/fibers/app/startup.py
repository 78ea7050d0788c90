"""Startup: named steps in order, each with a bound, and what begins when all are done (VI1-VI8)."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from returns.maybe import Maybe, Nothing
from returns.result import Failure

from fibers.app.budget import OUTER_BUDGET_SECONDS
from fibers.app.shutdown import Step
from fibers.app.steps import check_steps
from fibers.clock import current_clock
from fibers.duration import Duration, checked_seconds, text_of
from fibers.effect import Effect, effect
from fibers.exit import Exit

if TYPE_CHECKING:
    from fibers.app.shutdown import Shutdown
    from fibers.fiber import Fiber

log: logging.Logger = logging.getLogger("fibers.app")

STEP_TIMEOUT_SECONDS: Final = 60.0
"""Generous: a bound that is too small makes a crash of a start that is only slow."""

Outcome = Maybe[Exit[Any, Exception]]
Service = tuple[str, Callable[[], Awaitable[Any] | None]]


class StartupStepTimeoutError(Exception):
    """A step of the startup was not done within its bound. ``step`` is its name."""

    def __init__(self, step: str, timeout: Duration) -> None:
        self.step = step
        self.timeout: timedelta = (
            timeout if isinstance(timeout, timedelta) else timedelta(seconds=timeout)
        )
        super().__init__(f"{step} exceeded {self.timeout / timedelta(milliseconds=1):.10g} ms")

    def __reduce__(self) -> tuple[type[StartupStepTimeoutError], tuple[str, timedelta]]:
        return type(self), (self.step, self.timeout)


class Startup:
    """The start of an application: ``steps`` one after another, each within ``step_timeout``.

        startup = Startup([("db.open", db.open), ("http.listen", listen)], shutdown=shutdown)
        await startup.run()

    With ``shutdown``, the teardown that belongs to it: a start that is rejected disposes of what
    was made so far, and none begins once the shutdown has. Then there may also be ``housekeeping``
    (steps that go on in the scope when the start is over; a failure is logged and stops nothing)
    and ``services``, started one after another when the housekeeping has ended, however it did. A
    shutdown before that means that they never start (VI7).

    TypeError where a step is no pair of a name and a function. ValueError where two steps have one
    name, where the bound (timedelta or seconds) is negative, or
    where there is something to keep and no ``shutdown`` to end it.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        step_timeout: Duration = STEP_TIMEOUT_SECONDS,
        *,
        shutdown: Shutdown | None = None,
        housekeeping: Sequence[Step] = (),
        services: Sequence[Service] = (),
    ) -> None:
        check_steps("startup", steps, housekeeping, services)
        if shutdown is None and (housekeeping or services):
            raise ValueError("housekeeping and services outlive the start: give shutdown= too")
        self._steps = list(steps)
        self._step_seconds = checked_seconds(step_timeout, "a step's bound")
        self._shutdown = shutdown
        self._housekeeping = list(housekeeping)
        self._services = list(services)
        self.durations_ms: dict[str, float] = {}
        """How long each step took, on the clock in context; also the one that failed (VI4)."""

    def run(self) -> Effect[None, Exception]:
        """Run the steps. Fails with the very error of the first that fails; later ones don't run.

        A step that isn't done in time fails with StartupStepTimeoutError. It is abandoned, neither
        interrupted nor waited for: nobody knows what it would leave half done. An interrupt of the
        start itself interrupts the step and waits for it.
        """
        steps = self._run_steps()
        return steps if self._shutdown is None else steps.on_exit(self._after)

    @effect(raises=Exception)
    async def _run_steps(self) -> None:
        self._refuse_after_the_end()
        self.durations_ms.clear()
        for name, step in self._steps:
            await self._run_step(name, step)
            self._refuse_after_the_end()

    def _refuse_after_the_end(self) -> None:
        if self._shutdown is not None and self._shutdown.is_shutting_down:
            raise RuntimeError(
                "the shutdown has begun: nothing is started any more; "
                "make a new scope, Shutdown and Startup for another start"
            )

    @effect(raises=Exception)
    async def _run_step(self, name: str, step: Callable[[], Awaitable[Any]]) -> None:
        clock = await current_clock()
        started = clock.now()
        exit_: Exit[Any, Exception] | None = None
        try:
            outcome = await _watched(step, self._step_seconds)
            if outcome != Nothing:
                exit_ = outcome.unwrap()
        finally:
            seconds = clock.now() - started
            self.durations_ms[name] = ms = seconds * 1000
            failed = exit_ is None or isinstance(exit_, Failure)
            log.info("[startup] %s {ms: %.0f%s}", name, ms, ", failed" if failed else "")
        # Too late is too late: also for one that held the loop, so that no timer could fire.
        if exit_ is None or (not isinstance(exit_, Failure) and seconds > self._step_seconds):
            raise StartupStepTimeoutError(name, self._step_seconds)
        await Effect.from_exit(exit_)

    # ------------------------------------------------------------------ after the steps

    def _after(self, exit_: Exit[None, Exception]) -> Effect[None]:
        return self._dispose() if isinstance(exit_, Failure) else Effect.sync(self._go_on)

    @effect
    async def _dispose(self) -> None:
        assert self._shutdown is not None
        disposing = Effect.promise(self._shutdown.dispose)
        # Its explicit steps have no bound of their own, and no signal has set the process's.
        if await disposing.timeout_option(OUTER_BUDGET_SECONDS) == Nothing:
            log.warning(
                "[startup] the teardown after the failed start is not over after %s; left",
                text_of(OUTER_BUDGET_SECONDS),
            )

    def _go_on(self) -> None:
        assert self._shutdown is not None
        if self._housekeeping or self._services:
            fiber = self._shutdown._scope.fork(self._keep_house())
            fiber.set_name("housekeeping of the start")

    @effect
    async def _keep_house(self) -> None:
        for name, step in self._housekeeping:
            await _told(f"housekeeping {name}", step)
        for name, start in self._services:
            # The latch too: begin() alone closes no scope.
            if self._shutdown is not None and not self._shutdown.is_shutting_down:
                await _told(f"service {name}", start)


def _watched(step: Callable[[], Awaitable[Any]], bound_seconds: float) -> Effect[Outcome]:
    """How the step ended, or Nothing at the bound. In a fiber of its own, which the bound leaves
    alone: a timeout around the step would interrupt it, and wait for what it does then.
    """
    begun: Effect[Fiber[Any, Exception]] = Effect.try_promise(step, catch=_same).fork_detach(
        start_immediately=True
    )

    def wait(
        restore: Callable[[Effect[Outcome]], Effect[Outcome]],
    ) -> Effect[Outcome]:
        # Nobody hears of how an abandoned one ends (VI5).
        return begun.flat_map(
            lambda fiber: restore(
                fiber.ignore_failure().exit().timeout_option(bound_seconds)
            ).on_interrupt(lambda _ids: fiber.interrupt(reason="startup interrupted"))
        )

    return Effect.uninterruptible_mask(wait)


def _same(error: Exception) -> Exception:
    return error


async def _told(what: str, step: Callable[[], Awaitable[Any] | None]) -> None:
    """Run it, and log its time and its failure, which is nobody else's business."""

    async def call() -> None:
        given = step()
        if given is not None:
            await given

    clock = await current_clock()
    started = clock.now()
    exit_ = await Effect.promise(call).exit()
    ms = (clock.now() - started) * 1000
    if isinstance(exit_, Failure):
        log.warning("[startup] %s failed {ms: %.0f}\n%s", what, ms, exit_.failure().pretty())
    else:
        log.info("[startup] %s {ms: %.0f}", what, ms)
