"""How a fiber comes to life at an edge, where no effect runs (PD24)."""

from __future__ import annotations

import contextvars
from typing import TYPE_CHECKING, Any, TypeVar

from fibers.clock import LIVE_CLOCK
from fibers.fiber import Fiber, current_fiber
from fibers.loop import hooks, queue
from fibers.loop.native import hand_over, speed
from fibers.ops.clock import CLOCK_KEY

if TYPE_CHECKING:
    from collections.abc import Callable

    from fibers.effect import Effect
    from fibers.ops.fork import Site

A = TypeVar("A")
E = TypeVar("E", bound=Exception)
K = TypeVar("K")

DEFAULT_ENV: dict[str, Any] = {CLOCK_KEY: LIVE_CLOCK}
"""The services of the default runtime."""

_fiber_class: type[Fiber[Any, Any]] = Fiber
_made_of: Callable[..., type[Any]] | None = None


def make_fibers_of(made_of: Callable[..., type[Any]] | None) -> None:
    """Say what stands for a class of root fibers from now on, None: itself. What they fork is of
    their own class.
    """
    global _fiber_class, _made_of
    _made_of = made_of
    _fiber_class = made_for(Fiber)
    hand_over(RootFiber=_fiber_class)


def made_for(kind: type[K]) -> type[K]:
    """The class to make a root fiber of ``kind`` of."""
    if _made_of is None:
        return kind
    made: type[K] = _made_of(kind)
    return made


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


hand_over(slow_new_fiber=new_fiber, RootFiber=Fiber, DEFAULT_ENV=DEFAULT_ENV)
if not TYPE_CHECKING and speed is not None:
    new_fiber = speed.new_fiber
