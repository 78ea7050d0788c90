"""The edges: where plain code starts effects, and the Runtime that holds a service's context."""

from __future__ import annotations

import asyncio
import contextvars
import sys
from collections.abc import Callable, Generator
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Never, TypeVar, cast, overload

from returns.result import Failure
from typing_extensions import TypeVar as TypeVarWithDefault

from fibers.cause import Cause, FiberInterrupted, Interrupt, with_defects_winning
from fibers.clock import LIVE_CLOCK
from fibers.dump import describe
from fibers.effect import Effect, host_in_tasks
from fibers.exit import failed, succeeded
from fibers.fiber import AsyncFiberError, Fiber, current_fiber, value_or_raise
from fibers.loop import hooks
from fibers.loop.observing import Observer
from fibers.loop.protocol import Node
from fibers.loop.queue import ReadyQueue, queue_of
from fibers.loop.run_loop import FiberCore
from fibers.loop.states import ENDED
from fibers.misplaced import check_effect, check_function
from fibers.ops.clock import CLOCK_KEY
from fibers.root import DEFAULT_ENV, new_fiber
from fibers.services import RuntimeServices, disposed
from fibers.threads import BoundedThreads
from fibers.waiting import EndOfFiber

if TYPE_CHECKING:
    from fibers.clock import Clock
    from fibers.exit import Exit
    from fibers.layer import Layer
    from fibers.scope import Scope
    from fibers.signal import AbortSignal

A = TypeVar("A")
E = TypeVar("E", bound=Exception)
F = TypeVar("F", bound=Exception)
L_co = TypeVarWithDefault("L_co", bound=Exception, covariant=True, default=Never)

RUN_END_BOUND_SECONDS = 2.0
"""How long ``run`` waits for fibers that are left when its effect has ended."""

LEFT_TOLD_FIBERS = 20
"""Of so many that are left then ``run`` says what they wait for; of the others how many."""

_MISSING: Any = object()


# ---------------------------------------------------------------------------- in a plain task


def _wait_for_end(fiber: FiberCore, *, here: bool = False) -> Generator[Any, Any, None]:
    """Wait in a plain task. A cancellation of the task interrupts the fiber, waits for its
    finalizers, and is then raised in the task: never swallowed (PD12). ``here``: the fiber runs in
    this task's own Context.
    """
    loop = fiber._queue.loop
    assert loop is not None
    cancelled: asyncio.CancelledError | None = None
    while fiber._state != ENDED:
        waiter = EndOfFiber(fiber)
        fiber._watch(waiter)
        try:
            yield from waiter
        except asyncio.CancelledError as exc:
            if cancelled is None:
                cancelled = exc
                fiber._interrupt_here(Interrupt(None, "task.cancel"), here=here)
        except BaseException:
            # The task is being thrown away (GeneratorExit): nobody is left to wait.
            fiber._interrupt_here(Interrupt(None, "task closed"), here=here)
            raise
        finally:
            fiber._unwatch(waiter)
            del waiter
    if cancelled is not None:
        if not fiber._ok and fiber._result.has_interrupts_only:
            fiber._seen = True
        if fiber._ok and fiber._rare.undo is not None:
            # It ended in this very tick: nobody will get what it took.
            fiber._rare.undo._undo(fiber._result)
        try:
            raise cancelled
        finally:
            del cancelled, fiber, loop


def _host(eff: Effect[Any, Any]) -> Generator[Any, Any, Any]:
    """An effect awaited in a plain task: that task's root fiber, started at once (PD12)."""
    if hooks.running_loop() is None:
        raise RuntimeError("an effect was awaited where no event loop runs: use fb.run(effect)")
    task = hooks.current_task()
    shared = hooks.context_of(task)
    # 3.11 doesn't say which Context a task runs in: there the effect runs in a copy, from its first
    # segment on (a token is good in the Context that made it), and what it sets is set again here.
    before = None if shared is not None else contextvars.copy_context()
    own = shared if before is None else before.copy()
    fiber = new_fiber(eff, context=own, env=DEFAULT_ENV)
    fiber._task = task
    try:
        fiber._drive(here=shared is not None)
        if fiber._state != ENDED:
            yield from _wait_for_end(fiber, here=shared is not None)
        return value_or_raise(fiber)
    finally:
        if before is not None and own is not None and own != before:
            _set_again(own)
        fiber._task = None
        del fiber, task, shared, own, before


def _set_again(context: contextvars.Context) -> None:
    for variable, value in context.items():
        if variable.get(_MISSING) is not value:
            variable.set(value)


host_in_tasks(_host)


