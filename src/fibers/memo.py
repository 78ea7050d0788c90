"""Layers that are built: shared by reference, counted, released when their last user leaves.

Each build runs in a fiber of its own. So whoever began it may leave: those who share it go on
waiting, and only when nobody is left is the build interrupted. The users wait under their own
masks, the build has none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fibers.cause import FiberDeadlockError
from fibers.effect import SCOPE_KEY, Effect, _Provide
from fibers.loop.protocol import SWITCH, Node
from fibers.loop.states import ENDED
from fibers.missing import LAYERS_KEY
from fibers.ops.wait import JoinOp
from fibers.scope import Scope
from fibers.waiting import waits_for

if TYPE_CHECKING:
    from fibers.exit import Exit
    from fibers.layer import OneService
    from fibers.loop.run_loop import FiberCore

RELEASED = "layer released"


class InContext:
    """What a fiber's services know of layers: the memo to look into, the built ones that gave
    those services, and the layer that is being built, where one is.
    """

    __slots__ = ("building", "held", "memo")

    def __init__(
        self, memo: MemoMap, held: tuple[Built, ...], building: OneService | None = None
    ) -> None:
        self.memo: MemoMap = memo
        self.held: tuple[Built, ...] = held
        self.building: OneService | None = building


class MemoMap:
    """Which layers are built, by identity. A fork also finds what its parent has; what it builds
    is its own, because siblings may have given it different dependencies.
    """

    __slots__ = ("_built", "_parent")

    def __init__(self, parent: MemoMap | None = None) -> None:
        self._parent = parent
        self._built: dict[OneService, Built] = {}

    def find(self, layer: OneService) -> Built | None:
        """What was built of ``layer`` and has a user."""
        at: MemoMap | None = self
        while at is not None:
            found = at._built.get(layer)
            if found is not None:
                return found
            at = at._parent
        return None

    def remember(self, built: Built) -> None:
        """Share it from now on."""
        self._built[built.layer] = built

    def forget(self, built: Built) -> None:
        """Nobody uses it any more: who comes now builds anew."""
        if self._built.get(built.layer) is built:
            del self._built[built.layer]


class Built:
    """A layer that is built, or on its way: its fiber, what it acquired, how many use it."""

    __slots__ = ("_env", "_scope", "_users", "acquired", "fiber", "layer", "memo")

    fiber: FiberCore
    _env: dict[str, Any]

    def __init__(self, layer: OneService, memo: MemoMap, dependencies: tuple[Built, ...]) -> None:
        self.layer: OneService = layer
        self.memo: MemoMap = memo
        self._users = 0
        # Closed from its end: the fiber that builds, then what it acquired, then the hold on what
        # it was built with. Without that hold a user who joins later, and leaves last, would see
        # the dependencies go first.
        self._scope = Scope(name=str(layer))
        for dependency in dependencies:
            dependency.register(self._scope)
        self.acquired: Scope = self._scope.fork_scope()

    def register(self, user: Scope) -> None:
        """Keep it until ``user``, an open scope, closes. One step: nothing lands in between."""
        self._users += 1
        user._add(self._leave)

    def _leave(self, exit_: Exit[Any, Any]) -> Effect[None] | None:
        self._users -= 1
        if self._users:
            return None
        self.memo.forget(self)
        # With the services that it was built with: whoever leaves last may have others, or none.
        return _Provide(self._scope.close(exit_, reason=RELEASED), self._env)

    def start(self, builder: FiberCore) -> None:
        """Give it the fiber that builds it, not yet run. Its services are those of ``builder``."""
        child = builder._spawn(
            _Provide(
                self.layer.build_effect,
                {
                    SCOPE_KEY: self.acquired,
                    LAYERS_KEY: InContext(self.memo, self._dependencies_of(builder), self.layer),
                },
            ),
            0,
            self.layer.site,
        )
        child._name = str(self.layer)
        child._owner = self._scope
        self._env = builder._env
        self._scope._hold(child)
        self.fiber = child
        self.memo.remember(self)

    def _dependencies_of(self, builder: FiberCore) -> tuple[Built, ...]:
        around: InContext | None = builder._env.get(LAYERS_KEY)
        return () if around is None else around.held


class Build:
    """One run of one layer graph: where results are shared, and whose close releases them."""

    __slots__ = ("memo", "scope", "used")

    def __init__(self, memo: MemoMap, scope: Scope) -> None:
        self.memo: MemoMap = memo
        # Always a sequential one: what is registered later is released first.
        self.scope: Scope = scope
        self.used: dict[Built, None] = {}

    def within(self, *, memo: MemoMap | None = None, scope: Scope | None = None) -> Build:
        """A part of it, with its own list of what it uses."""
        return Build(memo or self.memo, scope or self.scope)

    def held_with(self, around: InContext | None) -> tuple[Built, ...]:
        """All built layers that give services here."""
        before = () if around is None else around.held
        return tuple(dict.fromkeys((*before, *self.used)))


class BuildOp(Node):
    """The service of one layer: found, waited for, or built now."""

    __slots__ = ("build", "layer")

    def __init__(self, layer: OneService, build: Build) -> None:
        self.layer: OneService = layer
        self.build: Build = build

    def _ev(self, fiber: FiberCore) -> Any:
        build = self.build
        built = build.memo.find(self.layer)
        if built is not None:
            if built.fiber._state != ENDED and waits_for(built.fiber, fiber):
                raise FiberDeadlockError(
                    f"{self.layer} needs itself: its build waits for this fiber, #{fiber.id}, "
                    "which waits for that build"
                )
            built.register(build.scope)
            build.used[built] = None
            return JoinOp(built.fiber, as_exit=False)._ev(fiber)
        around: InContext | None = fiber._env.get(LAYERS_KEY)
        built = Built(self.layer, build.memo, () if around is None else around.held)
        built.register(build.scope)
        build.used[built] = None
        built.start(fiber)
        # The wait belongs to this primitive: an interrupt from the build's first segment finds it.
        fiber._cont = JoinOp(built.fiber, as_exit=False)
        fiber._switch = built.fiber
        return SWITCH

    def _label(self) -> str:
        return f"build of {self.layer}"


class BuildService(BuildOp, Effect[Any, Any]):
    """The same as an effect, whose value is the service."""

    __slots__ = ()
