"""The services of a runtime: its layer, built once, at the first use, for all its fibers (LY4)."""

from __future__ import annotations

import contextvars
from typing import TYPE_CHECKING, Any, TypeVar

from fibers.cause import FiberDeadlockError
from fibers.effect import Effect
from fibers.exit import failed, succeeded
from fibers.layer import checked
from fibers.loop.protocol import NEXT, SWITCH, Frame, Node
from fibers.loop.states import ENDED
from fibers.memo import Build, InContext, MemoMap
from fibers.missing import LAYERS_KEY
from fibers.ops.wait import JoinOp
from fibers.scope import Scope
from fibers.waiting import waits_for

if TYPE_CHECKING:
    from fibers.cause import Cause
    from fibers.exit import Exit
    from fibers.layer import Layer, Services
    from fibers.loop.run_loop import FiberCore

A = TypeVar("A")
E = TypeVar("E", bound=Exception)


class RuntimeServices:
    """What the fibers of one runtime have in context, and the scopes that end both.

    The build is nobody's: it goes on where the run that began it is interrupted, and its failure
    is the failure of every run (a rebuild would hide that the first one was told of it). Only a
    build that was interrupted, or lost with its loop, is begun anew.
    """

    __slots__ = ("_base", "_context", "_env", "_fiber", "_layer", "_resources", "fibers")

    def __init__(
        self, layer: Layer[Any, Any] | None, base: dict[str, Any], *, what: str, name: str
    ) -> None:
        """ValueError where the layer's graph lacks something. ``what`` is checked, for messages."""
        self._layer = None if layer is None else checked(layer, base, what)
        self._base = base
        # Of who made the runtime, not of whichever request comes first.
        self._context = contextvars.copy_context()
        self._fiber: FiberCore | None = None
        self._env: dict[str, Any] | None = base if layer is None else None
        # What the layer holds.
        self._resources = Scope(name=f"{name} layers")
        # What runs with it: ends first.
        self.fibers: Scope = Scope("parallel", name=name)

    @property
    def has_layer(self) -> bool:
        """Whether there is anything to build and to release."""
        return self._layer is not None

    @property
    def env(self) -> dict[str, Any]:
        """The services that a new fiber starts with."""
        return self._base if self._env is None else self._env

    def around(self, eff: Effect[A, E]) -> Effect[A, E]:
        """``eff`` with the layer's services, built now where they are not. For root fibers."""
        return eff if self._env is not None else _WithServices(eff, self)

    def end(self, exit_: Exit[Any, Any], reason: str) -> Effect[None]:
        """Interrupt the fibers and await all their finalizers, then release the layer. Once."""

        def begin() -> Effect[None]:
            if self.fibers.state == "closed":
                return Effect.succeed(None)
            return self.fibers.close(exit_, reason=reason).on_exit(
                # For the services it is the end that they were made for, whatever befell a fiber.
                lambda _: self._resources.close(succeeded(None))
            )

        return Effect.suspend(begin)

    def _built_by(self, fiber: FiberCore) -> FiberCore | None:
        """The build to wait for, over or under way; None where one has to be begun."""
        build = self._fiber
        if build is None:
            return None
        if build._state == ENDED:
            return None if build.cancelled() else build
        loop = build._queue.loop
        if loop is fiber._queue.loop:
            # Without a loop, run_sync's queue of that call is the only one to run it.
            return build if loop is not None or build._queue is fiber._queue else None
        return None if loop is None or loop.is_closed() else build

    def _begin(self, fiber: FiberCore) -> FiberCore:
        assert self._layer is not None
        if self._fiber is not None:
            # Interrupted, and undone; or lost with its loop, and then nobody can end it any more:
            # a dispose would wait for it for ever.
            self.fibers._drop(self._fiber)
            self._resources = Scope(name=self._resources.name)
        resources = self._resources
        memo = MemoMap()
        build = Build(memo, resources)

        def in_context(services: Services) -> dict[str, Any]:
            here = InContext(memo, build.held_with(None))
            return {**self._base, **services, LAYERS_KEY: here}

        def undo(cause: Cause[Any]) -> Effect[None]:
            return resources.close(failed(cause))

        child = type(fiber)(
            fiber._queue,
            self._layer._built(build).map(in_context).on_error(undo),
            self._context.copy(),
            self._base,
            0,
            None,
        )
        child._name = "layer build"
        child._owner = self.fibers
        self.fibers._hold(child)
        self._fiber = child
        return child


class _WithServicesOp(Node, Frame):
    """A run that begins before the services are there."""

    __slots__ = ("first", "services")

    def __init__(self, first: Node, services: RuntimeServices) -> None:
        self.first = first
        self.services = services

    def _ev(self, fiber: FiberCore) -> Any:
        services = self.services
        fiber._stack.append(self)
        build = services._built_by(fiber)
        if build is not None:
            if build._state != ENDED and waits_for(build, fiber):
                raise FiberDeadlockError(
                    f"the layer of {services.fibers.name} needs itself: its build waits for this "
                    "run, which waits for that build"
                )
            return JoinOp(build, as_exit=False)._ev(fiber)
        build = services._begin(fiber)
        fiber._cont = JoinOp(build, as_exit=False)
        fiber._switch = build
        return SWITCH

    def _val(self, fiber: FiberCore, value: Any) -> Any:
        # Roots only: nothing of the fiber comes after this frame that would want its old services.
        fiber._env = self.services._env = value
        fiber._next = self.first
        return NEXT


def disposed() -> Effect[Any, Any]:
    """What a run gives after the end."""
    return Effect.die(RuntimeError("Runtime disposed"))


class _WithServices(_WithServicesOp, Effect[Any, Any]):
    __slots__ = ()