class _Ended:
    """``await`` the end of a fiber from a plain coroutine."""

    __slots__ = ("fiber",)

    def __init__(self, fiber: FiberCore) -> None:
        self.fiber = fiber

    def __await__(self) -> Generator[Any, Any, None]:
        return _wait_for_end(self.fiber)


# ---------------------------------------------------------------------------- run


class Ended(NamedTuple):
    """How a program ended."""

    fiber: Fiber[Any, Any]
    fatal: BaseException | None
    """KeyboardInterrupt or SystemExit that left a fiber (PD7)."""
    late: Cause[Any] | None
    """What failed when the layer was released."""

    def exit(self) -> Exit[Any, Any]:
        """The exit of the effect, the release's failures joined to it, as of a finalizer (FI3)."""
        exit_ = self.fiber.poll()
        assert exit_ is not None
        if self.late is None:
            return exit_
        if isinstance(exit_, Failure):
            cause: Cause[Any] = exit_.failure()
            return failed(with_defects_winning(cause.combine(self.late)))
        return failed(self.late)


def run(eff: Effect[A, E], *, layer: Layer[Any, Any] | None = None) -> A:
    """Run an effect in an event loop of its own, like asyncio.run, and give its value.

    ``layer`` is built first, and released when the effect and every fiber that it left behind have
    ended. Raises the very error of the first Fail, else of the first Die; FiberInterrupted with the
    cause where it was interrupted (EX8). Ctrl-C interrupts it, finalizers run, then
    KeyboardInterrupt is raised once (PD7). A thread that is still busy 2 s after all the rest is
    left, and named on stderr (AT15). RuntimeError inside a running loop: await the effect there.
    ValueError where the layer lacks a dependency.
    """
    ended = _run(eff, layer, "run")
    if ended.late is None:
        return cast("A", value_or_raise(ended.fiber))
    cause: Cause[Any] = ended.exit().failure()
    if cause.has_interrupts_only:
        raise FiberInterrupted(cause)
    raise cause.squash()


@overload
def run_exit(eff: Effect[A, E], *, layer: None = None) -> Exit[A, E]: ...
@overload
def run_exit(eff: Effect[A, E], *, layer: Layer[Any, F]) -> Exit[A, E | F]: ...
def run_exit(eff: Effect[Any, Any], *, layer: Layer[Any, Any] | None = None) -> Exit[Any, Any]:
    """Like ``run``, but how it ended is a value; a failed build is one too."""
    return _run(eff, layer, "run_exit").exit()


def _run(eff: Effect[Any, Any], layer: Layer[Any, Any] | None, what: str) -> Ended:
    check_no_loop(what)
    check_effect(eff, what)
    services = RuntimeServices(layer, DEFAULT_ENV, what=what, name=what)
    with asyncio.Runner() as runner:
        ended = runner.run(_main(eff, services))
    if ended.fatal is not None:
        raise ended.fatal
    return ended


def check_no_loop(what: str) -> None:
    """RuntimeError inside a running loop, which a loop in it would hold."""
    if hooks.running_loop() is not None:
        raise RuntimeError(f"{what}() inside a running event loop: await the effect instead")


async def _main(eff: Effect[Any, Any], services: RuntimeServices) -> Ended:
    loop = asyncio.get_running_loop()
    # Joined when the loop is closed, after all else has ended (AT15).
    loop.set_default_executor(BoundedThreads(RUN_END_BOUND_SECONDS))
    queue = queue_of(loop)
    fiber = new_fiber(services.around(eff), env=DEFAULT_ENV)
    queue.on_fatal = lambda exc: fiber._interrupt_now(
        Interrupt(None, type(exc).__name__), again=False
    )
    fiber._drive()
    late: Cause[Any] | None = None
    try:
        await _Ended(fiber)
    finally:
        await end_the_rest(queue, fiber.id)
        late = await end_services(services)
    fiber._seen = True
    return Ended(fiber, queue.fatal, late)


async def end_services(services: RuntimeServices) -> Cause[Any] | None:
    """Release what a program's layer holds; what failed on the way, or None."""
    if not services.has_layer:
        return None
    ending = new_fiber(services.end(succeeded(None), "run ended"), env=DEFAULT_ENV)
    ending._drive()
    await _Ended(ending)
    ending._seen = True
    return None if ending._ok else ending._result


