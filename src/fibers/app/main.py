"""run_main: signals, a bounded end, exit codes (EX12)."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Never

from returns.result import Failure

from fibers.app.budget import OUTER_BUDGET_SECONDS
from fibers.cause import Cause, Interrupt
from fibers.dump import dump_on_signal, write_dump
from fibers.dump.emit import briefly
from fibers.duration import Duration, checked_seconds, text_of
from fibers.loop.queue import queue_of
from fibers.misplaced import check_effect
from fibers.root import DEFAULT_ENV, new_fiber
from fibers.runtime import Ended, _Ended, check_no_loop, end_services, end_the_rest
from fibers.services import RuntimeServices

if TYPE_CHECKING:
    from types import FrameType

    from fibers.effect import Effect
    from fibers.fiber import Fiber
    from fibers.layer import Layer

FAILED: Final = 1
SIGNAL_BASE: Final = 128
REST_SECONDS: Final = 0.5
"""For what is left when the program has ended: whatever had an owner has had its own bound."""


class _Main:
    """One run of a program."""

    def __init__(self, budget_seconds: float) -> None:
        self.budget_seconds = budget_seconds
        self.signalled: int | None = None
        self.fiber: Fiber[Any, Any] | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self.timer: threading.Timer | None = None

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Python's own handler, in the main thread: it runs also while the loop is blocked."""
        if self.signalled is not None:
            self.leave(f"second signal ({signal.Signals(number).name})")
        self.signalled = number
        self.start_budget()
        if self.fiber is not None and self.loop is not None:
            why = Interrupt(None, signal.Signals(number).name)
            # Also wakes the loop out of its select.
            self.loop.call_soon_threadsafe(self.fiber._interrupt_here, why)

    def start_budget(self) -> None:
        if self.timer is None:
            # A thread: the loop's own timer can't fire while something blocks the loop.
            self.timer = threading.Timer(
                self.budget_seconds,
                lambda: self.leave(f"not ended within {text_of(self.budget_seconds)}"),
            )
            self.timer.daemon = True
            self.timer.start()

    def leave(self, why: str) -> None:
        """At once, with a dump: no finalizer can hold this up."""
        try:
            write_dump(f"{why}: leaving", threads=True)
            briefly(sys.stdout.flush)
        finally:
            os._exit(self.code(FAILED))

    def code(self, otherwise: int) -> int:
        return otherwise if self.signalled is None else SIGNAL_BASE + self.signalled

    async def main(self, eff: Effect[Any, Any], services: RuntimeServices) -> Ended:
        with _woken_by_signals(asyncio.get_running_loop()):
            return await self._main(eff, services)

    async def _main(self, eff: Effect[Any, Any], services: RuntimeServices) -> Ended:
        loop = self.loop = asyncio.get_running_loop()
        queue = queue_of(loop)
        fiber = self.fiber = new_fiber(services.around(eff), env=DEFAULT_ENV)
        queue.on_fatal = lambda exc: fiber._interrupt_now(
            Interrupt(None, type(exc).__name__), again=False
        )
        if self.signalled is not None:
            fiber._interrupt_here(Interrupt(None, signal.Signals(self.signalled).name))
        else:
            fiber._drive()
        await _Ended(fiber)
        self.start_budget()
        await end_the_rest(queue, fiber.id, bound_seconds=REST_SECONDS)
        late = await end_services(services)
        fiber._seen = True  # the exit code tells of it, whatever it is
        return Ended(fiber, queue.fatal, late)


@contextmanager
def _woken_by_signals(loop: asyncio.AbstractEventLoop) -> Generator[None]:
    """A signal that arrives just before the loop goes to sleep in its select would be handled only
    when something else wakes it: the interpreter looks for signals between bytecodes, and no system
    call is there yet to be cut short. So a signal also writes to a socket that the loop reads.
    """
    reader, writer = socket.socketpair()
    with reader, writer:
        reader.setblocking(False)
        writer.setblocking(False)
        loop.add_reader(reader, reader.recv, 4096)
        before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            loop.remove_reader(reader)


def run_main(
    eff: Effect[Any, Any],
    *,
    layer: Layer[Any, Any] | None = None,
    budget: Duration = OUTER_BUDGET_SECONDS,
) -> Never:
    """Run a program and leave the process with its exit code; never returns.

    The first SIGTERM or Ctrl-C interrupts ``eff``; finalizers run, then ``layer`` is released, all
    of it bounded by ``budget`` (timedelta or seconds). A second one, or the end of the budget,
    leaves at once after a dump of what is alive; SIGQUIT (Ctrl-\\) writes one and goes on. Codes:
    0 success, 1 a Fail or Die (printed to stderr), 130 Ctrl-C, 143 SIGTERM (EX12). ValueError where
    the layer lacks a dependency; RuntimeError inside a running loop (await the effect there) and in
    a thread, which gets no signals.
    """
    check_no_loop("run_main")
    check_effect(eff, "run_main")
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError(
            "run_main() takes the signals of the process, which only the main thread gets: "
            "in another thread use run()"
        )
    main = _Main(checked_seconds(budget, "run_main's budget"))
    services = RuntimeServices(layer, DEFAULT_ENV, what="run_main", name="run_main")
    before = {n: signal.signal(n, main.on_signal) for n in (signal.SIGINT, signal.SIGTERM)}
    runner = asyncio.Runner()
    try:
        with dump_on_signal():
            ended = runner.run(main.main(eff, services))
            # The executor's threads are joined here; a blocked one is the budget's business.
            runner.close()
    finally:
        if main.timer is not None:
            main.timer.cancel()
        for number, handler in before.items():
            signal.signal(number, handler)
    sys.exit(_exit_code(main, ended))


def _exit_code(main: _Main, ended: Ended) -> Any:
    if isinstance(ended.fatal, SystemExit):
        return ended.fatal.code
    if isinstance(ended.fatal, KeyboardInterrupt):
        return SIGNAL_BASE + signal.SIGINT
    exit_ = ended.exit()
    if not isinstance(exit_, Failure):
        return main.code(0)
    cause: Cause[Any] = exit_.failure()
    if not cause.has_interrupts_only:
        print(cause.pretty(), file=sys.stderr)
        return main.code(FAILED)
    if main.signalled is None:
        print(f"interrupted: {cause}", file=sys.stderr)
    return main.code(FAILED)
