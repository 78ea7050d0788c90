"""How a fiber comes to life at an edge, where no effect runs (PD24)."""

from __future__ import annotations

import contextvars
from typing import TYPE_CHECKING, Any, TypeVar

from fibers.clock import LIVE_CLOCK
from fibers.fiber import Fiber, current_fiber
from fibers.loop import hooks, queue
from fibers.ops.clock import CLOCK_KEY

if TYPE_CHECKING:
    from fibers.effect import Effect
    from fibers.ops.fork import Site

A = TypeVar("A")
E = TypeVar("E", bound=Exception)

DEFAULT_ENV: dict[str, Any] = {CLOCK_KEY: LIVE_CLOCK}
"""The services of the default runtime."""

_fiber_class: type[Fiber[Any, Any]] = Fiber


def make_fibers_of(cls: type[Fiber[Any, Any]]) -> None:
    """Say which class the root fibers have from now on; what they fork has their own."""
    global _fiber_class
    _fiber_class = cls


def new_fiber(
    eff: Effect[A, E],
    *,
    mask: int = 0,
    site: Site = None,
    env: dict[str, Any] | None = None,
    on: queue.ReadyQueue | None = None,
    context: contextvars.Context | None = None,
) -> Fiber[A, E]:
    """A fiber that has not started: services and queue of the calling fiber, else the default
    runtime's. RuntimeError where no event loop runs.
    """
    caller = current_fiber()
    if on is None:
        if caller is not None:
            on = caller._queue
        else:
            loop = hooks.running_loop()
            if loop is None:
                raise RuntimeError(
                    "no running event loop: fork inside asyncio, or start with fb.run(effect)"
                )
            on = queue.queue_of(loop)
    if env is None:
        env = DEFAULT_ENV if caller is None else caller._env
    if context is None:
        context = contextvars.copy_context()
    # A cast would be a call, on the edge's hot path.
    return _fiber_class(on, eff, context, env, mask, site)