async def end_the_rest(
    queue: ReadyQueue, by: int, *, bound_seconds: float = RUN_END_BOUND_SECONDS
) -> None:
    """Interrupt what is left and wait, bounded: a masked fiber must not keep the process."""
    why = Interrupt(by, "run ended")
    for fiber in [*queue.live, *queue.ready, *queue.turn]:
        fiber._interrupt_here(why)
    loop = asyncio.get_running_loop()
    until = loop.time() + bound_seconds
    while queue.live and loop.time() < until:
        last = next(reversed(queue.live))
        waiter = EndOfFiber(last)
        last._watch(waiter)
        await asyncio.wait([waiter], timeout=until - loop.time())
        last._unwatch(waiter)
    if queue.live:
        lines = [f"run: {len(queue.live)} fiber(s) still alive after {bound_seconds:g} s, left:"]
        lines += ["  " + describe(fiber) for fiber in islice(queue.live, LEFT_TOLD_FIBERS)]
        if len(queue.live) > LEFT_TOLD_FIBERS:
            lines.append(f"  and {len(queue.live) - LEFT_TOLD_FIBERS} more")
        print("\n".join(lines), file=sys.stderr)  # noqa: T201  # the last words of `run`; logging may be off
        for fiber in queue.live:
            # asyncio.Runner would wait for them without a bound.
            hooks.unregister_task(fiber)


# ---------------------------------------------------------------------------- inside a loop


def run_fork(eff: Effect[A, E], *, signal: AbortSignal | None = None) -> Fiber[A, E]:
    """Start an effect at once, owned by nobody; the runtime holds it until it ends.

    An abort of ``signal`` interrupts it; one that was aborted before lets the first synchronous
    part run (PD19). RuntimeError where no event loop runs.
    """
    frame = sys._getframe(1)
    fiber = new_fiber(eff, site=(frame.f_code, frame.f_lasti))
    fiber._drive()
    if fiber._state == ENDED and not fiber._ok:
        # Only now: before, it would cost every start.
        _check_started(fiber, eff)
    if signal is not None:
        _obey(fiber, signal)
    try:
        return fiber
    finally:
        del fiber, frame  # see FiberCore._drive


def _check_started(fiber: Fiber[Any, Any], eff: object) -> None:
    """TypeError where a fiber failed because ``eff`` is no effect."""
    if not isinstance(eff, Node):
        fiber.ignore_failure()
        check_effect(eff, "run_fork")


def _obey(fiber: Fiber[Any, Any], signal: AbortSignal) -> None:
    if fiber._state == ENDED:
        return
    remove = signal.add_listener(
        lambda reason: fiber._interrupt_now(Interrupt(None, str(reason)), again=False)
    )
    fiber._watch(_Then(remove))


class _Then(Observer):
    """A plain function at the end of a fiber; not an observation of its failure."""

    __slots__ = ("f",)

    def __init__(self, f: Callable[[], None]) -> None:
        self.f = f

    def _fiber_done(self, fiber: FiberCore) -> None:
        self.f()


def run_callback(
    eff: Effect[A, E], *, on_exit: Callable[[Exit[A, E]], None]
) -> Callable[[int | None], None]:
    """``run_fork`` for callback code: ``on_exit(exit)`` at its end. Gives a function that
    interrupts it; its argument is the interruptor's id or None.
    """
    check_effect(eff, "run_callback")
    check_function(on_exit, "run_callback(on_exit=)")
    fiber = run_fork(eff)
    fiber.add_observer(on_exit)

    def interrupt(by: int | None = None) -> None:
        fiber.interrupt_unsafe(by=by)

    return interrupt


def run_sync(eff: Effect[A, E]) -> A:
    """Run an effect that never has to wait, inside a running loop or without any (PD15).

    Raises its error itself; AsyncFiberError where it has to wait: it goes on if a loop runs, else
    it is interrupted.
    """
    check_effect(eff, "run_sync")
    return _run_sync(eff, None, None)


def _run_sync(eff: Effect[A, E], env: dict[str, Any] | None, scope: Scope | None) -> A:
    loop = hooks.running_loop()
    queue = ReadyQueue(loop, manual=True)
    if env is None:
        caller = current_fiber()
        env = DEFAULT_ENV if caller is None else caller._env
    fiber = new_fiber(eff, env=env, on=queue)
    queue.on_fatal = _taken  # raised below, once
    fiber._drive()
    queue.run_all()
    fatal, queue.fatal, queue.on_fatal = queue.fatal, None, None
    if loop is not None:
        # What it forked lives on, and so does an effect that has to wait.
        queue.attach()
    if fiber._state != ENDED:
        if loop is None:
            # All of this queue, a layer's build too: nothing will ever run it again.
            for left in [fiber, *queue.live]:
                left._interrupt_here(Interrupt(None, "run_sync can't wait"))
            queue.run_all()
            raise AsyncFiberError(
                "run_sync: the effect has to wait and no event loop runs; use run(effect)",
                fiber.ignore_failure(),
            )
        if scope is not None:
            fiber.run_in(scope)
        raise AsyncFiberError(
            "run_sync: the effect has to wait; it goes on as the fiber of this error. "
            "Await the effect, or fork it",
            fiber,
        )
    if fatal is not None:
        raise fatal
    return value_or_raise(fiber)


def _taken(_exc: BaseException) -> None:
    return None


class Runtime(Generic[L_co]):
    """Services and a clock for the effects that it runs, and the root of their fibers.

        runtime = Runtime(db_layer, clock=TestClock())
        value = await runtime.run(effect)
        await runtime.dispose()

    ``layer`` is checked now, ValueError where it lacks a dependency, and built by the first run,
    once for all of them. A failed build fails that run and every later one; a ``Runtime[DbError]``
    is one whose build may (LY4).

    ``dispose`` interrupts and awaits every fiber that it started, then releases the layer; later
    runs die (VF12: fibers of the module's own ``run_fork`` are not among them).
    """

    @overload
    def __init__(
        self: Runtime[Never], layer: None = None, *, clock: Clock | None = None
    ) -> None: ...
    @overload
    def __init__(
        self: Runtime[F], layer: Layer[Any, F] | None, *, clock: Clock | None = None
    ) -> None: ...
    def __init__(self, layer: Layer[Any, Any] | None = None, *, clock: Clock | None = None) -> None:
        env = {**DEFAULT_ENV, CLOCK_KEY: LIVE_CLOCK if clock is None else clock}
        self._services = RuntimeServices(layer, env, what="Runtime", name="runtime")
        self._scope = self._services.fibers

    def _fork(self, eff: Effect[A, E], site: Any, task: Any = None) -> Fiber[A, E | L_co]:
        if self._scope._is_closed:
            # Nobody's: an owner that has ended would report it before the caller could look.
            refused = new_fiber(cast("Effect[A, E]", disposed()), site=site)
            refused._drive()
            return refused
        fiber = new_fiber(self._services.around(eff), env=self._services.env, site=site)
        # The owner before the start: it reports the failure of one that ends at once (PD8).
        fiber._owner = self._scope
        if task is not None:
            fiber._task = task
        fiber._drive()
        fiber.run_in(self._scope)
        try:
            return fiber
        finally:
            del fiber  # see FiberCore._drive

    async def run(self, eff: Effect[A, E]) -> A:
        """Its value, or its error itself. A cancellation of the caller interrupts it."""
        check_effect(eff, "Runtime.run")
        fiber = await self._run(eff)
        return value_or_raise(fiber)

    async def run_exit(self, eff: Effect[A, E]) -> Exit[A, E | L_co]:
        """How it ended, as a value."""
        check_effect(eff, "Runtime.run_exit")
        fiber = await self._run(eff)
        return cast("Exit[A, E | L_co]", fiber.poll())

    async def _run(self, eff: Effect[A, E]) -> Fiber[A, E | L_co]:
        # Said before the start: a close in the first segment asks who waits for it (SO6).
        fiber = self._fork(eff, None, current_fiber() or hooks.current_task())
        try:
            await _Ended(fiber)
            return fiber
        finally:
            fiber._task = None
            del fiber  # see FiberCore._drive

    def run_sync(self, eff: Effect[A, E]) -> A:
        """``fibers.run_sync`` with this runtime's services; a layer that has to wait for something
        makes it raise, unless it is built already.
        """
        if self._scope._is_closed:
            raise RuntimeError("Runtime disposed")
        check_effect(eff, "Runtime.run_sync")
        services = self._services
        return _run_sync(services.around(eff), services.env, self._scope)

    def run_fork(
        self, eff: Effect[A, E], *, signal: AbortSignal | None = None
    ) -> Fiber[A, E | L_co]:
        """Start an effect at once, owned by this runtime."""
        check_effect(eff, "Runtime.run_fork")
        frame = sys._getframe(1)
        fiber = self._fork(eff, (frame.f_code, frame.f_lasti))
        if signal is not None:
            _obey(fiber, signal)
        try:
            return fiber
        finally:
            del fiber, frame  # see FiberCore._drive

    async def dispose(self) -> None:
        """Interrupt and await all its fibers, then release the layer; twice is once. Raises what
        the release of the layer failed with.
        """
        why = "runtime disposed"
        await self._services.end(failed(Cause((Interrupt(None, why),))), why)
